"""The parts of a running server that routes share."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from gllm.config import ServerConfig
from gllm.entrypoints.engine_client import EngineClient
from gllm.entrypoints.metrics import Metrics
from gllm.entrypoints.ports import PromptProcessor
from gllm.entrypoints.served_model import ServedModel
from gllm.entrypoints.serving_chat import ChatServing
from gllm.entrypoints.serving_completion import CompletionServing
from gllm.runtime.messages import Stats

HEARTBEAT_S = 5.0
SILENCE_S = 60.0
"""The driver answers between two micro-batches; one that is silent for so long is stuck."""


def no_problems() -> Sequence[str]:
    return ()


@dataclass(eq=False)
class Service:
    """One served model.

    about: the fixed part of /server_info (scheme, sizes, hardware). problems: what is broken although
    requests are still served, one sentence each (an encoder is down).
    """

    engine: EngineClient
    processor: PromptProcessor
    model: ServedModel
    config: ServerConfig
    about: dict[str, Any] = field(default_factory=dict)
    problems: Callable[[], Sequence[str]] = no_problems
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.metrics = Metrics()
        self.chat = ChatServing(self.engine, self.processor, self.model)
        self.completion = CompletionServing(self.engine, self.processor, self.model)
        self.is_draining = False
        self._heard = self.clock()
        self._heartbeat: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen to the engine; call it in the event loop that serves."""
        self.engine.start()
        self._heard = self.clock()
        self._heartbeat = asyncio.create_task(self._beat())

    async def close(self) -> None:
        """End what still runs; the deployment is stopped by whoever started it."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            with suppress(asyncio.CancelledError):
                await self._heartbeat
        await self.engine.close()
        await self.processor.close()

    def health(self) -> tuple[int, dict[str, Any]]:
        """(HTTP status, body): 200 for ok and degraded, 503 when requests can't be served."""
        silence = self.clock() - self._heard
        problems = list(self.problems())
        if self.engine.failure is not None:
            return 503, {"status": "failed", "problems": [self.engine.failure, *problems]}
        if self.is_draining:
            return 503, {"status": "draining", "problems": ["the server is shutting down", *problems]}
        if silence > SILENCE_S:
            stuck = f"the driver has not answered for {silence:.0f} s"
            return 503, {"status": "unresponsive", "problems": [stuck, *problems]}
        return 200, {"status": "degraded" if problems else "ok", "problems": problems}

    async def stats(self) -> Stats | None:
        """The driver's newest figures; those of the last heartbeat while it is busy for over a second."""
        stats = await self.engine.stats()
        if stats is not None:
            self._heard = self.clock()
            self.metrics.driver.stats = stats
        return self.metrics.driver.stats

    async def _beat(self) -> None:
        while True:
            stats = await self.engine.stats(SILENCE_S)
            if stats is not None:
                self._heard = self.clock()
                self.metrics.driver.stats = stats
            await asyncio.sleep(HEARTBEAT_S)
