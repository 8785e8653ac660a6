"""Keys and values of new tokens into the paged cache, in one launch."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from gllm.layers.kv_cache import LayerKV


@triton.jit
def _kv_write(
    k_ptr, v_ptr, k_cache_ptr, v_cache_ptr, slots_ptr,
    k_row, v_row, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token)
    if slot < 0:
        return
    channel = tl.arange(0, BLOCK)
    inside = channel < WIDTH
    k = tl.load(k_ptr + token * k_row + channel, mask=inside)
    v = tl.load(v_ptr + token * v_row + channel, mask=inside)
    tl.store(k_cache_ptr + slot * WIDTH + channel, k, mask=inside)
    tl.store(v_cache_ptr + slot * WIDTH + channel, v, mask=inside)


def kv_write(k: Tensor, v: Tensor, kv: LayerKV, slots: Tensor) -> None:
    """k, v [T, KV, D], each row contiguous, to slots int64 [T]; a negative slot is passed over (padding)."""
    width = k.shape[1] * k.shape[2]
    if not len(k):
        return
    block = triton.next_power_of_2(width)
    _kv_write[(len(k),)](k, v, kv.k, kv.v, slots, k.stride(0), v.stride(0), width, block)
