"""The gated activation, in one launch."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _silu_mul(gate_up_ptr, row_stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < WIDTH
    start = gate_up_ptr + row * row_stride
    gate = tl.load(start + channel, mask=inside, other=0.0)
    up = tl.load(start + WIDTH + channel, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    activated = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype)
    tl.store(start + channel, (activated.to(tl.float32) * up.to(tl.float32)).to(gate.dtype), mask=inside)


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up [T, 2 * I] -> silu(gate) * up [T, I], a view of gate's memory (row stride 2 * I)."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    if rows:
        _silu_mul[(rows, triton.cdiv(width, BLOCK))](gate_up, gate_up.stride(0), width, BLOCK)
    return gate_up[:, :width]
