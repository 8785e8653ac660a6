"""A small OpenAI-compatible server with known answers, delays and faults."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class FakeServer:
    """What it answers with. `faults` maps the number of a chat request (from 0, warm-up included) to a fault.

    Faults: "500", "error-event", "cut" (the stream ends early), "empty" (no token at all), "hang".
    """

    contents: Sequence[str] = ("a", "b", "c")
    first_delay: float = 0.0
    gap: float = 0.0
    hold_until: int = 0  # chat requests that must have come before any is answered
    has_usage: bool = True
    piece: int | None = None  # bytes in each network write
    prompt_tokens: int = 50
    image_tokens: int | None = None
    faults: dict[int, str] = field(default_factory=dict)
    info: dict[str, Any] | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)  # text in the prompt → answer

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**28)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/server_info", self._info)
        app.router.add_post("/v1/chat/completions", self._chat)
        return app

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "fake"}]})

    async def _info(self, _: web.Request) -> web.Response:
        return web.json_response(self.info) if self.info else web.Response(status=404)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        fault = self.faults.get(len(self.bodies), "")
        self.bodies.append(body)
        while len(self.bodies) < self.hold_until:
            await asyncio.sleep(0.005)
        await asyncio.sleep(self.first_delay if fault != "hang" else 3600)
        if fault == "500":
            return web.json_response({"error": {"message": "out of blocks"}}, status=500)
        contents = self._contents(body)
        if not body["stream"]:
            choice = {"message": {"content": "".join(contents)}, "finish_reason": "length"}
            return web.json_response({"choices": [choice], **self._usage(contents)})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        async for event in self._events(contents, fault):
            await self._write(response, event.encode())
        return response

    def _contents(self, body: dict[str, Any]) -> Sequence[str]:
        prompt = json.dumps(body["messages"])
        return next(([answer] for text, answer in self.answers.items() if text in prompt), self.contents)

    async def _events(self, contents: Sequence[str], fault: str) -> AsyncIterator[str]:
        yield _event(_chunk({"role": "assistant", "content": ""}))
        if fault == "error-event":
            yield _event({"error": {"message": "the image is corrupt"}})
        elif fault != "empty":
            for index, content in enumerate(contents):
                if index:
                    await asyncio.sleep(self.gap)
                yield _event(_chunk({"content": content}))
                if fault == "cut":
                    return
            yield _event(_chunk({}, finish_reason="length"))
            if self.has_usage:
                yield _event({"choices": [], **self._usage(contents)})
        yield "data: [DONE]\n\n"

    def _usage(self, contents: Sequence[str]) -> dict[str, Any]:
        usage: dict[str, Any] = {"prompt_tokens": self.prompt_tokens, "completion_tokens": len(contents)}
        if self.image_tokens is not None:
            usage["prompt_tokens_details"] = {"image_tokens": self.image_tokens}
        return {"usage": usage}

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        size = self.piece or len(data)
        for start in range(0, len(data), size):
            await response.write(data[start : start + size])
            await asyncio.sleep(0)


@asynccontextmanager
async def serving(server: FakeServer) -> AsyncIterator[str]:
    """Runs the server on a free port of 127.0.0.1; gives its base URL."""
    runner = web.AppRunner(server.app(), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _event(message: dict[str, Any]) -> str:
    return f"data: {json.dumps(message)}\n\n"


def _chunk(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}
