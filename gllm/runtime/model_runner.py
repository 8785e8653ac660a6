"""One rank's share of the model: runs a micro-batch through its layers, and samples on the last stage."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gllm.core.batch import BatchResult, EmbedRows, MicroBatch
from gllm.layers.attention.metadata import AttentionMetadata
from gllm.layers.comm import TensorParallel
from gllm.layers.kv_cache import KVCache, LayerKV
from gllm.runtime.input_batch import InputBatch, InputBuilder
from gllm.runtime.links import StageLink
from gllm.runtime.messages import StageBatch
from gllm.runtime.token_sampler import TokenSampler


class StageModel(Protocol):
    """The layers of one pipeline stage, and embedding or head where this stage has them."""

    def embed(self, ids: Tensor) -> Tensor:
        """ids int64 [T] -> [T, H]; all TP ranks call it together."""
        ...

    def forward(
        self,
        hidden: Tensor,
        residual: Tensor | None,
        positions: Tensor,
        kv_caches: Sequence[LayerKV],
        meta: AttentionMetadata,
    ) -> tuple[Tensor, Tensor]:
        """Hidden states and residual [T, H] behind this stage's layers."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """[n, H] -> [n, V]; all TP ranks call it together."""
        ...


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a rank stands: its stage of num_stages, and its tensor-parallel group."""

    stage: int
    num_stages: int
    tp: TensorParallel

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.num_stages - 1


class ModelRunner:
    """Runs micro-batches in order: deltas, block copies, layers, and on the last stage the sampler."""

    def __init__(
        self, model: StageModel, kv: KVCache, place: RankPlace, inputs: InputBuilder, link: StageLink
    ) -> None:
        self.place = place
        self._model = model
        self._kv = kv
        self._inputs = inputs
        self._link = link
        self._device = inputs.device
        samples = place.is_last and place.tp.rank == 0
        self._sampler = TokenSampler(model.vocab_size, self._device) if samples else None

    @torch.inference_mode()
    def run_first(
        self, batch: MicroBatch, delta: StageBatch, after_input: Callable[[], None]
    ) -> BatchResult | None:
        """On rank 0: embed the micro-batch's tokens, put encoded rows in, and run this stage.

        after_input is called once the encoded rows are copied.
        """
        inputs = self._prepare(delta)
        ids = torch.tensor(batch.token_ids, dtype=torch.int64).to(self._device, non_blocking=True)
        hidden = self._model.embed(self.place.tp.broadcast(ids))
        _merge(hidden, batch.embeds)
        after_input()
        if batch.embeds:
            hidden = self.place.tp.broadcast(hidden)
        return self._run(delta, inputs, hidden, None)

    @torch.inference_mode()
    def run(self, delta: StageBatch) -> BatchResult | None:
        """On any other rank: take the input from TP rank 0 or from the stage before, and run this stage.

        The sampled tokens, on TP rank 0 of the last stage; None elsewhere.
        """
        inputs = self._prepare(delta)
        if not self.place.is_first:
            hidden, residual = self._link.receive()
            return self._run(delta, inputs, hidden, residual)
        ids = torch.empty(inputs.num_tokens, dtype=torch.int64, device=self._device)
        hidden = self._model.embed(self.place.tp.broadcast(ids))
        if delta.has_embeds:
            hidden = self.place.tp.broadcast(hidden)
        return self._run(delta, inputs, hidden, None)

    def _prepare(self, delta: StageBatch) -> InputBatch:
        self._inputs.table.apply(delta.finished, delta.new, delta.grown)
        if self._sampler is not None:
            self._sampler.apply(delta)
        self._kv.copy_blocks(delta.copies)
        return self._inputs.build(delta.chunks, delta.num_decodes, delta.samples)

    def _run(
        self, delta: StageBatch, inputs: InputBatch, hidden: Tensor, residual: Tensor | None
    ) -> BatchResult | None:
        hidden, residual = self._model.forward(
            hidden, residual, inputs.positions, self._kv.layers, inputs.meta
        )
        if not self.place.is_last:
            self._link.send(hidden, residual)
            return None
        tokens = ()
        if delta.samples:
            logits = self._model.logits(hidden[inputs.sample_rows])
            if self._sampler is not None:
                tokens = self._sampler.sample(logits, delta)
        return BatchResult(delta.batch_id, tokens) if self._sampler is not None else None


def _merge(hidden: Tensor, embeds: Sequence[EmbedRows]) -> None:
    """Overwrite the rows of placeholders in hidden [T, H] with what the encoder made of their items."""
    for rows in embeds:
        hidden[rows.row : rows.row + rows.length] = rows.payload[rows.start : rows.start + rows.length]
