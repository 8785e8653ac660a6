"""Who watches the encoders: stalls, failed starts, restarts and what /health says of them."""

import time
from collections.abc import Callable

import pytest

from rserve.entrypoints.encoders import START_TIMEOUT_S, WINDOW_S, Encoders


class Host:
    """Writes down who is started and killed."""

    def __init__(self, num_encoders: int) -> None:
        self.num_encoders = num_encoders
        self.on_encoder_exit: Callable[[int], bool] = lambda index: False
        self.started: list[int] = []
        self.killed: list[int] = []

    def start_encoder(self, index: int) -> None:
        self.started.append(index)

    def kill_encoder(self, index: int) -> None:
        self.killed.append(index)

    def outbox(self, name: str) -> None:
        raise AssertionError("nothing is sent here")


def watched(timeout_s: float = 60.0, restarts: int = 1, num_encoders: int = 2) -> tuple[Host, Encoders]:
    host = Host(num_encoders)
    return host, Encoders(host, timeout_s, restarts)  # type: ignore[arg-type]


def test_only_an_encoder_that_is_too_long_on_one_batch_is_killed():
    host, encoders = watched(timeout_s=10.0)
    encoders.on_dispatched(0, 1, largest=64)
    encoders.on_dispatched(1, 2, largest=64)
    encoders.states[0].busy_since = time.monotonic() - 11
    encoders.kill_stalled()
    encoders.kill_stalled()
    assert host.killed == [0]


@pytest.mark.parametrize(("largest", "seconds"), [(4096, 10), (8192, 40), (16384, 160)])
def test_a_large_item_has_longer_for_a_layer(largest: int, seconds: float):
    host, encoders = watched(timeout_s=10.0)
    encoders.on_dispatched(0, 1, largest)
    encoders.on_dispatched(0, 2, largest=10**6)
    for late, killed in ((-1, []), (1, [0])):
        encoders.states[0].busy_since = time.monotonic() - seconds - late
        encoders.kill_stalled()
        assert host.killed == killed


def test_each_finished_batch_gives_the_next_one_its_whole_time():
    host, encoders = watched(timeout_s=10.0)
    encoders.on_dispatched(0, 1, largest=64)
    encoders.on_dispatched(0, 2, largest=64)
    encoders.states[0].busy_since = time.monotonic() - 11
    encoders.on_done(0, batch_id=1)
    encoders.kill_stalled()
    encoders.on_done(0, batch_id=2)
    assert encoders.states[0].busy_since is None
    encoders.kill_stalled()
    assert not host.killed


def test_a_lost_encoder_is_started_again_until_its_restarts_are_used_up():
    host, encoders = watched(restarts=1, num_encoders=1)
    lost: list[int] = []
    encoders.on_lost = lost.append
    assert host.on_encoder_exit(0)
    assert host.started == [0] and encoders.problems() == ["encoder 0 is starting again"]
    assert not encoders.are_gone
    assert encoders.on_ready(0) and encoders.problems() == []
    assert host.on_encoder_exit(0)
    assert host.started == [0] and encoders.problems() == ["encoder 0 is lost"]
    assert encoders.are_gone and lost == [0, 0]
    encoders.kill_stalled()
    assert host.started == [0]


def test_what_was_lost_too_often_comes_back_when_that_is_long_ago():
    host, encoders = watched(restarts=1, num_encoders=1)
    host.on_encoder_exit(0)
    encoders.on_ready(0)
    host.on_encoder_exit(0)
    assert encoders.are_gone
    encoders.states[0].losses = [at - WINDOW_S for at in encoders.states[0].losses]
    encoders.kill_stalled()
    encoders.kill_stalled()
    assert host.started == [0, 0] and not encoders.are_gone
    assert encoders.problems() == ["encoder 0 is starting again"]
    assert encoders.states[0].num_losses == 2


def test_with_no_restarts_allowed_a_lost_encoder_stays_lost():
    host, encoders = watched(restarts=0, num_encoders=1)
    host.on_encoder_exit(0)
    encoders.kill_stalled()
    assert host.started == [] and encoders.are_gone


def test_an_encoder_that_gets_ahead_with_a_large_item_is_not_stalled():
    host, encoders = watched(timeout_s=10.0)
    encoders.on_dispatched(0, 1, largest=64)
    encoders.states[0].busy_since = time.monotonic() - 11
    encoders.on_progress(0)
    encoders.on_progress(1)
    encoders.kill_stalled()
    assert not host.killed and encoders.states[1].busy_since is None


def test_a_second_word_of_readiness_changes_nothing():
    """The last word of a dead encoder may come after its successor was started, whose batches stay known."""
    host, encoders = watched()
    host.on_encoder_exit(0)
    assert encoders.on_ready(0)
    assert not encoders.on_ready(0)


def test_a_successor_that_never_gets_ready_is_killed():
    host, encoders = watched(restarts=3)
    host.on_encoder_exit(0)
    encoders.kill_stalled()
    assert not host.killed
    encoders.states[0].starting_since = time.monotonic() - START_TIMEOUT_S - 1
    encoders.kill_stalled()
    encoders.kill_stalled()
    assert host.killed == [0]
