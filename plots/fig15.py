"""Figure 15: distribution of input lengths of a workload (§4.1.2)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes

from benchmarks.results import Line, select
from plots import paper, style
from plots.command import draw_command
from plots.lines import Group, groups, model_title, workload_title

BINS = 24


def draw(lines: Sequence[Line], out_dir: Path) -> list[Path]:
    """Draw every group of the experiment; returns the files written."""
    with_lengths = [line for line in select(lines, experiment="fig15") if line.get("input_lens")]
    return [path for group in groups(with_lengths, "fig15") for path in _draw(group, out_dir)]


def _draw(group: Group, out_dir: Path) -> list[Path]:
    workloads = group.workloads()
    figure, axes = style.new_figure(len(workloads))
    rows = []
    for axis, workload in zip(axes, workloads):
        line = group.of(workload)[-1]
        _draw_panel(axis, line)
        pairs = zip(line["input_lens"], line["vision_lens"])
        rows += [
            {"workload": workload, "input_tokens": total, "vision_tokens": vision} for total, vision in pairs
        ]
    style.title(figure, f"Figure 15. Input lengths, {model_title(group.lines)}\n{group.suffix}")
    style.shared_legend(figure, axes)
    return style.save(figure, f"fig15_{group.slug}", rows, out_dir)


def _draw_panel(axis: Axes, line: Line) -> None:
    totals, vision = line["input_lens"], line["vision_lens"]
    edges = (0.0, max(totals) * 1.02)
    look, other = style.LOOKS["RServe"], style.LOOKS["gLLM"]
    axis.hist(totals, BINS, range=edges, label="all tokens", color=look.colour, alpha=0.85)
    axis.hist(
        vision,
        BINS,
        range=edges,
        label="image tokens",
        histtype="step",
        hatch=other.hatch,
        color=other.colour,
    )
    axis.axvline(fmean(totals), color="black", linewidth=0.9, label="average")
    said = [f"average {fmean(totals):,.0f}, of images {fmean(vision):,.0f}"]
    quoted = paper.of_workload(paper.INPUT_LENGTHS, line["workload"])
    if quoted is not None:
        axis.plot([quoted], [0], clip_on=False, label="paper", **style.PAPER)
        said.append(
            f"paper {quoted:,.0f} and {paper.of_workload(paper.VISION_LENGTHS, line['workload']):,.0f}"
        )
    style.note(axis, "; ".join(said))
    axis.set_title(workload_title(line["workload"]))
    axis.set_xlabel("Tokens of a request")
    style.few_ticks(axis)
    axis.set_ylabel("Requests")


if __name__ == "__main__":
    raise SystemExit(draw_command(draw))
