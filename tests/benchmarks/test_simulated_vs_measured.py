"""Measured against simulated: the same requests, the machine's drift told apart from the model's errors."""

import json
from pathlib import Path

import pytest

from benchmarks.simulated_table import table
from benchmarks.simulated_vs_measured import Run, Shape, simulate_point
from rserve.sim.costs import CONSTANTS_FOLDER
from rserve.sim.hardware import DEVICES_FILE


@pytest.fixture
def this(tmp_path: Path) -> Run:
    """As if the shipped core with the shipped constants had been calibrated here."""
    content = json.loads((CONSTANTS_FOLDER / "clean.json").read_text())
    content["hardware"] = json.loads(DEVICES_FILE.read_text())["cpu"]
    costs = tmp_path / "costs.json"
    costs.write_text(json.dumps(content))
    return Run("small", costs, "float32", Shape(2, 112, 8), 20, 1, tmp_path)


def measured(this: Run, rate: float, probe_ms: float, **values: float) -> dict:
    return {
        "scheme": "rserve",
        "load": 0.5,
        "request_rate": rate,
        "input_lens": [60] * this.requests,
        "probe_ms": [probe_ms] * 6,
        "probe_len": 60,
        "hardware": "a test",
        **values,
    }


def test_a_machine_as_fast_as_calibrated_is_simulated_once(this):
    prompts = this.shape.prompts(this.requests, 1)
    first = simulate_point(this, measured(this, 1.0, 100.0), prompts)
    again = simulate_point(this, measured(this, 1.0, 100.0 / first["slowness"]), prompts)
    assert again["slowness"] == pytest.approx(1.0)
    assert again["mean_ttft_ms_scaled"] == pytest.approx(again["mean_ttft_ms"])
    assert again["input_throughput_scaled"] == pytest.approx(again["input_throughput"])


def test_a_slower_machine_multiplies_what_queues(this):
    prompts = this.shape.prompts(this.requests, 1)
    idle = simulate_point(this, measured(this, 1.0, 100.0), prompts)
    as_calibrated = 100.0 / idle["slowness"]
    for rate, least in ((1e-3, 1.99), (this.capacity(60) * 0.7, 2.5)):
        slow = simulate_point(this, measured(this, rate, 2 * as_calibrated), prompts)
        assert slow["slowness"] == pytest.approx(2.0)
        assert slow["mean_ttft_ms_scaled"] > least * slow["mean_ttft_ms"]


def test_the_table_says_which_value_is_outside_and_whether_the_speed_explains_it():
    before = {"scheme": "rserve", "load": 0.7, "request_rate": 1.0}
    values = {"mean_ttft_ms": 1000.0, "median_ttft_ms": 800.0, "input_throughput": 200.0}
    simulated = {"slowness": 1.2, "mean_ttft_ms": 800.0, "median_ttft_ms": 790.0, "input_throughput": 200.0}
    simulated |= {f"{name}_scaled": value for name, value in values.items()}
    row = table([(before | values, simulated)], "a title").splitlines()[-1]
    assert "1.20 | 1000 / 800 = 0.80; 1.00 |" in row
    assert row.endswith("| not: mean | yes |")
