"""One rank's share of the model: runs a micro-batch through its layers, and samples on the last stage."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from gllm.core.batch import BatchResult, MicroBatch
from gllm.layers.attention.metadata import AttentionMetadata
from gllm.layers.comm import TensorParallel
from gllm.layers.kv_cache import KVCache, LayerKV
from gllm.models.qwen2_layer import SampledRows, last_rows
from gllm.runtime.cuda_graphs import StageGraphs
from gllm.runtime.embedding_rows import EmbeddingRows
from gllm.runtime.input_batch import InputBatch, InputBuilder
from gllm.runtime.links import StageLink
from gllm.runtime.messages import StageBatch
from gllm.runtime.token_sampler import LateTokens, TokenSampler


class StageModel(Protocol):
    """The layers of one pipeline stage, and embedding or head where this stage has them.

    on_progress: called after each layer.
    """

    on_progress: Callable[[], None]

    def embed(self, ids: Tensor) -> Tensor:
        """ids int64 [T] -> [T, H]; all TP ranks call it together."""
        ...

    def forward(
        self,
        hidden: Tensor,
        positions: Tensor,
        kv: Sequence[LayerKV],
        meta: AttentionMetadata,
        rows: SampledRows | None = None,
    ) -> Tensor:
        """hidden [T, H] -> the next stage's [T, H]; on the last stage, the sampled rows, normalised."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """[n, H] -> [n, V]; all TP ranks call it together."""
        ...


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a rank stands: which end of the pipeline its stage is, its TP group, its neighbours."""

    is_first: bool
    is_last: bool
    tp: TensorParallel
    link: StageLink

    @property
    def samples(self) -> bool:
        """True on the one rank that samples: TP rank 0 of the last stage."""
        return self.is_last and self.tp.rank == 0


@dataclass(frozen=True, slots=True)
class LateResult:
    """A micro-batch that this rank has put into its device's queue; tokens: None where nothing is sampled."""

    batch_id: int
    tokens: LateTokens | None

    def is_done(self) -> bool:
        """Whether `get` would not wait for the device."""
        return self.tokens is None or self.tokens.is_done()

    def get(self) -> BatchResult:
        """Waits for the tokens."""
        return BatchResult(self.batch_id, self.tokens.get() if self.tokens is not None else ())


class ModelRunner:
    """Runs micro-batches in order: deltas, block copies, layers, and on the last stage the sampler."""

    def __init__(
        self,
        model: StageModel,
        kv: KVCache,
        place: RankPlace,
        inputs: InputBuilder,
        sampler: TokenSampler | None,
        graphs: StageGraphs | None = None,
    ) -> None:
        """sampler: given where `place.samples`. graphs: of this model and cache, on a GPU."""
        self.place = place
        self._model = model
        self._kv = kv
        self._inputs = inputs
        self._sampler = sampler
        self._device = inputs.device
        self._graphs = graphs
        self._rows = EmbeddingRows(inputs.device)

    def tell(self, on_progress: Callable[[], None]) -> None:
        """Have this called after each layer."""
        self._model.on_progress = on_progress

    @torch.inference_mode()
    def run_first(
        self, batch: MicroBatch, delta: StageBatch, after_input: Callable[[], None]
    ) -> BatchResult | None:
        """On rank 0: embed the micro-batch's tokens, put encoded rows in, and run this stage.

        after_input is called once the encoded rows are copied.
        """
        inputs = self._prepare(delta)
        (ids,) = self._inputs.to_device([np.array(batch.token_ids, dtype=np.int64)])
        hidden = self._model.embed(self.place.tp.broadcast(ids))
        self._rows.write(hidden, batch.embeds)
        after_input()
        if batch.embeds:
            hidden = self.place.tp.broadcast(hidden)
        late = self._run(delta, inputs, hidden)
        return late.get() if late is not None else None

    def run(self, delta: StageBatch) -> BatchResult | None:
        """On any other rank: the sampled tokens, on TP rank 0 of the last stage; None elsewhere."""
        late = self.start(delta)
        return late.get() if late is not None else None

    @torch.inference_mode()
    def start(self, delta: StageBatch) -> LateResult | None:
        """As `run`, without waiting for the device. The input is TP rank 0's, or the stage before sent it."""
        inputs = self._prepare(delta)
        if not self.place.is_first:
            return self._run(delta, inputs, self.place.link.receive())
        ids = torch.empty(inputs.num_tokens, dtype=torch.int64, device=self._device)
        hidden = self._model.embed(self.place.tp.broadcast(ids))
        if delta.has_embeds:
            hidden = self.place.tp.broadcast(hidden)
        return self._run(delta, inputs, hidden)

    def close(self) -> None:
        """Wait until the next stage has all that was sent to it. Graphs go: NCCL's groups wait for that."""
        self.place.link.close()
        if self._graphs is not None:
            torch.cuda.synchronize(self._device)
            self._graphs = None

    def _prepare(self, delta: StageBatch) -> InputBatch:
        self._inputs.table.apply(delta.finished, delta.new, delta.grown)
        if self._sampler is not None:
            self._sampler.apply(delta)
        self._kv.copy_blocks(delta.copies)
        return self._inputs.build(delta.chunks, delta.num_decodes)

    def _run(self, delta: StageBatch, inputs: InputBatch, hidden: Tensor) -> LateResult | None:
        replayed = self._graphs.run(hidden, inputs) if self._graphs is not None else None
        if not self.place.is_last:
            if replayed is not None:
                hidden = replayed.clone()  # the next replay writes where this one did
            else:
                hidden = self._model.forward(hidden, inputs.positions, self._kv.layers, inputs.meta)
            self.place.link.send(hidden)
            return None
        sampled = [choice.chunk_index for choice in delta.samples]
        if replayed is not None:
            hidden = replayed[last_rows(inputs.meta, sampled)]
        else:
            rows = SampledRows.of(inputs.meta, sampled)
            hidden = self._model.forward(hidden, inputs.positions, self._kv.layers, inputs.meta, rows)
        logits = self._model.logits(hidden) if delta.samples else None
        if self._sampler is None:
            return None
        tokens = self._sampler.start(logits, delta) if logits is not None else None
        return LateResult(delta.batch_id, tokens)
