"""Bounds the memory of decoded pixels: requests enter first come, first served, each as a whole."""

import asyncio
from collections import deque


class PixelGate:
    """At most `capacity` bytes inside, or one request that is larger.

    Requests enter as a whole, so that no two of them wait for each other's half; bytes may leave piece
    by piece as items are encoded. For one event loop.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._inside = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def num_bytes(self) -> int:
        """Bytes inside."""
        return self._inside

    @property
    def num_waiting(self) -> int:
        """Requests that wait to enter."""
        return len(self._waiting)

    async def enter(self, num_bytes: int) -> None:
        """Wait until there is room and all who came before are in."""
        if not self._waiting and self._has_room(num_bytes):
            self._inside += num_bytes
            return
        entry = (num_bytes, asyncio.get_running_loop().create_future())
        self._waiting.append(entry)
        try:
            await entry[1]
        except asyncio.CancelledError:
            if entry in self._waiting:
                self._waiting.remove(entry)
                self.leave(0)
            else:
                self.leave(num_bytes)
            raise

    def leave(self, num_bytes: int) -> None:
        """Bytes are gone; those who wait may enter."""
        self._inside -= num_bytes
        while self._waiting and self._has_room(self._waiting[0][0]):
            size, entered = self._waiting.popleft()
            self._inside += size
            entered.set_result(None)

    def _has_room(self, num_bytes: int) -> bool:
        return self._inside == 0 or self._inside + num_bytes <= self._capacity
