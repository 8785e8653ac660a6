"""How much memory of a GPU the largest steps take."""

from math import isqrt

import numpy as np
import torch

from gllm.core.batch import Chunk, NewSequence
from gllm.core.core_config import ENCODE_TOKENS
from gllm.core.request import SamplingParams
from gllm.layers.kv_cache import KVCache
from gllm.layers.placement import Placement
from gllm.layers.sampler import ROWS_AT_ONCE, SamplingRow, sample_rows
from gllm.models.qwen2_layer import SampledRows
from gllm.models.registry import Model
from gllm.runtime.input_batch import InputBuilder
from gllm.runtime.item_encoder import ItemEncoder
from gllm.runtime.kv_sizing import KvLayers, used_gpu_bytes
from gllm.runtime.loading import ModelPlan
from gllm.runtime.sequence_table import SequenceTable

MOST_WORK = SamplingParams(temperature=1.0, top_p=0.99, logprobs=20)
"""Of equal logits this nucleus is nearly the whole vocabulary, which is then sorted."""


@torch.inference_mode()
def peak_gpu_bytes(
    plan: ModelPlan, model: Model, place: Placement, encoder: ItemEncoder | None = None
) -> tuple[int, int]:
    """Run the largest steps: (bytes in use at the worst moment, all bytes); no KV cache.

    A prefill of a whole token budget, sampling of as many rows as decodes may be together, and, with the
    encoder of stage 0, its largest batch. All TP ranks of a stage call this together.
    """
    page = plan.config.cache.page_size
    tokens = min(plan.config.scheduler.maxp, plan.max_model_len)
    layers = KvLayers.of(plan.shape.text, len(model.stage.layers), place.tp, plan.dtype)
    num_blocks = -(-tokens // page)
    kv = KVCache(layers.shape(num_blocks, page), place)
    table = SequenceTable()
    blocks = tuple(range(num_blocks))
    table.apply([], [NewSequence(0, "profile", 0, tokens, tokens, (), SamplingParams(), blocks)], [])
    batch = InputBuilder(table, page, place.device).build([Chunk(0, 0, tokens)], 0)
    hidden = torch.zeros(tokens, plan.shape.text.hidden_size, dtype=place.dtype, device=place.device)
    torch.cuda.reset_peak_memory_stats(place.device)
    rows = SampledRows.of(batch.meta, [0]) if model.stage.is_last else None
    hidden = model.forward(hidden, batch.positions, kv.layers, batch.meta, rows)
    if model.stage.is_last:
        logits = model.logits(hidden.expand(plan.config.scheduler.maxd, -1).contiguous())
        sample_block(logits, place)
    if encoder is not None:
        encode_largest(plan, place, encoder)
    torch.cuda.synchronize(place.device)
    used, total = used_gpu_bytes(place.device)
    return used - layers.bytes_per_block(page) * num_blocks, total


def sample_block(logits: torch.Tensor, place: Placement) -> None:
    """Sample as many rows of logits [n, V] as are sampled at once, in the way that takes most memory."""
    block = logits[:ROWS_AT_ONCE]
    sample_rows(block, [SamplingRow(MOST_WORK, row, 0) for row in range(len(block))], place.device)


def encode_largest(
    plan: ModelPlan, place: Placement, encoder: ItemEncoder, num_tokens: int = ENCODE_TOKENS
) -> None:
    """One square item of as many embeddings as stage 0 encodes together."""
    vision = plan.shape.vision
    if vision is None:
        return
    side = isqrt(num_tokens) * vision.spatial_merge_size
    grid = (1, side, side)
    if place.tp.rank == 0:
        encoder.encode([np.zeros((*(n * vision.patch_size for n in grid[1:]), 3), dtype=np.uint8)], [grid])
    else:
        encoder.follow([grid], [1])
