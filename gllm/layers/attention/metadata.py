"""What attention has to know about a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(slots=True)
class AttentionMetadata:
    """Chunks of one micro-batch, in the order of their rows; built once, used by every layer.

    A chunk of query_lens[i] tokens is the end of kv_lens[i] tokens whose keys and values are in the cache
    once this micro-batch's are written. The first num_decodes chunks have one token each. `plan` is what the
    attention backend derives from the rest when the first layer runs.
    """

    query_lens: list[int]
    kv_lens: list[int]  # this chunk's tokens included
    cu_query: Tensor  # int32 [n + 1]: chunk i has rows cu_query[i] to cu_query[i + 1]
    seq_kv: Tensor  # int32 [n]: kv_lens
    block_tables: Tensor  # int32 [n, max_blocks], padded with any valid block
    slot_mapping: Tensor  # int64 [T]: block * block_size + offset of each new token
    block_size: int
    num_decodes: int
    max_query_len: int
    max_kv_len: int
    plan: Any = None

    @property
    def num_chunks(self) -> int:
        """How many chunks there are."""
        return len(self.query_lens)

    def last_tokens(self, chunks: Sequence[int]) -> AttentionMetadata:
        """The same cache, asked only by the last token of each of these chunks: all of them decodes."""
        device = self.seq_kv.device
        index = torch.tensor(chunks, dtype=torch.int64).to(device, non_blocking=True)
        kv_lens = [self.kv_lens[chunk] for chunk in chunks]
        return AttentionMetadata(
            query_lens=[1] * len(chunks),
            kv_lens=kv_lens,
            cu_query=torch.arange(len(chunks) + 1, dtype=torch.int32, device=device),
            seq_kv=self.seq_kv[index],
            block_tables=self.block_tables[index],
            slot_mapping=self.slot_mapping[:0],
            block_size=self.block_size,
            num_decodes=len(chunks),
            max_query_len=min(len(chunks), 1),
            max_kv_len=max(kv_lens, default=0),
        )
