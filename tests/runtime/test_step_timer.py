"""Steps are timed on the device that runs them, without waiting for it."""

import pytest

from gllm.runtime.step_timer import NO_WAIT, StepTimer, Wait

Times = list[tuple[float, float]]


class Device:
    """A queue of work behind the host's back: work takes its seconds once all before it is done."""

    def __init__(self) -> None:
        self.host = 0.0
        self.free_at = 0.0

    def clock(self) -> float:
        return self.host

    def launch(self, seconds: float, not_before: float = 0.0) -> None:
        self.free_at = max(self.free_at, self.host, not_before) + seconds

    def event(self) -> "Event":
        return Event(self)


class Event:
    def __init__(self, device: Device) -> None:
        self._device = device
        self.at = 0.0

    def record(self) -> None:
        self._device.launch(0.0)
        self.at = self._device.free_at

    def query(self) -> bool:
        return self.at <= self._device.host

    def synchronize(self) -> None:
        self._device.host = max(self._device.host, self.at)

    def elapsed_time(self, end_event: "Event") -> float:
        return (end_event.at - self.at) * 1e3


def test_a_cpu_is_done_when_the_host_is():
    now, times = [1.0], Times()
    timer = StepTimer(lambda: now[0])
    begin = timer.begin()
    now[0] = 3.0
    timer.end(begin, Wait(0.5), lambda *step: times.append(step))
    assert times == [(1.5, 1.5)]


def test_steps_that_queue_behind_each_other_are_timed_when_the_device_runs_them():
    device, times = Device(), Times()
    timer = StepTimer(device.clock, device.event)
    for seconds in (2.0, 3.0):
        begin = timer.begin()
        device.launch(seconds)
        device.host += 0.1
        timer.end(begin, NO_WAIT, lambda *step: times.append(step))
    timer.settle()
    assert times == []
    device.host = 2.5
    timer.settle()
    assert times[0] == pytest.approx((0.0, 2.0))
    timer.settle(waits=True)
    assert device.host == 5.0
    assert times[1] == pytest.approx((2.0, 3.0))
    device.host = 9.0
    begin = timer.begin()
    device.launch(1.0)
    timer.end(begin, NO_WAIT, lambda *step: times.append(step))
    timer.settle(waits=True)
    assert times[2] == pytest.approx((9.0, 1.0))


def test_what_a_step_waits_for_its_input_on_the_device_is_not_its_work():
    device, times = Device(), Times()
    timer = StepTimer(device.clock, device.event)
    begin = timer.begin()
    device.launch(0.0, not_before=4.0)
    arrived = device.event()
    arrived.record()
    device.launch(2.0)
    timer.end(begin, Wait(0.0, arrived), lambda *step: times.append(step))
    timer.settle(waits=True)
    assert times[0] == pytest.approx((4.0, 2.0))
