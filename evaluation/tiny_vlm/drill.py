"""Drills: many supervised tokens without prose, for what questions teach too slowly.

    words      (A) red\n(B) blue\nblueBredAblueB...                   which letter a word has
    pictures   (A) red\n(B) blue\n<picture>B<picture>A...             which letter a picture has
    asked      <picture>(A) red\n(B) blue...assistant\nA               the same with the options after it
    places     Image 1<picture>\nImage 2<picture>\ncolour in image 2?red...   what is where

Letters and words are learnt: a sixth of a drill's tokens, a fiftieth of questions'.
Words teach the lookup within minutes, pictures teach to look up what was seen, and places teach to
count images, so that all three are there when questions need them.
"""

from __future__ import annotations

import random

from evaluation.tiny_vlm.dialogues import NOT_LEARNT, Dialogue, DialogueMaker
from evaluation.tiny_vlm.pictures import COLOURS, DIGITS, SHAPES, PictureSpec, draw, random_spec

POOLS: tuple[tuple[str, ...], ...] = (tuple(COLOURS), SHAPES, DIGITS)


def letter_drill(maker: DialogueMaker, rng: random.Random, pictures: bool) -> Dialogue:
    """Three blocks of options and eight words, or one of options and eight pictures, and letters to learn."""
    whole = Dialogue([], [], [], [], [])
    for _ in range(1 if pictures else 3):
        options = rng.sample(pool := rng.choice(POOLS), rng.choice((2, 3, 4, 5)))
        _append(whole, maker, "".join(f"({chr(65 + i)}) {option}\n" for i, option in enumerate(options)))
        for _ in range(8):
            index = rng.randrange(len(options))
            if pictures:
                _show(whole, maker, rng, _picture(rng, pool, options[index]))
            else:
                _append(whole, maker, options[index])
            _append_letter(whole, maker, options, index)
        _append(whole, maker, "\n")
    return whole


def asked_drill(maker: DialogueMaker, rng: random.Random) -> Dialogue:
    """Five times a picture, options and the mark of an answer, as in a question but for its words."""
    whole = Dialogue([], [], [], [], [])
    for _ in range(5):
        options = rng.sample(pool := rng.choice(POOLS), rng.choice((2, 3, 4, 5)))
        index = rng.randrange(len(options))
        _show(whole, maker, rng, _picture(rng, pool, options[index]))
        lines = "".join(f"\n({chr(65 + i)}) {option}" for i, option in enumerate(options))
        _append(whole, maker, lines + "<|im_end|>\n<|im_start|>assistant\n")
        _append_letter(whole, maker, options, index)
    return whole


def place_drill(maker: DialogueMaker, rng: random.Random) -> Dialogue:
    """Two to four labelled pictures, then ten lines on one of them each, whose last word is learnt."""
    whole = Dialogue([], [], [], [], [])
    specs = [random_spec(rng) for _ in range(rng.choice((2, 3, 4)))]
    for number, spec in enumerate(specs, 1):
        _append(whole, maker, f"\nImage {number}")
        _show(whole, maker, rng, spec)
    for _ in range(10):
        index = rng.randrange(len(specs))
        asked, answer = rng.choice(_lines_on(rng, specs, index))
        _append(whole, maker, f"\n{asked}")
        _append(whole, maker, answer, learnt=True)
    return whole


def _lines_on(rng: random.Random, specs: list[PictureSpec], index: int) -> list[tuple[str, str]]:
    """Lines without their last word, and that word, on one picture: what it shows."""
    spec = specs[index]
    place = f"image {index + 1}{rng.choice(('', '?'))}"
    sort = "digit" if spec.is_digit else "shape"
    lines = [(f"colour in {place}", spec.colour), (f"{sort} in {place}", spec.thing)]
    if [other.thing for other in specs].count(spec.thing) == 1:
        lines.append((f"colour of the {spec.thing}?", spec.colour))
    return lines


def _append(dialogue: Dialogue, maker: DialogueMaker, text: str, learnt: bool = False) -> None:
    token_ids = maker.tokenizer(text).input_ids
    dialogue.token_ids.extend(token_ids)
    dialogue.meanings.extend(token_ids if learnt else [NOT_LEARNT] * len(token_ids))


def _append_letter(dialogue: Dialogue, maker: DialogueMaker, options: list[str], index: int) -> None:
    dialogue.token_ids.extend(maker.tokenizer(chr(65 + index)).input_ids)
    dialogue.meanings.extend(maker.word_ids([options[index]]))


def _show(dialogue: Dialogue, maker: DialogueMaker, rng: random.Random, spec: PictureSpec) -> None:
    image = draw(rng, spec)
    token_ids = maker.image_tokens(image)
    dialogue.images.append(image)
    dialogue.specs.append(spec)
    dialogue.token_ids.extend(token_ids)
    dialogue.meanings.extend([NOT_LEARNT] * len(token_ids))


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
