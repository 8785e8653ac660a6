"""TTFT of the schemes on two cores: one request at a time, and against the rate (benchmarks.overlap)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from benchmarks.results import Line, rate_of, select
from plots import lines as rows_of
from plots import style
from plots.command import draw_command
from plots.lines import Group, groups
from plots.rate_panels import TTFT, csv_rows, draw_panel


def draw(lines: Sequence[Line], out_dir: Path) -> list[Path]:
    """One figure for each machine, workload and model: bars on the left, curves on the right."""
    return [
        path
        for group in groups(lines, "overlap")
        for workload in group.workloads()
        for model in sorted({str(line["model"]) for line in group.of(workload)})
        for path in _draw(group, (workload, model), out_dir)
    ]


def _draw(group: Group, what: tuple[str, str], out_dir: Path) -> list[Path]:
    workload, model = what
    here = select(group.of(workload), model=model)
    alone = select(here, max_concurrency=1)
    loaded = [line for line in here if line["max_concurrency"] is None and math.isfinite(rate_of(line))]
    figure, axes = style.new_figure(2 if loaded else 1)
    rows = _draw_alone(axes[0], alone)
    if loaded:
        curves = draw_panel(axes[1], loaded, TTFT)
        axes[1].set_title("(b) Poisson arrivals")
        axes[0].set_title("(a) one request at a time")
        rows += csv_rows(group, workload, TTFT, curves)
        style.shared_legend(figure, axes[1:])
    dtype = here[0].get("dtype") or ""
    style.title(figure, f"TTFT of {workload}, {rows_of.model_title(here)} {dtype}\n{group.suffix}")
    return style.save(figure, f"overlap_{workload}-{model}_{group.slug}", rows, out_dir)


def _draw_alone(axis: Axes, lines: Sequence[Line]) -> list[dict[str, Any]]:
    names = style.in_order([rows_of.curve_name(line) for line in lines])
    rows = []
    for x, name in enumerate(names):
        own = [line for line in lines if rows_of.curve_name(line) == name]
        times = [ttft for line in own for ttft in line["ttfts"]]
        half = rows_of.half_width(times)
        axis.bar(x, statistics.fmean(times), yerr=half or None, capsize=2, **style.look_of(name).bar())
        bounds = [bound for line in own for bound in line.get("bounds_ms") or ()]
        if bounds:
            axis.hlines(statistics.fmean(bounds) / 1e3, x - 0.4, x + 0.4, colors="black", linestyles="dashed")
        rows.append(
            {
                "curve": name,
                "load": "one at a time",
                "ttft_s": statistics.fmean(times),
                "half_width_95": half,
                "bound_s": statistics.fmean(bounds) / 1e3 if bounds else None,
                "requests": len(times),
            }
        )
    axis.set_xticks(range(len(names)), names)
    axis.set_ylabel("TTFT (s)")
    style.note(axis, "dashed: lower bound from measured parts", below=18)
    return rows


if __name__ == "__main__":
    raise SystemExit(draw_command(draw))
