"""A server over the echo engine, without sockets."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import httpx
import pytest

from gllm.config import ServerConfig
from gllm.entrypoints.app import build_app
from gllm.entrypoints.engine_client import ClientLimits
from gllm.entrypoints.service import Service
from tests.entrypoints.fakes import EchoEngine, FakeProcessor, make_client, make_model

Serve = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


@asynccontextmanager
async def serve_echo(
    engine: EchoEngine | None = None,
    limits: ClientLimits | None = None,
    config: ServerConfig | None = None,
    processor: FakeProcessor | None = None,
) -> AsyncIterator[httpx.AsyncClient]:
    client = make_client(engine or EchoEngine(), limits)
    processor = processor or FakeProcessor()
    service = Service(client, processor, make_model(), config or ServerConfig(), {"scheme": "gllm"})
    app = build_app(service)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            http.service = service
            yield http


@pytest.fixture
def serve() -> Serve:
    return serve_echo


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
