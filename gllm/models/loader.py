"""Fills a model's parameters from a checkpoint, or with seeded random numbers.

The model says what it needs (`weights()`, see gllm/layers/weights.py); this module knows where it comes from.
Each rank reads only its slices of memory-mapped files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from gllm.core.model_shape import ModelShape
from gllm.layers.weights import CheckpointWeight, HasWeights, SafeSlice
from gllm.models.checkpoint import Checkpoint, CheckpointError
from gllm.models.dummy import DummySlice
from gllm.models.registry import checkpoint_tensors

LOAD_FORMATS = ("auto", "dummy")
MOST_NAMES = 5  # in one message


def load_weights(
    model: HasWeights, shape: ModelShape, model_dir: Path, load_format: str = "auto", seed: int = 0
) -> None:
    """Fill every parameter of `model`, a rank's part of a model of this shape.

    Raises CheckpointError naming tensors that are missing, unexpected or of another shape; then nothing is
    loaded.
    """
    wanted = list(model.weights())
    if load_format == "dummy":
        _fill(wanted, lambda weight: DummySlice(weight.name, weight.shape, seed))
    elif load_format == "auto":
        checkpoint = Checkpoint(model_dir)
        _check(wanted, shape, checkpoint, model_dir)
        _fill(wanted, lambda weight: checkpoint.slice(weight.name))
    else:
        raise ValueError(f"load format {load_format!r}: choose {' or '.join(LOAD_FORMATS)}")


@torch.inference_mode()
def _fill(wanted: Iterable[CheckpointWeight], slice_of: Callable[[CheckpointWeight], SafeSlice]) -> None:
    for weight in wanted:
        weight.load(slice_of(weight))


def _check(
    wanted: list[CheckpointWeight], shape: ModelShape, checkpoint: Checkpoint, model_dir: Path
) -> None:
    expected = checkpoint_tensors(shape)
    allowed = {*expected, "lm_head.weight"} if shape.text.tie_word_embeddings else set(expected)
    missing = {weight.name for weight in wanted} - checkpoint.names
    problems = []
    if missing:
        problems.append(f"missing: {_some(missing)}")
    if unexpected := checkpoint.names - allowed:
        problems.append(f"unexpected: {_some(unexpected)}")
    for weight in wanted:
        if weight.name not in missing:
            found = tuple(checkpoint.slice(weight.name).get_shape())
            if found != weight.shape:
                problems.append(
                    f"{weight.name} in {checkpoint.where(weight.name)} has shape {list(found)}, "
                    f"config.json says {list(weight.shape)}"
                )
    if problems:
        raise CheckpointError(
            f"{model_dir} does not fit its config.json: " + "; ".join(problems[:MOST_NAMES])
        )


def _some(names: set[str]) -> str:
    shown = ", ".join(sorted(names)[:MOST_NAMES])
    return shown if len(names) <= MOST_NAMES else f"{shown} and {len(names) - MOST_NAMES} more"
