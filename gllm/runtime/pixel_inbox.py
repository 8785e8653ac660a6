"""Receives pixels on rank 0 in a thread of their own, so that they never pass through the control loop."""

import os
import queue
import threading

import numpy as np
import zmq

from gllm.core.effects import Effect, RequestFailed, RequestFinished, SkipItems
from gllm.runtime.channels import Inbox
from gllm.runtime.executor import DrivenCore
from gllm.runtime.messages import PixelBatch
from gllm.runtime.pixel_store import Pixels, PixelStore

Arrival = tuple[str, int, int, Pixels]


class PixelInbox:
    """An event source: pixels go into the store, and the core learns whose are there."""

    def __init__(self, inbox: Inbox, store: PixelStore, patch_size: int) -> None:
        """inbox: belongs to the thread from now on."""
        self._store = store
        self._patch_size = patch_size
        self._arrivals: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stop = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._receive, args=(inbox,), name="pixels", daemon=True)
        self._thread.start()

    @property
    def wakes(self) -> int:
        """Descriptor that is readable when pixels have come."""
        return self._wake

    def drain(self, core: DrivenCore) -> None:
        """Store what has come and tell the core, except for requests that have ended."""
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            return
        while not self._arrivals.empty():
            request_id, item, attempt, pixels = self._arrivals.get()
            if self._store.put(request_id, item, pixels):
                core.on_pixels(request_id, item, attempt)

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
            raise ValueError(f"the pixel inbox does not understand {type(message).__name__}")
        for item, attempt, grid, frame in zip(message.items, message.attempts, message.grids, frames):
            pixels = as_pictures(frame, grid, self._patch_size)
            self._arrivals.put((message.request_id, item, attempt, pixels))
        os.eventfd_write(self._wake, 1)


def as_pictures(frame: memoryview, grid: tuple[int, int, int], patch_size: int) -> Pixels:
    """Raw bytes of an item -> uint8 [H, W, 3] for an image, [F, H, W, 3] for several frames of a video.

    Raises ValueError where the bytes do not fit the grid.
    """
    height, width = grid[1] * patch_size, grid[2] * patch_size
    pictures = np.frombuffer(frame, dtype=np.uint8).reshape(-1, height, width, 3)
    return pictures[0] if len(pictures) == 1 else pictures
