"""What a rank did and for how long: its load for /metrics, and spans for traces."""

import time
from collections.abc import Callable, Mapping

from gllm.config import ParallelConfig
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
        self._requests: dict[int, str] = {}
        self._spans: list[Span] = []

    def batch(self, batch: StageBatch, start: float, waited: float = 0.0) -> None:
        """A micro-batch has run since `start`, `waited` seconds of which went by before its input came."""
        if self._send_trace is not None:
            for seq_id in batch.finished:
                self._requests.pop(seq_id, None)
            self._requests.update((seq.seq_id, seq.request_id) for seq in batch.new)
            requests = dict.fromkeys(self._requests[chunk.seq_id] for chunk in batch.chunks)
            kind = "decode" if batch.num_decodes == len(batch.chunks) else "prefill"
            args = {"batch": batch.batch_id, "tokens": batch.num_tokens, "decodes": batch.num_decodes}
            self._span(f"batch {batch.batch_id}", kind, start + waited, ",".join(requests), args)
        self._step(start + waited)

    def encode(self, request_id: str, num_items: int, num_tokens: int, start: float) -> None:
        """Items of a request were encoded since `start`."""
        if self._send_trace is not None:
            args = {"items": num_items, "tokens": num_tokens}
            self._span(f"encode {num_items}", "encode", start, request_id, args)
        self._step(start)

    def transfer(self, sender: str, request_id: str, num_tokens: int, start: float) -> None:
        """Embeddings that `sender` began to send at `start` have landed here, as seen by this rank."""
        if self._send_trace is not None:
            duration = max(0.0, self.now() - start)
            args = {"tokens": num_tokens}
            self._spans.append(Span(sender, "embeddings", "transfer", start, duration, request_id, args))

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

    def _span(self, name: str, kind: str, start: float, request: str, args: Mapping[str, object]) -> None:
        self._spans.append(Span(self._track, name, kind, start, self.now() - start, request, args))

    def _step(self, start: float) -> None:
        now = self.now()
        self.busy_seconds += now - start
        self.steps += 1
        if now - self._last_sent >= SEND_EVERY_S or len(self._spans) >= SPANS_PER_MESSAGE:
            self.flush()
