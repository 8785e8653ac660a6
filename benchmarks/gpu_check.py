"""Checks and measures this project on a machine with a GPU: `python -m benchmarks.gpu_check`.

Needs torch, triton, transformers and this repository; downloads nothing; at most 8 minutes. What starts
servers needs the packages that `pip install .` brings too, and is NOT RUN without them. `--cpu` runs what can
be checked without a GPU: kernels in Triton's interpreter, and all schemes against transformers on the small
model. Exit code 0: everything that was asked for ran and holds; 1: it does not.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from benchmarks.gpu.report import Report
from benchmarks.results import hardware_name

if TYPE_CHECKING:
    from benchmarks.gpu.engine import Scene

SECTIONS = ("kernels", "equality", "agreement", "speed", "peer", "channel", "schemes", "calibrate")
ON_CPU = ("kernels", "equality")
BUDGET_S = 460.0
FOR_SERVERS = ("msgspec", "zmq", "fastapi", "uvicorn", "aiohttp", "pydantic", "prometheus_client", "PIL")
"""Modules that the sections `channel`, `schemes` and `calibrate` need, and no other."""


def build_parser() -> argparse.ArgumentParser:
    """All flags."""
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__, allow_abbrev=False)
    parser.add_argument("--cpu", action="store_true", help="what can be checked without a GPU")
    parser.add_argument(
        "--only", default="", help=f"sections to run, by comma: {','.join(SECTIONS)} (default: all)"
    )
    parser.add_argument("--output-file", type=Path, default=Path("results/gpu_check.jsonl"))
    parser.add_argument(
        "--budget-s", type=float, default=BUDGET_S, help="no section starts after so many seconds"
    )
    parser.add_argument("--no-cuda-graphs", action="store_true", help="equality without CUDA graphs, too")
    return parser


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    args = build_parser().parse_args(arguments)
    if args.cpu:
        os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, which is later
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not torch.cuda.is_available():
        print("no CUDA device was found: nothing was checked (--cpu checks what needs none)", file=sys.stderr)
        return 1
    wanted = [name for name in SECTIONS if not args.only or name in args.only.split(",")]
    if args.cpu:
        wanted = [name for name in wanted if name in ON_CPU]
    device = torch.device("cpu" if args.cpu else "cuda")
    hardware = hardware_name() if args.cpu else torch.cuda.get_device_name()
    report = Report(hardware, args.output_file, time.monotonic() + args.budget_s)
    print(f"{hardware}; torch {torch.__version__}; sections: {', '.join(wanted)}", flush=True)
    for name in wanted:
        _guarded(report, name, _section(name, report, device, args))
    return _end(report, args.cpu)


def _section(name: str, report: Report, device: torch.device, args: argparse.Namespace) -> Callable[[], None]:
    return {
        "kernels": lambda: _kernels(report, device),
        "equality": lambda: _equality(report, device, args.no_cuda_graphs),
        "agreement": lambda: _agreement(report, device),
        "speed": lambda: _speed(report, device),
        "peer": lambda: _peer(report, device),
        "channel": lambda: _channel(report, device),
        "schemes": lambda: _schemes(report),
        "calibrate": lambda: _calibrate(report, device, args.output_file.with_suffix(".constants.json")),
    }[name]


def _guarded(report: Report, name: str, run: Callable[[], None]) -> None:
    """A section that fails is one failed row; the others still run."""
    if report.seconds_left <= 0:
        report.skip(name, "whole section", "no time left")
        return
    begin = time.monotonic()
    try:
        run()
    except Exception as error:  # whatever a broken kernel or driver raises
        traceback.print_exc()
        report.check(name, "ran to its end", False, f"{type(error).__name__}: {error}".splitlines()[0][:200])
    report.measure(name, "took", time.monotonic() - begin, "s")


def _kernels(report: Report, device: torch.device) -> None:
    from benchmarks.gpu.kernels import check_kernels

    torch.manual_seed(0)
    check_kernels(report, device)


def _equality(report: Report, device: torch.device, also_without_graphs: bool) -> None:
    from benchmarks.gpu.equality import check_equality

    check_equality(report, device)
    if also_without_graphs:
        check_equality(report, device, graphs=False)


def _agreement(report: Report, device: torch.device) -> None:
    from benchmarks.gpu.engine import check_agreement, free_memory
    from gllm.core.model_shape import PRESETS

    check_agreement(report, device, PRESETS["qwen2.5-vl-3b"])
    free_memory()


def _speed(report: Report, device: torch.device) -> None:
    from benchmarks.gpu import engine
    from benchmarks.gpu.kernels import time_kernels
    from gllm.core.model_shape import PRESETS

    scene = _scene(report, device)
    time_kernels(report, device, scene.ceilings)
    shape = PRESETS["qwen2.5-vl-7b"]
    engine.measure_encoder(report, scene, shape, "7b")
    with tempfile.TemporaryDirectory() as folder:
        loaded = engine.load(engine.plan_of(shape, Path(folder), device), device, num_blocks=2048)
    engine.measure_language(report, scene, loaded, "7b")
    engine.check_steady_memory(report, loaded, "7b")
    del loaded
    engine.free_memory()


def _scene(report: Report, device: torch.device) -> Scene:
    from benchmarks.gpu.engine import Scene
    from benchmarks.gpu.timing import measure_ceilings
    from rserve.sim.hardware import devices

    ceilings = measure_ceilings(device)
    report.measure("ceilings", "copy, bytes read and written", ceilings.copy / 1e12, "TB/s")
    report.measure("ceilings", "bf16 matmul", ceilings.matmul / 1e12, "TFLOP/s")
    name = torch.cuda.get_device_name().lower()
    found = [sheet for key, sheet in devices().items() if key.split("-")[0] in name]
    return Scene(device, ceilings, found[0] if found else None)


def _peer(report: Report, device: torch.device) -> None:
    from benchmarks.gpu import engine
    from benchmarks.gpu.shapes import transformers_model, write_config
    from benchmarks.gpu.timing import Ceilings
    from gllm.core.model_shape import PRESETS

    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), PRESETS["qwen2.5-vl-7b"])
        model = transformers_model(Path(folder), torch.bfloat16, device)
    engine.measure_transformers(report, engine.Scene(device, Ceilings(0.0, 0.0), None), model, "7b")
    del model
    engine.free_memory()


def _lacks_packages(report: Report, section: str) -> bool:
    missing = [name for name in FOR_SERVERS if find_spec(name) is None]
    if missing:
        report.skip(section, "whole section", f"{', '.join(missing)} not installed: pip install .")
    return bool(missing)


def _channel(report: Report, device: torch.device) -> None:
    if _lacks_packages(report, "channel"):
        return
    from benchmarks.gpu.channel import check_channel

    check_channel(report, device)


def _schemes(report: Report) -> None:
    """The 7B model's shape with dummy weights takes too long to fill four times; `small-vision` is used."""
    if _lacks_packages(report, "schemes"):
        return
    from benchmarks.gpu.servers import measure_schemes

    gpus = torch.cuda.device_count()
    report.measure("schemes", "GPUs", gpus, "", "encoder and language model in turns" if gpus == 1 else "")
    with tempfile.TemporaryDirectory() as folder:
        measure_schemes(report, "small-vision", gpus, Path(folder))


def _calibrate(report: Report, device: torch.device, out: Path) -> None:
    if _lacks_packages(report, "calibrate"):
        return
    from benchmarks.gpu.servers import calibrate

    calibrate(report, device.type, out)


def _end(report: Report, on_cpu: bool) -> int:
    print(f"\n{report.hardware}\n{report.table()}\n")
    if on_cpu:
        print("nothing was run on a GPU: kernels ran in Triton's interpreter, the engine on the CPU")
    missed = [row.name for row in report.rows if row.passed is False and row.name in report.is_goal]
    if missed:
        print(f"goals missed: {', '.join(missed)}")
    print(f"{len(report.failed)} checks failed" if report.failed else "all checks hold")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
