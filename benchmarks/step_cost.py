"""What a step of the core costs, whatever waits: µs at 10, 1,000 and 100,000 waiting requests.

    python -m benchmarks.step_cost --out results

CPU time, so that other processes do not count. Requests of 512 tokens wait for KV blocks; four of them fit
into a micro-batch, end with it, and are replaced. Under `rserve` every one has an image, and those behind the
head of the queue wait for its embedding.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from benchmarks import results
from gllm.core.batch import BatchResult, MicroBatch, SampledToken
from gllm.core.core_config import CoreConfig
from gllm.core.engine_core import EngineCore
from gllm.core.request import MMItem, Request, SamplingParams
from rserve.core.epd_core import Scheme, make_core

PROMPT, ITEM = 512, 256
SIZES = (10, 1_000, 100_000)
TOKENS = (7,) * PROMPT


@dataclass(frozen=True)
class StepCost:
    """Median microseconds of one step, of one result, and of the events of one request."""

    step_us: float
    done_us: float
    request_us: float


class Queue:
    """A core whose queue keeps its length."""

    def __init__(self, scheme: str, waiting: int) -> None:
        config = CoreConfig(num_blocks=1024, num_stages=1, max_in_flight=2)
        self.core: EngineCore = make_core(Scheme(scheme), config)
        self.has_items = scheme != "gllm"
        self._ids = count()
        self.waiting_for_item: Iterator[int] = count()
        gc.disable()  # walking a hundred thousand requests while they are made takes most of the time
        for _ in range(waiting):
            self.add()
        gc.enable()
        gc.freeze()

    def add(self) -> float:
        """One more request; seconds that its event took."""
        items = (MMItem(0, ITEM),) if self.has_items else ()
        request = Request(str(next(self._ids)), TOKENS, items, SamplingParams(max_tokens=1, temperature=0.0))
        start = time.thread_time()
        self.core.on_request(request)
        return time.thread_time() - start

    def encode(self, how_many: int) -> float:
        """The next items in the queue arrive; seconds for each."""
        if not self.has_items:
            return 0.0
        start = time.thread_time()
        for _ in range(how_many):
            self.core.on_embeddings(str(next(self.waiting_for_item)), 0, 0, range(ITEM))
        return (time.thread_time() - start) / how_many


def measure(scheme: str, waiting: int, steps: int = 300) -> StepCost:
    """Steps of a core with so many requests in its queue."""
    queue = Queue(scheme, waiting)
    core = queue.core
    queue.encode(8)
    step_times, done_times, request_times = [], [], []
    for _ in range(steps):
        start = time.thread_time()
        batch = core.step()
        step_times.append(time.thread_time() - start)
        core.take_effects()
        assert isinstance(batch, MicroBatch), "the queue ran dry"
        start = time.thread_time()
        core.on_batch_done(_result(batch))
        done_times.append(time.thread_time() - start)
        core.take_effects()
        ended = len(batch.samples)
        added = [queue.add() for _ in range(ended)]
        arrived = queue.encode(ended) if ended else 0.0
        request_times += [seconds + arrived for seconds in added]
    return StepCost(*(statistics.median(times) * 1e6 for times in (step_times, done_times, request_times)))


def _result(batch: MicroBatch) -> BatchResult:
    tokens = tuple(
        SampledToken(target.seq_id, target.request_id, target.choice, target.position, 0)
        for sample in batch.samples
        for target in sample.targets
    )
    return BatchResult(batch.batch_id, tokens)


def main(argv: list[str] | None = None) -> int:
    """Print a table and append lines."""
    parser = argparse.ArgumentParser(prog="step_cost", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder (default %(default)s)")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="requests in the queue")
    args = parser.parse_args(argv)
    rows = ["| scheme | waiting | step (µs) | result (µs) | request (µs) |", "|---|---|---|---|---|"]
    for scheme in ("gllm", "rserve"):
        for waiting in args.sizes:
            cost = measure(scheme, waiting)
            numbers = (f"{value:.1f}" for value in (cost.step_us, cost.done_us, cost.request_us))
            rows.append(f"| {scheme} | {waiting:,} | {' | '.join(numbers)} |")
            print(rows[-1], flush=True)
            line = {
                "experiment": "step_cost",
                "source": "measured",
                "scheme": scheme,
                "waiting_requests": waiting,
                "step_us": cost.step_us,
                "done_us": cost.done_us,
                "request_us": cost.request_us,
                "hardware": results.hardware_name(),
                "commit": results.current_commit(),
            }
            results.append_line(args.out / "costs.jsonl", line)
    title = f"{results.hardware_name()}, commit {results.current_commit()}; medians"
    (args.out / "step-cost.md").write_text("\n".join([title, "", *rows, ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
