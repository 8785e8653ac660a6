"""How titles name the service-level objective of some lines, and the area under its curve."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from benchmarks.results import Line
from plots.lines import Point


def slo_title(lines: Iterable[Line]) -> str:
    """ "TTFT ≤ 10 s", or "TTFT ≤ 1.4 / 2 s" where workloads differ."""
    limits = sorted({(line.get("slo") or {}).get("ttft", 0.0) / 1000.0 for line in lines} - {0.0})
    return f"TTFT ≤ {' / '.join(f'{limit:g}' for limit in limits)} s" if limits else "no limit given"


def coverage(points: Sequence[Point]) -> float:
    """Area under attainment over rates, by trapezoids: 100 % at 1 and 0 % at 3 requests/s give 100."""
    return sum((b.x - a.x) * (a.y + b.y) / 2 for a, b in itertools.pairwise(points))
