"""What a rank did and for how long: its load for /metrics, and spans for traces."""

import time
from collections.abc import Callable

from gllm.config import ParallelConfig
from gllm.core.step_spans import BatchSpans, ItemWork
from gllm.core.trace import Span
from gllm.runtime.messages import RankLoad, StageBatch, TraceSpans

SEND_EVERY_S = 1.0
REST_AFTER_MS = 1000
"""A rank without work for so long calls `rest`."""
SPANS_PER_MESSAGE = 256

Send = Callable[[object], None]
Clock = Callable[[], float]


def trace_clock(parallel: ParallelConfig) -> Clock:
    """The clock of all spans: one that a host's processes share, or among several hosts the time of day."""
    return time.monotonic if parallel.is_on_one_host else time.time


class StepRecorder:
    """Adds up busy time; reports it about once a second, and spans when a trace is wanted.

    clock: see trace_clock.
    """

    def __init__(
        self,
        name: str,
        track: str,
        send_load: Send | None,
        send_trace: Send | None,
        clock: Clock = time.monotonic,
    ) -> None:
        """name: of the rank; track: the row of the trace. send_*: where reports go, None for nowhere."""
        self.now = clock
        self.busy_seconds = 0.0
        self.steps = 0
        self._steps_sent = 0
        self._name = name
        self._track = track
        self._send_load = send_load
        self._send_trace = send_trace
        self._last_sent = clock()
        self._batches = BatchSpans()
        self._spans: list[Span] = []

    def batch(self, batch: StageBatch, start: float, waited: float = 0.0) -> None:
        """A micro-batch has run since `start`, `waited` seconds of which went by before its input came."""
        if self._send_trace is not None:
            self._batches.follow(batch)
            begin = start + waited
            self._spans.append(self._batches.span(self._track, batch, begin, self.now() - begin))
        self._step(start + waited)

    def encode(self, work: ItemWork, start: float) -> None:
        """Items were encoded since `start`."""
        if self._send_trace is not None:
            self._spans.append(work.span("encode", self._track, start, self.now() - start))
        self._step(start)

    def transfer(self, sender: str, work: ItemWork, start: float) -> None:
        """Embeddings that `sender` began to send at `start` have landed here, as seen by this rank."""
        if self._send_trace is not None:
            self._spans.append(work.span("transfer", sender, start, max(0.0, self.now() - start)))

    def rest(self) -> None:
        """There is nothing to do: send what is not sent yet, so that figures do not lag behind."""
        if self.steps != self._steps_sent or self._spans:
            self.flush()

    def flush(self) -> None:
        """Send what is not sent yet."""
        if self._send_load is not None:
            self._send_load(RankLoad(self._name, self.busy_seconds, self.steps))
        if self._send_trace is not None and self._spans:
            self._send_trace(TraceSpans(tuple(self._spans)))
        self._spans = []
        self._steps_sent = self.steps
        self._last_sent = self.now()

    def _step(self, start: float) -> None:
        now = self.now()
        self.busy_seconds += now - start
        self.steps += 1
        if now - self._last_sent >= SEND_EVERY_S or len(self._spans) >= SPANS_PER_MESSAGE:
            self.flush()
