"""What an item router counts, for /metrics."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field


class Distribution:
    """How often values fell into each bucket; bounds are inclusive upper limits, the last is infinity."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper limit, values up to it), as Prometheus: 3, 20 with bound 4 give ("4", 1), ("+Inf", 2)."""
        found, so_far = [], 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            so_far += count
            found.append((bound, float(so_far)))
        return found


@dataclass(frozen=True, slots=True)
class RouterLoad:
    """Gauges, counters and distributions by name (without unit suffixes of Prometheus)."""

    gauges: Mapping[str, float] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)
    distributions: Mapping[str, Distribution] = field(default_factory=dict)
