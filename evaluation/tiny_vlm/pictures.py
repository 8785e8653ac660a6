"""Synthetic pictures with one coloured object each, and examples that ask about several of them.

A picture holds one object, a shape or a digit, in one of seven colours on a light background.
Its description is exact, so every question about it has one right answer. Needs PIL only.

    rng = random.Random(0)
    image = draw(rng, PictureSpec(colour="red", thing="circle", width=84, height=56))
    example = make_example(rng, 3, Style(num_options=4, placement="labelled"))
    example.images        # three PIL images
    example.question      # "Image 1<image 1>\\nImage 2<image 2>\\n... What colour is ..."
    example.options       # ("red", "blue", "green", "black"); empty when the answer is free
    example.answer        # "B", or the free answer "blue"
    example.prompt_text   # question, options and instruction in MMMU's prompt format
    example.messages()    # the same as chat messages, images in their places

The whole of an example is a function of the random generator's state and the style.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from PIL import Image, ImageDraw

from evaluation.tiny_vlm.questions import KINDS, Question, ask

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (220, 30, 35),
    "orange": (245, 140, 20),
    "yellow": (235, 220, 30),
    "green": (35, 150, 55),
    "blue": (35, 70, 215),
    "purple": (135, 45, 165),
    "black": (20, 20, 20),
}
SHAPES: tuple[str, ...] = ("circle", "square", "triangle", "diamond", "cross")
DIGITS: tuple[str, ...] = tuple("0123456789")

# Rows of a 5x7 dot-matrix digit, top to bottom; a set bit is a filled cell, the highest bit leftmost.
_DIGIT_ROWS: dict[str, tuple[int, ...]] = {
    "0": (14, 17, 17, 17, 17, 17, 14),
    "1": (4, 12, 4, 4, 4, 4, 14),
    "2": (14, 17, 1, 6, 8, 16, 31),
    "3": (31, 1, 2, 6, 1, 17, 14),
    "4": (2, 6, 10, 18, 31, 2, 2),
    "5": (31, 16, 30, 1, 1, 17, 14),
    "6": (6, 8, 16, 30, 17, 17, 14),
    "7": (31, 1, 2, 4, 8, 8, 8),
    "8": (14, 17, 17, 14, 17, 17, 14),
    "9": (14, 17, 17, 15, 1, 2, 12),
}

PLACEMENTS: tuple[str, ...] = ("first", "labelled", "inline")
_IMAGE_MARK = re.compile(r"<image (\d+)>")


@dataclass(frozen=True)
class PictureSpec:
    """What a picture shows: `thing` is one of SHAPES or DIGITS; width and height in pixels."""

    colour: str
    thing: str
    width: int = 56
    height: int = 56

    @property
    def is_digit(self) -> bool:
        return self.thing in DIGITS

    @property
    def text(self) -> str:
        """The description that answers use: "red circle", "blue 7"."""
        return f"{self.colour} {self.thing}"


@dataclass(frozen=True)
class Style:
    """How an example asks.

    kind: one of questions.KINDS, or None for a random kind that fits the pictures.
    num_options: multiple-choice options, 0 for a free answer. Kinds that only describe are always free.
    placement: "first" (images, then the question), "labelled" ("Image 1" before each), "inline"
        (the question, then the images). A question that tells images apart by number is always labelled.
    sizes: (width, height) pixels to draw from, one draw for each picture.
    """

    kind: str | None = None
    num_options: int = 4
    placement: str = "first"
    sizes: Sequence[tuple[int, int]] = ((56, 56),)


@dataclass(frozen=True)
class Example:
    """One question about pictures. `question` holds an <image k> mark (k from 1) where each image goes."""

    images: tuple[Image.Image, ...]
    specs: tuple[PictureSpec, ...]
    kind: str
    question: str
    options: tuple[str, ...]
    answer: str

    @property
    def prompt_text(self) -> str:
        """Question, options and instruction as MMMU's prompt format writes them, with <image k> marks."""
        if self.options:
            lines = "\n".join(f"({chr(65 + i)}) {option}" for i, option in enumerate(self.options))
            instruction = "Answer with the option's letter from the given choices directly."
            return f"{self.question}\n{lines}\n\n{instruction}"
        if self.kind == "describe":
            return self.question
        return f"{self.question}\n\nAnswer the question using a single word or phrase."

    @property
    def parts(self) -> tuple[str | int, ...]:
        """The prompt in order: pieces of text, and indexes (from 0) into images."""
        pieces = _IMAGE_MARK.split(self.prompt_text)
        ordered = [int(piece) - 1 if i % 2 else piece for i, piece in enumerate(pieces)]
        return tuple(piece for piece in ordered if piece != "")

    @property
    def answer_text(self) -> str:
        """What the answer says, whether or not it is a letter: options[1] for "B"."""
        return self.options[ord(self.answer) - 65] if self.options else self.answer

    def messages(self) -> list[dict]:
        """The user turn as chat messages; each image part is {"type": "image", "image": PIL image}."""
        content = [
            {"type": "text", "text": part}
            if type(part) is str
            else {"type": "image", "image": self.images[part]}
            for part in self.parts
        ]
        return [{"role": "user", "content": content}]


def random_spec(rng: random.Random, sizes: Sequence[tuple[int, int]] = ((56, 56),)) -> PictureSpec:
    """A picture of a random thing in a random colour; a shape or a digit with equal chances."""
    things = SHAPES if rng.random() < 0.5 else DIGITS
    width, height = rng.choice(list(sizes))
    return PictureSpec(rng.choice(list(COLOURS)), rng.choice(things), width, height)


def draw(rng: random.Random, spec: PictureSpec) -> Image.Image:
    """Paint a spec as an RGB image; place, size, shade and background vary a little with rng."""
    background = tuple(rng.randint(205, 255) for _ in range(3))
    image = Image.new("RGB", (spec.width, spec.height), background)
    colour = tuple(min(255, max(0, channel + rng.randint(-15, 15))) for channel in COLOURS[spec.colour])
    side = min(spec.width, spec.height)
    radius = side * rng.uniform(0.32, 0.42)
    centre_x = spec.width / 2 + side * rng.uniform(-0.05, 0.05)
    centre_y = spec.height / 2 + side * rng.uniform(-0.05, 0.05)
    pen = ImageDraw.Draw(image)
    if spec.is_digit:
        _draw_digit(pen, spec.thing, (centre_x, centre_y, radius), colour)
    else:
        _draw_shape(pen, spec.thing, (centre_x, centre_y, radius), colour)
    return image


def _draw_digit(
    pen: ImageDraw.ImageDraw, digit: str, place: tuple[float, float, float], colour: tuple
) -> None:
    """Fill the cells of a 5x7 digit whose height is twice the radius of place (x, y, radius)."""
    x, y, radius = place
    cell = 2 * radius / 7
    left, top = x - 2.5 * cell, y - radius
    for row, bits in enumerate(_DIGIT_ROWS[digit]):
        for column in range(5):
            if bits >> (4 - column) & 1:
                x0, y0 = left + column * cell, top + row * cell
                pen.rectangle((x0, y0, x0 + cell, y0 + cell), fill=colour)


def _draw_shape(
    pen: ImageDraw.ImageDraw, shape: str, place: tuple[float, float, float], colour: tuple
) -> None:
    """Fill a shape whose half height is the radius of place (x, y, radius)."""
    x, y, r = place
    if shape == "circle":
        pen.ellipse((x - r, y - r, x + r, y + r), fill=colour)
    elif shape == "square":
        s = r * 0.88
        pen.rectangle((x - s, y - s, x + s, y + s), fill=colour)
    elif shape == "cross":
        arm = r * 0.36
        pen.rectangle((x - r, y - arm, x + r, y + arm), fill=colour)
        pen.rectangle((x - arm, y - r, x + arm, y + r), fill=colour)
    else:
        corners = {"triangle": (-90, 30, 150), "diamond": (-90, 0, 90, 180)}[shape]
        points = [(x + r * math.cos(math.radians(a)), y + r * math.sin(math.radians(a))) for a in corners]
        pen.polygon(points, fill=colour)


def make_example(rng: random.Random, num_images: int, style: Style = Style()) -> Example:
    """Draw num_images pictures (one or more) and ask one question about them.

    Raises ValueError for an unknown kind or placement, and for fewer than one image.
    """
    if num_images < 1:
        raise ValueError(f"an example needs at least one image, got {num_images}")
    if style.kind is not None and style.kind not in KINDS:
        raise ValueError(f"unknown kind {style.kind!r}; known: {', '.join(KINDS)}")
    question = None
    while question is None:  # not every kind fits every set of pictures: draw until one does
        specs = tuple(random_spec(rng, style.sizes) for _ in range(num_images))
        question = ask(rng, specs, style.kind, style.num_options)
    images = tuple(draw(rng, spec) for spec in specs)
    by_number = num_images > 1 and question.kind != "lookup"
    placed = place_images(question.text, num_images, "labelled" if by_number else style.placement)
    return Example(images, specs, question.kind, placed, question.options, question.answer)


def place_images(text: str, num_images: int, placement: str) -> str:
    """Put <image k> marks before or after a question's text. Raises ValueError for an unknown placement."""
    marks = [f"<image {k}>" for k in range(1, num_images + 1)]
    if placement == "first":
        return "".join(marks) + text
    if placement == "labelled":
        return "".join(f"Image {k}{mark}\n" for k, mark in enumerate(marks, 1)) + text
    if placement == "inline":
        return text + " " + " ".join(marks)
    raise ValueError(f"unknown placement {placement!r}; known: {', '.join(PLACEMENTS)}")


def follow_up(rng: random.Random, example: Example, num_options: int = 4) -> Example:
    """Another question about the same pictures, for a later turn: it has no images of its own."""
    question: Question | None = None
    while question is None:
        question = ask(rng, example.specs, None, num_options)
    return replace(
        example,
        images=(),
        kind=question.kind,
        question=question.text,
        options=question.options,
        answer=question.answer,
    )
