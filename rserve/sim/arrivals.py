"""When requests come: a seeded Poisson process, for the simulator and the benchmark client."""

import random
from itertools import accumulate
from math import isinf


def poisson_arrivals(num_requests: int, request_rate: float, seed: int) -> list[float]:
    """Seconds after the start at which each request is sent: the first at once, then exponential gaps.

    Their mean is 1 / request_rate. One seed gives one pattern, which another rate only stretches, so schemes
    and rates are compared on identical arrivals; an infinite rate sends all at once. Seed 1 at 2 requests/s
    gives 0.0, 0.07, 1.01, ..., and at 4 requests/s half of each.
    Raises ValueError for a rate that is not positive.
    """
    if not request_rate > 0:
        raise ValueError(f"request rate must be positive (or inf), got {request_rate}")
    if isinf(request_rate) or num_requests == 0:
        return [0.0] * num_requests
    draw = random.Random(seed)
    return [0.0, *accumulate(draw.expovariate(1.0) / request_rate for _ in range(num_requests - 1))]
