"""Many scenarios at once, over the cores of this machine."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, replace
from itertools import product
from multiprocessing import cpu_count
from typing import Any

from .scenario import Scenario
from .simulator import Simulated, simulate

INTEGERS = frozenset(
    (
        *("pp", "tp", "encoders", "output_len", "num_requests", "seed", "token_budget"),
        *("embedding_batch_size", "max_in_flight", "kv_tokens", "page_size", "embedding_tokens"),
    )
)
NUMBERS = frozenset(("request_rate", "slo_ttft_ms"))


def parse_values(name: str, text: str) -> list[Any]:
    """Values of a scenario field: "0.2:2.0:10" is ten evenly spaced ones, "a,b" a list.

    0.2:1.0:3 gives 0.2, 0.6, 1.0. Raises ValueError for an unknown field or a malformed range.
    """
    if name not in {field.name for field in fields(Scenario)}:
        raise ValueError(f"--sweep: a scenario has no {name.replace('_', '-')}")
    if text.count(":") == 2:
        start, stop, count = text.split(":")
        try:
            steps = int(count)
            float(start), float(stop)
        except ValueError:
            raise ValueError(f"--sweep {name}={text}: a range is FIRST:LAST:POINTS, as 0.2:2.0:10") from None
        if steps < 2:
            raise ValueError(f"--sweep {name}={text}: give at least two points")
        width = (float(stop) - float(start)) / (steps - 1)
        return [_typed(name, str(round(float(start) + width * step, 9))) for step in range(steps)]
    return [_typed(name, part) for part in text.split(",")]


def expand(base: Scenario, sweeps: Mapping[str, Sequence[Any]]) -> list[Scenario]:
    """All combinations, the last field varying fastest."""
    return [replace(base, **dict(zip(sweeps, values))) for values in product(*sweeps.values())]


def run_all(scenarios: Sequence[Scenario], jobs: int | None = None) -> Iterator[Simulated]:
    """Results in the order of the scenarios. jobs: processes, by default one per core."""
    jobs = min(jobs or cpu_count(), len(scenarios))
    if jobs <= 1:
        yield from map(simulate, scenarios)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(simulate, scenarios, chunksize=1)


def _typed(name: str, text: str) -> Any:
    if name not in INTEGERS | NUMBERS:
        return text
    try:
        number = float(text)
    except ValueError:
        raise ValueError(
            f"--sweep {name.replace('_', '-')}: {text!r} is no number; write A,B,C or FIRST:LAST:POINTS"
        ) from None
    if name in INTEGERS:
        if number != int(number):
            raise ValueError(f"--sweep {name.replace('_', '-')}: {text} is not a whole number")
        return int(number)
    return number
