"""Resized pixels of items that stage 0 will encode."""

from collections import OrderedDict
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
REMEMBERED_REQUESTS = 65536


class PixelStore:
    """uint8 [H, W, 3] by (request, item), with the attempt they were sent for; a later attempt replaces.

    Pixels may come before their request, and after its end; the last requests that ended are remembered, so
    that late pixels are not kept for ever. Ids of requests are unique.
    """

    def __init__(self) -> None:
        self._pixels: dict[str, dict[int, Pixels]] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(items) for items in self._pixels.values())

    def begin(self, request_id: str) -> None:
        """A request starts whose id an earlier one had, where ids are not unique."""
        self._ended.pop(request_id, None)

    def put(self, request_id: str, item: int, pixels: Pixels) -> bool:
        """Keep an item's pixels; False when the request has ended."""
        if request_id in self._ended:
            return False
        self._pixels.setdefault(request_id, {})[item] = pixels
        return True

    def take(self, request_id: str, items: Iterable[int]) -> list[Pixels]:
        """Pixels of these items, which are forgotten here. KeyError where they are missing."""
        held = self._pixels[request_id]
        taken = [held.pop(item) for item in items]
        if not held:
            del self._pixels[request_id]
        return taken

    def skip(self, request_id: str, items: Iterable[int]) -> None:
        """Forget the pixels of items that nobody will encode."""
        held = self._pixels.get(request_id, {})
        for item in items:
            held.pop(item, None)

    def end(self, request_id: str) -> None:
        """A request ended: forget its pixels, those that are still to come included."""
        self._pixels.pop(request_id, None)
        self._ended[request_id] = None
        if len(self._ended) > REMEMBERED_REQUESTS:
            self._ended.popitem(last=False)
