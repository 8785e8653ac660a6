"""`/v1/completions`: plain prompts, as text or as token ids."""

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from gllm.core.request import Request
from gllm.entrypoints import sse
from gllm.entrypoints.engine_client import EngineClient, TokenEvent
from gllm.entrypoints.generation import Generation
from gllm.entrypoints.logprobs import CompletionLogprobs
from gllm.entrypoints.ports import PromptProcessor
from gllm.entrypoints.protocol import CompletionRequest
from gllm.entrypoints.sampling import completion_sampling, stop_rule
from gllm.entrypoints.served_model import ServedModel


@dataclass(frozen=True)
class CompletionServing:
    """Serves text completions of one model."""

    engine: EngineClient
    processor: PromptProcessor
    model: ServedModel

    async def start(self, body: CompletionRequest, request_id: str) -> Generation:
        """Check everything, then hand one request per prompt to the engine. Raises ApiError or BadInput."""
        started = time.perf_counter()
        self.model.check_name(body.model)
        prompts = body.prompts
        rule = stop_rule(body)
        with self.engine.preparing(len(prompts)):
            requests = [
                self._request(
                    body, (await self.processor.prepare_completion(prompt)).token_ids, i, request_id
                )
                for i, prompt in enumerate(prompts)
            ]
        self.engine.check_room(len(requests))
        age_s = time.perf_counter() - started
        streams = [self.engine.submit(request, None, rule, age_s) for request in requests]
        return Generation(request_id, streams, self.engine.limits.prefix_caching, started)

    def _request(
        self, body: CompletionRequest, token_ids: Sequence[int], index: int, request_id: str
    ) -> Request:
        model = self.model
        seed = secrets.randbits(63)
        sampling = completion_sampling(body, len(token_ids), model.defaults, model.limits, seed)
        return Request(f"{request_id}-{index}", tuple(token_ids), (), sampling, model.defaults.eos_token_ids)

    async def full(self, generation: Generation) -> dict[str, Any]:
        """The whole answer in one object."""
        events: list[list[TokenEvent]] = [[] for _ in range(generation.num_choices)]
        async for event in generation.events():
            events[event.choice].append(event)
        choices = [
            {
                "index": i,
                "text": "".join(event.text for event in found),
                "logprobs": CompletionLogprobs(self.model.tokens).take(found),
                "finish_reason": found[-1].finish_reason,
                "stop_reason": found[-1].stop_reason,
            }
            for i, found in enumerate(events)
        ]
        return self._head(generation) | {"choices": choices, "usage": await generation.usage()}

    async def stream(self, generation: Generation, include_usage: bool) -> AsyncIterator[bytes]:
        """One event per token."""
        head = self._head(generation)
        if include_usage:
            head["usage"] = None
        logprobs = [CompletionLogprobs(self.model.tokens) for _ in range(generation.num_choices)]
        async for event in generation.events():
            choice = {
                "index": event.choice,
                "text": event.text,
                "logprobs": logprobs[event.choice].take([event]),
                "finish_reason": event.finish_reason,
            }
            if event.finish_reason is not None:
                choice["stop_reason"] = event.stop_reason
            yield sse.event(head | {"choices": [choice]})
        if include_usage:
            yield sse.event(head | {"choices": [], "usage": await generation.usage()})

    def _head(self, generation: Generation) -> dict[str, Any]:
        return {
            "id": generation.request_id,
            "object": "text_completion",
            "created": generation.created,
            "model": self.model.name,
        }
