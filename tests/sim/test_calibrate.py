"""Calibration: a fit of times that known constants gave finds these constants; files give them back."""

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rserve.calibration.constant_set import Measured, constant_set, read_points, slowed
from rserve.calibration.measure_encoder import BATCHES
from rserve.calibration.measure_request import RequestCosts
from rserve.calibration.measure_stage import stage_shapes
from rserve.calibration.measure_transfer import Road, Transfers
from rserve.calibration.stopwatch import Stopwatch
from rserve.sim.calibrate import EncodePoint, StagePoint, fit_encoder, fit_stage, worst_errors
from rserve.sim.cost_model import CostModel
from rserve.sim.costs import Table, load_constants, read_sourced
from rserve.sim.hardware import Hardware, Machine, load_hardware, load_model
from rserve.sim.scenario import Scenario
from rserve.sim.simulator import simulate

SMALL = "small"
MODEL = replace(load_model(SMALL), dtype="float32")
DEVICE = Hardware("core", 100e9, 1e15, 8e9, 4e9)  # memory so fast that only the tables count
CLEAN = load_constants("clean")
TRANSFERS = Transfers(1e-4, Road(2e-4, 8e9), 2e-10, Road(6e-5, 4e9), Road(1.4e-4, 1e9))
REQUEST = RequestCosts(5e-3, 2e-5, 3e-4)


def machine(hardware=DEVICE):
    return Machine(hardware, MODEL, encoders=1)


def synthetic(constants):
    """What `rserve calibrate` measures, at the times of known constants."""
    cost = CostModel(machine(), constants)
    stage = [StagePoint(chunks, n, cost.stage_time(0, chunks, n)) for chunks, n in stage_shapes(1024)]
    return cost, stage, [EncodePoint(items, cost.encode_time(items)) for items in BATCHES]


def known(iteration=2e-3, chunk=1e-4, prefill=0.6, head=0.3, attention=0.2, vision=(0.5, 0.3)):
    sizes = (1, 2, 4, 8, 16)
    return replace(
        CLEAN,
        gemm_utilisation=Table(tuple((n, prefill * n / 16) for n in sizes)),
        head_utilisation=Table(tuple((n, head * n / 16) for n in sizes)),
        attention_utilisation=Table(((1, attention / 4), (36, attention))),
        vision_gemm_utilisation=Table(((1, vision[0]),)),
        vision_attention_utilisation=Table(((1, vision[1]),)),
        elementwise_share=0.0,
        iteration_overhead=iteration,
        chunk_overhead=chunk,
        encoder_launch_floor=0.0,
        preprocess_inline=False,
    )


def fitted(stage, encodes):
    fits = fit_stage(CostModel(machine(), CLEAN).stages[0], stage), fit_encoder(MODEL.vision, encodes)
    measured = Measured("a test", stage, encodes, TRANSFERS, REQUEST, 8e9)
    return *fits, constant_set(measured, *fits)


def read_back(folder, content):
    path = folder / "mine.json"
    path.write_text(json.dumps(content))
    return str(path), CostModel(machine(load_hardware(str(path))), load_constants(str(path)))


def test_known_constants_are_recovered():
    _, stage, encodes = synthetic(known())
    found, encoder, _ = fitted(stage, encodes)
    assert found.iteration_overhead == pytest.approx(2e-3, rel=1e-3)
    assert found.chunk_overhead == pytest.approx(1e-4, rel=1e-3)
    assert dict(found.gemm)[520] == pytest.approx(0.6 * 100e9, rel=1e-3)
    assert dict(found.gemm)[4] == pytest.approx(0.6 * 4 / 16 * 100e9, rel=1e-3)
    assert dict(found.head)[2] == pytest.approx(0.3 * 2 / 16 * 100e9, rel=1e-3)
    assert dict(found.attention) == pytest.approx({1: 5e9, 36: 20e9, 136: 20e9, 520: 20e9}, rel=1e-3)
    assert encoder.attention == pytest.approx(30e9, rel=1e-3)
    assert dict(encoder.gemm)[1024] == pytest.approx(50e9, rel=1e-3)


@settings(max_examples=40, deadline=None)
@given(
    iteration=st.floats(0, 4e-3),
    chunk=st.floats(0, 5e-4),
    prefill=st.floats(0.2, 0.9),
    head=st.floats(0.1, 0.9),
    attention=st.floats(0.05, 0.5),
    vision=st.tuples(st.floats(0.1, 0.9), st.floats(0.1, 0.9)),
)
def test_the_fit_predicts_what_it_was_not_shown(
    tmp_path_factory, iteration, chunk, prefill, head, attention, vision
):
    cost, stage, encodes = synthetic(known(iteration, chunk, prefill, head, attention, vision))
    _, found = read_back(tmp_path_factory.mktemp("set"), fitted(stage, encodes)[2])
    for chunks, samples in (
        (((0, 700),), 0),
        (((0, 342),), 1),
        (((300, 400), (0, 300)), 1),
        (((512, 1), (0, 90)), 1),
    ):
        real = cost.stage_time(0, chunks, samples)
        assert found.stage_time(0, chunks, samples) == pytest.approx(real, rel=0.02)
    for items in ((64,) * 8, (256, 64, 64), (576,)):
        assert found.encode_time(items) == pytest.approx(cost.encode_time(items), rel=0.02)


@settings(max_examples=40, deadline=None)
@given(noise=st.lists(st.floats(0.8, 1.25), min_size=50, max_size=50))
def test_noisy_times_still_give_a_usable_set(tmp_path_factory, noise):
    _, stage, encodes = synthetic(known())
    stage = [replace(p, seconds=p.seconds * factor) for p, factor in zip(stage, noise)]
    encodes = [replace(p, seconds=p.seconds * factor) for p, factor in zip(encodes, noise[::-1])]
    name, cost = read_back(tmp_path_factory.mktemp("set"), fitted(stage, encodes)[2])
    line = simulate(
        Scenario(model=SMALL, dtype="float32", hardware=name, costs=name, pp=1, num_requests=3)
    ).line
    assert line["completed"] == 3 and cost.constants.iteration_overhead >= 0


def test_on_what_was_measured_the_file_is_as_good_as_the_measurements(tmp_path):
    _, stage, encodes = synthetic(known())
    _, cost = read_back(tmp_path, fitted(stage, encodes)[2])
    assert max(worst_errors(cost, stage, encodes)) < 0.01


@given(st.floats(0.3, 4), st.floats(0.3, 4))
@settings(deadline=None, max_examples=20)
def test_a_slowed_file_multiplies_the_times_of_stages_and_of_encoders(tmp_path_factory, stage, encoder):
    _, stages, encodes = synthetic(known())
    content = fitted(stages, encodes)[2]
    _, cost = read_back(tmp_path_factory.mktemp("slow"), slowed(content, stage, encoder))
    _, before = read_back(tmp_path_factory.mktemp("before"), content)
    for point in stages:
        expected = stage * before.stage_time(0, point.chunks, point.samples)
        assert cost.stage_time(0, point.chunks, point.samples) == pytest.approx(expected)
    for point in encodes:
        assert cost.encode_time(point.items) == pytest.approx(encoder * before.encode_time(point.items))
    assert cost.embedding_transfer_time(64) == before.embedding_transfer_time(64)


def test_points_are_measured_in_rounds_so_that_a_slow_while_spoils_one_of_three():
    order, told = [], []
    steps = [lambda: order.append("a"), lambda: order.append("b")]
    found = Stopwatch(torch.device("cpu"), spend=0.0).medians(steps, lambda *seen: told.append(seen))
    assert order == ["a", "b"] * 4
    assert told[-2:] == [(0, found[0]), (1, found[1])]


def test_without_a_slope_over_the_context_the_fit_says_so():
    points = [StagePoint(((start, 32),), 0, 1e-3) for start in (0, 512)]
    with pytest.raises(ValueError, match="quiet machine"):
        fit_stage(CostModel(machine(), CLEAN).stages[0], points)


def test_the_file_holds_its_measurements_and_a_source_for_every_number(tmp_path):
    _, stage, encodes = synthetic(known())
    content = fitted(stage, encodes)[2]
    name, _ = read_back(tmp_path, content)
    assert read_points(json.loads(json.dumps(content))) == (stage, encodes)
    entries = read_sourced(name)
    assert all("a test" in entry.source and entry.unit for entry in entries.values())
    assert all("a test" in entry["source"] for entry in content["hardware"].values())
    constants = load_constants(name)
    assert constants.preprocess_per_token == REQUEST.pixels_per_token
    assert constants.driver_round_trip == pytest.approx(REQUEST.prepare + 2 * TRANSFERS.message)
    assert constants.embedding_bandwidth == TRANSFERS.embedding.bandwidth


def test_a_file_without_a_device_is_refused_as_hardware(tmp_path):
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match="no hardware"):
        load_hardware(str(tmp_path / "other.json"))


def test_a_road_is_latency_and_bandwidth():
    road = Road.of((1000, 1e-4 + 1e-6), (1_001_000, 1e-4 + 1001e-6))
    assert road.latency == pytest.approx(1e-4) and road.bandwidth == pytest.approx(1e9)


def test_a_chunk_costs_no_more_than_the_decodes_of_a_micro_batch_leave_room_for():
    _, stage, _ = synthetic(known())
    slow_together = [
        replace(p, seconds=p.seconds * 1.5) if len(p.chunks) == 4 and p.tokens > 4 else p for p in stage
    ]
    found = fit_stage(CostModel(machine(), CLEAN).stages[0], slow_together)
    fastest_prefill = max(rate for tokens, rate in found.gemm if tokens > 16)
    assert all(rate <= fastest_prefill * 1.001 for _, rate in found.gemm)
