"""Models of a given shape with random weights, made on the device itself: a config.json is all they need."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel

from gllm.core.model_shape import ModelShape
from gllm.layers.weights import HasWeights
from gllm.models.checkpoint import hub_name


def config_json(shape: ModelShape) -> dict[str, object]:
    """What a checkpoint of this shape has in its config.json (transformers 5 layout)."""
    text, vision = shape.text, shape.vision
    assert vision is not None
    rope = {"mrope_section": list(text.mrope_section or ()), "rope_theta": text.rope_theta}
    return {
        "architectures": [shape.architecture],
        "model_type": "qwen2_5_vl",
        "dtype": shape.dtype,
        "image_token_id": shape.image_token_id,
        "video_token_id": shape.video_token_id,
        "vision_start_token_id": shape.vision_start_id,
        "vision_end_token_id": shape.vision_end_id,
        "tie_word_embeddings": text.tie_word_embeddings,
        "text_config": {
            "model_type": "qwen2_5_vl_text",
            "num_hidden_layers": text.num_layers,
            "hidden_size": text.hidden_size,
            "num_attention_heads": text.num_heads,
            "num_key_value_heads": text.num_kv_heads,
            "intermediate_size": text.intermediate_size,
            "vocab_size": text.vocab_size,
            "max_position_embeddings": text.max_position,
            "rms_norm_eps": text.rms_norm_eps,
            "rope_parameters": {**rope, "rope_type": "default", "type": "mrope"},
            "tie_word_embeddings": text.tie_word_embeddings,
            "hidden_act": "silu",
            "use_sliding_window": False,
            "eos_token_id": shape.eos_token_ids[0],
            "dtype": shape.dtype,
        },
        "vision_config": {
            "model_type": "qwen2_5_vl_vision",
            "depth": vision.depth,
            "hidden_size": vision.hidden_size,
            "num_heads": vision.num_heads,
            "intermediate_size": vision.intermediate_size,
            "patch_size": vision.patch_size,
            "temporal_patch_size": vision.temporal_patch_size,
            "spatial_merge_size": vision.spatial_merge_size,
            "window_size": vision.window_size,
            "fullatt_block_indexes": list(vision.fullatt_layers),
            "in_channels": vision.in_channels,
            "out_hidden_size": vision.out_hidden_size,
            "tokens_per_second": vision.tokens_per_second,
            "hidden_act": "silu",
        },
    }


def write_config(folder: Path, shape: ModelShape) -> Path:
    """A folder with config.json only."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_json(shape), indent=2))
    return folder


def transformers_model(folder: Path, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """transformers' model of the folder's shape, random, on the device."""
    config = AutoConfig.from_pretrained(folder)
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            model = AutoModelForImageTextToText.from_config(config, dtype=dtype)
    finally:
        torch.set_default_dtype(default)
    model = model.eval().to(device)
    randomise(model)
    return model


@torch.inference_mode()
def randomise(model: nn.Module) -> None:
    """Matrices with a deviation of 1 / sqrt(in), at most 0.05; norms near 1, biases near 0."""
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.normal_(0.0, min(parameter[0].numel() ** -0.5, 0.05))
        elif name.endswith("bias"):
            parameter.normal_(0.0, 0.02)
        else:
            parameter.normal_(1.0, 0.05)


class _Whole:
    """A tensor that is there, as the loader wants to index it."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def get_shape(self) -> list[int]:
        return list(self._tensor.shape)

    def __getitem__(self, index: tuple[slice, ...]) -> Tensor:
        return self._tensor[index]


@torch.inference_mode()
def copy_weights(source: nn.Module, target: HasWeights) -> None:
    """transformers' weights into a model of this project. KeyError where one is missing."""
    tensors: Mapping[str, Tensor] = {hub_name(name): tensor for name, tensor in source.state_dict().items()}
    for weight in target.weights():
        weight.load(_Whole(tensors[weight.name]))
