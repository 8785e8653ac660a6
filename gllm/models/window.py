"""The order in which the vision tower sees its patches, which of them attend to each other, and their angles.

Qwen2.5-VL, section 2.1.1: most layers attend within windows of 112 x 112 pixels, a few within whole frames; a
frame is an image or two frames of a video. Patches come in merge blocks (the four patches of a merged cell
side by side) and are put into window order once, at the tower's entry; merged cells are put back at its end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from gllm.core.model_shape import VisionShape
from gllm.layers.vision_attention import Segments

Grid = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class FrameLayout:
    """One frame of h x w patches, on the host: M merged cells of U patches."""

    window_of_cell: Tensor  # int64 [M], windows numbered row by row
    cells_per_window: Tensor  # int64 [windows]
    angles: Tensor  # fp32 [M, U, D/2], in merge-block order


@dataclass(frozen=True, slots=True)
class VisionLayout:
    """A batch of items: M merged cells, N = M * U patches."""

    order: Tensor  # int64 [M]: the cells of the input, in window order
    inverse: Tensor  # int64 [M]: back again
    windows: Segments  # of the N patches in window order
    frames: Segments
    cos: Tensor  # fp32 [N, D/2], in window order
    sin: Tensor


class VisionLayouts:
    """Layouts of batches for one tower; those of recent frames and batches are kept."""

    def __init__(self, shape: VisionShape, device: torch.device, max_batches: int = 32) -> None:
        self._unit = shape.merge_unit
        self._merge = shape.spatial_merge_size
        self._window = shape.window_size // shape.patch_size // shape.spatial_merge_size  # in merged cells
        quarter = torch.arange(0, shape.head_dim // 2, 2, dtype=torch.float32) / (shape.head_dim // 2)
        self._inv_freq = 1.0 / (10000.0**quarter)
        self._device = device
        self._frame = lru_cache(maxsize=256)(self._compute_frame)
        self._batches: OrderedDict[tuple[Grid, ...], VisionLayout] = OrderedDict()
        self._max_batches = max_batches

    def layout(self, grids: Sequence[Grid]) -> VisionLayout:
        """The layout of items with these grids (t, h, w), in patches, one after another in the input."""
        key = tuple(grids)
        found = self._batches.get(key)
        if found is None:
            found = self._batches[key] = self._compute(key)
            if len(self._batches) > self._max_batches:
                self._batches.popitem(last=False)
        else:
            self._batches.move_to_end(key)
        return found

    def _compute(self, grids: tuple[Grid, ...]) -> VisionLayout:
        """Frames by size, then windows by size: equal lengths stand side by side in both kinds of layer."""
        starts = _starts([t * h * w // self._unit for t, h, w in grids])
        by_size = sorted(range(len(grids)), key=lambda i: -grids[i][1] * grids[i][2])
        frames = [self._frame(grids[i][1], grids[i][2]) for i in by_size for _ in range(grids[i][0])]
        cells = torch.cat([torch.arange(starts[i], starts[i + 1]) for i in by_size])
        lengths = torch.cat([frame.cells_per_window for frame in frames])
        first_window = _starts([len(frame.cells_per_window) for frame in frames])
        windows = torch.cat([frame.window_of_cell + first for frame, first in zip(frames, first_window)])
        by_length = lengths.argsort(descending=True, stable=True)
        moved = by_length.argsort()[windows].argsort(stable=True)  # window order -> frame order
        order = cells[moved]
        angles = torch.cat([frame.angles for frame in frames])[moved].flatten(0, 1)
        frame_sizes = torch.tensor([len(frame.window_of_cell) for frame in frames])
        return VisionLayout(
            order=order.to(self._device),
            inverse=order.argsort().to(self._device),
            windows=Segments.from_lengths(lengths[by_length] * self._unit).to(self._device),
            frames=self._frame_segments(frame_sizes, moved).to(self._device),
            cos=angles.cos().to(self._device),
            sin=angles.sin().to(self._device),
        )

    def _frame_segments(self, sizes: Tensor, moved: Tensor) -> Segments:
        """Frames of `sizes` cells as segments; `moved` puts frames side by side into window order."""
        frame_of_cell = torch.arange(len(sizes)).repeat_interleave(sizes)[moved]
        lengths = sizes * self._unit
        if bool((frame_of_cell.diff() >= 0).all()):
            return Segments.from_lengths(lengths)
        cells = frame_of_cell.argsort(stable=True)
        patches = cells.unsqueeze(1) * self._unit + torch.arange(self._unit)
        return Segments.from_lengths(lengths, patches.flatten())

    def _compute_frame(self, height: int, width: int) -> FrameLayout:
        merge, window = self._merge, self._window
        row = torch.arange(height).view(-1, 1).expand(height, width)
        column = torch.arange(width).expand(height, width)
        blocks = (height // merge, merge, width // merge, merge)
        rows, columns = (
            axis.reshape(blocks).transpose(1, 2).reshape(-1, self._unit) for axis in (row, column)
        )
        across = -(-(width // merge) // window)
        window_of_cell = rows[:, 0] // merge // window * across + columns[:, 0] // merge // window
        angles = torch.stack((rows, columns), dim=-1).unsqueeze(-1) * self._inv_freq  # [M, U, 2, D/4]
        return FrameLayout(window_of_cell, window_of_cell.bincount(), angles.flatten(2))


def _starts(lengths: Sequence[int]) -> list[int]:
    """Where each of consecutive runs starts, and where the last one ends."""
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length)
    return starts
