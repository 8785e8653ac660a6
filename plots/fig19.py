"""Figure 19: SLO attainment under strict limits, TTFT 1.4 s at 1K and 2 s at 2K (§4.4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.results import Line
from plots import paper
from plots.command import draw_command
from plots.fig18 import deployment_name
from plots.lines import groups
from plots.rate_panels import SLO, Curves, RateFigure, quoted_share, signed
from plots.slo import coverage, slo_title


def draw(lines: Sequence[Line], out_dir: Path) -> list[Path]:
    """Draw every group of the lines of Figure 18."""
    paths = []
    for group in groups(lines, "fig18"):
        title = f"SLO attainment ({slo_title(group.lines)})"
        figure = RateFigure("fig19", title, SLO, naming=deployment_name, notes=_notes)
        paths += figure.draw(group, out_dir)
    return paths


def _notes(workload: str, curves: Curves) -> str:
    ours, base = curves.get("RServe (TP4+E1)"), curves.get("gLLM-epd (TP4+E1)")
    if not ours or not base or not coverage(base):
        return ""
    quoted = paper.of_workload(paper.STRICT_SLO_COVERAGE, workload)
    said = "" if quoted is None else f" (paper {quoted_share(quoted)})"
    return f"area under RServe vs gLLM-epd, TP4+E1: {signed(coverage(ours) / coverage(base) - 1)}{said}"


if __name__ == "__main__":
    raise SystemExit(draw_command(draw))
