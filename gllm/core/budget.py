"""How many tokens a micro-batch may hold: Sarathi's fixed budget, or gLLM's token throttling."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Load:
    """What a budget may depend on: counts at the moment a micro-batch is filled.

    waiting: schedulable prefill tokens of all sequences. decoding: sequences whose prompt is done.
    """

    waiting: int
    decoding: int
    free_blocks: int
    num_blocks: int


@dataclass(frozen=True, slots=True)
class Limits:
    """Most tokens of a micro-batch: decodes, all, prefill, and prefill of sequences without blocks."""

    decode: int
    total: int
    prefill: int
    fresh: int


class Budget(Protocol):
    """A scheduling method, as far as it decides on sizes."""

    def limits(self, load: Load) -> Limits: ...


@dataclass(frozen=True, slots=True)
class ChunkedPrefill:
    """Sarathi-Serve: a fixed number of tokens a micro-batch, decodes first (paper §4.1.3)."""

    maxp: int
    maxd: int

    def limits(self, load: Load) -> Limits:
        return Limits(decode=min(self.maxd, self.maxp), total=self.maxp, prefill=self.maxp, fresh=self.maxp)


@dataclass(slots=True)
class TokenThrottling:
    """gLLM: prefill tokens follow what waits and how full the KV cache is; decodes are spread evenly.

    With P tokens a block, F of N blocks free and K = kvthresh * N kept, B0 = P * max(F - K, 0); with
    more than one stage r = max((F/N - kvthresh) / (1 - kvthresh), 0) and
    B = min(max(waiting // iterp, minp), round(r * maxp), B0), else B = min(maxp, B0). B0 and r gate
    sequences that hold no blocks yet; the others are limited by maxp alone.

    N = 100, F = 50, P = 16, kvthresh = 0, maxp = 2048, minp = 32, iterp = 8, 4 stages, 8000 tokens
    waiting: B0 = 800, r = 0.5, B = min(1000, 1024, 800) = 800.
    """

    maxp: int
    maxd: int
    minp: int
    iterp: int
    kvthresh: float
    num_stages: int
    block_size: int
    turn: int = 0

    def limits(self, load: Load) -> Limits:
        share = load.free_blocks / load.num_blocks
        kept = self.kvthresh * load.num_blocks
        room = int(self.block_size * max(load.free_blocks - kept, 0))
        if self.num_stages == 1:
            return Limits(
                min(self.maxd, load.decoding), self.maxp + self.maxd, self.maxp, min(self.maxp, room)
            )
        r = max((share - self.kvthresh) / (1 - self.kvthresh), 0.0)
        wanted = min(max(load.waiting // self.iterp, self.minp), self.maxp)
        return Limits(
            decode=min(self.maxd, self._spread(load.decoding)),
            total=self.maxp + self.maxd,
            prefill=wanted,
            fresh=min(wanted, round(r * self.maxp), room),
        )

    def _spread(self, decoding: int) -> int:
        """This turn's share of the decodes: 10 over 4 stages give 2, 3, 2, 3, … and never 0 of some."""
        stages, turn = self.num_stages, self.turn
        self.turn = (turn + 1) % stages
        return max(decoding * (turn + 1) // stages - decoding * turn // stages, 1 if decoding else 0)
