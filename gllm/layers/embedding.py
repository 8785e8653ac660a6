"""Token embedding and output head, divided over tensor-parallel ranks by vocabulary."""

from __future__ import annotations

from collections.abc import Iterator

import torch.nn.functional as F
from torch import Tensor, nn

from gllm.layers.gemm import linear
from gllm.layers.placement import Placement
from gllm.layers.weights import CheckpointWeight, rows


class VocabParallelEmbedding(nn.Module):
    """A table [vocab, H], read by token (embedding) or multiplied (head; a tied head is the same object).

    Rows of the vocabulary on each rank; every rank has ceil(vocab / tp), the last ones are padding.
    """

    def __init__(self, vocab_size: int, hidden_size: int, place: Placement) -> None:
        super().__init__()
        self.tp = place.tp
        self.vocab_size = vocab_size
        padded = -(-vocab_size // self.tp.size)
        start = min(self.tp.rank * padded, vocab_size)
        self.part = range(start, min(start + padded, vocab_size))
        self.weight = place.parameter(padded, hidden_size)
        if len(self.part) < padded:
            self.weight.data[len(self.part) :].zero_()

    def forward(self, ids: Tensor) -> Tensor:
        """Token ids [T] -> embeddings [T, H] on every rank. The ids must be inside the vocabulary."""
        if self.tp.size == 1:
            return F.embedding(ids, self.weight)
        local = ids - self.part.start
        elsewhere = (local < 0) | (local >= len(self.part))
        mine = F.embedding(local.masked_fill(elsewhere, 0), self.weight)
        return self.tp.all_reduce(mine.masked_fill_(elsewhere.unsqueeze(-1), 0))

    def logits(self, hidden: Tensor) -> Tensor:
        """As an output head: hidden [n, H] times the table -> [n, vocab] on every rank."""
        local = linear(hidden, self.weight, None)
        return self.tp.all_gather_last_dim(local)[:, : self.vocab_size]

    def weights(self, name: str) -> Iterator[CheckpointWeight]:
        """`name` [vocab, H]: the full name, since a tied head reads the embedding's tensor."""
        yield rows(name, self.weight, self.vocab_size, self.part)
