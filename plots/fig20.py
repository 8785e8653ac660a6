"""Figure 20: TTFT with one device for the language model and one for the encoder (§4.4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.results import Line
from plots import paper
from plots.command import draw_command
from plots.lines import groups
from plots.rate_panels import TTFT, Curves, RateFigure, signed

EXPERIMENTS = ("fig20", "fig20-32b")  # the text does not name the model


def draw(lines: Sequence[Line], out_dir: Path) -> list[Path]:
    """Draw every group of the experiment, measured and simulated ones in figures of their own."""
    paths = []
    for experiment in EXPERIMENTS:
        figure = RateFigure(experiment, "TTFT, one LLM device and one encoder", TTFT, notes=_notes)
        paths += [path for group in groups(lines, experiment) for path in figure.draw(group, out_dir)]
    return paths


def _notes(_: str, curves: Curves) -> str:
    base = {point.x: point.y for point in curves.get("gLLM-epd", [])}
    changes = [point.y / base[point.x] - 1 for point in curves.get("RServe", []) if base.get(point.x)]
    if not changes:
        return ""
    return (
        f"RServe vs gLLM-epd, best rate: {signed(min(changes))} (paper up to {signed(paper.SINGLE_GPU_TTFT)})"
    )


if __name__ == "__main__":
    raise SystemExit(draw_command(draw))
