"""Qwen's resize rule: which size an image is brought to, and how many tokens that makes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gllm.multimodal.errors import BadInput

MAX_ASPECT_RATIO = 200
LOW_DETAIL_PIXELS = 512 * 512

Grid = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class PixelBounds:
    """The bounds of an image's area after resizing, in pixels."""

    min_pixels: int
    max_pixels: int

    def override(self, min_pixels: int | None, max_pixels: int | None) -> PixelBounds:
        """A request's own bounds. Setting one moves the other along where they would cross."""
        if min_pixels is not None and max_pixels is not None and min_pixels > max_pixels:
            raise BadInput(
                f"min_pixels is {min_pixels}, above max_pixels {max_pixels}; swap or drop one",
                code="invalid_pixel_bounds",
            )
        bounds = self
        if min_pixels is not None:
            bounds = PixelBounds(min_pixels, max(min_pixels, bounds.max_pixels))
        if max_pixels is not None:
            bounds = PixelBounds(min(bounds.min_pixels, max_pixels), max_pixels)
        return bounds

    def with_detail(self, detail: str | None) -> PixelBounds:
        """OpenAI's ``detail``: ``low`` caps the area at 512 x 512; ``high`` and ``auto`` change nothing."""
        if detail != "low" or self.max_pixels <= LOW_DETAIL_PIXELS:
            return self
        return replace(self, min_pixels=min(self.min_pixels, LOW_DETAIL_PIXELS), max_pixels=LOW_DETAIL_PIXELS)


def smart_resize(height: int, width: int, factor: int, bounds: PixelBounds) -> tuple[int, int]:
    """The (height, width) an image is resized to: multiples of factor, near its shape, within the bounds.

    Sides are rounded to the nearest multiple; if the area is then out of bounds, both sides are scaled by
    the root of the area's ratio and rounded inwards. A side never gets below factor, so a very long image
    may exceed max_pixels. Qwen2-VL's rule. Raises BadInput for a ratio of sides above 200.

    Factor 28 and bounds 3136 to 1003520: 100 x 75 gives 112 x 84; 20 x 20 gives 56 x 56.
    """
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        raise BadInput(
            f"the image is {width} x {height} pixels, a ratio of more than {MAX_ASPECT_RATIO} to 1; "
            "crop it or cut it into several images",
            code="invalid_image_size",
        )
    rows, columns = round(height / factor), round(width / factor)
    if rows * columns * factor * factor > bounds.max_pixels:
        scale = math.sqrt((height * width) / bounds.max_pixels)
        rows = max(1, math.floor(height / scale / factor))
        columns = max(1, math.floor(width / scale / factor))
    elif rows * columns * factor * factor < bounds.min_pixels:
        scale = math.sqrt(bounds.min_pixels / (height * width))
        rows = math.ceil(height * scale / factor)
        columns = math.ceil(width * scale / factor)
    return max(rows, 1) * factor, max(columns, 1) * factor


def grid_of(height: int, width: int, patch_size: int) -> Grid:
    """The (t, h, w) grid in patches of a resized image: 112 x 84 and patches of 14 give (1, 8, 6)."""
    return 1, height // patch_size, width // patch_size


def num_tokens_of(grid: Grid, merge_size: int) -> int:
    """Tokens that a grid becomes after the merger: (1, 8, 6) and merge 2 give 12."""
    t, h, w = grid
    return t * h * w // (merge_size * merge_size)
