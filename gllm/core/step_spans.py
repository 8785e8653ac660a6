"""Trace spans of steps: real ranks and the simulator say what they ran in the same words."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from gllm.core.batch import Chunk, NewSequence, Sample
from gllm.core.trace import Span


class Batch(Protocol):
    """What a span tells of a micro-batch."""

    @property
    def batch_id(self) -> int: ...
    @property
    def chunks(self) -> tuple[Chunk, ...]: ...
    @property
    def num_decodes(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def samples(self) -> tuple[Sample, ...]: ...
    @property
    def new(self) -> tuple[NewSequence, ...]: ...
    @property
    def finished(self) -> tuple[int, ...]: ...


class BatchSpans:
    """Spans of micro-batches. Follows which sequence belongs to which request."""

    def __init__(self) -> None:
        self._requests: dict[int, str] = {}

    def follow(self, batch: Batch) -> None:
        """Learn its sequences; once for each micro-batch, in order, before its spans."""
        for seq_id in batch.finished:
            self._requests.pop(seq_id, None)
        self._requests.update((seq.seq_id, seq.request_id) for seq in batch.new)

    def span(self, rank: str, batch: Batch, start: float, duration: float) -> Span:
        """A micro-batch on one stage."""
        names = [self._requests[chunk.seq_id] for chunk in batch.chunks]
        kind = "decode" if batch.num_decodes == len(batch.chunks) else "prefill"
        facts = {
            "batch": batch.batch_id,
            "tokens": batch.num_tokens,
            "decodes": batch.num_decodes,
            "samples": len(batch.samples),
            "chunks": [
                {"request": name, "start": chunk.start, "end": chunk.end}
                for name, chunk in zip(names, batch.chunks)
            ],
        }
        request = ",".join(dict.fromkeys(names))
        return Span(rank, f"{kind} {batch.num_tokens}", kind, start, duration, request, facts)


@dataclass(frozen=True, slots=True)
class ItemWork:
    """Items of one request that were encoded or sent together. counts: embedding tokens of each."""

    request_id: str
    items: Sequence[int]
    counts: Sequence[int]

    def span(self, kind: Literal["encode", "transfer"], rank: str, start: float, duration: float) -> Span:
        """rank: which encoded them, or from which they come."""
        tokens = sum(self.counts)
        facts = {"items": list(self.items), "counts": list(self.counts), "tokens": tokens}
        return Span(rank, f"{kind} {tokens}", kind, start, duration, self.request_id, facts)
