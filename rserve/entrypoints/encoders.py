"""The API server's view of the encoder ranks: who lives, who stalls, who is started again."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from gllm.runtime.channels import Outbox
from gllm.runtime.messages import RankReady

LOG = logging.getLogger("rserve")
START_TIMEOUT_S = 300.0
LARGE_ITEM = 4096
"""Tokens of an item, above which a layer may take longer than the timeout."""
WINDOW_S = 600.0
"""What is longer ago does not count."""


class EncoderHost(Protocol):
    """Whoever runs the encoders' processes."""

    num_encoders: int
    on_encoder_exit: Callable[[int], bool]

    def start_encoder(self, index: int) -> None: ...

    def kill_encoder(self, index: int) -> None: ...

    def on_ready(self, message: RankReady) -> None: ...

    def outbox(self, name: str) -> Outbox: ...


@dataclass(slots=True)
class EncoderState:
    """One encoder rank. busy_since: when it began, or got ahead with, a batch while it has work.

    num_losses: how often it was lost; losses: when, within the last WINDOW_S. starting_since: when its
    successor was started, until that is ready. outstanding: tokens of the largest item, by batch, in order.
    """

    alive: bool = True
    num_losses: int = 0
    losses: list[float] = field(default_factory=list)
    starting_since: float | None = None
    busy_since: float | None = None
    outstanding: dict[int, int] = field(default_factory=dict)


class Encoders:
    """Watches encoders and replaces lost ones, each at most `max_restarts` times within WINDOW_S.

    on_lost: called when an encoder is dead and reaped, before its successor is started.
    """

    def __init__(self, host: EncoderHost, timeout_s: float, max_restarts: int) -> None:
        self._host = host
        self._timeout_s = timeout_s
        self._max_restarts = max_restarts
        self.states = {index: EncoderState() for index in range(host.num_encoders)}
        self.on_lost: Callable[[int], None] = lambda index: None
        host.on_encoder_exit = self._on_exit

    @property
    def are_gone(self) -> bool:
        """True when no encoder lives and none is being started."""
        return not any(s.alive or s.starting_since is not None for s in self.states.values())

    def problems(self) -> list[str]:
        """What /health should say."""
        found = []
        for index, state in self.states.items():
            if not state.alive:
                what = "is starting again" if state.starting_since is not None else "is lost"
                found.append(f"encoder {index} {what}")
        return found

    def on_ready(self, index: int) -> bool:
        """An encoder that was started again can work; False when that was known."""
        state = self.states[index]
        if state.alive:
            return False
        state.alive, state.starting_since = True, None
        LOG.warning("encoder %d works again", index)
        return True

    def on_dispatched(self, index: int, batch_id: int, largest: int) -> None:
        """An encoder got a batch. largest: tokens of its largest item."""
        state = self.states[index]
        if not state.outstanding:
            state.busy_since = time.monotonic()
        state.outstanding[batch_id] = largest

    def on_done(self, index: int, batch_id: int) -> None:
        """An encoder finished a batch; the next one's time begins."""
        state = self.states[index]
        state.outstanding.pop(batch_id, None)
        state.busy_since = time.monotonic() if state.outstanding else None

    def on_progress(self, index: int) -> None:
        """An encoder has done a part of its batch."""
        state = self.states[index]
        if state.outstanding:
            state.busy_since = time.monotonic()

    def kill_stalled(self) -> None:
        """End encoders that have not got ahead, or loaded, for too long. Call it now and then.

        Those that were lost too often are started again once that is WINDOW_S ago.
        """
        now = time.monotonic()
        for index, state in self.states.items():
            if not state.alive and state.starting_since is None and self._may_start(state, now):
                state.starting_since = now
                self._host.start_encoder(index)
            if state.starting_since is not None and now - state.starting_since > START_TIMEOUT_S:
                LOG.error("encoder %d did not start within %g s: killing it", index, START_TIMEOUT_S)
                state.starting_since = now
                self._host.kill_encoder(index)
            limit = self._limit(state)
            if state.alive and state.busy_since is not None and now - state.busy_since > limit:
                LOG.error(
                    "encoder %d did not get ahead with its batch for %.0f s (--encoder-timeout): killing it",
                    index,
                    limit,
                )
                state.busy_since = None
                self._host.kill_encoder(index)

    def _on_exit(self, index: int) -> bool:
        state = self.states[index]
        state.alive, state.busy_since, state.starting_since = False, None, None
        state.outstanding.clear()
        now = time.monotonic()
        state.num_losses += 1
        state.losses.append(now)
        LOG.error("encoder %d ended", index)
        is_replaced = self._may_start(state, now)
        state.starting_since = now if is_replaced else None
        self.on_lost(index)
        if is_replaced:
            self._host.start_encoder(index)
        elif self._max_restarts:
            LOG.error(
                "encoder %d ended more than %d times (--encoder-restarts) within %g s: it is started again "
                "when that is over",
                index,
                self._max_restarts,
                WINDOW_S,
            )
        return True

    def _limit(self, state: EncoderState) -> float:
        """Seconds for a layer: attention over an item takes time with the square of its tokens."""
        largest = next(iter(state.outstanding.values()), 0)
        return self._timeout_s * max(1.0, (largest / LARGE_ITEM) ** 2)

    def _may_start(self, state: EncoderState, now: float) -> bool:
        """Whether a lost encoder was not lost too often."""
        state.losses = [at for at in state.losses if now - at < WINDOW_S]
        return self._max_restarts > 0 and len(state.losses) <= self._max_restarts
