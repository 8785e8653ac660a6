"""Bounds: hand-computed values, and what they must respond to."""

import random
from dataclasses import replace

import pytest

from gllm.core.model_shape import PRESETS
from gllm.core.request import MMItem
from rserve.sim.bounds import best_chunk, bound_throughput, bound_ttft
from rserve.sim.cost_model import CostModel
from rserve.sim.costs import load_constants
from rserve.sim.hardware import Machine, load_hardware
from rserve.sim.workload import SimRequest, load_workload, make_requests

MACHINE = Machine(load_hardware("h100"), PRESETS["qwen2.5-vl-72b"], pp=4, encoders=1)
COST = CostModel(MACHINE, load_constants("clean"))


def text_request(length):
    return SimRequest("t", 0.0, length, ())


def test_a_text_request_is_bounded_by_its_work_and_the_passage_through_the_other_stages():
    least = [COST.stage_time(stage, [(0, 1)], int(stage == 3)) for stage in range(4)]
    last = COST.least_compute_time(3, 0, 4096) + 2 * COST.fixed_time
    # The last stage has no head in its work term, so an earlier stage with the head behind it bounds more.
    expected = last + sum(least) - least[0] + 3 * COST.transfer_time(1) + 8e-3
    assert bound_ttft(COST, text_request(4096), 2048) == pytest.approx(expected)


def test_an_image_at_the_end_delays_more_than_the_prefill_alone():
    plain = bound_ttft(COST, text_request(6000), 2048)
    late = SimRequest("m", 0.0, 6000, (MMItem(1359, 4641),))
    huge = SimRequest("h", 0.0, 6000, (MMItem(0, 6000),))
    assert bound_ttft(COST, late, 2048) > plain
    assert bound_ttft(COST, huge, 2048) >= plain + COST.encoder.least_time([6000])


def test_an_image_hidden_behind_enough_text_costs_nothing():
    tail = SimRequest("m", 0.0, 20_000, (MMItem(19_968, 32),))
    assert bound_ttft(COST, tail, 2048) == bound_ttft(COST, text_request(20_000), 2048)


def test_an_encoder_on_stage_0_adds_to_its_work():
    shared = CostModel(replace(MACHINE, encoders=0), COST.constants)
    requests = make_requests(load_workload("mmmu-2k"), [0.0] * 50, random.Random(0))
    assert bound_throughput(shared, requests, 2048) < 0.8 * bound_throughput(COST, requests, 2048)


def test_throughput_is_bounded_by_the_encoder_when_it_is_slower():
    requests = make_requests(load_workload("items-1024"), [0.0] * 4, random.Random(0))
    slow = CostModel(MACHINE, replace(COST.constants, preprocess_per_token=1e-3))
    total = sum(r.prompt_len for r in requests)
    encode = sum(slow.encoder.least_time([1024] * 20) for _ in requests)
    assert bound_throughput(slow, requests, 2048) == pytest.approx(total / encode)
    two = CostModel(replace(MACHINE, encoders=2), slow.constants)
    assert bound_throughput(two, requests, 2048) == pytest.approx(2 * total / encode)


def test_the_best_chunk_of_the_72b_model_is_400_to_500_tokens():
    constants = replace(COST.constants, iteration_overhead=6e-3)
    assert 300 < best_chunk(COST, 8000) < 450
    assert 400 < best_chunk(CostModel(MACHINE, constants), 8000) < 500
    with pytest.raises(ValueError):
        best_chunk(CostModel(replace(MACHINE, pp=1), COST.constants), 8000)
