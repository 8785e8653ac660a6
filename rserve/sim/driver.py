"""The driver of a simulated machine: the production core, called by events of virtual time."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from gllm.core.batch import BatchResult, EncodeBatch, MicroBatch
from gllm.core.effects import Effect, RequestFailed, RequestFinished
from gllm.core.engine_core import EngineCore
from gllm.core.request import Request, SamplingParams

from .clock import VirtualClock
from .metrics import Outcome
from .pipeline import SimulatedPipeline, sampled_result
from .workload import SimRequest


class ItemExecutor(Protocol):
    """Whoever encodes items outside the pipeline, or brings pixels to stage 0."""

    def add(self, request: SimRequest) -> None:
        """A request reached the API server."""

    def on_effect(self, effect: Effect) -> None:
        """The core wants something done (encode again, skip, released, finished)."""


Embedded = Callable[[str, int, int], None]
"""(request id, item, attempt): an item's embedding is with the driver."""


@dataclass
class SimulatedDriver:
    """Calls the core as the server's driver does: events change state, then `step` when stage 0 is free.

    batches: every micro-batch in order, kept when given (tests compare them with recorded ones).
    """

    core: EngineCore
    pipeline: SimulatedPipeline
    clock: VirtualClock
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    batches: list[MicroBatch] | None = None
    items: ItemExecutor | None = None

    def __post_init__(self) -> None:
        self._costs = self.pipeline.cost
        self._return_time = self._costs.constants.driver_round_trip / 2
        self._free_at = 0.0
        self._debt = 0.0
        self._wake_at: float | None = None

    def send(self, requests: Iterable[SimRequest]) -> None:
        """Let clients send these requests; each reaches the API server half a round trip later."""
        for request in requests:
            self.outcomes[request.request_id] = Outcome(request)
            self.clock.at(request.arrival + self._return_time, partial(self._on_request, request))

    def on_embeddings(self, request_id: str, item: int, attempt: int) -> None:
        """An embedding has landed; the driver spends time on it before its next micro-batch."""
        num_tokens = self.outcomes[request_id].request.items[item].num_tokens
        self._debt += self._costs.driver_time(0, num_tokens)
        self.core.on_embeddings(request_id, item, attempt, range(num_tokens))
        self.after_event()

    def after_event(self) -> None:
        """Carry out effects; step once all events of this moment are in."""
        for effect in self.core.take_effects():
            self._apply(effect)
        self._wake(self._free_at)

    def refuse(self, request_id: str, message: str) -> None:
        """The API server turns a request away: it never reaches the core."""
        self.outcomes[request_id].error = message

    def _on_request(self, request: SimRequest) -> None:
        self._debt += self._costs.driver_time(1, 0)
        if self.items is not None:
            self.items.add(request)
        if not self.outcomes[request.request_id].error:
            self.core.on_request(core_request(request))
        self.after_event()

    def _on_done(self, result: BatchResult) -> None:
        for token in result.tokens:
            self.outcomes[token.request_id].token_times.append(self.clock.now + self._return_time)
        self.core.on_batch_done(result)
        self.after_event()

    def _wake(self, time: float) -> None:
        time = max(time, self.clock.now)
        if self._wake_at is None or time < self._wake_at:
            self._wake_at = time
            self.clock.at(time, self._step, last=True)

    def _step(self) -> None:
        self._wake_at = None
        if self.clock.now < self._free_at:
            self._wake(self._free_at)
            return
        work = self.core.step()
        for effect in self.core.take_effects():
            self._apply(effect)
        match work:
            case MicroBatch():
                self._run(work)
            case EncodeBatch():
                self._encode(work)

    def _run(self, batch: MicroBatch) -> None:
        if self.batches is not None:
            self.batches.append(batch)
        passage = self.pipeline.run(batch, self._start())
        self._occupy(passage.stage0_free)
        self.clock.at(passage.done, partial(self._on_done, sampled_result(batch)))

    def _encode(self, batch: EncodeBatch) -> None:
        request = self.outcomes[batch.request_id].request
        tokens = [request.items[item].num_tokens for item in batch.items]
        done = self.pipeline.encode(batch, tokens, self._start())
        self._occupy(done)
        self.clock.at(done, partial(self._encoded, batch))

    def _encoded(self, batch: EncodeBatch) -> None:
        for item, attempt in zip(batch.items, batch.attempts):
            tokens = self.outcomes[batch.request_id].request.items[item].num_tokens
            self.core.on_embeddings(batch.request_id, item, attempt, range(tokens))
        self.after_event()

    def _start(self) -> float:
        """When stage 0 starts: now, after the driver has worked off what events cost it."""
        start, self._debt = self.clock.now + self._debt, 0.0
        return start

    def _occupy(self, until: float) -> None:
        self._free_at = until
        self._wake(until)

    def _apply(self, effect: Effect) -> None:
        match effect:
            case RequestFailed(request_id, _, message):
                self.outcomes[request_id].error = message
            case RequestFinished(request_id, reason) if reason not in ("stop", "length"):
                self.outcomes[request_id].error = self.outcomes[request_id].error or reason
        if self.items is not None:
            self.items.on_effect(effect)


def core_request(request: SimRequest) -> Request:
    """The request as the core sees it: token ids do not matter, lengths do."""
    sampling = SamplingParams(max_tokens=request.output_len, temperature=0.0, ignore_eos=True)
    return Request(request.request_id, (0,) * request.prompt_len, request.items, sampling)
