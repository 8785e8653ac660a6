"""Root-mean-square normalisation, with the residual addition before it, in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rms_norm(
    x_ptr, residual_ptr, weight_ptr, out_ptr, x_row, residual_row, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK)
    inside = channel < WIDTH
    x = tl.load(x_ptr + row * x_row + channel, mask=inside, other=0.0)
    dtype = x.dtype
    if ADD:
        residual = tl.load(residual_ptr + row * residual_row + channel, mask=inside, other=0.0)
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(dtype)
        tl.store(x_ptr + row * x_row + channel, x, mask=inside)
    wide = x.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / WIDTH + eps)
    weight = tl.load(weight_ptr + channel, mask=inside, other=0.0)
    normed = (wide * scale).to(dtype).to(tl.float32) * weight.to(tl.float32)
    tl.store(out_ptr + row * WIDTH + channel, normed.to(dtype), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
    """x [..., H] -> x / rms(x) * weight, contiguous; rows of x are contiguous and evenly spaced.

    With a residual, x becomes x + residual first, in its own memory. The mean is taken in fp32; the quotient
    is rounded to x's dtype before it is multiplied, as the torch version does.
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    width = x.shape[-1]
    rows = x.numel() // width
    if not rows:
        return out
    block = triton.next_power_of_2(width)
    other = x if residual is None else residual
    _rms_norm[(rows,)](
        x, other, weight, out, x.stride(-2) if x.dim() > 1 else width,
        other.stride(-2) if x.dim() > 1 else width, eps,
        width, block, residual is not None, num_warps=min(max(block // 512, 1), 16),
    )  # fmt: skip
    return out
