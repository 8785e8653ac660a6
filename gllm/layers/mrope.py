"""M-RoPE positions: where each token of a prompt stands in time, height and width.

Source: Qwen2-VL (section 2.1) and Qwen2.5-VL (section 2.1.2, absolute time).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

Grid = tuple[int, int, int]


class VisionItem(Protocol):
    """What positions need to know of an image, or of a temporal group of a video."""

    @property
    def offset(self) -> int:
        """Index in the prompt of the first placeholder token."""
        ...

    @property
    def grid(self) -> Grid:
        """(t, h, w) in patches, before the merge."""
        ...

    @property
    def seconds_per_grid(self) -> float:
        """Seconds between two temporal groups of a video; 0 for a still image."""
        ...


@dataclass(frozen=True, slots=True)
class MropePositions:
    """Positions of one request; the three axes of every later token are its index plus `delta`.

    prompt: int64 [3, L] (time, row, column), or None where every position is the token's index.
    """

    prompt: Tensor | None
    delta: int

    def positions_of(self, start: int, end: int) -> Tensor:
        """Positions of tokens start..end-1, prompt or output: int64 [3, end - start]."""
        length = self.prompt.shape[1] if self.prompt is not None else 0
        if self.prompt is not None and end <= length:
            return self.prompt[:, start:end]
        tail = torch.arange(max(start, length), end).add_(self.delta).expand(3, -1)
        if self.prompt is not None and start < length:
            return torch.cat((self.prompt[:, start:], tail), dim=1)
        return tail


def mrope_positions(
    num_tokens: int, items: Sequence[VisionItem], spatial_merge_size: int, tokens_per_second: float
) -> MropePositions:
    """Positions of a prompt of `num_tokens` with `items` in prompt order; once for each request.

    Text counts on by one. An item of t x h x w merged cells starts where the text stopped; its cells have
    their own row and column, and time advances by tokens_per_second * seconds_per_grid for each group of a
    video. The text after it continues max(h, w) later. Items of a video that follow each other without a
    token between them are one video.

    Two text tokens, an image of 1 x 4 x 6 patches (2 x 3 merged cells), one text token:
    time 0 1 2 2 2 2 2 2 5, row 0 1 2 2 2 3 3 3 5, column 0 1 2 3 4 2 3 4 5; delta = 5 + 1 - 9 = -3.
    """
    if not items:
        return MropePositions(None, 0)
    positions = torch.arange(num_tokens).repeat(3, 1)
    shift = end = 0  # position minus index of the text that follows token `end`
    for offset, grid, seconds in _runs(items, spatial_merge_size):
        t, h, w = grid[0], grid[1] // spatial_merge_size, grid[2] // spatial_merge_size
        positions[:, end:offset] += shift
        start, end = offset + shift, offset + t * h * w
        interval = tokens_per_second * seconds if seconds else 1.0
        torch.add(_cells((t, h, w), interval), start, out=positions[:, offset:end])
        shift = start + max(h, w) - end
    positions[:, end:] += shift
    return MropePositions(positions, int(positions.max()) + 1 - num_tokens)


@lru_cache(maxsize=256)
def _cells(cells: Grid, interval: float) -> Tensor:
    """Time, row and column of each merged cell, counted from the item's start: int64 [3, t * h * w]."""
    time = (torch.arange(cells[0]) * interval).long()
    axes = (time, torch.arange(cells[1]), torch.arange(cells[2]))
    return torch.stack(torch.meshgrid(*axes, indexing="ij")).reshape(3, -1)


def _runs(items: Sequence[VisionItem], merge: int) -> Iterator[tuple[int, Grid, float]]:
    """(offset, grid, seconds_per_grid) of each image and each whole video."""
    offset, grid, seconds = items[0].offset, items[0].grid, items[0].seconds_per_grid
    for item in items[1:]:
        end = offset + grid[0] * (grid[1] // merge) * (grid[2] // merge)
        if seconds and item.offset == end and item.seconds_per_grid == seconds and item.grid[1:] == grid[1:]:
            grid = (grid[0] + item.grid[0], grid[1], grid[2])
            continue
        yield offset, grid, seconds
        offset, grid, seconds = item.offset, item.grid, item.seconds_per_grid
    yield offset, grid, seconds
