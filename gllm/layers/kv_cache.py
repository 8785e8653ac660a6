"""Tensors of the paged key/value cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gllm.layers.placement import Placement


@dataclass(frozen=True, slots=True)
class LayerKV:
    """Keys and values of one layer, each [num_blocks, block_size, KV, D], contiguous."""

    k: Tensor
    v: Tensor


@dataclass(frozen=True, slots=True)
class KVCacheShape:
    """Sizes on one rank: its layers, and its share of the key/value heads."""

    num_layers: int
    num_blocks: int
    block_size: int
    num_kv_heads: int
    head_dim: int

    def bytes_per_block(self, dtype_bytes: int) -> int:
        """Bytes of one block over all layers: 10 layers x 16 tokens x 2 heads x 128, bf16: 160 KiB."""
        numbers = 2 * self.num_layers * self.block_size * self.num_kv_heads * self.head_dim
        return numbers * dtype_bytes


class KVCache:
    """The cache of all layers of a stage, in one allocation."""

    def __init__(self, shape: KVCacheShape, place: Placement) -> None:
        """Allocate and zero the cache: padding is read (masked), so it must be finite; pages are touched."""
        self._blocks = torch.zeros(
            (
                shape.num_layers,
                2,
                shape.num_blocks,
                shape.block_size,
                shape.num_kv_heads,
                shape.head_dim,
            ),
            dtype=place.dtype,
            device=place.device,
        )
        self._blocks.zero_()
        self.layers = [LayerKV(layer[0], layer[1]) for layer in self._blocks]

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy each pair's first block to its second, in all layers; no block may be both."""
        if not pairs:
            return
        index = torch.tensor(pairs, dtype=torch.int64).to(self._blocks.device, non_blocking=True)
        self._blocks[:, :, index[:, 1]] = self._blocks[:, :, index[:, 0]]
