"""The FastAPI application: routes, errors in OpenAI's format, keys, CORS."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from gllm import __version__
from gllm.entrypoints import sse
from gllm.entrypoints.connection import ClientGone
from gllm.entrypoints.errors import ApiError
from gllm.entrypoints.logs import logger
from gllm.entrypoints.middleware import ApiKey, RequestContext
from gllm.entrypoints.protocol import ChatCompletionRequest, CompletionRequest
from gllm.entrypoints.routes import make_routes
from gllm.entrypoints.service import Service
from gllm.multimodal.errors import BadInput


def build_app(service: Service) -> FastAPI:
    """The ASGI application of one service, which it starts and closes with its own life."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.close()

    app = FastAPI(
        title="RServe",
        version=__version__,
        middleware=_middleware(service),
        lifespan=lifespan,
        exception_handlers={
            ApiError: _on_api_error,
            BadInput: _on_bad_input,
            ClientGone: _on_client_gone,
            HTTPException: _on_http_error,
            Exception: _on_bug,
        },
    )
    app.include_router(make_routes(service))
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _middleware(service: Service) -> list[Middleware]:
    """Outermost first: browsers' preflight requests carry no key."""
    chain = [Middleware(RequestContext, metrics=service.metrics)]
    if service.config.cors_origins:
        chain.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(service.config.cors_origins),
                allow_methods=["GET", "POST"],
                allow_headers=["authorization", "content-type", "x-request-id"],
                expose_headers=["x-request-id"],
            )
        )
    if service.config.api_key is not None:
        chain.append(Middleware(ApiKey, key=service.config.api_key))
    return chain


def _respond(error: ApiError) -> Response:
    body = sse.to_json(error.body())
    return Response(body, error.status, error.headers(), "application/json")


async def _on_api_error(_: Request, error: ApiError) -> Response:
    return _respond(error)


async def _on_bad_input(_: Request, error: BadInput) -> Response:
    return _respond(ApiError(error.status, str(error), param=error.part, code=error.code))


async def _on_client_gone(_: Request, __: Exception) -> Response:
    """Nobody reads this; the status is for the log."""
    return Response(status_code=499)


async def _on_http_error(request: Request, error: HTTPException) -> Response:
    code = {404: "unknown_path", 405: "method_not_allowed"}.get(error.status_code)
    message = f"{request.method} {request.url.path}: {error.detail}"
    response = _respond(ApiError(error.status_code, message, code=code))
    response.headers.update(error.headers or {})
    return response


async def _on_bug(request: Request, error: Exception) -> Response:
    """A bug of this server: the client learns the request's id, the log has the rest."""
    request_id = request.state.request_id
    logger().error("bug", exc_info=error, extra={"fields": {"request_id": request_id}})
    return _respond(ApiError(500, f"internal error; the server's log has more under {request_id}"))


def _openapi(app: FastAPI) -> dict[str, Any]:
    """The schema, with the bodies that routes read themselves."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        components = schema.setdefault("components", {}).setdefault("schemas", {})
        for model in (ChatCompletionRequest, CompletionRequest):
            body = model.model_json_schema(ref_template="#/components/schemas/{model}")
            components.update(body.pop("$defs", {}))
            components[model.__name__] = body
        app.openapi_schema = schema
    return app.openapi_schema
