"""Every number that the paper's section 4 states about time, and how it is read off our results."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from .paper_results import Curve, PaperResults, Pick, number

GLLM, EPD, RSERVE = (Pick("fig12", scheme) for scheme in ("gllm", "gllm-epd", "rserve"))
VLLM_TP, VLLM_PP = Pick("fig12", "vLLM TP4", tp=4), Pick("fig12", "vLLM PP4")
BUSY = Pick("fig17", "rserve")
SERIAL = Pick("fig17", "rserve-intra", intra_reading="serial")
MIXED = Pick("fig17", "rserve-intra", intra_reading="per-micro-batch")
TP_GLLM, TP_EPD, TP_RSERVE = (Pick("fig18", scheme, tp=4) for scheme in ("gllm", "gllm-epd", "rserve"))
PP_EPD, PP_RSERVE = (Pick("fig18", scheme) for scheme in ("gllm-epd", "rserve"))
FIVE_STAGES = Pick("equal-devices", "gLLM PP5")

Values = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity. paper: one value, or one for each of 1K and 2K; none where the paper gives no number.

    unit: "%" (changes and shares), "x", "tokens/s", or "yes" (1 where the statement holds).
    why: where our value differs, the reason.
    """

    figure: str
    quantity: str
    paper: Values
    unit: str
    compute: Callable[[PaperResults], Values]
    why: str = ""


def agrees(ours: float, paper: float, unit: str) -> bool:
    """Percentages within 5 points or a quarter of the paper's value; factors and rates within 20 %.

    -18 % and -15 % agree, -26 % and -75 % do not.
    """
    if unit == "yes":
        return ours == paper
    if unit == "%":
        return abs(ours - paper) <= max(5.0, abs(paper) / 4)
    return abs(ours / paper - 1.0) <= 0.2


def at_low_rate(changes: Curve) -> float:
    return changes[min(changes)]


def at_high_rate(changes: Curve) -> float:
    return changes[max(changes)]


def lowest(changes: Curve) -> float:
    return min(changes.values())


def mean_size(changes: Curve) -> float:
    return fmean(abs(value) for value in changes.values())


def by_rate(
    choose: Callable[[Curve], float], ours: Pick, theirs: Pick, metric: str = "mean_ttft_ms"
) -> Callable[[PaperResults], Values]:
    """One value chosen from the changes over the rates, for each workload."""

    def compute(results: PaperResults) -> Values:
        return tuple(choose(results.change(ours, theirs, metric, w)) for w in results.workloads(ours))

    return compute


def mean(ours: Pick, theirs: Pick) -> Callable[[PaperResults], Values]:
    """Mean TTFT change over the rates, for each workload."""
    return lambda results: results.mean_change(ours, theirs)


def saturated(ours: Pick, theirs: Pick) -> Callable[[PaperResults], Values]:
    """Change of the highest throughput, for each workload."""
    return lambda results: results.saturated_change(ours, theirs)


def area(ours: Pick, theirs: Pick) -> Callable[[PaperResults], Values]:
    """Change of the area below the curve of attainment, for each workload."""
    return lambda results: results.coverage(ours, theirs)


def encode_share(results: PaperResults) -> Values:
    lines = [line for line in results.lines if line["experiment"] == "fig02"]
    return (max(100.0 * number(line, "encode_ms") / number(line, "mean_ttft_ms") for line in lines),)


def pipeline_against_tensor(results: PaperResults) -> Values:
    by_label = {
        label: [
            number(line, "mean_ttft_ms")
            for line in results.lines
            if line["experiment"] == "fig02" and line["label"] == label
        ]
        for label in ("PP4", "TP4")
    }
    return (fmean(100.0 * (pp / tp - 1.0) for pp, tp in zip(by_label["PP4"], by_label["TP4"])),)


def tensor_latency_factor(results: PaperResults) -> Values:
    changes = [results.change(VLLM_TP, VLLM_PP, "mean_ttft_ms", w) for w in results.workloads(VLLM_TP)]
    return (max(1.0 + value / 100.0 for change in changes for value in change.values()),)


def sweep_of_c(workload: str, metric: str) -> Callable[[PaperResults], list[float]]:
    """Figure 16: a metric by embedding batch size, gllm-epd last."""

    def read(results: PaperResults) -> list[float]:
        lines = [
            line for line in results.lines if line["experiment"] == "fig16" and line["workload"] == workload
        ]
        lines.sort(key=lambda line: (line["scheme"] == "gllm-epd", line["embedding_batch_size"]))
        return [number(line, metric) for line in lines]

    return read


def c_latency_factor(results: PaperResults) -> Values:
    values = sweep_of_c("items-1024", "mean_ttft_ms")(results)
    return (max(values) / values[0],)


def c_throughput_loss(results: PaperResults) -> Values:
    values = sweep_of_c("items-1024", "input_throughput")(results)
    return (100.0 * (min(values) / values[0] - 1.0),)


def c_is_u_shaped(results: PaperResults) -> Values:
    values = sweep_of_c("items-32", "mean_ttft_ms")(results)
    return (float(values[0] > min(values) < values[-1] and min(values) not in (values[0], values[-1])),)


def tensor_rserve_is_best(results: PaperResults) -> Values:
    changes = [
        value
        for theirs in (TP_GLLM, TP_EPD)
        for workload in results.workloads(TP_RSERVE)
        for value in results.change(TP_RSERVE, theirs, "mean_ttft_ms", workload).values()
    ]
    return (float(max(changes) <= 0.5),)


def single_device(model: str) -> Callable[[PaperResults], Values]:
    name = {"qwen2.5-vl-7b": "fig20", "qwen2.5-vl-32b": "fig20-32b"}[model]
    ours, theirs = (Pick(name, scheme, model=model) for scheme in ("rserve", "gllm-epd"))
    return by_rate(lowest, ours, theirs)


def a100(model: str, ours: str, theirs: str) -> Callable[[PaperResults], Values]:
    """Mean TTFT change over the rates on A100s."""

    def compute(results: PaperResults) -> Values:
        name = {"qwen2.5-vl-32b": "fig21", "qwen2.5-vl-7b": "fig21-7b"}[model]
        return results.mean_change(Pick(name, ours, model=model), Pick(name, theirs, model=model))

    return compute


def placement(name: str) -> Callable[[PaperResults], Values]:
    ours, theirs = (Pick("placement", scheme, placement=name) for scheme in ("rserve", "gllm-epd"))
    return lambda results: results.mean_change(ours, theirs)


def largest_reduction(results: PaperResults) -> Values:
    """RServe against any baseline at any rate of Figure 12, and against the largest C of Figure 16."""
    changes = [
        value
        for theirs in (VLLM_TP, VLLM_PP, GLLM, EPD)
        for workload in results.workloads(RSERVE)
        for value in results.change(RSERVE, theirs, "mean_ttft_ms", workload).values()
    ]
    values = sweep_of_c("items-1024", "mean_ttft_ms")(results)
    return (min([*changes, 100.0 * (values[0] / max(values) - 1.0)]),)


def largest_gain(results: PaperResults) -> Values:
    gains = [
        gain for theirs in (VLLM_TP, VLLM_PP, GLLM, EPD) for gain in results.saturated_change(RSERVE, theirs)
    ]
    values = sweep_of_c("items-1024", "input_throughput")(results)
    return (max([*gains, 100.0 * (values[0] / min(values) - 1.0)]),)


def per_device_change(results: PaperResults) -> Values:
    pairs = zip(*(results.saturated(pick, "input_throughput_per_device") for pick in (RSERVE, GLLM)))
    return tuple(100.0 * (ours / theirs - 1.0) for ours, theirs in pairs)
