"""What the kernels compute, in float64 and written as in the formula: for tests and for checks on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from gllm.layers.kv_cache import LayerKV


def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """q [n, H, D], k, v [m, KV, D] -> float64 [n, H, D]; causal: row i sees the first m - n + i + 1 keys."""
    n, heads, dim = q.shape
    m, group = len(k), heads // k.shape[1]
    keys, values = (x.double().repeat_interleave(group, 1) for x in (k, v))
    scores = torch.einsum("nhd,mhd->hnm", q.double(), keys) / dim**0.5
    if causal:
        hidden = torch.ones(n, m, dtype=torch.bool, device=q.device).triu(m - n + 1)
        scores.masked_fill_(hidden, float("-inf"))
    return torch.einsum("hnm,mhd->nhd", scores.softmax(-1), values)


def paged_attention(
    q: Tensor, kv: LayerKV, query_lens: Sequence[int], kv_lens: Sequence[int], tables: Tensor
) -> Tensor:
    """q [T, H, D]: chunks of query_lens rows, the last of kv_lens tokens in blocks `tables` [n, blocks]."""
    parts = []
    bounds = pairwise(accumulate(query_lens, initial=0))
    for (start, stop), kv_len, table in zip(bounds, kv_lens, tables):
        k, v = (cache[table.long()].flatten(0, 1)[:kv_len] for cache in (kv.k, kv.v))
        parts.append(attention(q[start:stop], k, v, causal=True))
    return torch.cat(parts)


def varlen_attention(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, order: Tensor | None) -> Tensor:
    """q, k, v [N, H, D], attention within segments of the tokens in `order` -> float64 [N, H, D]."""
    out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    order = torch.arange(len(q), device=q.device) if order is None else order
    for start, stop in pairwise(cu_seqlens.tolist()):
        rows = order[start:stop]
        out[rows] = attention(q[rows], k[rows], v[rows], causal=False)
    return out


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., H] -> float64."""
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def silu_mul(gate_up: Tensor) -> Tensor:
    """[T, 2 * I] -> float64 [T, I]."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return gate * gate.sigmoid() * up


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [T, H, D], cos, sin [T, D/2] -> float64 [T, H, D]."""
    first, second = x.double().chunk(2, dim=-1)
    cos, sin = cos.double().unsqueeze(1), sin.double().unsqueeze(1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def mrope_cos_sin(positions: Tensor, inv_freq: Tensor, sections: Sequence[int]) -> tuple[Tensor, Tensor]:
    """positions [3, T] -> cos, sin float64 [T, D/2] of the rounded fp32 angles."""
    axis = torch.tensor(
        [a for a, count in enumerate(sections) for _ in range(count)], device=positions.device
    )
    angles = (positions[axis].T.float() * inv_freq).double()
    return angles.cos(), angles.sin()
