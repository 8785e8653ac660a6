"""Figure 13: input throughput against request rate (§4.2.2)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.results import Line
from plots import paper
from plots.command import draw_command
from plots.lines import groups
from plots.rate_panels import THROUGHPUT, Curves, RateFigure, quoted_share, signed


def draw(lines: Sequence[Line], out_dir: Path) -> list[Path]:
    """Draw every group of the lines of Figure 12; the star is RServe's plateau in the paper."""
    figure = RateFigure("fig13", "Throughput", THROUGHPUT, notes=_notes, mark=_plateau)
    return [path for group in groups(lines, "fig12") for path in figure.draw(group, out_dir)]


def _plateau(workload: str) -> float | None:
    return paper.of_workload(paper.RSERVE_THROUGHPUT, workload)


def _notes(workload: str, curves: Curves) -> str:
    pairs = (
        ("gLLM-epd", "gLLM", paper.EPD_THROUGHPUT),
        ("vLLM TP4", "vLLM PP4", paper.VLLM_TP4_THROUGHPUT),
    )
    texts = []
    for ours, base, quoted in pairs:
        if curves.get(ours) and curves.get(base):
            change = _saturated(curves, ours) / _saturated(curves, base) - 1
            number = paper.of_workload(quoted, workload)
            said = "" if number is None else f" (paper {quoted_share(number)})"
            texts.append(f"saturated, {ours} vs {base}: {signed(change)}{said}")
    return "\n".join(texts)


def _saturated(curves: Curves, name: str) -> float:
    return max(point.y for point in curves[name])


if __name__ == "__main__":
    raise SystemExit(draw_command(draw))
