"""Made-up result lines in the form that figures read; they stand for no machine and are never results."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

Line = dict[str, Any]

CURVES = {  # label or None, scheme, pp, tp, encoders: speed relative to RServe
    "vLLM TP4": ("gllm", 1, 4, 0, 0.66),
    "vLLM PP4": ("gllm", 4, 1, 0, 0.84),
    "gllm": ("gllm", 4, 1, 0, 0.85),
    "gllm-epd": ("gllm-epd", 4, 1, 1, 0.93),
    "rserve": ("rserve", 4, 1, 1, 1.0),
}
RATES = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2)
SIZES = {"mmmu-1k": 8000, "mmmu-2k": 12000}


def line(experiment: str, label: str, workload: str, rate: float | str, **fields: Any) -> Line:
    scheme, pp, tp, encoders, _ = CURVES.get(label, (label, 4, 1, 1, 0.7))
    base: Line = {
        "experiment": experiment,
        "source": "simulated",
        "costs": "clean",
        "hardware": "h100",
        "model": "qwen2.5-vl-72b",
        "label": label,
        "scheme": scheme,
        "pp": pp,
        "tp": tp,
        "encoders": encoders,
        "workload": workload,
        "request_rate": rate,
        "bound_ttft_ms": 500.0,
        "bound_throughput": 12500.0,
    }
    return base | fields


def rate_lines(experiment: str, labels: tuple[str, ...], slo_ms: float = 10_000.0) -> Iterator[Line]:
    """An M/D/1-like queue: TTFT grows near saturation, throughput flattens, attainment falls."""
    for workload, tokens in SIZES.items():
        for label in labels:
            speed = CURVES[label][4] if label in CURVES else 0.7
            for rate in RATES:
                yield line(experiment, label, workload, rate, **queue(rate, speed, tokens, slo_ms))


def queue(rate: float, speed: float, tokens: int, slo_ms: float) -> Line:
    capacity = 10_600 * speed / tokens
    load = rate / capacity
    wait = 0.5 * load / (1 - load) if load < 0.95 else 10 + 60 * (load - 0.95)
    ttft_ms = 1000.0 * (tokens / 9000 / speed + wait)
    attained = min(1.0, max(0.05, 1.6 - ttft_ms / slo_ms))
    return {
        "mean_ttft_ms": ttft_ms,
        "input_throughput": tokens * min(rate, capacity),
        "slo_attainment": attained,
        "slo": {"ttft": slo_ms},
    }


def all_lines() -> list[Line]:
    """Lines for every figure but the tenth."""
    lines = [*rate_lines("fig12", tuple(CURVES)), *a100(), *tensor_parallel(), *single_gpu(), *intra()]
    return lines + [*resolutions(), *sweep(), *lengths(), *scores()]


def a100() -> Iterator[Line]:
    yield from (found | {"hardware": "a100-40g-pcie"} for found in rate_lines("fig21", tuple(CURVES)))


def tensor_parallel() -> Iterator[Line]:
    for found in rate_lines("fig18", ("gllm", "gllm-epd", "rserve"), slo_ms=2000.0):
        limit = 1400.0 if found["workload"] == "mmmu-1k" else 2000.0
        yield found | {"slo": {"ttft": limit}}
        slower = {"pp": 1, "tp": 4, "mean_ttft_ms": found["mean_ttft_ms"] * 1.3}
        yield found | slower | {"slo": {"ttft": limit}, "slo_attainment": found["slo_attainment"] * 0.9}


def single_gpu() -> Iterator[Line]:
    draw = random.Random(0)
    for workload in ("vision", "synthetic"):
        for label, factor in (("gllm-epd", 1.0), ("rserve", 0.78)):
            for rate in (0.1, 0.2, 0.3):
                for _ in range(3):
                    ttft = 2600 * factor * (1 + rate) * draw.uniform(0.96, 1.04)
                    yield line("fig20", label, workload, rate, mean_ttft_ms=ttft) | {
                        "source": "measured",
                        "costs": None,
                        "hardware": "2 cores of Intel(R) Xeon(R) Processor @ 2.10GHz",
                        "model": "small-vision",
                        "pp": 1,
                    }


def intra() -> Iterator[Line]:
    for rate in RATES:
        ours = {"mean_ttft_ms": 8000 + 9000 * rate, "input_throughput": 10_500.0}
        yield line("fig17", "rserve", "mmmu-1k", rate, **ours)
        slow = {
            "mean_ttft_ms": 20_000 + 26_000 * rate,
            "input_throughput": 7_100.0,
            "intra_reading": "serial",
        }
        yield line("fig17", "rserve-intra", "mmmu-1k", rate, **slow)


def resolutions() -> Iterator[Line]:
    for width, height, total, share in (
        (640, 360, 700, 0.1),
        (1280, 720, 900, 0.17),
        (1920, 1080, 1300, 0.24),
    ):
        for label, factor in (("TP4", 1.0), ("PP4", 0.95)):
            fields = {"mean_ttft_ms": total * factor, "encode_ms": total * share}
            yield line("fig02", label, f"pair-{width}x{height}", "inf", **fields)


def sweep() -> Iterator[Line]:
    for item, times in ((1024, (1.0, 1.1, 1.3, 1.7, 2.3)), (32, (1.5, 1.1, 1.0, 1.2, 1.4))):
        for index, factor in enumerate(times):
            scheme = "gllm-epd" if index == len(times) - 1 else "rserve"
            fields = {"mean_ttft_ms": 2000 * factor, "input_throughput": 9000 / factor}
            found = line("fig16", scheme, f"items-{item}", "inf", **fields)
            yield found | {"embedding_batch_size": item * 2**index}


def lengths() -> Iterator[Line]:
    draw = random.Random(1)
    for workload, vision in (("mmmu-1k", 5382), ("mmmu-2k", 9282)):
        text = [round(draw.lognormvariate(7.8, 0.6)) for _ in range(300)]
        totals = [vision + tokens for tokens in text]
        yield line("fig15", "rserve", workload, 1.0, input_lens=totals, vision_lens=[vision] * 300)


def scores() -> Iterator[Line]:
    answers = {str(number): "ABCD"[number % 4] for number in range(100)}
    for label in ("gllm", "gllm-epd", "rserve-intra", "rserve", "transformers"):
        yield line("table1", label, "synthetic", "inf") | {
            "source": "measured",
            "costs": None,
            "hardware": "2 cores of Intel(R) Xeon(R) Processor @ 2.10GHz",
            "model": "tiny",
            "score": 97.0,
            "num_questions": 100,
            "unparsed_rate": 0.0,
            "responses": answers if label != "rserve-intra" else answers | {"0": "D"},
        }
