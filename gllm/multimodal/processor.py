"""Requests to prompts: token ids and item positions first, pixels when somebody wants them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gllm.core.request import MMItem
from gllm.multimodal.chat import ChatEncoder, ChatOptions
from gllm.multimodal.content import ImageSource, check_text, parse_chat, pixel_option
from gllm.multimodal.decode import decode
from gllm.multimodal.errors import BadInput, excerpt, located
from gllm.multimodal.fetch import FetchedMedia, MediaFetcher
from gllm.multimodal.hashes import item_digest
from gllm.multimodal.header import ImageHeader
from gllm.multimodal.limits import MediaLimits
from gllm.multimodal.pool import MediaPool
from gllm.multimodal.preprocessor import ImagePreprocessor, load_preprocessor
from gllm.multimodal.prompt import expand
from gllm.multimodal.resize import PixelBounds
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


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """One item: where it came from, its header, and the (height, width) it will be resized to."""

    source: ImageSource
    media: FetchedMedia
    header: ImageHeader
    target: tuple[int, int]


@dataclass(slots=True)
class PreparedPrompt:
    """A prompt ready for the engine, and the source of its pixels until release().

    token_ids: expanded. items: offsets, token counts and grids in prompt order.
    """

    token_ids: list[int]
    items: tuple[MMItem, ...] = ()
    images: tuple[PreparedImage, ...] = ()
    pool: MediaPool | None = None
    preprocessor: ImagePreprocessor = field(default_factory=ImagePreprocessor)

    async def pixels(self, item: int) -> np.ndarray:
        """The item's resized pixels, uint8 [height, width, 3], RGB; decoded anew by each call.

        Raises BadInput, naming the part, if the image cannot be fetched or decoded.
        """
        image = self.images[item]
        with located(image.source.part):
            data = await image.media.read()
            return await self.pool.decode(
                decode, data, image.header, image.target, self.preprocessor.resample
            )

    async def digest(self, item: int) -> bytes:
        """16 bytes that tell the item's pixels from others'; needs the whole file. Raises as pixels()."""
        image = self.images[item]
        with located(image.source.part):
            data = await image.media.read()
            return await self.pool.short(
                item_digest, data, image.target, image.header.orientation, self.preprocessor.resample
            )

    async def release(self) -> None:
        """Stop fetching and forget all compressed bytes; pixels() and digest() fail from now on."""
        await asyncio.gather(*(image.media.release() for image in self.images))


class PromptProcessor:
    """Prepares the prompts of one checkpoint, for the server and for offline use. Lives in one event loop."""

    def __init__(self, model_dir: str | Path, limits: MediaLimits | None = None):
        self.limits = limits or MediaLimits()
        self.tokenizer = load_tokenizer(model_dir)
        self.template = load_template(model_dir)
        self.preprocessor = load_preprocessor(model_dir)
        config = json.loads((Path(model_dir) / "config.json").read_text(encoding="utf-8"))
        self._vocab_size = (config.get("text_config") or config).get("vocab_size", self.tokenizer.vocab_size)
        self._placeholders = _placeholder_ids(config) if self.preprocessor else ()
        self._pool = MediaPool(self.limits.decode_workers)
        self._fetcher = MediaFetcher(self.limits, self._pool)
        self._encoder = (
            ChatEncoder(self.tokenizer, self.template, self._placeholders) if self.template else None
        )

    async def prepare_chat(self, chat: ChatPrompt) -> PreparedPrompt:
        """Check, fetch headers, render and expand. No image is decoded; sizes come from headers.

        Raises BadInput naming the part. Whoever gets the prompt calls its release() in the end.
        """
        parsed = parse_chat(chat.messages, self.limits.max_images)
        bounds = self._request_bounds(chat.mm_processor_kwargs)
        if self._encoder is None:
            raise BadInput("this model has no chat template; use /v1/completions", "messages")
        if parsed.images and self.preprocessor is None:
            message = "this model takes text only; leave images out"
            raise BadInput(message, parsed.images[0].part, code="unsupported_content")
        options = _chat_options(chat)
        ids = await self._pool.short(self._encoder.encode, parsed, options)
        if not parsed.images:
            return PreparedPrompt(ids)
        images = await self._open_images(parsed.images, bounds)
        grids = [self.preprocessor.grid(*image.target) for image in images]
        expanded = expand(ids, grids, self._placeholders[0], self.preprocessor.merge_size)
        return PreparedPrompt(expanded.token_ids, expanded.items, images, self._pool, self.preprocessor)

    async def prepare_completion(self, prompt: str | Sequence[int]) -> PreparedPrompt:
        """A bare prompt: text, in which control tokens stay text, or token ids, which may hold any but media.

        Raises BadInput for an empty prompt, ids outside the vocabulary and placeholders of media.
        """
        if isinstance(prompt, str):
            with located("prompt"):
                ids = await self._pool.short(self.tokenizer.encode_text, check_text(prompt, "prompt"))
        else:
            ids = self._checked_ids(prompt)
        if not ids:
            raise BadInput("is empty; send at least one token", "prompt")
        return PreparedPrompt(ids)

    async def close(self) -> None:
        """Close connections and threads."""
        await self._fetcher.close()
        self._pool.close()

    async def _open_images(
        self, sources: Sequence[ImageSource], bounds: PixelBounds | None
    ) -> tuple[PreparedImage, ...]:
        """All headers at once; equal URLs are fetched once. If one fails, all fetches end."""
        media = {url: self._fetcher.open(url) for url in dict.fromkeys(source.url for source in sources)}
        tasks = [
            asyncio.ensure_future(self._open_image(source, media[source.url], bounds)) for source in sources
        ]
        try:
            return tuple(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(entry.release() for entry in media.values()))
            raise

    async def _open_image(
        self, source: ImageSource, media: FetchedMedia, bounds: PixelBounds | None
    ) -> PreparedImage:
        with located(source.part):
            own = self._bounds(source.min_pixels, source.max_pixels, source.detail, bounds)
            header = await media.header()
            target = self.preprocessor.target_size(header.height, header.width, own)
            return PreparedImage(source, media, header, target)

    def _request_bounds(self, kwargs: Any) -> PixelBounds | None:
        """The bounds that mm_processor_kwargs sets for all images of a request."""
        if kwargs is None:
            return None
        with located("mm_processor_kwargs"):
            if not isinstance(kwargs, dict):
                raise BadInput("must be an object")
            flat = dict(kwargs)
            size = flat.pop("size", None)
            if size is not None:
                flat = {**_size_fields(size), **flat}
            unknown = [key for key in flat if key not in ("min_pixels", "max_pixels")]
            if unknown:
                raise BadInput(
                    f"unknown field {excerpt(unknown[0])}; known: min_pixels, max_pixels, size",
                    code="unknown_field",
                )
            if self.preprocessor is None:
                raise BadInput("this model takes text only; leave it out", code="unsupported_content")
            return self._bounds(flat.get("min_pixels"), flat.get("max_pixels"), None, None)

    def _bounds(
        self, min_pixels: object, max_pixels: object, detail: str | None, base: PixelBounds | None
    ) -> PixelBounds:
        factor, limit = self.preprocessor.factor, self.limits.max_image_pixels
        low = pixel_option(min_pixels, "min_pixels", factor, limit)
        high = pixel_option(max_pixels, "max_pixels", factor, limit)
        return (base or self.preprocessor.bounds).with_detail(detail).override(low, high)

    def _checked_ids(self, prompt: Sequence[int]) -> list[int]:
        for index, token in enumerate(prompt):
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < self._vocab_size:
                message = f"is {excerpt(token)}, allowed: integers from 0 to {self._vocab_size - 1}"
                raise BadInput(message, f"prompt[{index}]")
            if token in self._placeholders:
                message = f"is {token}, the placeholder of an image; send images through chat messages"
                raise BadInput(message, f"prompt[{index}]")
        return list(prompt)


def _size_fields(size: object) -> dict[str, Any]:
    names = {"shortest_edge": "min_pixels", "longest_edge": "max_pixels"}
    if not isinstance(size, dict) or any(key not in names for key in size):
        raise BadInput("size must be an object with shortest_edge and longest_edge, areas in pixels")
    return {names[key]: value for key, value in size.items()}


def _chat_options(chat: ChatPrompt) -> ChatOptions:
    if chat.tools is not None and not isinstance(chat.tools, list):
        raise BadInput("must be a list", "tools")
    kwargs = {} if chat.chat_template_kwargs is None else chat.chat_template_kwargs
    return ChatOptions(chat.add_generation_prompt, chat.continue_final_message, kwargs, chat.tools)


def _placeholder_ids(config: dict[str, Any]) -> tuple[int, ...]:
    """The ids that stand for media in the prompt, the image's first."""
    if config.get("image_token_id") is None:
        raise ValueError("config.json has no image_token_id, though the checkpoint has an image processor")
    video = config.get("video_token_id")
    return (config["image_token_id"],) if video is None else (config["image_token_id"], video)
