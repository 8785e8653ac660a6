"""Figure 18: TTFT of gLLM and RServe under tensor and pipeline parallelism, logarithmic (§4.4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.results import Line
from plots.command import draw_command
from plots.lines import curve_name, groups, parallelism
from plots.rate_panels import LOG_TTFT, Curves, RateFigure, change_note


def draw(lines: Sequence[Line], out_dir: Path) -> list[Path]:
    """Draw every group of the experiment; returns the files written."""
    figure = RateFigure("fig18", "TTFT by parallelism", LOG_TTFT, naming=deployment_name, notes=_notes)
    return [path for group in groups(lines, "fig18") for path in figure.draw(group, out_dir)]


def deployment_name(line: Line) -> str:
    """The scheme and how its devices are used: "RServe (TP4+E1)"."""
    return f"{curve_name(line)} ({parallelism(line)})"


def _notes(_: str, curves: Curves) -> str:
    return change_note(curves, "RServe (TP4+E1)", "gLLM-epd (TP4+E1)", None)


if __name__ == "__main__":
    raise SystemExit(draw_command(draw))
