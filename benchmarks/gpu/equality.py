"""Greedy tokens of every scheme against transformers, on the small trained model, in one process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForImageTextToText, PreTrainedModel

from benchmarks.gpu.report import Report
from gllm.config import CacheConfig, EngineConfig, ModelConfig, ParallelConfig
from gllm.core.core_config import CoreConfig
from gllm.core.request import MMItem, Request, SamplingParams
from gllm.layers.comm import SINGLE
from gllm.models.names import resolve_model
from gllm.models.patchify import Patchifier
from gllm.runtime.loading import ModelPlan, load_encoder
from gllm.runtime.local_engine import LocalEngine, StageZeroFeed
from gllm.runtime.local_executor import LocalExecutor, load_local
from rserve.core.arena import Arena
from rserve.core.dispatcher import Dispatcher
from rserve.core.epd_core import SCHEMES, Scheme, make_core
from rserve.runtime.local_feed import EncoderFeed

TIE = 1e-3  # of the two best logits: below this, another token is no error
BLOCKS = 256
ROWS = 1024
Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Asked:
    """A request, the pixels of its items, and what transformers answers: tokens and their leads."""

    request: Request
    pixels: list[Pixels]
    answer: list[tuple[int, float]]


def check_equality(report: Report, device: torch.device, graphs: bool = True) -> None:
    """Every scheme, with micro-batches of 64 and of 2,048 tokens; pp is 2, both stages in this process."""
    folder = resolve_model("tiny")
    plan = ModelPlan.of(
        EngineConfig(
            model=ModelConfig(model=str(folder), dtype="float32"),
            parallel=ParallelConfig(pp=2, device=device.type, cuda_graphs=graphs),
            cache=CacheConfig(page_size=16),
        )
    )
    asked = _requests(plan, folder, device)
    executor = load_local(plan, BLOCKS, device=device)
    for name in SCHEMES:
        for budget in (64, 2048):
            engine = _engine(plan, executor, name, budget, device)
            for each in asked:
                engine.add(each.request, each.pixels)
            outputs = engine.run()
            wrong = [
                each.request.request_id
                for each in asked
                if _differs(outputs[each.request.request_id].token_ids(), each.answer)
            ]
            report.check("equality", f"{name}, budget {budget}: as transformers", not wrong, ", ".join(wrong))
    executor.close()


def _engine(
    plan: ModelPlan, executor: LocalExecutor, name: str, budget: int, device: torch.device
) -> LocalEngine:
    config = CoreConfig(num_blocks=BLOCKS, block_size=16, num_stages=2, max_in_flight=3, maxp=budget)
    scheme = Scheme(name)
    core = make_core(scheme, config)
    if not scheme.has_encoder_ranks:
        return LocalEngine(core, executor, StageZeroFeed(core, executor.pixels))
    dispatcher = Dispatcher(Arena(ROWS), scheme.batch_tokens(16))
    dispatcher.on_encoder_ready(0)
    arena = torch.full((ROWS, plan.shape.text.hidden_size), float("nan"))
    encoder = load_encoder(plan, plan.placement(device, SINGLE))
    return LocalEngine(core, executor, EncoderFeed(core, dispatcher, encoder, arena))


def _requests(plan: ModelPlan, folder: Path, device: torch.device) -> list[Asked]:
    """Text alone, one large image, three images; 24 tokens of answer each."""
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval().to(device)
    sizes = {"text": [], "large image": [(12, 10)], "three images": [(2, 3), (4, 4), (3, 2)]}
    return [_ask(plan, model, name, grid, device) for name, grid in sizes.items()]


def _ask(
    plan: ModelPlan, model: PreTrainedModel, name: str, sizes: list[tuple[int, int]], device: torch.device
) -> Asked:
    rng = np.random.default_rng(len(name))
    start, end = plan.shape.vision_start_id, plan.shape.vision_end_id
    image = plan.shape.image_token_id
    assert start is not None and end is not None and image is not None
    ids, items, pixels = [5, 6, 7, 8, 9], [], []
    for rows, columns in sizes:
        ids.append(start)
        items.append(MMItem(len(ids), rows * columns, (1, 2 * rows, 2 * columns)))
        ids += [image] * (rows * columns) + [end]
        pixels.append(rng.integers(0, 256, (28 * rows, 28 * columns, 3), dtype=np.uint8))
    ids += [10, 11, 12]
    sampling = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
    request = Request(name, tuple(ids), tuple(items), sampling)
    return Asked(request, pixels, _answer(plan, model, request, pixels, device))


@torch.inference_mode()
def _answer(
    plan: ModelPlan, model: PreTrainedModel, request: Request, pixels: list[Pixels], device: torch.device
) -> list[tuple[int, float]]:
    ids = torch.tensor([request.token_ids], device=device)
    inputs: dict[str, torch.Tensor] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if pixels and plan.shape.vision is not None:
        patches, grids = Patchifier(plan.shape.vision)([torch.from_numpy(picture) for picture in pixels])
        inputs["pixel_values"] = patches.to(device)
        inputs["image_grid_thw"] = torch.tensor(grids, device=device)
        inputs["mm_token_type_ids"] = (ids == plan.shape.image_token_id).int()
    count = request.sampling.max_tokens
    out = model.generate(
        **inputs, max_new_tokens=count, min_new_tokens=count, do_sample=False, output_logits=True,
        return_dict_in_generate=True, eos_token_id=None,
    )  # fmt: skip
    leads = [(best[0] - best[1]).item() for best in (row[0].float().topk(2).values for row in out.logits)]
    return list(zip(out.sequences[0, ids.shape[1] :].tolist(), leads))


def _differs(ours: list[int], answer: list[tuple[int, float]]) -> bool:
    """Whether our tokens leave the answer where its lead was clear; behind a near-tie nothing is compared."""
    for token, (expected, lead) in zip(ours, answer):
        if token != expected:
            return lead > TIE
    return len(ours) != len(answer)
