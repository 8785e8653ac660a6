"""How the sdpa backend cuts a micro-batch into calls: decided once, executed by every layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gllm.layers.attention.metadata import AttentionMetadata
from gllm.layers.kv_cache import LayerKV

FOLD_ROWS = 16
"""Up to so many query tokens, the heads of a group become rows of one matrix, and its keys are read once."""

TILE_ROWS = 256
"""Rows of a long chunk attend tile by tile: masks stay small, and keys after the tile are not read."""


@dataclass(frozen=True, slots=True)
class KVSource:
    """Where the keys of some sequences are: one run of slots, a view; or blocks, which are gathered.

    `num_sequences` sequences, each padded to `length` tokens. Padding is set to zero: a mask alone does not
    hide what a finished sequence may have left there, for 0 times infinity is not a number.
    """

    num_sequences: int
    length: int
    run_start: int
    blocks: Tensor | None  # int32 [num_sequences * blocks per sequence]
    padding: Tensor | None = None  # int64, which of the gathered slots belong to no token of their sequence

    def read(self, kv: LayerKV) -> tuple[Tensor, Tensor]:
        """Keys and values [num_sequences, KV, length, D]."""
        return self._read(kv.k), self._read(kv.v)

    def _read(self, cache: Tensor) -> Tensor:
        if self.blocks is None:
            run = cache.flatten(0, 1)[self.run_start : self.run_start + self.length]
            return run.unsqueeze(0).transpose(1, 2)
        gathered = cache.index_select(0, self.blocks)  # [N * blocks, block_size, KV, D]
        if self.padding is not None:
            gathered.flatten(0, 1).index_fill_(0, self.padding, 0.0)
        return gathered.view(self.num_sequences, -1, *cache.shape[2:])[:, : self.length].transpose(1, 2)


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Decodes of similar length, one batched call; `mask` [N, 1, 1, length] hides the padding."""

    rows: Tensor | slice
    source: KVSource
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows of one chunk that see the first `kv_end` tokens; without a mask, plain causal attention."""

    rows: slice
    kv_end: int
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """A chunk of several tokens; folded where it is short."""

    source: KVSource
    tiles: tuple[Tile, ...]
    folded: bool


@dataclass(frozen=True, slots=True)
class SdpaPlan:
    """All calls of one layer."""

    decodes: tuple[DecodeGroup, ...]
    prefills: tuple[PrefillChunk, ...]


class SdpaPlanner:
    """Builds the plan of a micro-batch; `group` is the number of query heads to a key/value head."""

    def __init__(self, meta: AttentionMetadata, dtype: torch.dtype, group: int) -> None:
        self._meta = meta
        self._dtype = dtype
        self._group = group
        self._device = meta.block_tables.device
        # Only a CPU can look for runs without waiting for the device.
        self._tables = meta.block_tables.tolist() if self._device.type == "cpu" else None

    def plan(self) -> SdpaPlan:
        """Decodes in groups, every other chunk by itself."""
        meta = self._meta
        prefills, row = [], meta.num_decodes
        for chunk in range(meta.num_decodes, meta.num_chunks):
            prefills.append(self._prefill(chunk, row))
            row += meta.query_lens[chunk]
        return SdpaPlan(tuple(self._decode_groups()), tuple(prefills))

    def _decode_groups(self) -> list[DecodeGroup]:
        kv_lens = self._meta.kv_lens
        groups: list[list[int]] = []
        for chunk in sorted(range(self._meta.num_decodes), key=lambda chunk: -kv_lens[chunk]):
            if not groups or not _worth_padding(kv_lens[chunk], kv_lens[groups[-1][0]]):
                groups.append([])
            groups[-1].append(chunk)
        return [self._decode_group(sorted(group)) for group in groups]

    def _decode_group(self, chunks: list[int]) -> DecodeGroup:
        meta = self._meta
        longest = max(meta.kv_lens[chunk] for chunk in chunks)
        shortest = min(meta.kv_lens[chunk] for chunk in chunks)
        index = torch.tensor(chunks, dtype=torch.int64, device=self._device)
        everyone = len(chunks) == meta.num_decodes
        mask = None
        if shortest < longest:
            hidden = torch.arange(longest, device=self._device) >= meta.seq_kv[index].unsqueeze(1)
            mask = self._additive(hidden)[:, None, None]
        rows = slice(0, meta.num_decodes) if everyone else index
        return DecodeGroup(rows, self._source(chunks, index, longest), mask)

    def _prefill(self, chunk: int, row: int) -> PrefillChunk:
        length, kv_len = self._meta.query_lens[chunk], self._meta.kv_lens[chunk]
        index = torch.tensor([chunk], dtype=torch.int64, device=self._device)
        source = self._source([chunk], index, kv_len)
        if length == kv_len:
            return PrefillChunk(source, (Tile(slice(row, row + length), kv_len, None),), folded=False)
        folded = length <= FOLD_ROWS
        tiles = []
        for start in range(0, length, TILE_ROWS):
            stop = min(start + TILE_ROWS, length)
            kv_end = kv_len - length + stop
            mask = self._causal(stop - start, kv_end)
            if folded:
                mask = mask.repeat_interleave(self._group, 0)
            tiles.append(Tile(slice(row + start, row + stop), kv_end, mask))
        return PrefillChunk(source, tuple(tiles), folded)

    def _source(self, chunks: list[int], index: Tensor, length: int) -> KVSource:
        size = self._meta.block_size
        num_blocks = -(-length // size)
        if self._tables is not None and len(chunks) == 1:
            table = self._tables[chunks[0]][:num_blocks]
            if table == list(range(table[0], table[0] + num_blocks)):
                return KVSource(1, length, table[0] * size, None)
        blocks = self._meta.block_tables[index, :num_blocks].flatten()
        return KVSource(len(chunks), length, 0, blocks, self._padding(chunks, length, num_blocks * size))

    def _padding(self, chunks: list[int], length: int, stride: int) -> Tensor | None:
        """Slots behind the end of each sequence, counted over all of them, `stride` slots each."""
        tails = [
            torch.arange(row * stride + self._meta.kv_lens[chunk], row * stride + length)
            for row, chunk in enumerate(chunks)
            if self._meta.kv_lens[chunk] < length
        ]
        return torch.cat(tails).to(self._device) if tails else None

    def _causal(self, rows: int, kv_end: int) -> Tensor:
        """Additive mask [rows, kv_end] of the last `rows` of kv_end tokens."""
        hidden = torch.ones(rows, kv_end, dtype=torch.bool, device=self._device).triu_(kv_end - rows + 1)
        return self._additive(hidden)

    def _additive(self, hidden: Tensor) -> Tensor:
        zeros = torch.zeros(hidden.shape, dtype=self._dtype, device=self._device)
        return zeros.masked_fill_(hidden, float("-inf"))


def _worth_padding(length: int, longest: int) -> bool:
    """Whether padding a decode costs less than a call of its own, which costs as much as about 64 tokens."""
    return longest - length <= 64 + longest // 8
