import importlib.util
import random
import sys
from types import SimpleNamespace

import pytest
import torch

from gllm.layers.attention import AttentionMetadata, create_backend
from gllm.layers.attention.registry import create_vision_attention
from gllm.layers.kv_cache import KVCache, KVCacheShape
from gllm.layers.placement import Placement
from gllm.layers.vision_attention import Segments, vision_attention
from tests.layers.paging import PagedSequences

CHUNKS = [[(0, 5), (1, 20)], [(0, 1), (1, 1), (2, 33)], [(0, 1), (2, 1)], [(1, 1), (0, 17), (2, 2)]]


def on(device: torch.device, meta: AttentionMetadata) -> AttentionMetadata:
    for name in ("cu_query", "seq_kv", "block_tables", "slot_mapping"):
        setattr(meta, name, getattr(meta, name).to(device))
    return meta


def run(backend, pages, device, heads=(4, 2, 64)):
    """Outputs of several micro-batches through one cache."""
    num_heads, kv_heads, dim = heads
    shape = KVCacheShape(1, pages.num_blocks, pages.block_size, kv_heads, dim)
    kv = KVCache(shape, Placement(device=device)).layers[0]
    generator = torch.Generator().manual_seed(0)
    outputs = []
    for chunks in CHUNKS:
        meta = on(device, pages.step(chunks))
        rows = torch.randn(sum(n for _, n in chunks), num_heads + 2 * kv_heads, dim, generator=generator)
        q, k, v = rows.to(device).split([num_heads, kv_heads, kv_heads], dim=1)
        backend.write_kv(k, v, kv, meta)
        outputs.append(backend.forward(q, kv, meta))
        assert outputs[-1].is_contiguous()
        if chunks[-1][1] > 2:
            last = backend.forward(q[[-1]], kv, meta.last_tokens([len(chunks) - 1]))
            torch.testing.assert_close(last, outputs[-1][[-1]], atol=1e-5, rtol=0)
    return outputs


@pytest.mark.parametrize("block_size", [16, 64])
def test_triton_and_sdpa_give_the_same_for_mixed_micro_batches(block_size, device):
    backend = create_backend("triton", Placement(device=device), block_size)
    mine = run(backend, PagedSequences(12, block_size, seed=3), device)
    plain = run(
        create_backend("sdpa", Placement()), PagedSequences(12, block_size, seed=3), torch.device("cpu")
    )
    for a, b in zip(mine, plain):
        torch.testing.assert_close(a.cpu(), b, atol=1e-5, rtol=0)


def test_the_vision_tower_gets_the_named_attention(device):
    segments = Segments.from_lengths(torch.tensor([9, 9, 30]), torch.randperm(48)).to(device)
    q, k, v = torch.randn(48, 6, 80, device=device).chunk(3, dim=1)
    out = create_vision_attention("triton", Placement(device=device))(q, k, v, segments)
    torch.testing.assert_close(out, vision_attention(q, k, v, segments), atol=1e-5, rtol=0)
    assert create_vision_attention("auto", Placement()) is vision_attention


def gathered(cache, tables, length):
    return cache[tables.long()].flatten(0, 1)[:length].unsqueeze(0).transpose(1, 2)


def attend(q, k, v, causal_from):
    """q [n, H, D] over k, v [1, KV, m, D]."""
    mask = None
    if causal_from is not None:
        mask = torch.ones(len(q), k.shape[2], dtype=torch.bool).tril(causal_from)
    out = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1).unsqueeze(0), k, v, attn_mask=mask, enable_gqa=True
    )
    return out[0].transpose(0, 1)


def flash_two():
    """A stand-in with the documented signature and conditions of flash_attn 2, computed by PyTorch."""

    def varlen(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=False, block_table=None
    ):
        assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
        assert block_table is None or k.shape[1] % 256 == 0
        out = torch.empty_like(q)
        for i in range(len(cu_seqlens_q) - 1):
            rows = slice(int(cu_seqlens_q[i]), int(cu_seqlens_q[i + 1]))
            start, stop = int(cu_seqlens_k[i]), int(cu_seqlens_k[i + 1])
            n, m = rows.stop - rows.start, stop - start
            assert n <= max_seqlen_q and m <= max_seqlen_k
            if block_table is None:
                keys, values = (x[start:stop].unsqueeze(0).transpose(1, 2) for x in (k, v))
            else:
                keys, values = (gathered(x, block_table[i], m) for x in (k, v))
            out[rows] = attend(q[rows], keys, values, m - n if causal else None)
        return out

    def with_kvcache(q, k_cache, v_cache, cache_seqlens=None, block_table=None, causal=False):
        assert q.dim() == 4 and cache_seqlens.dtype == torch.int32 and k_cache.shape[1] % 256 == 0
        n = q.shape[1]
        rows = [
            attend(x, *(gathered(c, t, int(m)) for c in (k_cache, v_cache)), int(m) - n if causal else None)
            for x, t, m in zip(q, block_table, cache_seqlens)
        ]
        return torch.stack(rows)

    return SimpleNamespace(flash_attn_varlen_func=varlen, flash_attn_with_kvcache=with_kvcache)


def flash_three():
    """The same for flash_attn_interface (version 3)."""
    varlen = flash_two().flash_attn_varlen_func

    def with_kvcache(
        q, k_cache, v_cache, cache_seqlens=None, page_table=None, cu_seqlens_q=None, max_seqlen_q=None,
        causal=False,
    ):  # fmt: skip
        out = torch.empty_like(q)
        for i, m in enumerate(cache_seqlens.tolist()):
            rows = slice(int(cu_seqlens_q[i]), int(cu_seqlens_q[i + 1]))
            n = rows.stop - rows.start
            assert n <= max_seqlen_q
            keys, values = (gathered(x, page_table[i], m) for x in (k_cache, v_cache))
            out[rows] = attend(q[rows], keys, values, m - n if causal else None)
        return out

    return SimpleNamespace(flash_attn_varlen_func=varlen, flash_attn_with_kvcache=with_kvcache)


@pytest.mark.parametrize(("version", "block_size"), [(2, 256), (3, 16)])
def test_flash_is_called_as_it_documents(version, block_size, device):
    from gllm.layers.attention.flash_backend import FlashBackend, FlashThree, FlashTwo, FlashVision

    if device.type == "cuda":
        pytest.skip("stand-ins compute on the CPU")
    kernels = FlashTwo(flash_two()) if version == 2 else FlashThree(flash_three())
    mine = run(FlashBackend(kernels), PagedSequences(8, block_size, seed=1), device)
    plain = run(create_backend("sdpa", Placement()), PagedSequences(8, block_size, seed=1), device)
    for a, b in zip(mine, plain):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)
    order = torch.tensor(random.Random(0).sample(range(40), 40))
    for segments in (
        Segments.from_lengths(torch.tensor([16, 24]), order),
        Segments.from_lengths(torch.tensor([40])),
    ):
        q, k, v = torch.randn(40, 6, 80).chunk(3, dim=1)
        out = FlashVision(kernels)(q, k, v, segments)
        torch.testing.assert_close(out, vision_attention(q, k, v, segments), atol=1e-5, rtol=0)


def test_the_best_backend_is_chosen_from_device_package_dtype_and_block_size(monkeypatch):
    from gllm.layers.attention import flash_backend, registry

    gpu = Placement(torch.bfloat16, torch.device("cuda", 0))
    wide = Placement(torch.float32, gpu.device)
    assert registry._resolve("auto", Placement(), 16) == "sdpa"
    for version, block_size, expected in [
        (None, 16, "triton"), (2, 16, "triton"), (2, 256, "flash"), (3, 16, "flash"),
    ]:  # fmt: skip
        monkeypatch.setattr(flash_backend, "installed_version", lambda device, v=version: v)
        assert registry._resolve("auto", gpu, block_size) == expected
        assert registry._resolve("auto", wide, block_size) == "triton"
    with pytest.raises(ValueError, match="--dtype bfloat16"):
        registry._resolve("flash", wide, 256)


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        ({}, None),
        ({"flash_attn": flash_two()}, 2),
        ({"flash_attn": flash_two(), "flash_attn_interface": flash_three()}, 3),
        ({"flash_attn": SimpleNamespace(cute=None)}, None),
        ({"flash_attn": flash_two(), "flash_attn_interface": SimpleNamespace()}, 2),
        ({"flash_attn": None}, None),
    ],
)
def test_a_package_counts_as_installed_when_it_has_what_is_called(modules, expected, monkeypatch):
    from gllm.layers.attention import flash_backend

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    for name in flash_backend.MODULES.values():
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert flash_backend.installed_version(torch.device("cuda", 0)) == expected
    assert flash_backend.installed_version(torch.device("cpu")) is None


def test_earlier_builds_of_version_3_return_more_than_the_attention():
    from gllm.layers.attention.flash_backend import FlashThree

    module = flash_three()
    varlen = module.flash_attn_varlen_func
    module.flash_attn_varlen_func = lambda *arguments: (varlen(*arguments), None)
    segments = Segments.from_lengths(torch.tensor([16, 24]))
    q, k, v = torch.randn(40, 6, 80).chunk(3, dim=1)
    out = FlashThree(module).segments(q, k, v, segments)
    torch.testing.assert_close(out, vision_attention(q, k, v, segments), atol=1e-5, rtol=0)


def test_flash_without_a_gpu_says_what_to_do():
    with pytest.raises(ValueError, match="--attention-backend triton"):
        create_backend("flash", Placement())
    assert importlib.util.find_spec("flash_attn") is None or torch.cuda.is_available()
