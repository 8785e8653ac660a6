"""Random text and random images: SGLang's `image` and `random` data sets."""

from __future__ import annotations

import random
from dataclasses import dataclass

from PIL import Image as PilImage

from benchmarks.workloads import pictures
from benchmarks.workloads.prompt import Image, Prompt, Text
from benchmarks.workloads.words import Tokenizer, filler, ranged_length


@dataclass(frozen=True)
class ImageSpec:
    """What each request holds; sizes in pixels, lengths in tokens (words without a tokenizer)."""

    image_count: int = 1
    width: int = 1920
    height: int = 1080
    image_format: str = "jpeg"
    image_content: str = "random"
    random_image_count: bool = False
    input_len: int = 1024
    output_len: int = 1024
    range_ratio: float = 0.0


def prompts(num_prompts: int, seed: int, spec: ImageSpec, tokenizer: Tokenizer | None = None) -> list[Prompt]:
    """Images first, then text. image_count = 0 gives SGLang's `random` set.

    random_image_count draws 1 … image_count images for each request. Raises ValueError for unknown content.
    """
    if spec.image_content not in pictures.CONTENTS:
        raise ValueError(
            f"image content {spec.image_content!r}: expected one of {', '.join(pictures.CONTENTS)}"
        )
    rng = random.Random(seed)
    return [_prompt(rng, spec, tokenizer, index) for index in range(num_prompts)]


def _prompt(rng: random.Random, spec: ImageSpec, tokenizer: Tokenizer | None, index: int) -> Prompt:
    count = rng.randint(1, spec.image_count) if spec.random_image_count else spec.image_count
    images: list[Text | Image] = [
        pictures.encode_picture(_picture(rng, spec), spec.image_format) for _ in range(count)
    ]
    text, num_tokens = filler(rng, ranged_length(rng, spec.input_len, spec.range_ratio), tokenizer)
    output_len = ranged_length(rng, spec.output_len, spec.range_ratio)
    return Prompt((*images, Text(text)), output_len, num_tokens, f"image-{index}")


def _picture(rng: random.Random, spec: ImageSpec) -> PilImage.Image:
    if spec.image_content == "blank":
        return pictures.blank_picture(spec.width, spec.height)
    return pictures.random_picture(rng, spec.width, spec.height)
