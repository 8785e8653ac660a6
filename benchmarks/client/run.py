"""Run one benchmark: send prompts at their times, whatever the server's speed, and record each answer."""

from __future__ import annotations

import asyncio
import gc
import math
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from tqdm import tqdm

from benchmarks.client import metrics, server
from benchmarks.client.backends import RequestOptions
from benchmarks.client.record import RequestRecord
from benchmarks.client.send import send
from benchmarks.workloads.prompt import Prompt
from benchmarks.workloads.vision_tokens import VisionGrid
from rserve.sim.arrivals import poisson_arrivals


@dataclass(frozen=True)
class BenchSpec:
    """One run against one server.

    arrivals: seconds from the start at which each prompt is sent; None draws a Poisson process from
    request_rate (requests/s, inf = all at once) and seed. timeout_s limits one request. slo_ms holds limits
    by `ttft`, `tpot`, `e2el`. model None asks `/v1/models`.
    """

    base_url: str
    prompts: Sequence[Prompt]
    model: str | None = None
    backend: str = "rserve"
    request_rate: float = math.inf
    seed: int = 1
    arrivals: Sequence[float] | None = None
    max_concurrency: int | None = None
    warmup_requests: int = 1
    stream: bool = True
    ignore_eos: bool = True
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 6 * 3600.0
    slo_ms: Mapping[str, float] = field(default_factory=dict)
    vision_grid: VisionGrid = field(default_factory=VisionGrid)
    flush_cache: bool = False
    progress: bool = True


@dataclass(frozen=True)
class BenchResult:
    """The records of a run in the order of the prompts, and the seconds from first request to last answer."""

    spec: BenchSpec
    model: str
    server_info: Mapping[str, Any]
    records: tuple[RequestRecord, ...]
    duration: float

    @property
    def failed(self) -> int:
        return sum(not record.ok for record in self.records)

    def metrics(self) -> dict[str, Any]:
        """All measured fields of a result line (see benchmarks.client.metrics.compute)."""
        return metrics.compute(self.records, self.duration, self.spec.slo_ms)


async def run_benchmark(spec: BenchSpec) -> BenchResult:
    """Warm up, then send every prompt at its time (open loop).

    Failed requests are part of the result. Raises ConnectionError when the server does not answer or the
    warm-up fails, ValueError when there is nothing to send.
    """
    if not spec.prompts:
        raise ValueError("there are no prompts to send")
    arrivals = spec.arrivals
    if arrivals is None:
        arrivals = poisson_arrivals(len(spec.prompts), spec.request_rate, spec.seed)
    elif len(arrivals) != len(spec.prompts):
        raise ValueError(f"{len(arrivals)} arrival times for {len(spec.prompts)} prompts")
    _allow_sockets(len(spec.prompts))
    limits = aiohttp.ClientTimeout(total=spec.timeout_s, sock_connect=min(30.0, spec.timeout_s))
    connector = aiohttp.TCPConnector(
        limit=0, force_close=True
    )  # no reused connection that a server just closed
    async with aiohttp.ClientSession(
        timeout=limits, connector=connector, headers=dict(spec.headers)
    ) as session:
        model = spec.model or await server.first_model(session, spec.base_url)
        info = await server.server_info(session, spec.base_url)
        bodies = await asyncio.to_thread(_bodies, spec, model)
        await _warm_up(session, spec, bodies[0])
        if spec.flush_cache:
            await server.flush_cache(session, spec.base_url)
        records, duration = await _Run(session, spec, bodies).execute(arrivals)
    for record, prompt in zip(records, spec.prompts, strict=True):
        _fill_token_counts(record, prompt, spec.vision_grid)
    return BenchResult(spec, model, info, tuple(records), duration)


class _Run:
    """Sends all bodies of a run and waits for all answers."""

    def __init__(self, session: aiohttp.ClientSession, spec: BenchSpec, bodies: Sequence[bytes]) -> None:
        self._session = session
        self._spec = spec
        self._bodies = bodies
        self._url = f"{spec.base_url}/v1/chat/completions"
        self._slots = asyncio.Semaphore(spec.max_concurrency or len(bodies))

    async def execute(self, arrivals: Sequence[float]) -> tuple[list[RequestRecord], float]:
        records = [RequestRecord(index, arrival) for index, arrival in enumerate(arrivals)]
        gc.collect()
        gc.freeze()  # the bodies are many megabytes; do not walk them in a timed collection
        try:
            with tqdm(total=len(records), unit="req", disable=not self._spec.progress) as bar:
                start = time.perf_counter()
                tasks = []
                for record in records:
                    # Against the absolute clock: a late wake-up does not delay all later arrivals.
                    delay = start + record.arrival - time.perf_counter()
                    if delay > 0:
                        await asyncio.sleep(delay)
                    tasks.append(asyncio.create_task(self._one(record, start, bar)))
                await asyncio.gather(*tasks)
                duration = time.perf_counter() - start
        finally:
            gc.unfreeze()
        return records, duration

    async def _one(self, record: RequestRecord, start: float, bar: tqdm[Any]) -> None:
        async with self._slots:
            record.sent = time.perf_counter() - start
            await send(self._session, self._url, self._bodies[record.index], record)
        bar.update()


def _allow_sockets(num_requests: int) -> None:
    """Raise this process's limit of open files so that every request can have its connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(num_requests + 256, hard) if hard != resource.RLIM_INFINITY else num_requests + 256
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _bodies(spec: BenchSpec, model: str) -> list[bytes]:
    options = RequestOptions(model, spec.backend, spec.stream, spec.ignore_eos, spec.extra_body)
    return [options.body(prompt) for prompt in spec.prompts]


async def _warm_up(session: aiohttp.ClientSession, spec: BenchSpec, body: bytes) -> None:
    records = [RequestRecord(index, 0.0) for index in range(spec.warmup_requests)]
    url = f"{spec.base_url}/v1/chat/completions"
    await asyncio.gather(*(send(session, url, body, record) for record in records))
    for record in records:
        if not record.ok:
            raise ConnectionError(f"the warm-up request failed: {record.error}")


def _fill_token_counts(record: RequestRecord, prompt: Prompt, grid: VisionGrid) -> None:
    """Where the server's usage is silent: image tokens by the model's resize rule, text by the tokenizer."""
    if record.vision_tokens is None:
        record.vision_tokens = grid.prompt_tokens(prompt)
    if record.prompt_tokens is None and prompt.text_tokens is not None:
        record.prompt_tokens = prompt.text_tokens + record.vision_tokens
