"""The arithmetic of the overlap benchmark: parts, bounds, plans, ratios, tables."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import results
from benchmarks.alternate import paired_ratio, rotated
from benchmarks.overlap_bound import Parts, fit_prefill, image_positions
from benchmarks.overlap_fig20 import copy_lines
from benchmarks.overlap_plan import Deployment, Plan, Saved, Wish, make_plan
from benchmarks.overlap_table import bound_ratio, table, throughput_ratio, ttft_ratio
from benchmarks.overlap_workloads import WORKLOADS
from benchmarks.workloads import Image, Prompt, Text
from rserve.core.epd_core import SCHEMES

PARTS = Parts(fixed=0.1, per_token=1e-3, per_pair=0.0, encode=0.2)


def line(scheme="rserve", repeat=0, rate="inf", alone=True, ttfts=(1.0, 2.0), **fields):
    return {
        "experiment": "overlap",
        "source": "measured",
        "workload": "peers",
        "model": "small",
        "dtype": "float32",
        "hardware": "2 cores",
        "commit": "abc",
        "scheme": scheme,
        "repeat": repeat,
        "request_rate": rate,
        "max_concurrency": 1 if alone else None,
        "ttfts": list(ttfts),
        "mean_ttft_ms": 1e3 * sum(ttfts) / len(ttfts),
        "median_ttft_ms": 1e3 * sum(ttfts) / len(ttfts),
        "input_throughput": 100.0,
        "failed": 0,
    } | fields


def test_prefill_costs_are_found_again_from_the_times_they_give():
    true = Parts(0.05, 2e-3, 3e-7)
    found = fit_prefill([(n, true.ttft(n)) for n in (10, 200, 500, 1300)])
    assert found.fixed == pytest.approx(0.05, rel=1e-6)
    assert found.per_token == pytest.approx(2e-3, rel=1e-6)
    assert found.per_pair == pytest.approx(3e-7, rel=1e-6)


def test_costs_that_would_be_negative_are_left_out():
    found = fit_prefill([(10, 0.5), (100, 0.9), (1000, 2.0)])  # concave: beta would be negative
    assert found.per_pair == 0.0
    assert found.fixed > 0 and found.per_token > 0


def test_one_length_tells_nothing_about_fixed_costs():
    with pytest.raises(ValueError, match="two different lengths"):
        fit_prefill([(10, 0.5), (10, 0.6)])


def test_the_bound_is_prefill_alone_when_encoding_hides_behind_it():
    assert PARTS.bound(1000, [0, 250]) == pytest.approx(0.1 + max(1.0, 0.2 + 1.0, 0.4 + 0.75))


def test_the_bound_waits_for_the_last_image_when_encoding_is_slow():
    slow = Parts(0.1, 1e-3, 0.0, encode=2.0)
    assert slow.bound(1000, [0, 250, 900]) == pytest.approx(0.1 + 6.0 + 0.1)


@given(st.lists(st.integers(0, 2000), max_size=8), st.integers(0, 2000))
def test_no_bound_is_below_prefill_or_below_encoding(positions, more):
    tokens = max(positions, default=0) + more + 1
    bound = PARTS.bound(tokens, sorted(positions))
    assert bound >= PARTS.ttft(tokens) - 1e-9
    assert bound >= PARTS.fixed + PARTS.encode * len(positions) - 1e-9


def test_throughput_is_bounded_by_the_busier_device():
    assert PARTS.throughput([(1000, 4)]) == pytest.approx(1000 / 1.0)
    assert PARTS.throughput([(1000, 10)]) == pytest.approx(1000 / 2.0)


def test_images_stand_where_text_before_them_ends():
    picture = Image(b"", "image/png", 448, 448)
    prompt = Prompt((Text("a" * 50), picture, Text("b" * 50), picture))
    first, second = image_positions(prompt, 2 * 256 + 2 * 2 + 10 + 100, 2 * 256)
    assert first == 5 + 50 + 1
    assert second == first + 256 + 2 + 50


def test_the_first_server_changes_with_every_prompt():
    assert [rotated(3, n) for n in range(3)] == [[0, 1, 2], [1, 2, 0], [2, 0, 1]]


def test_a_ratio_of_pairs_has_the_interval_of_its_logarithms():
    ratio = paired_ratio([8.0, 9.0, 10.0], [10.0, 10.0, 10.0])
    assert ratio.value == pytest.approx((0.8 * 0.9 * 1.0) ** (1 / 3))
    assert ratio.low < 0.8 and ratio.high > 1.0 and ratio.pairs == 3
    two = paired_ratio([1.0, 4.0], [1.0, 1.0])
    assert two.low == two.value == two.high == pytest.approx(2.0)
    assert paired_ratio([], []) is None


@pytest.mark.parametrize("scheme", SCHEMES)
def test_encoder_schemes_get_a_core_for_each_rank_and_gllm_gets_both(scheme):
    flags = Deployment(WORKLOADS["peers"], "float32", 512).plan(scheme).flags
    threads = flags[flags.index("--threads-per-rank") + 1]
    assert threads == ("2" if scheme == "gllm" else "1")
    assert ("--cpu-affinity" in flags) == (scheme != "gllm")
    assert flags[flags.index("--token-budget") + 1] == "512"


def test_a_plan_stays_within_its_minutes():
    wish = Wish(("gllm-epd", "rserve"), 3, (0.4, 0.9), True, 5.0, None)
    plan = make_plan(wish, PARTS, 1000, 4)
    assert len(plan.rates) == 3 and math.isinf(plan.rates[-1])
    assert plan.rates[0] == pytest.approx(0.4, rel=0.05)
    assert plan.seconds(one=1.9, capacity=1.0, schemes=2) <= 300
    bigger = make_plan(Wish(wish.schemes, 3, wish.loads, True, 50.0, None), PARTS, 1000, 4)
    assert bigger.at_rate > plan.at_rate


def test_a_resumed_run_asks_for_the_same_points(tmp_path):
    saved = Saved(Plan((0.5, math.inf), 4, 8, 3), PARTS)
    saved.write(tmp_path / "plan.json")
    assert Saved.read(tmp_path / "plan.json") == saved
    assert Saved.read(tmp_path / "none.json") is None


def test_alone_requests_are_compared_one_by_one_and_loaded_runs_repeat_by_repeat():
    ours = [line(ttfts=(0.8, 1.6)), line(repeat=1, ttfts=(0.9, 0.9))]
    base = [line("gllm-epd"), line("gllm-epd", repeat=1, ttfts=(1.0, 1.0))]
    assert ttft_ratio(ours, base, alone=True).pairs == 4
    assert ttft_ratio(ours, base, alone=False).pairs == 2
    assert throughput_ratio(ours, base).value == pytest.approx(1.0)


def test_failed_runs_are_shown_and_not_compared():
    ours, base = [line(failed=1)], [line("gllm-epd")]
    assert ttft_ratio(ours, base, alone=True) is None
    assert "failed requests: 1" in table([*ours, *base])


def test_the_distance_from_the_bound_is_taken_request_by_request():
    ratio = bound_ratio([line(ttfts=(1.0, 2.0), bounds_ms=[500.0, 1000.0])])
    assert ratio.value == pytest.approx(2.0)
    assert bound_ratio([line("gllm")]) is None


def test_the_table_has_a_row_for_every_scheme_and_load():
    lines = [
        line(scheme, rate=rate, alone=alone)
        for scheme in SCHEMES
        for rate, alone in ((0.5, False), ("inf", True))
    ]
    rows = [row for row in table(lines).splitlines() if row.startswith("|")]
    assert len(rows) == 2 + 2 * len(SCHEMES)
    assert sum("one at a time" in row for row in rows) == len(SCHEMES)


def test_figure_20_is_the_finite_rates_of_the_two_schemes(tmp_path):
    class Options:
        out = tmp_path

    for scheme in SCHEMES:
        for rate, alone in ((0.5, False), ("inf", False), ("inf", True)):
            results.append_line(tmp_path / "overlap.jsonl", line(scheme, rate=rate, alone=alone))
    for _ in range(2):  # again: not appended twice
        copy_lines(Options)
    found = results.read_lines([tmp_path / "fig20-measured.jsonl"])
    assert sorted(entry["scheme"] for entry in found) == ["gllm-epd", "rserve"]
    assert {entry["experiment"] for entry in found} == {"fig20"}
