"""What transformers answers: greedy tokens of its own model class for chat messages and PIL images.

    reference = reference_generate("gllm/models_data/tiny", messages, images, 16)
    reference.token_ids     # greedy tokens, the end token included when it came
    reference.logit_gaps    # best minus second-best logit before each of them

Uses the folder's tokenizer, chat template and image processor (PIL backend). Tests compare the engine with
it: where a gap is below 1e-3, a different token is a near-tie and not an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from PIL import Image
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)


@dataclass(frozen=True)
class Reference:
    """Greedy continuation of a prompt: token ids, best minus second-best logit at each, expanded prompt."""

    token_ids: tuple[int, ...]
    logit_gaps: tuple[float, ...]
    prompt_ids: tuple[int, ...]


@dataclass(frozen=True)
class Prompt:
    """Token ids with one pad for each merged patch, patches [P, 1176] and grids [N, 3], or None for both."""

    token_ids: tuple[int, ...]
    pixel_values: torch.Tensor | None
    image_grid_thw: torch.Tensor | None


def reference_generate(
    model_dir: str | Path,
    messages: Sequence[dict],
    images: Sequence[Image.Image],
    max_new_tokens: int = 16,
    dtype: torch.dtype = torch.float32,
) -> Reference:
    """Greedy answer to chat messages; images fill the messages' image parts in order.

    Raises ValueError when messages and images differ in number.
    """
    prompt = build_prompt(model_dir, messages, images)
    return reference_continue(model_dir, prompt, max_new_tokens, dtype)


def reference_continue(
    model_dir: str | Path, prompt: Prompt, max_new_tokens: int = 16, dtype: torch.dtype = torch.float32
) -> Reference:
    """Greedy continuation of a prompt by transformers' generate, on the CPU."""
    model = load_model(str(model_dir), dtype)
    ids = torch.tensor([prompt.token_ids])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if prompt.pixel_values is not None:
        inputs["pixel_values"] = prompt.pixel_values.to(dtype)
        inputs["image_grid_thw"] = prompt.image_grid_thw
        inputs["mm_token_type_ids"] = (ids == model.config.image_token_id).int()
    with torch.inference_mode():
        output = model.generate(
            **inputs,
            max_new_tokens=max_new_tokens,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
    best = [logits[0].float().topk(2).values for logits in output.logits]
    return Reference(
        token_ids=tuple(output.sequences[0, len(prompt.token_ids) :].tolist()),
        logit_gaps=tuple(float(first - second) for first, second in best),
        prompt_ids=prompt.token_ids,
    )


def build_prompt(model_dir: str | Path, messages: Sequence[dict], images: Sequence[Image.Image]) -> Prompt:
    """Render messages with the folder's chat template; an image's pad is repeated to its number of tokens."""
    tokenizer = load_tokenizer(str(model_dir))
    pad = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    ids = tokenizer(text, add_special_tokens=False).input_ids
    if ids.count(pad) != len(images):
        raise ValueError(f"{ids.count(pad)} image parts in the messages, {len(images)} images given")
    if not images:
        return Prompt(tuple(ids), None, None)
    processor = AutoImageProcessor.from_pretrained(model_dir, backend="pil")
    processed = processor(images=[image.convert("RGB") for image in images], return_tensors="pt")
    lengths = iter((processed["image_grid_thw"].prod(-1) // processor.merge_size**2).tolist())
    expanded = [token for item in ids for token in [item] * (next(lengths) if item == pad else 1)]
    return Prompt(tuple(expanded), processed["pixel_values"], processed["image_grid_thw"])


@lru_cache(maxsize=4)
def load_tokenizer(model_dir: str) -> PreTrainedTokenizerBase:
    """The folder's tokenizer, loaded once."""
    return AutoTokenizer.from_pretrained(model_dir)


@lru_cache(maxsize=4)
def load_model(model_dir: str, dtype: torch.dtype) -> PreTrainedModel:
    """The folder's model in eval mode, loaded once for each dtype; a text-only architecture loads as such."""
    config = AutoConfig.from_pretrained(model_dir)
    loader = AutoModelForImageTextToText if config.model_type == "qwen2_5_vl" else AutoModelForCausalLM
    return loader.from_pretrained(model_dir, dtype=dtype).eval()
