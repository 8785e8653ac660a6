"""`rserve simulate` and `rserve paper`."""

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from tqdm import tqdm

from gllm.command_line import WithDefaults, at_least
from gllm.core.model_shape import DTYPE_BYTES, PRESETS
from gllm.core.trace_file import trace_json
from gllm.models.names import PACKAGED
from rserve.core.epd_core import INTRA_READINGS, SCHEMES

from .costs import constant_sets, measured_sets
from .hardware import devices
from .output import append_lines, current_commit, lines_text
from .paper import SETS, write_paper
from .scenario import Scenario
from .simulator import Simulated, simulate
from .sweep import expand, parse_values, run_all
from .workload import WORKLOADS

T = TypeVar("T")
Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_parsers(subparsers: Subparsers) -> None:
    """Add the simulator's commands. Each sets `run`: from the parsed arguments to an exit code."""
    _add_simulate(subparsers)
    _add_paper(subparsers)


def _add_simulate(subparsers: Subparsers) -> None:
    about = "Run the production scheduler on a simulated machine; append one result line per point."
    parser = subparsers.add_parser("simulate", help=about, description=about, formatter_class=WithDefaults)
    machine = parser.add_argument_group("machine")
    machine.add_argument(
        "--model",
        default="qwen2.5-vl-72b",
        help=f"{', '.join([*PRESETS, *PACKAGED])}, or a checkpoint folder",
    )
    machine.add_argument(
        "--hardware",
        default="h100",
        help=f"{', '.join([*devices(), *measured_sets()])}, or a file written by `rserve calibrate`",
    )
    machine.add_argument(
        "--dtype", choices=list(DTYPE_BYTES), help="of weights and cache (default: the checkpoint's)"
    )
    machine.add_argument(
        "--costs", default="clean", help=f"constants: {', '.join(constant_sets())}; A+B lays B over A"
    )
    machine.add_argument("--pp", type=at_least(1), default=4, help="pipeline stages")
    machine.add_argument("--tp", type=at_least(1), default=1, help="tensor-parallel devices per stage")
    machine.add_argument(
        "--encoders", type=at_least(0), default=1, help="encoder ranks (scheme gllm uses none)"
    )
    machine.add_argument("--assigned-layers", type=_int_tuple, help="layers of each stage, e.g. 20,20,20,20")
    _add_scheduling(parser.add_argument_group("scheduling"))
    _add_load(parser.add_argument_group("load"))
    output = parser.add_argument_group("output")
    output.add_argument(
        "-o", "--output", type=Path, help="append result lines here (default: standard output)"
    )
    output.add_argument("--trace", type=Path, help="write a Chrome trace of the run (one point only)")
    output.add_argument(
        "--sweep", action="append", default=[], metavar="FIELD=VALUES", help="0.2:2.0:10 or a,b,c"
    )
    output.add_argument("--jobs", type=at_least(1), help="processes (default: one per core)")
    parser.set_defaults(run=run_simulate)


def _add_scheduling(rule: argparse._ArgumentGroup) -> None:
    rule.add_argument(
        "--scheme", default="rserve", help=f"one or several of {', '.join(SCHEMES)}, with commas"
    )
    rule.add_argument(
        "--token-budget", "--maxp", type=at_least(1), default=2048, help="most tokens in a micro-batch (B)"
    )
    rule.add_argument(
        "--embedding-batch-size", type=at_least(1), default=1024, help="least tokens in an encoder batch (C)"
    )
    rule.add_argument("--max-in-flight", type=at_least(1), help="in the pipeline (default: pp + 1)")
    rule.add_argument("--intra-reading", default="serial", choices=INTRA_READINGS)
    methods = ("chunked_prefill", "token_throttling")
    rule.add_argument("--schedule-method", default="chunked_prefill", choices=methods)
    rule.add_argument("--kv-tokens", type=at_least(1), help="KV cache in tokens (default: what memory holds)")
    rule.add_argument(
        "--embedding-tokens", type=at_least(1), default=131_072, help="embeddings the driver has room for"
    )


def _add_load(load: argparse._ArgumentGroup) -> None:
    load.add_argument("--workload", default="mmmu-1k", help=f"{', '.join(WORKLOADS)}, pair-WIDTHxHEIGHT")
    load.add_argument("--placement", choices=("images-first", "text-first", "interleaved"))
    load.add_argument(
        "--output-len", type=at_least(1), help="tokens of an answer (default: the workload's, 1)"
    )
    load.add_argument("--request-rate", type=float, default=1.0, help="requests per second, or inf")
    load.add_argument("--num-requests", type=at_least(1), default=200, help="how many")
    load.add_argument("--seed", type=int, default=0, help="of arrivals and lengths")
    load.add_argument("--slo-ttft-ms", type=at_least(0, float), help="limit for slo_attainment")


def _add_paper(subparsers: Subparsers) -> None:
    about = (
        "Simulate every experiment of the paper's section 4; write result lines and a table of comparisons."
    )
    parser = subparsers.add_parser("paper", help=about, description=about)
    parser.add_argument("-o", "--output", type=Path, default=Path("results"), help="folder for the results")
    parser.add_argument("--costs", action="append", choices=SETS, help="constant sets (default: all)")
    parser.add_argument("--num-requests", type=at_least(1), default=200, help="requests per point")
    parser.add_argument("--jobs", type=at_least(1), help="processes (default: one per core)")
    parser.set_defaults(run=run_paper)


def run_simulate(args: argparse.Namespace) -> int:
    try:
        scenarios = scenarios_of(args)
        if args.trace and len(scenarios) != 1:
            raise ValueError(f"--trace needs one point, this call has {len(scenarios)}")
        results = (
            [simulate(scenarios[0], True)]
            if args.trace
            else _progress(run_all(scenarios, args.jobs), scenarios)
        )
        lines = []
        for result in results:
            lines.append({**result.line, "commit": current_commit()})
            print(_summary(result), file=sys.stderr)
            if args.trace:
                args.trace.write_text(trace_json(result.spans, result.ranks, result.lives))
    except ValueError as error:
        print(f"rserve simulate: {error}", file=sys.stderr)
        return 2
    if args.output is None:
        sys.stdout.write(lines_text(lines))
    else:
        append_lines(args.output, lines)
    return 0


def scenarios_of(args: argparse.Namespace) -> list[Scenario]:
    """The points of a `simulate` call: every scheme with every combination of swept values."""
    sweeps = {"scheme": args.scheme.split(",")}
    for text in args.sweep:
        name, separator, values = text.partition("=")
        if not separator:
            raise ValueError(f"--sweep {text}: write FIELD=VALUES")
        field = name.strip().lstrip("-").replace("-", "_")
        sweeps[field] = parse_values(field, values)
    given: dict[str, Any] = {
        name: value for name, value in vars(args).items() if name in Scenario.__dataclass_fields__
    }
    given["scheme"] = sweeps["scheme"][0]
    return expand(Scenario(**given), sweeps)


def run_paper(args: argparse.Namespace) -> int:
    sets = args.costs or list(SETS)
    write_paper(
        args.output, sets, args.num_requests, lambda points: _progress(run_all(points, args.jobs), points)
    )
    return 0


def _progress(results: Iterable[T], points: Iterable[object]) -> Iterator[T]:
    yield from tqdm(results, total=len(list(points)), unit="point", disable=None)


def _summary(result: Simulated) -> str:
    line = result.line
    ttft, bound = line["mean_ttft_ms"], line["bound_ttft_ms"]
    times = _why_none(result) if ttft is None else f"TTFT mean {ttft:8.0f} ms (bound {bound:.0f})"
    speed = f"{line['input_throughput']:8.0f} tokens/s"
    return f"{line['scheme']:>12} {line['request_rate']:6.2f}/s  {times}, {speed}"


def _int_tuple(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _why_none(result: Simulated) -> str:
    """Nothing was served: the first request's error."""
    errors = (outcome.error for outcome in result.outcomes if outcome.error)
    return f"no request served: {next(errors, 'all were refused')}"
