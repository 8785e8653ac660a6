"""Servers on the GPU: the four schemes, with encoder and language model as processes of their own.

On one GPU the processes take turns, so this checks that they work together and says how long they take; it
shows no overlap. With more GPUs than ranks, encoders and stages have their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu.report import Report
from benchmarks.results import read_lines
from benchmarks.servers import ROOT, ServerFailed, ServerPlan, running
from rserve.core.epd_core import SCHEMES

FLAGS = ("--load-format", "dummy", "--device", "cuda", "--num-kv-blocks", "2048")


def measure_schemes(report: Report, model: str, gpus: int, folder: Path) -> None:
    """Eight requests of four pictures each, one after another and all at once, for each scheme.

    With three GPUs or more, rserve also runs with two stages, and with two tensor-parallel ranks.
    """
    layouts = [(scheme, 1, 1) for scheme in SCHEMES]
    if gpus >= 3:
        layouts += [("rserve", 2, 1), ("rserve", 1, 2)]
    for scheme, pp, tp in layouts:
        name = scheme if pp == tp == 1 else f"{scheme}, pp {pp}, tp {tp}"
        if report.seconds_left < 40:
            report.skip("schemes", name, "no time left")
            continue
        plan = ServerPlan(model, ("--scheme", scheme, "--pp", str(pp), "--tp", str(tp), *FLAGS))
        try:
            with running(plan, folder) as server:
                report.measure("schemes", f"{name}: start", server.start_s, "s", plan.shown)
                for concurrency in (1, 8):
                    out = folder / f"{scheme}-{pp}-{tp}-{concurrency}.jsonl"
                    _load(report, name, server.base_url, out, concurrency)
        except ServerFailed as error:
            report.check("schemes", f"{name} starts", False, str(error).splitlines()[-1])


def _load(report: Report, scheme: str, base_url: str, out: Path, concurrency: int) -> None:
    command = [
        *(sys.executable, "-m", "rserve.cli", "bench", "--base-url", base_url, "--dataset-name", "image"),
        *("--image-count", "4", "--image-resolution", "360p", "--random-input-len", "128"),
        *("--random-output-len", "16", "--random-range-ratio", "1", "--num-prompts", "8"),
        *("--max-concurrency", str(concurrency), "--output-file", str(out)),
    ]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90)
    except subprocess.TimeoutExpired:
        report.check("schemes", f"{scheme}, {concurrency} at a time", False, "no answer within 90 s")
        return
    lines = read_lines([out]) if out.exists() else []
    if not lines:
        report.check("schemes", f"{scheme}, {concurrency} at a time", False, done.stderr.strip()[-200:])
        return
    line = lines[-1]
    ok = not line.get("failed") and line.get("completed") == 8
    report.check(
        "schemes", f"{scheme}, {concurrency} at a time: all answered", ok, json.dumps(line.get("failed"))
    )
    report.measure(
        "schemes", f"{scheme}, {concurrency} at a time: mean TTFT", float(line["mean_ttft_ms"]), "ms"
    )


def calibrate(report: Report, device: str, out: Path) -> None:
    """`rserve calibrate`: a constant set for the simulator, written to `out`."""
    flags = ("--device", device, "--model", "small-vision", "--spend", "0.1", "-o", str(out))
    command = [sys.executable, "-m", "rserve.cli", "calibrate", *flags]
    known = subprocess.run(
        [sys.executable, "-m", "rserve.cli", "--help"], cwd=ROOT, capture_output=True, text=True
    )
    if "calibrate" not in known.stdout:
        report.skip("calibrate", " ".join(command[3:]), "this version of rserve has no such command")
        return
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=max(report.seconds_left, 20)
        )
    except subprocess.TimeoutExpired:
        report.skip("calibrate", " ".join(command[3:]), "no time left")
        return
    last = (done.stdout.strip() or done.stderr.strip()).splitlines()[-1:]
    report.check("calibrate", " ".join(command[3:]), done.returncode == 0, "".join(last))
