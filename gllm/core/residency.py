"""Which sequences hold KV blocks: reservation, growth, forks, and preemption by recompute."""

from collections.abc import Callable, Mapping

from gllm.core.batch_builder import BatchBuilder
from gllm.core.budget import Load
from gllm.core.core_config import CoreConfig
from gllm.core.item_flow import ItemFlow
from gllm.core.kv import KvCache
from gllm.core.scheduler import by_arrival
from gllm.core.sequence import Sequence
from gllm.core.served import Served


class Residency:
    """What the scheduler asks of the engine, and the state behind the answers.

    on_restart: called when a sequence lost its blocks and starts again.
    """

    def __init__(
        self,
        config: CoreConfig,
        kv: KvCache,
        items: ItemFlow,
        builder: BatchBuilder,
        requests: Mapping[str, Served],
        on_restart: Callable[[Sequence], None],
    ) -> None:
        self.holders: dict[int, Sequence] = {}
        self.decoding: set[int] = set()
        self.num_preemptions = 0
        self._config = config
        self._kv = kv
        self._items = items
        self._builder = builder
        self._requests = requests
        self._on_restart = on_restart

    # -- asked by the scheduler ------------------------------------------------------------------------

    def schedulable_tokens(self, seq: Sequence) -> int:
        """max(0, min(ready_until, num_tokens) - num_dispatched) (paper §3.3)."""
        if seq.finished:
            return 0
        ready = self._items.tracker.ready_until(seq.request.request_id, seq.num_dispatched)
        return max(0, min(ready, seq.num_tokens) - seq.num_dispatched)

    def reserve(self, seq: Sequence) -> bool:
        """Whole-prompt reservation; keeps a few blocks free for the growth of those that run."""
        served = self._served(seq)
        headroom = max(1, self._kv.pool.num_blocks // 100) if self.holders else 0
        if not self._kv.reserve(seq, served.digests, headroom):
            return False
        self.holders[seq.seq_id] = seq
        self._items.require(served, seq, seq.num_dispatched)
        self._items.release_passed(served)
        return True

    def grow(self, seq: Sequence) -> bool:
        """Room for one more token; younger sequences that rest are preempted for it."""
        while not self._kv.grow(seq):
            if not self.preempt_after(seq):
                return False
        return True

    def is_parked(self, seq: Sequence) -> bool:
        """True while items of the sequence wait and none of them is with an encoder."""
        served = self._served(seq)
        if served.encoding or not served.request.items:
            return False
        return self._items.tracker.is_waiting(served.request_id, seq.num_dispatched)

    def above_watermark(self) -> bool:
        """True while enough blocks are free for parked sequences."""
        pool = self._kv.pool
        return pool.num_free > self._config.watermark * pool.num_blocks

    def load(self, waiting: int) -> Load:
        """The numbers a budget depends on."""
        pool = self._kv.pool
        return Load(waiting, len(self.decoding), pool.num_free, pool.num_blocks)

    # -- told by the engine ------------------------------------------------------------------------------

    def continues(self, seq: Sequence) -> None:
        """A sequence got a token and goes on: it decodes, forks off its parent, or starts again."""
        if seq.holds_blocks or self._fork(seq):
            self.decoding.add(seq.seq_id)
        else:
            self.restart(seq)

    def preempt_after(self, seq: Sequence) -> bool:
        """Take the blocks of the youngest resting sequence that came after `seq`; False: there is none."""
        resting = [s for s in self.holders.values() if s.in_flight == 0 and by_arrival(s) > by_arrival(seq)]
        if not resting:
            return False
        victim = max(resting, key=by_arrival)
        self.num_preemptions += 1
        self.release(victim)
        self.restart(victim)
        return True

    def restart(self, seq: Sequence) -> None:
        """A sequence without blocks is computed again from its first token (recompute)."""
        seq.num_dispatched = seq.num_computed = seq.num_cached = 0
        seq.attempt += 1
        self.decoding.discard(seq.seq_id)
        self._builder.forget(seq)
        self._items.restart(self._served(seq), seq)
        self._on_restart(seq)

    def release(self, seq: Sequence) -> None:
        """Return a sequence's blocks, if it has any."""
        if self.holders.pop(seq.seq_id, None) is not None:
            self._kv.release(seq.block_table)
            seq.block_table = []

    def _fork(self, child: Sequence) -> bool:
        parent = self._served(child).sequences[0]
        copies = self._kv.fork(parent, child) if parent.holds_blocks else None
        if copies is None:
            return False
        self._builder.copy(copies)
        self.holders[child.seq_id] = child
        return True

    def _served(self, seq: Sequence) -> Served:
        return self._requests[seq.request.request_id]
