"""How many KV blocks a rank takes: what was asked for, what is useful, and never more than there is."""

from dataclasses import replace

import pytest

from gllm.config import CacheConfig, ConfigError
from gllm.core.model_shape import PRESETS
from gllm.layers.comm import SINGLE, ThreadTensorParallel
from gllm.runtime.kv_sizing import GIB, KvLayers, blocks_on_cpu, blocks_on_gpu

LAYERS = KvLayers(num_layers=10, num_kv_heads=2, head_dim=128, dtype="bfloat16")
BLOCK = 160 * 1024  # 10 layers, keys and values, 16 tokens, 2 heads, 128 channels, 2 bytes
DEFAULT = CacheConfig()


def test_a_block_holds_keys_and_values_of_all_layers_of_the_rank():
    assert LAYERS.bytes_per_block(16) == BLOCK


def test_tensor_parallel_ranks_share_the_heads():
    text = PRESETS["qwen2.5-vl-7b"].text
    half = KvLayers.of(text, 28, ThreadTensorParallel.create(2)[1], "bfloat16")
    whole = KvLayers.of(text, 28, SINGLE, "bfloat16")
    assert 2 * half.bytes_per_block(16) == whole.bytes_per_block(16)


def test_an_exact_number_of_blocks_wins():
    config = replace(DEFAULT, num_kv_blocks=7, kv_cache_gib=1.0)
    assert blocks_on_cpu(config, LAYERS, 100 * GIB, 32768) == 7


def test_gibibytes_are_taken_as_asked():
    assert blocks_on_cpu(replace(DEFAULT, kv_cache_gib=2.0), LAYERS, 100 * GIB, 32768) == 2 * GIB // BLOCK


def test_the_default_takes_a_gibibyte_at_most_and_no_more_tokens_than_are_useful():
    large = replace(LAYERS, num_layers=100)
    assert blocks_on_cpu(DEFAULT, large, 100 * GIB, 32768) == GIB // (10 * BLOCK)
    small = replace(LAYERS, num_layers=1)
    assert blocks_on_cpu(DEFAULT, small, 100 * GIB, 1000) == 65536 // 16
    assert blocks_on_cpu(DEFAULT, small, 100 * GIB, 65552) == 65552 // 16


def test_the_default_takes_at_most_half_of_what_is_free():
    assert blocks_on_cpu(DEFAULT, LAYERS, 20 * BLOCK, 32768) == 10


@pytest.mark.parametrize(
    ("config", "free", "words"),
    [
        (replace(DEFAULT, num_kv_blocks=1000), 10 * BLOCK, "--num-kv-blocks 1000 needs"),
        (replace(DEFAULT, kv_cache_gib=3.0), GIB, "--kv-cache-gib 3 needs 3.00 GiB"),
        (DEFAULT, BLOCK, "no room for a KV block"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(config: CacheConfig, free: int, words: str):
    with pytest.raises(ConfigError, match=words):
        blocks_on_cpu(config, LAYERS, free, 32768)


def test_a_gpu_gives_what_its_share_leaves():
    config = replace(DEFAULT, gpu_memory_util=0.9)
    assert blocks_on_gpu(config, LAYERS, 20 * GIB, 80 * GIB) == 52 * GIB // BLOCK
    with pytest.raises(ConfigError, match="--gpu-memory-util"):
        blocks_on_gpu(config, LAYERS, 75 * GIB, 80 * GIB)
