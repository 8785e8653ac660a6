"""The item router of scheme `gllm`: all pixels go to stage 0, which encodes them itself."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np

from gllm.core.effects import EncodeItems, ItemReleased, SkipItems
from gllm.core.request import Request
from gllm.entrypoints.pixel_gate import PixelGate
from gllm.entrypoints.ports import DriverPort, PixelSource
from gllm.entrypoints.routed import Routed, RoutedRequests, or_fail
from gllm.entrypoints.router_load import RouterLoad
from gllm.runtime.messages import ItemHash, PixelBatch

PIXEL_BYTES = 512 * 2**20
"""Decoded pixels in the API server and at stage 0 together, unless one request has more."""
BYTES_PER_PATCH = 14 * 14 * 3
"""uint8 pixels of a patch of 14 x 14, that of all models so far; for bounding memory only."""


class PixelOutbox(Protocol):
    """A socket to an inbox for pixels."""

    def send(self, message: object, frames: Sequence[bytes | memoryview] = ()) -> None: ...


@dataclass(eq=False, slots=True)
class _Asked(Routed):
    """A request at stage 0; asked holds (item, attempt) already under way."""

    asked: set[tuple[int, int]] = field(default_factory=set)


class StageZeroRouter:
    """Fetches the items of each request and pushes their pixels to stage 0, each as soon as it is there.

    Requests enter a gate as a whole, which bounds the memory of decoded pixels; an item leaves it when its
    embedding is released. Without prefix caching all items start then. With it their hashes go to the driver
    first, and pixels follow when the driver asks (`EncodeItems`), as they do again after a preemption.
    """

    def __init__(
        self, port: DriverPort, pixels: PixelOutbox, prefix_caching: bool, gate: PixelGate | None = None
    ) -> None:
        self._port = port
        self._pixels = pixels
        self._prefix_caching = prefix_caching
        self._gate = PixelGate(PIXEL_BYTES) if gate is None else gate
        self._requests: RoutedRequests[_Asked] = RoutedRequests(self._gate)
        self._batch_ids = itertools.count()

    def check(self, request: Request) -> None:
        """Stage 0 encodes whatever fits the context."""

    def load(self) -> RouterLoad:
        """Requests and the memory of their pixels."""
        return RouterLoad(
            {
                "requests_with_images": len(self._requests),
                "pixel_bytes": self._gate.num_bytes,
                "pixel_requests_waiting": self._gate.num_waiting,
            }
        )

    def add_request(self, request: Request, source: PixelSource) -> None:
        routed = _Asked(request, source)
        self._requests.add(routed)
        routed.run(self._begin(routed))

    def on_message(self, message: object) -> None:
        match message:
            case EncodeItems(request_id, items, attempts):
                routed = self._requests.get(request_id)
                for item, attempt in zip(items, attempts, strict=True) if routed is not None else ():
                    self._encode(routed, item, attempt)
            case ItemReleased(request_id, item):
                self._leave(request_id, item)
            case SkipItems(request_id, items):
                for item in items:
                    self._leave(request_id, item)
            case _:
                pass

    def remove_request(self, request_id: str) -> None:
        self._requests.end(request_id)

    async def close(self) -> None:
        await self._requests.close()

    async def _begin(self, routed: _Asked) -> None:
        """Enter the gate, then start all items."""
        grids = [item.grid for item in routed.request.items]
        sizes = {i: t * h * w * BYTES_PER_PATCH for i, (t, h, w) in enumerate(grids)}
        await self._requests.enter(routed, sizes)
        for item in sizes:
            if self._prefix_caching:
                step = partial(self._send_hash, routed, item)
                routed.run(or_fail(self._port, routed.request, item, step))
            else:
                self._encode(routed, item, 0)

    def _leave(self, request_id: str, item: int) -> None:
        routed = self._requests.get(request_id)
        if routed is not None:
            self._requests.leave(routed, item)

    def _encode(self, routed: _Asked, item: int, attempt: int) -> None:
        if (item, attempt) not in routed.asked:
            routed.asked.add((item, attempt))
            step = partial(self._send_pixels, routed, item, attempt)
            routed.run(or_fail(self._port, routed.request, item, step))

    async def _send_hash(self, routed: _Asked, item: int) -> None:
        digest = await routed.source.digest(item)
        self._port.send(ItemHash(routed.request.request_id, item, digest))

    async def _send_pixels(self, routed: _Asked, item: int, attempt: int) -> None:
        pixels = np.ascontiguousarray(await routed.source.pixels(item))
        request = routed.request
        batch = PixelBatch(
            next(self._batch_ids), request.request_id, (item,), (attempt,), (request.items[item].grid,)
        )
        self._pixels.send(batch, [pixels.data])
