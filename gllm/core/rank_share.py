"""Which part of a model a rank keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["RankShare", "rank_shares"]


@dataclass(frozen=True, slots=True)
class RankShare:
    """A rank's part of the language model: 1/tp of its stage's layers, embedding (first) and head (last).

    tp_rank: 0 .. tp - 1. A tied head is the embedding itself where one stage has both.
    """

    num_layers: int
    is_first: bool = True
    is_last: bool = True
    tp: int = 1
    tp_rank: int = 0

    def part(self, total: int) -> int:
        """Its part of `total` rows. 3420 over 8 ranks: 427, 428, 427, 428, ..."""
        return total * (self.tp_rank + 1) // self.tp - total * self.tp_rank // self.tp


def rank_shares(layers_per_stage: Sequence[int], tp: int) -> list[RankShare]:
    """Of all ranks of a deployment, by rank: the tp ranks of stage 0, those of stage 1, and so on."""
    last = len(layers_per_stage) - 1
    return [
        RankShare(num_layers, stage == 0, stage == last, tp, tp_rank)
        for stage, num_layers in enumerate(layers_per_stage)
        for tp_rank in range(tp)
    ]
