"""Which part of a model a rank keeps."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RankShare"]


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
