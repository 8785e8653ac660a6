"""Drills: many supervised tokens without prose, for what questions teach too slowly.

    words      (A) red\n(B) blue\nblueBredAblueB...                   which letter a word has
    pictures   (A) red\n(B) blue\n<picture>B<picture>A...             which letter a picture has
    asked      <picture>(A) red\n(B) blue...assistant\nA               the same with the options after it
    places     Image 1<picture>\nImage 2<picture>\nimage 2: a red 7...   what is where

Letters, descriptions and numbers of images are learnt: a sixth of a drill's tokens, a fiftieth of questions'.
Words teach the lookup within minutes, pictures teach to look up what was seen, and places teach to
count images, so that all three are there when questions need them.
"""

from __future__ import annotations

import random

from PIL import Image

from evaluation.tiny_vlm.dialogues import Dialogue, DialogueMaker
from evaluation.tiny_vlm.pictures import COLOURS, DIGITS, SHAPES, PictureSpec, draw, random_spec
from evaluation.tiny_vlm.questions import phrase

POOLS: tuple[tuple[str, ...], ...] = (tuple(COLOURS), SHAPES, DIGITS)


def letter_drill(maker: DialogueMaker, rng: random.Random, pictures: bool) -> Dialogue:
    """Three blocks of options and eight words, or one of options and eight pictures, and letters to learn."""
    whole = Dialogue([], [], [], [])
    for _ in range(1 if pictures else 3):
        options = rng.sample(pool := rng.choice(POOLS), rng.choice((2, 3, 4, 5)))
        _append(whole, maker, "".join(f"({chr(65 + i)}) {option}\n" for i, option in enumerate(options)))
        for _ in range(8):
            index = rng.randrange(len(options))
            if pictures:
                _show(whole, maker, draw(rng, _picture(rng, pool, options[index])))
            else:
                _append(whole, maker, options[index])
            _append(whole, maker, chr(65 + index), learnt=True)
        _append(whole, maker, "\n")
    return whole


def asked_drill(maker: DialogueMaker, rng: random.Random) -> Dialogue:
    """Five times a picture, options and the mark of an answer, as in a question but for its words."""
    whole = Dialogue([], [], [], [])
    for _ in range(5):
        options = rng.sample(pool := rng.choice(POOLS), rng.choice((2, 3, 4, 5)))
        index = rng.randrange(len(options))
        _show(whole, maker, draw(rng, _picture(rng, pool, options[index])))
        lines = "".join(f"\n({chr(65 + i)}) {option}" for i, option in enumerate(options))
        _append(whole, maker, lines + "<|im_end|>\n<|im_start|>assistant\n")
        _append(whole, maker, chr(65 + index), learnt=True)
    return whole


def place_drill(maker: DialogueMaker, rng: random.Random) -> Dialogue:
    """Two to four labelled pictures, then a line on each in any order, of which the second half is learnt."""
    whole = Dialogue([], [], [], [])
    specs = [random_spec(rng) for _ in range(rng.choice((2, 3, 4)))]
    for number, spec in enumerate(specs, 1):
        _append(whole, maker, f"\nImage {number}")
        _show(whole, maker, draw(rng, spec))
    for index in rng.sample(range(len(specs)), len(specs)):
        halves = [f"image {index + 1}", phrase(specs[index])]
        if rng.random() < 0.4 and specs.count(specs[index]) == 1:
            halves.reverse()
        _append(whole, maker, f"\n{halves[0]}: ")
        _append(whole, maker, halves[1], learnt=True)
    return whole


def _append(dialogue: Dialogue, maker: DialogueMaker, text: str, learnt: bool = False) -> None:
    token_ids = maker.tokenizer(text).input_ids
    dialogue.token_ids.extend(token_ids)
    dialogue.answered.extend([learnt] * len(token_ids))


def _show(dialogue: Dialogue, maker: DialogueMaker, image: Image.Image) -> None:
    token_ids = maker.image_tokens(image)
    dialogue.images.append(image)
    dialogue.token_ids.extend(token_ids)
    dialogue.answered.extend([False] * len(token_ids))


def _picture(rng: random.Random, pool: tuple[str, ...], name: str) -> PictureSpec:
    """A picture of which the name, one of a pool of colours or of things, is true."""
    if pool == tuple(COLOURS):
        return PictureSpec(name, rng.choice(rng.choice((SHAPES, DIGITS))))
    return PictureSpec(rng.choice(list(COLOURS)), name)


def drill_batch(maker: DialogueMaker, rng: random.Random, size: int) -> list[Dialogue]:
    """size drills of one sort."""
    sort = rng.choice(("words", "pictures", "asked", "asked", "asked", "places"))
    if sort == "places":
        return [place_drill(maker, rng) for _ in range(size)]
    if sort == "asked":
        return [asked_drill(maker, rng) for _ in range(size)]
    return [letter_drill(maker, rng, sort == "pictures") for _ in range(size)]
