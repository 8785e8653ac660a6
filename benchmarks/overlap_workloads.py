"""What `benchmarks.overlap` can send: the workloads, and the model and C that go with each."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.workloads import Prompt, Text, peers, vision
from benchmarks.workloads.pictures import encode_picture, random_picture
from benchmarks.workloads.words import random_words


@dataclass(frozen=True)
class OverlapWorkload:
    """A workload of image-rich requests with one output token.

    make: (number of prompts, seed) -> prompts. side: of its pictures in pixels. batch_tokens: C, one image.
    """

    name: str
    model: str
    make: Callable[[int, int], list[Prompt]]
    side: int

    @property
    def batch_tokens(self) -> int:
        return (self.side // 28) ** 2

    def text_probes(self) -> Sequence[int]:
        """Words of the text requests from which prefill times are fitted, up to the workload's own length."""
        longest = (4 if self.model == "small" else 7) * self.batch_tokens + self.side // 2
        return (1, longest // 4, longest // 2, longest)

    def image_probe(self, seed: int, num_images: int) -> Prompt:
        """Images alone."""
        rng = random.Random(f"image {seed}")
        images = [encode_picture(random_picture(rng, self.side, self.side)) for _ in range(num_images)]
        return Prompt((*images, Text("what?")), 1, None, f"images-{seed}")


def text_probe(seed: int, num_words: int) -> Prompt:
    """Words alone."""
    return Prompt((Text(random_words(random.Random(f"text {seed}"), num_words)),), 1, None, f"text-{seed}")


def _peers_small(num_prompts: int, seed: int) -> list[Prompt]:
    rng = random.Random(seed)
    prompts = []
    for index in range(num_prompts):
        images = [encode_picture(random_picture(rng, 224, 224)) for _ in range(peers.NUM_IMAGES)]
        prompts.append(Prompt((*images, Text(random_words(rng, 64))), 1, None, f"peers-224-{index}"))
    return prompts


WORKLOADS = {
    workload.name: workload
    for workload in (
        OverlapWorkload("peers", "small", peers.prompts, peers.SIDE),
        OverlapWorkload("vision", "small-vision", vision.prompts, 448),
        # A quarter of the tokens, for slow machines and for runs with many requests.
        OverlapWorkload("peers-224", "small", _peers_small, 224),
        OverlapWorkload(
            "vision-224", "small-vision", lambda count, seed: vision.prompts(count, seed, side=224), 224
        ),
    )
}
