"""Who goes into the next micro-batch: decodes first, then prefills in order of arrival."""

from collections import OrderedDict
from typing import Protocol

from gllm.core.arrival import ArrivalQueue
from gllm.core.batch import Chunk
from gllm.core.budget import Budget, Limits, Load
from gllm.core.sequence import Sequence


class Resources(Protocol):
    """What the scheduler asks of the engine while it fills a micro-batch."""

    def schedulable_tokens(self, seq: Sequence) -> int:
        """Tokens after num_dispatched that may be dispatched now."""

    def reserve(self, seq: Sequence) -> bool:
        """Give a sequence the blocks of its whole prompt; may advance its counters (prefix cache)."""

    def grow(self, seq: Sequence) -> bool:
        """Make room for one more token; may preempt younger sequences."""

    def is_parked(self, seq: Sequence) -> bool:
        """True for a sequence whose first item nobody encodes yet: it reserves above a watermark only."""

    def above_watermark(self) -> bool:
        """True while enough blocks are free for parked sequences."""

    def load(self, waiting: int) -> Load:
        """The numbers a budget depends on."""


class Scheduler:
    """Fills micro-batches (paper Algorithm 2; with whole-request readiness, Sarathi's chunked prefill).

    Sequences with schedulable tokens stand in queues by arrival, fed by events through `update`; a step
    costs O(scheduled · log n), whatever waits. Sequences that hold blocks are never behind one that
    can't get any.
    """

    def __init__(self, budget: Budget, resources: Resources) -> None:
        self.budget = budget
        self.resources = resources
        self.decodes: OrderedDict[int, Sequence] = OrderedDict()
        self.holding = ArrivalQueue()
        self.fresh = ArrivalQueue()
        self.parked = ArrivalQueue()
        self.waiting_tokens = 0
        self.refused: Sequence | None = None
        self._counted: dict[int, int] = {}

    def update(self, seq: Sequence) -> None:
        """A sequence changed: put it where it belongs now."""
        self.remove(seq)
        tokens = 0 if seq.finished else self.resources.schedulable_tokens(seq)
        if tokens <= 0:
            return
        if seq.is_decode and seq.holds_blocks:
            self.decodes[seq.seq_id] = seq
            return
        self.waiting_tokens += tokens
        self._counted[seq.seq_id] = tokens
        self._queue_of(seq).push(seq)

    def remove(self, seq: Sequence) -> None:
        """Take a sequence out of all queues."""
        self.decodes.pop(seq.seq_id, None)
        self.waiting_tokens -= self._counted.pop(seq.seq_id, 0)
        self.holding.discard(seq)
        self.fresh.discard(seq)
        self.parked.discard(seq)

    def schedule(self) -> list[Chunk]:
        """Spend one token budget; sequences are dispatched as they are chosen."""
        self.refused = None
        limits = self.budget.limits(self.resources.load(self.waiting_tokens))
        chunks = self._take_decodes(limits)
        room = min(limits.prefill, limits.total - len(chunks))
        chunks += self._take_prefills(room, limits.fresh)
        return chunks

    def _take_decodes(self, limits: Limits) -> list[Chunk]:
        """The longest waiting first; one that can't grow lets the next try, which may preempt it."""
        chunks: list[Chunk] = []
        for seq in list(self.decodes.values()):
            if len(chunks) >= limits.decode:
                break
            if seq.seq_id in self.decodes and self.resources.grow(seq):
                del self.decodes[seq.seq_id]
                chunks.append(_dispatch(seq, 1))
        return chunks

    def _take_prefills(self, room: int, fresh_room: int) -> list[Chunk]:
        chunks: list[Chunk] = []
        taken: list[Sequence] = []
        while room > 0 and (seq := self._next_prefill(fresh_room > 0 and self.refused is None, taken)):
            is_fresh = not seq.holds_blocks
            if is_fresh and not self.resources.reserve(seq):
                self.refused = seq
                continue
            tokens = self.resources.schedulable_tokens(seq)
            self.remove(seq)
            length = min(tokens, room, fresh_room) if is_fresh else min(tokens, room)
            if length > 0:
                chunks.append(_dispatch(seq, length))
                taken.append(seq)
                room -= length
                fresh_room -= length if is_fresh else 0
        for seq in taken:
            self.update(seq)
        return chunks

    def _next_prefill(self, with_fresh: bool, taken: list[Sequence]) -> Sequence | None:
        """The oldest sequence that may be next. taken: those already in this micro-batch."""
        candidates = [self.holding.peek()]
        if with_fresh:
            candidates.append(self.fresh.peek())
            if self.resources.above_watermark():
                candidates.append(self.parked.peek())
        return min((s for s in candidates if s is not None), key=by_arrival, default=None)

    def _queue_of(self, seq: Sequence) -> ArrivalQueue:
        if seq.holds_blocks:
            return self.holding
        return self.parked if self.resources.is_parked(seq) else self.fresh


def by_arrival(seq: Sequence) -> tuple[int, int]:
    """The order in which sequences came."""
    return seq.arrival, seq.seq_id


def _dispatch(seq: Sequence, length: int) -> Chunk:
    chunk = Chunk(seq.seq_id, seq.num_dispatched, length)
    seq.num_dispatched += length
    seq.in_flight += 1
    return chunk
