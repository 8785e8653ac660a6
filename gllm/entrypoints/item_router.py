"""The item router of scheme `gllm`: all pixels go to stage 0, which encodes them itself."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from gllm.core.effects import EncodeItems, ItemReleased, SkipItems
from gllm.core.request import Request
from gllm.entrypoints.pixel_gate import PixelGate
from gllm.entrypoints.ports import DriverPort, PixelSource
from gllm.entrypoints.router_load import RouterLoad
from gllm.multimodal.errors import BadInput
from gllm.runtime.messages import ItemHash, PixelBatch

LOG = logging.getLogger("gllm")
PIXEL_BYTES = 512 * 2**20
"""Decoded pixels in the API server and at stage 0 together, unless one request has more."""
BYTES_PER_PATCH = 14 * 14 * 3
"""uint8 pixels of a patch of 14 x 14, that of all models so far; for bounding memory only."""


class PixelOutbox(Protocol):
    """A socket to an inbox for pixels."""

    def send(self, message: object, frames: Sequence[bytes | memoryview] = ()) -> None: ...


@dataclass(eq=False, slots=True)
class _Routed:
    """A request whose items are on their way; asked holds (item, attempt) already under way.

    held: bytes of its items inside the gate.
    """

    request: Request
    source: PixelSource
    held: dict[int, int] = field(default_factory=dict)
    asked: set[tuple[int, int]] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


Step = Callable[[_Routed, int], Awaitable[None]]


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
        self._requests: dict[str, _Routed] = {}
        self._batch_ids = itertools.count()
        self._releases: set[asyncio.Task[None]] = set()

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
        routed = _Routed(request, source)
        self._requests[request.request_id] = routed
        self._run(routed, self._begin(routed))

    def on_message(self, message: object) -> None:
        match message:
            case EncodeItems(request_id, items, attempts) if request_id in self._requests:
                for item, attempt in zip(items, attempts, strict=True):
                    self._encode(self._requests[request_id], item, attempt)
            case ItemReleased(request_id, item):
                self._leave(request_id, item)
            case SkipItems(request_id, items):
                for item in items:
                    self._leave(request_id, item)
            case _:
                pass

    def remove_request(self, request_id: str) -> None:
        routed = self._requests.pop(request_id, None)
        if routed is not None:
            for task in routed.tasks:
                task.cancel()
            self._gate.leave(sum(routed.held.values()))
            routed.held.clear()
            release = asyncio.create_task(routed.source.release())
            self._releases.add(release)
            release.add_done_callback(self._releases.discard)

    async def close(self) -> None:
        tasks = [task for routed in self._requests.values() for task in routed.tasks]
        for request_id in tuple(self._requests):
            self.remove_request(request_id)
        await asyncio.gather(*tasks, *self._releases, return_exceptions=True)

    async def _begin(self, routed: _Routed) -> None:
        """Enter the gate, then start all items."""
        patches = {
            i: item.grid[0] * item.grid[1] * item.grid[2] for i, item in enumerate(routed.request.items)
        }
        sizes = {item: count * BYTES_PER_PATCH for item, count in patches.items()}
        await self._gate.enter(sum(sizes.values()))
        routed.held = sizes
        for item in sizes:
            if self._prefix_caching:
                self._start(routed, item, self._send_hash)
            else:
                self._encode(routed, item, 0)

    def _leave(self, request_id: str, item: int) -> None:
        """An item's pixels are used or not needed. Nothing happens the second time."""
        routed = self._requests.get(request_id)
        if routed is not None:
            self._gate.leave(routed.held.pop(item, 0))

    def _encode(self, routed: _Routed, item: int, attempt: int) -> None:
        if (item, attempt) in routed.asked:
            return
        routed.asked.add((item, attempt))
        self._start(routed, item, lambda r, i: self._send_pixels(r, i, attempt))

    def _start(self, routed: _Routed, item: int, step: Step) -> None:
        self._run(routed, self._guarded(routed, item, step))

    def _run(self, routed: _Routed, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        routed.tasks.add(task)
        task.add_done_callback(routed.tasks.discard)

    async def _guarded(self, routed: _Routed, item: int, step: Step) -> None:
        try:
            await step(routed, item)
        except BadInput as error:
            self._port.fail_item(routed.request.request_id, item, error)
        except Exception as error:
            LOG.exception("request %s: item %d: a bug", routed.request.request_id, item)
            failure = BadInput(f"internal error: {error}", None, 500, "internal")
            self._port.fail_item(routed.request.request_id, item, failure)

    async def _send_hash(self, routed: _Routed, item: int) -> None:
        digest = await routed.source.digest(item)
        self._port.send(ItemHash(routed.request.request_id, item, digest))

    async def _send_pixels(self, routed: _Routed, item: int, attempt: int) -> None:
        pixels = np.ascontiguousarray(await routed.source.pixels(item))
        request = routed.request
        batch = PixelBatch(
            next(self._batch_ids), request.request_id, (item,), (attempt,), (request.items[item].grid,)
        )
        self._pixels.send(batch, [pixels.data])
