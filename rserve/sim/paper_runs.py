"""What the paper's section 4 ran, as scenarios. Labels are the names that figures use."""

from dataclasses import replace

from .scenario import Scenario

SETS = ("clean", "vidur", "clean+host-relay", "clean+all-reduce-x3")
WORKLOADS = ("mmmu-1k", "mmmu-2k")
RATES = {
    "mmmu-1k": [round(0.2 * step, 2) for step in range(1, 11)],
    "mmmu-2k": [round(0.14 * step, 2) for step in range(1, 11)],
}
LOOSE_SLO_MS = 10_000.0
STRICT_SLO_MS = {"mmmu-1k": 1_400.0, "mmmu-2k": 2_000.0}
FIGURE2_SIZES = ("1280x720", "1920x1080", "2560x1440", "3840x2160")
SINGLE_GPU_RATES = {
    ("qwen2.5-vl-7b", "mmmu-1k"): [0.4 * step for step in range(1, 11)],
    ("qwen2.5-vl-7b", "mmmu-2k"): [0.2 * step for step in range(1, 11)],
    ("qwen2.5-vl-32b", "mmmu-1k"): [0.1 * step for step in range(1, 11)],
    ("qwen2.5-vl-32b", "mmmu-2k"): [0.07 * step for step in range(1, 11)],
}
A100_RATES = {
    "qwen2.5-vl-7b": [0.2 * step for step in range(1, 11)],
    "qwen2.5-vl-32b": [0.12 * step for step in range(1, 11)],
}


def base(costs: str, num_requests: int) -> Scenario:
    """The common settings: micro-batches in flight as many as stages, output of one token, C = 1024."""
    return Scenario(costs=costs, num_requests=num_requests, max_in_flight=4)


def vllm(scenario: Scenario, tp: int, pp: int) -> Scenario:
    """vLLM as a scheme: gllm's schedule with vLLM's constants laid over the set."""
    return replace(
        scenario,
        scheme="gllm",
        tp=tp,
        pp=pp,
        max_in_flight=pp,
        costs=f"{scenario.costs}+vllm",
        label=f"vLLM TP{tp}" if tp > 1 else f"vLLM PP{pp}",
    )


def all_runs(costs: str, num_requests: int) -> list[Scenario]:
    """Every run of section 4 under one constant set."""
    common = base(costs, num_requests)
    return [
        *figure_2(common),
        *figure_12(common),
        *figure_16(common),
        *figure_17(common),
        *figure_18(common),
        *figure_20(common),
        *figure_21(common),
        *equal_devices(common),
        *placements(common),
    ]


def figure_2(common: Scenario) -> list[Scenario]:
    """One request of two images, alone, for tensor and for chunked pipeline parallelism."""
    one = replace(common, scheme="gllm", num_requests=1, experiment="fig02")
    layouts = [
        replace(one, tp=4, pp=1, max_in_flight=1, label="TP4"),
        replace(one, tp=1, pp=4, label="PP4"),
    ]
    return [replace(layout, workload=f"pair-{size}") for layout in layouts for size in FIGURE2_SIZES]


def figure_12(common: Scenario) -> list[Scenario]:
    """Figures 12 to 14: latency, throughput and attainment of a 10 s limit."""
    schemes = [
        vllm(common, tp=4, pp=1),
        vllm(common, tp=1, pp=4),
        *(replace(common, scheme=scheme) for scheme in ("gllm", "gllm-epd", "rserve")),
    ]
    return over_rates([replace(s, experiment="fig12", slo_ttft_ms=LOOSE_SLO_MS) for s in schemes])


def figure_16(common: Scenario) -> list[Scenario]:
    """Two requests at once for several C; the last point waits for all items (gllm-epd)."""
    runs = []
    for workload, tokens in (("items-1024", 1024), ("items-32", 32)):
        two = replace(
            common, workload=workload, num_requests=2, request_rate=float("inf"), experiment="fig16"
        )
        runs += [replace(two, embedding_batch_size=tokens * count) for count in (1, 2, 4, 8, 12, 16)]
        runs.append(replace(two, scheme="gllm-epd", embedding_batch_size=20 * tokens))
    return runs


def figure_17(common: Scenario) -> list[Scenario]:
    """RServe and both readings of RServe-intra, at rates beyond saturation."""
    schemes = [
        replace(common, scheme="rserve"),
        replace(common, scheme="rserve-intra", intra_reading="serial"),
        replace(common, scheme="rserve-intra", intra_reading="per-micro-batch"),
    ]
    runs = [replace(s, experiment="fig17") for s in schemes]
    return over_rates(runs, {"mmmu-1k": [1.6, 2.0, 2.4, 2.8], "mmmu-2k": [1.1, 1.4, 1.7, 2.0]})


def figure_18(common: Scenario) -> list[Scenario]:
    """Figures 18 and 19: the schemes with tensor parallelism, and RServe with a pipeline."""
    tensor = replace(common, tp=4, pp=1, max_in_flight=1)
    schemes = [
        *(replace(tensor, scheme=scheme) for scheme in ("gllm", "gllm-epd", "rserve")),
        *(replace(common, scheme=scheme) for scheme in ("gllm-epd", "rserve")),
    ]
    runs = over_rates([replace(s, experiment="fig18") for s in schemes])
    return [replace(run, slo_ttft_ms=STRICT_SLO_MS[run.workload]) for run in runs]


def figure_20(common: Scenario) -> list[Scenario]:
    """One device for the language model and one encoder. The text does not name the model: 7B, then 32B."""
    single = replace(common, pp=1, max_in_flight=1)
    names = {"qwen2.5-vl-7b": "fig20", "qwen2.5-vl-32b": "fig20-32b"}
    return [
        replace(
            single,
            model=model,
            workload=workload,
            scheme=scheme,
            request_rate=rate,
            experiment=names[model],
        )
        for (model, workload), rates in SINGLE_GPU_RATES.items()
        for scheme in ("gllm-epd", "rserve")
        for rate in map(_tidy, rates)
    ]


def figure_21(common: Scenario) -> list[Scenario]:
    """A100s of 40 GB on PCIe: four in all (three stages and an encoder), and five.

    The text does not name the model, and 72B does not fit: 32B, then 7B.
    """
    a100 = replace(common, hardware="a100-40g-pcie")
    names = {"qwen2.5-vl-32b": "fig21", "qwen2.5-vl-7b": "fig21-7b"}
    runs = []
    for model, rates in A100_RATES.items():
        one = replace(a100, model=model, experiment=names[model])
        four = replace(one, pp=3, max_in_flight=3)
        schemes = [
            vllm(one, tp=4, pp=1),
            vllm(one, tp=1, pp=4),
            replace(one, scheme="gllm"),
            replace(four, scheme="gllm-epd"),
            replace(four, scheme="rserve"),
            replace(one, scheme="gllm-epd", label="gLLM-epd, five A100s"),
            replace(one, scheme="rserve", label="RServe, five A100s"),
        ]
        runs += over_rates(schemes, {"mmmu-1k": [_tidy(rate) for rate in rates]})
    return runs


def equal_devices(common: Scenario) -> list[Scenario]:
    """gLLM with five stages, for a comparison with RServe's four stages and an encoder."""
    five = replace(common, scheme="gllm", pp=5, max_in_flight=5, label="gLLM PP5", experiment="equal-devices")
    return over_rates([five])


def placements(common: Scenario) -> list[Scenario]:
    """gLLM-epd and RServe with images first and with images spread through the text."""
    return over_rates(
        [
            replace(common, scheme=scheme, placement=placement, experiment="placement")
            for placement in ("images-first", "interleaved")
            for scheme in ("gllm-epd", "rserve")
        ]
    )


def over_rates(scenarios: list[Scenario], rates: dict[str, list[float]] | None = None) -> list[Scenario]:
    """Each scenario for every workload and request rate."""
    return [
        replace(scenario, workload=workload, request_rate=rate)
        for scenario in scenarios
        for workload, values in (rates or RATES).items()
        for rate in values
    ]


def _tidy(rate: float) -> float:
    return round(rate, 6)
