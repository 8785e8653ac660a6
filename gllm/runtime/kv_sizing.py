"""How many KV blocks a rank can hold."""

from dataclasses import dataclass

import torch

from gllm.config import CacheConfig, ConfigError
from gllm.core.model_shape import DTYPE_BYTES, TextShape
from gllm.layers.comm import TensorParallel
from gllm.layers.kv_cache import KVCacheShape
from gllm.layers.linear import HeadSplit
from gllm.runtime.host_memory import GIB

DEFAULT_CPU_BYTES = GIB
DEFAULT_CPU_TOKENS = 65536


@dataclass(frozen=True, slots=True)
class KvLayers:
    """What one rank keeps of each token: its layers, and its share of the key/value heads."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str

    @classmethod
    def of(cls, text: TextShape, num_layers: int, tp: TensorParallel, dtype: str) -> "KvLayers":
        """The share of a rank with this many layers."""
        heads = HeadSplit(text.num_heads, text.num_kv_heads, text.head_dim).kv_heads(tp)
        return cls(num_layers, len(heads), text.head_dim, dtype)

    def shape(self, num_blocks: int, block_size: int) -> KVCacheShape:
        """Of a cache with so many blocks."""
        return KVCacheShape(self.num_layers, num_blocks, block_size, self.num_kv_heads, self.head_dim)

    def bytes_per_block(self, block_size: int) -> int:
        """Bytes of one block over all layers of the rank."""
        return self.shape(1, block_size).bytes_per_block(DTYPE_BYTES[self.dtype])


def blocks_on_cpu(config: CacheConfig, layers: KvLayers, free_bytes: int, max_model_len: int) -> int:
    """Blocks of one rank, to which free_bytes of memory belong; its weights are loaded.

    By default 1 GiB, at most half of what is free, at most 65536 tokens or one sequence of max_model_len.
    Raises ConfigError when that is not one block, or more was asked for than is free.
    """
    block = layers.bytes_per_block(config.page_size)
    if config.num_kv_blocks is not None:
        _check_fits(f"--num-kv-blocks {config.num_kv_blocks}", config.num_kv_blocks * block, free_bytes)
        return config.num_kv_blocks
    if config.kv_cache_gib is not None:
        _check_fits(f"--kv-cache-gib {config.kv_cache_gib:g}", int(config.kv_cache_gib * GIB), free_bytes)
        return _at_least_one(int(config.kv_cache_gib * GIB) // block, block, "--kv-cache-gib")
    useful = -(-max(DEFAULT_CPU_TOKENS, max_model_len) // config.page_size)
    affordable = min(DEFAULT_CPU_BYTES, free_bytes // 2) // block
    return _at_least_one(min(useful, affordable), block, "free memory")


def blocks_on_gpu(config: CacheConfig, layers: KvLayers, used_bytes: int, total_bytes: int) -> int:
    """Blocks of one GPU on which weights and the largest micro-batch's activations take used_bytes.

    0.9 of 80 GiB with 20 GiB used leave 52 GiB. Raises ConfigError when that is not one block.
    """
    block = layers.bytes_per_block(config.page_size)
    if config.num_kv_blocks is not None:
        _check_fits(
            f"--num-kv-blocks {config.num_kv_blocks}", config.num_kv_blocks * block, total_bytes - used_bytes
        )
        return config.num_kv_blocks
    left = int(total_bytes * config.gpu_memory_util) - used_bytes
    return _at_least_one(left // block, block, f"--gpu-memory-util {config.gpu_memory_util:g}")


def _check_fits(flag: str, wanted: int, free_bytes: int) -> None:
    if wanted > free_bytes:
        raise ConfigError(
            f"{flag} needs {wanted / GIB:.2f} GiB on each rank, "
            f"where {free_bytes / GIB:.2f} GiB are free: lower it"
        )


def _at_least_one(blocks: int, block_bytes: int, source: str) -> int:
    if blocks < 1:
        raise ConfigError(
            f"{source} leaves no room for a KV block of {block_bytes / 2**20:.2f} MiB: "
            "give more memory, or use more stages (--pp) or a smaller --page-size"
        )
    return blocks


def used_gpu_bytes(device: torch.device) -> tuple[int, int]:
    """(bytes taken on this GPU by anyone at the worst moment so far, all bytes)."""
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    return total - free - reserved + torch.cuda.max_memory_allocated(device), total
