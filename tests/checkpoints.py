"""Small checkpoints with random weights, in every layout that users have; transformers is their oracle."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

PROCESSOR_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "preprocessor_config.json",
)
TINY = Path(__file__).parent.parent / "gllm" / "models_data" / "tiny"
Grid = tuple[int, int, int]


@dataclass(frozen=True)
class RandomCheckpoint:
    """What to write. The configuration is that of the `tiny` model, with `text` and `vision` fields replaced.

    layout: `saved` as transformers 5 saves it (nested text_config, Hub tensor names); `hub` as on the Hub
    (flat configuration of transformers 4, Hub tensor names, several shards); `modules` with the names of
    transformers 5's modules (`model.language_model.*`, `model.visual.*`).
    """

    text: dict[str, Any] = field(default_factory=dict)
    vision: dict[str, Any] = field(default_factory=dict)
    multimodal: bool = True
    tied: bool = True
    layout: str = "saved"
    dtype: torch.dtype = torch.float32
    seed: int = 0

    def write(self, folder: Path) -> None:
        """Configuration, weights, tokenizer, chat template and image processor."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in (*PROCESSOR_FILES, "generation_config.json"):
            shutil.copy(TINY / name, folder / name)
        config = self.config()
        (folder / "config.json").write_text(json.dumps(config))
        model = _model_class(self.multimodal).from_pretrained(
            None, config=_read_config(folder), state_dict={}, dtype=self.dtype
        )
        randomise(model, self.seed)
        model.save_pretrained(folder, max_shard_size="400KB" if self.layout == "hub" else "1GB")
        if self.layout == "modules":
            state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
            if self.tied:
                del state["lm_head.weight"]
            save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        if self.layout == "hub":
            (folder / "config.json").write_text(
                json.dumps(_flat(config, str(self.dtype).removeprefix("torch.")))
            )

    def config(self) -> dict[str, Any]:
        """config.json as transformers 5 writes it."""
        config = json.loads((TINY / "config.json").read_text())
        config["text_config"].update(self.text, tie_word_embeddings=self.tied)
        config["vision_config"].update(self.vision, out_hidden_size=config["text_config"]["hidden_size"])
        config.update(tie_word_embeddings=self.tied, dtype=str(self.dtype).removeprefix("torch."))
        if self.multimodal:
            return config
        text = {name: value for name, value in config["text_config"].items() if name != "layer_types"}
        text["rope_parameters"] = {
            "rope_theta": text["rope_parameters"]["rope_theta"],
            "rope_type": "default",
        }
        return text | {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "dtype": config["dtype"],
        }


def make_random_checkpoint(folder: Path, **overrides: Any) -> Path:
    """Write a RandomCheckpoint with these fields into a folder, and return the folder."""
    RandomCheckpoint(**overrides).write(folder)
    return folder


@torch.no_grad()
def randomise(model: nn.Module, seed: int) -> None:
    """Weights that keep activations near one and logits apart; no bias is zero and no norm is one."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("bias"):
            parameter.copy_(0.3 * noise)
        elif parameter.dim() == 1:
            parameter.copy_(1 + 0.2 * noise)
        else:
            fan_in = parameter[0].numel()
            parameter.copy_(noise / (1.0 if "embed_tokens" in name else fan_in**0.5))


@dataclass(frozen=True)
class Oracle:
    """transformers' model of a checkpoint, fp32."""

    model: nn.Module

    def logits(
        self, token_ids: Sequence[int], pictures: tuple[Tensor, Sequence[Grid]] | None = None
    ) -> Tensor:
        """Logits [L, V] of a prompt; pictures: patches [N, patch_dim] and grids of its images."""
        return self.model(**self._inputs(token_ids, pictures)).logits[0]

    def greedy(
        self,
        token_ids: Sequence[int],
        num_tokens: int,
        pictures: tuple[Tensor, Sequence[Grid]] | None = None,
    ) -> list[tuple[int, float]]:
        """`num_tokens` greedy tokens, each with the gap between its logit and the next best one."""
        found: list[tuple[int, float]] = []
        for _ in range(num_tokens):
            logits = self.logits([*token_ids, *(token for token, _ in found)], pictures)[-1]
            best = logits.topk(2)
            found.append((int(best.indices[0]), float(best.values[0] - best.values[1])))
        return found

    def _inputs(
        self, token_ids: Sequence[int], pictures: tuple[Tensor, Sequence[Grid]] | None
    ) -> dict[str, Tensor]:
        ids = torch.tensor([list(token_ids)])
        if pictures is None:
            return {"input_ids": ids}
        return {
            "input_ids": ids,
            "pixel_values": pictures[0],
            "image_grid_thw": torch.tensor(pictures[1]),
            "mm_token_type_ids": (ids == self.model.config.image_token_id).int(),
        }


@lru_cache(maxsize=4)
def load_oracle(folder: Path) -> Oracle:
    """The oracle of a checkpoint folder."""
    config = _read_config(folder)
    multimodal = hasattr(config, "vision_config")
    model = _model_class(multimodal).from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    return Oracle(model.eval().requires_grad_(False))


def image_prompt(grids: Sequence[Grid], gaps: Sequence[Sequence[int]], image_token: int) -> Iterator[int]:
    """Text and placeholders in turn: gaps[0], image 0, gaps[1], ..., image n-1, gaps[n]."""
    for gap, (t, h, w) in zip(gaps, grids):
        yield from gap
        yield from [image_token] * (t * h * w // 4)
    yield from gaps[len(grids)]


def _read_config(folder: Path) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(folder)


def _model_class(multimodal: bool) -> Any:
    from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2ForCausalLM

    return Qwen2_5_VLForConditionalGeneration if multimodal else Qwen2ForCausalLM


def _flat(config: dict[str, Any], dtype: str) -> dict[str, Any]:
    """The same configuration as transformers 4 wrote it."""
    flat = {name: value for name, value in config.items() if name not in ("text_config", "dtype")}
    text = dict(config.get("text_config", config))
    rope = text.pop("rope_parameters")
    flat.update(
        text | {"model_type": config["model_type"], "torch_dtype": dtype, "rope_theta": rope["rope_theta"]}
    )
    flat.pop("rope_parameters", None)
    if "vision_config" in config:
        flat["rope_scaling"] = {"type": "mrope", "mrope_section": rope["mrope_section"]}
        flat["vision_config"] = dict(config["vision_config"]) | {"in_chans": 3, "spatial_patch_size": 14}
        flat["vision_config"].pop("in_channels")
        flat["vision_config"].pop("rope_parameters", None)
    return flat
