"""The command line of the client: flags of SGLang's `bench_serving`, and what a result line needs."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import Any

from benchmarks import results
from benchmarks.client.backends import BACKENDS
from benchmarks.client.datasets import DATASETS, build_prompts, load_tokenizer, load_vision_grid
from benchmarks.client.line import detail_fields, result_line
from benchmarks.client.metrics import SLO_METRICS
from benchmarks.client.report import format_report
from benchmarks.client.run import BenchResult, BenchSpec, run_benchmark
from gllm.command_line import Parser, at_least


def main(argv: list[str] | None = None, prog: str = "bench_serving") -> int:
    """Run at every rate. Returns 0 when every request succeeded, 1 when some failed, 2 for a wrong call."""
    args = build_parser(prog).parse_args(argv)
    try:
        specs, workload = _specs(args)
        failed = [_run(spec, workload, args) for spec in specs]
    except (ValueError, ConnectionError, FileNotFoundError) as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 1 if any(failed) else 0


def build_parser(prog: str = "bench_serving") -> argparse.ArgumentParser:
    """All flags; defaults are SGLang's."""
    parser = Parser(prog=prog, description="Open-loop benchmark of an OpenAI-compatible server.")
    _add_server_flags(parser.add_argument_group("server"))
    _add_load_flags(parser.add_argument_group("load"))
    _add_dataset_flags(parser.add_argument_group("data set"))
    _add_output_flags(parser.add_argument_group("output"))
    return parser


def _add_server_flags(group: Any) -> None:
    group.add_argument(
        "--backend", choices=BACKENDS, default="rserve", help="kind of server (default %(default)s)"
    )
    group.add_argument("--base-url", help="such as http://127.0.0.1:8000; instead of --host and --port")
    group.add_argument("--host", default="127.0.0.1", help="default %(default)s")
    group.add_argument("--port", type=int, help="default: the backend's own")
    group.add_argument("--model", help="default: the first that the server lists")
    group.add_argument("--tokenizer", help="folder or Hub name; without one, lengths are in words")
    group.add_argument("--api-key", help="sent as a bearer token")
    group.add_argument("--disable-stream", action="store_true", help="ask for whole answers")
    group.add_argument(
        "--disable-ignore-eos", action="store_true", help="let answers end before their length"
    )
    group.add_argument(
        "--extra-request-body", type=_json_object, default={}, metavar="JSON", help="added to each request"
    )
    group.add_argument(
        "--request-timeout", type=float, default=6 * 3600, metavar="S", help="default %(default)s s"
    )


def _add_load_flags(group: Any) -> None:
    group.add_argument(
        "--num-prompts", type=int, default=1000, help="requests at each rate (default %(default)s)"
    )
    group.add_argument(
        "--request-rate", type=float, nargs="+", default=[float("inf")], metavar="RATE",
        help="requests per second, Poisson; inf sends all at once; several are run one after another",
    )  # fmt: skip
    group.add_argument("--max-concurrency", type=at_least(1), help="most requests at the server at a time")
    group.add_argument("--seed", type=int, default=1, help="of arrivals and data (default %(default)s)")
    group.add_argument(
        "--warmup-requests", type=int, default=1, help="sent before the clock runs (default %(default)s)"
    )
    group.add_argument("--flush-cache", action="store_true", help="POST /flush_cache before each rate")


def _add_dataset_flags(group: Any) -> None:
    group.add_argument("--dataset-name", choices=DATASETS, default="random", help="default %(default)s")
    group.add_argument("--dataset-path", default="", help="parquet folder, JSON-lines file or Hub name")
    group.add_argument(
        "--image-count", type=at_least(0), default=1, help="images in a request (default %(default)s)"
    )
    group.add_argument(
        "--image-resolution",
        help="image: 4k, 1080p, 720p, 360p or HEIGHTxWIDTH (default 1080p); "
        "mmmu and synthetic: 1k or 2k, the paper's settings, or HEIGHTxWIDTH (default: as they are)",
    )
    group.add_argument("--image-format", choices=("jpeg", "png"), default="jpeg", help="default %(default)s")
    group.add_argument(
        "--image-content", choices=("random", "blank"), default="random", help="default %(default)s"
    )
    group.add_argument(
        "--random-image-count", action="store_true", help="1 … image-count images in each request"
    )
    group.add_argument("--random-input-len", type=int, default=1024, help="text tokens (default %(default)s)")
    group.add_argument(
        "--random-output-len", type=int, help="answer tokens (default: 1024, or 1 for the paper's sets)"
    )
    group.add_argument(
        "--random-range-ratio",
        type=float,
        default=0.0,
        help="lengths are drawn from ratio·length … length; 1 fixes them (default 0)",
    )
    group.add_argument(
        "--passage-tokens", type=int, help="mmmu: words before the questions (default 3000 at 1k and 2k)"
    )


def _add_output_flags(group: Any) -> None:
    group.add_argument("--output-file", metavar="FILE.jsonl", help="a line for each rate is appended")
    group.add_argument("--output-details", action="store_true", help="per-request lists in the line")
    group.add_argument("--tag", help="copied into the line")
    group.add_argument(
        "--goodput", type=_slo, nargs="+", default=[], metavar="NAME:MS", help="limits, such as ttft:1400"
    )
    group.add_argument("--experiment", help="figure that the line belongs to, such as fig12")
    group.add_argument("--workload", help="name of the workload in the line (default: from the data set)")
    group.add_argument(
        "--set", type=_assignment, nargs="+", default=[], metavar="KEY=VALUE", help="further line fields"
    )
    group.add_argument("--disable-tqdm", action="store_true", help="no progress bar")


def _specs(args: argparse.Namespace) -> tuple[list[BenchSpec], str]:
    tokenizer = load_tokenizer(args.tokenizer)
    name, prompts = build_prompts(args, tokenizer)
    port = args.port or BACKENDS[args.backend].default_port
    base_url = (args.base_url or f"http://{args.host}:{port}").rstrip("/").removesuffix("/v1")
    shared = {
        "model": args.model,
        "backend": args.backend,
        "seed": args.seed,
        "max_concurrency": args.max_concurrency,
        "warmup_requests": args.warmup_requests,
        "stream": not args.disable_stream,
        "ignore_eos": not args.disable_ignore_eos,
        "extra_body": args.extra_request_body,
        "headers": {"Authorization": f"Bearer {args.api_key}"} if args.api_key else {},
        "timeout_s": args.request_timeout,
        "slo_ms": dict(args.goodput),
        "vision_grid": load_vision_grid(args.tokenizer),
        "flush_cache": args.flush_cache,
        "progress": not args.disable_tqdm,
    }
    return [BenchSpec(base_url, prompts, request_rate=rate, **shared) for rate in args.request_rate], (
        args.workload or name
    )


def _run(spec: BenchSpec, workload: str, args: argparse.Namespace) -> int:
    """One rate: measure, print, append; returns the number of failed requests."""
    result = asyncio.run(run_benchmark(spec))
    extra = _call_fields(args) | {"total_output_tokens_retokenized": _retokenized(result, args.tokenizer)}
    line = result_line(result, workload, **(extra | dict(args.set)))
    print(format_report(line))
    if args.output_file:
        details = detail_fields(result) if args.output_details else {}
        results.append_line(args.output_file, line | details)
    return result.failed


def _call_fields(args: argparse.Namespace) -> dict[str, Any]:
    names = (
        "tag",
        "experiment",
        "dataset_name",
        "random_input_len",
        "random_output_len",
        "random_range_ratio",
    )
    return {name: vars(args)[name] for name in names} | {"sharegpt_output_len": None}


def _retokenized(result: BenchResult, tokenizer_name: str | None) -> int | None:
    """Output tokens as the tokenizer counts them in the texts; None without --tokenizer."""
    tokenizer = load_tokenizer(tokenizer_name)
    if tokenizer is None:
        return None
    texts = [record.text for record in result.records if record.ok]
    return sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in texts)


def _slo(text: str) -> tuple[str, float]:
    name, _, limit = text.partition(":")
    if name not in SLO_METRICS:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected NAME:MS with NAME one of {', '.join(SLO_METRICS)}"
        )
    try:
        return name, float(limit)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME:MS, such as ttft:1400") from None


def _assignment(text: str) -> tuple[str, Any]:
    """KEY=VALUE; the value is JSON where it reads as JSON, else text."""
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise argparse.ArgumentTypeError(f"{text!r}: expected KEY=VALUE")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


def _json_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from error
    if type(found) is not dict:
        raise argparse.ArgumentTypeError("expected a JSON object")
    return found
