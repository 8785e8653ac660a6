"""Attention with PyTorch's own kernels: any device, any dtype."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from gllm.layers.attention.interface import AttentionBackend
from gllm.layers.attention.metadata import AttentionMetadata
from gllm.layers.attention.sdpa_plan import DecodeGroup, PrefillChunk, SdpaPlan, SdpaPlanner
from gllm.layers.kv_cache import LayerKV


class SdpaBackend(AttentionBackend):
    """`scaled_dot_product_attention` over views or gathered blocks of the cache.

    Query heads that share a key/value head are folded into rows where there are few query tokens: the kernel
    then reads each key once, not once for every query head.
    """

    name = "sdpa"

    def write_kv(self, k: Tensor, v: Tensor, kv: LayerKV, meta: AttentionMetadata) -> None:
        """Store k, v [T, KV, D] at their slots."""
        kv.k.flatten(0, 1).index_copy_(0, meta.slot_mapping, k)
        kv.v.flatten(0, 1).index_copy_(0, meta.slot_mapping, v)

    def forward(self, q: Tensor, kv: LayerKV, meta: AttentionMetadata) -> Tensor:
        """q [T, H, D] -> [T, H, D]."""
        num_kv_heads = kv.k.shape[2]
        if meta.plan is None:
            meta.plan = SdpaPlanner(meta, q.dtype, q.shape[1] // num_kv_heads).plan()
        plan: SdpaPlan = meta.plan
        if len(plan.decodes) == 1 and not plan.prefills:
            return _decode(q, kv, plan.decodes[0])
        if len(plan.prefills) == 1 and not plan.decodes and len(plan.prefills[0].tiles) == 1:
            return _prefill_tiles(q, kv, plan.prefills[0])[0]
        out = q.new_empty(q.shape)
        for group in plan.decodes:
            out[group.rows] = _decode(q[group.rows], kv, group)
        for chunk in plan.prefills:
            for tile, result in zip(chunk.tiles, _prefill_tiles(q, kv, chunk)):
                out[tile.rows] = result
        return out


def _decode(q: Tensor, kv: LayerKV, group: DecodeGroup) -> Tensor:
    """q [N, H, D], one token of each of N sequences -> [N, H, D]."""
    k, v = group.source.read(kv)  # [N, KV, L, D]
    folded = q.unflatten(1, (k.shape[1], -1))  # [N, KV, group, D]
    return F.scaled_dot_product_attention(folded, k, v, attn_mask=group.mask).reshape(q.shape)


def _prefill_tiles(q: Tensor, kv: LayerKV, chunk: PrefillChunk) -> list[Tensor]:
    """For each tile of a chunk, its rows' results [n, H, D]."""
    k, v = chunk.source.read(kv)  # [1, KV, L, D]
    attend = _folded if chunk.folded else _unfolded
    return [
        attend(q[tile.rows], k[:, :, : tile.kv_end], v[:, :, : tile.kv_end], tile.mask)
        for tile in chunk.tiles
    ]


def _folded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """q [n, H, D] with the heads of a group as rows: n * group rows for each of KV heads -> [n, H, D]."""
    n, _, dim = q.shape
    num_kv_heads = k.shape[1]
    by_group = q.unflatten(1, (num_kv_heads, -1)).transpose(0, 1)  # [KV, n, group, D]
    rows = by_group.reshape(1, num_kv_heads, -1, dim)
    out = F.scaled_dot_product_attention(rows, k, v, attn_mask=mask)
    return out.view(num_kv_heads, n, -1, dim).transpose(0, 1).reshape(q.shape)


def _unfolded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """q [n, H, D]; the kernel repeats each key/value head. No mask means causal -> [n, H, D]."""
    heads_first = q.transpose(0, 1).unsqueeze(0)
    out = F.scaled_dot_product_attention(
        heads_first, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True
    )
    return out[0].transpose(0, 1).contiguous()
