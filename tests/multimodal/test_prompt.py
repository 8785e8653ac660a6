import pytest
from hypothesis import given
from hypothesis import strategies as st

from gllm.core.request import MMItem
from gllm.multimodal.prompt import expand

IMAGE = 5
grids = st.tuples(st.just(1), st.integers(1, 6).map(lambda x: 2 * x), st.integers(1, 6).map(lambda x: 2 * x))


def test_one_placeholder_becomes_as_many_as_the_item_has_tokens():
    expanded = expand([7, IMAGE, 8], [(1, 4, 4)], IMAGE, 2)
    assert expanded.token_ids == [7, IMAGE, IMAGE, IMAGE, IMAGE, 8]
    assert expanded.items == (MMItem(1, 4, (1, 4, 4)),)


@given(st.lists(st.tuples(st.lists(st.integers(10, 20), max_size=5), grids), max_size=6))
def test_offsets_point_at_each_items_first_placeholder(pieces):
    ids = [token for text, _ in pieces for token in (*text, IMAGE)] + [11]
    expanded = expand(ids, [grid for _, grid in pieces], IMAGE, 2)
    rest, end = [], 0
    for item, (text, grid) in zip(expanded.items, pieces, strict=True):
        assert item.grid == grid and item.num_tokens == grid[1] * grid[2] // 4
        assert expanded.token_ids[item.offset : item.end] == [IMAGE] * item.num_tokens
        assert expanded.token_ids[end : item.offset] == text
        rest += [*text, IMAGE]
        end = item.end
    assert rest + expanded.token_ids[end:] == ids


@pytest.mark.parametrize("grids", [[], [(1, 2, 2)] * 2])
def test_placeholders_and_images_must_match(grids):
    with pytest.raises(ValueError, match="1 image tokens"):
        expand([IMAGE], grids, IMAGE, 2)
