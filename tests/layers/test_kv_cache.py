import torch

from gllm.layers.kv_cache import KVCache, KVCacheShape
from gllm.layers.placement import Placement


def test_a_block_is_copied_in_every_layer_and_nothing_else_changes():
    cache = KVCache(KVCacheShape(3, 6, 4, 2, 8), Placement())
    for layer in cache.layers:
        layer.k.normal_()
        layer.v.normal_()
    before = [(layer.k.clone(), layer.v.clone()) for layer in cache.layers]
    cache.copy_blocks([(1, 4), (2, 5)])
    cache.copy_blocks([])
    for layer, (k, v) in zip(cache.layers, before):
        assert torch.equal(layer.k, k[[0, 1, 2, 3, 1, 2]])
        assert torch.equal(layer.v, v[[0, 1, 2, 3, 1, 2]])


def test_bytes_per_block_is_what_the_allocation_takes():
    shape = KVCacheShape(3, 6, 4, 2, 8)
    cache = KVCache(shape, Placement(torch.bfloat16))
    held = sum(tensor.numel() * 2 for layer in cache.layers for tensor in (layer.k, layer.v))
    assert held == 6 * shape.bytes_per_block(2)
