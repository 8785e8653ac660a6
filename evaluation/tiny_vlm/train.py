"""Train the tiny model: python -m evaluation.tiny_vlm.train [--pace 1.0] [--out gllm/models_data/tiny]

Four lessons, each a number of steps (times --pace): the names of pictures (vision tower only); drills, which
bind letters to options and numbers to pictures; questions about one to four pictures; pictures of all sizes.
The order of words, numbers and letters matters: what a drill does not need is unlearnt before the next one.
One core takes about 45 minutes. A checkpoint is stored after each lesson; `--from-lesson` continues from it.

The stored checkpoint was trained by these lessons, the first two of them while there was one more kind of
question (which image shows a thing), so that a run from the start makes slightly other merges. It answers 574
of 600 held-out questions (0.957; one image 149, two 141, three 144, four 140 of 150): `check --examples 600`.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration

from evaluation.tiny_vlm.dialogues import (
    EVERY_SIZE,
    SMALL,
    Batch,
    Dialogue,
    DialogueMaker,
    Mixture,
    Pictures,
)
from evaluation.tiny_vlm.drill import asked_drill, letter_drill, place_drill
from evaluation.tiny_vlm.losses import Naming, batch_vision_attention, dialogue_loss, see
from evaluation.tiny_vlm.model import MODEL_FOLDER, new_model, write_tiny_tokenizer
from evaluation.tiny_vlm.pictures import draw, random_spec

WARM_UP = 30
REPORT_EVERY = 50
FLOOR = 0.02
"""The lowest learning rate of a lesson that cools down, as a share of its peak."""


@dataclass(frozen=True)
class Lesson:
    """Steps with batches drawn from drills and questions by weight, or of pictures alone ("names").

    peak: learning rate; cools: it falls to the end.
    """

    name: str
    steps: int
    peak: float
    weights: dict[str, float]
    questions: Mixture
    cools: bool = False


FEW_OPTIONS = (2, 3, 4, 5)
ONE_IMAGE = Mixture((1,), 0.5, SMALL, FEW_OPTIONS)
LESSONS = (
    Lesson("names", 1000, 1.5e-3, {"names": 1.0}, ONE_IMAGE, cools=True),
    Lesson("drills", 600, 1.2e-3, {"words": 0.3, "pictures": 0.25, "places": 0.45}, ONE_IMAGE),
    Lesson(
        "several",
        900,
        1e-3,
        {"asked": 0.2, "places": 0.2, "questions": 0.6},
        Mixture((1, 2, 3, 4), 0.7, SMALL, FEW_OPTIONS),
    ),
    Lesson(
        "sizes",
        1800,
        1e-3,
        {"asked": 0.05, "places": 0.1, "questions": 0.85},
        Mixture((1, 2, 3, 4), 0.7, EVERY_SIZE),
        cools=True,
    ),
)


class Batches:
    """Batches of a lesson, by sort."""

    def __init__(self, maker: DialogueMaker, rng: random.Random, lesson: Lesson) -> None:
        self._maker, self._rng, self._lesson = maker, rng, lesson
        self._questions = self._draw_questions(16)
        self._sorts: dict[str, Callable[[], list[Dialogue]]] = {
            "words": lambda: [letter_drill(maker, rng, pictures=False) for _ in range(16)],
            "pictures": lambda: [letter_drill(maker, rng, pictures=True) for _ in range(8)],
            "asked": lambda: [asked_drill(maker, rng) for _ in range(8)],
            "places": lambda: [place_drill(maker, rng) for _ in range(12)],
            "questions": lambda: next(self._questions),
        }

    def draw(self) -> tuple[str, Batch]:
        """A sort and a batch of it."""
        weights = self._lesson.weights
        sort = self._rng.choices(list(weights), list(weights.values()))[0]
        return sort, self._maker.collate(self._sorts[sort]())

    def pictures(self, step: int) -> Pictures:
        """64 pictures: of 56 x 56 first; of all sizes in every other batch after a third of the lesson."""
        is_early = step < self._lesson.steps / 3 or step % 2
        specs = [random_spec(self._rng, SMALL if is_early else EVERY_SIZE) for _ in range(64)]
        return Pictures.of([draw(self._rng, spec) for spec in specs], specs)

    def _draw_questions(self, size: int) -> Iterator[list[Dialogue]]:
        """Batches of one number of images and similar length, so that little is padding.

        Two times in three all their pictures have one size.
        """
        rng, mixture = self._rng, self._lesson.questions
        while True:
            sizes = mixture.sizes if rng.random() < 0.33 else [rng.choice(list(mixture.sizes))]
            narrow = replace(mixture, num_images=(rng.choice(mixture.num_images),), sizes=sizes)
            pool = [self._maker.dialogue(rng, narrow) for _ in range(4 * size)]
            pool.sort(key=lambda dialogue: len(dialogue.token_ids))
            for start in rng.sample(range(0, 4 * size, size), 4):
                yield pool[start : start + size]


class Progress:
    """Prints the share of right tokens by sort of batch, every REPORT_EVERY steps."""

    def __init__(self, lesson: Lesson) -> None:
        self._lesson, self._begun = lesson, time.monotonic()
        self._right: dict[str, list[float]] = defaultdict(list)

    def add(self, step: int, sort: str, right: float) -> None:
        """Count a step; right is a share (of tokens) or a loss (of names)."""
        self._right[sort].append(right)
        if (step + 1) % REPORT_EVERY == 0:
            seconds = (time.monotonic() - self._begun) / (step + 1)
            means = " ".join(f"{s} {sum(x) / len(x):.3f}" for s, x in sorted(self._right.items()))
            head = f"{self._lesson.name} {step + 1}/{self._lesson.steps}"
            print(f"{head}: {means} ({seconds:.3f} s a step)", flush=True)
            self._right.clear()


def learning_rate(step: int, lesson: Lesson) -> float:
    """Warmed up to the lesson's peak; then constant, or a cosine down to FLOOR of it."""
    cosine = 0.5 * (1 + math.cos(math.pi * step / lesson.steps)) if lesson.cools else 1.0
    return lesson.peak * min(1.0, (step + 1) / WARM_UP) * (FLOOR + (1 - FLOOR) * cosine)


def teach(model: Qwen2_5_VLForConditionalGeneration, maker: DialogueMaker, lesson: Lesson, seed: int) -> None:
    """Train the model for one lesson."""
    batches = Batches(maker, random.Random(f"{seed} {lesson.name}"), lesson)
    naming, progress = Naming(maker), Progress(lesson)
    learning = model.model.visual if "names" in lesson.weights else model
    parameters = list(learning.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.01},
        {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=lesson.peak, betas=(0.9, 0.98), fused=True)
    for step in range(lesson.steps):
        if learning is model:
            sort, batch = batches.draw()
            loss, found = dialogue_loss(model, batch, naming)
            right = (found.answers.argmax(-1) == batch.targets).float().mean().item()
        else:
            pictures, sort = batches.pictures(step), "loss"
            loss = naming.loss(model, pictures, see(model, pictures))
            right = loss.item()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, lesson)
        optimizer.step()
        progress.add(step, sort, right)


def main() -> int:
    """Write the tokenizer, then train from scratch, or from the checkpoint in --out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=MODEL_FOLDER, help="folder of the checkpoint")
    parser.add_argument("--pace", type=float, default=1.0, help="factor on the steps of all lessons")
    parser.add_argument("--seed", type=int, default=0)
    names = [lesson.name for lesson in LESSONS]
    parser.add_argument("--from-lesson", choices=names, help="continue from the weights in --out")
    options = parser.parse_args()
    if options.from_lesson is None:
        write_tiny_tokenizer(options.out)
        model = new_model(options.out, options.seed)
    else:
        model = Qwen2_5_VLForConditionalGeneration.from_pretrained(options.out, dtype=torch.float32)
    batch_vision_attention(model)
    maker = DialogueMaker(AutoTokenizer.from_pretrained(options.out))
    for lesson in LESSONS[names.index(options.from_lesson or names[0]) :]:
        teach(model, maker, replace(lesson, steps=max(1, round(lesson.steps * options.pace))), options.seed)
        model.save_pretrained(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
