"""The paper's workload: MMMU questions with images resized to 1K or 2K (§4.1.2, Figure 15).

The paper gives averages of about 5k (1K) and 9k (2K) image tokens and 8k and 12k tokens in all. One question
has one or two images and under a hundred words, so the paper's settings join questions until a request holds
two images, scale every image to the area of 1920×1080 (2,691 tokens) or 2560×1440 (4,641 tokens), and set a
passage of random words, 3,000 on average and log-normal in length, before them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.workloads.mmmu_prompt import Encode, original_image, question_parts
from benchmarks.workloads.mmmu_rows import MmmuRow
from benchmarks.workloads.pictures import encode_picture, resize_to_area
from benchmarks.workloads.prompt import Image, Prompt, Text
from benchmarks.workloads.words import Tokenizer, filler

AREAS = {"1k": (1920, 1080), "2k": (2560, 1440)}
LENGTH_SIGMA = 0.6  # of the log-normal passage: its longest in a hundred is four times its median


@dataclass(frozen=True)
class MmmuSpec:
    """area: (width, height) whose area every image gets, None leaves images as they are.

    min_images: questions are joined until a request holds this many images.
    passage_tokens: average length of the passage before the questions (words without a tokenizer).
    """

    area: tuple[int, int] | None = None
    min_images: int = 1
    passage_tokens: int = 0
    image_format: str = "jpeg"
    output_len: int = 1


def paper_spec(resolution: str) -> MmmuSpec:
    """The settings that give the paper's averages; resolution is "1k" or "2k"."""
    return MmmuSpec(area=AREAS[resolution], min_images=2, passage_tokens=3000)


def prompts(
    rows: Sequence[MmmuRow], num_prompts: int, seed: int, spec: MmmuSpec, tokenizer: Tokenizer | None = None
) -> list[Prompt]:
    """num_prompts requests from the questions in a seeded order, starting again when they run out.

    Raises ValueError when no question has an image although min_images asks for some.
    """
    if spec.min_images and not any(row.images for row in rows):
        raise ValueError("none of the questions has an image")
    rng = random.Random(seed)
    endless = _shuffled(rng, rows)
    encode = _encoder(spec)
    groups = [_joined(endless, spec.min_images) for _ in range(num_prompts)]
    return [_prompt(rng, group, spec, (encode, tokenizer)) for group in groups]


def workload_name(rows: Sequence[MmmuRow], spec: MmmuSpec) -> str:
    """`mmmu-1k`, `mmmu-2k`, `mmmu`; `synthetic` in place of `mmmu` for generated questions."""
    base = "synthetic" if any(row.is_synthetic for row in rows) else "mmmu"
    sizes = {area: name for name, area in AREAS.items()}
    return base if spec.area is None else f"{base}-{sizes.get(spec.area, f'{spec.area[0]}x{spec.area[1]}')}"


def _shuffled(rng: random.Random, rows: Sequence[MmmuRow]) -> Iterator[MmmuRow]:
    """All rows in random order, then all again in another, for ever."""
    while True:
        yield from rng.sample(list(rows), len(rows))


def _joined(endless: Iterator[MmmuRow], min_images: int) -> list[MmmuRow]:
    group: list[MmmuRow] = [next(endless)]
    while sum(len(row.images) for row in group) < min_images:
        group.append(next(endless))
    return group


def _encoder(spec: MmmuSpec) -> Encode:
    if spec.area is None:
        return original_image
    width, height = spec.area

    def resized(row: MmmuRow, number: int) -> Image:
        return encode_picture(resize_to_area(row.picture(number), width, height), spec.image_format)

    return resized


def _prompt(
    rng: random.Random, rows: Sequence[MmmuRow], spec: MmmuSpec, tools: tuple[Encode, Tokenizer | None]
) -> Prompt:
    encode, tokenizer = tools
    parts: list[Text | Image] = []
    if spec.passage_tokens:
        parts.append(Text(filler(rng, _passage_length(rng, spec.passage_tokens), tokenizer)[0] + "\n\n"))
    for row in rows:
        parts += question_parts(row, encode)
        parts += [Text("\n\n")] if row is not rows[-1] else []
    prompt = Prompt(tuple(parts), spec.output_len, None, "+".join(row.row_id for row in rows))
    if tokenizer is None:
        return prompt
    num_tokens = len(tokenizer.encode(prompt.text, add_special_tokens=False))
    return Prompt(prompt.parts, prompt.output_len, num_tokens, prompt.prompt_id)


def _passage_length(rng: random.Random, mean: int) -> int:
    """Log-normal with the given mean: exp(mu + sigma²/2) = mean."""
    mu = math.log(mean) - LENGTH_SIGMA**2 / 2
    return max(1, round(rng.lognormvariate(mu, LENGTH_SIGMA)))
