import pytest
import torch

from tests.kernels.cases import NAN, TOLERANCE

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def randn(*shape, dtype, device, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 80, 130])
def test_rms_norm_with_and_without_residual(dtype, width, device):
    from gllm.layers.kernels import reference
    from gllm.layers.kernels.rms_norm import rms_norm

    x, residual = (randn(5, width, dtype=dtype, device=device, seed=seed) for seed in (0, 1))
    weight = randn(width, dtype=dtype, device=device, seed=2)
    close = {"atol": 3 * TOLERANCE[dtype], "rtol": 0}
    torch.testing.assert_close(
        rms_norm(x, weight, 1e-6).double(), reference.rms_norm(x, weight, 1e-6), **close
    )
    total = x.double() + residual.double()
    normed = rms_norm(x, weight, 1e-6, residual)
    torch.testing.assert_close(x.double(), total, **close)
    torch.testing.assert_close(normed.double(), reference.rms_norm(x, weight, 1e-6), **close)


def test_rms_norm_reads_rows_of_a_view(device):
    from gllm.layers.kernels import reference
    from gllm.layers.kernels.rms_norm import rms_norm

    x = randn(4, 100, dtype=torch.float32, device=device)[:, :60]
    weight = torch.ones(60, device=device)
    torch.testing.assert_close(rms_norm(x, weight, 1e-6).double(), reference.rms_norm(x, weight, 1e-6))


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_mul_writes_over_the_gate(dtype, device):
    from gllm.layers.kernels import reference
    from gllm.layers.kernels.silu_mul import silu_mul

    gate_up = randn(3, 2 * 1100, dtype=dtype, device=device) * 4
    expected = reference.silu_mul(gate_up)
    out = silu_mul(gate_up)
    assert out.data_ptr() == gate_up.data_ptr() and out.shape == (3, 1100)
    torch.testing.assert_close(out.double(), expected, atol=8 * TOLERANCE[dtype], rtol=0.02)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(7, 1, 128), (2, 2, 80), (12, 4, 64)])
def test_rotation_turns_queries_and_keys_and_nothing_else(dtype, heads, kv_heads, dim, device):
    from gllm.layers.kernels import reference
    from gllm.layers.kernels.rotary import rotate

    qkv = randn(3, heads + 2 * kv_heads, dim, dtype=dtype, device=device)
    before = qkv.clone()
    angles = randn(3, dim // 2, dtype=torch.float32, device=device, seed=1)
    cos, sin = angles.cos(), angles.sin()
    q, k, v = qkv.split([heads, kv_heads, kv_heads], dim=1)
    rotate(q, k, cos, sin)
    expected = reference.rotate(before[:, : heads + kv_heads], cos, sin)
    torch.testing.assert_close(qkv[:, : heads + kv_heads].double(), expected, atol=TOLERANCE[dtype], rtol=0)
    assert torch.equal(v, before[:, heads + kv_heads :])


@pytest.mark.parametrize("sections", [None, (16, 24, 24), (2, 3, 3)])
def test_angles_take_each_pair_from_its_axis(sections, device):
    from gllm.layers.kernels.rotary import mrope_cos_sin
    from gllm.layers.rotary import RotaryTable

    dim = 2 * sum(sections or (16,))
    table = RotaryTable(dim, 1e6, sections)
    positions = torch.randint(0, 40000, (3, 7), generator=torch.Generator().manual_seed(0))
    cos, sin = mrope_cos_sin(positions.to(device), table.inv_freq.to(device), sections)
    for mine, theirs in zip((cos, sin), table.cos_sin(positions)):
        torch.testing.assert_close(mine.cpu(), theirs, atol=2e-6, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_and_values_go_to_their_slots_and_padding_goes_nowhere(dtype, device):
    from gllm.layers.kernels.kv_write import kv_write
    from gllm.layers.kv_cache import LayerKV

    qkv = randn(5, 7, 80, dtype=dtype, device=device)
    k, v = qkv[:, 3:5], qkv[:, 5:]
    kv = LayerKV(*(torch.full((4, 16, 2, 80), NAN, dtype=dtype, device=device) for _ in range(2)))
    slots = torch.tensor([63, 0, -1, 17, 30], device=device)
    kv_write(k, v, kv, slots)
    kept = [0, 1, 3, 4]
    for cache, rows in ((kv.k, k), (kv.v, v)):
        flat = cache.flatten(0, 1)
        assert torch.equal(flat[slots[kept]], rows[kept])
        assert int(flat.isnan().any(-1).any(-1).sum()) == 60


def test_no_rows_are_no_launch(device):
    from gllm.layers.kernels.kv_write import kv_write
    from gllm.layers.kernels.rms_norm import rms_norm
    from gllm.layers.kernels.rotary import rotate
    from gllm.layers.kernels.silu_mul import silu_mul
    from gllm.layers.kv_cache import LayerKV

    empty = torch.empty(0, 4, 64, device=device)
    cache = torch.zeros(1, 16, 4, 64, device=device)
    kv_write(empty, empty, LayerKV(cache, cache), torch.empty(0, dtype=torch.int64, device=device))
    rotate(empty, empty, torch.empty(0, 32, device=device), torch.empty(0, 32, device=device))
    assert rms_norm(torch.empty(0, 64, device=device), torch.ones(64, device=device), 1e-6).shape == (0, 64)
    assert silu_mul(torch.empty(0, 64, device=device)).shape == (0, 32)
