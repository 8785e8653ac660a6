"""transformers' vision tower with random weights, and ours with the same ones."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel

from gllm.core.model_shape import VisionShape
from gllm.layers.placement import Placement
from gllm.models.qwen2_5_vit import VisionTower

SHAPE = VisionShape(
    depth=4,
    hidden_size=80,
    num_heads=5,
    intermediate_size=100,
    patch_size=14,
    temporal_patch_size=2,
    spatial_merge_size=2,
    window_size=112,
    fullatt_layers=(1, 3),
    in_channels=3,
    out_hidden_size=48,
    tokens_per_second=2,
)


def oracle(shape: VisionShape = SHAPE, seed: int = 0) -> Qwen2_5_VisionTransformerPretrainedModel:
    """The reference tower, fp32; biases are not zero and norms not one, so that leaving one out is seen."""
    config = Qwen2_5_VLVisionConfig(
        depth=shape.depth,
        hidden_size=shape.hidden_size,
        num_heads=shape.num_heads,
        intermediate_size=shape.intermediate_size,
        patch_size=shape.patch_size,
        temporal_patch_size=shape.temporal_patch_size,
        spatial_merge_size=shape.spatial_merge_size,
        window_size=shape.window_size,
        fullatt_block_indexes=list(shape.fullatt_layers),
        out_hidden_size=shape.out_hidden_size,
        initializer_range=0.15,
    )
    torch.manual_seed(seed)
    model = Qwen2_5_VisionTransformerPretrainedModel(config).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.normal_(mean=0.0 if name.endswith("bias") else 1.0, std=0.3)
    return model


def ours(reference: torch.nn.Module, place: Placement | None = None, shape: VisionShape = SHAPE):
    """Our tower (this rank's part of it) with the reference's weights."""
    tower = VisionTower(shape, place or Placement())
    state = {f"visual.{name}": value for name, value in reference.state_dict().items()}
    for weight in tower.weights():
        full = state.pop(weight.name)
        assert tuple(full.shape) == weight.shape
        weight.load(full)
    return tower, state


def random_patches(grids: list[tuple[int, int, int]], shape: VisionShape = SHAPE, seed: int = 1) -> Tensor:
    """Patches [N, patch_dim] of items with these grids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sum(t * h * w for t, h, w in grids), shape.patch_dim, generator=generator)
