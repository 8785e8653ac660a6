"""A model of several stages and tensor-parallel ranks in one process: stages in turn, ranks as threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from gllm.layers.attention import create_backend
from gllm.layers.comm import SINGLE, ThreadTensorParallel
from gllm.layers.kv_cache import KVCache, KVCacheShape
from gllm.layers.placement import Placement
from gllm.models.loader import load_weights
from gllm.models.qwen2 import Qwen2Model
from gllm.models.qwen2_layer import SampledRows
from gllm.models.shape_file import read_shape
from gllm.models.stage import pipeline_stages
from tests.layers.paging import PagedSequences


class StagedModel:
    """The language model of a checkpoint folder, split into pp stages of tp ranks."""

    def __init__(self, folder: Path, pages: PagedSequences, pp: int = 1, tp: int = 1, **load: object) -> None:
        self.shape = read_shape(folder)
        self.pages = pages
        self._ranks = ThreadTensorParallel.create(tp) if tp > 1 else [SINGLE]
        self._pool = ThreadPoolExecutor(tp)
        self.stages = [
            [self._build(folder, stage, rank, load) for rank in self._ranks]
            for stage in pipeline_stages(self.shape.text.num_layers, pp)
        ]

    def _build(self, folder, stage, rank, load):
        place = Placement(tp=rank)
        model = Qwen2Model(self.shape.text, stage, place, create_backend("sdpa", place))
        load_weights(model, self.shape, folder, **load)
        kv_heads = max(self.shape.text.num_kv_heads // rank.size, 1)
        sizes = (len(stage.layers), self.pages.num_blocks, self.pages.block_size, kv_heads)
        return model, KVCache(KVCacheShape(*sizes, self.shape.text.head_dim), place)

    def run(self, tokens: dict[int, list[int]], select: bool = False) -> Tensor:
        """One micro-batch of each sequence's next tokens -> logits of all rows, or of each chunk's last."""
        chunks = sorted(tokens, key=lambda seq: len(tokens[seq]) != 1)
        starts = {seq: self.pages.lengths.get(seq, 0) for seq in chunks}
        meta = self.pages.step([(seq, len(tokens[seq])) for seq in chunks])
        ids = torch.tensor([token for seq in chunks for token in tokens[seq]])
        positions = torch.cat([torch.arange(starts[seq], starts[seq] + len(tokens[seq])) for seq in chunks])
        rows = SampledRows.of(meta, range(len(chunks))) if select else None
        hidden: list[Tensor] = []
        for stage in self.stages:
            step = (hidden or [ids] * len(self._ranks), positions, meta, rows)
            hidden = self._on_ranks(stage, partial(_forward, step))
        return self._on_ranks(self.stages[-1], lambda rank, model, _: model.logits(hidden[rank]))[0]

    def _on_ranks(self, stage: list, work: Callable) -> list[Tensor]:
        futures = [self._pool.submit(work, rank, *parts) for rank, parts in enumerate(stage)]
        return [future.result(timeout=60) for future in futures]


def _forward(step: tuple, rank: int, model: Qwen2Model, kv: KVCache) -> Tensor:
    incoming, positions, meta, rows = step
    first, last = model.stage.is_first, model.stage.is_last
    hidden = model.embed(incoming[rank]) if first else incoming[rank]
    return model(hidden, positions, kv.layers, meta, rows if last else None)
