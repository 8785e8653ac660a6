"""A checkpoint's image preprocessing, read from its own files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gllm.multimodal.resize import Grid, PixelBounds, grid_of, num_tokens_of, smart_resize

BICUBIC = 3
QWEN2_VL_BOUNDS = PixelBounds(56 * 56, 28 * 28 * 1280)


@dataclass(frozen=True, slots=True)
class ImagePreprocessor:
    """How pixels reach the vision tower; the defaults are those of Qwen2-VL's image processor.

    The API server resizes; whoever encodes an item patchifies and computes
    ``(pixel * rescale_factor - mean) / std`` per channel.
    """

    bounds: PixelBounds = QWEN2_VL_BOUNDS
    patch_size: int = 14
    merge_size: int = 2
    temporal_patch_size: int = 2
    resample: int = BICUBIC
    rescale_factor: float = 1 / 255
    image_mean: tuple[float, ...] = (0.48145466, 0.4578275, 0.40821073)
    image_std: tuple[float, ...] = (0.26862954, 0.26130258, 0.27577711)

    @property
    def factor(self) -> int:
        """The side of the square of pixels that becomes one token."""
        return self.patch_size * self.merge_size

    def target_size(self, height: int, width: int, bounds: PixelBounds | None = None) -> tuple[int, int]:
        """The (height, width) to resize to; raises BadInput as smart_resize does."""
        return smart_resize(height, width, self.factor, bounds or self.bounds)

    def grid(self, height: int, width: int) -> Grid:
        """The (t, h, w) grid in patches of an image that has been resized."""
        return grid_of(height, width, self.patch_size)

    def num_tokens(self, grid: Grid) -> int:
        """Tokens in the prompt for a grid."""
        return num_tokens_of(grid, self.merge_size)


def load_preprocessor(model_dir: str | Path) -> ImagePreprocessor | None:
    """Read preprocessor_config.json, or the image_processor in processor_config.json; None without either.

    Raises ValueError, naming the file, for settings that would be ignored otherwise.
    """
    folder = Path(model_dir)
    for name, nested in (("preprocessor_config.json", False), ("processor_config.json", True)):
        path = folder / name
        if not path.exists():
            continue
        fields = json.loads(path.read_text(encoding="utf-8"))
        fields = fields.get("image_processor") if nested else fields
        if fields:
            return _from_fields(fields, path)
    return None


def _from_fields(fields: dict[str, Any], path: Path) -> ImagePreprocessor:
    for switch in ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb"):
        if fields.get(switch) is False:
            raise ValueError(f"{path}: {switch} is false, which is not supported; set it to true")
    known = {
        name: fields[name]
        for name in ("patch_size", "merge_size", "temporal_patch_size", "resample", "rescale_factor")
        if fields.get(name) is not None
    }
    for name in ("image_mean", "image_std"):
        if fields.get(name) is not None:
            known[name] = tuple(fields[name])
    return ImagePreprocessor(bounds=_bounds(fields, path), **known)


def _bounds(fields: dict[str, Any], path: Path) -> PixelBounds:
    """min_pixels and max_pixels win over size, whose keys are shortest_edge and longest_edge (areas both)."""
    size = fields.get("size") or {}
    low = fields.get("min_pixels") or size.get("min_pixels") or size.get("shortest_edge")
    high = fields.get("max_pixels") or size.get("max_pixels") or size.get("longest_edge")
    bounds = PixelBounds(low or QWEN2_VL_BOUNDS.min_pixels, high or QWEN2_VL_BOUNDS.max_pixels)
    if not 0 < bounds.min_pixels <= bounds.max_pixels:
        raise ValueError(f"{path}: min_pixels {bounds.min_pixels} is above max_pixels {bounds.max_pixels}")
    return bounds
