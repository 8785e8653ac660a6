"""An engine of asyncio tasks that repeats what it is told, and a processor for which a byte is a token."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gllm.core.batch import BatchResult, SampledToken, TokenLogprobs
from gllm.core.effects import RequestFailed, RequestFinished
from gllm.core.finish import finish_reason
from gllm.core.request import MMItem, Request
from gllm.entrypoints.detokenize import TokenBytes, byte_alphabet
from gllm.entrypoints.engine_client import ClientLimits, EngineClient
from gllm.entrypoints.item_router import StageZeroRouter
from gllm.entrypoints.sampling import SamplingDefaults, SamplingLimits
from gllm.entrypoints.served_model import ServedModel
from gllm.multimodal.errors import BadInput
from gllm.multimodal.processor import ChatPrompt
from gllm.runtime.messages import (
    AbortRequest,
    AddRequest,
    FlushCache,
    GetStats,
    ItemFailed,
    PixelBatch,
    Stats,
)

EOS = 256
IMAGE = 257
MAX_MODEL_LEN = 512
ITEM_TOKENS = 4


@dataclass(frozen=True)
class Added:
    content: str
    special: bool = True


class ByteVocabulary:
    """Token b < 256 is the byte b; then end of text and the image placeholder."""

    def __init__(self) -> None:
        self._chars = {byte: char for char, byte in byte_alphabet().items()}

    def id_to_token(self, id: int) -> str | None:
        return self._chars.get(id)

    def get_added_tokens_decoder(self) -> dict[int, Added]:
        return {EOS: Added("<|end|>"), IMAGE: Added("<|image|>")}


@dataclass(eq=False)
class FakePrompt:
    """Its images are black; an image whose URL is `broken` can't be decoded."""

    token_ids: list[int]
    items: tuple[MMItem, ...] = ()
    urls: tuple[str, ...] = ()
    is_released: bool = False

    async def pixels(self, item: int) -> np.ndarray:
        if self.urls[item] == "slow":
            await asyncio.sleep(60)
        if self.urls[item] == "broken":
            raise BadInput("the image is broken", f"messages[0].content[{item}]", 422, "bad_image")
        return np.zeros((56, 56, 3), np.uint8)

    async def digest(self, item: int) -> bytes:
        return self.urls[item].encode()

    async def release(self) -> None:
        self.is_released = True


class FakeProcessor:
    """A message's text is its bytes; each image is four placeholder tokens where it stands."""

    def __init__(self) -> None:
        self.prompts: list[FakePrompt] = []

    async def prepare_chat(self, chat: ChatPrompt) -> FakePrompt:
        prompt = FakePrompt([])
        for message in chat.messages:
            content = message["content"]
            parts = [{"type": "text", "text": content}] if content.__class__ is str else content
            for part in parts:
                self._add(prompt, part)
        self.prompts.append(prompt)
        return prompt

    async def prepare_completion(self, prompt: str | Sequence[int]) -> FakePrompt:
        return FakePrompt(list(prompt.encode()) if prompt.__class__ is str else list(prompt))

    async def close(self) -> None: ...

    def _add(self, prompt: FakePrompt, part: dict) -> None:
        if part["type"] == "text":
            prompt.token_ids.extend(part["text"].encode())
            return
        url = part["image_url"]["url"]
        if url == "unreadable":
            raise BadInput("no image at this URL", "messages[0].content[0]", 400, "bad_image")
        prompt.items += (MMItem(len(prompt.token_ids), ITEM_TOKENS, (1, 4, 4)),)
        prompt.urls += (url,)
        prompt.token_ids.extend([IMAGE] * ITEM_TOKENS)


@dataclass(eq=False)
class EchoEngine:
    """Is link and pixel inbox at once. It answers with the prompt's text, then end of text.

    answers: token ids per choice to use instead. pause_s: time between tokens. is_silent: it never answers.
    finished_first: the driver's RequestFinished overtakes the last token. finishes_never: it does not come.
    repeats: every token comes twice.
    """

    answers: list[list[int]] | None = None
    pause_s: float = 0.0
    is_silent: bool = False
    finished_first: bool = False
    finishes_never: bool = False
    repeats: bool = False
    refuse: RequestFailed | None = None
    seen: list[object] = field(default_factory=list)
    pixels: list[PixelBatch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._arrived: dict[str, asyncio.Event] = {}
        self._on_message: Callable[[object], None] = self.seen.append

    def listen(self, on_message: Callable[[object], None]) -> None:
        self._on_message = on_message

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    def of(self, kind: type) -> list:
        """The messages of this type that the engine was sent."""
        return [message for message in self.seen if type(message) is kind]

    def send(self, message: object, frames: Sequence[bytes | memoryview] = ()) -> None:
        self.seen.append(message)
        match message:
            case AddRequest(request):
                self._arrived[request.request_id] = asyncio.Event()
                self._tasks[request.request_id] = asyncio.get_running_loop().create_task(
                    self._answer(request)
                )
            case AbortRequest(request_id, _):
                self._end(request_id, RequestFinished(request_id, "abort"))
            case ItemFailed(request_id, _, status, text):
                self._end(request_id, RequestFailed(request_id, status, text))
            case PixelBatch(_, request_id):
                self.pixels.append(message)
                self._arrived[request_id].set()
            case GetStats() if not self.is_silent:
                self._later(Stats({"running": 1.0}, {"steps_total": 7.0, "busy_seconds_total:rank1": 2.5}))
            case FlushCache() | _:
                pass

    def fail(self, message: object) -> None:
        """Say something of its own accord."""
        self._on_message(message)

    def _later(self, message: object) -> None:
        asyncio.get_running_loop().call_soon(self._on_message, message)

    def _end(self, request_id: str, effect: object) -> None:
        task = self._tasks.pop(request_id, None)
        if task is not None:
            task.cancel()
            self._later(effect)

    async def _answer(self, request: Request) -> None:
        if self.refuse is not None:
            self._on_message(RequestFailed(request.request_id, self.refuse.status, self.refuse.message))
            return
        if self.is_silent:
            return
        if request.items:
            await self._arrived[request.request_id].wait()
        default = [t for t in request.token_ids if t < EOS] + [EOS]
        for choice in range(request.sampling.n):
            answer = default if self.answers is None else self.answers[choice % len(self.answers)]
            await self._choice(request, choice, answer)
        if not self.finished_first and not self.finishes_never:
            self._on_message(RequestFinished(request.request_id, "stop", 3))
        self._tasks.pop(request.request_id, None)

    async def _choice(self, request: Request, choice: int, answer: list[int]) -> None:
        num_output = 0
        reason = None
        while reason is None:
            token_id = answer[num_output % len(answer)]
            num_output += 1
            reason = finish_reason(token_id, num_output, request.sampling, request.eos_token_ids)
            is_last = reason is not None and choice == request.sampling.n - 1
            if is_last and self.finished_first:
                self._on_message(RequestFinished(request.request_id, "stop", 3))
            await asyncio.sleep(self.pause_s)
            position = len(request.token_ids) + num_output - 1
            logprobs = _logprobs(token_id, request.sampling.logprobs)
            token = SampledToken(choice, request.request_id, choice, position, token_id, logprobs)
            for _ in range(2 if self.repeats else 1):
                self._on_message(BatchResult(0, (token,)))


def _logprobs(token_id: int, count: int | None) -> TokenLogprobs | None:
    if count is None:
        return None
    return TokenLogprobs(-0.5, tuple(((token_id + i) % 256, -0.5 - i) for i in range(count)))


def make_client(engine: EchoEngine, limits: ClientLimits | None = None) -> EngineClient:
    limits = limits or ClientLimits()
    tokens = TokenBytes(ByteVocabulary())
    router = lambda port: StageZeroRouter(port, engine, limits.prefix_caching)  # noqa: E731
    return EngineClient(engine, router, tokens, limits)


def make_model(defaults: SamplingDefaults | None = None) -> ServedModel:
    defaults = defaults or SamplingDefaults(temperature=0.0, eos_token_ids=(EOS,))
    return ServedModel("echo", TokenBytes(ByteVocabulary()), defaults, SamplingLimits(MAX_MODEL_LEN, 258))
