"""What one rank knows of the sequences it serves, kept up to date by the deltas of each micro-batch."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from gllm.core.batch import Chunk, GrownSequence, NewSequence
from gllm.layers.mrope import MropePositions, mrope_positions

IntArray = NDArray[np.int64]


class SequenceTable:
    """Block tables and M-RoPE positions by row; a sequence keeps its row until it is forgotten.

    block_tables: int32 [rows, blocks], zero where nothing is assigned. Both dimensions double when they
    are full, so that applying a delta costs O(what is new).
    """

    def __init__(self, spatial_merge_size: int = 2, tokens_per_second: float = 1.0) -> None:
        self._merge = spatial_merge_size
        self._tokens_per_second = tokens_per_second
        self._rows: dict[int, int] = {}
        self._free: list[int] = list(range(15, -1, -1))
        self._num_blocks: list[int] = [0] * 16
        self._mrope: dict[int, tuple[int, MropePositions]] = {}
        self.block_tables = np.zeros((16, 64), dtype=np.int32)
        self._delta = np.zeros(16, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, seq_id: int) -> bool:
        return seq_id in self._rows

    def apply(
        self, finished: Iterable[int], new: Iterable[NewSequence], grown: Iterable[GrownSequence]
    ) -> None:
        """Take the deltas of a micro-batch, in this order; KeyError where a grown sequence is unknown."""
        for seq_id in finished:
            self._forget(seq_id)
        for seq in new:
            self._add(seq)
        for growth in grown:
            self._append(self._rows[growth.seq_id], growth.blocks)

    def rows_of(self, chunks: Sequence[Chunk]) -> IntArray:
        """Row of each chunk's sequence; KeyError where one is unknown."""
        rows = self._rows
        return np.array([rows[chunk.seq_id] for chunk in chunks], dtype=np.int64)

    def deltas(self, rows: IntArray) -> IntArray:
        """What is added to the index of a token behind the prompt's last item to give its position."""
        return self._delta[rows]

    def prompt_positions(self, chunk: Chunk) -> NDArray[np.int64] | None:
        """Positions [3, length] of a chunk that touches the prompt of a sequence with items; else None."""
        entry = self._mrope.get(chunk.seq_id)
        if entry is None or chunk.start >= entry[0]:
            return None
        return entry[1].positions_of(chunk.start, chunk.end).numpy()

    def _add(self, seq: NewSequence) -> None:
        self._forget(seq.seq_id)
        if not self._free:
            self._double_rows()
        row = self._rows[seq.seq_id] = self._free.pop()
        self._num_blocks[row] = 0
        self._append(row, seq.block_table)
        self._delta[row] = 0
        if seq.items:
            positions = mrope_positions(seq.prompt_len, seq.items, self._merge, self._tokens_per_second)
            self._mrope[seq.seq_id] = (seq.prompt_len, positions)
            self._delta[row] = positions.delta

    def _append(self, row: int, blocks: Sequence[int]) -> None:
        start = self._num_blocks[row]
        end = start + len(blocks)
        while end > self.block_tables.shape[1]:
            self.block_tables = np.concatenate((self.block_tables, np.zeros_like(self.block_tables)), axis=1)
        self.block_tables[row, start:end] = blocks
        self._num_blocks[row] = end

    def _forget(self, seq_id: int) -> None:
        row = self._rows.pop(seq_id, None)
        if row is not None:
            self._free.append(row)
            self._mrope.pop(seq_id, None)

    def _double_rows(self) -> None:
        old = len(self._num_blocks)
        self.block_tables = np.concatenate((self.block_tables, np.zeros_like(self.block_tables)), axis=0)
        self._delta = np.concatenate((self._delta, np.zeros_like(self._delta)))
        self._num_blocks += [0] * old
        self._free.extend(range(2 * old - 1, old - 1, -1))
