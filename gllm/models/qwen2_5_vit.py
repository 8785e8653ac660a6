"""The vision tower of Qwen2.5-VL: patches in, embeddings for the language model out.

Qwen2.5-VL technical report, section 2.1.1. Checkpoint names are those of the Hub layout (`visual.*`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gllm.core.model_shape import VisionShape
from gllm.layers.activation import silu_mul
from gllm.layers.attention.registry import VisionAttention as Attend
from gllm.layers.gemm import linear
from gllm.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    RowParallelLinear,
    StackedColumnParallelLinear,
)
from gllm.layers.norm import RMSNorm
from gllm.layers.placement import Placement
from gllm.layers.rotary import rotate_in_place
from gllm.layers.vision_attention import Segments, vision_attention
from gllm.layers.weights import CheckpointWeight, whole
from gllm.models.stage import no_news
from gllm.models.window import Grid, VisionLayout, VisionLayouts

NORM_EPS = 1e-6  # not in the configuration file


class PatchEmbedding(nn.Module):
    """A convolution whose stride is its kernel: one matrix product over flattened patches."""

    def __init__(self, shape: VisionShape, place: Placement) -> None:
        super().__init__()
        self.weight = place.parameter(shape.hidden_size, shape.patch_dim)
        side = shape.patch_size
        self._kernel = (shape.hidden_size, shape.in_channels, shape.temporal_patch_size, side, side)

    def forward(self, patches: Tensor) -> Tensor:
        """[N, C * frames * P * P] -> [N, E]."""
        return linear(patches.to(self.weight.dtype), self.weight, None)

    def weights(self, prefix: str) -> Iterator[CheckpointWeight]:
        """`prefix.proj.weight` [E, C, frames, P, P]."""
        yield whole(f"{prefix}.proj.weight", self.weight, self._kernel)


class HeadRowParallelLinear(RowParallelLinear):
    """A row-parallel layer over attention heads, unevenly where need be: 5 over 2 ranks are 2 and 3."""

    def __init__(self, shape: VisionShape, place: Placement) -> None:
        super().__init__(shape.hidden_size, shape.hidden_size, place)
        heads = place.tp.shard(shape.num_heads)
        self.part = range(heads.start * shape.head_dim, heads.stop * shape.head_dim)
        self.weight = place.parameter(shape.hidden_size, len(self.part))


class VisionAttention(nn.Module):
    """Self-attention with a rotary embedding over rows and columns."""

    def __init__(self, shape: VisionShape, place: Placement, attend: Attend) -> None:
        super().__init__()
        heads = place.tp.shard(shape.num_heads)
        part = range(heads.start * shape.head_dim, heads.stop * shape.head_dim)
        self.num_heads = len(heads)
        self.head_dim = shape.head_dim
        self._attend = attend
        self.qkv = StackedColumnParallelLinear(
            shape.hidden_size, (shape.hidden_size,) * 3, (part,) * 3, place
        )
        self.qkv.add_bias(place)
        self.proj = HeadRowParallelLinear(shape, place)

    def forward(self, x: Tensor, segments: Segments, cos: Tensor, sin: Tensor) -> Tensor:
        """x [N, E] -> [N, E]; cos, sin fp32 [N, D/2]."""
        heads = self.qkv(x).view(len(x), 3 * self.num_heads, self.head_dim)
        rotate_in_place(heads[:, : 2 * self.num_heads], cos, sin)  # queries and keys at once
        q, k, v = heads.chunk(3, dim=1)
        return self.proj(self._attend(q, k, v, segments).flatten(1))

    def weights(self, prefix: str) -> Iterator[CheckpointWeight]:
        """`prefix.qkv` and `prefix.proj`."""
        yield from self.qkv.fused_weights(f"{prefix}.qkv")
        yield from self.proj.weights(f"{prefix}.proj")


class VisionMLP(nn.Module):
    """down(silu(gate(x)) * up(x)), with biases."""

    def __init__(self, shape: VisionShape, place: Placement) -> None:
        super().__init__()
        self.gate_up = MergedColumnParallelLinear(
            shape.hidden_size, shape.intermediate_size, place, bias=True
        )
        self.down = RowParallelLinear(shape.intermediate_size, shape.hidden_size, place)

    def forward(self, x: Tensor) -> Tensor:
        """[N, E] -> [N, E]."""
        return self.down(silu_mul(self.gate_up(x)))

    def weights(self, prefix: str) -> Iterator[CheckpointWeight]:
        """`prefix.gate_proj`, `prefix.up_proj` and `prefix.down_proj`."""
        yield from self.gate_up.weights((f"{prefix}.gate_proj", f"{prefix}.up_proj"))
        yield from self.down.weights(f"{prefix}.down_proj")


class VisionBlock(nn.Module):
    """Attention and MLP, each after a norm."""

    def __init__(self, shape: VisionShape, place: Placement, attend: Attend) -> None:
        super().__init__()
        self.norm1 = RMSNorm(shape.hidden_size, NORM_EPS, place)
        self.norm2 = RMSNorm(shape.hidden_size, NORM_EPS, place)
        self.attn = VisionAttention(shape, place, attend)
        self.mlp = VisionMLP(shape, place)

    def forward(
        self, x: Tensor, residual: Tensor | None, segments: Segments, layout: VisionLayout
    ) -> tuple[Tensor, Tensor]:
        """x [N, E] and what is still to be added to it -> the same two; the first block has no residual."""
        if residual is None:
            normed, residual = self.norm1(x), x
        else:
            normed, residual = self.norm1(x, residual)
        x = self.attn(normed, segments, layout.cos, layout.sin)
        normed, residual = self.norm2(x, residual)
        return self.mlp(normed), residual

    def weights(self, prefix: str) -> Iterator[CheckpointWeight]:
        """All of the block's."""
        yield from self.norm1.weights(f"{prefix}.norm1")
        yield from self.norm2.weights(f"{prefix}.norm2")
        yield from self.attn.weights(f"{prefix}.attn")
        yield from self.mlp.weights(f"{prefix}.mlp")


class PatchMerger(nn.Module):
    """The patches of a merged cell, side by side, to one embedding of the language model."""

    def __init__(self, shape: VisionShape, place: Placement) -> None:
        super().__init__()
        self.width = shape.hidden_size * shape.merge_unit
        self.ln_q = RMSNorm(shape.hidden_size, NORM_EPS, place)
        self.up = ColumnParallelLinear(self.width, self.width, place)
        self.down = RowParallelLinear(self.width, shape.out_hidden_size, place)

    def forward(self, x: Tensor, residual: Tensor | None) -> Tensor:
        """[N, E] twice -> [N / U, out]."""
        normed = self.ln_q(x) if residual is None else self.ln_q(x, residual)[0]
        return self.down(F.gelu(self.up(normed.view(-1, self.width))))

    def weights(self, prefix: str) -> Iterator[CheckpointWeight]:
        """`prefix.ln_q`, `prefix.mlp.0` and `prefix.mlp.2`."""
        yield from self.ln_q.weights(f"{prefix}.ln_q")
        yield from self.up.weights(f"{prefix}.mlp.0")
        yield from self.down.weights(f"{prefix}.mlp.2")


class VisionTower(nn.Module):
    """The tower; its heads and MLPs are divided over the tensor-parallel ranks, which must call it together.

    `attend` computes attention within segments. on_progress: called after each block. Raises ValueError where
    there are more ranks than heads.
    """

    def __init__(self, shape: VisionShape, place: Placement, attend: Attend = vision_attention) -> None:
        super().__init__()
        if place.tp.size > shape.num_heads:
            raise ValueError(f"tensor-parallel size {place.tp.size} is above {shape.num_heads} vision heads")
        self.shape = shape
        self.on_progress: Callable[[], None] = no_news
        self.patch_embed = PatchEmbedding(shape, place)
        self.blocks = nn.ModuleList(VisionBlock(shape, place, attend) for _ in range(shape.depth))
        self.merger = PatchMerger(shape, place)
        self.layouts = VisionLayouts(shape, place.device)

    @torch.inference_mode()
    def forward(self, patches: Tensor, grids: Sequence[Grid]) -> Tensor:
        """patches [N, patch_dim] of items with these grids (t, h, w) -> embeddings [N / U, out_hidden_size].

        Items do not see each other: those of one item are the same whatever comes with it.
        """
        layout = self.layouts.layout(grids)
        x: Tensor = self.patch_embed(patches)
        x = x.view(-1, self.shape.merge_unit, x.shape[-1])[layout.order].flatten(0, 1)  # window order
        residual: Tensor | None = None
        for index, block in enumerate(self.blocks):
            segments = layout.frames if index in self.shape.fullatt_layers else layout.windows
            x, residual = block(x, residual, segments, layout)
            self.on_progress()
        return self.merger(x, residual)[layout.inverse]

    def weights(self) -> Iterator[CheckpointWeight]:
        """Everything under `visual.`."""
        yield from self.patch_embed.weights("visual.patch_embed")
        for index, block in enumerate(self.blocks):
            yield from block.weights(f"visual.blocks.{index}")
        yield from self.merger.weights("visual.merger")
