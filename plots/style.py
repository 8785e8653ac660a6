"""The one look of all figures: sizes, fonts, the curve of each scheme, and how a figure is saved.

Colours are told apart by colour-blind readers and differ in lightness, and every curve has its own marker and
dash, every bar its own hatch, so that a grey print can be read too.
"""

from __future__ import annotations

import csv
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

SINGLE = 3.3  # inches: one column
DOUBLE = 7.0  # inches: both columns
FONT = 8
DPI = 200
LEGEND_ROW = 0.16  # inches
TITLE_LETTER = 0.068  # inches, at the size of titles

Dash = str | tuple[int, tuple[float, ...]]


@dataclass(frozen=True)
class Look:
    """How a scheme is drawn, in curves and in bars."""

    colour: str
    marker: str
    dash: Dash
    hatch: str

    def line(self, hollow: bool = False) -> dict[str, Any]:
        """Arguments of `plot`; hollow markers tell a second variant of the scheme (tensor parallelism)."""
        face = "white" if hollow else self.colour
        return {
            "color": self.colour,
            "marker": self.marker,
            "linestyle": self.dash,
            "markerfacecolor": face,
            "markeredgecolor": self.colour,
        }

    def bar(self) -> dict[str, Any]:
        """Arguments of `bar`."""
        return {"color": self.colour, "hatch": self.hatch, "edgecolor": "white", "linewidth": 0.5}


# In the order of every legend.
LOOKS: dict[str, Look] = {
    "vLLM TP4": Look("#a6a6a6", "s", (0, (1, 1)), "...."),
    "vLLM PP4": Look("#4f9fd6", "D", (0, (3, 1, 1, 1)), "----"),
    "gLLM": Look("#e69f00", "^", (0, (5, 1.5)), "////"),
    "gLLM-epd": Look("#00876c", "o", (0, (3, 1.2)), "\\\\\\\\"),
    "RServe-intra": Look("#cc6fa8", "v", (0, (5, 1, 1, 1, 1, 1)), "xxxx"),
    "RServe": Look("#1b2a6b", "P", "-", ""),
}
OTHER = Look("#5c5c5c", "X", (0, (2, 2)), "++++")
BOUND: dict[str, Any] = {"color": "black", "linestyle": (0, (6, 3)), "linewidth": 0.9, "zorder": 1}
PAPER: dict[str, Any] = {"color": "#c1272d", "marker": "*", "markersize": 8, "linestyle": "none", "zorder": 6}


def use() -> None:
    """Set matplotlib's parameters; called by `new_figure`."""
    plt.rcParams.update(
        {
            "font.size": FONT,
            "axes.titlesize": FONT,
            "axes.labelsize": FONT,
            "xtick.labelsize": FONT - 1,
            "ytick.labelsize": FONT - 1,
            "legend.fontsize": FONT - 1,
            "figure.titlesize": FONT,
            "font.family": "DejaVu Sans",
            "pdf.fonttype": 42,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.linewidth": 0.6,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.linewidth": 0.4,
            "grid.color": "#dddddd",
            "lines.linewidth": 1.3,
            "lines.markersize": 4.2,
            "hatch.linewidth": 0.6,
            "xtick.major.width": 0.6,
            "ytick.major.width": 0.6,
            "legend.frameon": False,
            "legend.handlelength": 2.6,
        }
    )


def new_figure(columns: int = 1, rows: int = 1, height: float = 2.8) -> tuple[Figure, list[Axes]]:
    """An empty figure, one column wide for one panel, else two; `height` in inches for each row."""
    use()
    width = SINGLE if columns == 1 else DOUBLE
    figure, axes = plt.subplots(
        rows, columns, figsize=(width, height * rows), layout="constrained", squeeze=False
    )
    return figure, list(axes.flat)


def title(figure: Figure, text: str) -> None:
    """A title over all panels; lines too long for the figure are broken at spaces."""
    letters = int(figure.get_figwidth() / TITLE_LETTER)
    figure.suptitle("\n".join(textwrap.fill(line, letters) for line in text.split("\n")))


def look_of(name: str) -> Look:
    """The look of a curve: that of its scheme, so "RServe (TP4+E1)" looks like RServe."""
    return LOOKS.get(_scheme(name), OTHER)


def in_order(names: Sequence[str]) -> list[str]:
    """Distinct names in the order of every legend; unknown ones last, alphabetically."""
    order = {name: index for index, name in enumerate(LOOKS)}
    return sorted(set(names), key=lambda name: (order.get(_scheme(name), len(order)), name))


def _scheme(name: str) -> str:
    """The scheme that a curve's name starts with: "RServe (TP4+E1)", "RServe, five A100s" and "gLLM PP5"."""
    if name in LOOKS:
        return name
    return next((scheme for scheme in LOOKS if re.match(rf"{re.escape(scheme)}[ ,]", name)), name)


def draw_bound(axis: Axes, xs: Sequence[float], ys: Sequence[float], label: str = "bound") -> None:
    """The bound that no scheme can pass, as a dashed black line; its label starts with "bound"."""
    axis.plot(xs, ys, label=label, **BOUND)


def shared_legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend for all panels, below them, in the one order; the bound and the paper's marks come last.

    The figure grows by every row after the first, so that the panels keep their size.
    """
    handles: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels()):
            handles.setdefault(label, handle)
    last = [name for name in handles if name.startswith("bound") or name == "paper"]
    names = [*in_order([name for name in handles if name not in last]), *last]
    columns = legend_columns(names, figure.get_figwidth())
    rows = -(-len(names) // columns)
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW * (rows - 1))
    figure.legend([handles[name] for name in names], names, loc="outside lower center", ncols=columns)


def legend_columns(names: Sequence[str], width: float) -> int:
    """How many columns of these names fit into `width` inches; several rows get equal lengths."""
    longest = max((len(name) for name in names), default=0)
    entry = 0.5 + 0.054 * longest  # inches: the handle, then letters of 7 points
    fitting = max(1, int(width / entry))
    rows = -(-len(names) // fitting)
    return max(1, -(-len(names) // rows)) if rows else 1


def log_scale(axis: Axes) -> None:
    """A logarithmic y axis that reads 1, 2, 5, 10, … instead of powers."""
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def ticks_at(axis: Axes, values: Sequence[float]) -> None:
    """X ticks at the values themselves while there are few, else at most six round ones."""
    distinct = sorted(set(values))
    if len(distinct) <= 7:
        axis.set_xticks(distinct, [f"{value:g}" for value in distinct])
    else:
        few_ticks(axis)


def few_ticks(axis: Axes) -> None:
    """At most six numbers on the x axis: more run into each other at column width."""
    axis.xaxis.set_major_locator(MaxNLocator(6))


def note(axis: Axes, text: str, below: float = 30) -> None:
    """A small remark under a panel, `below` points under its frame: the paper's number beside ours."""
    axis.annotate(
        text,
        (0.5, 0),
        (0, -below),
        "axes fraction",
        "offset points",
        ha="center",
        va="top",
        fontsize=FONT - 1.5,
    )


def save(figure: Figure, name: str, rows: Sequence[Mapping[str, Any]], out_dir: str | Path) -> list[Path]:
    """Write NAME.png, NAME.pdf and NAME.csv (the rows behind the figure); returns their paths."""
    folder = Path(out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{suffix}" for suffix in ("png", "pdf", "csv")]
    figure.savefig(paths[0], dpi=DPI)
    figure.set_layout_engine("none")  # keep the layout that was just computed: computing it is slow
    figure.savefig(paths[1], metadata={"CreationDate": None})
    plt.close(figure)
    with open(paths[2], "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)
    return paths
