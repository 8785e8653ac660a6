"""M-RoPE positions against transformers' get_rope_index."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel

from gllm.layers.mrope import mrope_positions


@dataclass(frozen=True)
class Item:
    offset: int
    grid: tuple[int, int, int]
    seconds_per_grid: float = 0.0

    @property
    def num_tokens(self) -> int:
        return self.grid[0] * (self.grid[1] // 2) * (self.grid[2] // 2)


class Oracle:
    """get_rope_index needs the configuration and one method of the model only."""

    config = Qwen2_5_VLConfig(vision_config={"tokens_per_second": 2})
    get_vision_position_ids = Qwen2_5_VLModel.get_vision_position_ids


def expected(num_tokens: int, items: list[Item]) -> tuple[torch.Tensor, int]:
    kinds = torch.zeros(1, num_tokens, dtype=torch.int32)
    for item in items:
        kinds[0, item.offset : item.offset + item.num_tokens] = 2 if item.seconds_per_grid else 1
    images = [item.grid for item in items if not item.seconds_per_grid]
    videos = [item for item in items if item.seconds_per_grid]
    positions, delta = Qwen2_5_VLModel.get_rope_index(
        Oracle(),
        torch.zeros(1, num_tokens, dtype=torch.int64),
        kinds,
        image_grid_thw=torch.tensor(images) if images else None,
        video_grid_thw=torch.tensor([item.grid for item in videos]) if videos else None,
        second_per_grid_ts=torch.tensor([item.seconds_per_grid for item in videos]) if videos else None,
    )
    return positions[:, 0], int(delta)


def lay_out(
    gaps: list[int], grids: list[tuple[int, int, int]], seconds: list[float]
) -> tuple[int, list[Item]]:
    items, offset = [], 0
    for gap, grid, second in zip(gaps, grids, seconds):
        items.append(Item(offset + gap, grid, second))
        offset = items[-1].offset + items[-1].num_tokens
    return offset + gaps[-1], items


side = st.integers(1, 9).map(lambda n: 2 * n)
image = st.tuples(st.just((1,)), side, side).map(lambda g: ((1, g[1], g[2]), 0.0))
video = st.tuples(st.integers(1, 4), side, side, st.sampled_from([0.4, 0.5, 1.0, 2.7])).map(
    lambda g: ((g[0], g[1], g[2]), g[3])
)


@settings(deadline=None, max_examples=60)
@given(st.data(), st.lists(st.one_of(image, video), min_size=1, max_size=5))
def test_positions_and_delta_equal_transformers(data, vision):
    gaps = data.draw(st.lists(st.integers(1, 7), min_size=len(vision) + 1, max_size=len(vision) + 1))
    num_tokens, items = lay_out(gaps, [grid for grid, _ in vision], [second for _, second in vision])
    found = mrope_positions(num_tokens, items, 2, 2)
    positions, delta = expected(num_tokens, items)
    assert torch.equal(found.positions_of(0, num_tokens), positions)
    assert found.delta == delta


def test_an_image_first_and_an_image_last_equal_transformers():
    num_tokens, items = lay_out([0, 3, 0], [(1, 4, 6), (1, 8, 2)], [0.0, 0.0])
    found = mrope_positions(num_tokens, items, 2, 2)
    assert torch.equal(found.positions_of(0, num_tokens), expected(num_tokens, items)[0])


def test_the_temporal_groups_of_a_video_count_as_one_video():
    whole = [Item(3, (3, 4, 6), 1.5)]
    groups = [Item(3 + 6 * k, (1, 4, 6), 1.5) for k in range(3)]
    as_one, as_groups = mrope_positions(30, whole, 2, 2), mrope_positions(30, groups, 2, 2)
    assert torch.equal(as_one.positions_of(0, 30), as_groups.positions_of(0, 30))
    assert as_one.delta == as_groups.delta


def test_adjacent_images_are_not_a_video():
    found = mrope_positions(8, [Item(0, (1, 4, 4)), Item(4, (1, 4, 4))], 2, 2)
    assert found.positions_of(0, 8)[0].tolist() == [0, 0, 0, 0, 2, 2, 2, 2]


def test_the_worked_example_of_the_docstring():
    found = mrope_positions(9, [Item(2, (1, 4, 6))], 2, 2)
    time, row, column = found.positions_of(0, 9).tolist()
    assert time == [0, 1, 2, 2, 2, 2, 2, 2, 5]
    assert row == [0, 1, 2, 2, 2, 3, 3, 3, 5]
    assert column == [0, 1, 2, 3, 4, 2, 3, 4, 5]
    assert found.delta == -3


@pytest.mark.parametrize("start,end", [(0, 5), (4, 9), (7, 13), (9, 12), (11, 12), (8, 9)])
def test_any_range_of_prompt_and_output_continues_the_prompt(start, end):
    found = mrope_positions(9, [Item(2, (1, 4, 6))], 2, 2)
    whole = torch.cat((found.positions_of(0, 9), torch.arange(9, 20).expand(3, -1) - 3), dim=1)
    assert torch.equal(found.positions_of(start, end), whole[:, start:end])


def test_text_alone_counts_from_zero_for_ever():
    found = mrope_positions(5, [], 2, 2)
    assert found.delta == 0
    assert torch.equal(found.positions_of(3, 8), torch.arange(3, 8).expand(3, -1))
