"""Where the time went: a Chrome trace as a picture, ranks as rows and requests as colours (Figures 7, 10).

Kinds of bars: encode (hatched), prefill, decode (pale), transfer (a thin bar), bubble (grey: a stage is idle
although there are requests). The requests of a micro-batch share its bar. Where the trace knows the lives of
requests, they are the first row: pale until their first work starts, with a dot at the first token. On the
right stands the part of the time with requests in which each rank works.

`python -m plots.timeline TRACE.json --out timeline.png`
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from plots import style
from plots.trace import Bar, Life, Trace, load

# Requests in order of arrival; neighbours differ in lightness as well as in colour.
COLOURS = ("#1b2a6b", "#e69f00", "#00876c", "#cc6fa8", "#4f9fd6", "#8c510a", "#a6a6a6", "#d55e00")
BAR_HEIGHT = 0.8
KIND_LOOK: dict[str, dict[str, Any]] = {
    "encode": {"hatch": "////"},
    "prefill": {},
    "decode": {"alpha": 0.5},
    "transfer": {},
}
BUBBLE: dict[str, Any] = {"facecolor": "#ececec", "edgecolor": "none", "zorder": 0.9}
TRANSFER_HEIGHT = 0.16
LIVES_ROW = "requests"
SHORT_S = 2.0  # below that the axis is in milliseconds
LONGEST_NAME = 12


@dataclass(frozen=True)
class Window:
    """What part of a trace is drawn, in seconds from its first event."""

    start: float = 0.0
    end: float = float("inf")


ALL = Window()


def draw(trace_path: str | Path, out: str | Path, title: str = "", window: Window = ALL) -> list[Path]:
    """Draw one trace to OUT (its suffix is replaced): .png, .pdf and the bars as .csv."""
    out = Path(out)
    one = [(title or Path(trace_path).stem, trace_path)]
    return draw_traces(one, out.with_suffix("").name, out.parent, window=window)


def draw_traces(
    traces: Sequence[tuple[str, str | Path]],
    name: str,
    out_dir: str | Path,
    title: str = "",
    window: Window = ALL,
) -> list[Path]:
    """Draw several (title, trace) below each other on one time axis, requests in the same colours.

    Raises ValueError for a trace without events, or a window without any.
    """
    loaded = [(label, load(path)) for label, path in traces]
    end = min(window.end, max(trace.end for _, trace in loaded))
    if end <= window.start:
        raise ValueError(f"nothing happens from {window.start:g} s on: the trace ends at {end:g} s")
    loaded = [(label, trace.within(window.start, end)) for label, trace in loaded]
    if not any(trace.bars or trace.lives for _, trace in loaded):
        raise ValueError(f"nothing happens between {window.start:g} s and {end:g} s")
    most_rows = max(len(_rows(trace)) for _, trace in loaded)
    figure, axes = style.new_figure(1, rows=len(loaded), height=0.75 + 0.24 * most_rows)
    figure.set_figwidth(style.DOUBLE)
    colours = colours_of([trace for _, trace in loaded])
    for axis, (label, trace) in zip(axes, loaded):
        draw_rows(axis, trace, colours)
        _time_axis(axis, window.start, end)
        axis.set_title(label, loc="left")
    if title:
        style.title(figure, title)
    handles = _legend(colours, [trace for _, trace in loaded])
    columns = style.legend_columns([str(handle.get_label()) for handle in handles], style.DOUBLE)
    rows = -(-len(handles) // columns)
    figure.set_figheight(figure.get_figheight() + style.LEGEND_ROW * (rows - 1))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)
    written = [_csv_row(label, bar) for label, trace in loaded for bar in trace.bars]
    return style.save(figure, name, written, out_dir)


def draw_rows(axis: Axes, trace: Trace, colours: Mapping[str, str]) -> None:
    """Draw a trace into a panel; `colours` holds one for each request (see colours_of)."""
    rows = _rows(trace)
    place = {rank: index for index, rank in enumerate(rows)}
    if trace.lives:
        _draw_lives(axis, trace.lives, place[LIVES_ROW], colours)
    for bar in trace.bars:
        _draw_bar(axis, bar, place[bar.rank], colours)
    axis.set_yticks(range(len(rows)), rows)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.grid(axis="y", visible=False)
    for rank in trace.ranks:
        share = f"{trace.busy_share(rank):.0%} busy"
        axis.annotate(share, (1.005, place[rank]), xycoords=("axes fraction", "data"), va="center")


def colours_of(traces: Sequence[Trace]) -> dict[str, str]:
    """A colour for each request, in order of arrival; they repeat after eight."""
    requests = list(dict.fromkeys(request for trace in traces for request in trace.requests))
    return {request: COLOURS[index % len(COLOURS)] for index, request in enumerate(requests)}


def busy_table(trace: Trace) -> str:
    """One line per rank: its busy share, and where they were recorded the time of its bubbles."""
    width = max(len(rank) for rank in trace.ranks)
    lines = []
    for rank in trace.ranks:
        idle = sum(bar.duration for bar in trace.bars if bar.rank == rank and bar.kind == "bubble")
        bubbles = f"  bubbles {idle:.3f} s" if idle else ""
        lines.append(f"{rank:{width}}  busy {trace.busy_share(rank):6.1%}{bubbles}")
    return "\n".join(lines)


def _rows(trace: Trace) -> list[str]:
    return [LIVES_ROW] * bool(trace.lives) + trace.ranks


def _time_axis(axis: Axes, start: float, end: float) -> None:
    axis.set_xlim(start, end)
    if end - start < SHORT_S:
        axis.xaxis.set_major_formatter(lambda value, _: f"{value * 1e3:g}")
        axis.set_xlabel("Time (ms)")
    else:
        axis.set_xlabel("Time (s)")


def _draw_lives(axis: Axes, lives: Sequence[Life], row: int, colours: Mapping[str, str]) -> None:
    """Requests at the same time lie below each other in one row."""
    lanes: list[float] = []
    placed: list[tuple[int, Life]] = []
    for life in lives:
        lane = next((i for i, free_from in enumerate(lanes) if free_from <= life.start), len(lanes))
        lanes[lane : lane + 1] = [life.end]
        placed.append((lane, life))
    height = BAR_HEIGHT / max(2, len(lanes))
    for lane, life in placed:
        bottom = row - BAR_HEIGHT / 2 + lane * height
        colour = colours[life.request]
        work = [at for name, at in life.moments.items() if name in ("first encode", "first prefill")]
        begins = min(work, default=life.end)
        look = {"facecolor": colour, "edgecolor": "white", "linewidth": 0.4}
        axis.broken_barh([(life.start, begins - life.start)], (bottom, height), **look | {"alpha": 0.3})
        axis.broken_barh([(begins, life.end - begins)], (bottom, height), **look | {"alpha": 0.75})
        if "first token" in life.moments:
            at, middle = life.moments["first token"], bottom + height / 2
            axis.plot(
                [at], [middle], "o", color="white", markeredgecolor="black", markersize=3.2, clip_on=False
            )


def _draw_bar(axis: Axes, bar: Bar, row: int, colours: Mapping[str, str]) -> None:
    """The requests of a micro-batch share the height of its bar."""
    if bar.kind == "bubble":
        axis.broken_barh([(bar.start, bar.duration)], (row - BAR_HEIGHT / 2, BAR_HEIGHT), **BUBBLE)
        return
    height = TRANSFER_HEIGHT if bar.kind == "transfer" else BAR_HEIGHT
    top = row + BAR_HEIGHT / 2 if bar.kind == "transfer" else row - BAR_HEIGHT / 2
    share = height / max(1, len(bar.requests))
    for index, request in enumerate(bar.requests or ("",)):
        axis.broken_barh(
            [(bar.start, bar.duration)],
            (top + index * share, share),
            facecolor=colours.get(request, style.OTHER.colour),
            edgecolor="white",
            linewidth=0.4,
            **KIND_LOOK.get(bar.kind, {}),
        )


def _legend(colours: Mapping[str, str], traces: Sequence[Trace]) -> list[Patch | Line2D]:
    kinds = {bar.kind for trace in traces for bar in trace.bars}
    handles: list[Patch | Line2D] = [
        Patch(facecolor=colour, label=f"request {name if len(name) <= LONGEST_NAME else number}")
        for number, (name, colour) in enumerate(list(colours.items())[: len(COLOURS)], start=1)
    ]
    if len(colours) > len(COLOURS):
        handles.append(Patch(facecolor="none", label=f"and {len(colours) - len(COLOURS)} more"))
    grey = style.OTHER.colour
    for kind, look in KIND_LOOK.items():
        if kind in kinds and look:
            handles.append(Patch(facecolor=grey, edgecolor="white", label=kind, **look))
    if "transfer" in kinds:
        handles.append(Line2D([], [], color=grey, linewidth=2, label="transfer"))
    if "bubble" in kinds:
        handles.append(Patch(facecolor=BUBBLE["facecolor"], label="bubble"))
    if any("first token" in life.moments for trace in traces for life in trace.lives):
        dot = {"color": "white", "marker": "o", "markeredgecolor": "black", "linestyle": "none"}
        handles.append(Line2D([], [], label="first token", markersize=3.2, **dot))
    return handles


def _csv_row(label: str, bar: Bar) -> dict[str, Any]:
    return {
        "trace": label,
        "rank": bar.rank,
        "kind": bar.kind,
        "requests": " ".join(bar.requests),
        "start_s": bar.start,
        "duration_s": bar.duration,
    }


def _parser(prog: str) -> argparse.ArgumentParser:
    about = "Draw a trace of a server or a simulation: one row per rank, one colour per request."
    parser = argparse.ArgumentParser(prog=prog, description=about)
    parser.add_argument("trace", type=Path, help="a file written by --trace of serve or simulate")
    parser.add_argument("-o", "--out", "--output", type=Path, help="picture (default: beside the trace)")
    parser.add_argument("--title", default="", help="default: the file's name")
    parser.add_argument("--start", type=float, default=0.0, help="seconds from the first event")
    parser.add_argument("--end", type=float, default=float("inf"), help="seconds from the first event")
    return parser


def main(argv: list[str] | None = None, prog: str = "timeline") -> int:
    """Command line: draw one trace, print the files and how busy each rank was; 1 for a file without one."""
    args = _parser(prog).parse_args(argv)
    try:
        trace = load(args.trace)
        out = args.out or args.trace.with_suffix(".png")
        paths = draw(args.trace, out, args.title, Window(args.start, args.end))
    except (OSError, ValueError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 1
    print("\n".join(map(str, paths)))
    print(busy_table(trace.within(args.start, args.end)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
