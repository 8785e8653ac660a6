"""Reading quantities off the result lines of one constant set."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from .paper_runs import WORKLOADS

Line = Mapping[str, object]
Curve = dict[float, float]
"""request rate -> value"""


@dataclass(frozen=True, slots=True)
class Pick:
    """Which lines make a curve: the fields that they share."""

    experiment: str
    label: str
    tp: int = 1
    model: str = "qwen2.5-vl-72b"
    placement: str | None = None
    intra_reading: str | None = None

    def matches(self, line: Line) -> bool:
        wanted = {
            "experiment": self.experiment,
            "label": self.label,
            "tp": self.tp,
            "model": self.model,
        }
        if self.placement is not None:
            wanted["placement"] = self.placement
        if self.intra_reading is not None:
            wanted["intra_reading"] = self.intra_reading
        return all(line[name] == value for name, value in wanted.items())


class PaperResults:
    """All lines of one constant set; curves and comparisons of curves."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.lines = list(lines)

    def curve(self, pick: Pick, workload: str, metric: str) -> Curve:
        """A metric by request rate. Raises LookupError when nothing matches."""
        found = {
            float(str(line["request_rate"])): number(line, metric)
            for line in self.lines
            if line["workload"] == workload and pick.matches(line)
        }
        if not found:
            raise LookupError(f"no line for {pick} and {workload}")
        return found

    def change(self, ours: Pick, theirs: Pick, metric: str, workload: str) -> Curve:
        """By rate, how much `ours` differs from `theirs`, in percent: -20 is a fifth less."""
        a, b = self.curve(ours, workload, metric), self.curve(theirs, workload, metric)
        return {rate: 100.0 * (a[rate] / b[rate] - 1.0) for rate in a if rate in b}

    def mean_change(self, ours: Pick, theirs: Pick, metric: str = "mean_ttft_ms") -> tuple[float, ...]:
        """Average over the rates, for each workload."""
        return tuple(fmean(self.change(ours, theirs, metric, w).values()) for w in self.workloads(ours))

    def saturated(self, pick: Pick, metric: str = "input_throughput") -> tuple[float, ...]:
        """The highest value over the rates, for each workload."""
        return tuple(max(self.curve(pick, w, metric).values()) for w in self.workloads(pick))

    def saturated_change(self, ours: Pick, theirs: Pick) -> tuple[float, ...]:
        """How the highest throughputs differ, in percent."""
        return tuple(100.0 * (a / b - 1.0) for a, b in zip(self.saturated(ours), self.saturated(theirs)))

    def coverage(self, ours: Pick, theirs: Pick) -> tuple[float, ...]:
        """How the areas below two curves of attainment differ, in percent; rates are evenly spaced."""
        areas = [
            [sum(self.curve(pick, w, "slo_attainment").values()) for w in self.workloads(pick)]
            for pick in (ours, theirs)
        ]
        return tuple(100.0 * (a / b - 1.0) if b else float("inf") for a, b in zip(*areas))

    def mean_attainment(self, pick: Pick) -> tuple[float, ...]:
        """Average attainment over the rates, in percent, for each workload."""
        return tuple(
            100.0 * fmean(self.curve(pick, w, "slo_attainment").values()) for w in self.workloads(pick)
        )

    def workloads(self, pick: Pick) -> Sequence[str]:
        """The paper's workloads for which the pick has lines."""
        found = {line["workload"] for line in self.lines if pick.matches(line)}
        return [workload for workload in WORKLOADS if workload in found]


def number(line: Line, field: str) -> float:
    """A numeric field; a missing value (no request was served) counts as infinite."""
    value = line[field]
    return float("inf") if value is None else float(str(value))
