"""Arrivals, the event parser, metrics, and result lines."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import results
from benchmarks.client import metrics
from benchmarks.client.record import RequestRecord
from benchmarks.client.sse import EventStream
from rserve.sim.arrivals import poisson_arrivals


def test_the_first_request_is_sent_at_once_and_gaps_average_to_one_over_the_rate() -> None:
    times = poisson_arrivals(20_001, request_rate=4.0, seed=7)
    assert times[0] == 0.0
    assert times == sorted(times)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert mean == pytest.approx(0.25, rel=0.03)
    assert deviation == pytest.approx(mean, rel=0.03)  # exponential: as wide as its mean


def test_one_seed_gives_one_pattern_which_the_rate_only_stretches() -> None:
    slow, fast = poisson_arrivals(50, 1.0, seed=3), poisson_arrivals(50, 2.0, seed=3)
    assert slow == pytest.approx([2 * time for time in fast])
    assert poisson_arrivals(50, 1.0, seed=4) != slow


def test_an_infinite_rate_sends_everything_at_once() -> None:
    assert poisson_arrivals(3, math.inf, seed=0) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan])
def test_a_rate_that_is_not_positive_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        poisson_arrivals(3, rate, seed=0)


EVENTS = ['{"a": 1}', "日本 é", "two\nlines", "[DONE]"]


@given(
    cuts=st.lists(st.integers(0, 200), max_size=12),
    ending=st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_events_are_the_same_wherever_the_stream_is_cut(cuts: list[int], ending: str) -> None:
    lines = []
    for event in EVENTS:
        lines += [": ping", "event: token", *(f"data: {part}" for part in event.split("\n")), ""]
    raw = "".join(line + ending for line in lines).encode()
    edges = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
    stream = EventStream()
    found = [event for a, b in itertools.pairwise(edges) for event in stream.feed(raw[a:b])]
    assert found + stream.close() == EVENTS


def test_the_last_event_counts_without_an_empty_line_after_it() -> None:
    stream = EventStream()
    assert stream.feed(b"data: x") == []
    assert stream.close() == ["x"]
    assert stream.close() == []


def record(ttft: float, latency: float, tokens: int = 1, error: str = "") -> RequestRecord:
    return RequestRecord(0, 0.0, 0.0, ttft, latency, [], 100, 60, tokens, True, "", error)


def test_percentiles_are_interpolated_and_in_milliseconds() -> None:
    summary = metrics.summarise("ttft", [4.0, 1.0, 3.0, 2.0])
    assert summary["mean_ttft_ms"] == pytest.approx(2500.0)
    assert summary["median_ttft_ms"] == pytest.approx(2500.0)
    assert summary["p90_ttft_ms"] == pytest.approx(3700.0)
    assert summary["std_ttft_ms"] == pytest.approx(1118.033988)


def test_a_latency_without_samples_is_empty_not_zero() -> None:
    fields = metrics.compute([record(1.0, 1.0)], duration=1.0, slo_ms={})
    assert fields["mean_tpot_ms"] is None
    assert fields["mean_ttft_ms"] == 1000.0


def test_throughputs_divide_by_the_duration_and_split_text_from_images() -> None:
    fields = metrics.compute([record(1.0, 2.0, 5), record(1.0, 2.0, 3), record(0, 0, 0, "x")], 4.0, {})
    assert (fields["input_throughput"], fields["input_text_throughput"]) == (50.0, 20.0)
    assert (fields["input_vision_throughput"], fields["output_throughput"]) == (30.0, 2.0)
    assert (fields["total_throughput"], fields["request_throughput"]) == (52.0, 0.5)
    assert fields["concurrency"] == 1.0


def test_the_busiest_second_counts_every_token_that_came_in_it() -> None:
    first, second = record(0.5, 1.6, 3), record(0.9, 0.9)
    first.itls = [0.3, 0.8]  # tokens at 0.5, 0.8 and 1.6 s; the second request's at 0.9 s
    assert metrics.compute([first, second], 1.6, {})["max_output_tokens_per_s"] == 3


def test_every_limit_must_be_met_for_slo_attainment() -> None:
    records = [record(1.0, 2.0, 11), record(1.0, 9.0, 11), record(3.0, 4.0, 11)]
    assert metrics.slo_attainment(records, {"ttft": 2000.0}) == pytest.approx(2 / 3)
    assert metrics.slo_attainment(records, {"ttft": 2000.0, "tpot": 200.0}) == pytest.approx(1 / 3)


def test_lines_are_appended_and_read_back_with_an_infinite_rate(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "a.jsonl"
    results.append_line(file, {"source": "measured", "request_rate": math.inf, "failed": 0, "scheme": "gllm"})
    results.append_line(file, {"source": "simulated", "request_rate": 2.0, "failed": 1, "scheme": "rserve"})
    lines = results.read_lines([tmp_path / "deep"])
    assert [results.rate_of(line) for line in lines] == [math.inf, 2.0]
    assert results.select(lines, source="measured", request_rate=math.inf) == lines[:1]
    assert results.select(lines, scheme=("gllm", "rserve")) == lines


def test_a_point_is_finished_only_without_failed_requests(tmp_path: Path) -> None:
    lines = [{"scheme": "gllm", "failed": 0}, {"scheme": "rserve", "failed": 2}]
    assert results.is_finished(lines, {"scheme": "gllm"})
    assert not results.is_finished(lines, {"scheme": "rserve"})
    assert not results.is_finished(lines, {"scheme": "gllm-epd"})


def test_a_line_without_a_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="source"):
        results.append_line(tmp_path / "a.jsonl", {"scheme": "gllm"})


def test_a_broken_line_is_named_by_file_and_number(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"source": "measured"}\n{"sour\n')
    with pytest.raises(ValueError, match=r"a\.jsonl:2"):
        results.read_lines([tmp_path])
