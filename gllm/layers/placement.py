"""Where the parameters of a layer live."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from gllm.layers.comm import SINGLE, TensorParallel

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Placement:
    """Type and device of parameters, and the ranks that share them."""

    dtype: torch.dtype = torch.float32
    device: torch.device = CPU
    tp: TensorParallel = SINGLE

    def parameter(self, *shape: int) -> nn.Parameter:
        """An uninitialised parameter of this shape; the loader fills it."""
        return nn.Parameter(torch.empty(shape, dtype=self.dtype, device=self.device), requires_grad=False)
