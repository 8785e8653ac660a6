"""Thousands of requests with distinct images: does any process of the server grow?

`python -m benchmarks.soak [--requests 5000] [--scheme rserve]` starts a server of the tiny model, sends the
requests, and prints each process's resident memory on the way. The exit code is 1 when one grew by more than
5 % between a fifth of the requests and the last.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp

from benchmarks.crowd import chat
from benchmarks.inside import processes, wait_until_idle
from benchmarks.servers import ServerPlan, running

ALLOWED_GROWTH = 0.05
SAMPLES = 10


@dataclass
class SoakReport:
    """Resident memory in KiB by process at each sample; `counts` are the requests answered by then."""

    counts: list[int] = field(default_factory=list)
    rss_kib: dict[str, list[int]] = field(default_factory=dict)
    failed: int = 0
    seconds: float = 0.0
    left: dict[str, float] = field(default_factory=dict)

    def growth(self) -> dict[str, float]:
        """Last sample over the one at a fifth of all requests, minus one, by process."""
        start = next(i for i, count in enumerate(self.counts) if count >= self.counts[-1] / 5)
        return {name: sizes[-1] / sizes[start] - 1 for name, sizes in self.rss_kib.items()}

    @property
    def is_steady(self) -> bool:
        return not self.failed and not self.left and max(self.growth().values()) <= ALLOWED_GROWTH

    def table(self) -> str:
        """Markdown: a row per process, a column per sample, in MiB."""
        head = ["process", *(f"{count} requests" for count in self.counts), "growth"]
        lines = [head, ["---"] * len(head)]
        growth = self.growth()
        for name, sizes in self.rss_kib.items():
            lines.append([name, *(f"{size / 1024:.1f}" for size in sizes), f"{100 * growth[name]:+.1f} %"])
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def soak(plan: ServerPlan, num_requests: int, concurrency: int) -> SoakReport:
    """Start the server, send the requests, sample memory while it rests. Raises ServerFailed."""
    with running(plan) as server:
        report = SoakReport()
        started = time.perf_counter()
        asyncio.run(_send(server.base_url, server.process.pid, (num_requests, concurrency), report))
        report.seconds = time.perf_counter() - started
        report.left = wait_until_idle(server.base_url, 60)
    return report


async def _send(base_url: str, pid: int, size: tuple[int, int], report: SoakReport) -> None:
    num_requests, concurrency = size
    per_sample = max(1, num_requests // SAMPLES)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
        for first in range(0, num_requests, per_sample):
            seeds = iter(range(first, min(first + per_sample, num_requests)))
            await asyncio.gather(*(_worker(session, base_url, seeds, report) for _ in range(concurrency)))
            await asyncio.to_thread(wait_until_idle, base_url, 60)
            report.counts.append(min(first + per_sample, num_requests))
            for name, state in processes(pid).items():
                report.rss_kib.setdefault(name, []).append(state.rss_kib)


async def _worker(session: aiohttp.ClientSession, base_url: str, seeds: object, report: SoakReport) -> None:
    for seed in seeds:  # type: ignore[attr-defined]
        body = chat([seed], 4, size=(56, 84, 112)[seed % 3])
        async with session.post(f"{base_url}/v1/chat/completions", json=body) as response:
            await response.read()
            report.failed += response.status != 200


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 when memory is steady."""
    parser = argparse.ArgumentParser(prog="benchmarks.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--scheme", default="rserve")
    args = parser.parse_args(argv)
    plan = ServerPlan("tiny", ("--scheme", args.scheme, "--kv-cache-gib", "0.1"))
    report = soak(plan, args.requests, args.concurrency)
    print(f"`{plan.shown}`: {args.requests} requests in {report.seconds:.0f} s, {report.failed} failed")
    print(report.table())
    return 0 if report.is_steady else 1


if __name__ == "__main__":
    sys.exit(main())
