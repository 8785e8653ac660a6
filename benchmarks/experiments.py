"""What `benchmarks/run_all.sh` runs: every experiment with its commands, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import overlap_fig20
from benchmarks.servers import fast_dtype

SIMULATED = tuple(f"fig{number:02d}" for number in (2, 10, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21))
PAPER_LOADS_1K = ("0.2", "0.6", "1.0", "1.4", "1.8")


@dataclass(frozen=True)
class Options:
    """What the command line of run_all chose."""

    out: Path
    full: bool = False
    device: str = "cpu"
    model: str = ""
    pp: int = 4
    tp: int = 1
    encoders: int = 1
    dataset_path: str = ""


@dataclass(frozen=True)
class Experiment:
    """name: of its stamp. figures: what it feeds, for --only. minutes: about how long, quick and full.

    commands: argument lists behind `python -m`. after: called when they are done.
    """

    name: str
    about: str
    figures: tuple[str, ...]
    minutes: tuple[float, float]
    commands: Callable[[Options], list[list[str]]]
    after: Callable[[Options], None] | None = None
    needs_gpus: bool = False


def _smoke(options: Options) -> list[list[str]]:
    return [["benchmarks.smoke", "--out", str(options.out)]]


def _costs(options: Options) -> list[list[str]]:
    sizes = ["10", "1000", "100000"] if options.full else ["10", "1000", "20000"]
    return [
        ["benchmarks.step_cost", "--out", str(options.out), "--sizes", *sizes],
        ["benchmarks.channel_cost", "--out", str(options.out)],
        ["benchmarks.profile_steps", "--out", str(options.out), "--repeats", "5" if options.full else "2"],
    ]


def _overlap(options: Options) -> list[list[str]]:
    out = ["--out", str(options.out)]
    if not options.full:
        # A quarter of the workload's tokens: three repeats fit into the time.
        return [["benchmarks.overlap", *out, "--quick", "--workloads", "vision-224", "--repeats", "3"]]
    return [["benchmarks.overlap", *out]]


def _table1(options: Options) -> list[list[str]]:
    words = ["benchmarks.table1", "--out", str(options.out), "--questions", "300" if options.full else "60"]
    return [words]


def _peers(options: Options) -> list[list[str]]:
    return [["benchmarks.peers", "--out", str(options.out), *(["--full"] if options.full else [])]]


def _paper(options: Options) -> list[list[str]]:
    return [
        ["rserve.cli", "paper", "-o", str(options.out), "--num-requests", "1000" if options.full else "100"]
    ]


def _calibrated(options: Options) -> list[list[str]]:
    constants = str(options.out / "this-machine.json")
    return [
        ["rserve.cli", "calibrate", "--model", "small", "--dtype", fast_dtype(), "-o", constants],
        ["benchmarks.simulated_vs_measured", "--out", str(options.out), "--costs", constants],
    ]


def _measured_figures(options: Options) -> list[list[str]]:
    """Figures 12–14, 16–21 and Table 1 on the GPUs at hand."""
    layout = ["--device", options.device, "--model", options.model, "--encoders", str(options.encoders)]
    data = ["--dataset-path", options.dataset_path] if options.dataset_path else []
    kind = "mmmu" if options.dataset_path else "synthetic"
    workloads = [f"{kind}-1k", f"{kind}-2k"]
    requests = ["--requests", "1000" if options.full else "100"]
    pipeline = ["--pp", str(options.pp), "--tp", str(options.tp)]
    tensor = ["--pp", "1", "--tp", str(options.pp * options.tp)]

    def sweep(experiment: str, parallel: Sequence[str], *schemes: str) -> list[str]:
        words = ["benchmarks.rate_sweep", "--out", str(options.out), "--experiment", experiment]
        words += [*layout, *parallel, *data, *requests, "--schemes", *schemes]
        return [*words, "--workloads", *workloads, "--rates", *PAPER_LOADS_1K]

    table = ["benchmarks.table1", "--out", str(options.out), "--model", options.model]
    table += ["--device", options.device, "--dtype", "auto", "--questions", "900", "--no-transformers", *data]
    return [
        sweep("fig12", pipeline, "gllm", "gllm-epd", "rserve"),
        sweep("fig17", pipeline, "rserve-intra", "rserve"),
        sweep("fig18", pipeline, "gllm-epd", "rserve"),
        sweep("fig18", tensor, "gllm-epd", "rserve"),
        sweep("fig20", ["--pp", "1", "--tp", "1"], "gllm-epd", "rserve"),
        [*table, "--server-flags", *pipeline, "--encoders", str(options.encoders)],
    ]


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment("smoke", "the tiny model serves real images", ("first_requests",), (1, 1), _smoke),
    Experiment(
        "overlap",
        "gllm-epd against rserve on two cores; Figure 20 measured",
        ("overlap", "fig20"),
        (7, 600),
        _overlap,
        overlap_fig20.copy_lines,
    ),
    Experiment("table1", "scores of every scheme and of transformers", ("table1",), (3, 10), _table1),
    Experiment("costs", "a core step, the embedding channel, a profile", (), (2, 4), _costs),
    Experiment("paper", "every figure of the paper, simulated", SIMULATED, (4, 40), _paper),
    Experiment(
        "gpus",
        "every figure that the GPUs at hand allow, measured",
        SIMULATED,
        (120, 1200),
        _measured_figures,
        needs_gpus=True,
    ),
)

FULL_ONLY: tuple[Experiment, ...] = (
    Experiment("peers", "our engine beside transformers", (), (10, 60), _peers),
    Experiment(
        "calibrated", "the simulator against measured runs", ("simulated-vs-measured",), (8, 10), _calibrated
    ),
)


def chosen(options: Options, only: Sequence[str]) -> list[Experiment]:
    """The experiments of a call. Raises ValueError for an unknown name in `only`."""
    pool = [*EXPERIMENTS, *FULL_ONLY]
    known = {e.name for e in pool} | {figure for e in pool for figure in e.figures}
    unknown = sorted(set(only) - known)
    if unknown:
        raise ValueError(f"--only: no {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    if not only:
        pool = [*EXPERIMENTS, *(FULL_ONLY if options.full else ())]
    runnable = [e for e in pool if options.device == "cuda" or not e.needs_gpus]
    return [e for e in runnable if not only or e.name in only or set(only) & set(e.figures)]
