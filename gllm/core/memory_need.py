"""How much each rank of a deployment keeps, from the model's numbers alone."""

from __future__ import annotations

from dataclasses import dataclass

from gllm.core.model_shape import TextShape, VisionShape

__all__ = ["RankShare", "kv_numbers_per_token", "text_params", "vision_params"]


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

    def kv_heads(self, text: TextShape) -> int:
        """Key/value heads it keeps: with more ranks than heads, several ranks keep the same one."""
        return max(text.num_kv_heads // self.tp, 1)


def text_params(text: TextShape, share: RankShare) -> int:
    """Parameters of a rank of the language model. Of a vocabulary of 10, each of 4 ranks has 3 rows."""
    hidden, dim = text.hidden_size, text.head_dim
    query, kv = share.part(text.num_heads) * dim, 2 * share.kv_heads(text) * dim
    attention = hidden * (2 * query + kv) + (query + kv if text.attention_bias else 0)
    layer = attention + 3 * hidden * share.part(text.intermediate_size) + 2 * hidden
    table = -(-text.vocab_size // share.tp) * hidden
    has_own_head = share.is_last and not (share.is_first and text.tie_word_embeddings)
    return (
        share.num_layers * layer
        + (table if share.is_first else 0)
        + (table if has_own_head else 0)
        + (hidden if share.is_last else 0)
    )


def vision_params(vision: VisionShape, tp: int = 1, tp_rank: int = 0) -> int:
    """Parameters of a rank of the vision tower; biases of what is summed over ranks are on rank 0 only."""
    share = RankShare(vision.depth, tp=tp, tp_rank=tp_rank)
    hidden, wide = vision.hidden_size, vision.hidden_size * vision.merge_unit
    heads = share.part(vision.num_heads) * vision.head_dim
    mlp, merged = share.part(vision.intermediate_size), share.part(wide)
    layer = 4 * heads * hidden + 3 * heads + 3 * mlp * hidden + 2 * mlp + 2 * hidden
    merger = hidden + merged * wide + merged + merged * vision.out_hidden_size
    summed = vision.depth * 2 * hidden + vision.out_hidden_size if tp_rank == 0 else 0
    return hidden * vision.patch_dim + vision.depth * layer + merger + summed


def kv_numbers_per_token(text: TextShape, share: RankShare) -> int:
    """Keys and values that a rank keeps of one token: 10 layers, 2 heads of 128: 5120."""
    return 2 * share.num_layers * share.kv_heads(text) * text.head_dim
