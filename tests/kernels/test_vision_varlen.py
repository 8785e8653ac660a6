import random

import pytest
import torch

from gllm.layers.vision_attention import Segments, vision_attention
from tests.kernels.cases import TOLERANCE


def random_qkv(n, heads, dim, dtype, device, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3 * heads, dim, generator=generator).to(device, dtype).chunk(3, dim=1)


@pytest.mark.parametrize("seed", range(5))
def test_segments_of_any_length_in_any_order_are_exact(seed, device):
    from gllm.layers.kernels.reference import varlen_attention
    from gllm.layers.kernels.vision_varlen import vision_varlen

    rng = random.Random(seed)
    lengths = torch.tensor([rng.randrange(1, 70) for _ in range(rng.randrange(1, 5))])
    n = int(lengths.sum())
    order = torch.tensor(rng.sample(range(n), n)) if seed % 2 else None
    dtype = [torch.float32, torch.float16, torch.bfloat16][seed % 3]
    q, k, v = random_qkv(n, 2, rng.choice([64, 80]), dtype, device, seed)
    segments = Segments.from_lengths(lengths, order).to(device)
    expected = varlen_attention(q, k, v, segments.cu_seqlens, segments.order)
    out = vision_varlen(q, k, v, segments)
    assert out.is_contiguous()
    assert (out.double() - expected).abs().max() < TOLERANCE[dtype]
    plain = vision_attention(q, k, v, segments)
    assert (plain.double() - expected).abs().max() < TOLERANCE[dtype]


def test_windows_do_not_see_each_other(device):
    from gllm.layers.kernels.vision_varlen import vision_varlen

    q, k, v = random_qkv(48, 1, 80, torch.float32, device, 0)
    segments = Segments.from_lengths(torch.tensor([16, 16, 16])).to(device)
    whole = vision_varlen(q, k, v, segments)
    v[20] += 1.0
    changed = (vision_varlen(q, k, v, segments) - whole).abs().amax((1, 2)) > 0
    assert changed.nonzero().flatten().tolist() == list(range(16, 32))
