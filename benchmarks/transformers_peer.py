"""transformers' own `generate` as a peer: a process that answers batches of prompts, one JSON line each.

    {"messages": [[…], …], "output_len": 128}  →  {"ttfts": […], "latencies": […], "prompt_tokens": […]}

Several prompts are one padded batch: the most that `generate` offers for requests that come together. Times
are seconds from the line's arrival, preprocessing included. Weights are random, of the folder's shape.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel, StoppingCriteria

from evaluation.tiny_vlm.reference import Prompt, build_prompt, load_tokenizer


class TokenClock(StoppingCriteria):
    """Notes when each token of a batch was there; never stops anything."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


class TransformersPeer:
    """The model, loaded once."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self.folder = folder
        self.dtype = dtype
        config = AutoConfig.from_pretrained(folder)
        self.model: PreTrainedModel = AutoModelForImageTextToText.from_config(config, dtype=dtype).eval()
        self.pad_id = load_tokenizer(str(folder)).pad_token_id

    @torch.inference_mode()
    def answer(self, messages: Sequence[list[dict[str, Any]]], output_len: int) -> dict[str, Any]:
        """Greedy tokens for each conversation, exactly output_len of them."""
        start = time.perf_counter()
        prompts = [build_prompt(self.folder, *_split(conversation)) for conversation in messages]
        clock = TokenClock()
        self.model.generate(
            **self._inputs(prompts),
            min_new_tokens=output_len,
            max_new_tokens=output_len,
            do_sample=False,
            stopping_criteria=[clock],
            pad_token_id=self.pad_id,
        )
        return {
            "ttfts": [clock.times[0] - start] * len(prompts),
            "latencies": [clock.times[-1] - start] * len(prompts),
            "prompt_tokens": [len(prompt.token_ids) for prompt in prompts],
        }

    def _inputs(self, prompts: Sequence[Prompt]) -> dict[str, torch.Tensor]:
        """Padded on the left, so that every row ends with its last token."""
        longest = max(len(prompt.token_ids) for prompt in prompts)
        ids = torch.full((len(prompts), longest), self.pad_id)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt.token_ids) :] = torch.tensor(prompt.token_ids)
            mask[row, longest - len(prompt.token_ids) :] = 1
        inputs = {"input_ids": ids, "attention_mask": mask}
        pixels = [p.pixel_values for p in prompts if p.pixel_values is not None]
        grids = [p.image_grid_thw for p in prompts if p.image_grid_thw is not None]
        if pixels:
            inputs["pixel_values"] = torch.cat(pixels).to(self.dtype)
            inputs["image_grid_thw"] = torch.cat(grids)
            inputs["mm_token_type_ids"] = (ids == self.model.config.image_token_id).int()
        return inputs


def _split(conversation: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[Image.Image]]:
    """Messages with image parts in the template's form, and the images of their data URLs."""
    images = []
    messages = []
    for message in conversation:
        content = message["content"]
        if type(content) is list:
            parts = []
            for part in content:
                if part["type"] == "image_url":
                    data = base64.b64decode(part["image_url"]["url"].partition(",")[2])
                    images.append(Image.open(io.BytesIO(data)))
                    part = {"type": "image"}
                parts.append(part)
            content = parts
        messages.append({**message, "content": content})
    return messages, images


def main() -> int:
    """Serve standard input until it ends; the first line on standard output says that the model is loaded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    peer = TransformersPeer(args.model, {"float32": torch.float32, "bfloat16": torch.bfloat16}[args.dtype])
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(peer.answer(request["messages"], request["output_len"])), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
