"""From the records of a run to the numbers of a result line, under SGLang's names."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.client.record import RequestRecord
from rserve.sim.metrics import summarise

SLO_METRICS = ("ttft", "tpot", "e2el")


def slo_attainment(records: Sequence[RequestRecord], slo_ms: Mapping[str, float]) -> float | None:
    """Share of all sent requests that ended well and within every limit; None without limits or requests.

    Limits in milliseconds, by `ttft`, `tpot` and `e2el`. A failed request misses every limit (§4.1.4).
    """
    if not slo_ms or not records:
        return None
    return sum(_meets(record, slo_ms) for record in records) / len(records)


def count_errors(records: Sequence[RequestRecord]) -> dict[str, int]:
    """How many requests failed for each reason, most frequent first."""
    return dict(Counter(record.error for record in records if not record.ok).most_common())


def compute(records: Sequence[RequestRecord], duration: float, slo_ms: Mapping[str, float]) -> dict[str, Any]:
    """All measured fields of a result line.

    duration: seconds from the first request to the last answer. Throughputs count only whole answers.
    """
    good = [record for record in records if record.ok]
    attained = slo_attainment(records, slo_ms)
    fields: dict[str, Any] = {
        "duration": duration,
        "completed": len(good),
        "failed": len(records) - len(good),
        "errors_by_reason": count_errors(records),
        "slo_attainment": attained,
        "slo": dict(slo_ms),
        "request_goodput": None if attained is None else attained * len(records) / duration,
    }
    fields |= _tokens(good, duration)
    fields |= summarise("e2e_latency", [record.latency for record in good])
    fields |= summarise("ttft", [record.ttft for record in good])
    fields |= summarise("tpot", [record.tpot for record in good if record.tpot is not None])
    fields |= summarise("itl", [gap for record in good for gap in record.itls])
    fields |= _concurrency(good, duration)
    fields["max_client_lag_ms"] = max((record.lag for record in records), default=0.0) * 1000.0
    return fields


def _meets(record: RequestRecord, slo_ms: Mapping[str, float]) -> bool:
    seconds = {"ttft": record.ttft, "tpot": record.tpot or 0.0, "e2el": record.latency}
    return record.ok and all(seconds[name] * 1000.0 <= limit for name, limit in slo_ms.items())


def _tokens(good: Sequence[RequestRecord], duration: float) -> dict[str, Any]:
    total_input = sum(record.prompt_tokens or 0 for record in good)
    total_vision = sum(record.vision_tokens or 0 for record in good)
    total_output = sum(record.output_tokens for record in good)
    return {
        "total_input_tokens": total_input,
        "total_input_text_tokens": total_input - total_vision,
        "total_input_vision_tokens": total_vision,
        "total_output_tokens": total_output,
        "request_throughput": len(good) / duration,
        "input_throughput": total_input / duration,
        "input_text_throughput": (total_input - total_vision) / duration,
        "input_vision_throughput": total_vision / duration,
        "output_throughput": total_output / duration,
        "total_throughput": (total_input + total_output) / duration,
    }


def _concurrency(good: Sequence[RequestRecord], duration: float) -> dict[str, Any]:
    changes = [(record.sent, 1) for record in good] + [(record.sent + record.latency, -1) for record in good]
    running, most = 0, 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    busy = sum(record.latency for record in good)
    return {
        "concurrency": busy / duration,
        "max_concurrent_requests": most,
        "max_output_tokens_per_s": _busiest_second(good),
        "accept_length": None,
    }


def _busiest_second(good: Sequence[RequestRecord]) -> int:
    """Most token chunks that came within one second of the run, seconds counted from its start."""
    times = [
        time
        for record in good
        for time in itertools.accumulate(record.itls, initial=record.sent + record.ttft)
    ]
    return max(Counter(int(time) for time in times).values(), default=0)
