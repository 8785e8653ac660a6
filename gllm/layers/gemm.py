"""The matrix product behind every linear layer."""

from __future__ import annotations

from bisect import bisect_left

import torch
import torch.nn.functional as F
from torch import Tensor

MIN_ROWS_TO_WIDEN = 8
"""Below this many rows reading the weights takes most of the time, and widening them would add to it."""

MOST_WIDENED = 2**21
"""Elements of a weight that are widened at once: 8 MiB in fp32, which stay in the cache.

Measured of a vocabulary of 152,000 rows, 1,024 wide, by 8 rows on two AVX2 cores: 113 ms, and 523 ms whole.
"""

ROW_BUCKETS = (2, 4, 8, 12, *range(16, 128, 8), *range(128, 257, 16))
"""Numbers of rows that oneDNN sees: it keeps memory for each (number of rows, shape) for good.

Close enough that a chunk of 65 tokens is not computed as 96.
"""

_HAS_ONEDNN = torch.backends.mkldnn.is_available()
_onednn_linear = torch.ops.mkldnn._linear_pointwise

_NATIVE_ON_CPU = {
    torch.float32: True,
    torch.bfloat16: bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()),
    torch.float16: bool(torch.ops.mkldnn._is_mkldnn_fp16_supported()),
}


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [..., in], weight [out, in], bias [out] -> [..., out].

    On a CPU, fp32 products of two and more rows go to oneDNN: measured on one AVX2 core against `F.linear`,
    which calls MKL, 8 rows take 0.65, 32 rows 0.75 and 256 rows 0.9 of the time; and a row's result does not
    depend on how many there are. Where the CPU lacks instructions for the weights' type, many rows are
    computed in fp32 and rounded once: 45 GFLOP/s, not 9.
    """
    if weight.device.type != "cpu":
        return F.linear(x, weight, bias)
    rows = x.numel() // x.shape[-1]
    if weight.dtype is torch.float32:
        return _linear_fp32(x, weight, bias, rows)
    if rows < MIN_ROWS_TO_WIDEN or _NATIVE_ON_CPU[weight.dtype]:
        return F.linear(x, weight, bias)
    out = _widened(x.float(), weight, rows)
    return (out if bias is None else out + bias).to(x.dtype)


def _widened(x: Tensor, weight: Tensor, rows: int) -> Tensor:
    """x in fp32, weight narrower -> fp32; slice by slice of the weight's rows."""
    size = max(MOST_WIDENED // weight.shape[1], 1)
    parts = [_linear_fp32(x, part.float(), None, rows) for part in weight.split(size)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _linear_fp32(x: Tensor, weight: Tensor, bias: Tensor | None, rows: int) -> Tensor:
    if rows < 2 or not _HAS_ONEDNN:
        return F.linear(x, weight, bias)
    parts = [_padded(part, weight, bias) for part in x.reshape(rows, -1).split(ROW_BUCKETS[-1])]
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).view(*x.shape[:-1], -1)


def _padded(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product of up to 256 rows, computed for the next number of rows that oneDNN knows."""
    rows = len(x)
    bucket = ROW_BUCKETS[bisect_left(ROW_BUCKETS, rows)]
    whole = F.pad(x, (0, 0, 0, bucket - rows)) if bucket > rows else x
    return _onednn_linear(whole, weight, bias, "none", [], "")[:rows]
