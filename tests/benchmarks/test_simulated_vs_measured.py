"""Measured against simulated: the same requests, the machine's speed told apart from the model's errors."""

import json
from pathlib import Path

import pytest

from benchmarks.simulated_table import table
from benchmarks.simulated_vs_measured import Run, Shape, simulate_point
from benchmarks.traced_steps import Steps, read_steps
from gllm.core.trace_file import trace_json
from rserve.sim.costs import CONSTANTS_FOLDER
from rserve.sim.hardware import DEVICES_FILE
from rserve.sim.simulator import simulate

RATE = 1.0


@pytest.fixture
def this(tmp_path: Path) -> Run:
    """As if the shipped core with the shipped constants had been calibrated here."""
    content = json.loads((CONSTANTS_FOLDER / "clean.json").read_text())
    content["hardware"] = json.loads(DEVICES_FILE.read_text())["cpu"]
    costs = tmp_path / "costs.json"
    costs.write_text(json.dumps(content))
    return Run("small", costs, "float32", Shape(2, 112, 8), 20, 1, tmp_path)


def served(this: Run, rate: float, stage: float, encoder: float) -> dict:
    """A measured line of a machine on which steps take so many times as long as the constants say."""
    cost = this.scenario("rserve", rate).cost_model()
    steps = Steps(
        [([(0, 60)], 1, stage * cost.stage_time(0, [(0, 60)], 1))] * 4,
        [([16], encoder * cost.encode_time([16]))] * 4,
    )
    point = {"scheme": "rserve", "load": 0.5, "request_rate": rate, "hardware": "a test"}
    return {**point, "input_lens": [60] * this.requests, **steps.as_fields()}


@pytest.mark.parametrize("scheme", ["gllm", "rserve"])
def test_steps_of_a_trace_are_those_that_were_run_and_take_what_the_cost_model_says(this, scheme: str):
    scenario = this.scenario(scheme, RATE)
    simulated = simulate(scenario, with_trace=True)
    trace = this.out / "trace.json"
    trace.write_text(trace_json(simulated.spans, simulated.ranks))
    steps = read_steps(trace, (0.0, 1e6))
    assert sum(length for chunks, _, _ in steps.batches for _, length in chunks) == sum(
        outcome.request.prompt_len for outcome in simulated.outcomes
    )
    assert sum(samples for _, samples, _ in steps.batches) == this.requests
    assert steps.slowness(scenario.cost_model()) == pytest.approx((1.0, 1.0), rel=1e-4)
    middle = simulated.spans[len(simulated.spans) // 2].start + 1e-5
    early, late = read_steps(trace, (0.0, middle)), read_steps(trace, (middle, 1e6))
    assert len(early.batches) + len(late.batches) == len(steps.batches)
    quarters = steps.parts(4)
    assert [step for part in quarters for step in part.batches] == list(steps.batches)
    assert max(len(part.encodes) for part in quarters) - min(len(part.encodes) for part in quarters) <= 1


def test_a_machine_as_fast_as_calibrated_is_simulated_alike_twice(this):
    line = simulate_point(this, served(this, RATE, 1.0, 1.0), this.shape.prompts(this.requests, 1))
    assert line["mean_ttft_ms_scaled"] == pytest.approx(line["mean_ttft_ms"])
    assert line["input_throughput_scaled"] == pytest.approx(line["input_throughput"])


@pytest.mark.parametrize(("stage", "encoder"), [(2.0, 1.0), (1.0, 2.0), (2.0, 2.0), (0.5, 0.5)])
def test_the_speed_of_its_steps_slows_or_speeds_up_a_point(this, stage: float, encoder: float):
    line = simulate_point(this, served(this, 1e-3, stage, encoder), this.shape.prompts(this.requests, 1))
    assert (line["stage_slowness"], line["encoder_slowness"]) == pytest.approx((stage, encoder))
    ratio = line["mean_ttft_ms_scaled"] / line["mean_ttft_ms"]
    assert 1.03 < ratio <= 2.01 if max(stage, encoder) > 1 else 0.5 < ratio < 0.6


def test_a_slower_machine_multiplies_what_queues(this):
    point = served(this, this.capacity(60) * 0.7, 1.3, 1.3)
    line = simulate_point(this, point, this.shape.prompts(this.requests, 1))
    assert line["mean_ttft_ms_scaled"] / line["mean_ttft_ms"] > 1.35


def test_the_table_says_which_value_is_outside_and_whether_the_speed_explains_it():
    before = {"scheme": "rserve", "load": 0.7, "request_rate": 1.0}
    values = {"mean_ttft_ms": 1000.0, "median_ttft_ms": 800.0, "input_throughput": 200.0}
    simulated = {"stage_slowness": 1.2, "stage_slowness_of_quarters": (1.3, 1.2, 1.1, 1.2)}
    simulated |= {"encoder_slowness": 0.9, "encoder_slowness_of_quarters": (0.9, 0.9, 0.9, 0.9)}
    simulated |= {"mean_ttft_ms": 800.0, "median_ttft_ms": 790.0, "input_throughput": 200.0}
    simulated |= {f"{name}_scaled": value for name, value in values.items()}
    row = table([(before | values, simulated)], "a title").splitlines()[-1]
    assert "1.20 (1.10 to 1.30), 0.90 (0.90 to 0.90) | 1000 / 800 = 0.80; 1.00 |" in row
    assert row.endswith("| not: mean | yes |")
