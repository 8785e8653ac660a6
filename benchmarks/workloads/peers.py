"""The requests by which engines are compared on one machine: 4 images of 448×448 and 256 words.

With the published Qwen2.5-VL tokenizer that is 1,307 tokens, 1,024 of them of images.
"""

from __future__ import annotations

import random

from benchmarks.workloads.pictures import encode_picture, random_picture
from benchmarks.workloads.prompt import Image, Prompt, Text
from benchmarks.workloads.words import random_words

SIDE = 448
NUM_IMAGES = 4
NUM_WORDS = 256


def prompts(num_prompts: int, seed: int, output_len: int = 1, num_images: int = NUM_IMAGES) -> list[Prompt]:
    """num_images = 0 gives the text-only variant; output_len = 128 the one that decodes."""
    rng = random.Random(seed)
    return [_prompt(rng, num_images, output_len, index) for index in range(num_prompts)]


def _prompt(rng: random.Random, num_images: int, output_len: int, index: int) -> Prompt:
    images: list[Text | Image] = [encode_picture(random_picture(rng, SIDE, SIDE)) for _ in range(num_images)]
    return Prompt((*images, Text(random_words(rng, NUM_WORDS))), output_len, None, f"peers-{index}")
