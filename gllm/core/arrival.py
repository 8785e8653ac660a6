"""Sequences in order of arrival: the structure a scheduling step reads, whatever else waits."""

from heapq import heappop, heappush

from gllm.core.sequence import Sequence


class ArrivalQueue:
    """A set of sequences whose oldest member is found at once.

    push, pop and discard cost O(log n) amortised: discarded entries are dropped when they reach the top.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._members: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, seq: Sequence) -> bool:
        return seq.seq_id in self._members

    def push(self, seq: Sequence) -> None:
        if seq.seq_id not in self._members:
            self._members[seq.seq_id] = seq
            heappush(self._heap, (seq.arrival, seq.seq_id))

    def discard(self, seq: Sequence) -> None:
        self._members.pop(seq.seq_id, None)

    def peek(self) -> Sequence | None:
        """The oldest member, or None."""
        while self._heap:
            seq = self._members.get(self._heap[0][1])
            if seq is not None:
                return seq
            heappop(self._heap)
        return None

    def pop(self) -> Sequence | None:
        """Take the oldest member, or None."""
        seq = self.peek()
        if seq is not None:
            heappop(self._heap)
            del self._members[seq.seq_id]
        return seq
