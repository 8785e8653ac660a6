import pytest
import torch
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from gllm.layers.norm import RMSNorm
from gllm.layers.placement import Placement


@pytest.fixture(params=[torch.float32, torch.bfloat16, torch.float16], ids=str)
def norms(request):
    ours, theirs = RMSNorm(64, 1e-6, Placement(request.param)), Qwen2RMSNorm(64, 1e-6).to(request.param)
    weight = torch.rand(64) + 0.5
    ours.weight.copy_(weight)
    theirs.weight.data.copy_(weight)
    return ours, theirs


def test_the_norm_gives_the_same_bits_as_transformers(norms):
    ours, theirs = norms
    x = torch.randn(7, 64).to(ours.weight.dtype) * 3
    before = x.clone()
    assert torch.equal(ours(x), theirs(x))
    assert torch.equal(x, before)


def test_the_residual_is_added_first_and_returned(norms):
    ours, theirs = norms
    x, residual = torch.randn(2, 7, 64).to(ours.weight.dtype)
    total, kept = x + residual, residual.clone()
    normed, summed = ours(x, residual)
    assert torch.equal(normed, theirs(total)) and torch.equal(summed, total)
    assert torch.equal(residual, kept)
