"""Figure 17: RServe against RServe-intra, TTFT and throughput (§4.3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.results import Line
from plots import lines as rows_of
from plots import paper, style
from plots.command import draw_command
from plots.lines import Group, groups
from plots.rate_panels import THROUGHPUT, TTFT, csv_rows, draw_panel, figure_title, quoted_share, signed

DEFAULT_READING = "serial"


def draw(lines: Sequence[Line], out_dir: Path) -> list[Path]:
    """Draw one figure for each group and workload, TTFT left, throughput right."""
    return [
        path
        for group in groups(lines, "fig17")
        for workload in group.workloads()
        for path in _draw(group, workload, out_dir)
    ]


def _draw(group: Group, workload: str, out_dir: Path) -> list[Path]:
    figure, axes = style.new_figure(2)
    rows = []
    quoted = (("TTFT", TTFT, paper.INTRA_TTFT), ("throughput", THROUGHPUT, paper.INTRA_THROUGHPUT))
    for axis, (what, metric, number) in zip(axes, quoted):
        curves = draw_panel(axis, group.of(workload), metric, _name)
        change = rows_of.mean_change(curves.get("RServe-intra", []), curves.get("RServe", []))
        if change is not None:
            style.note(
                axis, f"RServe-intra vs RServe, {what}: {signed(change)} (paper {quoted_share(number)})"
            )
        rows += csv_rows(group, workload, metric, curves)
    style.title(
        figure,
        figure_title("fig17", "Inter-request pipeline", Group(tuple(group.of(workload)), *_key(group))),
    )
    style.shared_legend(figure, axes)
    return style.save(figure, f"fig17_{workload}_{group.slug}", rows, out_dir)


def _name(line: Line) -> str:
    reading = line.get("intra_reading")
    is_other = line.get("scheme") == "rserve-intra" and reading not in (None, DEFAULT_READING)
    return f"RServe-intra ({reading})" if is_other else rows_of.curve_name(line)


def _key(group: Group) -> tuple[str, str, str]:
    return group.source, group.costs, group.hardware


if __name__ == "__main__":
    raise SystemExit(draw_command(draw))
