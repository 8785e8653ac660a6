"""Fetching media: the header as soon as its bytes are there, the rest when somebody asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from gllm.multimodal.data_url import parse_data_url
from gllm.multimodal.errors import BadInput, excerpt
from gllm.multimodal.header import SIGNATURE_BYTES, ImageHeader, read_header
from gllm.multimodal.http_fetch import HttpFetcher, Lookup, system_lookup
from gllm.multimodal.limits import MediaLimits
from gllm.multimodal.local_file import read_local_file
from gllm.multimodal.pool import MediaPool

SCHEMES = "http:, https:, data: and file:"


class Allowance:
    """The bytes that all files of one request may have together."""

    def __init__(self, limit: int):
        self._limit = limit
        self._left = limit

    def take(self, size: int) -> None:
        """Count bytes that have arrived; raises BadInput once there are too many."""
        self._left -= size
        if self._left < 0:
            raise BadInput(
                f"the images of this request have more than {self._limit} bytes in all, the limit of this "
                "server; send smaller or fewer images",
                code="image_too_large",
            )


class FetchedMedia:
    """A file on its way: bytes are appended as they arrive, until it is complete or has failed.

    Whoever waits is woken by each change. Its memory is given back by release().
    """

    def __init__(self, pool: MediaPool, max_pixels: int, allowance: Allowance):
        self._pool = pool
        self._allowance = allowance
        self._max_pixels = max_pixels
        self._buffer = bytearray()
        self._data: bytes | None = None
        self._error: BadInput | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, fill: Callable[[FetchedMedia], Awaitable[None]]) -> None:
        """Begin to fill in the background; whatever goes wrong is told to those who wait."""
        self._task = asyncio.ensure_future(self._run(fill))

    def append(self, chunk: bytes) -> None:
        """Add bytes that have arrived; raises BadInput when the request has too many."""
        self._allowance.take(len(chunk))
        self._buffer += chunk
        self._wake()

    async def header(self) -> ImageHeader:
        """The image's header, as soon as the bytes tell it. Raises BadInput as read_header and read do."""
        least = SIGNATURE_BYTES
        while True:
            data = await self._at_least(least)
            complete = self._data is not None and len(data) == len(self._data)
            header = await self._pool.short(read_header, data, complete, self._max_pixels)
            if header is not None:
                return header
            # Doubling keeps the bytes looked at in all below twice the file.
            least = 2 * len(data)

    async def read(self) -> bytes:
        """The whole file. Raises BadInput if it cannot be had, or has been released."""
        while self._data is None:
            await self._change()
        return self._data

    async def release(self) -> None:
        """Stop fetching and forget the bytes; whoever still waits gets BadInput. May be called twice."""
        self._error = self._error or BadInput("the request has ended", code="request_ended")
        self._data = None
        self._buffer = bytearray()
        self._wake()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _at_least(self, size: int) -> bytes:
        while self._data is None and len(self._buffer) < size:
            await self._change()
        if self._error is not None:
            raise self._error.copy()
        return bytes(self._buffer) if self._data is None else self._data

    async def _change(self) -> None:
        if self._error is not None:
            raise self._error.copy()
        await self._changed.wait()
        if self._error is not None:
            raise self._error.copy()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _run(self, fill: Callable[[FetchedMedia], Awaitable[None]]) -> None:
        try:
            await fill(self)
            self._data = bytes(self._buffer)
            self._buffer = bytearray()
        except BadInput as error:
            self._error = error
        except Exception as error:  # a client library's own errors: the client learns which, nobody hangs
            self._error = BadInput(
                f"the image could not be fetched ({type(error).__name__})", code="invalid_image_url"
            )
        finally:
            self._wake()


class MediaFetcher:
    """Opens URLs of every allowed scheme under the limits of one server.

    Used in one event loop; close() ends it.
    """

    def __init__(self, limits: MediaLimits, pool: MediaPool, lookup: Lookup = system_lookup):
        self._limits = limits
        self._pool = pool
        self._http = HttpFetcher(limits, lookup)

    def open(self, url: str, allowance: Allowance | None = None) -> FetchedMedia:
        """Begin to fetch; errors, even of the URL's form, come out of header() and read().

        allowance: shared by the files of one request; without it the file has one of its own.
        """
        allowance = allowance or Allowance(self._limits.max_request_bytes)
        media = FetchedMedia(self._pool, self._limits.max_image_pixels, allowance)
        scheme = url.partition(":")[0].strip().lower()
        if scheme in ("http", "https"):
            media.start(lambda sink: self._http.fetch(url.strip(), sink.append))
        elif scheme == "data":
            media.start(lambda sink: self._fill(sink, parse_data_url, url.strip()))
        elif scheme == "file":
            media.start(lambda sink: self._fill(sink, self._read_file, url.strip()))
        else:
            media.start(lambda sink: _refuse(url))
        return media

    async def close(self) -> None:
        """Close connections."""
        await self._http.close()

    def _read_file(self, url: str, max_bytes: int) -> bytes:
        return read_local_file(url, self._limits.allowed_media_path, max_bytes)

    async def _fill(self, sink: FetchedMedia, read: Callable[[str, int], bytes], url: str) -> None:
        sink.append(await self._pool.short(read, url, self._limits.max_media_bytes))


async def _refuse(url: str) -> None:
    raise BadInput(
        f"{excerpt(url)} is no URL of a supported kind; use {SCHEMES} URLs", code="invalid_image_url"
    )
