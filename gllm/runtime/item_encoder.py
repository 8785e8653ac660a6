"""Encodes items with the vision tower, whose layers the ranks of a TP group may share."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gllm.layers.comm import TensorParallel
from gllm.runtime.staging import Staging

Grid = tuple[int, int, int]
Pixels = NDArray[np.uint8]


class VisionTower(Protocol):
    """Patches of several items in, one embedding for each merged cell out. on_progress: see `tell`."""

    on_progress: Callable[[], None]

    def forward(self, patches: Tensor, grids: Sequence[Grid]) -> Tensor:
        """patches [N, patch_dim] -> embeddings [N / merge^2, H]."""
        ...


class PatchCutter(Protocol):
    """Resized pictures to normalised patches."""

    def __call__(self, pictures: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, list[Grid]]:
        """uint8 pictures [H, W, 3] -> patches [N, patch_dim] and grids."""
        ...


@dataclass(frozen=True, slots=True)
class EncoderPlace:
    """Sizes of the tower's input, and where it runs. merge_unit: patches that become one embedding."""

    patch_size: int
    merge_unit: int
    dtype: torch.dtype
    device: torch.device
    tp: TensorParallel

    def picture_shape(self, grid: Grid, frames: int) -> tuple[int, ...]:
        """Of the pixels of an item with `frames` pictures: [H, W, 3], or [F, H, W, 3]."""
        height, width = grid[1] * self.patch_size, grid[2] * self.patch_size
        return (height, width, 3) if frames == 1 else (frames, height, width, 3)


class ItemEncoder:
    """One rank's part in encoding; the group's first rank has the pixels and keeps the embeddings."""

    def __init__(self, tower: VisionTower, cut: PatchCutter, place: EncoderPlace) -> None:
        self._tower = tower
        self._cut = cut
        self._place = place
        self._staging = Staging(place.device)

    def tell(self, on_progress: Callable[[], None]) -> None:
        """Have this called after each block of the tower: a large item takes minutes on a CPU."""
        self._tower.on_progress = on_progress

    def encode(self, pixels: Sequence[Pixels], grids: Sequence[Grid]) -> list[Tensor]:
        """uint8 [H, W, 3] (or [F, H, W, 3]) -> one [tokens, H] for each item. On the group's first rank.

        On a GPU it does not wait: what comes back is computed in the order of the current stream.
        """
        pictures = self._staging(pixels)
        if self._place.tp.size > 1:
            self._place.tp.broadcast(torch.cat([picture.flatten() for picture in pictures]))
        return self._run(pictures, grids)

    def follow(self, grids: Sequence[Grid], frames: Sequence[int]) -> list[int]:
        """Take part in an encoding that the first rank started; returns the tokens of each item.

        frames: pictures in each item.
        """
        shapes = [self._place.picture_shape(grid, count) for grid, count in zip(grids, frames)]
        sizes = [math.prod(shape) for shape in shapes]
        flat = torch.empty(sum(sizes), dtype=torch.uint8, device=self._place.device)
        self._place.tp.broadcast(flat)
        embeddings = self._run([part.view(shape) for part, shape in zip(flat.split(sizes), shapes)], grids)
        return [len(rows) for rows in embeddings]

    @torch.inference_mode()
    def _run(self, pictures: Sequence[Tensor], grids: Sequence[Grid]) -> list[Tensor]:
        patches, _ = self._cut(pictures, self._place.dtype)
        embeddings = self._tower.forward(patches, grids)
        unit = self._place.merge_unit
        return list(embeddings.split([t * h * w // unit for t, h, w in grids]))


def num_frames(pixels: Pixels) -> int:
    """1 for an image [H, W, 3], F for frames of a video [F, H, W, 3]."""
    return 1 if pixels.ndim == 3 else len(pixels)
