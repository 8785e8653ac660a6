"""The cost model against published FLOP counts and profiles, and its own arithmetic."""

from dataclasses import replace

import pytest

from gllm.core.model_shape import PRESETS
from rserve.sim.cost_model import CostModel, attention_pairs
from rserve.sim.costs import load_constants
from rserve.sim.hardware import Machine, load_hardware
from rserve.sim.memory import DoesNotFitError, kv_capacity
from rserve.sim.vision_cost import all_reduce_time, item_flops

H100 = load_hardware("h100")
CLEAN = load_constants("clean")


def model(name="72b", costs="clean", **layout):
    return CostModel(Machine(H100, PRESETS[f"qwen2.5-vl-{name}"], **layout), load_constants(costs))


@pytest.mark.parametrize(("name", "gflop"), [("7b", 13.1), ("32b", 62.4), ("72b", 140.4)])
def test_gemm_flops_of_a_token(name, gflop):
    stages = model(name, pp=4, encoders=1).stages
    assert sum(stage.gemm_flops for stage in stages) / 1e9 == pytest.approx(gflop, abs=0.05)


@pytest.mark.parametrize(("name", "gflop"), [("7b", 1.6), ("32b", 5.2), ("72b", 10.5)])
def test_attention_flops_of_a_token_at_4k_average_context(name, gflop):
    pair_flops = sum(stage.pair_flops for stage in model(name, pp=4, encoders=1).stages)
    assert pair_flops * 4000 / 1e9 == pytest.approx(gflop, abs=0.06)


@pytest.mark.parametrize(("tokens", "tflop"), [(1024, 5.7), (2691, 16.4), (4641, 31.3), (10549, 91.6)])
def test_vision_flops_of_an_image(tokens, tflop):
    vision = PRESETS["qwen2.5-vl-32b"].vision
    assert item_flops(vision, tokens).total / 1e12 == pytest.approx(tflop, abs=0.06)


@pytest.mark.parametrize(
    ("name", "megabytes", "kilobytes"), [("7b", 29, 7), ("32b", 42, 10), ("72b", 67, 16)]
)
def test_bytes_between_stages_and_from_the_encoder(name, megabytes, kilobytes):
    cost = model(name, pp=2, encoders=1)
    sent = (cost.transfer_time(2048) - cost.transfer_time(0)) * H100.link_bandwidth * CLEAN.link_efficiency
    assert sent / 1e6 == pytest.approx(megabytes, abs=0.5)
    assert cost.embedding_bytes(1) / 1e3 == pytest.approx(kilobytes, abs=0.5)


def test_attention_pairs_are_counted_causally():
    assert attention_pairs(10, 3) == 11 + 12 + 13
    assert attention_pairs(0, 6) == attention_pairs(0, 2) + attention_pairs(2, 4)


def test_a_72b_layer_of_one_token_takes_the_time_to_stream_its_weights():
    cost = model(pp=4, encoders=1)
    free = CostModel(cost.machine, replace(CLEAN, iteration_overhead=0.0))
    assert free.stage_time(0, [(0, 1)], 0) / 20 == pytest.approx(0.66e-3, rel=0.04)


def test_all_reduce_over_four_gpus_as_profiled():
    assert all_reduce_time(0, 4, H100, CLEAN) == pytest.approx(18e-6)
    assert all_reduce_time(223e9, 4, H100, CLEAN) == pytest.approx(1.0, rel=0.01)
    assert all_reduce_time(1e9, 1, H100, CLEAN) == 0.0


def test_a_stage_takes_longer_as_the_context_grows():
    cost = model(pp=4, encoders=1)
    times = [cost.stage_time(0, [(start, 2048)], 0) for start in (0, 2048, 4096)]
    assert times[0] < times[1] < times[2]
    assert times[2] - times[1] == pytest.approx(times[1] - times[0])


def test_only_the_last_stage_projects_to_the_vocabulary_and_only_for_sampled_rows():
    cost = model(pp=4, encoders=1)
    chunks = [(0, 512)]
    assert cost.stage_time(0, chunks, 1) == cost.stage_time(0, chunks, 0)
    head = cost.stage_time(3, chunks, 1) - cost.stage_time(3, chunks, 0)
    assert head == pytest.approx(152064 * 8192 * 2 / (3.35e12 * 0.77))
    assert cost.stage_time(3, chunks, 0) == cost.stage_time(0, chunks, 0)


def test_decodes_share_one_pass_over_the_weights():
    cost = model(pp=4, encoders=1)
    one, many = cost.stage_time(0, [(1000, 1)], 0), cost.stage_time(0, [(1000, 1)] * 32, 0)
    assert many < 1.5 * one


def test_tensor_parallelism_divides_compute_and_adds_all_reduces():
    one, four = model("32b", encoders=1), model("32b", tp=4, encoders=1)
    chunks = [(0, 2048)]
    ideal = (one.stage_time(0, chunks, 0) - CLEAN.iteration_overhead) / 4
    reduces = 128 * all_reduce_time(2048 * 5120 * 2, 4, H100, CLEAN)
    assert four.stage_time(0, chunks, 0) == pytest.approx(ideal + reduces + CLEAN.iteration_overhead)


def test_small_encoder_batches_pay_the_launch_floor_and_preprocessing_runs_in_line():
    cost = model("7b", pp=1, encoders=1)
    assert cost.encode_time([32]) == pytest.approx(18e-3 + 32 * 20e-6)
    assert cost.encode_time([32] * 4) < 4 * cost.encode_time([32])
    assert cost.preprocess_delay([32]) == 0.0
    overlapped = CostModel(cost.machine, replace(CLEAN, preprocess_inline=False))
    assert overlapped.encode_time([32]) == pytest.approx(18e-3)
    assert overlapped.preprocess_delay([32]) == pytest.approx(32 * 20e-6)


def test_an_encoder_on_stage_0_is_sharded_over_its_tp_devices():
    alone, shared = model(tp=4, encoders=1), model(tp=4, encoders=0)
    assert shared.encoder.device_time([4641]) < alone.encoder.device_time([4641]) / 2


def test_the_driver_pays_per_request_and_per_received_byte():
    cost = CostModel(model(pp=4, encoders=1).machine, replace(CLEAN, driver_request_time=1e-3))
    relay = CostModel(cost.machine, load_constants("clean+host-relay"))
    assert cost.driver_time(3, 1000) == pytest.approx(3e-3)
    assert relay.driver_time(0, 1000) == pytest.approx(1000 * 8192 * 2 * 1e-9)


def test_kv_capacity_is_what_weights_leave_on_the_fullest_stage():
    layout = Machine(H100, PRESETS["qwen2.5-vl-72b"], pp=4, encoders=1)
    per_token = 2 * 20 * 8 * 128 * 2
    text = layout.model.text
    weights = (20 * text.params_per_layer + text.embedding_params + text.hidden_size) * 2
    expected = (85e9 * 0.9 - 2e9 - weights) // per_token
    assert kv_capacity(layout, CLEAN) == expected
    with_encoder = replace(layout, encoders=0)
    tower = layout.model.vision.num_params * 2
    assert expected - kv_capacity(with_encoder, CLEAN) == pytest.approx(tower / per_token, abs=1)


def test_72b_does_not_fit_40_gb_cards_and_32b_does():
    a100 = load_hardware("a100-40g-pcie")
    with pytest.raises(DoesNotFitError):
        kv_capacity(Machine(a100, PRESETS["qwen2.5-vl-72b"], pp=4, encoders=1), CLEAN)
    assert kv_capacity(Machine(a100, PRESETS["qwen2.5-vl-32b"], pp=3, encoders=1), CLEAN) > 20_000


def test_assigned_layers_change_the_stages():
    cost = model(pp=2, encoders=1, assigned_layers=(50, 30))
    assert cost.stages[0].gemm_flops / cost.stages[1].gemm_flops == pytest.approx(5 / 3)
