"""How much memory of a GPU the largest micro-batch takes."""

import torch

from gllm.core.batch import Chunk, NewSequence
from gllm.core.request import SamplingParams
from gllm.layers.kv_cache import KVCache
from gllm.layers.placement import Placement
from gllm.models.qwen2_layer import SampledRows
from gllm.models.registry import Model
from gllm.runtime.input_batch import InputBuilder
from gllm.runtime.kv_sizing import KvLayers, used_gpu_bytes
from gllm.runtime.loading import ModelPlan
from gllm.runtime.sequence_table import SequenceTable


@torch.inference_mode()
def peak_gpu_bytes(plan: ModelPlan, model: Model, place: Placement) -> tuple[int, int]:
    """Run one prefill of a whole token budget: (bytes in use at the worst moment, all bytes); no KV cache."""
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
        model.logits(hidden.expand(min(plan.config.scheduler.maxd, 256), -1).contiguous())
    torch.cuda.synchronize(place.device)
    used, total = used_gpu_bytes(place.device)
    return used - layers.bytes_per_block(page) * num_blocks, total
