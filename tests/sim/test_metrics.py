"""Metrics under the benchmark client's names; the client uses the same arithmetic."""

import numpy as np
import pytest

from rserve.sim.metrics import Outcome, attainment, metrics, percentile, summarise
from rserve.sim.workload import SimRequest


def outcome(arrival, *times, error="", prompt=100):
    return Outcome(SimRequest("r", arrival, prompt, (), max(1, len(times))), list(times), error)


def test_percentiles_are_interpolated():
    assert percentile([4, 1, 3, 2], 90) == pytest.approx(3.7)
    assert percentile([5], 99) == 5


def test_summaries_equal_those_of_numpy():
    values = np.array([500.0, 100.0, 900.0, 300.0, 700.0])
    ours = summarise("ttft", list(values / 1000))
    theirs = {"mean": values.mean(), "median": np.median(values), "std": values.std()}
    theirs |= {f"p{q}": np.percentile(values, q) for q in (90, 95, 99)}
    assert ours == pytest.approx({f"{label}_ttft_ms": value for label, value in theirs.items()})
    assert set(summarise("itl", []).values()) == {None}


def test_times_are_counted_from_the_arrival():
    line = metrics([outcome(1.0, 1.5, 1.7, 2.1), outcome(2.0, 3.0)], None)
    assert line["mean_ttft_ms"] == pytest.approx(750)
    assert line["mean_tpot_ms"] == pytest.approx(300) and line["mean_itl_ms"] == pytest.approx(300)
    assert line["duration"] == pytest.approx(2.0)
    assert line["input_throughput"] == pytest.approx(100) and line["slo_attainment"] is None


def test_a_failed_request_misses_its_limit_and_adds_no_tokens():
    outcomes = [outcome(0.0, 0.5), outcome(0.0, 3.0), outcome(0.0, error="too long")]
    assert attainment(outcomes, 1_000) == pytest.approx(1 / 3)
    line = metrics(outcomes, 1_000)
    assert (line["completed"], line["failed"], line["slo"]) == (2, 1, {"ttft": 1_000})
    assert line["total_input_tokens"] == 200


def test_a_run_in_which_all_fail_has_no_times():
    line = metrics([outcome(0.0, error="too long")], 1_000)
    assert line["mean_ttft_ms"] is None and line["input_throughput"] == 0.0
