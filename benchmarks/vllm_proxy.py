"""The front of vLLM's encoder disaggregation: images go to the encoder first, then the request to the model.

vLLM's parts do not know each other: the encoder stores each image's embeddings under the hash of its pixels,
and the language model looks there. So whoever sends the request has to wait until all its images are stored.
"""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
from aiohttp import web


def image_requests(body: dict[str, Any]) -> list[dict[str, Any]]:
    """One chat completion for each image of a request, of that image alone, with one output token."""
    parts = (
        part
        for message in body["messages"]
        if type(message["content"]) is list
        for part in message["content"]
        if part["type"] == "image_url"
    )
    return [
        {
            "model": body["model"],
            "messages": [{"role": "user", "content": [part]}],
            "max_completion_tokens": 1,
            "stream": False,
        }
        for part in parts
    ]


class EncodeFirst:
    """Base URLs of an encoder and of a language model, served as one."""

    def __init__(self, encoder_url: str, model_url: str) -> None:
        self._encoder_url = encoder_url
        self._model_url = model_url

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**28)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.cleanup_ctx.append(self._session_of)
        return app

    async def _session_of(self, _: web.Application) -> Any:
        # The limits of the client that measures hold, none of our own.
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None), connector=connector
        ) as self._session:
            yield

    async def _models(self, _: web.Request) -> web.Response:
        async with self._session.get(f"{self._model_url}/v1/models") as answer:
            return web.json_response(await answer.json(), status=answer.status)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = await request.json()
        try:
            await asyncio.gather(*(self._encode(image) for image in image_requests(body)))
        except (aiohttp.ClientError, OSError) as error:
            return web.json_response({"error": {"message": f"the encoder failed: {error}"}}, status=502)
        headers = {"Content-Type": "application/json"}
        url = f"{self._model_url}/v1/chat/completions"
        async with self._session.post(url, data=raw, headers=headers) as answer:
            response = web.StreamResponse(status=answer.status)
            response.content_type = answer.content_type
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
        return response

    async def _encode(self, body: dict[str, Any]) -> None:
        url = f"{self._encoder_url}/v1/chat/completions"
        async with self._session.post(url, json=body, raise_for_status=True) as answer:
            await answer.read()
