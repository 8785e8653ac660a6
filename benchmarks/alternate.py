"""Compare servers fairly on a noisy machine: the same requests, one after the other, to each in turn."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.client import BenchResult, BenchSpec, RequestRecord, run_benchmark
from benchmarks.workloads import Prompt
from plots.lines import half_width


@dataclass(frozen=True)
class Ratio:
    """Geometric mean of ours / base over pairs, with its 95 % interval (equal to it below three pairs)."""

    value: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def paired_ratio(ours: Sequence[float], base: Sequence[float]) -> Ratio | None:
    """Ratio of paired measurements, by Student's t on their logarithms; None without pairs.

    Times of 8, 9, 10 against 10, 10, 10 give 0.90 with the interval 0.68 … 1.18.
    """
    logs = [math.log(a / b) for a, b in zip(ours, base) if a > 0 and b > 0]
    if not logs:
        return None
    middle, half = sum(logs) / len(logs), half_width(logs)
    return Ratio(math.exp(middle), math.exp(middle - half), math.exp(middle + half), len(logs))


def rotated(count: int, start: int) -> list[int]:
    """0 … count - 1, beginning elsewhere each time: who comes first gains or loses by nobody's plan."""
    return [(start + index) % count for index in range(count)]


def one_at_a_time(specs: Sequence[BenchSpec], prompts: Sequence[Prompt]) -> list[BenchResult]:
    """Send each prompt to every server before the next prompt, never two at once.

    specs: one for each server; their prompts and rates are replaced. The duration of a result is the sum of
    its own latencies. Raises ConnectionError as run_benchmark does.
    """
    return asyncio.run(_one_at_a_time(specs, prompts))


def run(spec: BenchSpec) -> BenchResult:
    """One open-loop run."""
    return asyncio.run(run_benchmark(spec))


async def _one_at_a_time(specs: Sequence[BenchSpec], prompts: Sequence[Prompt]) -> list[BenchResult]:
    records: list[list[RequestRecord]] = [[] for _ in specs]
    last: list[BenchResult | None] = [None] * len(specs)
    for number, prompt in enumerate(prompts):
        for index in rotated(len(specs), number):
            warm_up = specs[index].warmup_requests if number == 0 else 0
            single = replace(
                specs[index], prompts=[prompt], arrivals=[0.0], warmup_requests=warm_up, progress=False
            )
            result = await run_benchmark(single)
            records[index].append(replace(result.records[0], index=number))
            last[index] = result
    return [
        replace(
            result,
            spec=replace(spec, prompts=list(prompts), request_rate=math.inf, max_concurrency=1),
            records=tuple(found),
            duration=sum(record.latency for record in found),
        )
        for spec, result, found in zip(specs, last, records)
        if result is not None
    ]
