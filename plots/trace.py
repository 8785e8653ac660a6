"""Reads Chrome traces of servers and simulations: what ranks did, and the lives of requests.

Complete events {"ph": "X", "pid": …, "ts": µs, "dur": µs, "args": {"request": "7", "kind": "prefill"}} are
bars; several requests in one micro-batch are joined by commas. Async events of category "request" ("b", "n",
"e" with the request as id) are lives. process_name metadata gives the rows' names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

WORK = ("encode", "prefill", "decode")


@dataclass(frozen=True)
class Bar:
    """One event of one rank; times in seconds from the first event of the trace."""

    rank: str
    kind: str
    requests: tuple[str, ...]
    start: float
    duration: float

    @property
    def end(self) -> float:
        return self.start + self.duration


@dataclass(frozen=True)
class Life:
    """A request from its arrival to its end, and moments in between (first encode, first token, …)."""

    request: str
    start: float
    end: float
    moments: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Trace:
    """ranks: those that did something, encoders first, for that is the way of a request."""

    bars: list[Bar]
    ranks: list[str]
    lives: list[Life]

    @property
    def end(self) -> float:
        return max([bar.end for bar in self.bars] + [life.end for life in self.lives])

    @property
    def requests(self) -> list[str]:
        """In order of arrival, or of the first bar where nothing is known of arrivals."""
        seen = [(life.start, life.request) for life in self.lives]
        seen += [(bar.start, request) for bar in self.bars for request in bar.requests]
        return list(dict.fromkeys(request for _, request in sorted(seen)))

    def within(self, start: float, end: float) -> Trace:
        """What of it lies between two times; bars and lives that reach out are cut there."""
        bars = [
            replace(bar, start=max(bar.start, start), duration=min(bar.end, end) - max(bar.start, start))
            for bar in self.bars
            if bar.start < end and bar.end > start
        ]
        lives = [
            Life(
                life.request,
                max(life.start, start),
                min(life.end, end),
                {name: at for name, at in life.moments.items() if start <= at <= end},
            )
            for life in self.lives
            if life.start < end and life.end > start
        ]
        return Trace(bars, self.ranks, lives)

    def busy_share(self, rank: str) -> float:
        """The part of the time in which there are requests (else of all time) that a rank works."""
        if not self.bars:
            return 0.0
        first = min(bar.start for bar in self.bars)
        alive = covered((life.start, life.end) for life in self.lives) or self.end - first
        work = [(bar.start, bar.end) for bar in self.bars if bar.rank == rank and bar.kind in WORK]
        return covered(work) / alive if alive else 0.0


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """The length of a union of intervals: [0, 2], [1, 3] and [5, 6] cover 4."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def load(path: str | Path) -> Trace:
    """Read a trace. Raises ValueError when it holds no complete event."""
    try:
        events = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no trace, but should be what --trace wrote: {error}") from None
    events = events["traceEvents"] if type(events) is dict else events
    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    if not any(event["ph"] == "X" for event in events):
        raise ValueError(f"{path} holds no complete events")
    first = min(event["ts"] for event in events if "ts" in event)
    bars = [_bar(event, names, first) for event in events if event["ph"] == "X"]
    with_bars = {bar.rank for bar in bars}
    ranks = [name for name in names.values() if name in with_bars] or sorted(with_bars)
    ranks.sort(key=lambda rank: not rank.startswith("encoder"))
    return Trace(bars, ranks, _lives(events, first))


def _bar(event: dict[str, Any], names: dict[int, str], first: float) -> Bar:
    args = event.get("args", {})
    requests = tuple(name for name in str(args.get("request", "")).split(",") if name)
    kind = str(args.get("kind", event.get("cat", "prefill")))
    rank = names.get(event["pid"], f"rank {event['pid']}")
    return Bar(rank, kind, requests, (event["ts"] - first) / 1e6, event["dur"] / 1e6)


def _lives(events: list[dict[str, Any]], first: float) -> list[Life]:
    """The outermost pair of events of each request, and its instants."""
    starts: dict[str, float] = {}
    ends: dict[str, float] = {}
    moments: dict[str, dict[str, float]] = {}
    for event in events:
        if event.get("cat") != "request":
            continue
        request, at = str(event["id"]), (event["ts"] - first) / 1e6
        if event["ph"] == "b":
            starts[request] = min(at, starts.get(request, at))
        elif event["ph"] == "e":
            ends[request] = max(at, ends.get(request, at))
        else:
            moments.setdefault(request, {})[event["name"]] = at
    lives = [Life(name, starts[name], ends[name], moments.get(name, {})) for name in starts if name in ends]
    return sorted(lives, key=lambda life: life.start)
