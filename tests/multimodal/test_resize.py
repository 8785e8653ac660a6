import pytest
from hypothesis import given
from hypothesis import strategies as st

from gllm.multimodal.errors import BadInput
from gllm.multimodal.preprocessor import ImagePreprocessor, load_preprocessor
from gllm.multimodal.resize import PixelBounds, grid_of, num_tokens_of, smart_resize

BOUNDS = PixelBounds(3136, 1003520)
sides = st.integers(1, 6000)


def test_sides_are_rounded_to_multiples_within_the_bounds():
    assert smart_resize(100, 75, 28, BOUNDS) == (112, 84)
    assert smart_resize(20, 20, 28, BOUNDS) == (56, 56)
    assert smart_resize(4000, 3000, 28, BOUNDS) == (1148, 840)
    assert grid_of(112, 84, 14) == (1, 8, 6)
    assert num_tokens_of((1, 8, 6), 2) == 12


@given(sides, sides, st.integers(784, 10**6), st.integers(0, 10**7))
def test_the_rule_equals_that_of_transformers(height, width, low, extra):
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as reference

    bounds = PixelBounds(low, low + extra)
    try:
        expected = reference(height, width, 28, low, low + extra)
    except ValueError:
        with pytest.raises(BadInput):
            smart_resize(height, width, 28, bounds)
    else:
        # The reference lets a side vanish where neither bound is hit; an image never has no pixels here.
        assert smart_resize(height, width, 28, bounds) == tuple(max(side, 28) for side in expected)


@given(sides, sides)
def test_resized_sides_are_multiples_and_resizing_twice_changes_nothing(height, width):
    if max(height, width) > 200 * min(height, width):
        return
    resized = smart_resize(height, width, 28, BOUNDS)
    assert all(side >= 28 and side % 28 == 0 for side in resized)
    assert resized[0] * resized[1] >= BOUNDS.min_pixels
    if max(resized) <= 200 * min(resized) and resized[0] * resized[1] <= BOUNDS.max_pixels:
        assert smart_resize(*resized, 28, BOUNDS) == resized


@pytest.mark.parametrize("size", [(1, 200), (200, 1), (3, 600)])
def test_a_ratio_of_exactly_200_is_served(size):
    assert min(smart_resize(*size, 28, BOUNDS)) >= 28


@pytest.mark.parametrize("size", [(1, 201), (6000, 29)])
def test_a_ratio_above_200_is_refused_with_the_size_and_the_limit(size):
    with pytest.raises(BadInput, match=rf"{size[1]} x {size[0]}.*200 to 1"):
        smart_resize(*size, 28, BOUNDS)


def test_one_bound_of_a_request_moves_the_other_along():
    assert BOUNDS.override(None, None) == BOUNDS
    assert BOUNDS.override(2_000_000, None) == PixelBounds(2_000_000, 2_000_000)
    assert BOUNDS.override(None, 1000) == PixelBounds(1000, 1000)
    with pytest.raises(BadInput, match="min_pixels is 9, above max_pixels 8"):
        BOUNDS.override(9, 8)


def test_low_detail_caps_the_area_and_other_details_do_not():
    assert BOUNDS.with_detail("low") == PixelBounds(3136, 512 * 512)
    assert BOUNDS.with_detail("high") == BOUNDS.with_detail("auto") == BOUNDS.with_detail(None) == BOUNDS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"min_pixels": 784, "max_pixels": 7840}', PixelBounds(784, 7840)),
        ('{"size": {"shortest_edge": 784, "longest_edge": 7840}}', PixelBounds(784, 7840)),
        ('{"size": {"shortest_edge": 1, "longest_edge": 2}, "max_pixels": 7840}', PixelBounds(1, 7840)),
        ('{"size": {"min_pixels": 784, "max_pixels": 7840}}', PixelBounds(784, 7840)),
        ('{"patch_size": 14}', PixelBounds(3136, 1003520)),
    ],
)
def test_bounds_are_read_in_the_old_and_the_new_form(tmp_path, text, expected):
    (tmp_path / "preprocessor_config.json").write_text(text)
    assert load_preprocessor(tmp_path).bounds == expected


def test_the_form_that_transformers_5_saves_is_read(tmp_path):
    (tmp_path / "processor_config.json").write_text(
        '{"image_processor": {"patch_size": 16, "merge_size": 2}}'
    )
    assert load_preprocessor(tmp_path) == ImagePreprocessor(patch_size=16)
    assert load_preprocessor(tmp_path).factor == 32


def test_a_text_model_has_no_preprocessor(tmp_path):
    assert load_preprocessor(tmp_path) is None


def test_a_setting_that_would_be_ignored_is_refused_at_start(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text('{"do_resize": false}')
    with pytest.raises(ValueError, match="do_resize"):
        load_preprocessor(tmp_path)
