"""Seeded random weights in place of a checkpoint: the same full tensors whatever the (pp, tp) split."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

BLOCK_ROWS = 4096
"""Rows that are generated together; a rank that needs few rows of a matrix generates only their blocks."""


class DummySlice:
    """A tensor of random numbers, made when it is indexed; a function of seed, name and shape alone.

    Numbers are uniform. Matrices have a standard deviation of 1 / sqrt(in), at most 0.05 (embeddings 0.02),
    so that activations keep their size over many layers; biases are small; norm weights are near 1.
    """

    def __init__(self, name: str, shape: Sequence[int], seed: int) -> None:
        self._shape = tuple(shape)
        self._key = zlib.crc32(f"{seed}/{name}".encode())
        self._center, self._bound = _distribution(name, self._shape)

    def get_shape(self) -> list[int]:
        """The whole tensor's shape."""
        return list(self._shape)

    def __getitem__(self, index: tuple[slice, ...]) -> Tensor:
        start, stop, _ = index[0].indices(self._shape[0])
        blocks = range(start // BLOCK_ROWS, -(-stop // BLOCK_ROWS))
        parts = []
        for block in blocks:
            first = block * BLOCK_ROWS
            inside = slice(max(start - first, 0), stop - first)
            parts.append(self._block(block)[(inside, *index[1:])])
        return torch.cat(parts) if len(parts) != 1 else parts[0]

    def _block(self, block: int) -> Tensor:
        rows = min(BLOCK_ROWS, self._shape[0] - block * BLOCK_ROWS)
        generator = torch.Generator().manual_seed(self._key * 65_536 + block)
        values = torch.empty((rows, *self._shape[1:]), dtype=torch.float32)
        return values.uniform_(self._center - self._bound, self._center + self._bound, generator=generator)


def _distribution(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Centre and half width of a tensor's uniform distribution; the half width is sqrt(3) deviations."""
    if len(shape) == 1:
        return (0.0, 0.02) if name.endswith(".bias") else (1.0, 0.1)
    if "embed_tokens" in name:
        return 0.0, 0.02 * math.sqrt(3)
    fan_in = math.prod(shape[1:])
    return 0.0, min(1 / math.sqrt(fan_in), 0.05) * math.sqrt(3)
