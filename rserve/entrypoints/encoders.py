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
    """One encoder rank. busy_since: when it began (or last finished) a batch while it has work.

    restarts: how often it was lost. starting_since: when its successor was started, until that is ready.
    """

    alive: bool = True
    restarts: int = 0
    starting_since: float | None = None
    busy_since: float | None = None
    outstanding: set[int] = field(default_factory=set)


class Encoders:
    """Watches encoders and replaces lost ones, at most `max_restarts` times each.

    on_lost: called when an encoder is dead and reaped; on_hopeless: when none is left or will come.
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
        return not any(s.alive or s.restarts <= self._max_restarts for s in self.states.values())

    def problems(self) -> list[str]:
        """What /health should say."""
        found = []
        for index, state in self.states.items():
            if not state.alive:
                what = "is starting again" if state.restarts <= self._max_restarts else "is lost"
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

    def on_dispatched(self, index: int, batch_id: int) -> None:
        """An encoder got a batch."""
        state = self.states[index]
        if not state.outstanding:
            state.busy_since = time.monotonic()
        state.outstanding.add(batch_id)

    def on_done(self, index: int, batch_id: int) -> None:
        """An encoder finished a batch; the next one's time begins."""
        state = self.states[index]
        state.outstanding.discard(batch_id)
        state.busy_since = time.monotonic() if state.outstanding else None

    def kill_stalled(self) -> None:
        """End encoders that have worked on one batch, or loaded, for too long. Call it now and then."""
        now = time.monotonic()
        for index, state in self.states.items():
            if state.starting_since is not None and now - state.starting_since > START_TIMEOUT_S:
                LOG.error("encoder %d did not start within %g s: killing it", index, START_TIMEOUT_S)
                state.starting_since = None
                self._host.kill_encoder(index)
            if state.alive and state.busy_since is not None and now - state.busy_since > self._timeout_s:
                LOG.error(
                    "encoder %d did not finish a batch within %g s (--encoder-timeout): killing it",
                    index,
                    self._timeout_s,
                )
                state.busy_since = None
                self._host.kill_encoder(index)

    def _on_exit(self, index: int) -> bool:
        state = self.states[index]
        state.alive, state.busy_since, state.starting_since = False, None, None
        state.outstanding.clear()
        state.restarts += 1
        LOG.error("encoder %d ended", index)
        self.on_lost(index)
        if state.restarts <= self._max_restarts:
            state.starting_since = time.monotonic()
            self._host.start_encoder(index)
        return True
