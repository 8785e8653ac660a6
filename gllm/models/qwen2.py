"""The Qwen2 / Qwen2.5 language model, one pipeline stage of it: embedding, decoder layers, norm and head."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from gllm.core.model_shape import TextShape
from gllm.layers.attention import AttentionBackend, AttentionMetadata
from gllm.layers.embedding import VocabParallelEmbedding
from gllm.layers.kv_cache import LayerKV
from gllm.layers.norm import RMSNorm
from gllm.layers.placement import Placement
from gllm.layers.rotary import RotaryTable
from gllm.layers.weights import CheckpointWeight
from gllm.models.qwen2_layer import DecoderLayer, LayerStep, SampledRows
from gllm.models.stage import StageSpec, no_news

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


class Qwen2Model(nn.Module):
    """One stage: embedding (first), its decoder layers, final norm and head (last).

    on_progress: called after each layer.
    """

    def __init__(
        self, shape: TextShape, stage: StageSpec, place: Placement, backend: AttentionBackend
    ) -> None:
        super().__init__()
        shape.check_tensor_parallel(place.tp.size)
        self.stage = stage
        self.on_progress: Callable[[], None] = no_news
        self.rotary = RotaryTable(shape.head_dim, shape.rope_theta, shape.mrope_section, place.device)
        self.layers = nn.ModuleList(DecoderLayer(shape, place, backend) for _ in stage.layers)
        self.embedding: VocabParallelEmbedding | None = None
        self.head: VocabParallelEmbedding | None = None
        self.norm: RMSNorm | None = None
        self._head_name = EMBEDDING if shape.tie_word_embeddings else HEAD
        if stage.is_first:
            self.embedding = VocabParallelEmbedding(shape.vocab_size, shape.hidden_size, place)
        if stage.is_last:
            self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps, place)
            if stage.is_first and shape.tie_word_embeddings:
                self.head = self.embedding
            else:
                self.head = VocabParallelEmbedding(shape.vocab_size, shape.hidden_size, place)

    @torch.inference_mode()
    def embed(self, input_ids: Tensor) -> Tensor:
        """First stage: token ids [T] -> embeddings [T, H]."""
        assert self.embedding is not None, "only the first stage embeds"
        return self.embedding(input_ids)

    @torch.inference_mode()
    def forward(
        self,
        hidden: Tensor,
        positions: Tensor,
        kv: Sequence[LayerKV],
        meta: AttentionMetadata,
        rows: SampledRows | None = None,
    ) -> Tensor:
        """hidden [T, H], positions [3, T] or [T], this stage's caches -> what the next stage needs [T, H].

        The last stage returns normalised rows for `logits`: all T, or only `rows` in their order. `hidden` is
        not changed.
        """
        rotary = self.rotary.cos_sin(positions)
        added, residual = hidden, None
        for layer, layer_kv in zip(self.layers, kv, strict=True):
            selected = rows if self.stage.is_last and layer is self.layers[-1] else None
            if selected is not None and not selected.meta.num_chunks:
                layer.store(added, residual, LayerStep(rotary, layer_kv, meta, None))
                return hidden[:0]
            added, residual = layer(added, residual, LayerStep(rotary, layer_kv, meta, selected))
            self.on_progress()
        if self.norm is None:
            return added.add_(residual)
        return self.norm(added, residual)[0]

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Last stage: rows [n, H] of `forward`'s result -> logits [n, vocab] on every rank of the stage."""
        assert self.head is not None, "only the last stage has the head"
        return self.head.logits(hidden)

    def weights(self) -> Iterator[CheckpointWeight]:
        """This stage's tensors; a tied head on another stage than the embedding reads the embedding's."""
        if self.embedding is not None:
            yield from self.embedding.weights(EMBEDDING)
        for index, layer in zip(self.stage.layers, self.layers, strict=True):
            yield from layer.weights(f"model.layers.{index}")
        if self.norm is not None:
            yield from self.norm.weights("model.norm")
        if self.head is not None and self.head is not self.embedding:
            yield from self.head.weights(self._head_name)
