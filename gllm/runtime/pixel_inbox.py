"""Receives pixels on rank 0 in a thread of their own, so that they never pass through the control loop."""

import logging
import os
import queue
import threading
from collections.abc import Callable
from functools import partial

import numpy as np
import zmq

from gllm.core.effects import Effect, RequestFailed, RequestFinished, SkipItems
from gllm.runtime.channels import Inbox
from gllm.runtime.executor import DrivenCore
from gllm.runtime.messages import PixelBatch
from gllm.runtime.pixel_store import Pixels, PixelStore

LOG = logging.getLogger("gllm")
Event = Callable[[DrivenCore], None]


class PixelInbox:
    """An event source: pixels go into the store, and the core learns whose are there."""

    def __init__(self, inbox: Inbox, store: PixelStore, patch_size: int) -> None:
        """inbox: belongs to the thread from now on."""
        self._store = store
        self._patch_size = patch_size
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stop = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._receive, args=(inbox,), name="pixels", daemon=True)
        self._thread.start()

    @property
    def wakes(self) -> int:
        """Descriptor that is readable when pixels have come."""
        return self._wake

    def drain(self, core: DrivenCore) -> None:
        """Store what has come and tell the core, except for requests that have ended.

        Pixels that do not fit their grid fail their item.
        """
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            return
        while not self._events.empty():
            self._events.get()(core)

    def on_effect(self, effect: Effect) -> None:
        """Forget the pixels that nobody will encode."""
        match effect:
            case SkipItems(request_id, items):
                self._store.skip(request_id, items)
            case RequestFinished(request_id) | RequestFailed(request_id):
                self._store.end(request_id)

    def close(self) -> None:
        """End the thread."""
        os.eventfd_write(self._stop, 1)
        self._thread.join()

    def _receive(self, inbox: Inbox) -> None:
        poller = zmq.Poller()
        poller.register(inbox.socket, zmq.POLLIN)
        poller.register(self._stop, zmq.POLLIN)
        while self._stop not in dict(poller.poll()):
            received = inbox.receive_frames(0)
            if received is not None:
                self._take(*received)
        inbox.close()

    def _take(self, message: object, frames: list[memoryview]) -> None:
        if not isinstance(message, PixelBatch):
            LOG.error("the pixel inbox does not understand %s", type(message).__name__)
            return
        request_id = message.request_id
        for index, (item, attempt, grid) in enumerate(zip(message.items, message.attempts, message.grids)):
            try:
                pixels = as_pictures(frames[index], grid, self._patch_size)
            except (ValueError, IndexError) as error:
                self._events.put(partial(_fail, request_id, item, f"bad pixels: {error}"))
            else:
                self._events.put(partial(self._deliver, request_id, item, attempt, pixels))
        os.eventfd_write(self._wake, 1)

    def _deliver(self, request_id: str, item: int, attempt: int, pixels: Pixels, core: DrivenCore) -> None:
        if self._store.put(request_id, item, pixels):
            core.on_pixels(request_id, item, attempt)


def _fail(request_id: str, item: int, message: str, core: DrivenCore) -> None:
    core.on_item_failed(request_id, item, 500, message)


def as_pictures(frame: memoryview, grid: tuple[int, int, int], patch_size: int) -> Pixels:
    """Raw bytes of an item -> uint8 [H, W, 3] for an image, [F, H, W, 3] for several frames of a video.

    Raises ValueError where the bytes do not fit the grid.
    """
    height, width = grid[1] * patch_size, grid[2] * patch_size
    pictures = np.frombuffer(frame, dtype=np.uint8).reshape(-1, height, width, 3)
    return pictures[0] if len(pictures) == 1 else pictures
