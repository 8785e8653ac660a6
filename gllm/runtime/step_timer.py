"""When a rank's steps began and ended on the device that ran them."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

Clock = Callable[[], float]
Timed = Callable[[float, float], None]
"""Called with the start of a step on the host's clock, and its duration; both in seconds."""


class DeviceEvent(Protocol):
    """A place in a device's queue, as torch.cuda.Event with timing."""

    def record(self) -> None: ...
    def query(self) -> bool: ...
    def synchronize(self) -> None: ...
    def elapsed_time(self, end_event: "DeviceEvent") -> float: ...


MakeEvent = Callable[[], DeviceEvent]


def device_events(device: torch.device) -> MakeEvent | None:
    """Makes events of a device that works behind the host's back; None for a CPU."""
    return (lambda: torch.cuda.Event(enable_timing=True)) if device.type == "cuda" else None


def mark(make_event: MakeEvent | None) -> DeviceEvent | None:
    """The place in the device's queue behind all that was launched so far; None for a CPU."""
    if make_event is None:
        return None
    event = make_event()
    event.record()
    return event


@dataclass(frozen=True, slots=True)
class Wait:
    """What a step waited for its input. seconds: of the host; until: on a GPU, when the input had come."""

    seconds: float = 0.0
    until: DeviceEvent | None = None


NO_WAIT = Wait()


@dataclass(frozen=True, slots=True)
class Begin:
    """Where a step began: on the host's clock, and in the device's queue."""

    at: float
    event: DeviceEvent | None


@dataclass(frozen=True, slots=True)
class _Open:
    """A step that may still run. first, last: around its work, without what it waited for."""

    begin: Begin
    first: DeviceEvent
    last: DeviceEvent
    timed: Timed


class StepTimer:
    """Times steps without waiting for the device.

    A CPU is done with a step when the host is. On a GPU a step starts when the host has put it into the queue
    and the step before is done, whichever is later; its events tell how long it waited and ran.
    """

    def __init__(self, clock: Clock, make_event: MakeEvent | None = None) -> None:
        """make_event: see device_events."""
        self.clock = clock
        self._make_event = make_event
        self._open: deque[_Open] = deque()
        self._free_at = float("-inf")

    def begin(self) -> Begin:
        """A step begins."""
        return Begin(self.clock(), mark(self._make_event))

    def end(self, begin: Begin, wait: Wait, timed: Timed) -> None:
        """The host is done with a step. timed: called at once, or by `settle` when the device is done too."""
        last = mark(self._make_event)
        if begin.event is not None and last is not None:
            self._open.append(_Open(begin, wait.until or begin.event, last, timed))
            return
        start = begin.at + wait.seconds
        timed(start, self.clock() - start)

    def settle(self, waits: bool = False) -> None:
        """Report the steps that the device is done with. waits: for all of them."""
        if waits and self._open:
            self._open[-1].last.synchronize()
        while self._open and self._open[0].last.query():
            step = self._open.popleft()
            assert step.begin.event is not None
            waited = step.begin.event.elapsed_time(step.first) / 1e3
            start = max(step.begin.at, self._free_at) + waited
            duration = step.first.elapsed_time(step.last) / 1e3
            self._free_at = start + duration
            step.timed(start, duration)
