"""Figure 12: TTFT against request rate, logarithmic (§4.2.1)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.results import Line
from plots import paper
from plots.command import draw_command
from plots.lines import groups
from plots.rate_panels import LOG_TTFT, Curves, RateFigure, change_note


def draw(lines: Sequence[Line], out_dir: Path) -> list[Path]:
    """Draw every group of the experiment; returns the files written."""
    figure = RateFigure("fig12", "TTFT", LOG_TTFT, notes=_notes)
    return [path for group in groups(lines, "fig12") for path in figure.draw(group, out_dir)]


def _notes(workload: str, curves: Curves) -> str:
    epd = change_note(curves, "gLLM-epd", "gLLM", paper.of_workload(paper.EPD_TTFT, workload))
    ours = change_note(curves, "RServe", "gLLM-epd", paper.of_workload(paper.RSERVE_TTFT, workload))
    return "\n".join(text for text in (epd, ours) if text)


if __name__ == "__main__":
    raise SystemExit(draw_command(draw))
