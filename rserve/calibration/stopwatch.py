"""How often something is measured, and what counts as its time."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

ROUNDS = 3

Step = Callable[[], object]


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

    def median(self, step: Step) -> float:
        """Seconds of one call, until the device is done with it."""
        first = self._once(step)
        if first > self.long:
            return statistics.median((first, self._once(step)))
        return statistics.median(self._times(step, first))

    def medians(self, steps: Sequence[Step], done: Callable[[int, float], None]) -> list[float]:
        """Of several steps, after one run of each that does not count: all of them in ROUNDS rounds.

        A slow while of the machine then spoils one round of some steps, and not their medians. done: called
        with a step's index and its median so far.
        """
        first = [self._once(step) for step in steps]
        times: list[list[float]] = [[] for _ in steps]
        for _ in range(ROUNDS):
            for index, step in enumerate(steps):
                times[index] += self._times(step, first[index], ROUNDS)
                done(index, statistics.median(times[index]))
        return [statistics.median(found) for found in times]

    def _times(self, step: Step, first: float, rounds: int = 1) -> list[float]:
        """Of one round; first: seconds of a run that does not count."""
        wanted = int(self.spend / rounds / max(first, 1e-6))
        return [self._once(step) for _ in range(min(max(wanted, self.least // rounds), self.most))]

    def _once(self, step: Step) -> float:
        start = time.perf_counter()
        step()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - start
