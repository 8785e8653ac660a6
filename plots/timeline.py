"""Where the time went: a Chrome trace as a picture, ranks as rows and requests as colours.

Reads complete events {"ph": "X", "pid": …, "ts": µs, "dur": µs, "args": {"request": "7", "kind": "prefill"}},
and the rows' names from process_name metadata. Several requests in one micro-batch are joined by commas and
share its bar. Kinds: encode (hatched), prefill, decode (pale), transfer (a thin bar).

`python -m plots.timeline TRACE.json --out timeline.png`
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from plots import style

# Requests in order of appearance; neighbours differ in lightness as well as in colour.
COLOURS = ("#1b2a6b", "#e69f00", "#00876c", "#cc6fa8", "#4f9fd6", "#8c510a", "#a6a6a6", "#d55e00")
BAR_HEIGHT = 0.8
KIND_LOOK: dict[str, dict[str, Any]] = {
    "encode": {"hatch": "////"},
    "prefill": {},
    "decode": {"alpha": 0.55},
    "transfer": {},
}
TRANSFER_HEIGHT = 0.16


@dataclass(frozen=True)
class Bar:
    """One event of one rank; times in seconds from the first event."""

    rank: str
    kind: str
    requests: tuple[str, ...]
    start: float
    duration: float


def load_bars(trace_path: str | Path) -> tuple[list[Bar], list[str]]:
    """The bars of a trace and its ranks in the order in which they are drawn, top to bottom.

    Raises ValueError when the trace holds no complete event.
    """
    events = json.loads(Path(trace_path).read_text(encoding="utf-8"))
    events = events["traceEvents"] if type(events) is dict else events
    names = {
        event["pid"]: event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == "process_name"
    }
    complete = [event for event in events if event["ph"] == "X"]
    if not complete:
        raise ValueError(f"{trace_path} holds no complete events")
    first = min(event["ts"] for event in complete)
    bars = [_bar(event, names, first) for event in complete]
    with_bars = {bar.rank for bar in bars}
    return bars, [name for name in names.values() if name in with_bars] or sorted(with_bars)


def draw(trace_path: str | Path, out: str | Path, title: str = "") -> list[Path]:
    """Draw one trace to OUT (its suffix is replaced): .png, .pdf and the bars as .csv."""
    out = Path(out)
    return draw_traces([(title or Path(trace_path).stem, trace_path)], out.with_suffix("").name, out.parent)


def draw_traces(
    traces: Sequence[tuple[str, str | Path]], name: str, out_dir: str | Path, title: str = ""
) -> list[Path]:
    """Draw several (title, trace) below each other on one time axis, requests in the same colours."""
    loaded = [(label, *load_bars(path)) for label, path in traces]
    most_ranks = max(len(ranks) for _, _, ranks in loaded)
    figure, axes = style.new_figure(1, rows=len(loaded), height=0.75 + 0.2 * most_ranks)
    figure.set_figwidth(style.DOUBLE)
    end = max(bar.start + bar.duration for _, bars, _ in loaded for bar in bars)
    colours = colours_of([bar for _, bars, _ in loaded for bar in bars])
    for axis, (label, bars, ranks) in zip(axes, loaded):
        draw_rows(axis, bars, ranks, colours)
        axis.set_xlim(0, end)
        axis.set_title(label, loc="left")
    if title:
        figure.suptitle(title)
    handles = _legend(colours, {bar.kind for _, bars, _ in loaded for bar in bars})
    figure.legend(handles=handles, loc="outside lower center", ncols=min(8, len(handles)))
    rows = [_csv_row(label, bar) for label, bars, _ in loaded for bar in bars]
    return style.save(figure, name, rows, out_dir)


def draw_rows(axis: Axes, bars: Sequence[Bar], ranks: Sequence[str], colours: dict[str, str]) -> None:
    """Draw bars into a panel; `colours` holds one for each request (see colours_of)."""
    place = {rank: index for index, rank in enumerate(ranks)}
    for bar in bars:
        if bar.rank in place:
            _draw_bar(axis, bar, place[bar.rank], colours)
    axis.set_yticks(range(len(ranks)), ranks)
    axis.set_ylim(len(ranks) - 0.4, -0.6)
    axis.grid(axis="y", visible=False)
    axis.set_xlabel("Time (s)")


def colours_of(bars: Sequence[Bar]) -> dict[str, str]:
    """A colour for each request, in order of its first bar; they repeat after eight."""
    ordered = sorted(bars, key=lambda bar: bar.start)
    requests = list(dict.fromkeys(request for bar in ordered for request in bar.requests))
    return {request: COLOURS[index % len(COLOURS)] for index, request in enumerate(requests)}


def _bar(event: dict[str, Any], names: dict[int, str], first: float) -> Bar:
    args = event.get("args", {})
    requests = tuple(name for name in str(args.get("request", "")).split(",") if name)
    kind = str(args.get("kind", event.get("cat", "prefill")))
    rank = names.get(event["pid"], f"rank {event['pid']}")
    return Bar(rank, kind, requests, (event["ts"] - first) / 1e6, event["dur"] / 1e6)


def _draw_bar(axis: Axes, bar: Bar, row: int, colours: dict[str, str]) -> None:
    """The requests of a micro-batch share the height of its bar."""
    height = TRANSFER_HEIGHT if bar.kind == "transfer" else BAR_HEIGHT
    top = row + (BAR_HEIGHT - height) / 2 if bar.kind == "transfer" else row - BAR_HEIGHT / 2
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


def _legend(colours: dict[str, str], kinds: set[str]) -> list[Patch]:
    shown = list(colours.items())[: len(COLOURS)]
    requests = [Patch(facecolor=colour, label=f"request {name}") for name, colour in shown]
    grey = style.OTHER.colour
    looks = {kind: look for kind, look in KIND_LOOK.items() if kind in kinds and look}
    return requests + [
        Patch(facecolor=grey, edgecolor="white", label=kind, **look) for kind, look in looks.items()
    ]


def _csv_row(label: str, bar: Bar) -> dict[str, Any]:
    return {
        "trace": label,
        "rank": bar.rank,
        "kind": bar.kind,
        "requests": " ".join(bar.requests),
        "start_s": bar.start,
        "duration_s": bar.duration,
    }


def main(argv: list[str] | None = None) -> int:
    """Command line: draw one trace."""
    parser = argparse.ArgumentParser(prog="timeline", description="Draw a Chrome trace.")
    parser.add_argument("trace", type=Path, help="file of `rserve timeline`")
    parser.add_argument("--out", type=Path, help="picture (default: beside the trace)")
    parser.add_argument("--title", default="", help="default: the file's name")
    args = parser.parse_args(argv)
    for path in draw(args.trace, args.out or args.trace.with_suffix(".png"), args.title):
        print(path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
