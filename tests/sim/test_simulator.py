"""The simulator drives the production core: results, order, limits, determinism and bounds."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gllm.core.trace import trace_events
from rserve.core.epd_core import SCHEMES
from rserve.sim.scenario import Scenario
from rserve.sim.simulator import simulate

QUICK = Scenario(num_requests=30, request_rate=1.0, max_in_flight=4)


def ttft(scenario):
    return simulate(scenario).line["mean_ttft_ms"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_request_of_every_scheme_gets_its_tokens(scheme):
    result = simulate(replace(QUICK, scheme=scheme, output_len=5))
    assert result.line["completed"] == 30 and result.line["failed"] == 0
    assert all(len(o.token_times) == 5 for o in result.outcomes)
    assert all(a < b for o in result.outcomes for a, b in pairwise(o.token_times))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_same_scenario_gives_the_same_bytes(scheme):
    lines = [json.dumps(simulate(replace(QUICK, scheme=scheme)).line) for _ in range(2)]
    assert lines[0] == lines[1]
    assert json.dumps(simulate(replace(QUICK, scheme=scheme, seed=1)).line) != lines[0]


def test_a_trace_does_not_change_the_result():
    assert simulate(QUICK, with_trace=True).line == simulate(QUICK).line


@settings(max_examples=25, deadline=None)
@given(
    scheme=st.sampled_from(SCHEMES),
    layout=st.sampled_from([(1, 4), (2, 2), (4, 1), (5, 1)]),
    workload=st.sampled_from(["mmmu-1k", "mmmu-2k", "items-1024", "items-32", "vision"]),
    placement=st.sampled_from(["text-first", "images-first", "interleaved"]),
    costs=st.sampled_from(["clean", "vidur", "clean+host-relay", "vidur+vllm"]),
    rate=st.sampled_from([0.2, 1.0, 3.0, float("inf")]),
    limits=st.tuples(st.sampled_from([512, 2048]), st.sampled_from([1, 256, 4096]), st.integers(1, 6)),
    encoders=st.integers(1, 3),
)
def test_no_simulated_result_beats_its_bounds(
    scheme, layout, workload, placement, costs, rate, limits, encoders
):
    scenario = Scenario(
        scheme=scheme,
        pp=layout[0],
        tp=layout[1],
        encoders=encoders,
        workload=workload,
        placement=placement,
        costs=costs,
        request_rate=rate,
        num_requests=6,
        token_budget=limits[0],
        embedding_batch_size=limits[1],
        max_in_flight=limits[2],
    )
    line = simulate(scenario).line
    assert line["completed"] == 6
    assert line["mean_ttft_ms"] >= line["bound_ttft_ms"] * (1 - 1e-9)
    assert line["input_throughput"] <= line["bound_throughput"] * (1 + 1e-9)


def test_ranks_do_one_thing_at_a_time_and_micro_batches_pass_the_stages_in_order():
    result = simulate(replace(QUICK, num_requests=10, request_rate=4.0), with_trace=True)
    for rank in result.ranks:
        spans = [s for s in result.spans if s.rank == rank and s.kind != "transfer"]
        assert spans
        assert all(a.start + a.duration <= b.start + 1e-9 for a, b in pairwise(spans))
    stages = [[s.args["batch"] for s in result.spans if s.rank == f"stage {k}"] for k in range(4)]
    assert stages[0] == sorted(stages[0]) and all(stage == stages[0] for stage in stages)
    assert len(trace_events(result.spans, result.ranks)) == len(result.spans) + len(result.ranks)


def test_no_more_micro_batches_are_in_flight_than_allowed():
    for limit in (1, 2, 4):
        result = simulate(replace(QUICK, request_rate=float("inf"), max_in_flight=limit), with_trace=True)
        starts = [s.start for s in result.spans if s.rank == "stage 0"]
        ends = [s.start + s.duration for s in result.spans if s.rank == "stage 3"]
        assert all(start >= end - 1e-9 for start, end in zip(starts[limit:], ends))


def test_a_chunk_is_never_prefilled_before_its_embeddings_have_landed():
    result = simulate(replace(QUICK, num_requests=5), with_trace=True)
    landed = {}
    for span in result.spans:
        if span.kind == "transfer":
            for item in span.args["items"]:
                landed[span.request, item] = span.start + span.duration
    items = {o.request.request_id: o.request.items for o in result.outcomes}
    checked = 0
    for span in result.spans:
        for chunk in span.args.get("chunks", []) if span.rank == "stage 0" else []:
            request, start, end = chunk["request"], chunk["start"], chunk["end"]
            for index, item in enumerate(items[request]):
                if item.offset < end and item.end > start:
                    assert span.start >= landed[request, index] - 1e-9
                    checked += 1
    assert checked >= 10


def test_rserve_starts_before_the_images_are_encoded_and_gllm_epd_does_not():
    for scheme, early in (("rserve", True), ("gllm-epd", False)):
        result = simulate(replace(QUICK, scheme=scheme, num_requests=1), with_trace=True)
        first = min(s.start for s in result.spans if s.rank == "stage 0")
        encoded = max(s.start + s.duration for s in result.spans if s.kind == "encode")
        assert (first < encoded) is early


def test_the_schemes_rank_as_in_the_paper_at_a_moderate_load():
    moderate = replace(QUICK, num_requests=100)
    times = {scheme: ttft(replace(moderate, scheme=scheme)) for scheme in SCHEMES}
    assert times["rserve"] < times["gllm-epd"] < times["gllm"]
    assert times["rserve"] < times["rserve-intra"]


def test_the_serial_reading_costs_far_more_throughput_than_one_request_a_micro_batch():
    busy = replace(QUICK, request_rate=float("inf"), scheme="rserve-intra", num_requests=60)
    serial, mixed = (simulate(replace(busy, intra_reading=r)).line for r in ("serial", "per-micro-batch"))
    assert serial["input_throughput"] < 0.8 * mixed["input_throughput"]


def test_a_driver_that_pays_for_embeddings_slows_an_encoder_rank_down():
    busy = replace(QUICK, request_rate=float("inf"))
    slow, fast = (simulate(replace(busy, costs=c)).line for c in ("clean+host-relay", "clean"))
    assert slow["input_throughput"] < 0.98 * fast["input_throughput"]


def test_a_second_encoder_helps_where_encoding_is_critical():
    critical = replace(QUICK, model="qwen2.5-vl-7b", pp=1, workload="items-1024", costs="vidur")
    critical = replace(critical, request_rate=float("inf"))
    one, two = (simulate(replace(critical, encoders=n)).line for n in (1, 2))
    assert two["input_throughput"] > 1.2 * one["input_throughput"]


def test_what_can_never_be_served_fails_and_the_rest_is_served():
    small = replace(QUICK, embedding_tokens=6_000, workload="mmmu-2k", num_requests=4)
    result = simulate(small)
    assert result.line["failed"] == 4 and result.line["mean_ttft_ms"] is None
    assert all("embeddings" in o.error for o in result.outcomes)
    tight = simulate(replace(QUICK, kv_tokens=9_000))
    assert 0 < tight.line["failed"] < 30 and tight.line["completed"] + tight.line["failed"] == 30


def test_preemption_under_a_small_cache_loses_no_token():
    tight = replace(QUICK, kv_tokens=12_000, page_size=16, output_len=300, num_requests=12, request_rate=2.0)
    for scheme in SCHEMES:
        result = simulate(replace(tight, scheme=scheme, workload="peers", kv_tokens=5_000))
        assert result.line["completed"] == 12, scheme


def test_scenarios_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="encoder"):
        Scenario(scheme="rserve", encoders=0)
    with pytest.raises(ValueError, match="scheme"):
        Scenario(scheme="best")
    with pytest.raises(ValueError, match="stage 0"):
        simulate(replace(QUICK, hardware="a100-40g-pcie"))
