"""Measure what the tiny model learnt: python -m evaluation.tiny_vlm.check [--examples 400]

Held-out examples (generator seeds that training never uses), one to four images of mixed sizes, letters and
free answers in all placements; answers come from transformers' greedy generate. Exits with 1 below the
required accuracy.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from evaluation.tiny_vlm.dialogues import EVERY_SIZE
from evaluation.tiny_vlm.model import MODEL_FOLDER
from evaluation.tiny_vlm.pictures import PLACEMENTS, Example, Style, make_example
from evaluation.tiny_vlm.reference import load_tokenizer, reference_generate

HELD_OUT_SEED = 10**9  # training seeds are small numbers
MAX_NEW_TOKENS = 32


@dataclass(frozen=True)
class Graded:
    """An example and what the model said."""

    example: Example
    said: str

    @property
    def right(self) -> bool:
        return self.said.strip() == self.example.answer

    @property
    def groups(self) -> tuple[str, ...]:
        """The rows of the report that this example counts in."""
        example = self.example
        form = "letter" if example.options else "free"
        place = "labelled" if example.question.startswith("Image 1<") else "unlabelled"
        return (
            f"{len(example.images)} image(s)",
            f"{form} {example.kind}",
            place,
            form,
            "all",
        )


def held_out(count: int, seed: int = HELD_OUT_SEED) -> Iterator[Example]:
    """Examples: one to four images in turn, options for two thirds of them."""
    for index in range(count):
        rng = random.Random(seed + index)
        placement = rng.choice(PLACEMENTS)
        options = 0 if index % 3 == 2 else rng.choice((2, 3, 4, 4, 5))
        style = Style(num_options=options, placement=placement, sizes=EVERY_SIZE)
        yield make_example(rng, 1 + index % 4, style)


def grade(model_dir: Path, count: int) -> list[Graded]:
    """Ask the model every held-out example."""
    tokenizer = load_tokenizer(str(model_dir))
    graded = []
    for example in held_out(count):
        reference = reference_generate(model_dir, example.messages(), example.images, MAX_NEW_TOKENS)
        said = tokenizer.decode(list(reference.token_ids), skip_special_tokens=True)
        graded.append(Graded(example, said))
    return graded


def accuracies(graded: list[Graded]) -> dict[str, tuple[int, int]]:
    """(right, asked) for each group."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for item in graded:
        for group in item.groups:
            counts[group][0] += item.right
            counts[group][1] += 1
    return {group: (right, asked) for group, (right, asked) in counts.items()}


def main() -> int:
    """Print accuracy by group and some mistakes; 0 when the whole reaches --require."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=MODEL_FOLDER)
    parser.add_argument("--examples", type=int, default=400)
    parser.add_argument("--require", type=float, default=0.95, help="lowest accuracy over all examples")
    options = parser.parse_args()
    graded = grade(options.model, options.examples)
    table = accuracies(graded)
    for group, (right, asked) in sorted(table.items()):
        print(f"{group:20} {right:5}/{asked:<5} {right / asked:.3f}")
    for item in [item for item in graded if not item.right][:10]:
        print(f"wrong: {item.example.prompt_text!r} -> {item.said!r}, not {item.example.answer!r}")
    right, asked = table["all"]
    return 0 if right >= options.require * asked else 1


if __name__ == "__main__":
    sys.exit(main())
