"""CUDA graphs of a stage's layers: decodes of some batch sizes, and small micro-batches with prefill chunks.

Launching the kernels of a layer one by one takes the host longer than a GPU needs for a few tokens. A graph
is launched at once; it always reads the same memory, into which the inputs of a micro-batch are copied.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from gllm.layers.attention.metadata import AttentionMetadata
from gllm.layers.kv_cache import LayerKV
from gllm.runtime.input_batch import InputBatch

DECODE_SIZES = (1, 2, 4, *range(8, 65, 8), *range(80, 257, 16))
CHUNK_ROWS = (16, 32, 64, 128, 256)
MAX_CHUNKS = 16  # of a micro-batch with prefill; with more, its kernels are launched one by one


class Layers(Protocol):
    """A stage's layers: hidden [T, H] -> [T, H], normalised on the last stage."""

    def forward(
        self, hidden: Tensor, positions: Tensor, kv: Sequence[LayerKV], meta: AttentionMetadata
    ) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Longest sequence in tokens, and the numbers of a hidden row, of one rank."""

    max_kv_len: int
    hidden_size: int
    dtype: torch.dtype
    device: torch.device


class StaticInputs:
    """The memory that all graphs read: R rows, C chunks of up to `max_kv_len` tokens.

    Padding rows have slot -1, so that they write nothing; padding chunks of a decode have one token, others
    none. What padding rows compute stays in their rows.
    """

    def __init__(self, limits: Limits, block_size: int) -> None:
        rows, chunks = max(DECODE_SIZES[-1], CHUNK_ROWS[-1]), max(DECODE_SIZES[-1], MAX_CHUNKS)
        device = limits.device
        self.limits = limits
        self.block_size = block_size
        self.hidden = torch.zeros(rows, limits.hidden_size, dtype=limits.dtype, device=device)
        self.positions = torch.zeros(3, rows, dtype=torch.int64, device=device)
        self.slots = torch.full((rows,), -1, dtype=torch.int64, device=device)
        self.cu_query = torch.zeros(chunks + 1, dtype=torch.int32, device=device)
        self.count = torch.arange(chunks + 1, dtype=torch.int32, device=device)
        self.seq_kv = torch.zeros(chunks, dtype=torch.int32, device=device)
        blocks = -(-limits.max_kv_len // block_size)
        self.tables = torch.zeros(chunks, blocks, dtype=torch.int32, device=device)

    def decodes(self, size: int) -> AttentionMetadata:
        """Metadata of `size` decodes of any length."""
        return self._metadata([1] * size, self.count[: size + 1], size, size)

    def chunks(self, rows: int) -> AttentionMetadata:
        """Metadata of up to MAX_CHUNKS chunks of `rows` rows in all; those that are not there are empty."""
        num = min(MAX_CHUNKS, rows)
        return self._metadata([rows] + [0] * (num - 1), self.cu_query[: num + 1], 0, rows)

    def load(self, hidden: Tensor, inputs: InputBatch, meta: AttentionMetadata) -> None:
        """Copy a micro-batch to where the graph of `meta` reads it."""
        rows, source = inputs.num_tokens, inputs.meta
        chunks, blocks = source.block_tables.shape
        self.hidden[:rows].copy_(hidden)
        self.positions[:, :rows].copy_(inputs.positions)
        self.slots[:rows].copy_(source.slot_mapping)
        self.slots[rows : len(meta.slot_mapping)].fill_(-1)
        self.seq_kv[:chunks].copy_(source.seq_kv)
        self.seq_kv[chunks : meta.num_chunks].fill_(1 if meta.num_decodes else 0)
        self.tables[:chunks, :blocks].copy_(source.block_tables)
        if not meta.num_decodes:
            self.cu_query[: chunks + 1].copy_(source.cu_query)
            self.cu_query[chunks + 1 : meta.num_chunks + 1].fill_(rows)

    def _metadata(
        self, query_lens: list[int], cu_query: Tensor, num_decodes: int, rows: int
    ) -> AttentionMetadata:
        num, longest = len(query_lens), self.limits.max_kv_len
        return AttentionMetadata(
            query_lens=query_lens,
            kv_lens=[longest] * num,
            cu_query=cu_query,
            seq_kv=self.seq_kv[:num],
            block_tables=self.tables[:num],
            slot_mapping=self.slots[:rows],
            block_size=self.block_size,
            num_decodes=num_decodes,
            max_query_len=query_lens[0],
            max_kv_len=longest,
        )


@dataclass(frozen=True, slots=True)
class Graph:
    """One captured forward, what it reads, and where its result is."""

    replayable: torch.cuda.CUDAGraph
    meta: AttentionMetadata
    output: Tensor


class StageGraphs:
    """Graphs of one rank; captured once, before the first request, by all TP ranks of a stage together."""

    def __init__(self, model: Layers, kv: Sequence[LayerKV], limits: Limits) -> None:
        """Takes seconds. The attention backend must be capturable."""
        self._model = model
        self._kv = kv
        self._inputs = StaticInputs(limits, kv[0].k.shape[1])
        self._pool = torch.cuda.graph_pool_handle()
        self._side = torch.cuda.Stream(limits.device)  # one for all: cuBLAS keeps a workspace per stream
        self._chunks = [self._capture(self._inputs.chunks(rows)) for rows in reversed(CHUNK_ROWS)][::-1]
        self._decodes = [self._capture(self._inputs.decodes(n)) for n in reversed(DECODE_SIZES)][::-1]

    def run(self, hidden: Tensor, inputs: InputBatch) -> Tensor | None:
        """hidden [T, H] -> the layers' result [T, H], good until the next run; None where no graph fits."""
        graph = self._fitting(inputs)
        if graph is None:
            return None
        self._inputs.load(hidden, inputs, graph.meta)
        graph.replayable.replay()
        return graph.output[: inputs.num_tokens]

    def _fitting(self, inputs: InputBatch) -> Graph | None:
        meta = inputs.meta
        if meta.num_decodes == meta.num_chunks:
            return _at_least(self._decodes, DECODE_SIZES, meta.num_chunks)
        if meta.num_chunks > MAX_CHUNKS:
            return None
        return _at_least(self._chunks, CHUNK_ROWS, inputs.num_tokens)

    def _capture(self, meta: AttentionMetadata) -> Graph:
        """Runs the layers first, for kernels are compiled and libraries set up outside of a capture."""
        rows = len(meta.slot_mapping)
        self._inputs.slots.fill_(-1)
        self._inputs.seq_kv.fill_(1)
        self._inputs.cu_query.fill_(rows)
        self._inputs.cu_query[0] = 0
        hidden, positions = self._inputs.hidden[:rows], self._inputs.positions[:, :rows]
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            self._model.forward(hidden, positions, self._kv, replace(meta, plan=None))
        torch.cuda.current_stream().wait_stream(self._side)
        graph = torch.cuda.CUDAGraph()
        captured = replace(meta, plan=None)
        with torch.cuda.graph(graph, pool=self._pool, stream=self._side):
            output = self._model.forward(hidden, positions, self._kv, captured)
        return Graph(graph, captured, output)


def _at_least(graphs: Sequence[Graph], sizes: Sequence[int], wanted: int) -> Graph | None:
    index = bisect_left(sizes, wanted)
    return graphs[index] if index < len(graphs) else None
