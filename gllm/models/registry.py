"""Models by the architecture that their config.json names."""

from __future__ import annotations

import torch

from gllm.core.model_shape import ModelShape
from gllm.layers.attention import AttentionBackend, create_backend
from gllm.layers.attention.registry import create_vision_attention
from gllm.layers.placement import Placement
from gllm.models.qwen2 import Qwen2Model
from gllm.models.qwen2_5_vit import VisionTower
from gllm.models.qwen2_5_vl import Qwen2_5_VLModel
from gllm.models.stage import StageSpec

Model = Qwen2Model | Qwen2_5_VLModel


def create_model(
    shape: ModelShape,
    stage: StageSpec,
    place: Placement,
    backend: AttentionBackend,
    with_vision: bool = True,
) -> Model:
    """One rank's part of a model, with uninitialised weights; the vision tower only where it is asked for."""
    if shape.vision is None:
        return Qwen2Model(shape.text, stage, place, backend)
    return Qwen2_5_VLModel(shape, stage, place, backend, with_vision)


def create_vision(shape: ModelShape, place: Placement, attention: str = "auto") -> VisionTower:
    """The vision tower alone, for an encoder rank; attention: name of the backend.

    Raises ValueError for a text-only model, and for a backend that cannot work here.
    """
    if shape.vision is None:
        raise ValueError(f"{shape.architecture} has no vision tower")
    return VisionTower(shape.vision, place, create_vision_attention(attention, place))


def checkpoint_tensors(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Name (Hub layout) and shape of every tensor that a checkpoint of this model holds."""
    place = Placement(torch.float32, torch.device("meta"))
    stage = StageSpec.whole(shape.text.num_layers)
    model = create_model(shape, stage, place, create_backend("sdpa", place))
    return {weight.name: weight.shape for weight in model.weights()}
