"""Figure 21: TTFT on four A100s (§4.4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.results import Line
from plots.command import draw_command
from plots.lines import groups
from plots.rate_panels import TTFT, Curves, RateFigure, change_note

EXPERIMENTS = ("fig21", "fig21-7b")  # the text does not name the model, and 72B does not fit


def draw(lines: Sequence[Line], out_dir: Path) -> list[Path]:
    """Draw every group of the experiment; returns the files written."""
    paths = []
    for experiment in EXPERIMENTS:
        figure = RateFigure(experiment, "TTFT", TTFT, notes=_notes)
        paths += [path for group in groups(lines, experiment) for path in figure.draw(group, out_dir)]
    return paths


def _notes(_: str, curves: Curves) -> str:
    epd = change_note(curves, "gLLM-epd", "gLLM", None)
    ours = change_note(curves, "RServe", "gLLM-epd", None)
    said = "paper: gLLM-epd about gLLM, RServe best"
    return "\n".join(text for text in (epd, ours, said) if text)


if __name__ == "__main__":
    raise SystemExit(draw_command(draw))
