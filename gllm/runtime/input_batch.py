"""The tensors of one micro-batch: positions and attention metadata.

Python runs once per chunk, never once per token: whatever has a value per token is computed in numpy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gllm.core.batch import Chunk
from gllm.layers.attention.metadata import AttentionMetadata
from gllm.runtime.sequence_table import SequenceTable
from gllm.runtime.staging import Staging

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class InputBatch:
    """What every stage needs to run the T tokens of a micro-batch.

    positions: int64 [3, T] (time, height, width; equal for text).
    """

    num_tokens: int
    positions: Tensor
    meta: AttentionMetadata


class InputBuilder:
    """Builds the inputs of micro-batches for one rank from its sequence table."""

    def __init__(self, table: SequenceTable, block_size: int, device: torch.device) -> None:
        self.table = table
        self._block_size = block_size
        self.device = device
        self.to_device = Staging(device)

    def build(self, chunks: Sequence[Chunk], num_decodes: int) -> InputBatch:
        """Inputs of these chunks, decodes first; KeyError where a sequence is unknown to this rank.

        Two chunks [5, 8) and [2, 3) with blocks of 4 in blocks (7, 9) and (3,): slots 37, 38, 39 and 14.
        """
        rows = self.table.rows_of(chunks)
        starts = np.array([chunk.start for chunk in chunks], dtype=np.int64)
        lengths = np.array([chunk.length for chunk in chunks], dtype=np.int64)
        bounds = np.zeros(len(chunks) + 1, dtype=np.int64)
        np.cumsum(lengths, out=bounds[1:])
        index = np.arange(bounds[-1]) + np.repeat(starts - bounds[:-1], lengths)  # [T], place in the sequence
        kv_lens = starts + lengths
        tables = self.table.block_tables[rows, : -(-int(kv_lens.max()) // self._block_size)]
        arrays = (
            self._positions(chunks, rows, bounds, index),
            self._slots(rows, lengths, index),
            bounds.astype(np.int32),
            kv_lens.astype(np.int32),
            tables,
        )
        positions, slots, cu_query, seq_kv, block_tables = self.to_device(arrays)
        meta = AttentionMetadata(
            query_lens=lengths.tolist(),
            kv_lens=kv_lens.tolist(),
            cu_query=cu_query,
            seq_kv=seq_kv,
            block_tables=block_tables,
            slot_mapping=slots,
            block_size=self._block_size,
            num_decodes=num_decodes,
            max_query_len=int(lengths.max()),
            max_kv_len=int(kv_lens.max()),
        )
        return InputBatch(int(bounds[-1]), positions, meta)

    def _positions(
        self, chunks: Sequence[Chunk], rows: IntArray, bounds: IntArray, index: IntArray
    ) -> IntArray:
        """[3, T]: the index itself, moved behind items, and from the grid where a chunk touches a prompt."""
        plain = index + np.repeat(self.table.deltas(rows), np.diff(bounds))
        positions = np.broadcast_to(plain, (3, len(plain))).copy()
        for chunk, start in zip(chunks, bounds):
            in_prompt = self.table.prompt_positions(chunk)
            if in_prompt is not None:
                positions[:, start : start + chunk.length] = in_prompt
        return positions

    def _slots(self, rows: IntArray, lengths: IntArray, index: IntArray) -> IntArray:
        """[T]: where each token's key and value are kept, block * block_size + place in the block."""
        blocks = self.table.block_tables[np.repeat(rows, lengths), index // self._block_size]
        return blocks.astype(np.int64) * self._block_size + index % self._block_size
