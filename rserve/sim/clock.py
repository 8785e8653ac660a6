"""Virtual time: a heap of what happens when."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count


class VirtualClock:
    """Runs actions by time; those of one moment in order of insertion, `last` ones after all others."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, bool, int, Callable[[], None]]] = []
        self._order = count()

    def at(self, time: float, action: Callable[[], None], last: bool = False) -> None:
        """Run `action` at `time`, or now if that is past."""
        heappush(self._events, (max(time, self.now), last, next(self._order), action))

    def run(self) -> None:
        """Run until nothing is left to happen."""
        while self._events:
            self.now, _, _, action = heappop(self._events)
            action()
