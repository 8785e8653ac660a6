"""Our engine beside others: the same requests in turn, on the same cores and threads.

    python -m benchmarks.peers --out results                       transformers, the fast dtype of this CPU
    python -m benchmarks.peers --dtypes float32 bfloat16 --full    every load
    python -m benchmarks.peers --peer-url other=http://127.0.0.1:8001
    python -m benchmarks.checkpoint small /tmp/small
    python -m benchmarks.peers --model /tmp/small --vllm /tmp/vllm-env     vLLM (benchmarks/vllm_env.sh)

Requests are those of the workload `peers` (4 images of 448×448 and 256 words) and the same without images,
with 1 and 128 output tokens, alone and with 8 and 20 at once. Every round sends the same prompts to each
engine, the first one changing from round to round; ratios are of rounds. Appends to peers.jsonl and writes
peers.md.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.alternate import Ratio, paired_ratio, rotated
from benchmarks.client import RequestRecord, metrics
from benchmarks.peer_targets import HttpTarget, Target, TransformersTarget
from benchmarks.servers import ServerPlan, fast_dtype, model_folder, running, weight_flags
from benchmarks.vllm_peer import vllm_plan
from benchmarks.workloads import Prompt, peers

OURS = "RServe"


@dataclass(frozen=True)
class Case:
    """One load: images or text only, output tokens, requests at once, rounds."""

    images: bool
    output_len: int
    at_once: int
    rounds: int

    @property
    def workload(self) -> str:
        return "peers" if self.images else "peers-text"

    @property
    def shown(self) -> str:
        kind = "4 images" if self.images else "text only"
        return f"{kind}, {self.output_len} out, " + (
            "alone" if self.at_once == 1 else f"{self.at_once} at once"
        )

    def prompts(self, round_: int) -> list[Prompt]:
        seed = 1000 * round_ + self.output_len + self.at_once
        return peers.prompts(self.at_once, seed, self.output_len, peers.NUM_IMAGES if self.images else 0)


QUICK = (Case(True, 1, 1, 5), Case(True, 128, 1, 2), Case(True, 128, 8, 1), Case(False, 1, 1, 5))
FULL = tuple(
    Case(images, output_len, at_once, 8 if at_once == 1 else 3)
    for images in (True, False)
    for output_len in (1, 128)
    for at_once in (1, 8, 20)
)


def main(argv: list[str] | None = None) -> int:
    """Measure every case at every engine; 1 when a request failed."""
    args = build_parser().parse_args(argv)
    cases = FULL if args.full else QUICK
    if args.rounds:
        cases = tuple(Case(c.images, c.output_len, c.at_once, args.rounds) for c in cases)
    if args.only:
        cases = tuple(cases[index] for index in args.only)
    path = args.out / "peers.jsonl"
    failed = 0
    for dtype in args.dtypes:
        with _targets(args, dtype) as targets:
            for case in cases:
                failed += run_case(case, targets, dtype, args, path)
    lines = results.select(results.read_lines([path]), experiment="peers")
    text = table(lines)
    (args.out / "peers.md").write_text(text)
    print(text)
    return 1 if failed else 0


def run_case(case: Case, targets: Sequence[Target], dtype: str, args: argparse.Namespace, path: Path) -> int:
    """All rounds of a case; one line for each engine and round. Returns the number of failed requests."""
    failed = 0
    for round_ in range(case.rounds):
        prompts = case.prompts(round_)
        for index in rotated(len(targets), round_):
            target = targets[index]
            point = _point(case, target, dtype, args, round_)
            if results.is_finished(results.read_lines([path]), point):
                continue
            records, duration = target.ask(prompts)
            line = _line(point, records, duration)
            failed += line["failed"]
            results.append_line(path, line)
            shown = "failed" if line["failed"] else f"TTFT {line['mean_ttft_ms']:.0f} ms"
            print(f"{dtype} {case.shown} #{round_} {target.name}: {shown}, {duration:.1f} s", flush=True)
    return failed


def table(lines: Sequence[results.Line]) -> str:
    """Medians over rounds, and ours / theirs with 95 % intervals where there are three rounds or more."""
    head = ("dtype", "load", "engine", "TTFT (ms)", "TPOT (ms)", "output tokens/s", "input tokens/s")
    ratios = ("TTFT, ours / theirs", "TPOT", "tokens/s")
    rows = ["| " + " | ".join((*head, *ratios)) + " |", "|" + "---|" * (len(head) + len(ratios))]
    for key in dict.fromkeys((line["dtype"], line["case"]) for line in lines):
        here = [line for line in lines if (line["dtype"], line["case"]) == key and not line["failed"]]
        ours = results.select(here, label=OURS)
        for name in dict.fromkeys(line["label"] for line in here):
            own = results.select(here, label=name)
            names = ("mean_ttft_ms", "mean_tpot_ms", "output_throughput", "input_throughput")
            cells = [*key, name, *(_median(own, field) for field in names)]
            compared = () if name == OURS else (names[0], names[1], names[2])
            cells += [_ratio(ours, own, field) for field in compared] or ["", "", ""]
            rows.append("| " + " | ".join(cells) + " |")
    first = lines[0] if lines else {}
    return "\n".join([f"Measured on {first.get('hardware')}, commit {first.get('commit')}", "", *rows, ""])


@contextlib.contextmanager
def _targets(args: argparse.Namespace, dtype: str) -> Iterator[list[Target]]:
    flags = ["--scheme", "gllm", *weight_flags(args.model), "--dtype", dtype, "--kv-cache-gib", "1.5"]
    plan = ServerPlan(args.model, (*flags, "--threads-per-rank", str(args.threads)))
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(running(plan, args.out / "logs"))
        found: list[Target] = [HttpTarget(OURS, server.base_url, "rserve", server)]
        if not args.no_transformers:
            peer = TransformersTarget(model_folder(args.model), dtype, args.threads)
            stack.callback(peer.close)
            found.append(peer)
        if args.vllm:
            other = vllm_plan(args.vllm, str(model_folder(args.model)), dtype, range(args.threads))
            server = stack.enter_context(running(other, args.out / "logs"))
            found.append(HttpTarget("vLLM", server.base_url, "vllm-chat", server))
        found += [HttpTarget(name, url, args.peer_backend) for name, url in args.peer_url]
        for target in found:  # first calls compile, allocate and import
            target.ask(peers.prompts(1, 7, 2))
        yield found


def _point(case: Case, target: Target, dtype: str, args: argparse.Namespace, round_: int) -> dict[str, Any]:
    return {
        "experiment": "peers",
        "label": target.name,
        "model": model_folder(args.model).name,
        "dtype": dtype,
        "case": case.shown,
        "workload": case.workload,
        "output_len": case.output_len,
        "max_concurrency": case.at_once,
        "threads": args.threads,
        "repeat": round_,
    }


def _line(point: dict[str, Any], records: Sequence[RequestRecord], duration: float) -> results.Line:
    fixed = {
        "source": "measured",
        "scheme": "gllm",
        "request_rate": "inf",
        "hardware": results.hardware_name(),
        "commit": results.current_commit(),
        "num_prompts": len(records),
    }
    return point | fixed | metrics.compute(records, duration, {}) | {"ttfts": [r.ttft for r in records]}


def _median(lines: Sequence[results.Line], field: str) -> str:
    values = [line[field] for line in lines if line.get(field) is not None]
    return f"{statistics.median(values):.1f}" if values else "–"


def _ratio(ours: Sequence[results.Line], theirs: Sequence[results.Line], field: str) -> str:
    by_round = {line["repeat"]: line[field] for line in theirs}
    pairs = [
        (line[field], by_round[line["repeat"]])
        for line in ours
        if line[field] is not None and by_round.get(line["repeat"]) is not None
    ]
    ratio: Ratio | None = paired_ratio([a for a, _ in pairs], [b for _, b in pairs])
    return "–" if ratio is None else str(ratio)


def _named_url(text: str) -> tuple[str, str]:
    name, separator, url = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME=URL, such as vllm=http://127.0.0.1:8001")
    return name, url


def build_parser() -> argparse.ArgumentParser:
    """All flags."""
    parser = argparse.ArgumentParser(prog="peers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder (default %(default)s)")
    parser.add_argument("--model", default="small", help="one of ours or a folder (default %(default)s)")
    parser.add_argument(
        "--dtypes",
        nargs="+",
        default=[fast_dtype()],
        choices=("float32", "bfloat16"),
        help="default %(default)s",
    )
    parser.add_argument("--threads", type=int, default=2, help="of every engine (default %(default)s)")
    parser.add_argument("--full", action="store_true", help="every load, several rounds")
    parser.add_argument("--rounds", type=int, help="instead of each case's own number")
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="cases by number, from 0")
    parser.add_argument("--no-transformers", action="store_true", help="leave it out")
    parser.add_argument("--vllm", type=Path, metavar="ENV", help="its environment, from vllm_env.sh")
    parser.add_argument(
        "--peer-url", type=_named_url, action="append", default=[], metavar="NAME=URL", help="another server"
    )
    parser.add_argument("--peer-backend", default="vllm-chat", help="its kind (default %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
