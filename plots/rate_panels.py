"""Panels of a metric against the request rate, one for each workload: Figures 12–14 and 17–21."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from benchmarks.results import Line
from plots import lines as rows_of
from plots import style
from plots.lines import Group, Point, Value

Curves = dict[str, list[Point]]
Naming = Callable[[Line], str]


@dataclass(frozen=True)
class Metric:
    """What is drawn: its axis label, how it is read from a line, and which bound belongs to it."""

    name: str
    label: str
    read: Value
    bound: Value | None = None
    log: bool = False
    limits: tuple[float, float] | None = None


TTFT = Metric("ttft_s", "TTFT (s)", rows_of.field("mean_ttft_ms", 1e-3), rows_of.field("bound_ttft_ms", 1e-3))
LOG_TTFT = Metric(TTFT.name, TTFT.label, TTFT.read, TTFT.bound, log=True)
THROUGHPUT = Metric(
    "input_tokens_per_s",
    "Throughput (tokens/s)",
    rows_of.field("input_throughput"),
    rows_of.field("bound_throughput"),
)
SLO = Metric("slo_percent", "SLO attainment (%)", rows_of.field("slo_attainment", 100.0), limits=(0, 103))


def curves_of(lines: Iterable[Line], metric: Metric, naming: Naming = rows_of.curve_name) -> Curves:
    """Points by curve name, in legend order."""
    lines = list(lines)
    names = style.in_order([naming(line) for line in lines])
    by_name = {name: [line for line in lines if naming(line) == name] for name in names}
    return {name: rows_of.points(some, rows_of.request_rate, metric.read) for name, some in by_name.items()}


def draw_panel(
    axis: Axes, lines: Sequence[Line], metric: Metric, naming: Naming = rows_of.curve_name
) -> Curves:
    """Draw every curve and the bound into one panel; returns the curves."""
    curves = curves_of(lines, metric, naming)
    for name, found in curves.items():
        hollow = name not in style.LOOKS and "(PP" not in name  # a second variant of its scheme
        xs, ys = [point.x for point in found], [point.y for point in found]
        if any(point.half_width for point in found):
            errors = [point.half_width for point in found]
            axis.errorbar(xs, ys, errors, label=name, capsize=2, **style.look_of(name).line(hollow))
        else:
            axis.plot(xs, ys, label=name, **style.look_of(name).line(hollow))
    _draw_bound(axis, lines, metric)
    axis.set_xlabel("Request rate (requests/s)")
    style.ticks_at(axis, [point.x for found in curves.values() for point in found])
    axis.set_ylabel(metric.label)
    if metric.log:
        style.log_scale(axis)
    elif metric.limits:
        axis.set_ylim(*metric.limits)
    elif any(curves.values()):
        axis.set_ylim(0, 1.06 * axis.dataLim.y1)
    return curves


def csv_rows(group: Group, workload: str, metric: Metric, curves: Curves) -> list[dict[str, Any]]:
    """The rows behind a panel."""
    return [
        {
            "workload": workload,
            "curve": name,
            "request_rate": point.x,
            metric.name: point.y,
            "half_width_95": point.half_width,
            "repeats": point.repeats,
            "source": group.source,
            "costs": group.costs,
            "hardware": group.hardware,
        }
        for name, found in curves.items()
        for point in found
    ]


Notes = Callable[[str, Curves], str]


@dataclass(frozen=True)
class RateFigure:
    """One figure with a panel for each workload.

    number: as in file names ("fig12"). title: what is shown. notes: the remark under a panel, from its
    workload and curves. mark: the paper's value for a workload, drawn as a star at the last rate.
    """

    number: str
    title: str
    metric: Metric
    naming: Naming = rows_of.curve_name
    notes: Notes | None = None
    mark: Callable[[str], float | None] | None = None

    def draw(self, group: Group, out_dir: str | Path) -> list[Path]:
        """Draw one group of lines; returns the files written."""
        workloads = group.workloads()
        figure, axes = style.new_figure(len(workloads))
        rows: list[dict[str, Any]] = []
        for letter, workload, axis in zip("abcdefgh", workloads, axes):
            curves = draw_panel(axis, group.of(workload), self.metric, self.naming)
            self._remark(axis, workload, curves)
            if len(workloads) > 1:
                axis.set_title(f"({letter}) {rows_of.workload_title(workload)}")
            rows += csv_rows(group, workload, self.metric, curves)
        style.title(figure, figure_title(self.number, self.title, group))
        style.shared_legend(figure, axes)
        return style.save(figure, f"{self.number}_{group.slug}", rows, out_dir)

    def _remark(self, axis: Axes, workload: str, curves: Curves) -> None:
        if self.notes is not None:
            style.note(axis, self.notes(workload, curves))
        value = self.mark(workload) if self.mark is not None else None
        rates = [point.x for found in curves.values() for point in found]
        if value is not None and rates:
            axis.plot([max(rates)], [value], label="paper", **style.PAPER)


def figure_title(number: str, title: str, group: Group) -> str:
    """ "Figure 12. TTFT, Qwen2.5-VL-72B" and, on a second line, where the numbers come from."""
    name = f"Figure {int(number.removeprefix('fig')[:2])}"
    models = rows_of.model_title(group.lines)
    workloads = group.workloads()
    single = f", {rows_of.workload_title(workloads[0])}" if len(workloads) == 1 else ""
    return f"{name}. {title}, {models}{single}\n{group.suffix}"


def change_note(curves: Curves, ours: str, base: str, paper: float | None) -> str:
    """ "RServe vs gLLM-epd: −8 % (paper −18 %)", averaged over rates; empty where a curve is missing."""
    change = rows_of.mean_change(curves.get(ours, []), curves.get(base, []))
    if change is None:
        return ""
    quoted = "" if paper is None else f" (paper {quoted_share(paper)})"
    return f"{ours} vs {base}: {signed(change)}{quoted}"


def signed(share: float) -> str:
    """0.061 → "+6 %", −0.18 → "−18 %"."""
    return f"{share * 100:+.0f} %".replace("-", "−")


def quoted_share(share: float) -> str:
    """A number of the paper as exact as it gives it: 0.085 → "+8.5 %"."""
    return f"{round(share * 100, 1):+g} %".replace("-", "−")


def _draw_bound(axis: Axes, lines: Sequence[Line], metric: Metric) -> None:
    """From RServe's own lines, whose devices the bound describes; none where the lines give none."""
    if metric.bound is None:
        return
    own = [line for line in lines if rows_of.curve_name(line) == "RServe"]
    deepest = max((line.get("pp") or 1 for line in own), default=1)
    deepest_own = [line for line in own if (line.get("pp") or 1) == deepest]  # the paper's main deployment
    found = rows_of.points(deepest_own, rows_of.request_rate, metric.bound)
    if found:
        one_of_several = len({rows_of.parallelism(line) for line in own}) > 1
        label = f"bound ({rows_of.parallelism(deepest_own[0])})" if one_of_several else "bound"
        style.draw_bound(axis, [point.x for point in found], [point.y for point in found], label)
