"""The bounds of an image's area: the checkpoint's, the request's, the part's; the nearest wins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gllm.multimodal.content import ImageSource
from gllm.multimodal.errors import BadInput, excerpt, located
from gllm.multimodal.resize import PixelBounds

SIZE_NAMES = {"shortest_edge": "min_pixels", "longest_edge": "max_pixels"}


@dataclass(frozen=True, slots=True)
class PixelOptions:
    """bounds: the checkpoint's. factor: the side of a token in pixels. limit: the largest area allowed."""

    bounds: PixelBounds
    factor: int
    limit: int

    def of_request(self, kwargs: object) -> PixelBounds:
        """The bounds that mm_processor_kwargs sets for all images of a request; raises BadInput."""
        if kwargs is None:
            return self.bounds
        with located("mm_processor_kwargs"):
            fields = _flat(kwargs)
            unknown = [key for key in fields if key not in SIZE_NAMES.values()]
            if unknown:
                raise BadInput(
                    f"unknown field {excerpt(unknown[0])}; known: min_pixels, max_pixels, size",
                    code="unknown_field",
                )
            return self._override(self.bounds, fields.get("min_pixels"), fields.get("max_pixels"))

    def of_image(self, source: ImageSource, bounds: PixelBounds) -> PixelBounds:
        """The bounds of one image within the request's; raises BadInput."""
        return self._override(bounds.with_detail(source.detail), source.min_pixels, source.max_pixels)

    def _override(self, bounds: PixelBounds, min_pixels: object, max_pixels: object) -> PixelBounds:
        return bounds.override(self._area(min_pixels, "min_pixels"), self._area(max_pixels, "max_pixels"))

    def _area(self, value: object, name: str) -> int | None:
        least = self.factor * self.factor
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= self.limit:
            raise BadInput(
                f"{name} is {excerpt(value)}, allowed: an integer from {least} (one token) to {self.limit}",
                code="invalid_pixel_bounds",
            )
        return value


def _flat(kwargs: object) -> dict[str, Any]:
    """mm_processor_kwargs with the fields of size under their older names."""
    if not isinstance(kwargs, dict):
        raise BadInput(f"must be an object, got {excerpt(kwargs)}")
    fields = dict(kwargs)
    size = fields.pop("size", None)
    if size is None:
        return fields
    if not isinstance(size, dict) or any(key not in SIZE_NAMES for key in size):
        raise BadInput("size must be an object with shortest_edge and longest_edge, areas in pixels")
    return {**{SIZE_NAMES[key]: value for key, value in size.items()}, **fields}
