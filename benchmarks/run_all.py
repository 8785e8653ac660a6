"""Runs every experiment, draws every figure, writes results/index.html (see benchmarks/run_all.sh --help).

A finished experiment leaves a stamp with its commands in OUT/done and is not run again while they stay the
same; inside an experiment, finished points are kept too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import index_page
from benchmarks.experiments import Experiment, Options, chosen
from benchmarks.results import current_commit
from benchmarks.servers import ROOT


def main(argv: list[str] | None = None) -> int:
    """0 when everything ran; 1 when some experiment failed (the others still run); 2 for a wrong call."""
    args = build_parser().parse_args(argv)
    options = Options(
        args.out, args.full, args.device, args.model, args.pp, args.tp, args.encoders, args.dataset_path
    )
    only = args.only.split(",") if args.only else []
    try:
        wanted = chosen(options, only)
        _check_gpus(options)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    failed = run(wanted, options, args.redo)
    figures = [name for name in only if name.startswith(("fig", "table1"))]
    failed += draw(options, figures)
    page = index_page.write(options.out, [(e, e.commands(options)) for e in chosen(options, [])])
    print(f"\nall results: {page}")
    if failed:
        print(f"FAILED: {', '.join(failed)}; the lines above say why, and the same call tries them again")
    return 1 if failed else 0


def run(wanted: Sequence[Experiment], options: Options, redo: bool) -> list[str]:
    """Run what is not finished; the names of those that failed."""
    waiting = [e for e in wanted if redo or not _is_done(e, options)]
    for experiment in wanted:
        if experiment not in waiting:
            print(f"[done before] {experiment.name}: {experiment.about}")
    failed = []
    for number, experiment in enumerate(waiting):
        left = sum(e.minutes[options.full] for e in waiting[number:])
        print(
            f"\n=== [{number + 1}/{len(waiting)}] {experiment.name}: {experiment.about} "
            f"(about {experiment.minutes[options.full]:g} min, {left:g} min left in all)",
            flush=True,
        )
        started = time.monotonic()
        if not _run_one(experiment, options):
            failed.append(experiment.name)
            print(f"=== {experiment.name} FAILED", flush=True)
            continue
        minutes = (time.monotonic() - started) / 60
        print(f"=== {experiment.name} took {minutes:.1f} min", flush=True)
        _stamp(experiment, options, minutes)
    return failed


def draw(options: Options, only: Sequence[str]) -> list[str]:
    """Every figure that the lines allow."""
    print("\n=== figures", flush=True)
    words = ["plots", "--results", str(options.out), *(["--only", ",".join(only)] if only else [])]
    code = call(words)
    if (options.out / "overlap.jsonl").exists():
        code = max(code, call(["plots.overlap", "--results", str(options.out)]))
    return ["figures"] if code else []


def call(words: Sequence[str]) -> int:
    """`python -m …`; its output is shown as it comes."""
    print(f"$ python -m {' '.join(words)}", flush=True)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.run([sys.executable, "-m", *words], cwd=ROOT, env=environment).returncode


def _run_one(experiment: Experiment, options: Options) -> bool:
    for words in experiment.commands(options):
        if call(words):
            return False
    if experiment.after is not None:
        experiment.after(options)
    return True


def _stamp_path(experiment: Experiment, options: Options) -> Path:
    return options.out / "done" / f"{experiment.name}.json"


def _is_done(experiment: Experiment, options: Options) -> bool:
    path = _stamp_path(experiment, options)
    return path.exists() and json.loads(path.read_text())["commands"] == experiment.commands(options)


def _stamp(experiment: Experiment, options: Options, minutes: float) -> None:
    path = _stamp_path(experiment, options)
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = {"commands": experiment.commands(options), "minutes": minutes, "commit": current_commit()}
    path.write_text(json.dumps(facts, indent=1))


def _check_gpus(options: Options) -> None:
    if options.device != "cuda":
        return
    if not options.model:
        raise ValueError("--device cuda needs --model, a checkpoint folder")
    needed = options.pp * options.tp + options.encoders
    found = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    if found < needed:
        raise ValueError(
            f"--pp {options.pp} --tp {options.tp} --encoders {options.encoders} needs {needed} GPUs, "
            f"this machine has {found}"
        )


def build_parser() -> argparse.ArgumentParser:
    """All flags."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/run_all.sh", description="Measure, simulate, and draw every figure of the paper."
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="under 20 minutes on two cores (default)")
    size.add_argument("--full", action="store_true", help="more points, more requests: hours")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder (default %(default)s)")
    parser.add_argument("--only", help="experiments or figures, separated by commas: smoke,fig12,table1")
    parser.add_argument("--redo", action="store_true", help="run finished experiments again")
    gpus = parser.add_argument_group("GPUs")
    gpus.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="(default: %(default)s)")
    gpus.add_argument("--model", default="", help="checkpoint folder")
    gpus.add_argument("--pp", type=int, default=4)
    gpus.add_argument("--tp", type=int, default=1)
    gpus.add_argument("--encoders", type=int, default=1)
    gpus.add_argument(
        "--dataset-path", default="", help="MMMU's parquet folder or Hub name (default: synthetic)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
