"""Figure 16: TTFT and throughput against the embedding batch size C (§4.3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from benchmarks.results import Line
from plots import lines as rows_of
from plots import paper, style
from plots.command import draw_command
from plots.lines import Group, groups
from plots.rate_panels import figure_title, quoted_share, signed

ALL = "all"
RSERVE_BAR: dict[str, Any] = {
    "color": "#b9c4e8",
    "edgecolor": "#1b2a6b",
    "linewidth": 0.6,
}  # pale, so that the curve stands out
EPD_BAR: dict[str, Any] = {"color": "#a9d8cd", "edgecolor": "#00876c", "linewidth": 0.6, "hatch": "////"}
CURVE: dict[str, Any] = {"color": "black", "marker": "o", "markerfacecolor": "white"}


def draw(lines: Sequence[Line], out_dir: Path) -> list[Path]:
    """Draw every group of the experiment: TTFT on the left axis, throughput on the right."""
    return [path for group in groups(lines, "fig16") for path in _draw(group, out_dir)]


def _draw(group: Group, out_dir: Path) -> list[Path]:
    workloads = sorted(group.workloads(), key=lambda name: -_item_tokens(name))
    figure, axes = style.new_figure(len(workloads))
    rows: list[dict[str, Any]] = []
    twins: list[Axes] = []
    for letter, workload, axis in zip("abcd", workloads, axes):
        found = _sweep(group.of(workload))
        if not found:
            continue
        twins.append(_draw_panel(axis, found))
        axis.set_title(f"({letter}) {_item_tokens(workload)} tokens an item")
        _remark(axis, _item_tokens(workload), found)
        rows += [{"workload": workload, **row, "source": group.source, "costs": group.costs} for row in found]
    style.title(figure, figure_title("fig16", "Embedding batch size", group).replace(", items", "; items"))
    style.shared_legend(figure, [*axes, *twins])
    return style.save(figure, f"fig16_{group.slug}", rows, out_dir)


def _sweep(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Rows by ascending C; gLLM-epd, which encodes a whole request first, comes last as "all"."""
    names = [*sorted({line["embedding_batch_size"] for line in lines if not _is_whole(line)}), ALL]
    rows = []
    for name in names:
        at = [line for line in lines if (ALL if _is_whole(line) else line["embedding_batch_size"]) == name]
        ttft = rows_of.points(at, lambda _: 0.0, rows_of.field("mean_ttft_ms", 1e-3))
        throughput = rows_of.points(at, lambda _: 0.0, rows_of.field("input_throughput"))
        if ttft and throughput:
            rows.append({"C": name, "ttft_s": ttft[0].y, "input_tokens_per_s": throughput[0].y})
    return rows


def _draw_panel(axis: Axes, rows: Sequence[dict[str, Any]]) -> Axes:
    xs = list(range(len(rows)))
    axis.bar(xs, [row["ttft_s"] for row in rows], width=0.62, label="TTFT, RServe", **RSERVE_BAR)
    if rows and rows[-1]["C"] == ALL:
        axis.bar(xs[-1:], [rows[-1]["ttft_s"]], width=0.62, label="TTFT, gLLM-epd", **EPD_BAR)
    twin = axis.twinx()
    twin.spines["right"].set_visible(True)
    twin.grid(False)
    twin.plot(xs, [row["input_tokens_per_s"] for row in rows], label="throughput", **CURVE)
    twin.set_ylim(0, 1.1 * max(row["input_tokens_per_s"] for row in rows))
    axis.set_ylim(0, 1.1 * max(row["ttft_s"] for row in rows))
    twin.set_ylabel("Throughput (tokens/s)")
    axis.set_xticks(xs, [str(row["C"]) for row in rows], fontsize=style.FONT - 1.5)
    axis.set_xlabel("Embedding batch size C (tokens)")
    axis.set_ylabel("TTFT (s)")
    axis.grid(axis="x", visible=False)
    return twin


def _remark(axis: Axes, item_tokens: int, rows: Sequence[dict[str, Any]]) -> None:
    times, rates = [row["ttft_s"] for row in rows], [row["input_tokens_per_s"] for row in rows]
    text = f"TTFT up to {max(times) / min(times):.2f}×, throughput {signed(min(rates) / max(rates) - 1)}"
    if item_tokens >= 1024:
        text += f"\n(paper {paper.C_SWEEP_TTFT}×, {quoted_share(paper.C_SWEEP_THROUGHPUT)})"
    else:
        best = rows[times.index(min(times))]["C"]
        text += f"\nlowest TTFT at C = {best} (paper: first falls, then rises)"
    style.note(axis, text)


def _is_whole(line: Line) -> bool:
    return bool(line["scheme"] == "gllm-epd")


def _item_tokens(workload: str) -> int:
    """items-1024 → 1024; 0 for another name."""
    tail = workload.rpartition("-")[2]
    return int(tail) if tail.isdigit() else 0


if __name__ == "__main__":
    raise SystemExit(draw_command(draw))
