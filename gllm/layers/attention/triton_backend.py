"""Attention with this project's Triton kernels: GPUs, and Triton's interpreter."""

from __future__ import annotations

import torch
from torch import Tensor

from gllm.layers.attention.interface import AttentionBackend
from gllm.layers.attention.metadata import AttentionMetadata
from gllm.layers.kernels.kv_write import kv_write
from gllm.layers.kernels.paged_decode import num_splits, paged_decode
from gllm.layers.kernels.paged_prefill import PagedChunks, paged_prefill
from gllm.layers.kernels.softmax import multiprocessors
from gllm.layers.kv_cache import LayerKV


class TritonBackend(AttentionBackend):
    """Decodes go to a kernel that divides their keys, every other chunk to one that divides its queries.

    Which programs run depends on the metadata's integers, never on values in device memory: so a call can be
    captured in a CUDA graph and replayed with other tables and lengths.
    """

    name = "triton"
    is_capturable = True

    def write_kv(self, k: Tensor, v: Tensor, kv: LayerKV, meta: AttentionMetadata) -> None:
        """Store k, v [T, KV, D]; negative slots are passed over."""
        kv_write(k, v, kv, meta.slot_mapping)

    def forward(self, q: Tensor, kv: LayerKV, meta: AttentionMetadata) -> Tensor:
        """q [T, H, D] -> [T, H, D]; rows of no chunk are undefined."""
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        decodes = meta.num_decodes
        if decodes:
            longest = max(meta.kv_lens[:decodes])
            splits = num_splits(decodes, kv.k.shape[2], longest, multiprocessors(q.device))
            paged_decode(q[:decodes], kv, meta.seq_kv[:decodes], meta.block_tables, out[:decodes], splits)
        if decodes < meta.num_chunks:
            paged_prefill(q, kv, _prefills(meta), out)
        return out


def _prefills(meta: AttentionMetadata) -> PagedChunks:
    """The chunks behind the decodes, whose rows keep their numbers."""
    first = meta.num_decodes
    return PagedChunks(
        meta.cu_query[first:], meta.seq_kv[first:], meta.block_tables[first:], meta.max_query_len
    )
