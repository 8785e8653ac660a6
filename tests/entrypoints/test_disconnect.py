"""Clients that go away: their requests leave the engine at once."""

import asyncio
import json

import pytest

from gllm.config import ServerConfig
from gllm.entrypoints.app import build_app
from gllm.entrypoints.service import Service
from gllm.runtime.messages import AbortRequest, AddRequest
from tests.entrypoints.fakes import EchoEngine, FakeProcessor, make_client, make_model

pytestmark = pytest.mark.anyio


class Client:
    """One raw ASGI connection that sends a body and can hang up."""

    def __init__(self, body: dict) -> None:
        self.sent: list[dict] = []
        self.gone = asyncio.Event()
        self._body = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

    async def receive(self) -> dict:
        if self._body:
            return self._body.pop()
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict) -> None:
        self.sent.append(message)

    def scope(self) -> dict:
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": "/v1/chat/completions",
            "raw_path": b"/v1/chat/completions",
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": [(b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }


async def hang_up(engine: EchoEngine, when, **fields) -> tuple[Client, Service]:
    """Send a chat, hang up once when(engine, client) holds, wait for the server to be done with it."""
    service = Service(make_client(engine), FakeProcessor(), make_model(), ServerConfig())
    app = build_app(service)
    client = Client({"messages": [{"role": "user", "content": "hello"}], **fields})
    async with app.router.lifespan_context(app):
        task = asyncio.create_task(app(client.scope(), client.receive, client.send))
        while not when(engine, client):
            await asyncio.sleep(0.001)
        client.gone.set()
        await asyncio.wait_for(task, 5)
        await asyncio.sleep(0.01)
        assert service.engine.num_active == 0
    return client, service


async def test_a_client_that_leaves_before_its_answer_is_aborted():
    engine = EchoEngine(is_silent=True)
    await hang_up(engine, lambda engine, client: engine.of(AddRequest))
    assert [abort.reason for abort in engine.of(AbortRequest)] == ["abort"]


async def test_a_client_that_leaves_before_its_first_token_is_aborted():
    engine = EchoEngine(is_silent=True)
    await hang_up(engine, lambda engine, client: engine.of(AddRequest), stream=True)
    assert len(engine.of(AbortRequest)) == 1


async def test_a_client_that_leaves_a_stream_is_aborted_and_gets_no_more():
    engine = EchoEngine(answers=[[97]], pause_s=0.002)
    client, service = await hang_up(engine, lambda engine, client: len(client.sent) > 4, stream=True)
    assert len(engine.of(AbortRequest)) == 1
    assert len(client.sent) < 100
    assert b"rserve_requests_cancelled_total 1.0" in service.metrics.render(0, None)


async def test_a_client_that_reads_to_the_end_is_not_aborted():
    engine = EchoEngine()
    await hang_up(engine, lambda engine, client: len(client.sent) == 2)
    assert not engine.of(AbortRequest)
