"""From result lines to what a figure shows: lines that belong together, curves, points with intervals."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchmarks.results import Line, rate_of, select

SCHEME_NAMES = {"gllm": "gLLM", "gllm-epd": "gLLM-epd", "rserve-intra": "RServe-intra", "rserve": "RServe"}
WORKLOAD_ORDER = ("mmmu-1k", "mmmu-2k")

# Two-sided 95 % points of Student's t by degrees of freedom, 1 … 10; beyond, the normal's is close enough.
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
_NORMAL = 1.96

Value = Callable[[Line], float | None]


@dataclass(frozen=True)
class Group:
    """Lines of one experiment that may share a figure: one source, one cost set, one machine."""

    lines: tuple[Line, ...]
    source: str
    costs: str
    hardware: str

    @property
    def suffix(self) -> str:
        """What a title says about where the numbers come from."""
        machine = hardware_title(self.hardware)
        if self.source == "simulated":
            return f"simulated, costs {self.costs} ({machine})"
        return f"measured on {machine}"

    @property
    def slug(self) -> str:
        """The part of file names that tells groups apart."""
        kind = f"simulated-{self.costs}" if self.source == "simulated" else "measured"
        return re.sub(r"[^a-z0-9.]+", "-", f"{kind}-{hardware_title(self.hardware)}".lower()).strip("-")

    def workloads(self) -> list[str]:
        """Its workloads: the paper's two first."""
        found = {str(line["workload"]) for line in self.lines}
        return sorted(found, key=lambda name: (name not in WORKLOAD_ORDER, name))

    def of(self, workload: str) -> list[Line]:
        return select(self.lines, workload=workload)


@dataclass(frozen=True)
class Point:
    """Median over repeats at x, and half the width of its 95 % interval (0 for fewer than three)."""

    x: float
    y: float
    half_width: float
    repeats: int


def groups(lines: Iterable[Line], experiment: str) -> list[Group]:
    """The groups of an experiment, measured ones first."""
    wanted = select(lines, experiment=experiment)
    keys = sorted({_key(line) for line in wanted})
    return [Group(tuple(line for line in wanted if _key(line) == key), *key) for key in keys]


def curve_name(line: Line) -> str:
    """The legend's name of a line: its label, else its scheme as the paper writes it."""
    label, scheme = line.get("label"), str(line.get("scheme"))
    if label and label != scheme:
        return str(label)
    return SCHEME_NAMES.get(scheme, scheme)


def parallelism(line: Line) -> str:
    """How a line's devices are used, as in the paper: TP4, PP4+E1."""
    parts = [f"{name.upper()}{line[name]}" for name in ("tp", "pp") if (line.get(name) or 1) > 1]
    encoders = line.get("encoders") or 0
    return "×".join(parts or ["1"]) + (f"+E{encoders}" if encoders else "")


def points(lines: Iterable[Line], x: Value, y: Value) -> list[Point]:
    """One point for each x, ascending; lines without a finite x or a y are left out."""
    found: dict[float, list[float]] = {}
    for line in lines:
        at, value = x(line), y(line)
        if at is not None and value is not None and math.isfinite(at):
            found.setdefault(at, []).append(value)
    return [Point(at, statistics.median(ys), half_width(ys), len(ys)) for at, ys in sorted(found.items())]


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean by Student's t: 1, 2, 3 give 4.30 · 1 / √3 = 2.48."""
    if len(values) < 3:
        return 0.0
    degrees = len(values) - 1
    t = _STUDENT[degrees - 1] if degrees <= len(_STUDENT) else _NORMAL
    return t * statistics.stdev(values) / math.sqrt(len(values))


def mean_change(ours: Sequence[Point], base: Sequence[Point]) -> float | None:
    """Average over the shared x of ours / base − 1; None without a shared x. 8 against 10 is −0.2."""
    at = {point.x: point.y for point in base}
    ratios = [point.y / at[point.x] - 1 for point in ours if at.get(point.x)]
    return statistics.fmean(ratios) if ratios else None


def request_rate(line: Line) -> float | None:
    """The rate in requests per second; None where a line has none."""
    return rate_of(line) if line.get("request_rate") is not None else None


def field(name: str, scale: float = 1.0) -> Value:
    """Reads a field of a line, times `scale`; None stays None."""

    def read(line: Line) -> float | None:
        value = line.get(name)
        return None if value is None else float(value) * scale

    return read


def workload_title(workload: str) -> str:
    """A workload as titles name it: "mmmu-1k" → "MMMU 1K", "synthetic-2k" → "synthetic 2K"."""
    base, _, size = workload.partition("-")
    base = "MMMU" if base == "mmmu" else base
    return f"{base} {size.upper() if size in ('1k', '2k') else size}".strip()


def model_title(lines: Iterable[Line]) -> str:
    """The models of some lines, as the paper writes them."""
    names = sorted({str(line.get("model", "")) for line in lines})
    spelled = [re.sub(r"(?i)^qwen2\.5-vl", "Qwen2.5-VL", name) for name in names]
    return ", ".join(re.sub(r"-(\d+)b\b", r"-\1B", name) for name in spelled)


def hardware_title(hardware: str) -> str:
    """A machine in few words: "2 cores of Intel(R) Xeon(R) CPU @ 2.1GHz" → "2 cores of Intel Xeon"."""
    text = re.sub(r"\((R|TM)\)|\bCPU\b|\bProcessor\b|@ *[\d.]+ *GHz", "", hardware)
    text = re.sub(r"\s+", " ", text).replace(" ,", ",").strip()
    return text.upper() if re.fullmatch(r"[ah]\d+\S*", text) else text


def _key(line: Line) -> tuple[str, str, str]:
    return str(line["source"]), str(line.get("costs") or ""), str(line.get("hardware") or "unknown machine")
