"""Which requests may share a micro-batch: Algorithm 2, and its ablations without inter-request pipeline.

Algorithm 2 itself is `gllm.core.scheduler.Scheduler`: it budgets schedulable tokens, whatever makes
them schedulable. With the prefix tracker it is RServe's scheduler, with whole-request readiness it is
the one of gLLM and gLLM-epd. Here stand the two readings of RServe-intra (paper §4.3.2).
"""

from gllm.core.engine_core import MakeScheduler
from gllm.core.scheduler import Scheduler, by_arrival
from gllm.core.sequence import Sequence


class PerMicroBatchScheduler(Scheduler):
    """RServe-intra, reading `per-micro-batch`: the prefill of a micro-batch comes from one request.

    Micro-batches of different requests may be in flight together. Decodes are batched as usual.
    """

    def _next_prefill(self, with_fresh: bool, taken: list[Sequence]) -> Sequence | None:
        return None if taken else super()._next_prefill(with_fresh, taken)


class SerialScheduler(Scheduler):
    """RServe-intra, reading `serial`: one request's prefill is in the pipeline at a time.

    The next request starts when the first token of the one before has been sampled. Only an older one,
    whose embeddings came late, may go first while the current one rests and waits for its own: else the
    two could wait for each other's memory.
    """

    current: Sequence | None = None

    def _next_prefill(self, with_fresh: bool, taken: list[Sequence]) -> Sequence | None:
        if taken:
            return None
        current, oldest = self.current, super()._next_prefill(with_fresh, taken)
        if current is not None and self._is_prefilling(current):
            if current in self.holding:
                return current
            if current.in_flight or oldest is None or by_arrival(oldest) > by_arrival(current):
                return None
        self.current = oldest
        return oldest

    @staticmethod
    def _is_prefilling(seq: Sequence) -> bool:
        return not seq.finished and seq.holds_blocks and not seq.is_decode


def scheduler_of(scheme: str, intra_reading: str) -> MakeScheduler:
    """The scheduling rule of a scheme."""
    if scheme != "rserve-intra":
        return Scheduler
    return SerialScheduler if intra_reading == "serial" else PerMicroBatchScheduler
