"""`LLM("tiny").chat(messages)`: offline use without HTTP, by the same processes and rules as the server."""

import asyncio
import atexit
import uuid
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm

from gllm.config import ConfigError, EngineConfig, engine_config_of
from gllm.core.batch import TokenLogprobs
from gllm.entrypoints.checkpoint_facts import CheckpointFacts
from gllm.entrypoints.engine_client import ClientLimits, EngineClient, TokenEvent
from gllm.entrypoints.generation import Generation
from gllm.entrypoints.loop_thread import LoopThread
from gllm.entrypoints.offline_media import with_data_urls
from gllm.entrypoints.protocol import ChatCompletionRequest, CompletionRequest
from gllm.entrypoints.serve import GLLM, Scheme, make_engine, media_limits, served_model, watch
from gllm.entrypoints.serving_chat import ChatServing
from gllm.entrypoints.serving_completion import CompletionServing
from gllm.models.names import resolve_model
from gllm.multimodal.processor import PromptProcessor

Message = dict[str, Any]
Start = Callable[[], Coroutine[Any, Any, Generation]]
NO_LIMIT = 2**31


@dataclass(frozen=True)
class CompletionOutput:
    """One answer. finish_reason: stop or length; logprobs: one entry per token when asked for."""

    text: str
    token_ids: list[int]
    finish_reason: str | None
    stop_reason: str | int | None = None
    logprobs: list[TokenLogprobs] | None = None


@dataclass(frozen=True)
class RequestOutput:
    """One prompt's answers (n of them). prompt_token_ids: expanded, one placeholder per image token."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    outputs: list[CompletionOutput]


class LLM:
    """A model with its processes; use it in a `with` block, or call close().

    options: any flag of the server by its name with underscores (pp=2, kv_cache_gib=0.5). Stage 0 encodes
    images; `rserve.LLM` also has the other schemes.
    """

    def __init__(self, model: str = "tiny", **options: Any) -> None:
        """Raises ConfigError for a wrong option, LaunchError when the model cannot be loaded."""
        self._begin(engine_config_of({"model": model, **options}), GLLM)

    def _begin(self, config: EngineConfig, scheme: Scheme) -> None:
        """Start the processes and wait until they are ready."""
        self._config = config
        self._scheme = scheme
        folder = resolve_model(config.model.model)
        facts = CheckpointFacts.read(folder)
        scheme.check_memory(self._config)
        self._deployment = scheme.make_deployment(self._config)
        try:
            self._deployment.start()
            self._processor = PromptProcessor(folder, media_limits(self._config.media))
            self._deployment.wait_ready()
            self.model = served_model(self._config, facts, self._processor, self._deployment)
            self._loop = LoopThread()
        except BaseException:
            self._deployment.stop()
            raise
        self._engine = self._loop.call(self._start_engine())
        atexit.register(self.close)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        *,
        use_tqdm: bool = True,
        **fields: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several at once; fields are those of /v1/chat/completions.

        An image part is {"type": "image", "image": a PIL image, a path or a URL}. Raises ApiError or BadInput
        for what the server would refuse; the other conversations of the call are cancelled then.
        """
        self._check_open()
        conversations = [messages] if messages and messages[0].__class__ is dict else messages
        serving = ChatServing(self._engine, self._processor, self.model)
        starts = []
        for conversation in conversations:
            body = ChatCompletionRequest.checked(
                {"messages": [with_data_urls(message) for message in conversation], **fields}
            )
            starts.append(lambda body=body: serving.start(body, _new_id()))
        return self._all(starts, use_tqdm)

    def generate(
        self, prompts: str | Sequence[str] | Sequence[Sequence[int]], *, use_tqdm: bool = True, **fields: Any
    ) -> list[RequestOutput]:
        """Continue one prompt, or several at once (text, or lists of token ids).

        fields are those of /v1/completions. Raises as chat() does.
        """
        self._check_open()
        serving = CompletionServing(self._engine, self._processor, self.model)
        starts = []
        for prompt in [prompts] if prompts.__class__ is str else prompts:
            body = CompletionRequest.checked({"prompt": prompt, **fields})
            starts.append(lambda body=body: serving.start(body, _new_id()))
        return self._all(starts, use_tqdm)

    def flush_cache(self) -> None:
        """Forget cached prefixes that no request uses."""

        async def flush() -> None:
            self._engine.flush_cache()

        self._loop.call(flush())

    def close(self) -> None:
        """Stop all processes. May be called again."""
        atexit.unregister(self.close)
        if self._loop.is_running:
            self._loop.call(self._engine.close())
            self._loop.call(self._processor.close())
            self._loop.stop()
            self._deployment.stop()

    def _check_open(self) -> None:
        if not self._loop.is_running:
            raise ConfigError("this LLM is closed: make a new one")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _start_engine(self) -> EngineClient:
        limits = ClientLimits(NO_LIMIT, prefix_caching=self._config.cache.enable_prefix_caching)
        engine = make_engine(self._deployment, self._scheme, self.model, limits)
        engine.start()
        watch(self._deployment, engine, lambda: None)
        return engine

    def _all(self, starts: Sequence[Start], use_tqdm: bool) -> list[RequestOutput]:
        with tqdm(total=len(starts), unit="req", disable=not use_tqdm) as bar:
            return self._loop.call(_run_all(starts, bar))


async def _run_all(starts: Sequence[Start], bar: "tqdm[Any]") -> list[RequestOutput]:
    async def one(start: Start) -> RequestOutput:
        output = await _collect(await start())
        bar.update()
        return output

    tasks = [asyncio.create_task(one(start)) for start in starts]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


async def _collect(generation: Generation) -> RequestOutput:
    events: list[list[TokenEvent]] = [[] for _ in range(generation.num_choices)]
    async for event in generation.events():
        events[event.choice].append(event)
    outputs = []
    for found in events:
        logprobs = [event.logprobs for event in found if event.logprobs is not None]
        outputs.append(
            CompletionOutput(
                "".join(event.text for event in found),
                [event.token_id for event in found],
                found[-1].finish_reason,
                found[-1].stop_reason,
                logprobs or None,
            )
        )
    return RequestOutput(generation.request_id, generation.streams[0].request.token_ids, outputs)


def _new_id() -> str:
    return f"offline-{uuid.uuid4().hex}"
