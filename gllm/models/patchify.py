"""Resized pictures -> normalised patches, in the order in which the vision tower takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gllm.core.model_shape import VisionShape

Grid = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class PixelNorm:
    """(value * rescale - mean) / std for each channel; the defaults are CLIP's, which Qwen2.5-VL uses."""

    mean: tuple[float, ...] = (0.48145466, 0.4578275, 0.40821073)
    std: tuple[float, ...] = (0.26862954, 0.26130258, 0.27577711)
    rescale: float = 1 / 255


class Patchifier:
    """Cuts pictures into patches on the device that holds them."""

    def __init__(
        self, shape: VisionShape, norm: PixelNorm | None = None, device: torch.device | str = "cpu"
    ) -> None:
        norm = norm or PixelNorm()
        std = torch.tensor(norm.std, dtype=torch.float64)
        self._scale = (norm.rescale / std).float().to(device).view(-1, 1)  # [C, 1]
        self._shift = (-torch.tensor(norm.mean, dtype=torch.float64) / std).float().to(device).view(-1, 1)
        self._patch, self._frames, self._merge = (
            shape.patch_size,
            shape.temporal_patch_size,
            shape.spatial_merge_size,
        )
        self._patch_dim = shape.patch_dim

    def grid(self, picture: Tensor) -> Grid:
        """(t, h, w) in patches of an image [H, W, C] or of a video's frames [F, H, W, C]."""
        height, width = picture.shape[-3] // self._patch, picture.shape[-2] // self._patch
        frames = picture.shape[0] if picture.dim() == 4 else 1
        return -(-frames // self._frames), height, width

    def __call__(
        self, pictures: Sequence[Tensor], dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, list[Grid]]:
        """uint8 pictures, [H, W, C] or [F, H, W, C] -> patches [N, C * frames * P * P] and the grids.

        H and W are multiples of patch size x merge size (ValueError otherwise). Patches come row by row in
        merge blocks (2 x 2), channel first within a patch. An image fills all frames of its patches; a video
        whose number of frames is not a multiple of them repeats its last frame.
        """
        grids = [self.grid(picture) for picture in pictures]
        sizes = [t * h * w for t, h, w in grids]
        patches = torch.empty(sum(sizes), self._patch_dim, dtype=dtype, device=self._scale.device)
        for picture, grid, rows in zip(pictures, grids, patches.split(sizes)):
            self._fill(rows, picture, grid)
        return patches, grids

    def _fill(self, rows: Tensor, picture: Tensor, grid: Grid) -> None:
        merge, patch, (t, h, w) = self._merge, self._patch, grid
        height, width, channels = picture.shape[-3:]
        if height % (patch * merge) or width % (patch * merge):
            raise ValueError(
                f"a picture of {height}x{width} pixels is not cut into blocks of {patch * merge}"
            )
        frames = picture if picture.dim() == 4 else picture.unsqueeze(0)
        if missing := -len(frames) % self._frames if picture.dim() == 4 else 0:
            frames = torch.cat((frames, frames[-1:].expand(missing, -1, -1, -1)))
        distinct = len(frames) // t  # 1 for an image: its frames are the same
        cut = frames.view(t, distinct, h // merge, merge, patch, w // merge, merge, patch, channels)
        cut = cut.permute(
            0, 2, 5, 3, 6, 8, 1, 4, 7
        )  # t, block row, block column, row, column, C, frame, P, P
        values = cut.reshape(len(rows), channels, distinct * patch * patch).float()
        values.mul_(self._scale).add_(self._shift)
        target = rows.view(len(rows), channels, self._frames, patch * patch)
        target.copy_(values.view(len(rows), channels, distinct, patch * patch))
