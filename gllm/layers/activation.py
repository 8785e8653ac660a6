"""The gated activation of the MLPs."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up [T, 2 * I] -> silu(gate) * up [T, I], a view of gate's memory (row stride 2 * I)."""
    if gate_up.is_cuda:
        from gllm.layers.kernels.silu_mul import silu_mul as silu_mul_kernel

        return silu_mul_kernel(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate, inplace=True).mul_(up)
