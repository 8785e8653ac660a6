"""`/v1/chat/completions`: from a body to a running generation, and from tokens to answers."""

import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from gllm.core.request import Request
from gllm.entrypoints import sse
from gllm.entrypoints.engine_client import EngineClient, TokenEvent
from gllm.entrypoints.generation import Generation
from gllm.entrypoints.logprobs import chat_entry
from gllm.entrypoints.ports import PreparedPrompt, PromptProcessor
from gllm.entrypoints.protocol import ChatCompletionRequest
from gllm.entrypoints.sampling import chat_logprobs, chat_sampling, stop_rule
from gllm.entrypoints.served_model import ServedModel


@dataclass(frozen=True)
class ChatServing:
    """Serves chat completions of one model."""

    engine: EngineClient
    processor: PromptProcessor
    model: ServedModel

    async def start(self, body: ChatCompletionRequest, request_id: str) -> Generation:
        """Check everything, then hand the request to the engine. Raises ApiError or BadInput."""
        started = time.perf_counter()
        self.model.check_name(body.model)
        rule = stop_rule(body)
        chat_logprobs(body)
        with self.engine.preparing():
            prompt = await self.processor.prepare_chat(body.chat_prompt())
        try:
            request = self._request(body, prompt, request_id)
            source = prompt if prompt.items else None
            stream = self.engine.submit(request, source, rule, time.perf_counter() - started)
        except Exception:
            await prompt.release()
            raise
        return Generation(request_id, (stream,), self.engine.limits.prefix_caching, started)

    def _request(self, body: ChatCompletionRequest, prompt: PreparedPrompt, request_id: str) -> Request:
        model = self.model
        seed = secrets.randbits(63)
        sampling = chat_sampling(body, len(prompt.token_ids), model.defaults, model.limits, seed)
        eos = model.defaults.eos_token_ids
        return Request(request_id, tuple(prompt.token_ids), prompt.items, sampling, eos)

    async def full(self, generation: Generation) -> dict[str, Any]:
        """The whole answer in one object."""
        texts = [""] * generation.num_choices
        logprobs: list[list[Any]] = [[] for _ in texts]
        last: dict[int, TokenEvent] = {}
        async for event in generation.events():
            texts[event.choice] += event.text
            entry = chat_entry(event, self.model.tokens)
            if entry is not None:
                logprobs[event.choice].append(entry)
            last[event.choice] = event
        choices = [
            {
                "index": i,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": {"content": entries, "refusal": None} if entries else None,
                "finish_reason": last[i].finish_reason,
                "stop_reason": last[i].stop_reason,
            }
            for i, (text, entries) in enumerate(zip(texts, logprobs, strict=True))
        ]
        return self._head(generation, "chat.completion") | {
            "choices": choices,
            "usage": await generation.usage(),
        }

    async def stream(self, generation: Generation, include_usage: bool) -> AsyncIterator[bytes]:
        """One event per token, so that a client can time them; a choice's first names the role."""
        head = self._head(generation, "chat.completion.chunk")
        if include_usage:
            head["usage"] = None
        opened: set[int] = set()
        async for event in generation.events():
            delta: dict[str, Any] = {"content": event.text}
            if event.choice not in opened:
                opened.add(event.choice)
                delta = {"role": "assistant"} | delta
            yield sse.event(head | {"choices": [self._chunk(event, delta)]})
        if include_usage:
            yield sse.event(head | {"choices": [], "usage": await generation.usage()})

    def _chunk(self, event: TokenEvent, delta: dict[str, Any]) -> dict[str, Any]:
        entry = chat_entry(event, self.model.tokens)
        chunk = {
            "index": event.choice,
            "delta": delta,
            "logprobs": None if entry is None else {"content": [entry], "refusal": None},
            "finish_reason": event.finish_reason,
        }
        return chunk if event.finish_reason is None else chunk | {"stop_reason": event.stop_reason}

    def _head(self, generation: Generation, kind: str) -> dict[str, Any]:
        return {
            "id": generation.request_id,
            "object": kind,
            "created": generation.created,
            "model": self.model.name,
        }
