"""The file that `rserve calibrate` writes: a device, a constant set, and the measurements behind both."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rserve.calibration.measure_request import RequestCosts
from rserve.calibration.measure_transfer import Transfers
from rserve.sim.calibrate import EncodePoint, EncoderFit, Rates, StageFit, StagePoint

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """All measurements of one calibration. origin: command, machine, commit and date, in words."""

    origin: str
    stage: Sequence[StagePoint]
    encoder: Sequence[EncodePoint]
    transfers: Transfers
    request: RequestCosts
    memory: float


def constant_set(measured: Measured, stage: StageFit, encoder: EncoderFit) -> dict[str, Any]:
    """The content of the file; `hardware` and `constants` are what the simulator reads."""
    tables = (*stage.gemm, *stage.head, *stage.attention, *encoder.gemm)
    peak = max(*(rate for _, rate in tables), encoder.attention)
    return {
        "about": f"Measured by {measured.origin}.",
        "hardware": _hardware(measured, peak, stage.bandwidth),
        "constants": {
            **_stage_entries(stage, peak, measured.origin),
            **_encoder_entries(encoder, peak, measured.origin),
            **_transfer_entries(measured),
            **_request_entries(measured),
        },
        "measurements": {
            "stage": [asdict(point) for point in measured.stage],
            "encoder": [asdict(point) for point in measured.encoder],
        },
    }


def _hardware(measured: Measured, peak: float, bandwidth: float) -> dict[str, Entry]:
    origin, link = measured.origin, measured.transfers.link.bandwidth
    return {
        "peak_flops": _entry(peak, "FLOP/s", "fastest product or attention of the fit", origin),
        "memory_bandwidth": _entry(
            bandwidth, "B/s", "fastest reading of weights or cache of the fit", origin
        ),
        "memory": _entry(measured.memory, "B", "memory of the device, or free on the host", origin),
        "link_bandwidth": _entry(link, "B/s", "8 MB between two processes, less 4 KB", origin),
    }


def _stage_entries(fit: StageFit, peak: float, origin: str) -> dict[str, Entry]:
    share = "share of the file's peak"
    return {
        "gemm_utilisation": _entry(
            _shares(fit.gemm, peak),
            f"{share} by tokens",
            "micro-batches less overheads and attention; decodes up to 16 tokens, prefill above",
            origin,
        ),
        "head_utilisation": _entry(
            _shares(fit.head, peak),
            f"{share} by rows with logits",
            "decodes with a sampled token each, less the same without",
            origin,
        ),
        "attention_utilisation": _entry(
            _shares(fit.attention, peak),
            f"{share} by chunk tokens",
            "slope of a micro-batch's time over its context",
            origin,
        ),
        "memory_efficiency": _entry(
            1.0, "share of bandwidth", "the file's bandwidth is a reached one", origin
        ),
        "elementwise_share": _entry(0.0, "share of a layer", "contained in gemm_utilisation", origin),
        "iteration_overhead": _entry(
            fit.iteration_overhead,
            "s per micro-batch and stage",
            "intercept of prefill time over tokens",
            origin,
        ),
        "chunk_overhead": _entry(
            fit.chunk_overhead, "s per chunk and stage", "the same tokens in one and in four chunks", origin
        ),
    }


def _encoder_entries(fit: EncoderFit, peak: float, origin: str) -> dict[str, Entry]:
    share = "share of the file's peak"
    return {
        "vision_gemm_utilisation": _entry(
            _shares(fit.gemm, peak),
            f"{share} by batch tokens",
            "encoder batches, less attention; patchify and overheads contained",
            origin,
        ),
        "vision_attention_utilisation": _entry(
            [[1.0, min(1.0, fit.attention / peak)]],
            f"{share} by item tokens",
            "batches of equal tokens in items of different sizes",
            origin,
        ),
        "encoder_launch_floor": _entry(
            fit.floor, "s per encoder batch", "the shortest encoder batch", origin
        ),
    }


def _transfer_entries(measured: Measured) -> dict[str, Entry]:
    origin, roads = measured.origin, measured.transfers
    steps = roads.all_reduce.latency / 2
    share = min(1.0, roads.all_reduce.bandwidth / roads.link.bandwidth)
    return {
        "link_latency": _entry(roads.link.latency, "s", "4 KB between two processes over gloo", origin),
        "link_efficiency": _entry(
            1.0, "share of link bandwidth", "the file's bandwidth is a reached one", origin
        ),
        "all_reduce_step_latency": _entry(
            steps, "s per ring step", "half of an all-reduce of 4 KB over two processes", origin
        ),
        "all_reduce_efficiency": _entry(
            share, "share of link bandwidth", "all-reduce of 8 MB over two processes", origin
        ),
        "all_reduce_factor": _entry(1.0, "factor", "none beyond what was measured", origin),
        "embedding_latency": _entry(
            roads.embedding.latency,
            "s per encoder batch",
            "one row into shared memory, and a message",
            origin,
        ),
        "embedding_bandwidth": _entry(
            roads.embedding.bandwidth, "B/s", "1,024 rows into shared memory, less one", origin
        ),
        "driver_embedding_time": _entry(
            roads.row_copy, "s per byte", "copy of 1,024 rows into a micro-batch's input", origin
        ),
    }


def _request_entries(measured: Measured) -> dict[str, Entry]:
    origin, costs = measured.origin, measured.request
    return {
        "driver_round_trip": _entry(
            costs.prepare + 2 * measured.transfers.message,
            "s per request",
            "body to token ids of 4 images of 448x448 and 256 words, and two messages; no HTTP",
            origin,
        ),
        "driver_request_time": _entry(
            costs.driver, "s per request", "events and steps of the core for one request of 4 items", origin
        ),
        "preprocess_per_token": _entry(
            costs.pixels_per_token, "s per embedding token", "JPEG of 448x448: decode and resize", origin
        ),
        "preprocess_inline": _entry(False, "bool", "the API server decodes while encoders work", origin),
        "memory_utilisation": _entry(0.5, "share of device memory", "assumed, not measured", origin),
        "activation_memory": _entry(0.2e9, "B per device", "assumed, not measured", origin),
    }


def _entry(value: object, unit: str, how: str, origin: str) -> Entry:
    return {"value": value, "unit": unit, "source": f"{how} ({origin})"}


def _shares(rates: Rates, peak: float) -> list[list[float]]:
    return [[size, rate / peak] for size, rate in rates]


def slowed(content: Mapping[str, Any], stage: float, encoder: float) -> dict[str, Any]:
    """The content of a file for a machine whose stages and encoders take so many times as long.

    Transfers, the driver and preprocessing stay. The peak is that of the faster of both, so that no share
    of it grows.
    """
    fastest = min(stage, encoder)
    factors = dict.fromkeys(("iteration_overhead", "chunk_overhead"), stage)
    factors |= {"encoder_launch_floor": encoder}
    factors |= dict.fromkeys(
        ("gemm_utilisation", "head_utilisation", "attention_utilisation"), fastest / stage
    )
    factors |= dict.fromkeys(("vision_gemm_utilisation", "vision_attention_utilisation"), fastest / encoder)
    speeds = {"peak_flops": 1 / fastest, "memory_bandwidth": 1 / stage}
    return {
        **content,
        "hardware": _scaled(content["hardware"], speeds),
        "constants": _scaled(content["constants"], factors),
    }


def _scaled(entries: Mapping[str, Entry], factors: Mapping[str, float]) -> dict[str, Entry]:
    """Numbers, and the shares of tables, times their factor."""
    return {
        name: {**entry, "value": _times(entry["value"], factors[name])} if name in factors else entry
        for name, entry in entries.items()
    }


def _times(value: Any, factor: float) -> Any:
    if isinstance(value, list):
        return [[size, share * factor] for size, share in value]
    return value * factor


def read_points(content: Mapping[str, Any]) -> tuple[list[StagePoint], list[EncodePoint]]:
    """The measurements in a file's content, to fit them again."""
    found = content["measurements"]
    stage = [
        StagePoint(tuple((s, n) for s, n in p["chunks"]), p["samples"], p["seconds"]) for p in found["stage"]
    ]
    return stage, [EncodePoint(tuple(p["items"]), p["seconds"]) for p in found["encoder"]]
