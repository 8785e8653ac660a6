"""Execution without execution: how long micro-batches take to pass through the stages."""

from collections.abc import Sequence
from dataclasses import dataclass

from gllm.core.batch import BatchResult, EncodeBatch, MicroBatch, SampledToken
from gllm.core.step_spans import BatchSpans, ItemWork
from gllm.core.trace import Span

from .cost_model import CostModel

TOKEN_ID = 0


@dataclass(frozen=True, slots=True)
class Passage:
    """When a micro-batch frees stage 0 (and the next may enter), and when it leaves the last stage."""

    stage0_free: float
    done: float


def sampled_result(batch: MicroBatch) -> BatchResult:
    """What the last stage sends when a micro-batch is done; every sampled token is TOKEN_ID."""
    tokens = tuple(
        SampledToken(target.seq_id, target.request_id, target.choice, target.position, TOKEN_ID)
        for sample in batch.samples
        for target in sample.targets
    )
    return BatchResult(batch.batch_id, tokens)


class SimulatedPipeline:
    """The executor of a simulated machine.

    Stages take micro-batches in order, so the whole passage of a micro-batch is known when it enters.
    spans: where to add trace spans, or None.
    """

    def __init__(self, cost: CostModel, spans: list[Span] | None = None) -> None:
        self.cost = cost
        self.num_stages = cost.machine.pp
        self.stage_free = [0.0] * self.num_stages
        self.stage_busy = [0.0] * self.num_stages
        self.spans = spans
        self._batches = BatchSpans()

    def run(self, batch: MicroBatch, start: float) -> Passage:
        """A micro-batch enters stage 0 at `start`, which must be free then."""
        if self.spans is not None:
            self._batches.follow(batch)
        chunks = [(chunk.start, chunk.length) for chunk in batch.chunks]
        transfer = self.cost.transfer_time(batch.num_tokens)
        arrival = start
        for stage, duration in enumerate(self.cost.stage_times(chunks, len(batch.samples))):
            begin = max(arrival, self.stage_free[stage])
            self.stage_free[stage] = begin + duration
            self.stage_busy[stage] += duration
            arrival = begin + duration + transfer
            if self.spans is not None:
                self.spans.append(self._batches.span(f"stage {stage}", batch, begin, duration))
        return Passage(self.stage_free[0], self.stage_free[-1])

    def encode(self, batch: EncodeBatch, items: Sequence[int], start: float) -> float:
        """Stage 0 encodes items of the given tokens itself; returns when it is free again."""
        duration = self.cost.encode_time(items)
        self.stage_free[0] = start + duration
        self.stage_busy[0] += duration
        if self.spans is not None:
            work = ItemWork(batch.request_id, batch.items, items)
            self.spans.append(work.span("encode", "stage 0", start, duration))
        return self.stage_free[0]
