"""Workloads and arrivals: the paper's averages, placement of items, the benchmark client's rule."""

import random

import pytest

from rserve.sim.arrivals import poisson_arrivals
from rserve.sim.workload import (
    WORKLOADS,
    image_tokens,
    load_workload,
    make_requests,
    place_items,
    with_placement,
)


def requests(name, count=2000, seed=0):
    return make_requests(load_workload(name), [0.0] * count, random.Random(seed))


def test_the_first_request_arrives_at_once_and_the_mean_gap_is_the_inverse_rate():
    times = poisson_arrivals(20_000, 2.0, 1)
    assert times[0] == 0.0 and times == sorted(times)
    assert times[-1] / (len(times) - 1) == pytest.approx(0.5, rel=0.03)
    with pytest.raises(ValueError):
        poisson_arrivals(3, 0.0, 1)


@pytest.mark.parametrize(
    ("size", "tokens"), [((1920, 1080), 2691), ((2560, 1440), 4641), ((3840, 2160), 10549), ((448, 448), 256)]
)
def test_tokens_of_an_image(size, tokens):
    assert image_tokens(*size) == tokens


@pytest.mark.parametrize(("name", "total", "multimodal"), [("mmmu-1k", 8382, 5382), ("mmmu-2k", 12282, 9282)])
def test_mmmu_requests_have_the_papers_average_lengths(name, total, multimodal):
    drawn = requests(name)
    assert sum(r.prompt_len for r in drawn) / len(drawn) == pytest.approx(total, rel=0.02)
    assert sum(r.num_mm_tokens for r in drawn) / len(drawn) == multimodal


def test_figure_16_requests_have_20_items_and_2k_text_tokens():
    assert {(r.prompt_len, len(r.items)) for r in requests("items-1024", 5)} == {(2000 + 20 * 1024, 20)}
    assert {(r.prompt_len, len(r.items)) for r in requests("items-32", 5)} == {(2000 + 20 * 32, 20)}


def test_figure_2_requests_are_named_by_resolution():
    (request,) = requests("pair-3840x2160", 1)
    assert [item.num_tokens for item in request.items] == [10549, 10549]
    with pytest.raises(ValueError, match="pair-WIDTHxHEIGHT"):
        load_workload("pair-x2160")


@pytest.mark.parametrize(
    ("placement", "offsets"),
    [("images-first", [0, 20]), ("text-first", [100, 120]), ("interleaved", [33, 86])],
)
def test_items_stand_where_the_placement_says(placement, offsets):
    assert [item.offset for item in place_items(100, [20, 30], placement)] == offsets


@pytest.mark.parametrize("placement", ["images-first", "text-first", "interleaved"])
@pytest.mark.parametrize("name", list(WORKLOADS))
def test_items_never_overlap_nor_leave_the_prompt(name, placement):
    for request in make_requests(with_placement(WORKLOADS[name], placement), [0.0] * 20, random.Random(3)):
        ends = [0] + [item.end for item in request.items]
        assert all(item.offset >= end for item, end in zip(request.items, ends))
        assert ends[-1] <= request.prompt_len


def test_the_same_seed_draws_the_same_requests():
    assert (
        requests("mmmu-1k", 50, seed=5) == requests("mmmu-1k", 50, seed=5) != requests("mmmu-1k", 50, seed=6)
    )
