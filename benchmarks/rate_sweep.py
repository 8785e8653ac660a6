"""One server for each scheme, one Poisson run for each workload and rate: the paper's figures, measured.

    python -m benchmarks.rate_sweep --out results --experiment fig12 --model PATH --device cuda --pp 4 \
        --encoders 1 --schemes gllm gllm-epd rserve --workloads mmmu-1k mmmu-2k --rates 0.4 0.8 1.2

Lines are those of `rserve bench` with the experiment's name, which is how the figures find them. A finished
point is not measured again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.client.cli import main as bench
from benchmarks.servers import Server, ServerPlan, running
from rserve.core.epd_core import SCHEMES

SLO_MS = {"fig12": {"mmmu-1k": 10_000, "mmmu-2k": 10_000}, "fig18": {"mmmu-1k": 1_400, "mmmu-2k": 2_000}}


def main(argv: list[str] | None = None) -> int:
    """The largest exit code of all runs."""
    args = build_parser().parse_args(argv)
    path = args.out / "measured.jsonl"
    code = 0
    for scheme in args.schemes:
        missing = [p for p in _points(args, scheme) if not results.is_finished(results.read_lines([path]), p)]
        if not missing:
            continue
        with running(_plan(args, scheme), args.out / "logs") as server:
            for point in missing:
                code = max(code, _run(args, server, point, path))
    return code


def _points(args: argparse.Namespace, scheme: str) -> list[dict[str, Any]]:
    """Every point of a scheme; with several values of C, or several tp, they are servers of their own."""
    return [
        {
            "experiment": args.experiment,
            "workload": workload,
            "scheme": scheme,
            "pp": args.pp,
            "tp": args.tp,
            "request_rate": rate,
        }
        for workload in args.workloads
        for rate in args.rates
    ]


def _plan(args: argparse.Namespace, scheme: str) -> ServerPlan:
    flags = ["--scheme", scheme, "--device", args.device, "--pp", str(args.pp), "--tp", str(args.tp)]
    if scheme != "gllm":
        flags += ["--encoders", str(args.encoders), "--embedding-batch-size", str(args.embedding_batch_size)]
    return ServerPlan(args.model, (*flags, *args.server_flags))


def _run(args: argparse.Namespace, server: Server, point: dict[str, Any], path: Path) -> int:
    name, _, resolution = point["workload"].partition("-")
    words = ["--base-url", server.base_url, "--dataset-name", name, "--num-prompts", str(args.requests)]
    if resolution in ("1k", "2k"):
        words += ["--image-resolution", resolution]
    if args.dataset_path and name == "mmmu":
        words += ["--dataset-path", args.dataset_path]
    limit = SLO_MS.get(args.experiment, {}).get(point["workload"])
    if limit:
        words += ["--goodput", f"ttft:{limit}"]
    words += ["--request-rate", str(point["request_rate"]), "--experiment", args.experiment]
    words += ["--workload", point["workload"], "--output-file", str(path)]
    return bench([*words, "--set", f"pp={args.pp}", f"tp={args.tp}"])


def build_parser() -> argparse.ArgumentParser:
    """All flags."""
    parser = argparse.ArgumentParser(prog="rate_sweep", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder (default %(default)s)")
    parser.add_argument("--experiment", required=True, help="figure the lines belong to, such as fig12")
    parser.add_argument("--model", required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--pp", type=int, default=1)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--encoders", type=int, default=1)
    parser.add_argument("--embedding-batch-size", default="1024")
    parser.add_argument("--schemes", nargs="+", default=list(SCHEMES), choices=SCHEMES)
    parser.add_argument("--workloads", nargs="+", default=["mmmu-1k"], help="mmmu-1k, synthetic-1k, peers, …")
    parser.add_argument("--dataset-path", default="", help="of mmmu")
    parser.add_argument("--rates", type=float, nargs="+", required=True, help="requests per second")
    parser.add_argument("--requests", type=int, default=100, help="at each rate (default %(default)s)")
    parser.add_argument(
        "--server-flags", nargs=argparse.REMAINDER, default=[], help="the rest goes to the server"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
