"""The result lines of an overlap run as a Markdown table: schemes, rates, ratios with intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.alternate import Ratio, paired_ratio
from benchmarks.results import Line, rate_of, select

BASE = "gllm-epd"
HEAD = ("scheme", "load", "TTFT median (ms)", "mean (ms)", "tokens/s")


def write_table(lines: Sequence[Line], path: Path, base: str = BASE) -> str:
    """Write and return the table of one workload."""
    text = table(lines, base)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return text


def table(lines: Sequence[Line], base: str = BASE) -> str:
    """One row for each scheme and load, and its ratios to the scheme base.

    Intervals are 95 %, over requests (alone) or repeats (at a rate).
    """
    if not lines:
        return "no lines\n"
    first = lines[0]
    short = base.removeprefix("gllm-")
    head = (*HEAD, f"TTFT / {short}", f"tokens/s / {short}", "TTFT / bound")
    rows = [
        f"Overlap, workload `{first['workload']}`, model `{first['model']}` in {first.get('dtype')}, "
        f"measured on {first['hardware']}, commit {first['commit']}",
        "",
        *_part_rows(first),
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
    ]
    for load in _loads(lines):
        here = [line for line in lines if _load(line) == load]
        for scheme in dict.fromkeys(line["scheme"] for line in here):
            rows.append(_row(scheme, load, here, base))
    failed = sum(line["failed"] for line in lines)
    return "\n".join([*rows, "", f"failed requests: {failed}", ""])


def ttft_ratio(ours: Sequence[Line], base: Sequence[Line], alone: bool) -> Ratio | None:
    """ours / base: over pairs of the same request when alone, over repeats of the same arrivals else."""
    pairs = _pairs(ours, base)
    if alone:
        both = [pair for a, b in pairs for pair in zip(a["ttfts"], b["ttfts"])]
    else:
        both = [(a["mean_ttft_ms"], b["mean_ttft_ms"]) for a, b in pairs]
    return paired_ratio([a for a, _ in both], [b for _, b in both])


def throughput_ratio(ours: Sequence[Line], base: Sequence[Line]) -> Ratio | None:
    """ours / base over repeats."""
    pairs = _pairs(ours, base)
    return paired_ratio([a["input_throughput"] for a, _ in pairs], [b["input_throughput"] for _, b in pairs])


def bound_ratio(lines: Sequence[Line]) -> Ratio | None:
    """TTFT over its bound, request by request; None where there is no bound."""
    pairs = [
        (ttft * 1e3, bound)
        for line in lines
        if line.get("bounds_ms") and line["max_concurrency"] == 1
        for ttft, bound in zip(line["ttfts"], line["bounds_ms"])
    ]
    return paired_ratio([a for a, _ in pairs], [b for _, b in pairs])


def _row(scheme: str, load: tuple[bool, float], here: Sequence[Line], base_scheme: str) -> str:
    ours, base = select(here, scheme=scheme), select(here, scheme=base_scheme)
    alone, rate = load
    shown = "one at a time" if alone else ("all at once" if math.isinf(rate) else f"{rate:g}/s")
    is_base = scheme == base_scheme
    cells = (
        scheme,
        shown,
        f"{statistics.median(line['median_ttft_ms'] for line in ours):.0f}",
        f"{statistics.median(line['mean_ttft_ms'] for line in ours):.0f}",
        f"{statistics.median(line['input_throughput'] for line in ours):.0f}",
        "1" if is_base else _shown(ttft_ratio(ours, base, alone)),
        "1" if is_base else _shown(throughput_ratio(ours, base)),
        _shown(bound_ratio(ours)),
    )
    return "| " + " | ".join(cells) + " |"


def _part_rows(line: Line) -> list[str]:
    names = ("fixed", "per_token", "per_pair", "encode")
    parts = {name: line.get(f"part_{name}_ms") for name in names}
    if any(value is None for value in parts.values()):
        return []
    return [
        f"Parts, measured on the idle server: {parts['fixed']:.1f} ms fixed, "
        f"{parts['per_token']:.3f} ms a token, {parts['per_pair'] * 1e6:.2f} ns a pair of tokens, "
        f"{parts['encode']:.0f} ms an image.",
        "",
    ]


def _pairs(ours: Sequence[Line], base: Sequence[Line]) -> list[tuple[Line, Line]]:
    by_repeat = {line["repeat"]: line for line in base if not line["failed"]}
    return [
        (line, by_repeat[line["repeat"]])
        for line in ours
        if line["repeat"] in by_repeat and not line["failed"]
    ]


def _loads(lines: Sequence[Line]) -> list[tuple[bool, float]]:
    return sorted({_load(line) for line in lines}, key=lambda load: (not load[0], load[1]))


def _load(line: Line) -> tuple[bool, float]:
    return line["max_concurrency"] == 1, rate_of(line)


def _shown(ratio: Ratio | None) -> str:
    return "–" if ratio is None else str(ratio)
