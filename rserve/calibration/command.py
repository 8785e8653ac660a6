"""`rserve calibrate`: measure this machine, fit the cost model, write a constant set."""

import argparse
import json
import os
import shlex
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path

import torch
from tqdm import tqdm

from gllm.command_line import Parser, at_least
from gllm.config import ModelConfig
from gllm.core.model_shape import DTYPE_BYTES
from gllm.entrypoints.about import hardware
from gllm.models.names import UnknownModelError, resolve_model
from gllm.runtime.host_memory import free_cpu_bytes
from gllm.runtime.loading import ModelPlan
from rserve.calibration.constant_set import Measured, constant_set
from rserve.calibration.measure_encoder import measure_encoder
from rserve.calibration.measure_request import measure_request
from rserve.calibration.measure_stage import measure_stage
from rserve.calibration.measure_transfer import measure_transfers
from rserve.calibration.stopwatch import Stopwatch
from rserve.config import RServeConfig
from rserve.sim.calibrate import fit_encoder, fit_stage, worst_errors
from rserve.sim.cost_model import CostModel, stage_coefficients
from rserve.sim.costs import load_constants
from rserve.sim.hardware import Hardware, Machine, load_hardware
from rserve.sim.output import current_commit

FAR = 0.3
"""A set that is so far from its own measurements was measured too briefly."""


def calibrate(argv: list[str]) -> int:
    """Run the command; 2 when something is asked for that this machine does not have."""
    args = build_parser().parse_args(argv)
    try:
        set_threads(args.threads)
        measured, config = measure(args, "rserve calibrate " + shlex.join(argv))
        content = fitted(config, measured)
    except (UnknownModelError, ValueError) as error:
        print(f"rserve calibrate: {error}", file=sys.stderr)
        return 2
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(content, indent=1) + "\n")
    stage, encoder = worst_errors(
        CostModel(machine_of(config, load_hardware(str(args.output))), load_constants(str(args.output))),
        measured.stage,
        measured.encoder,
    )
    print(f"wrote {args.output}: farthest from its measurements: stage {stage:.1%}, encoder {encoder:.1%}")
    if max(stage, encoder) > FAR:
        print("that is far: measure again on a quiet machine, with a larger --spend", file=sys.stderr)
    dtype = ModelPlan.of(config).dtype
    print(f"use it: rserve simulate --hardware {args.output} --costs {args.output} --dtype {dtype} ...")
    return 0


def set_threads(wanted: int) -> None:
    """Of this process. Raises ValueError for more than there are cores."""
    cores = len(os.sched_getaffinity(0))
    if wanted > cores:
        raise ValueError(f"--threads {wanted}: this process may use {cores} cores, give at most that")
    torch.set_num_threads(wanted)


def measure(args: argparse.Namespace, command: str) -> tuple[Measured, RServeConfig]:
    """All measurements. Raises ValueError for a model without a vision tower or a missing device."""
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch sees no CUDA device here")
    folder = str(resolve_model(args.model))
    load_format = "auto" if list(Path(folder).glob("*.safetensors")) else "dummy"
    config = RServeConfig(model=ModelConfig(model=folder, dtype=args.dtype, load_format=load_format))
    threads = f"{args.threads} thread(s)" if device.type == "cpu" else torch.cuda.get_device_name(device)
    origin = f"`{command}`, {threads}, {hardware()}, commit {current_commit()}, {date.today()}"
    watch = Stopwatch(device, spend=args.spend)
    with tqdm(unit="point", disable=None) as bar:

        def tell(line: str) -> None:
            bar.update()
            bar.write(line, file=sys.stderr)

        stage = measure_stage(config, device, args.token_budget, watch, tell)
        encoder = measure_encoder(config, device, watch, tell)
    memory = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else free_cpu_bytes()
    transfers = measure_transfers(config, device, watch)
    request = measure_request(args.model)
    return Measured(origin, stage, encoder, transfers, request, float(memory)), config


def fitted(config: RServeConfig, measured: Measured) -> dict[str, object]:
    """The content of the file."""
    machine = machine_of(config, Hardware("measured", 1.0, 1.0, measured.memory, 1.0))
    vision = machine.model.vision
    if vision is None:
        raise ValueError(f"{config.model.model} has no vision tower")
    stage = fit_stage(stage_coefficients(machine)[0], measured.stage)
    return constant_set(measured, stage, fit_encoder(vision, measured.encoder))


def machine_of(config: RServeConfig, hardware: Hardware) -> Machine:
    """One stage and one encoder with this model in the number format that was measured."""
    plan = ModelPlan.of(config)
    return Machine(hardware, replace(plan.shape, dtype=plan.dtype), pp=1, encoders=1)


def build_parser() -> argparse.ArgumentParser:
    """All flags."""
    parser = Parser(
        prog="rserve calibrate",
        description="Measure a model's stage and encoder, transfers and request costs on this machine; write "
        "a constant set for the simulator.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--model", default="small", help="checkpoint folder or packaged model (default: %(default)s)"
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument(
        "--dtype", default="auto", choices=("auto", *DTYPE_BYTES), help="default: the checkpoint's"
    )
    parser.add_argument(
        "--threads", type=at_least(1), default=1, help="CPU threads of a rank (default: %(default)s)"
    )
    parser.add_argument(
        "--token-budget",
        type=at_least(64),
        default=1024,
        help="largest micro-batch to measure, 64 tokens or more (default: %(default)s)",
    )
    parser.add_argument(
        "--spend",
        type=at_least(0.01, float),
        default=0.6,
        help="seconds for each point, about (default: %(default)s)",
    )
    parser.add_argument("-o", "--output", type=Path, required=True, help="file to write")
    return parser
