"""What a rank did and for how long: its load for /metrics, and spans for traces."""

import time
from collections.abc import Callable
from dataclasses import replace

from gllm.config import ParallelConfig
from gllm.core.step_spans import BatchSpans, ItemWork
from gllm.core.trace import Span
from gllm.runtime.messages import RankLoad, StageBatch, TraceSpans
from gllm.runtime.step_timer import NO_WAIT, Begin, Clock, StepTimer, Wait

SEND_EVERY_S = 1.0
REST_AFTER_MS = 1000
"""A rank without work for so long calls `rest`."""
SPANS_PER_MESSAGE = 256

Send = Callable[[object], None]


def trace_clock(parallel: ParallelConfig) -> Clock:
    """The clock of all spans: one that a host's processes share, or among several hosts the time of day."""
    return time.monotonic if parallel.is_on_one_host else time.time


class StepRecorder:
    """Adds up busy time; reports it about once a second, and spans when a trace is wanted."""

    def __init__(
        self,
        name: str,
        track: str,
        send_load: Send | None,
        send_trace: Send | None,
        timer: StepTimer | None = None,
    ) -> None:
        """name: of the rank; track: the row of the trace. send_*: where reports go, None for nowhere.

        timer: on the clock of trace_clock; None for a CPU of one host.
        """
        self._timer = timer or StepTimer(time.monotonic)
        self.now = self._timer.clock
        self.busy_seconds = 0.0
        self.steps = 0
        self._steps_sent = 0
        self._name = name
        self._track = track
        self._send_load = send_load
        self._send_trace = send_trace
        self._last_sent = self.now()
        self._batches = BatchSpans()
        self._spans: list[Span] = []

    def begin(self) -> Begin:
        """A step begins."""
        return self._timer.begin()

    def batch(self, batch: StageBatch, begin: Begin, wait: Wait = NO_WAIT) -> None:
        """The host is done with a micro-batch, which waited for its input first."""
        span = None
        if self._send_trace is not None:
            self._batches.follow(batch)
            span = self._batches.span(self._track, batch, 0.0, 0.0)
        self._end(begin, wait, span)

    def encode(self, work: ItemWork, begin: Begin) -> None:
        """The host is done with encoding these items."""
        traced = self._send_trace is not None
        self._end(begin, NO_WAIT, work.span("encode", self._track, 0.0, 0.0) if traced else None)

    def transfer(self, sender: str, work: ItemWork, start: float) -> None:
        """Embeddings that `sender` began to send at `start` have landed here, as seen by this rank."""
        if self._send_trace is not None:
            self._spans.append(work.span("transfer", sender, start, max(0.0, self.now() - start)))

    def rest(self) -> None:
        """There is nothing to do: send what is not sent yet, so that figures do not lag behind."""
        self._timer.settle()
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

    def close(self) -> None:
        """Wait for the device and send the rest."""
        self._timer.settle(waits=True)
        self.flush()

    def _end(self, begin: Begin, wait: Wait, span: Span | None) -> None:
        """span: of the step, without its times."""

        def timed(start: float, duration: float) -> None:
            self.busy_seconds += duration
            self.steps += 1
            if span is not None:
                self._spans.append(replace(span, start=start, duration=duration))

        self._timer.end(begin, wait, timed)
        self._timer.settle()
        if self.now() - self._last_sent >= SEND_EVERY_S or len(self._spans) >= SPANS_PER_MESSAGE:
            self.flush()
