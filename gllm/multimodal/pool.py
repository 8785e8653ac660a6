"""Threads for what would hold up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


class MediaPool:
    """Two groups of threads: short work (headers, text, base64) never queues behind decoding.

    The number of decoding threads bounds the images decoded at once, and with them the memory of raw pixels.
    A cancelled call that has not begun never runs.
    """

    def __init__(self, decode_workers: int, short_workers: int = 2):
        self._decoding = ThreadPoolExecutor(decode_workers, thread_name_prefix="decode")
        self._short = ThreadPoolExecutor(short_workers, thread_name_prefix="prompt")

    async def decode(self, call: Callable[..., Result], *args: object) -> Result:
        """Run a decode in its group; returns or raises what the call does."""
        return await asyncio.get_running_loop().run_in_executor(self._decoding, call, *args)

    async def short(self, call: Callable[..., Result], *args: object) -> Result:
        """Run something of milliseconds; returns or raises what the call does."""
        return await asyncio.get_running_loop().run_in_executor(self._short, call, *args)

    def close(self) -> None:
        """Stop the threads after what they are doing; queued calls are dropped."""
        self._decoding.shutdown(wait=False, cancel_futures=True)
        self._short.shutdown(wait=False, cancel_futures=True)
