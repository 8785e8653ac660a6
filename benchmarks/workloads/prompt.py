"""A prompt of text and images, ready to be sent to any server: images are encoded before a run starts."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Text:
    """A run of text in a user message."""

    text: str

    def as_json(self) -> dict[str, Any]:
        return {"type": "text", "text": self.text}


@dataclass(frozen=True)
class Image:
    """An encoded image file (JPEG, PNG, …) and its size in pixels."""

    data: bytes
    mime: str
    width: int
    height: int

    def as_json(self) -> dict[str, Any]:
        url = f"data:{self.mime};base64,{base64.b64encode(self.data).decode('ascii')}"
        return {"type": "image_url", "image_url": {"url": url}}


@dataclass(frozen=True)
class Prompt:
    """One user turn: text and images in order, and how many tokens the answer may have.

    text_tokens is None where no tokenizer was at hand; the server's usage tells then.
    """

    parts: tuple[Text | Image, ...]
    output_len: int = 1
    text_tokens: int | None = None
    prompt_id: str = ""

    @cached_property
    def images(self) -> tuple[Image, ...]:
        return tuple(part for part in self.parts if type(part) is Image)

    @property
    def text(self) -> str:
        """All of its text, without the images."""
        return "".join(part.text for part in self.parts if type(part) is Text)

    def messages(self) -> list[dict[str, Any]]:
        """The prompt as `messages` of a chat completion; plain text stays a plain string."""
        if not self.images:
            return [{"role": "user", "content": self.text}]
        return [{"role": "user", "content": [part.as_json() for part in self.parts]}]
