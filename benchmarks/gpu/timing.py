"""How long a GPU takes, and how long it can take at best."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


def seconds(work: Callable[[], object], repeats: int = 20, warmups: int = 3) -> float:
    """Median device time of a call, by events; on a CPU, wall time."""
    for _ in range(warmups):
        work()
    if not torch.cuda.is_available():
        return statistics.median(wall_seconds(work) for _ in range(repeats))
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(times)


def wall_seconds(work: Callable[[], object]) -> float:
    """From the call until the device has finished all of it."""
    synchronize()
    begin = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - begin


def synchronize() -> None:
    """Wait for the GPU, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@dataclass(frozen=True)
class Ceilings:
    """What this device does at best: bytes/s (read and written) of a copy, FLOP/s of a bf16 product."""

    copy: float
    matmul: float


def measure_ceilings(device: torch.device) -> Ceilings:
    """A copy of 1 GiB, and products of 8192 x 8192 (the best of three shapes)."""
    source = torch.empty(2**30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = 2 * 2**30 / seconds(lambda: target.copy_(source))
    best = 0.0
    for m, n, k in ((8192, 8192, 8192), (2048, 37888, 3584), (4096, 8192, 8192)):
        a = torch.randn(m, k, dtype=torch.bfloat16, device=device)
        b = torch.randn(n, k, dtype=torch.bfloat16, device=device)
        best = max(best, 2.0 * m * n * k / seconds(lambda a=a, b=b: a @ b.T, repeats=10))
    return Ceilings(copy, best)
