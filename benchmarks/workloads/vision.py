"""Image-rich requests, six to eight pictures and little text: where encoding weighs most."""

from __future__ import annotations

import random

from benchmarks.workloads.pictures import encode_picture, random_picture
from benchmarks.workloads.prompt import Image, Prompt, Text
from benchmarks.workloads.words import random_words


def prompts(num_prompts: int, seed: int, output_len: int = 1, side: int = 448) -> list[Prompt]:
    """Each picture is side × side pixels, with 8 words before it and 64 after the last.

    Text and pictures alternate, so a scheme that starts on a ready prefix can show what it gains.
    """
    rng = random.Random(seed)
    return [_prompt(rng, side, output_len, index) for index in range(num_prompts)]


def _prompt(rng: random.Random, side: int, output_len: int, index: int) -> Prompt:
    parts: list[Text | Image] = []
    for _ in range(rng.randint(6, 8)):
        parts += [Text(random_words(rng, 8)), encode_picture(random_picture(rng, side, side))]
    return Prompt((*parts, Text(random_words(rng, 64))), output_len, None, f"vision-{index}")
