"""The decoder layer of Qwen2: grouped-query attention with (M-)RoPE and biased q, k, v; a gated SiLU MLP."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

from gllm.core.model_shape import TextShape
from gllm.layers.activation import silu_mul
from gllm.layers.attention import AttentionBackend, AttentionMetadata
from gllm.layers.kv_cache import LayerKV
from gllm.layers.linear import HeadSplit, MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from gllm.layers.norm import RMSNorm
from gllm.layers.placement import Placement
from gllm.layers.rotary import apply_rotary
from gllm.layers.weights import CheckpointWeight


@dataclass(frozen=True, slots=True)
class SampledRows:
    """The rows of a micro-batch from which a token is sampled: the last ones of some of its chunks.

    The last layer needs keys and values of all rows, and everything else of these rows only.
    """

    index: Tensor  # int64 [n]
    meta: AttentionMetadata

    @classmethod
    def of(cls, meta: AttentionMetadata, chunks: Sequence[int]) -> SampledRows:
        """The last rows of these chunks, in this order."""
        return cls(last_rows(meta, chunks), meta.last_tokens(chunks))


def last_rows(meta: AttentionMetadata, chunks: Sequence[int]) -> Tensor:
    """int64 [n]: where in the micro-batch the last rows of these chunks are."""
    ends = list(accumulate(meta.query_lens))
    index = torch.tensor([ends[chunk] - 1 for chunk in chunks], dtype=torch.int64)
    return index.to(meta.seq_kv.device, non_blocking=True)


@dataclass(frozen=True, slots=True)
class LayerStep:
    """What one layer needs beside its input; cos and sin are [T, D / 2]."""

    rotary: tuple[Tensor, Tensor]
    kv: LayerKV
    meta: AttentionMetadata
    rows: SampledRows | None


class Attention(nn.Module):
    """Projections around the attention backend."""

    def __init__(self, shape: TextShape, place: Placement, backend: AttentionBackend) -> None:
        super().__init__()
        heads = HeadSplit(shape.num_heads, shape.num_kv_heads, shape.head_dim)
        self.backend = backend
        self.qkv = QKVParallelLinear(shape.hidden_size, heads, place, bias=shape.attention_bias)
        self.out = RowParallelLinear(shape.num_heads * shape.head_dim, shape.hidden_size, place, bias=False)

    def project(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """x [T, hidden] -> q [T, H, D] and k [T, KV, D], turned to their positions, and v [T, KV, D]."""
        q, k, v = self.qkv.project(x)
        apply_rotary(q, k, *rotary)
        return q, k, v

    def attend(self, q: Tensor, kv: LayerKV, meta: AttentionMetadata) -> Tensor:
        """q [T, H, D] -> [T, hidden]."""
        return self.out(self.backend.forward(q, kv, meta).flatten(1))

    def weights(self, prefix: str) -> Iterator[CheckpointWeight]:
        """q_proj, k_proj, v_proj, o_proj."""
        yield from self.qkv.weights([f"{prefix}.{name}_proj" for name in "qkv"])
        yield from self.out.weights(f"{prefix}.o_proj")


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, hidden_size: int, intermediate_size: int, place: Placement) -> None:
        super().__init__()
        self.gate_up = MergedColumnParallelLinear(hidden_size, intermediate_size, place)
        self.down = RowParallelLinear(intermediate_size, hidden_size, place, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[T, hidden] -> [T, hidden]."""
        return self.down(silu_mul(self.gate_up(x)))

    def weights(self, prefix: str) -> Iterator[CheckpointWeight]:
        """gate_proj, up_proj, down_proj."""
        yield from self.gate_up.weights([f"{prefix}.gate_proj", f"{prefix}.up_proj"])
        yield from self.down.weights(f"{prefix}.down_proj")


class DecoderLayer(nn.Module):
    """One layer. Between layers travel what the last one added and the residual it is to be added to."""

    def __init__(self, shape: TextShape, place: Placement, backend: AttentionBackend) -> None:
        super().__init__()
        self.input_norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps, place)
        self.attention = Attention(shape, place, backend)
        self.post_norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps, place)
        self.mlp = MLP(shape.hidden_size, shape.intermediate_size, place)

    def forward(self, added: Tensor, residual: Tensor | None, step: LayerStep) -> tuple[Tensor, Tensor]:
        """added, residual [T, hidden] -> the same after this layer: all rows, or those of `step.rows`."""
        q, residual = self.store(added, residual, step)
        meta = step.meta
        if step.rows is not None:
            q, residual, meta = q[step.rows.index], residual[step.rows.index], step.rows.meta
        x, residual = self.post_norm(self.attention.attend(q, step.kv, meta), residual)
        return self.mlp(x), residual

    def store(self, added: Tensor, residual: Tensor | None, step: LayerStep) -> tuple[Tensor, Tensor]:
        """Write keys and values of all rows to the cache -> q [T, H, D] and the residual [T, hidden]."""
        if residual is None:
            x, residual = self.input_norm(added), added
        else:
            x, residual = self.input_norm(added, residual)
        q, k, v = self.attention.project(x, step.rotary)
        self.attention.backend.write_kv(k, v, step.kv, step.meta)
        return q, residual

    def weights(self, prefix: str) -> Iterator[CheckpointWeight]:
        """The norms, `self_attn` and `mlp`."""
        yield from self.input_norm.weights(f"{prefix}.input_layernorm")
        yield from self.attention.weights(f"{prefix}.self_attn")
        yield from self.post_norm.weights(f"{prefix}.post_attention_layernorm")
        yield from self.mlp.weights(f"{prefix}.mlp")
