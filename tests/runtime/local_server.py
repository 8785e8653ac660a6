"""Requests with images on a small random model, what transformers answers, and our engine in one process."""

import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from gllm.config import CacheConfig, EngineConfig, ModelConfig, ParallelConfig
from gllm.core.core_config import CoreConfig
from gllm.core.engine_core import EngineCore
from gllm.core.request import MMItem, Request, SamplingParams
from gllm.core.stage_encoder import StageEncoder
from gllm.models.patchify import Patchifier
from gllm.runtime.loading import ModelPlan
from gllm.runtime.local_engine import LocalEngine, StageZeroFeed
from gllm.runtime.local_executor import LocalExecutor, load_local
from tests.checkpoints import load_oracle

Pixels = NDArray[np.uint8]
TIE = 1e-3


@dataclass(frozen=True)
class Asked:
    """A request and the pixels of its items."""

    request: Request
    pixels: list[Pixels]


def ask(
    plan: ModelPlan, name: str, text: list[int], sizes: list[tuple[int, int]], sampling: SamplingParams
) -> Asked:
    """text[0], an image, text[1], ...: one token between images, the rest of the text at the end.

    sizes: (rows, columns) of each image in merged cells of 28 x 28 pixels.
    """
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    image_token = plan.shape.image_token_id
    assert image_token is not None
    ids, items, pixels = [text[0]], [], []
    for index, (rows, columns) in enumerate(sizes):
        items.append(MMItem(len(ids), rows * columns, (1, 2 * rows, 2 * columns)))
        ids += [image_token] * (rows * columns) + [text[(index + 1) % len(text)]]
        pixels.append(rng.integers(0, 256, (28 * rows, 28 * columns, 3), dtype=np.uint8))
    ids += text[1:]
    return Asked(Request(name, tuple(ids), tuple(items), sampling), pixels)


def make_plan(folder: Path, pp: int = 1, tp: int = 1, page_size: int = 16) -> ModelPlan:
    """The plan of a deployment on CPUs in fp32."""
    return ModelPlan.of(
        EngineConfig(
            model=ModelConfig(model=str(folder), dtype="float32"),
            parallel=ParallelConfig(pp=pp, tp=tp, device="cpu"),
            cache=CacheConfig(page_size=page_size),
        )
    )


def make_engine(executor: LocalExecutor, core_config: CoreConfig, delay: int | None = None) -> LocalEngine:
    """A core of scheme gllm over loaded ranks."""
    core = EngineCore(core_config, stage_encoder=StageEncoder(core_config.encode_tokens))
    digest = (lambda pixels: pixels.tobytes()) if core_config.prefix_caching else None
    return LocalEngine(core, executor, StageZeroFeed(core, executor.pixels, digest), delay)


def load(plan: ModelPlan, num_blocks: int) -> LocalExecutor:
    """All ranks of the plan."""
    return load_local(plan, num_blocks)


def reference(folder: Path, plan: ModelPlan, asked: Asked) -> list[tuple[int, float]]:
    """Greedy tokens of transformers, each with its lead over the next best."""
    pictures = None
    if asked.pixels:
        assert plan.shape.vision is not None
        patches, grids = Patchifier(plan.shape.vision)([torch.from_numpy(p) for p in asked.pixels])
        pictures = (patches, grids)
    oracle = load_oracle(folder)
    return oracle.greedy(asked.request.token_ids, asked.request.sampling.max_tokens, pictures)


def differs(ours: list[int], reference: list[tuple[int, float]]) -> str | None:
    """Where our tokens leave the reference's although its lead was clear; None where they do not."""
    for index, (token, (expected, lead)) in enumerate(zip(ours, reference)):
        if token != expected:
            return f"token {index} is {token}, not {expected} (lead {lead:.2g})" if lead > TIE else None
    return None if len(ours) == len(reference) else f"{len(ours)} tokens, not {len(reference)}"
