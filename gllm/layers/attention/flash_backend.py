"""Attention with the flash-attn package, version 3 (Hopper) or 2, where it is installed."""

from __future__ import annotations

import importlib
import logging
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from gllm.layers.attention.interface import AttentionBackend
from gllm.layers.attention.metadata import AttentionMetadata
from gllm.layers.kernels.kv_write import kv_write
from gllm.layers.kv_cache import LayerKV
from gllm.layers.vision_attention import Segments

LOG = logging.getLogger("gllm")

PAGE_OF_VERSION_2 = 256  # its kernels read the cache in steps of so many tokens
MODULES = {2: "flash_attn", 3: "flash_attn_interface"}
FUNCTIONS = ("flash_attn_varlen_func", "flash_attn_with_kvcache")


class FlashKernels(Protocol):
    """What both versions offer, each under its own names and conditions."""

    def decode(self, q: Tensor, kv: LayerKV, meta: AttentionMetadata) -> Tensor:
        """One token of each of n sequences: q [n, H, D] -> [n, H, D]."""
        ...

    def paged(self, q: Tensor, kv: LayerKV, meta: AttentionMetadata) -> Tensor:
        """Chunks of any length: q [T, H, D] -> [T, H, D]."""
        ...

    def segments(self, q: Tensor, k: Tensor, v: Tensor, segments: Segments) -> Tensor:
        """q, k, v [N, H, D] in the segments' order, without a mask -> [N, H, D]."""
        ...


class FlashBackend(AttentionBackend):
    """The cache is written by this project's kernel, and read by flash-attn's through block tables."""

    name = "flash"
    is_capturable = True

    def __init__(self, kernels: FlashKernels) -> None:
        self._kernels = kernels

    def write_kv(self, k: Tensor, v: Tensor, kv: LayerKV, meta: AttentionMetadata) -> None:
        """Store k, v [T, KV, D]; negative slots are passed over."""
        kv_write(k, v, kv, meta.slot_mapping)

    def forward(self, q: Tensor, kv: LayerKV, meta: AttentionMetadata) -> Tensor:
        """q [T, H, D] -> [T, H, D]."""
        if meta.num_decodes == meta.num_chunks:
            return self._kernels.decode(q, kv, meta).reshape(q.shape)
        return self._kernels.paged(q, kv, meta).reshape(q.shape)


class FlashTwo:
    """flash_attn >= 2.5: `flash_attn_varlen_func` with tables, `flash_attn_with_kvcache` for decodes."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def decode(self, q: Tensor, kv: LayerKV, meta: AttentionMetadata) -> Tensor:
        """Its split over keys is chosen from the longest table, not from values on the device."""
        return self._module.flash_attn_with_kvcache(
            q.unsqueeze(1),
            kv.k,
            kv.v,
            cache_seqlens=meta.seq_kv,
            block_table=meta.block_tables,
            causal=True,
        )

    def paged(self, q: Tensor, kv: LayerKV, meta: AttentionMetadata) -> Tensor:
        """Version 2 wants the running sum of key lengths, made once per micro-batch."""
        if meta.plan is None:
            meta.plan = F.pad(meta.seq_kv.cumsum(0, dtype=torch.int32), (1, 0))
        return self._module.flash_attn_varlen_func(
            q,
            kv.k,
            kv.v,
            cu_seqlens_q=meta.cu_query,
            cu_seqlens_k=meta.plan,
            max_seqlen_q=meta.max_query_len,
            max_seqlen_k=meta.max_kv_len,
            causal=True,
            block_table=meta.block_tables,
        )

    def segments(self, q: Tensor, k: Tensor, v: Tensor, segments: Segments) -> Tensor:
        """Head dimensions up to 256."""
        bounds, longest = segments.cu_seqlens, segments.max_length
        return self._module.flash_attn_varlen_func(q, k, v, bounds, bounds, longest, longest)


class FlashThree:
    """flash_attn_interface (Hopper): `flash_attn_with_kvcache` also takes chunks, and any block size."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def decode(self, q: Tensor, kv: LayerKV, meta: AttentionMetadata) -> Tensor:
        """A chunk of one row each."""
        return self.paged(q, kv, meta)

    def paged(self, q: Tensor, kv: LayerKV, meta: AttentionMetadata) -> Tensor:
        """Chunks from cu_query, key lengths from seq_kv."""
        return self._module.flash_attn_with_kvcache(
            q,
            kv.k,
            kv.v,
            cache_seqlens=meta.seq_kv,
            page_table=meta.block_tables,
            cu_seqlens_q=meta.cu_query,
            max_seqlen_q=meta.max_query_len,
            causal=True,
        )

    def segments(self, q: Tensor, k: Tensor, v: Tensor, segments: Segments) -> Tensor:
        """Head dimensions up to 256."""
        bounds, longest = segments.cu_seqlens, segments.max_length
        out = self._module.flash_attn_varlen_func(q, k, v, bounds, bounds, longest, longest)
        return out[0] if isinstance(out, tuple) else out  # earlier builds also return the log-sums


def installed_version(device: torch.device) -> int | None:
    """3 on Hopper where flash_attn_interface is installed, 2 where flash_attn is, else None."""
    if device.type != "cuda":
        return None
    if torch.cuda.get_device_capability(device)[0] == 9 and _is_usable(MODULES[3]):
        return 3
    return 2 if _is_usable(MODULES[2]) else None


def _is_usable(module: str) -> bool:
    """Whether it can be imported and has what is called; other packages share these modules' names."""
    try:
        found = importlib.import_module(module)
    except (ImportError, OSError) as error:
        if not isinstance(error, ModuleNotFoundError):
            LOG.warning("%s is installed and cannot be imported (%s): not used", module, error)
        return False
    return all(hasattr(found, name) for name in FUNCTIONS)


def can_page(version: int | None, block_size: int) -> bool:
    """Whether this version reads a cache of this block size; version 2 wants multiples of 256 tokens."""
    return version == 3 or (version == 2 and block_size % PAGE_OF_VERSION_2 == 0)


def load_kernels(version: int | None) -> FlashKernels:
    """Import the package. Raises ValueError (one line that says what to do) where there is none."""
    if version == 3:
        return FlashThree(importlib.import_module(MODULES[3]))
    if version == 2:
        return FlashTwo(importlib.import_module(MODULES[2]))
    raise ValueError(
        "--attention-backend flash needs a GPU and the flash-attn package: "
        "install it (pip install flash-attn), or use --attention-backend triton"
    )


class FlashVision:
    """Vision attention by flash-attn, which takes segments side by side: other orders are gathered first."""

    def __init__(self, kernels: FlashKernels) -> None:
        self._kernels = kernels

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, segments: Segments) -> Tensor:
        """q, k, v [N, H, D] -> [N, H, D]."""
        if segments.order is None:
            return self._kernels.segments(q, k, v, segments)
        q, k, v = (x.index_select(0, segments.order) for x in (q, k, v))
        ordered = self._kernels.segments(q, k, v, segments)
        return torch.empty_like(ordered).index_copy_(0, segments.order, ordered)
