"""Requests whose images are on their way: their tasks, and the memory of their pixels."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from gllm.core.request import Request
from gllm.entrypoints.pixel_gate import PixelGate
from gllm.entrypoints.ports import DriverPort, PixelSource
from gllm.multimodal.errors import BadInput

LOG = logging.getLogger("gllm")


@dataclass(eq=False, slots=True)
class Routed:
    """One request. held: bytes of its items inside the gate; tasks: what is being done for it."""

    request: Request
    source: PixelSource
    held: dict[int, int] = field(default_factory=dict)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something for the request until it ends."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


R = TypeVar("R", bound=Routed)


class RoutedRequests(Generic[R]):
    """The requests of an item router; whatever one holds is given back when it ends."""

    def __init__(self, gate: PixelGate) -> None:
        self._gate = gate
        self._requests: dict[str, R] = {}
        self._releases: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[R]:
        return iter(self._requests.values())

    def get(self, request_id: str) -> R | None:
        return self._requests.get(request_id)

    def add(self, routed: R) -> None:
        self._requests[routed.request.request_id] = routed

    async def enter(self, routed: R, sizes: dict[int, int]) -> None:
        """Wait until there is room for the pixels of all items (item -> bytes)."""
        await self._gate.enter(sum(sizes.values()))
        routed.held = sizes

    def leave(self, routed: R, item: int) -> None:
        """An item's pixels are gone. Nothing happens the second time."""
        self._gate.leave(routed.held.pop(item, 0))

    def end(self, request_id: str) -> bool:
        """Stop a request's work and release its source; False when it has ended before."""
        routed = self._requests.pop(request_id, None)
        if routed is None:
            return False
        for task in routed.tasks:
            task.cancel()
        self._gate.leave(sum(routed.held.values()))
        routed.held.clear()
        release = asyncio.create_task(routed.source.release())
        self._releases.add(release)
        release.add_done_callback(self._releases.discard)
        return True

    async def close(self) -> None:
        """End all requests and wait for their tasks."""
        tasks = [task for routed in self for task in routed.tasks]
        for request_id in tuple(self._requests):
            self.end(request_id)
        await asyncio.gather(*tasks, *self._releases, return_exceptions=True)


async def or_fail(port: DriverPort, request: Request, item: int, step: Callable[[], Awaitable[None]]) -> None:
    """Do something for an item; where it fails, its request ends with the error."""
    try:
        await step()
    except BadInput as error:
        port.fail_item(request.request_id, item, error)
    except Exception as error:
        LOG.exception("request %s: item %d: a bug", request.request_id, item)
        failure = BadInput(f"internal error: {error}", None, 500, "internal")
        port.fail_item(request.request_id, item, failure)
