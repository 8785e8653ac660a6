"""Rotary embedding against transformers' formulas."""

import pytest
import torch
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLRotaryEmbedding, apply_rotary_pos_emb

from gllm.layers.rotary import RotaryTable, apply_rotary, rotate_in_place

SECTION = (4, 6, 6)
HEAD_DIM = 32


def reference(positions: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    config = Qwen2_5_VLTextConfig(
        hidden_size=4 * HEAD_DIM,
        num_attention_heads=4,
        num_key_value_heads=2,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6, "mrope_section": list(SECTION)},
    )
    cos, sin = Qwen2_5_VLRotaryEmbedding(config)(q, positions[:, None])
    q, k = apply_rotary_pos_emb(q.transpose(0, 1)[None], k.transpose(0, 1)[None], cos, sin)
    return q[0].transpose(0, 1), k[0].transpose(0, 1)


def random_heads(num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    fused = torch.randn(num_tokens, 8, HEAD_DIM, generator=generator)
    return fused[:, :4], fused[:, 4:6]


def test_mrope_equals_transformers_and_works_in_place_on_views_of_a_fused_projection():
    positions = torch.randint(0, 5000, (3, 17), generator=torch.Generator().manual_seed(1))
    q, k = random_heads(17)
    expected = reference(positions, q.clone(), k.clone())
    values = q._base[:, 6:].clone()
    apply_rotary(q, k, *RotaryTable(HEAD_DIM, 1e6, SECTION).cos_sin(positions))
    torch.testing.assert_close(q, expected[0], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(k, expected[1], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(q._base[:, 6:], values, atol=0, rtol=0)


def test_text_positions_give_the_same_angles_in_one_row_and_in_three():
    positions = torch.arange(100, 120)
    plain = RotaryTable(HEAD_DIM, 1e6).cos_sin(positions)
    sections = RotaryTable(HEAD_DIM, 1e6, SECTION).cos_sin(positions.expand(3, -1))
    assert plain[0].shape == (20, HEAD_DIM // 2)
    for one, three in zip(plain, sections):
        assert torch.equal(one, three)


def test_bf16_is_rounded_once():
    cos, sin = RotaryTable(HEAD_DIM, 1e4).cos_sin(torch.arange(9))
    q, _ = random_heads(9)
    half = q.bfloat16()
    wide = half.float()
    rotate_in_place(half, cos, sin)
    rotate_in_place(wide, cos, sin)
    assert torch.equal(half, wide.bfloat16())


def test_position_zero_leaves_a_head_as_it_is():
    q, _ = random_heads(3)
    before = q.clone()
    rotate_in_place(q, *RotaryTable(HEAD_DIM, 1e6, SECTION).cos_sin(torch.zeros(3, 3, dtype=torch.int64)))
    assert torch.equal(q, before)


def test_sections_that_do_not_fill_half_a_head_are_refused():
    with pytest.raises(ValueError, match="does not sum to 16"):
        RotaryTable(HEAD_DIM, 1e6, (4, 4, 4))
