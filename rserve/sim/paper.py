"""`rserve paper`: every experiment of section 4, as result lines for the figures and as one table."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from gllm.core.trace_file import trace_json

from .output import append_lines, current_commit
from .paper_results import PaperResults
from .paper_runs import SETS, WORKLOADS, all_runs, base
from .paper_table import render
from .scenario import Scenario
from .simulator import Simulated, simulate

RunPoints = Callable[[list[Scenario]], Iterable[Simulated]]

__all__ = ["SETS", "write_paper"]


def write_paper(
    folder: Path, sets: Iterable[str], num_requests: int, run_points: RunPoints
) -> dict[str, PaperResults]:
    """Run everything under each constant set.

    Writes folder/simulated-SET.jsonl (replaced), folder/paper.md and the traces of Figure 10.
    """
    folder.mkdir(parents=True, exist_ok=True)
    commit = current_commit()
    by_set: dict[str, PaperResults] = {}
    for name in sets:
        lines = [line | {"commit": commit} for line in run_set(name, num_requests, run_points)]
        path = folder / f"simulated-{name.replace('+', '-')}.jsonl"
        path.unlink(missing_ok=True)
        append_lines(path, lines)
        by_set[name] = PaperResults(lines)
    (folder / "paper.md").write_text(render(by_set))
    write_figure_10(folder / "traces")
    return by_set


def run_set(name: str, num_requests: int, run_points: RunPoints) -> list[dict[str, object]]:
    """Result lines of all experiments under one constant set; `constants` names overlays too."""
    runs = all_runs(name, num_requests)
    lines = [
        {**result.line, "costs": name, "constants": run.costs} for run, result in zip(runs, run_points(runs))
    ]
    return lines + [figure_15(base(name, 1000), workload) for workload in WORKLOADS]


def figure_15(scenario: Scenario, workload: str) -> dict[str, object]:
    """The lengths that a workload draws."""
    requests = replace(scenario, workload=workload, experiment="fig15").requests()
    return {
        "experiment": "fig15",
        "source": "simulated",
        "costs": scenario.costs,
        "constants": scenario.costs,
        "hardware": scenario.hardware,
        "model": scenario.model,
        "workload": workload,
        "label": "",
        "scheme": "",
        "pp": scenario.pp,
        "tp": scenario.tp,
        "encoders": scenario.encoders,
        "input_lens": [request.prompt_len for request in requests],
        "vision_lens": [request.num_mm_tokens for request in requests],
    }


def write_figure_10(folder: Path) -> None:
    """Traces of the same few requests with and without inter-request pipeline."""
    folder.mkdir(parents=True, exist_ok=True)
    few = replace(base("clean", 4), request_rate=4.0, intra_reading="per-micro-batch")
    for scheme in ("rserve-intra", "rserve"):
        result = simulate(replace(few, scheme=scheme), with_trace=True)
        (folder / f"fig10-{scheme}.json").write_text(trace_json(result.spans, result.ranks, result.lives))
