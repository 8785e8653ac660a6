"""This project's engine in one process with random weights: throughput, MFU, agreement with transformers."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

from benchmarks.gpu.report import Report
from benchmarks.gpu.shapes import copy_weights, randomise, transformers_model, write_config
from benchmarks.gpu.timing import Ceilings, seconds, wall_seconds
from benchmarks.roofline import Step, serial_bound_s, step_operations, total
from gllm.config import CacheConfig, EngineConfig, ModelConfig, ParallelConfig
from gllm.core.batch import Chunk, NewSequence
from gllm.core.core_config import CoreConfig
from gllm.core.model_shape import ModelShape
from gllm.core.request import Request, SamplingParams
from gllm.layers.attention import create_backend
from gllm.layers.comm import SINGLE
from gllm.layers.kv_cache import KVCache
from gllm.layers.placement import Placement
from gllm.models.qwen2_layer import SampledRows
from gllm.models.registry import Model, create_model, create_vision
from gllm.runtime.input_batch import InputBuilder
from gllm.runtime.links import NoLink
from gllm.runtime.loading import ModelPlan, make_runner, rank_place
from gllm.runtime.local_engine import LocalEngine, StageZeroFeed
from gllm.runtime.local_executor import LocalExecutor
from gllm.runtime.sequence_table import SequenceTable
from rserve.core.epd_core import Scheme, make_core
from rserve.sim.hardware import Hardware
from rserve.sim.vision_cost import item_flops

PAGE = 64
BUDGET = 2048
GRID_1080P = (1, 78, 138)  # 1092 x 1932 pixels: 2,691 embeddings


@dataclass(frozen=True)
class Scene:
    """Where it runs, and what the device can do: measured ceilings and the data sheet's peaks."""

    device: torch.device
    ceilings: Ceilings
    sheet: Hardware | None


@dataclass(frozen=True)
class Loaded:
    """A model of this project on the device, and an executor of it."""

    plan: ModelPlan
    model: Model
    executor: LocalExecutor
    num_blocks: int

    def engine(self) -> LocalEngine:
        """A new engine, of scheme gllm, over it."""
        config = CoreConfig(
            num_blocks=self.num_blocks, block_size=PAGE, num_stages=1, max_in_flight=2, maxp=BUDGET
        )
        core = make_core(Scheme("gllm"), config)
        return LocalEngine(core, self.executor, StageZeroFeed(core, self.executor.pixels))


def plan_of(shape: ModelShape, folder: Path, device: torch.device) -> ModelPlan:
    """One stage in bf16."""
    return ModelPlan.of(
        EngineConfig(
            model=ModelConfig(model=str(write_config(folder, shape)), dtype="bfloat16", max_model_len=8192),
            parallel=ParallelConfig(device=device.type),
            cache=CacheConfig(page_size=PAGE),
        )
    )


def load(plan: ModelPlan, device: torch.device, num_blocks: int, weights: nn.Module | None = None) -> Loaded:
    """Weights are random, or those of a transformers model."""
    place = plan.placement(device, SINGLE)
    backend = create_backend("auto", place, PAGE)
    model = create_model(plan.shape, plan.stages[0], place, backend, with_vision=False)
    if weights is None:
        randomise(model)
    else:
        copy_weights(weights, model)
    runner = make_runner(plan, model, rank_place(plan, 0, SINGLE, NoLink()), place, num_blocks)
    return Loaded(plan, model, LocalExecutor([[runner]]), num_blocks)


def _requests(num: int, prompt: int, output: int, vocab: int) -> list[Request]:
    generator = torch.Generator().manual_seed(prompt)
    sampling = SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True)
    ids = torch.randint(0, vocab - 1000, (num, prompt), generator=generator).tolist()
    return [Request(f"{prompt}-{output}-{i}", tuple(row), (), sampling) for i, row in enumerate(ids)]


def run_seconds(loaded: Loaded, num: int, prompt: int, output: int) -> float:
    """Wall time to serve `num` requests that come at once."""
    engine = loaded.engine()
    for request in _requests(num, prompt, output, loaded.plan.shape.text.vocab_size):
        engine.add(request)
    return wall_seconds(engine.run)


def measure_language(report: Report, scene: Scene, loaded: Loaded, name: str) -> None:
    """Prefill of 2,048-token chunks; decode of 1 and 64 sequences at about 1,024 tokens."""
    text = loaded.plan.shape.text
    run_seconds(loaded, 2, BUDGET, 2)
    prefill = min(run_seconds(loaded, 8, BUDGET, 1) for _ in range(2)) / 8
    step = Step("prefill", ((0, BUDGET),))
    flops = total("prefill", step_operations(text, step)).flops
    report.measure(name, "prefill, 8 x 2048", BUDGET / prefill, "tokens/s")
    report.measure(
        name, "prefill MFU of the measured matmul", 100 * flops / prefill / scene.ceilings.matmul, "%"
    )
    if scene.sheet is not None:
        report.goal(name, "prefill MFU of the data sheet", flops / prefill / scene.sheet.peak_flops, 0.55)
    for batch in (1, 64):
        short, long = (min(run_seconds(loaded, batch, 960, n) for _ in range(2)) for n in (2, 130))
        spent = (long - short) / 128
        report.measure(name, f"decode of {batch}", batch / spent, "tokens/s", f"{spent * 1e3:.2f} ms a step")
        if scene.sheet is not None:
            decode = Step("decode", ((1024, 1),) * batch)
            bound = serial_bound_s(step_operations(text, decode), scene.sheet)
            report.goal(name, f"decode of {batch}: of the bandwidth bound", bound / spent, 0.7)


def measure_encoder(report: Report, scene: Scene, shape: ModelShape, name: str) -> None:
    """One 1080p picture through the vision tower."""
    assert shape.vision is not None
    place = Placement(torch.bfloat16, scene.device, SINGLE)
    tower = create_vision(shape, place)
    randomise(tower)
    count = GRID_1080P[1] * GRID_1080P[2]
    patches = torch.randn(count, shape.vision.patch_dim, dtype=torch.bfloat16, device=scene.device)
    spent = seconds(lambda: tower(patches, [GRID_1080P]), repeats=10)
    flops = item_flops(shape.vision, count // shape.vision.merge_unit).total
    report.measure(name, "encode one 1080p picture", spent * 1e3, "ms")
    report.measure(
        name, "encoder MFU of the measured matmul", 100 * flops / spent / scene.ceilings.matmul, "%"
    )
    if scene.sheet is not None:
        report.goal(name, "encoder MFU of the data sheet", flops / spent / scene.sheet.peak_flops, 0.4)


@torch.inference_mode()
def measure_transformers(report: Report, scene: Scene, model: PreTrainedModel, name: str) -> None:
    """The same prefill, and decodes of one sequence, by transformers."""
    ids = torch.randint(0, 100_000, (1, BUDGET), device=scene.device)
    prefill = seconds(lambda: model(input_ids=ids, logits_to_keep=1), repeats=5)
    report.measure(name, "transformers: prefill 2048", BUDGET / prefill, "tokens/s")

    def generate(count: int) -> float:
        return wall_seconds(
            lambda: model.generate(
                input_ids=ids[:, :960], attention_mask=torch.ones_like(ids[:, :960]), do_sample=False,
                max_new_tokens=count, min_new_tokens=count, pad_token_id=0,
            )
        )  # fmt: skip

    generate(2)
    spent = (generate(34) - generate(2)) / 32
    report.measure(name, "transformers: decode of 1", 1 / spent, "tokens/s", f"{spent * 1e3:.2f} ms a step")


@torch.inference_mode()
def check_agreement(report: Report, device: torch.device, shape: ModelShape) -> None:
    """bf16 against transformers' bf16, both against its fp32: our error may be twice transformers' own."""
    with tempfile.TemporaryDirectory() as folder:
        plan = plan_of(shape, Path(folder), device)
        oracle = transformers_model(Path(folder), torch.bfloat16, device)
        loaded = load(plan, device, num_blocks=64, weights=oracle)
        ids = torch.randint(0, 100_000, (1, 300), device=device)
        theirs = oracle(input_ids=ids).logits[0].float()
        exact = oracle.float()(input_ids=ids).logits[0]
    ours = _logits(loaded, ids[0].tolist())
    error, allowed = ((logits - exact[-1]).norm() / exact[-1].norm() for logits in (ours, theirs[-1]))
    note = f"transformers' own error {allowed:.3g}"
    report.check("3b bf16", f"relative error of logits {error:.3g}", bool(error < 2 * allowed + 1e-3), note)


def _logits(loaded: Loaded, ids: Sequence[int]) -> torch.Tensor:
    """Logits [vocab] behind the last of these tokens, in fp32; on a cache of their own."""
    plan, model = loaded.plan, loaded.model
    device = model.rotary.inv_freq.device
    place = plan.placement(device, SINGLE)
    blocks = tuple(range(-(-len(ids) // PAGE)))
    kv = KVCache(plan.kv_layers(0, SINGLE).shape(len(blocks), PAGE), place)
    table = SequenceTable()
    table.apply([], [NewSequence(0, "logits", 0, len(ids), len(ids), (), SamplingParams(), blocks)], [])
    batch = InputBuilder(table, PAGE, device).build([Chunk(0, 0, len(ids))], 0)
    hidden = model.embed(torch.tensor(ids, device=device))
    rows = SampledRows.of(batch.meta, [0])
    return model.logits(model.forward(hidden, batch.positions, kv.layers, batch.meta, rows))[0].float()


def check_steady_memory(report: Report, loaded: Loaded, name: str) -> None:
    """Decoding 64 more tokens takes no more device memory, and asks the driver for none."""
    run_seconds(loaded, 8, 200, 64)
    before = torch.cuda.memory_stats()["num_device_alloc"], torch.cuda.memory_reserved()
    run_seconds(loaded, 8, 200, 64)
    after = torch.cuda.memory_stats()["num_device_alloc"], torch.cuda.memory_reserved()
    report.check(name, "no device allocation in steady state", before == after, f"{before} -> {after}")


def free_memory() -> None:
    """Give back what deleted models held."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
