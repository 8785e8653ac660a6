"""Questions with one right answer about a list of picture descriptions.

    colour    What colour is the object in image 2?          red
    shape     Which shape is in image 2?                     circle
    digit     Which digit is in image 1?                     7
    lookup    What colour is the circle?                     red (the only circle among the images)
    describe  Describe image 2.                              a red circle

With options, the answer is a letter; "describe" is always free.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

COLOUR_NAMES = ("red", "orange", "yellow", "green", "blue", "purple", "black")
SHAPE_NAMES = ("circle", "square", "triangle", "diamond", "cross")
DIGIT_NAMES = tuple("0123456789")
THING_NAMES = (*SHAPE_NAMES, *DIGIT_NAMES)
KINDS = ("colour", "shape", "digit", "lookup", "describe")


class Described(Protocol):
    """A picture as the questions see it."""

    @property
    def colour(self) -> str: ...

    @property
    def thing(self) -> str: ...

    @property
    def text(self) -> str: ...


@dataclass(frozen=True)
class Question:
    """A question without its images; `answer` is a letter when there are options."""

    kind: str
    text: str
    options: tuple[str, ...]
    answer: str


def ask(
    rng: random.Random, pictures: Sequence[Described], kind: str | None, num_options: int
) -> Question | None:
    """One question of a kind (None: any that fits) about the pictures; None where the kind does not fit."""
    if kind is None:
        fitting = [k for k in KINDS if _fits(k, pictures)]
        kind = rng.choice(fitting)
    elif not _fits(kind, pictures):
        return None
    text, answer, wrong = _compose(rng, kind, pictures)
    if not num_options or kind == "describe":
        return Question(kind, text, (), answer)
    return _with_options(rng, Question(kind, text, (), answer), wrong, num_options)


def _fits(kind: str, pictures: Sequence[Described]) -> bool:
    if kind == "shape":
        return any(p.thing in SHAPE_NAMES for p in pictures)
    if kind == "digit":
        return any(p.thing in DIGIT_NAMES for p in pictures)
    if kind == "lookup":
        return len(pictures) > 1 and bool(_unique([p.thing for p in pictures]))
    return True


def phrase(picture: Described) -> str:
    """A picture's description with its article: "a red circle", "an orange 7"."""
    return f"{'an' if picture.colour[0] in 'aeiou' else 'a'} {picture.text}"


def _unique(names: Sequence[str]) -> list[int]:
    """Indexes of the names that occur once."""
    return [i for i, name in enumerate(names) if names.count(name) == 1]


def _compose(
    rng: random.Random, kind: str, pictures: Sequence[Described]
) -> tuple[str, str, tuple[str, ...]]:
    """Text, free answer and the pool of wrong answers of one question."""
    if kind == "lookup":
        index = rng.choice(_unique([p.thing for p in pictures]))
        noun = pictures[index].thing
        return f"What colour is the {noun}?", pictures[index].colour, COLOUR_NAMES
    pools = {"shape": SHAPE_NAMES, "digit": DIGIT_NAMES}
    allowed = pools.get(kind)
    index = rng.choice([i for i, p in enumerate(pictures) if allowed is None or p.thing in allowed])
    place = f"image {index + 1}" if len(pictures) > 1 or rng.random() < 0.5 else "the image"
    picture = pictures[index]
    if kind == "colour":
        return f"What colour is the object in {place}?", picture.colour, COLOUR_NAMES
    if kind == "describe":
        return f"Describe {place}.", phrase(picture), ()
    return f"Which {kind} is in {place}?", picture.thing, pools[kind]


def _with_options(
    rng: random.Random, question: Question, pool: tuple[str, ...], num_options: int
) -> Question:
    """Shuffle the right answer among wrong ones of the pool; fewer options where the pool is small."""
    wrong = [name for name in pool if name != question.answer]
    chosen = rng.sample(wrong, min(num_options - 1, len(wrong))) + [question.answer]
    rng.shuffle(chosen)
    letter = chr(65 + chosen.index(question.answer))
    return Question(question.kind, question.text, tuple(chosen), letter)
