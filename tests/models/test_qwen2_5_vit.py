"""The vision tower against transformers', in fp32."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.vision_utils import get_vision_window_index

from gllm.layers.comm import ThreadTensorParallel
from gllm.layers.placement import Placement
from gllm.models.qwen2_5_vit import VisionTower
from gllm.models.window import VisionLayouts
from tests.models.vision_oracle import SHAPE, oracle, ours, random_patches

BATCHES = {
    "one window": [(1, 8, 8)],
    "smaller than a window": [(1, 2, 2)],
    "odd edges": [(1, 10, 14)],
    "one row": [(1, 2, 40)],
    "one column": [(1, 26, 2)],
    "equal images": [(1, 16, 16), (1, 16, 16), (1, 16, 16)],
    "images of mixed sizes": [(1, 4, 6), (1, 20, 12), (1, 8, 8), (1, 20, 12), (1, 6, 26)],
    "a video": [(3, 10, 12)],
    "images around a video": [(1, 8, 10), (4, 6, 6), (1, 22, 18)],
}


@pytest.fixture(scope="module")
def reference():
    return oracle()


@pytest.mark.parametrize("grids", BATCHES.values(), ids=BATCHES.keys())
def test_embeddings_equal_transformers(reference, grids):
    tower, unread = ours(reference)
    assert not unread
    patches = random_patches(grids)
    expected = reference(patches, torch.tensor(grids)).pooler_output
    torch.testing.assert_close(tower(patches, grids), expected, atol=1e-4, rtol=1e-4)


def test_an_item_gets_the_same_embeddings_whatever_comes_with_it(reference):
    tower, _ = ours(reference)
    grids = BATCHES["images around a video"] + BATCHES["images of mixed sizes"]
    patches = random_patches(grids)
    together = tower(patches, grids).split([t * h * w // 4 for t, h, w in grids])
    for grid, mine, found in zip(grids, patches.split([t * h * w for t, h, w in grids]), together):
        torch.testing.assert_close(tower(mine, [grid]), found, atol=1e-5, rtol=0)


def test_the_temporal_groups_of_a_video_may_be_encoded_one_by_one(reference):
    tower, _ = ours(reference)
    patches = random_patches([(3, 10, 12)])
    groups = [tower(part, [(1, 10, 12)]) for part in patches.split(120)]
    torch.testing.assert_close(torch.cat(groups), tower(patches, [(3, 10, 12)]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_that_share_heads_unevenly_give_the_same_embeddings(reference, size):
    grids = BATCHES["images of mixed sizes"]
    patches = random_patches(grids)
    towers = [ours(reference, Placement(tp=tp))[0] for tp in ThreadTensorParallel.create(size)]
    with ThreadPoolExecutor(size) as pool:
        results = list(pool.map(lambda tower: tower(patches, grids), towers))
    expected = ours(reference)[0](patches, grids)
    for result in results:
        torch.testing.assert_close(result, expected, atol=1e-4, rtol=1e-4)


def test_more_ranks_than_heads_are_refused():
    with pytest.raises(ValueError, match="above 5 vision heads"):
        VisionTower(SHAPE, Placement(tp=ThreadTensorParallel.create(6)[0]))


def test_bf16_stays_close_to_fp32(reference):
    grids = BATCHES["odd edges"]
    patches = random_patches(grids)
    exact = ours(reference)[0](patches, grids)
    rough = ours(reference, Placement(dtype=torch.bfloat16))[0](patches, grids)
    assert rough.dtype is torch.bfloat16
    assert (rough.float() - exact).norm() < 0.05 * exact.norm()


sides = st.integers(1, 11).map(lambda n: 2 * n)
grid_lists = st.lists(st.tuples(st.integers(1, 3), sides, sides), min_size=1, max_size=4)


@settings(deadline=None, max_examples=60)
@given(grid_lists)
def test_windows_and_frames_hold_the_cells_that_transformers_puts_together(grids):
    layout = VisionLayouts(SHAPE, torch.device("cpu")).layout(grids)
    index, bounds = get_vision_window_index(torch.tensor(grids), 2, 112, 14)
    bounds = (bounds // 4).tolist()
    expected = {frozenset(index[a:b].tolist()) for a, b in pairwise(bounds)}
    ends = (layout.windows.cu_seqlens // 4).tolist()
    assert {frozenset(layout.order[a:b].tolist()) for a, b in pairwise(ends)} == expected
    assert torch.equal(layout.order[layout.inverse], torch.arange(len(layout.order)))

    per_frame = [h * w // 4 for t, h, w in grids for _ in range(t)]
    frames = {frozenset(part.tolist()) for part in torch.arange(sum(per_frame)).split(per_frame)}
    order = layout.order.repeat_interleave(4)
    if layout.frames.order is not None:
        order = order[layout.frames.order]
    ends = layout.frames.cu_seqlens.tolist()
    assert {frozenset(order[a:b].tolist()) for a, b in pairwise(ends)} == frames


@settings(deadline=None, max_examples=30)
@given(grid_lists)
def test_segments_of_one_length_are_one_group(grids):
    layout = VisionLayouts(SHAPE, torch.device("cpu")).layout(grids)
    for segments in (layout.windows, layout.frames):
        lengths = [group.length for group in segments.groups]
        assert len(set(lengths)) == len(lengths)
        assert segments.max_length == max(lengths)


def test_layouts_are_computed_once_and_the_oldest_is_dropped():
    layouts = VisionLayouts(SHAPE, torch.device("cpu"), max_batches=2)
    first = layouts.layout([(1, 8, 8)])
    layouts.layout([(1, 4, 4)])
    assert layouts.layout([(1, 8, 8)]) is first
    layouts.layout([(1, 2, 2)])
    assert layouts.layout([(1, 8, 8)]) is first
    layouts.layout([(1, 4, 4)])
    layouts.layout([(1, 2, 2)])
    assert layouts.layout([(1, 8, 8)]) is not first
