"""Root-mean-square normalisation, with the residual addition before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import overload

import torch
from torch import Tensor, nn

from gllm.layers.placement import Placement
from gllm.layers.weights import CheckpointWeight, whole


class RMSNorm(nn.Module):
    """x / rms(x) * weight; the mean is taken in fp32, the product with the weight in x's dtype."""

    def __init__(self, hidden_size: int, eps: float, place: Placement) -> None:
        super().__init__()
        self.eps = eps
        self.weight = place.parameter(hidden_size)

    @overload
    def forward(self, x: Tensor) -> Tensor: ...
    @overload
    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]: ...
    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """x [..., H] -> norm(x); with a residual: norm(x + residual) and the sum, which overwrites x."""
        if x.is_cuda:
            from gllm.layers.kernels.rms_norm import rms_norm

            normed = rms_norm(x, self.weight, self.eps, residual)
            return normed if residual is None else (normed, x)
        if residual is None:
            return self._norm(x)
        x.add_(residual)
        return self._norm(x), x

    def _norm(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = wide.square().mean(-1, keepdim=True).add_(self.eps).rsqrt_()
        if wide.dtype is x.dtype:
            return (wide * scale).mul_(self.weight)
        return torch.mul(wide, scale).to(x.dtype).mul_(self.weight)

    def weights(self, prefix: str) -> Iterator[CheckpointWeight]:
        """`prefix.weight` [H]."""
        yield whole(f"{prefix}.weight", self.weight)
