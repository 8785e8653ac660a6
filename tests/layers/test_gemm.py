import pytest
import torch

from gllm.layers import gemm
from gllm.layers.activation import silu_mul


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("rows", [1, 7, 8, 40])
def test_a_bf16_product_is_right_with_and_without_bf16_instructions(native, rows, monkeypatch):
    monkeypatch.setitem(gemm._NATIVE_ON_CPU, torch.bfloat16, native)
    x, weight, bias = torch.randn(rows, 32), torch.randn(16, 32), torch.randn(16)
    x, weight, bias = x.bfloat16(), weight.bfloat16(), bias.bfloat16()
    exact = x.double() @ weight.double().T + bias.double()
    out = gemm.linear(x, weight, bias)
    assert out.dtype is torch.bfloat16
    torch.testing.assert_close(out.double(), exact, atol=0.1, rtol=0.01)


@pytest.mark.parametrize("most_widened", [1, 32 * 3, 32 * 16])
@pytest.mark.parametrize("with_bias", [True, False])
def test_a_weight_is_widened_slice_by_slice(most_widened, with_bias, monkeypatch):
    monkeypatch.setitem(gemm._NATIVE_ON_CPU, torch.bfloat16, False)
    monkeypatch.setattr(gemm, "MOST_WIDENED", most_widened)
    x, weight, bias = (
        torch.randn(9, 32).bfloat16(),
        torch.randn(16, 32).bfloat16(),
        torch.randn(16).bfloat16(),
    )
    out = gemm.linear(x, weight, bias if with_bias else None)
    exact = x.double() @ weight.double().T + (bias.double() if with_bias else 0)
    torch.testing.assert_close(out.double(), exact, atol=0.1, rtol=0.01)


@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 2, 9, 33, 128, 257, 513])
@pytest.mark.parametrize("with_bias", [True, False])
def test_an_fp32_product_is_right_for_any_rows_and_strides(onednn, rows, with_bias, monkeypatch):
    monkeypatch.setattr(gemm, "_HAS_ONEDNN", onednn)
    wide, weight = torch.randn(rows, 64), torch.randn(16, 32)
    bias = torch.randn(16) if with_bias else None
    x = wide[:, 16:48]
    exact = x.double() @ weight.double().T + (bias.double() if with_bias else 0)
    torch.testing.assert_close(gemm.linear(x, weight, bias).double(), exact, atol=1e-5, rtol=0)
    batched = gemm.linear(x.unsqueeze(0), weight, bias)
    assert batched.shape == (1, rows, 16)
    torch.testing.assert_close(batched[0].double(), exact, atol=1e-5, rtol=0)


def test_silu_mul_gates_the_second_half_with_the_first():
    x = torch.randn(5, 12)
    expected = torch.nn.functional.silu(x[:, :6]) * x[:, 6:]
    assert torch.equal(silu_mul(x.clone()), expected)


def test_onednn_sees_few_numbers_of_rows_for_it_keeps_memory_for_each(monkeypatch):
    seen = set()

    def product(x, weight, bias, *_):
        seen.add(len(x))
        return torch.nn.functional.linear(x, weight, bias)

    monkeypatch.setattr(gemm, "_HAS_ONEDNN", True)
    monkeypatch.setattr(gemm, "_onednn_linear", product)
    weight = torch.randn(4, 8)
    for rows in range(2, 600):
        assert gemm.linear(torch.randn(rows, 8), weight, None).shape == (rows, 4)
    assert seen == set(gemm.ROW_BUCKETS)
