"""Attention of a vision tower: segments of any length, no mask, tokens in any order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gllm.layers.kernels.softmax import (
    INTERPRETED,
    LOG2_E,
    attend_tile,
    block_width,
    has_large_shared_memory,
    load_keys,
    load_values,
    product,
)
from gllm.layers.vision_attention import Segments


@triton.jit
def _varlen(
    q_ptr, k_ptr, v_ptr, out_ptr, cu_ptr, order_ptr,
    scale, q_row, q_head, k_row, k_head, v_row, v_head,
    DIM: tl.constexpr, ORDERED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """One program: ROWS queries of one head of one segment."""
    head, segment = tl.program_id(1), tl.program_id(2)
    first = tl.load(cu_ptr + segment)
    last = tl.load(cu_ptr + segment + 1)
    start = first + tl.program_id(0) * ROWS
    if start >= last:
        return
    place = start + tl.arange(0, ROWS)
    channel = tl.arange(0, WIDTH)
    if ORDERED:
        token = place.to(tl.int64)
    else:
        token = tl.load(order_ptr + place, mask=place < last, other=0)
    valid = (place < last)[:, None] & (channel < DIM)[None, :]
    q = tl.load(q_ptr + token[:, None] * q_row + head * q_head + channel[None, :], mask=valid, other=0.0)

    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    out = tl.zeros([ROWS, WIDTH], tl.float32)
    for begin in range(first, last, KEYS):
        at = begin + tl.arange(0, KEYS)
        exists = at < last
        if ORDERED:
            key = at.to(tl.int64)
        else:
            key = tl.load(order_ptr + at, mask=exists, other=0)
        k = load_keys(k_ptr + head * k_head, key * k_row, exists, channel, DIM, True)
        v = load_values(v_ptr + head * v_head, key * v_row, exists, channel, DIM, True)
        scores = tl.where(exists[None, :], product(q, k, WIDEN) * scale, float("-inf"))
        largest, total, out = attend_tile(largest, total, out, scores, v, WIDEN)
    out = out / total[:, None]
    heads = tl.num_programs(1)
    target = out_ptr + (token[:, None] * heads + head) * DIM + channel[None, :]
    tl.store(target, out.to(out_ptr.dtype.element_ty), mask=valid)


def vision_varlen(q: Tensor, k: Tensor, v: Tensor, segments: Segments) -> Tensor:
    """q, k, v [N, H, D] (views will do) -> [N, H, D], contiguous: attention within each segment."""
    _, heads, dim = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    width = block_width(dim)
    wide = INTERPRETED or q.dtype is torch.float32
    small = segments.max_length <= 64 or not has_large_shared_memory(q.device)
    rows = 32 if wide else 64 if small else 128
    order = segments.cu_seqlens if segments.order is None else segments.order
    _varlen[(triton.cdiv(segments.max_length, rows), heads, len(segments.cu_seqlens) - 1)](
        q, k, v, out, segments.cu_seqlens, order, dim**-0.5 * LOG2_E,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        dim, segments.order is None, rows, 32 if wide else 64, width, INTERPRETED,
        num_warps=8 if rows == 128 else 4, num_stages=1 if wide else 2,
    )  # fmt: skip
    return out
