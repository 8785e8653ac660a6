"""Every quantity of the paper's section 4 about time, with the reason where a simulated value differs."""

from . import paper_rows as rows
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
)

ENCODING_OFF_STAGE_0 = (
    "In the model an encoder rank takes a fifth to a quarter of stage 0's work away, so gLLM saturates "
    "earlier and queues at rates that gLLM-epd still serves. The paper's gain is far smaller, as if its "
    "driver paid for received embeddings on stage 0's thread; only the host-relay set assumes that."
)
SAME_SCHEDULE = (
    "Both are simulated with gLLM's schedule. They differ in one assumption, that vLLM preprocesses "
    "images beside its engine and gLLM in line; with equal constants the rows are 0."
)
ALL_REDUCE = (
    "Profiled all-reduces cost little over NVLink, and TP4 shards the encoder over all devices while "
    "PP4 keeps it on one stage; only dearer synchronisation (all-reduce-x3) makes tensor parallelism "
    "slow."
)
SHARE_OF_TEXT = (
    "What can be hidden is the encoding, as long as there are text or earlier images to prefill "
    "meanwhile: it depends on where images stand, and fades at rates where queueing dominates TTFT."
)
HEADLINE = (
    "The paper's extremes are those of its C sweep (1 - 1/2.91 = 66 %, 1/0.47 = 2.1): see Figure 16a. "
    "Against other engines the largest reduction is that over a saturated baseline, and depends on how "
    "long it has been queueing."
)
UNKNOWN_DEPTH = (
    "How deep a saturated queue gets depends on how many requests are sent, which the paper does not "
    "say; the loss of throughput does not."
)
RARE_MISSES = (
    "A wait of 10 s comes from queueing, thus from the rate, the saturated throughput and the number of "
    "requests sent; overlap moves none of them in the model. The paper prints neither its rates nor that "
    "number."
)
PIPELINE_FILL = (
    "Chunks of 2,048 tokens leave three stages idle while the pipeline fills and drains; with "
    "chunks near 400 tokens most of the gap closes, and dearer all-reduces close it from the other side."
)
ENCODER_ADDS_UP = (
    "Encoding 20 items takes less than half of their prefill in the model, so hiding it can save no "
    "more than that; 2.91x needs an encoder whose time grows faster than its batch, or one as slow as "
    "the language model."
)
STRICT_LIMIT = (
    "Near a strict limit a few hundred milliseconds decide; the result turns on the absolute speed of "
    "the machine, which the constants do not fit."
)
SLOWER_MACHINE = (
    "The bound from the same costs lies only a few percent above: the paper's stages are slower than "
    "these constants."
)
A100_SHARES = (
    "With one of four devices for the encoder, three stages do what four did: the gain must first pay "
    "for that."
)
ROWS: tuple[Row, ...] = (
    Row(
        "2",
        "largest encode share of one request",
        (26,),
        "%",
        rows.encode_share,
        "The share follows from the constants of the encoder and its preprocessing, which no profile gives.",
    ),
    Row(
        "2",
        'one request, PP4 against TP4 ("comparable")',
        (0,),
        "%",
        rows.pipeline_against_tensor,
        PIPELINE_FILL,
    ),
    Row(
        "12", "vLLM TP4, TTFT, largest factor over PP4", (3.77,), "x", rows.tensor_latency_factor, ALL_REDUCE
    ),
    Row(
        "12",
        "gLLM and vLLM PP4, size of the TTFT difference",
        (1.6, 3.8),
        "%",
        rows.by_rate(rows.mean_size, GLLM, VLLM_PP),
        SAME_SCHEDULE,
    ),
    Row(
        "12", "gLLM-epd over gLLM, TTFT, average", (-16, -20), "%", rows.mean(EPD, GLLM), ENCODING_OFF_STAGE_0
    ),
    Row(
        "12",
        "… at the lowest rate",
        (-5, -10),
        "%",
        rows.by_rate(rows.at_low_rate, EPD, GLLM),
        "At low rates an encoder rank only spares a request the encoding of others, and adds a transfer.",
    ),
    Row(
        "12",
        "… at the best rate",
        (-26, -35),
        "%",
        rows.by_rate(rows.lowest, EPD, GLLM),
        ENCODING_OFF_STAGE_0,
    ),
    Row(
        "12",
        "… at the highest rate",
        (-10, -14),
        "%",
        rows.by_rate(rows.at_high_rate, EPD, GLLM),
        ENCODING_OFF_STAGE_0,
    ),
    Row("12", "RServe over gLLM-epd, TTFT, average", (-18, -19), "%", rows.mean(RSERVE, EPD), SHARE_OF_TEXT),
    Row("12", "… at the lowest rate", (), "%", rows.by_rate(rows.at_low_rate, RSERVE, EPD)),
    Row("12", "… images first, average", (-18, -19), "%", rows.placement("images-first"), SHARE_OF_TEXT),
    Row(
        "12",
        "… images spread through the text",
        (-18, -19),
        "%",
        rows.placement("interleaved"),
        SHARE_OF_TEXT,
    ),
    Row("13", "RServe, saturated", (10600, 11100), "tokens/s", lambda r: r.saturated(RSERVE), SLOWER_MACHINE),
    Row(
        "13", "gLLM-epd over gLLM, saturated", (6, 8.5), "%", rows.saturated(EPD, GLLM), ENCODING_OFF_STAGE_0
    ),
    Row(
        "13", "vLLM TP4 against PP4, saturated", (-26, -28), "%", rows.saturated(VLLM_TP, VLLM_PP), ALL_REDUCE
    ),
    Row(
        "13",
        "gLLM against vLLM PP4, saturated (below 1.2 %)",
        (0, 0),
        "%",
        rows.saturated(GLLM, VLLM_PP),
        SAME_SCHEDULE,
    ),
    Row(
        "14",
        "RServe, average attainment of 10 s",
        (71, 70),
        "%",
        lambda r: r.mean_attainment(RSERVE),
        RARE_MISSES,
    ),
    Row(
        "14",
        "gLLM-epd, average attainment of 10 s",
        (61, 59),
        "%",
        lambda r: r.mean_attainment(EPD),
        RARE_MISSES,
    ),
    Row(
        "14",
        "RServe over gLLM-epd, area of attainment",
        (23, 23),
        "%",
        lambda r: r.coverage(RSERVE, EPD),
        RARE_MISSES,
    ),
    Row("16a", "TTFT, slowest over smallest C", (2.91,), "x", rows.c_latency_factor, ENCODER_ADDS_UP),
    Row("16a", "throughput, lost with large C", (-53,), "%", rows.c_throughput_loss, ENCODER_ADDS_UP),
    Row(
        "16b",
        "TTFT falls, then rises with C",
        (1,),
        "yes",
        rows.c_is_u_shaped,
        "A launch floor makes small batches dear; how far the other end rises depends on how much of the "
        "request its encoding is.",
    ),
    Row(
        "17",
        "RServe-intra (one request in the pipeline), saturated",
        (-32, -32),
        "%",
        rows.saturated(SERIAL, BUSY),
        "The loss is the pipeline's fill and drain for every request: it shrinks with longer prompts.",
    ),
    Row("17", "… TTFT", (172, 172), "%", rows.mean(SERIAL, BUSY), UNKNOWN_DEPTH),
    Row(
        "17",
        "RServe-intra (one request a micro-batch), saturated",
        (-32, -32),
        "%",
        rows.saturated(MIXED, BUSY),
        "Only the last chunk of a request is short: this reading loses far less than the paper's ablation.",
    ),
    Row("17", "… TTFT", (172, 172), "%", rows.mean(MIXED, BUSY), UNKNOWN_DEPTH),
    Row(
        "18",
        'gLLM-epd over gLLM, TP4, TTFT at the lowest rate ("can increase")',
        (),
        "%",
        rows.by_rate(rows.at_low_rate, TP_EPD, TP_GLLM),
    ),
    Row(
        "18",
        "RServe TP4+E1 is never slower than gLLM and gLLM-epd",
        (1,),
        "yes",
        rows.tensor_rserve_is_best,
        "Where transfers or the driver's work on embeddings are dear, an encoder sharded over four devices "
        "can be faster than one rank.",
    ),
    Row(
        "18",
        'RServe PP4+E1 over TP4+E1, TTFT at the highest rate ("clear advantage")',
        (),
        "%",
        rows.by_rate(rows.at_high_rate, PP_RSERVE, TP_RSERVE),
    ),
    Row(
        "19",
        "RServe over gLLM-epd, area, strict limit, TP4+E1",
        (75, 169),
        "%",
        rows.area(TP_RSERVE, TP_EPD),
        STRICT_LIMIT,
    ),
    Row("19", "… PP4+E1", (75, 169), "%", rows.area(PP_RSERVE, PP_EPD), STRICT_LIMIT),
    Row(
        "20",
        "one LLM device and one encoder, 7B, largest TTFT reduction",
        (-26,),
        "%",
        rows.single_device("qwen2.5-vl-7b"),
        SHARE_OF_TEXT,
    ),
    Row("20", "… 32B", (-26,), "%", rows.single_device("qwen2.5-vl-32b"), SHARE_OF_TEXT),
    *(
        Row("21", quantity, (), "%", rows.a100(f"qwen2.5-vl-{model}", ours, "gllm"), A100_SHARES)
        for quantity, model, ours in (
            (
                'four A100s, 32B: gLLM-epd PP3+E1 over gLLM PP4, TTFT ("no obvious advantage")',
                "32b",
                "gllm-epd",
            ),
            ('… RServe PP3+E1 over gLLM PP4 ("optimum")', "32b", "rserve"),
            ("five A100s, 32B: gLLM-epd PP4+E1 over gLLM PP4", "32b", "gLLM-epd, five A100s"),
            ("… RServe PP4+E1 over gLLM PP4", "32b", "RServe, five A100s"),
            ("four A100s, 7B: gLLM-epd PP3+E1 over gLLM PP4", "7b", "gllm-epd"),
            ("… RServe PP3+E1 over gLLM PP4", "7b", "rserve"),
        )
    ),
    Row("abstract", "largest TTFT reduction", (-66,), "%", rows.largest_reduction, HEADLINE),
    Row("abstract", "largest throughput gain", (109,), "%", rows.largest_gain, HEADLINE),
    Row(
        "equal devices", "RServe PP4+E1 over gLLM PP5, TTFT, average", (), "%", rows.mean(RSERVE, FIVE_STAGES)
    ),
    Row(
        "equal devices",
        "RServe PP4+E1 over gLLM PP5, saturated",
        (),
        "%",
        rows.saturated(RSERVE, FIVE_STAGES),
    ),
    Row("equal devices", "RServe over gLLM PP4, saturated, per device", (), "%", rows.per_device_change),
)
