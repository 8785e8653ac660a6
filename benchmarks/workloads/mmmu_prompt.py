"""An MMMU question as the benchmark asks it, with each image where `<image n>` stands."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

from PIL import Image as PilImage

from benchmarks.workloads.mmmu_rows import MmmuRow
from benchmarks.workloads.prompt import Image, Text

MARK = re.compile(r"<image (\d+)>")
CHOICE_INSTRUCTION = "Answer with the option's letter from the given choices directly."
OPEN_INSTRUCTION = "Answer the question using a single word or phrase."

Encode = Callable[[MmmuRow, int], Image]


def question_text(row: MmmuRow) -> str:
    """Question, options as "(A) …" lines, a blank line, and the instruction; with `<image n>` marks."""
    if row.is_open or not row.options:
        return f"{row.question}\n\n{OPEN_INSTRUCTION}"
    lines = "\n".join(f"({chr(65 + index)}) {option}" for index, option in enumerate(row.options))
    return f"{row.question}\n{lines}\n\n{CHOICE_INSTRUCTION}"


def question_parts(row: MmmuRow, encode: Encode) -> list[Text | Image]:
    """Text and images in order. `encode` makes the image file that is sent.

    An image stands at its first mark; later marks of it, and marks without an image, stay text.
    Images that are never mentioned come first.
    """
    pieces = MARK.split(question_text(row))  # text, number, text, number, …, text
    mentioned = {int(number) for number in pieces[1::2]}
    parts: list[Text | Image] = [encode(row, number) for number in sorted(set(row.images) - mentioned)]
    pending = set(row.images)
    text = pieces[0]
    for number, following in zip(map(int, pieces[1::2]), pieces[2::2]):
        if number in pending:
            pending.remove(number)
            parts += [Text(text)] if text else []
            parts.append(encode(row, number))
            text = following
        else:
            text += f"<image {number}>{following}"
    return [*parts, Text(text)] if text else parts


def original_image(row: MmmuRow, number: int) -> Image:
    """The image file as it is in the data set."""
    data = row.images[number]
    with PilImage.open(io.BytesIO(data)) as picture:
        return Image(data, PilImage.MIME[picture.format or "PNG"], picture.width, picture.height)
