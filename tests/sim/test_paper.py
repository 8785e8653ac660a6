"""The paper's experiments and the table: every row is computed, and judged by a stated rule."""

import json
from math import isfinite

import pytest

from rserve.sim.paper import write_paper
from rserve.sim.paper_quantities import ROWS
from rserve.sim.paper_results import PaperResults, Pick
from rserve.sim.paper_rows import Row, agrees
from rserve.sim.paper_runs import SETS, all_runs
from rserve.sim.paper_table import render
from rserve.sim.sweep import run_all

QUICK_RUN_REQUESTS = 2


def line(rate, ttft, label="rserve", workload="mmmu-1k", **fields):
    base = {"experiment": "fig12", "label": label, "tp": 1, "model": "qwen2.5-vl-72b", "workload": workload}
    return base | {"request_rate": rate, "mean_ttft_ms": ttft} | fields


@pytest.mark.parametrize(
    ("ours", "paper", "unit", "verdict"),
    [
        (-15, -18, "%", True),
        (-75, -26, "%", False),
        (-40, -32, "%", True),
        (3, -2, "%", True),
        (12140, 10600, "tokens/s", True),
        (1.2, 2.91, "x", False),
        (1, 1, "yes", True),
        (0, 1, "yes", False),
    ],
)
def test_what_counts_as_agreeing(ours, paper, unit, verdict):
    assert agrees(ours, paper, unit) is verdict


def test_a_change_is_taken_rate_by_rate_and_averaged():
    lines = [line(1.0, 80), line(2.0, 300), line(1.0, 100, "gllm-epd"), line(2.0, 400, "gllm-epd")]
    results = PaperResults(lines)
    ours, theirs = Pick("fig12", "rserve"), Pick("fig12", "gllm-epd")
    assert results.change(ours, theirs, "mean_ttft_ms", "mmmu-1k") == pytest.approx({1.0: -20, 2.0: -25})
    assert results.mean_change(ours, theirs) == pytest.approx((-22.5,))
    with pytest.raises(LookupError):
        results.curve(Pick("fig12", "vLLM"), "mmmu-1k", "mean_ttft_ms")


def test_coverage_compares_areas_below_attainment():
    lines = [line(rate, 1, slo_attainment=a) for rate, a in ((1.0, 1.0), (2.0, 0.5))]
    lines += [line(rate, 1, "gllm-epd", slo_attainment=a) for rate, a in ((1.0, 0.9), (2.0, 0.1))]
    results = PaperResults(lines)
    assert results.coverage(Pick("fig12", "rserve"), Pick("fig12", "gllm-epd")) == pytest.approx((50.0,))


def test_a_row_says_why_only_where_it_differs():
    rows = [
        Row("1", "near", (10,), "%", lambda r: (11.0,), "never shown"),
        Row("2", "far", (10, 20), "%", lambda r: (11.0, 90.0), "because"),
        Row("3", "new", (), "%", lambda r: (1.0,)),
    ]
    text = render({"clean": PaperResults([])}, rows)
    assert "| 1 | near | +10 % | +11 % agrees |  |" in text
    assert "| 2 | far | +10 / +20 % | +11 / +90 % **differs** | because |" in text
    assert "| 3 | new | — | +1.0 % |" in text and "never shown" not in text


def test_every_row_that_the_paper_numbers_says_why_it_may_differ():
    assert all(row.why for row in ROWS if row.paper)


def test_all_of_section_4_is_run_under_every_set():
    for name in SETS:
        runs = all_runs(name, 10)
        figures = {run.experiment for run in runs}
        assert figures >= {
            "fig02",
            "fig12",
            "fig16",
            "fig17",
            "fig18",
            "fig20",
            "fig20-32b",
            "fig21",
            "fig21-7b",
        }
        assert figures >= {"equal-devices", "placement"}
        assert len(runs) == len(set(runs))
        assert {run.label for run in runs if run.experiment == "fig12"} >= {"vLLM TP4", "vLLM PP4"}
        assert all(run.max_in_flight == run.pp for run in runs)


@pytest.mark.slow
def test_the_whole_table_is_written_with_lines_for_every_figure(tmp_path):
    by_set = write_paper(tmp_path, ["clean"], QUICK_RUN_REQUESTS, lambda runs: run_all(runs, 1))
    assert all(isfinite(value) for row in ROWS for value in row.compute(by_set["clean"]))
    table = (tmp_path / "paper.md").read_text()
    assert all(row.quantity in table for row in ROWS)
    lines = [json.loads(text) for text in (tmp_path / "simulated-clean.jsonl").read_text().splitlines()]
    assert {"fig02", "fig12", "fig15", "fig16", "fig17", "fig18", "fig20", "fig21"} <= {
        line["experiment"] for line in lines
    }
    assert {line["costs"] for line in lines} == {"clean"}
    assert len(list((tmp_path / "traces").glob("fig10-*.json"))) == 2
