"""How often something is measured, and what counts as its time."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Median seconds of a step: repeated until `spend` seconds are used, within the limits on the number.

    The first run, which allocates memory and picks kernels, does not count unless it is `long`.
    """

    device: torch.device
    spend: float = 0.6
    least: int = 3
    most: int = 15
    long: float = 1.0

    def median(self, step: Callable[[], object]) -> float:
        """Seconds of one call, until the device is done with it."""
        first = self._once(step)
        if first > self.long:
            return statistics.median((first, self._once(step)))
        wanted = int(self.spend / max(first, 1e-6))
        return statistics.median(self._once(step) for _ in range(min(max(wanted, self.least), self.most)))

    def _once(self, step: Callable[[], object]) -> float:
        start = time.perf_counter()
        step()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - start
