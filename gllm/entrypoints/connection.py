"""One HTTP connection: its body within limits, its work only while the client is there."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gllm.entrypoints.errors import ApiError

Result = TypeVar("Result")


class ClientGone(Exception):
    """The client closed its connection before the answer."""


async def read_body(request: Request, limit: int) -> bytes:
    """The body of a JSON request. Raises ApiError: 415 for another type, 413 beyond limit bytes."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        message = f"the content type is {kind or 'missing'}: send application/json"
        raise ApiError(415, message, code="unsupported_media_type")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(int(declared), limit)
    parts, size = [], 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > limit:
            raise _too_large(size, limit)
    return b"".join(parts)


async def while_connected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Do the work, or cancel it and raise ClientGone when the client goes away. The body must be read."""
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_disconnected(request.receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        await _end(task, watcher)


class EventStream(Response):
    """A stream of server-sent events that stops, and tells so, when the client goes away.

    on_close is called once with whether the client saw the end.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], on_close: Callable[[bool], None]) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self._events = events
        self._on_close = on_close
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump = asyncio.create_task(self._pump(send))
        watcher = asyncio.create_task(_disconnected(receive))
        is_whole = False
        try:
            await asyncio.wait({pump, watcher}, return_when=asyncio.FIRST_COMPLETED)
            if pump.done():
                pump.result()
                is_whole = True
        finally:
            self._on_close(is_whole)
            await _end(pump, watcher)

    async def _pump(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for data in self._events:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError, Exception):
            await task


def _too_large(size: int, limit: int) -> ApiError:
    message = f"the body has {size} bytes or more and the limit is {limit} (--max-body-bytes): send less"
    return ApiError(413, message, code="body_too_large")
