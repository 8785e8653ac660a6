"""The interface of attention over a paged cache."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from gllm.layers.attention.metadata import AttentionMetadata
from gllm.layers.kv_cache import LayerKV


class AttentionBackend(ABC):
    """Causal attention of each chunk to its own sequence; the scale is 1 / sqrt(D)."""

    name: str
    is_capturable: bool = False
    """Whether a call can be captured in a CUDA graph: no host copy, no launch that depends on device values;
    negative slots are padding."""

    @abstractmethod
    def write_kv(self, k: Tensor, v: Tensor, kv: LayerKV, meta: AttentionMetadata) -> None:
        """Store k, v [T, KV, D] of the new tokens at `meta.slot_mapping`."""

    @abstractmethod
    def forward(self, q: Tensor, kv: LayerKV, meta: AttentionMetadata) -> Tensor:
        """q [T, H, D] (possibly a view with larger row stride) -> [T, H, D], contiguous."""
