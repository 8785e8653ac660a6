"""The item router of scheme `gllm`: all pixels go to stage 0, which encodes them itself."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from gllm.core.effects import EncodeItems
from gllm.core.request import Request
from gllm.entrypoints.ports import DriverPort, PixelSource
from gllm.multimodal.errors import BadInput
from gllm.runtime.messages import ItemHash, PixelBatch


class PixelOutbox(Protocol):
    """A socket to an inbox for pixels."""

    def send(self, message: object, frames: Sequence[bytes | memoryview] = ()) -> None: ...


@dataclass(eq=False, slots=True)
class _Routed:
    """A request whose items are on their way; asked holds (item, attempt) already under way."""

    request: Request
    source: PixelSource
    asked: set[tuple[int, int]] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


Step = Callable[[_Routed, int], Awaitable[None]]


class StageZeroRouter:
    """Fetches the items of each request and pushes their pixels to stage 0, each as soon as it is there.

    Without prefix caching all items start when the request comes. With it their hashes go to the driver
    first, and pixels follow when the driver asks (`EncodeItems`), as they do again after a preemption.
    """

    def __init__(self, port: DriverPort, pixels: PixelOutbox, prefix_caching: bool) -> None:
        self._port = port
        self._pixels = pixels
        self._prefix_caching = prefix_caching
        self._requests: dict[str, _Routed] = {}
        self._batch_ids = itertools.count()
        self._releases: set[asyncio.Task[None]] = set()

    def add_request(self, request: Request, source: PixelSource) -> None:
        routed = _Routed(request, source)
        self._requests[request.request_id] = routed
        for item in range(len(request.items)):
            if self._prefix_caching:
                self._start(routed, item, self._send_hash)
            else:
                self._encode(routed, item, 0)

    def on_message(self, message: object) -> None:
        match message:
            case EncodeItems(request_id, items, attempts) if request_id in self._requests:
                for item, attempt in zip(items, attempts, strict=True):
                    self._encode(self._requests[request_id], item, attempt)
            case _:
                pass  # released and skipped items need nothing: pixels wait for nobody here

    def remove_request(self, request_id: str) -> None:
        routed = self._requests.pop(request_id, None)
        if routed is not None:
            for task in routed.tasks:
                task.cancel()
            release = asyncio.create_task(routed.source.release())
            self._releases.add(release)
            release.add_done_callback(self._releases.discard)

    async def close(self) -> None:
        tasks = [task for routed in self._requests.values() for task in routed.tasks]
        for request_id in tuple(self._requests):
            self.remove_request(request_id)
        await asyncio.gather(*tasks, *self._releases, return_exceptions=True)

    def _encode(self, routed: _Routed, item: int, attempt: int) -> None:
        if (item, attempt) in routed.asked:
            return
        routed.asked.add((item, attempt))
        self._start(routed, item, lambda r, i: self._send_pixels(r, i, attempt))

    def _start(self, routed: _Routed, item: int, step: Step) -> None:
        task = asyncio.create_task(self._guarded(routed, item, step))
        routed.tasks.add(task)
        task.add_done_callback(routed.tasks.discard)

    async def _guarded(self, routed: _Routed, item: int, step: Step) -> None:
        try:
            await step(routed, item)
        except BadInput as error:
            self._port.fail_item(routed.request.request_id, item, error)

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
