"""Figure 2: latency of one request with two images, by resolution and parallelism (§1)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.axes import Axes

from benchmarks.results import Line, select
from plots import paper, style
from plots.command import draw_command
from plots.lines import Group, groups, model_title

PARALLEL = {"TP4": "vLLM TP4", "PP4": "RServe"}  # label → look
BAR = 0.36
ENCODING: dict[str, Any] = {"color": "white", "edgecolor": "black", "linewidth": 0.6, "hatch": "////"}

Row = dict[str, Any]


def draw(lines: Sequence[Line], out_dir: Path) -> list[Path]:
    """Draw every group of the experiment; returns the files written."""
    return [path for group in groups(lines, "fig02") for path in _draw(group, out_dir)]


def _draw(group: Group, out_dir: Path) -> list[Path]:
    figure, (axis,) = style.new_figure(1, height=2.9)
    sizes = sorted(group.workloads(), key=_pixels)
    rows = []
    labels = [label for label in PARALLEL if select(group.lines, label=label)]
    for shift, label in enumerate(labels):
        for x, workload in enumerate(sizes):
            lines = select(group.lines, label=label, workload=workload)
            if lines:
                row = _row(label, workload, lines)
                _bar(axis, x + (shift - (len(labels) - 1) / 2) * (BAR + 0.04), row)
                rows.append(row | {"source": group.source, "costs": group.costs, "hardware": group.hardware})
    axis.set_xticks(range(len(sizes)), [_size_title(name) for name in sizes])
    axis.grid(axis="x", visible=False)
    axis.set_xlabel("Resolution of the two images")
    axis.set_ylabel("Latency (s)")
    axis.set_ylim(top=axis.get_ylim()[1] * 1.08)
    largest = max(row["encode_share"] for row in rows)
    style.note(axis, f"largest share of encoding: {largest:.0%} (paper {paper.ENCODE_SHARE:.0%})", below=42)
    style.title(figure, f"Figure 2. One request, {model_title(group.lines)}\n{group.suffix}")
    style.shared_legend(figure, [axis])
    return style.save(figure, f"fig02_{group.slug}", rows, out_dir)


def _row(label: str, workload: str, lines: Sequence[Line]) -> Row:
    total = median(line["mean_ttft_ms"] for line in lines) / 1e3
    encode = median(line["encode_ms"] for line in lines) / 1e3
    return {
        "parallelism": label,
        "resolution": workload.partition("-")[2],
        "latency_s": total,
        "encode_s": encode,
        "encode_share": encode / total,
    }


def _bar(axis: Axes, x: float, row: Row) -> None:
    look = style.LOOKS[PARALLEL[row["parallelism"]]]
    name = row["parallelism"]
    rest = row["latency_s"] - row["encode_s"]
    axis.bar(x, row["encode_s"], BAR, label="encoding", **ENCODING)
    axis.bar(x, rest, BAR, bottom=row["encode_s"], label=f"language model {name}", **look.bar())
    axis.annotate(
        f"{row['encode_share']:.0%}", (x, row["latency_s"]), (0, 1), textcoords="offset points",
        ha="center", va="bottom", fontsize=style.FONT - 2,
    )  # fmt: skip


def _pixels(workload: str) -> int:
    width, _, height = workload.partition("-")[2].partition("x")
    return int(width) * int(height)


def _size_title(workload: str) -> str:
    return workload.partition("-")[2].replace("x", "×\n")


if __name__ == "__main__":
    raise SystemExit(draw_command(draw))
