"""The table of comparisons: quantity, paper, ours under each constant set, agree or differ, and why."""

from collections.abc import Mapping, Sequence

from . import paper_rows as rows
from .paper_results import PaperResults
from .paper_rows import (
    BUSY,
    EPD,
    FIVE_STAGES,
    GLLM,
    MIXED,
    PP_EPD,
    PP_RSERVE,
    RSERVE,
    SERIAL,
    TP_EPD,
    TP_GLLM,
    TP_RSERVE,
    VLLM_PP,
    VLLM_TP,
    Row,
    Values,
    agrees,
)

HEADER = """# The paper's numbers and ours, simulated

Every run of section 4 through the production scheduler, on a simulated machine. Constants are not tuned to
make a row agree. Two values are 1K / 2K. A value agrees when percentages are within 5 points or a quarter of
the paper's value, factors and rates within 20 %; every value of a pair must agree.

Workload: two 1080p (1K) or 1440p (2K) images after a log-normal text of 3,000 tokens on average; Poisson
arrivals; one output token; token budget 2,048; as many micro-batches in flight as stages. Model 72B and H100
unless a row says otherwise. RServe uses one device more than gLLM, the encoder's, but for "equal devices".
Table 1 (answers) is measured, not simulated: see the evaluation.

"""

ROWS: tuple[Row, ...] = (
    Row("2", "largest encode share of one request", (26,), "%", rows.encode_share),
    Row("2", 'one request, PP4 against TP4 ("comparable")', (0,), "%", rows.pipeline_against_tensor),
    Row("12", "vLLM TP4 TTFT, largest factor over PP4", (3.77,), "x", rows.tensor_latency_factor),
    Row(
        "12",
        "gLLM and vLLM PP4, size of the TTFT difference",
        (1.6, 3.8),
        "%",
        rows.by_rate(rows.mean_size, GLLM, VLLM_PP),
    ),
    Row("12", "gLLM-epd over gLLM, TTFT, average", (-16, -20), "%", lambda r: r.mean_change(EPD, GLLM)),
    Row("12", "… at the lowest rate", (-5, -10), "%", rows.by_rate(rows.at_low_rate, EPD, GLLM)),
    Row("12", "… at the best rate", (-26, -35), "%", rows.by_rate(rows.lowest, EPD, GLLM)),
    Row("12", "… at the highest rate", (-10, -14), "%", rows.by_rate(rows.at_high_rate, EPD, GLLM)),
    Row("12", "RServe over gLLM-epd, TTFT, average", (-18, -19), "%", lambda r: r.mean_change(RSERVE, EPD)),
    Row("12", "… at the lowest rate", (), "%", rows.by_rate(rows.at_low_rate, RSERVE, EPD)),
    Row("12", "… images first, average", (-18, -19), "%", rows.placement("images-first")),
    Row("12", "… images spread through the text, average", (-18, -19), "%", rows.placement("interleaved")),
    Row("13", "RServe, saturated throughput", (10600, 11100), "tokens/s", lambda r: r.saturated(RSERVE)),
    Row(
        "13",
        "gLLM-epd over gLLM, saturated throughput",
        (6, 8.5),
        "%",
        lambda r: r.saturated_change(EPD, GLLM),
    ),
    Row(
        "13",
        "vLLM TP4 against PP4, saturated throughput",
        (-26, -28),
        "%",
        lambda r: r.saturated_change(VLLM_TP, VLLM_PP),
    ),
    Row(
        "13",
        "gLLM against vLLM PP4, saturated throughput (gap below 1.2 %)",
        (0, 0),
        "%",
        lambda r: r.saturated_change(GLLM, VLLM_PP),
    ),
    Row("14", "RServe, average attainment of 10 s", (71, 70), "%", lambda r: r.mean_attainment(RSERVE)),
    Row("14", "gLLM-epd, average attainment of 10 s", (61, 59), "%", lambda r: r.mean_attainment(EPD)),
    Row("14", "RServe over gLLM-epd, area of attainment", (23, 23), "%", lambda r: r.coverage(RSERVE, EPD)),
    Row("16a", "TTFT, largest over smallest C", (2.91,), "x", rows.c_latency_factor),
    Row("16a", "throughput lost with large C", (-53,), "%", rows.c_throughput_loss),
    Row("16b", "TTFT falls, then rises with C", (1,), "yes", rows.c_is_u_shaped),
    Row(
        "17",
        "RServe-intra (one request in the pipeline), throughput",
        (-32, -32),
        "%",
        lambda r: r.saturated_change(SERIAL, BUSY),
    ),
    Row("17", "… TTFT", (172, 172), "%", lambda r: r.mean_change(SERIAL, BUSY)),
    Row(
        "17",
        "RServe-intra (one request a micro-batch), throughput",
        (-32, -32),
        "%",
        lambda r: r.saturated_change(MIXED, BUSY),
    ),
    Row("17", "… TTFT", (172, 172), "%", lambda r: r.mean_change(MIXED, BUSY)),
    Row(
        "18",
        'gLLM-epd over gLLM with TP4, TTFT at the lowest rate ("can increase")',
        (),
        "%",
        rows.by_rate(rows.at_low_rate, TP_EPD, TP_GLLM),
    ),
    Row(
        "18",
        "RServe TP4+E1 is never slower than gLLM and gLLM-epd with TP4",
        (1,),
        "yes",
        rows.tensor_rserve_is_best,
    ),
    Row(
        "18",
        'RServe PP4+E1 against TP4+E1, TTFT at the highest rate ("clear advantage")',
        (),
        "%",
        rows.by_rate(rows.at_high_rate, PP_RSERVE, TP_RSERVE),
    ),
    Row(
        "19",
        "RServe over gLLM-epd, strict SLO, area, TP4+E1",
        (75, 169),
        "%",
        lambda r: r.coverage(TP_RSERVE, TP_EPD),
    ),
    Row("19", "… PP4+E1", (75, 169), "%", lambda r: r.coverage(PP_RSERVE, PP_EPD)),
    Row(
        "20",
        "one LLM device and one encoder, 7B, largest TTFT reduction",
        (-26,),
        "%",
        rows.single_device("qwen2.5-vl-7b"),
    ),
    Row("20", "… 32B", (-26,), "%", rows.single_device("qwen2.5-vl-32b")),
    Row(
        "21",
        'four A100s, 32B: gLLM-epd (PP3+E1) over gLLM (PP4), TTFT ("no obvious advantage")',
        (),
        "%",
        rows.a100("qwen2.5-vl-32b", "gllm-epd", "gllm"),
    ),
    Row(
        "21",
        '… RServe (PP3+E1) over gLLM ("optimum performance")',
        (),
        "%",
        rows.a100("qwen2.5-vl-32b", "rserve", "gllm"),
    ),
    Row(
        "21",
        "five A100s, 32B: gLLM-epd (PP4+E1) over gLLM (PP4), TTFT",
        (),
        "%",
        rows.a100("qwen2.5-vl-32b", "gLLM-epd, five A100s", "gllm"),
    ),
    Row(
        "21",
        "… RServe (PP4+E1) over gLLM",
        (),
        "%",
        rows.a100("qwen2.5-vl-32b", "RServe, five A100s", "gllm"),
    ),
    Row(
        "21",
        "four A100s, 7B: gLLM-epd (PP3+E1) over gLLM (PP4), TTFT",
        (),
        "%",
        rows.a100("qwen2.5-vl-7b", "gllm-epd", "gllm"),
    ),
    Row("21", "… RServe (PP3+E1) over gLLM", (), "%", rows.a100("qwen2.5-vl-7b", "rserve", "gllm")),
    Row("abstract", "largest TTFT reduction", (-66,), "%", rows.largest_reduction),
    Row("abstract", "largest throughput gain", (109,), "%", rows.largest_gain),
    Row(
        "equal devices",
        "RServe PP4+E1 over gLLM PP5, TTFT, average",
        (),
        "%",
        lambda r: r.mean_change(RSERVE, FIVE_STAGES),
    ),
    Row(
        "equal devices",
        "RServe PP4+E1 over gLLM PP5, saturated throughput",
        (),
        "%",
        lambda r: r.saturated_change(RSERVE, FIVE_STAGES),
    ),
    Row(
        "equal devices",
        "RServe over gLLM PP4, saturated throughput per device",
        (),
        "%",
        rows.per_device_change,
    ),
)


def render(by_set: Mapping[str, PaperResults], order: Sequence[Row] = ROWS) -> str:
    """The whole page in Markdown."""
    names = list(by_set)
    lines = [
        "| figure | quantity | paper | " + " | ".join(names) + " | why it differs |",
        "|---" * (len(names) + 4) + "|",
    ]
    for row in order:
        values = [row.compute(results) for results in by_set.values()]
        cells = [_cell(value, row) for value in values]
        differs = row.paper and not all(_agree(value, row) for value in values)
        why = row.why if differs or not row.paper else ""
        columns = [row.figure, row.quantity, _text(row.paper, row.unit) or "—", *cells, why]
        lines.append(f"| {' | '.join(columns)} |")
    return HEADER + "\n".join(lines) + "\n"


def _agree(values: Values, row: Row) -> bool:
    return all(agrees(ours, paper, row.unit) for ours, paper in zip(values, row.paper))


def _cell(values: Values, row: Row) -> str:
    text = _text(values, row.unit)
    if not row.paper:
        return text
    return f"{text} {'agrees' if _agree(values, row) else '**differs**'}"


def _text(values: Values, unit: str) -> str:
    match unit:
        case "yes":
            parts = ["yes" if value else "no" for value in values]
            return " / ".join(parts)
        case "%":
            return " / ".join(
                f"{value:+.0f}" if abs(value) >= 10 else f"{value:+.1f}" for value in values
            ) + (" %" if values else "")
        case "x":
            return " / ".join(f"{value:.2f}" for value in values) + ("×" if values else "")
        case _:
            return " / ".join(f"{value:.0f}" for value in values)
