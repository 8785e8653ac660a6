"""Training dialogues and batches: token ids, answer positions, patches and M-RoPE positions as tensors.

A batch is right-padded; the causal mask keeps padding out of every real token's sight, so it needs no mask.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from transformers import PreTrainedTokenizerBase

from evaluation.tiny_vlm.pictures import PLACEMENTS, Example, PictureSpec, Style, follow_up, make_example
from evaluation.tiny_vlm.questions import COLOUR_NAMES, THING_NAMES

NOT_LEARNT = -1
PATCH = 14
MERGE = 2
IMAGE_MEAN = np.array([0.48145466, 0.4578275, 0.40821073], dtype=np.float32)
IMAGE_STD = np.array([0.26862954, 0.26130258, 0.27577711], dtype=np.float32)
SYSTEM_TURN = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
GREETINGS = ("Hello!", "Hello", "Hi", "What can you do?")
GREETING_ANSWER = "I can describe pictures: ask me about shapes, colours and digits."
SMALL = ((56, 56),)
EVERY_SIZE = (
    (56, 56),
    (84, 84),
    (112, 112),
    (84, 56),
    (56, 84),
    (112, 56),
    (56, 112),
    (112, 84),
    (84, 112),
    (168, 112),
)


@dataclass(frozen=True)
class Mixture:
    """What a batch is drawn from: images an example, chance of options, picture sizes, further turns.

    num_options: numbers of options, each with equal chance.
    """

    num_images: tuple[int, ...]
    choice_share: float
    sizes: Sequence[tuple[int, int]]
    num_options: tuple[int, ...] = (2, 3, 4, 4, 4, 5)
    max_follow_ups: int = 3


@dataclass(frozen=True)
class Dialogue:
    """Token ids with image pads expanded. specs: what each image shows.

    meanings: for each token to learn (answers and their end marks) the token that it means: a letter means
    the word of its option, any other token itself. NOT_LEARNT for the rest.
    """

    token_ids: list[int]
    meanings: list[int]
    images: list[Image.Image]
    specs: list[PictureSpec]
    kinds: list[str]


@dataclass(frozen=True)
class Pictures:
    """patches [P, 1176]; grids [N, 3] (t, h, w in patches); colours, things [N]: indexes into COLOUR_NAMES
    and THING_NAMES."""

    patches: torch.Tensor
    grids: torch.Tensor
    colours: torch.Tensor
    things: torch.Tensor

    @classmethod
    def of(cls, images: Sequence[Image.Image], specs: Sequence[PictureSpec]) -> Pictures:
        """The pictures of a batch; there may be none."""
        patches = np.concatenate([np.empty((0, 1176), np.float32), *map(patchify, images)])
        return cls(
            torch.from_numpy(patches),
            torch.tensor([grid_of(image) for image in images], dtype=torch.long).reshape(-1, 3),
            torch.tensor([COLOUR_NAMES.index(spec.colour) for spec in specs], dtype=torch.long),
            torch.tensor([THING_NAMES.index(spec.thing) for spec in specs], dtype=torch.long),
        )

    def __len__(self) -> int:
        return len(self.grids)


@dataclass(frozen=True)
class Batch:
    """input_ids [B, L]; position_ids [3, B, L]; pictures: those of all rows, in order;
    target_rows, target_columns [T]: places whose next token is learnt; targets [T]: those tokens;
    meanings [T]: what they mean."""

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    pictures: Pictures
    target_rows: torch.Tensor
    target_columns: torch.Tensor
    targets: torch.Tensor
    meanings: torch.Tensor


def patchify(image: Image.Image) -> np.ndarray:
    """Patches [h * w, 3 * 2 * 14 * 14] of an RGB image whose sides are multiples of 28, in merge order."""
    pixels = (np.asarray(image, dtype=np.float32) / 255.0 - IMAGE_MEAN) / IMAGE_STD
    rows, columns = image.height // PATCH // MERGE, image.width // PATCH // MERGE
    blocks = pixels.transpose(2, 0, 1).reshape(3, rows, MERGE, PATCH, columns, MERGE, PATCH)
    patches = blocks.transpose(1, 4, 2, 5, 0, 3, 6).reshape(-1, 3, 1, PATCH * PATCH)
    return np.repeat(patches, 2, axis=2).reshape(len(patches), -1)


def grid_of(image: Image.Image) -> tuple[int, int, int]:
    """(1, height, width) in patches."""
    return 1, image.height // PATCH, image.width // PATCH


def mrope_positions(
    token_ids: Sequence[int], image_pad: int, grids: Sequence[tuple[int, int, int]]
) -> np.ndarray:
    """M-RoPE positions [3, L]: text counts up on all axes, an image spans its merged rows and columns.

    Two text tokens, an image of 4x4 patches (2x2 merged), one text token:
    t = 0 1 2 2 2 2 4, h = 0 1 2 2 3 3 4, w = 0 1 2 3 2 3 4.
    """
    positions = np.zeros((3, len(token_ids)), dtype=np.int64)
    place, index, following = 0, 0, iter(grids)
    while index < len(token_ids):
        if token_ids[index] != image_pad:
            positions[:, index] = place
            place, index = place + 1, index + 1
            continue
        _, height, width = next(following)
        rows, columns = height // MERGE, width // MERGE
        span = slice(index, index + rows * columns)
        positions[0, span] = place
        positions[1, span] = place + np.repeat(np.arange(rows), columns)
        positions[2, span] = place + np.tile(np.arange(columns), rows)
        place, index = place + max(rows, columns), span.stop
    return positions


class DialogueMaker:
    """Makes dialogues and batches for one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.image_pad = tokenizer.convert_tokens_to_ids("<|image_pad|>")
        self.end_mark = tokenizer.convert_tokens_to_ids("<|im_end|>")

    def dialogue(self, rng: random.Random, mixture: Mixture) -> Dialogue:
        """One question about new pictures and up to mixture.max_follow_ups more about the same ones."""
        if rng.random() < 0.01:
            return self._build(
                [(rng.choice(GREETINGS), GREETING_ANSWER, GREETING_ANSWER)], None, ["greeting"]
            )
        number = rng.choice(mixture.num_images)
        first = make_example(rng, number, self._style(rng, mixture))
        examples = [first]
        for _ in range(rng.randint(0, mixture.max_follow_ups)):
            examples.append(follow_up(rng, first, self._style(rng, mixture).num_options))
        turns = [(self._user_text(example), example.answer, example.answer_text) for example in examples]
        return self._build(turns, first, [self.name_of(example) for example in examples])

    def word_ids(self, words: Sequence[str]) -> list[int]:
        """The token of each word. Raises ValueError where a word is not one token."""
        ids = [self.tokenizer(word).input_ids for word in words]
        if any(len(tokens) > 1 for tokens in ids):
            raise ValueError(f"not all of {', '.join(words)} are single tokens")
        return [tokens[0] for tokens in ids]

    def image_tokens(self, image: Image.Image) -> list[int]:
        """An image's tokens: its pads between the vision marks."""
        start, end = self.tokenizer.convert_tokens_to_ids(["<|vision_start|>", "<|vision_end|>"])
        _, height, width = grid_of(image)
        return [start, *[self.image_pad] * (height * width // MERGE**2), end]

    def single(self, example: Example) -> Dialogue:
        """An example as a dialogue of one turn."""
        turn = (self._user_text(example), example.answer, example.answer_text)
        return self._build([turn], example, [self.name_of(example)])

    @staticmethod
    def name_of(example: Example) -> str:
        """The kind, marked with "?" when the answer is a letter."""
        return example.kind + ("?" if example.options else "")

    @staticmethod
    def _style(rng: random.Random, mixture: Mixture) -> Style:
        options = rng.choice(mixture.num_options) if rng.random() < mixture.choice_share else 0
        return Style(None, options, rng.choice(PLACEMENTS), mixture.sizes)

    @staticmethod
    def _user_text(example: Example) -> str:
        """The user turn as the chat template renders it."""
        mark = "<|vision_start|><|image_pad|><|vision_end|>"
        return "".join(part if type(part) is str else mark for part in example.parts)

    def _build(self, turns: list[tuple[str, str, str]], shown: Example | None, kinds: list[str]) -> Dialogue:
        """turns: user text, answer, and what the answer says."""
        images, specs = ([], []) if shown is None else (list(shown.images), list(shown.specs))
        lead, token_ids, meanings = SYSTEM_TURN, [], []
        grids = iter([grid_of(image) for image in images])
        for text, answer, says in turns:
            prompt = f"{lead}<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
            for token in self.tokenizer(prompt).input_ids:
                repeat = 1
                if token == self.image_pad:
                    _, height, width = next(grids)
                    repeat = height * width // MERGE**2
                token_ids += [token] * repeat
                meanings += [NOT_LEARNT] * repeat
            learnt = [*self.tokenizer(answer).input_ids, self.end_mark]
            token_ids += learnt
            meanings += learnt if says == answer else [*self.word_ids([says]), self.end_mark]
            lead = "\n"
        return Dialogue(token_ids, meanings, images, specs, kinds)

    def collate(self, dialogues: Sequence[Dialogue]) -> Batch:
        """Pad dialogues to one length and gather what a training step needs."""
        length = max(len(d.token_ids) for d in dialogues)
        input_ids = np.full((len(dialogues), length), self.end_mark, dtype=np.int64)
        positions = np.zeros((3, len(dialogues), length), dtype=np.int64)
        rows, columns, meanings = [], [], []
        for row, d in enumerate(dialogues):
            size = len(d.token_ids)
            input_ids[row, :size] = d.token_ids
            grids = [grid_of(image) for image in d.images]
            positions[:, row, :size] = mrope_positions(d.token_ids, self.image_pad, grids)
            places = np.flatnonzero(np.array(d.meanings) != NOT_LEARNT) - 1
            rows += [row] * len(places)
            columns += places.tolist()
            meanings += [d.meanings[place + 1] for place in places]
        images = [image for d in dialogues for image in d.images]
        target_rows, target_columns = torch.tensor(rows), torch.tensor(columns)
        ids = torch.from_numpy(input_ids)
        return Batch(
            input_ids=ids,
            position_ids=torch.from_numpy(positions),
            pictures=Pictures.of(images, [spec for d in dialogues for spec in d.specs]),
            target_rows=target_rows,
            target_columns=target_columns,
            targets=ids[target_rows, target_columns + 1],
            meanings=torch.tensor(meanings),
        )
