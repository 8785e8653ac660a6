"""Requests to prompts: token ids and item positions first, pixels when somebody wants them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gllm.multimodal.chat import ChatEncoder, ChatOptions
from gllm.multimodal.content import ImageSource, check_text, parse_chat
from gllm.multimodal.errors import BadInput, excerpt, located
from gllm.multimodal.fetch import MediaFetcher
from gllm.multimodal.image_loader import ImageLoader
from gllm.multimodal.limits import MediaLimits
from gllm.multimodal.pool import MediaPool
from gllm.multimodal.prepared import PreparedImage, PreparedPrompt
from gllm.multimodal.preprocessor import load_preprocessor
from gllm.multimodal.prompt import expand
from gllm.multimodal.template import load_template
from gllm.multimodal.tokenizer import load_tokenizer


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A chat request as it came: unchecked values under the names of the HTTP API."""

    messages: Any
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: Any = None
    mm_processor_kwargs: Any = None
    tools: Any = None

    def options(self) -> ChatOptions:
        """What the chat template is told; raises BadInput for tools that are no list."""
        if self.tools is not None and not isinstance(self.tools, list):
            raise BadInput(f"must be a list, got {excerpt(self.tools)}", "tools")
        kwargs = {} if self.chat_template_kwargs is None else self.chat_template_kwargs
        return ChatOptions(self.add_generation_prompt, self.continue_final_message, kwargs, self.tools)


class PromptProcessor:
    """Prepares the prompts of one checkpoint, for the server and for offline use. Lives in one event loop.

    tokenizer, template (None without one) and preprocessor (None for text models) are the checkpoint's.
    """

    def __init__(self, model_dir: str | Path, limits: MediaLimits | None = None):
        self.limits = limits or MediaLimits()
        self.tokenizer = load_tokenizer(model_dir)
        self.template = load_template(model_dir)
        self.preprocessor = load_preprocessor(model_dir)
        config = json.loads((Path(model_dir) / "config.json").read_text(encoding="utf-8"))
        self._vocab_size = (config.get("text_config") or config).get("vocab_size", self.tokenizer.vocab_size)
        self._pool = MediaPool(self.limits.decode_workers)
        self._fetcher = MediaFetcher(self.limits, self._pool)
        self._placeholders: tuple[int, ...] = ()
        self._loader = self._encoder = None
        if self.preprocessor is not None:
            self._placeholders = _placeholder_ids(config)
            self._loader = ImageLoader(self.preprocessor, self.limits, self._fetcher, self._pool)
        if self.template is not None:
            self._encoder = ChatEncoder(self.tokenizer, self.template, self._placeholders)

    async def prepare_chat(self, chat: ChatPrompt) -> PreparedPrompt:
        """Check, render, fetch headers and expand. No image is decoded; sizes come from headers.

        Raises BadInput naming the part. Whoever gets the prompt calls its release() in the end.
        """
        parsed = parse_chat(chat.messages, self.limits.max_images)
        if self._encoder is None:
            raise BadInput("this model has no chat template; use /v1/completions", "messages")
        if self._loader is None:
            _refuse_images(parsed.images, chat.mm_processor_kwargs)
        ids = await self._pool.short(self._encoder.encode, parsed, chat.options())
        if self._loader is None:
            return PreparedPrompt(ids)
        return self._expanded(ids, await self._loader.open(parsed.images, chat.mm_processor_kwargs))

    async def prepare_completion(self, prompt: str | Sequence[int]) -> PreparedPrompt:
        """A bare prompt: text, in which control tokens stay text, or token ids, which may hold any but media.

        Raises BadInput for an empty prompt, ids outside the vocabulary and placeholders of media.
        """
        if isinstance(prompt, str):
            with located("prompt"):
                ids = await self._pool.short(self.tokenizer.encode_text, check_text(prompt, "prompt"))
        else:
            ids = await self._pool.short(self._checked_ids, prompt)
        if not ids:
            raise BadInput("is empty; send at least one token", "prompt")
        return PreparedPrompt(ids)

    async def close(self) -> None:
        """Close connections and threads."""
        await self._fetcher.close()
        self._pool.close()

    def _expanded(self, ids: list[int], images: tuple[PreparedImage, ...]) -> PreparedPrompt:
        if not images:
            return PreparedPrompt(ids)
        grids = [self.preprocessor.grid(*image.target) for image in images]
        expanded = expand(ids, grids, self._placeholders[0], self.preprocessor.merge_size)
        return PreparedPrompt(expanded.token_ids, expanded.items, images)

    def _checked_ids(self, prompt: Sequence[int]) -> list[int]:
        for index, token in enumerate(prompt):
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < self._vocab_size:
                message = f"is {excerpt(token)}, allowed: integers from 0 to {self._vocab_size - 1}"
                raise BadInput(message, f"prompt[{index}]")
            if token in self._placeholders:
                message = f"is {token}, the placeholder of an image; send images through chat messages"
                raise BadInput(message, f"prompt[{index}]")
        return list(prompt)


def _refuse_images(images: Sequence[ImageSource], kwargs: object) -> None:
    """What a text model cannot use is refused, not dropped."""
    part = images[0].part if images else "mm_processor_kwargs"
    if images or kwargs is not None:
        raise BadInput("this model takes text only; leave images out", part, code="unsupported_content")


def _placeholder_ids(config: dict[str, Any]) -> tuple[int, ...]:
    """The ids that stand for media in the prompt, the image's first."""
    if config.get("image_token_id") is None:
        raise ValueError("config.json has no image_token_id, though the checkpoint has an image processor")
    video = config.get("video_token_id")
    return (config["image_token_id"],) if video is None else (config["image_token_id"], video)
