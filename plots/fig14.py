"""Figure 14: SLO attainment against request rate, TTFT within 10 s (§4.2.3)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.results import Line
from plots import paper
from plots.command import draw_command
from plots.lines import groups
from plots.rate_panels import SLO, Curves, RateFigure
from plots.slo import slo_title


def draw(lines: Sequence[Line], out_dir: Path) -> list[Path]:
    """Draw every group of the lines of Figure 12."""
    paths = []
    for group in groups(lines, "fig12"):
        figure = RateFigure("fig14", f"SLO attainment ({slo_title(group.lines)})", SLO, notes=_notes)
        paths += figure.draw(group, out_dir)
    return paths


def _notes(workload: str, curves: Curves) -> str:
    texts = []
    for name, quoted in (("RServe", paper.RSERVE_SLO), ("gLLM-epd", paper.EPD_SLO)):
        if curves.get(name):
            number = paper.of_workload(quoted, workload)
            said = "" if number is None else f" (paper {number:.0%})"
            texts.append(f"{name} {fmean(point.y for point in curves[name]):.0f}%{said}")
    return "average: " + ", ".join(texts) if texts else ""


if __name__ == "__main__":
    raise SystemExit(draw_command(draw))
