"""When requests come: the rule that the benchmark client follows too."""

import random
from itertools import accumulate
from math import isinf


def poisson_arrivals(num_requests: int, request_rate: float, seed: int) -> list[float]:
    """Arrival times in seconds: the first at once, then exponential gaps of mean 1 / request_rate.

    The same seed gives the times at which `rserve bench` sends, and another rate only stretches them. An
    infinite rate sends all at once. Raises ValueError for a rate that is not positive.
    """
    if not request_rate > 0:
        raise ValueError(f"request rate must be positive (or inf), got {request_rate}")
    if isinf(request_rate) or num_requests == 0:
        return [0.0] * num_requests
    draw = random.Random(seed)
    return [0.0, *accumulate(draw.expovariate(1.0) / request_rate for _ in range(num_requests - 1))]
