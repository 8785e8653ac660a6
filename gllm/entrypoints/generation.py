"""One API call as it is served: its requests inside the engine, their tokens merged, times and counts."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from gllm.entrypoints.engine_client import RequestStream, TokenEvent


@dataclass(eq=False)
class Generation:
    """The requests of one API call; a call has several when it holds several prompts.

    Choices are numbered over all of them: prompt i's choices follow those of prompt i - 1.
    """

    request_id: str
    streams: Sequence[RequestStream]
    prefix_caching: bool
    started: float
    clock: Callable[[], float] = time.perf_counter
    created: int = field(default_factory=lambda: int(time.time()))
    first_token: float | None = None
    last_token: float | None = None
    finish_reasons: list[str] = field(default_factory=list)

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(stream.request.token_ids) for stream in self.streams)

    @property
    def num_image_tokens(self) -> int:
        return sum(stream.request.num_mm_tokens for stream in self.streams)

    @property
    def num_images(self) -> int:
        return sum(len(stream.request.items) for stream in self.streams)

    @property
    def num_output_tokens(self) -> int:
        return sum(stream.num_output for stream in self.streams)

    @property
    def num_choices(self) -> int:
        return sum(stream.request.sampling.n for stream in self.streams)

    def cancel(self) -> None:
        """Nobody reads any more; harmless once all is over."""
        for stream in self.streams:
            stream.cancel()

    async def events(self) -> AsyncIterator[TokenEvent]:
        """All tokens of all choices as they come. Raises ApiError; leaving early cancels the requests."""
        try:
            async with aclosing(self._merged()) as merged:
                async for event in merged:
                    self.last_token = self.clock()
                    if self.first_token is None:
                        self.first_token = self.last_token
                    if event.finish_reason is not None:
                        self.finish_reasons.append(event.finish_reason)
                    yield event
        finally:
            self.cancel()

    async def usage(self) -> dict[str, Any]:
        """OpenAI's usage, with image tokens among the prompt's details; call it after the last event."""
        num_cached = 0
        if self.prefix_caching:
            num_cached = sum([await stream.num_cached_tokens for stream in self.streams])
        prompt, output = self.num_prompt_tokens, self.num_output_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": num_cached, "image_tokens": self.num_image_tokens},
        }

    async def _merged(self) -> AsyncGenerator[TokenEvent, None]:
        if len(self.streams) == 1:
            async for event in self.streams[0]:
                yield event
            return
        queue: asyncio.Queue[_Pumped] = asyncio.Queue()
        tasks = []
        first = 0
        for stream in self.streams:
            tasks.append(asyncio.create_task(_pump(stream, first, queue)))
            first += stream.request.sampling.n
        num_open = len(tasks)
        try:
            while num_open:
                event, error = await queue.get()
                if error is not None:
                    raise error
                if event is None:
                    num_open -= 1
                else:
                    yield event
        finally:
            for task in tasks:
                task.cancel()


_Pumped = tuple[TokenEvent | None, Exception | None]


async def _pump(stream: RequestStream, first_choice: int, queue: asyncio.Queue[_Pumped]) -> None:
    """Copy one stream into the queue, then (None, None), or its error."""
    try:
        async for event in stream:
            queue.put_nowait((replace(event, choice=first_choice + event.choice), None))
        queue.put_nowait((None, None))
    except Exception as error:
        queue.put_nowait((None, error))
