"""When requests are sent: a Poisson process from a seeded generator, as in SGLang's and vLLM's benchmarks."""

from __future__ import annotations

import itertools
import math
import random


def poisson_arrivals(num_requests: int, request_rate: float, seed: int) -> list[float]:
    """Seconds after the start at which each request is sent, ascending.

    The first is sent at once; gaps are exponential with mean 1 / request_rate. One seed gives one pattern,
    which another rate only stretches, so schemes and rates are compared on identical arrivals.
    request_rate = inf sends all of them at once. Example: seed 1 at 2 requests/s gives 0.0, 0.07, 1.01, …
    and at 4 requests/s exactly half of each.
    Raises ValueError for a rate that is not positive.
    """
    if not request_rate > 0:
        raise ValueError(f"request rate must be positive (or inf), got {request_rate}")
    if math.isinf(request_rate) or num_requests == 0:
        return [0.0] * num_requests
    draw = random.Random(seed)
    gaps = (draw.expovariate(1.0) / request_rate for _ in range(num_requests - 1))
    return [0.0, *itertools.accumulate(gaps)]
