"""From what happened to requests to the numbers of a result line, under the benchmark client's names."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import floor, sqrt
from statistics import fmean

from gllm.core.request_life import RequestLife

from .workload import SimRequest

PERCENTILES = (90, 95, 99)


@dataclass(slots=True)
class Outcome:
    """One request's times in seconds: when it was sent, when each of its tokens reached the client."""

    request: SimRequest
    token_times: list[float] = field(default_factory=list)
    error: str = ""

    @property
    def ok(self) -> bool:
        return not self.error and len(self.token_times) >= self.request.output_len

    @property
    def ttft(self) -> float:
        return self.token_times[0] - self.request.arrival

    @property
    def latency(self) -> float:
        return self.token_times[-1] - self.request.arrival

    @property
    def life(self) -> RequestLife:
        """For a trace."""
        request, times = self.request, self.token_times
        end = times[-1] if times else request.arrival
        return RequestLife(
            request.request_id,
            request.arrival,
            end,
            first_token=times[0] if times else None,
            reason=self.error or "length",
            num_tokens=len(times),
        )

    @property
    def itls(self) -> list[float]:
        return [b - a for a, b in zip(self.token_times, self.token_times[1:])]


def percentile(values: Sequence[float], q: float) -> float:
    """Interpolated between ranks: 1, 2, 3, 4 at q = 90 give 3.7."""
    ordered = sorted(values)
    rank = (len(ordered) - 1) * q / 100
    low = floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def summarise(name: str, seconds: Sequence[float]) -> dict[str, float | None]:
    """mean, median, std, p90, p95, p99 in milliseconds, as `mean_ttft_ms` and so on; None without samples."""
    labels = ["mean", "median", "std", *(f"p{q}" for q in PERCENTILES)]
    if not seconds:
        return {f"{label}_{name}_ms": None for label in labels}
    mean = fmean(seconds)
    std = sqrt(fmean((value - mean) ** 2 for value in seconds))
    numbers = [mean, percentile(seconds, 50), std, *(percentile(seconds, q) for q in PERCENTILES)]
    return {f"{label}_{name}_ms": value * 1e3 for label, value in zip(labels, numbers)}


def attainment(outcomes: Sequence[Outcome], ttft_ms: float) -> float:
    """Share of all requests whose first token came within the limit; a failed request misses it."""
    return sum(o.ok and o.ttft * 1e3 <= ttft_ms for o in outcomes) / len(outcomes)


def metrics(outcomes: Sequence[Outcome], slo_ttft_ms: float | None) -> dict[str, object]:
    """All measured fields. duration: seconds from the first request sent to the last token received."""
    good = [outcome for outcome in outcomes if outcome.ok]
    start = min(outcome.request.arrival for outcome in outcomes)
    duration = max((outcome.token_times[-1] for outcome in good), default=start) - start
    attained = None if slo_ttft_ms is None else attainment(outcomes, slo_ttft_ms)
    fields: dict[str, object] = {
        "duration": duration,
        "completed": len(good),
        "failed": len(outcomes) - len(good),
        "slo_attainment": attained,
        "slo": {} if slo_ttft_ms is None else {"ttft": slo_ttft_ms},
        "request_goodput": None if attained is None else _per_second(attained * len(outcomes), duration),
    }
    fields |= _tokens(good, duration)
    fields |= summarise("e2e_latency", [outcome.latency for outcome in good])
    fields |= summarise("ttft", [outcome.ttft for outcome in good])
    gaps = [outcome.itls for outcome in good if outcome.itls]
    fields |= summarise("tpot", [fmean(itls) for itls in gaps])
    return fields | summarise("itl", [gap for itls in gaps for gap in itls])


def _tokens(good: Sequence[Outcome], duration: float) -> dict[str, object]:
    total_input = sum(outcome.request.prompt_len for outcome in good)
    total_vision = sum(outcome.request.num_mm_tokens for outcome in good)
    total_output = sum(len(outcome.token_times) for outcome in good)
    return {
        "total_input_tokens": total_input,
        "total_input_text_tokens": total_input - total_vision,
        "total_input_vision_tokens": total_vision,
        "total_output_tokens": total_output,
        "request_throughput": _per_second(len(good), duration),
        "input_throughput": _per_second(total_input, duration),
        "output_throughput": _per_second(total_output, duration),
        "total_throughput": _per_second(total_input + total_output, duration),
    }


def _per_second(amount: float, duration: float) -> float:
    return amount / duration if duration else 0.0
