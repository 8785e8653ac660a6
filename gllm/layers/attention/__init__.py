"""Attention over the paged cache, behind one interface."""

from gllm.layers.attention.interface import AttentionBackend
from gllm.layers.attention.metadata import AttentionMetadata
from gllm.layers.attention.registry import BACKENDS, create_backend

__all__ = ["BACKENDS", "AttentionBackend", "AttentionMetadata", "create_backend"]
