"""Rotary embedding: angles of M-RoPE, and the rotation of queries and keys, in one launch each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

HEADS_AT_ONCE = 8


@triton.jit(do_not_specialize=["axis_stride"])
def _cos_sin(
    positions_ptr, inv_freq_ptr, cos_ptr, sin_ptr, axis_stride,
    FIRST: tl.constexpr, SECOND: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, BLOCK)
    inside = pair < HALF
    axis = tl.where(pair < FIRST, 0, tl.where(pair < SECOND, 1, 2))
    position = tl.load(positions_ptr + axis * axis_stride + token, mask=inside, other=0)
    angle = position.to(tl.float32) * tl.load(inv_freq_ptr + pair, mask=inside, other=0.0)
    tl.store(cos_ptr + token * HALF + pair, tl.cos(angle), mask=inside)
    tl.store(sin_ptr + token * HALF + pair, tl.sin(angle), mask=inside)


def mrope_cos_sin(
    positions: Tensor, inv_freq: Tensor, sections: Sequence[int] | None
) -> tuple[Tensor, Tensor]:
    """positions int64 [3, T] (rows contiguous) and inv_freq fp32 [D/2] -> cos, sin fp32 [T, D/2].

    sections: how many pairs use the temporal position, the row and the column; None: all the first axis.
    """
    half, tokens = len(inv_freq), positions.shape[1]
    cos = torch.empty(tokens, half, dtype=torch.float32, device=positions.device)
    sin = torch.empty_like(cos)
    first, second = (half, half) if sections is None else (sections[0], sections[0] + sections[1])
    if tokens:
        _cos_sin[(tokens,)](
            positions, inv_freq, cos, sin, positions.stride(0),
            first, second, half, triton.next_power_of_2(half),
        )  # fmt: skip
    return cos, sin


@triton.jit
def _turn(
    q_ptr, k_ptr, cos_ptr, sin_ptr, q_row, q_head, k_row, k_head,
    NUM_Q: tl.constexpr, NUM_HEADS: tl.constexpr,
    HALF: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    pair = tl.arange(0, BLOCK)[None, :]
    is_q = (head < NUM_Q) & (pair < HALF)
    is_k = (head >= NUM_Q) & (head < NUM_HEADS) & (pair < HALF)
    q = q_ptr + token * q_row + head * q_head + pair
    k = k_ptr + token * k_row + (head - NUM_Q) * k_head + pair
    cos = tl.load(cos_ptr + token * HALF + pair, mask=pair < HALF, other=0.0)
    sin = tl.load(sin_ptr + token * HALF + pair, mask=pair < HALF, other=0.0)
    a = tl.load(q, mask=is_q, other=0.0).to(tl.float32) + tl.load(k, mask=is_k, other=0.0).to(tl.float32)
    b = tl.load(q + HALF, mask=is_q, other=0.0).to(tl.float32) + tl.load(k + HALF, mask=is_k, other=0.0).to(
        tl.float32
    )
    first = (a * cos - b * sin).to(q_ptr.dtype.element_ty)
    second = (b * cos + a * sin).to(q_ptr.dtype.element_ty)
    tl.store(q, first, mask=is_q)
    tl.store(q + HALF, second, mask=is_q)
    tl.store(k, first, mask=is_k)
    tl.store(k + HALF, second, mask=is_k)


def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Turn q [T, H, D] and k [T, KV, D] in place by cos, sin fp32 [T, D/2]; both may be views.

    (a, b) -> (a cos - b sin, b cos + a sin) for the halves a, b of a head; computed in fp32, rounded once.
    """
    heads, half = q.shape[1] + k.shape[1], q.shape[2] // 2
    if not len(q):
        return
    _turn[(len(q), triton.cdiv(heads, HEADS_AT_ONCE))](
        q, k, cos, sin, q.stride(0), q.stride(1), k.stride(0), k.stride(1),
        q.shape[1], heads, half, triton.next_power_of_2(half), HEADS_AT_ONCE,
    )  # fmt: skip
