"""What the HTTP layer asks of the engine and of the multimodal package, as protocols."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from gllm.core.request import MMItem, Request
from gllm.entrypoints.router_load import RouterLoad
from gllm.multimodal.errors import BadInput
from gllm.multimodal.processor import ChatPrompt


class PixelSource(Protocol):
    """The images of one request, decoded when they are asked for."""

    async def pixels(self, item: int) -> np.ndarray:
        """Resized pixels, uint8 [H, W, 3]. Raises BadInput when the image can't be fetched or decoded."""
        ...

    async def digest(self, item: int) -> bytes:
        """Hash of the item's pixels as the model sees them. Raises BadInput like pixels."""
        ...

    async def release(self) -> None:
        """Stop fetching and forget the compressed bytes; nobody asks for pixels again."""
        ...


class PreparedPrompt(PixelSource, Protocol):
    """A prompt as the model sees it: expanded token ids, and the items in it with their pixels."""

    @property
    def token_ids(self) -> Sequence[int]: ...

    @property
    def items(self) -> tuple[MMItem, ...]: ...


class PromptProcessor(Protocol):
    """Makes prompts of what clients send. Raises BadInput that names the part."""

    async def prepare_chat(self, chat: ChatPrompt) -> PreparedPrompt:
        """Messages, rendered and expanded; sizes come from image headers, nothing is decoded yet."""
        ...

    async def prepare_completion(self, prompt: str | Sequence[int]) -> PreparedPrompt:
        """A bare prompt, as text or token ids."""
        ...

    async def close(self) -> None:
        """Close connections and threads."""
        ...


class EngineLink(Protocol):
    """The road to the driver and back; used by the event loop's thread only."""

    def send(self, message: object) -> None:
        """Queue a message for the driver; never waits."""
        ...

    def listen(self, on_message: Callable[[object], None]) -> None:
        """Call on_message in the running event loop for every message that comes, in order."""
        ...

    def close(self) -> None:
        """Stop listening."""
        ...


class DriverPort(Protocol):
    """What an item router may do besides moving pixels."""

    def send(self, message: object) -> None:
        """Queue a message for the driver."""
        ...

    def fail_item(self, request_id: str, item: int, error: BadInput) -> None:
        """End a request whose item can't be had: the driver is told, and the client sees the error."""
        ...


class ItemRouter(Protocol):
    """Brings the pixels of admitted requests to whoever encodes them. All calls come from the event loop."""

    def check(self, request: Request) -> None:
        """Raises ApiError for a request with items that can never be encoded here: 400, or 503."""
        ...

    def load(self) -> RouterLoad:
        """What there is to count, for /metrics."""
        ...

    def add_request(self, request: Request, source: PixelSource) -> None:
        """Called once per request with items, right after the driver was told of it."""
        ...

    def on_message(self, message: object) -> None:
        """A message for the API server that concerns items: effects, and what encoders say."""
        ...

    def remove_request(self, request_id: str) -> None:
        """The request ended or was cancelled: stop its work, release its source. May be called again."""
        ...

    async def close(self) -> None:
        """Stop all work."""
        ...


RouterFactory = Callable[[DriverPort], ItemRouter]
