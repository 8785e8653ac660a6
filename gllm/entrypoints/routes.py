"""The HTTP routes."""

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import Response

from gllm import __version__
from gllm.entrypoints import sse
from gllm.entrypoints.connection import ClientGone, EventStream, read_body, while_connected
from gllm.entrypoints.generation import Generation
from gllm.entrypoints.logs import log
from gllm.entrypoints.protocol import ChatCompletionRequest, CompletionRequest, GenerationRequest
from gllm.entrypoints.service import Service
from gllm.entrypoints.serving_chat import ChatServing
from gllm.entrypoints.serving_completion import CompletionServing

INLINE_BYTES = 64 * 1024
"""Bodies up to this size are parsed in the event loop (under a millisecond), larger ones in a thread."""

Body = TypeVar("Body", bound=GenerationRequest)


def json_response(value: dict[str, Any], status: int = 200) -> Response:
    return Response(sse.to_json(value), status, media_type="application/json")


def _schema(model: type[GenerationRequest]) -> dict[str, Any]:
    """Tells OpenAPI of a body that the route reads itself."""
    reference = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": reference}}}}


def make_routes(service: Service) -> APIRouter:
    """All routes of one service."""
    router = APIRouter()
    _add_generation(router, service)
    _add_operation(router, service)
    return router


def _add_generation(router: APIRouter, service: Service) -> None:
    @router.post("/v1/chat/completions", openapi_extra=_schema(ChatCompletionRequest))
    async def chat(request: Request) -> Response:
        """Answer a chat, with images or without."""
        body = await _parse(request, ChatCompletionRequest, service)
        serving = service.chat
        return await _Call(request, body, service).answer(serving, serving.start(body, _new_id("chatcmpl")))

    @router.post("/v1/completions", openapi_extra=_schema(CompletionRequest))
    async def completions(request: Request) -> Response:
        """Continue plain text."""
        body = await _parse(request, CompletionRequest, service)
        serving = service.completion
        return await _Call(request, body, service).answer(serving, serving.start(body, _new_id("cmpl")))


def _add_operation(router: APIRouter, service: Service) -> None:
    @router.get("/v1/models")
    async def models() -> Response:
        """The model that is served."""
        return json_response({"object": "list", "data": [service.model.card()]})

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        """One model; 404 unless it is the one that is served."""
        service.model.check_name(name)
        return json_response(service.model.card())

    @router.get("/health")
    async def health() -> Response:
        """Whether requests can be served now."""
        status, body = service.health()
        return json_response(body, status)

    @router.get("/version")
    async def version() -> Response:
        """The server's version."""
        return json_response({"version": __version__})

    @router.get("/server_info")
    async def server_info() -> Response:
        """How the deployment is set up, and the driver's counters."""
        stats = await service.stats()
        driver = {} if stats is None else {**stats.gauges, **stats.counters}
        return json_response({"version": __version__, **service.about, "driver": driver})

    @router.post("/flush_cache")
    async def flush_cache() -> Response:
        """Forget cached prefixes that no request uses."""
        service.engine.flush_cache()
        return json_response({"status": "ok"})

    @router.get("/metrics")
    async def metrics() -> Response:
        """Prometheus metrics."""
        stats = await service.stats()
        text = service.metrics.render(service.engine.num_active, stats, service.engine.load())
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def _parse(request: Request, model: type[Body], service: Service) -> Body:
    body = await read_body(request, service.config.max_body_bytes)
    if len(body) <= INLINE_BYTES:
        return model.parse(body)
    return await asyncio.to_thread(model.parse, body)


@dataclass(frozen=True)
class _Call:
    """One API call that generates tokens, from the engine to the client."""

    request: Request
    body: GenerationRequest
    service: Service

    async def answer(
        self, serving: ChatServing | CompletionServing, starting: Coroutine[Any, Any, Generation]
    ) -> Response:
        """The answer, or a stream of it; an error before the first token has a status of its own."""
        try:
            generation = await while_connected(self.request, starting)
        except ClientGone:
            self.service.metrics.on_cancel()
            raise
        try:
            if not self.body.stream:
                response = json_response(await while_connected(self.request, serving.full(generation)))
                self._end(generation, is_whole=True)
                return response
            events = serving.stream(generation, self.body.include_usage)
            first = await while_connected(self.request, _next(events))
        except BaseException:
            self._end(generation, is_whole=False)
            raise
        return EventStream(sse.guarded(first, events), lambda is_whole: self._end(generation, is_whole))

    def _end(self, generation: Generation, is_whole: bool) -> None:
        """The answer was sent, or nobody waits for it: free the engine, record, log."""
        generation.cancel()
        if not is_whole:
            self.service.metrics.on_cancel()
        self.service.metrics.on_generation(generation)
        first, last, started = generation.first_token, generation.last_token, generation.started
        log(
            logging.INFO,
            "request done" if is_whole else "request ended early",
            request_id=self.request.state.request_id,
            id=generation.request_id,
            prompt_tokens=generation.num_prompt_tokens,
            images=generation.num_images,
            output_tokens=generation.num_output_tokens,
            finish=",".join(generation.finish_reasons) or None,
            ttft_s=None if first is None else first - started,
            seconds=None if last is None else last - started,
        )


def _new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


async def _next(events: AsyncIterator[bytes]) -> bytes:
    return await anext(events)
