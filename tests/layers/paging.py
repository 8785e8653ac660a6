"""Sequences in a paged cache, with blocks in any order, and the metadata of chunks of them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import accumulate

import torch

from gllm.layers.attention import AttentionMetadata


@dataclass
class PagedSequences:
    """Block tables that grow; `shuffled` takes free blocks in random order, else they form runs."""

    num_blocks: int
    block_size: int
    shuffled: bool = True
    seed: int = 0
    tables: dict[int, list[int]] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free = list(range(self.num_blocks))
        if self.shuffled:
            random.Random(self.seed).shuffle(self.free)

    def reserve(self, seq: int, num_tokens: int) -> None:
        """Blocks for so many tokens in all."""
        table = self.tables.setdefault(seq, [])
        while len(table) * self.block_size < num_tokens:
            table.append(self.free.pop(0))

    def step(self, chunks: list[tuple[int, int]]) -> AttentionMetadata:
        """The next tokens (sequence, how many); chunks of one token first, as in a micro-batch."""
        query_lens, kv_lens, slots = [], [], []
        for seq, count in chunks:
            start = self.lengths.get(seq, 0)
            self.reserve(seq, start + count)
            table = self.tables[seq]
            slots += [
                table[at // self.block_size] * self.block_size + at % self.block_size
                for at in range(start, start + count)
            ]
            self.lengths[seq] = start + count
            query_lens.append(count)
            kv_lens.append(start + count)
        width = max(len(self.tables[seq]) for seq, _ in chunks)
        tables = [self.tables[seq] + [0] * (width - len(self.tables[seq])) for seq, _ in chunks]
        decodes = next((i for i, count in enumerate(query_lens) if count != 1), len(query_lens))
        return AttentionMetadata(
            query_lens=query_lens,
            kv_lens=kv_lens,
            cu_query=torch.tensor([0, *accumulate(query_lens)], dtype=torch.int32),
            seq_kv=torch.tensor(kv_lens, dtype=torch.int32),
            block_tables=torch.tensor(tables, dtype=torch.int32),
            slot_mapping=torch.tensor(slots, dtype=torch.int64),
            block_size=self.block_size,
            num_decodes=decodes,
            max_query_len=max(query_lens),
            max_kv_len=max(kv_lens),
        )
