"""The HTTP API over the echo engine: health, metrics and other paths, keys, limits, formats of errors."""

import pytest

from gllm.config import ServerConfig
from gllm.runtime.messages import FlushCache
from tests.entrypoints.bodies import CHAT, chat, with_image
from tests.entrypoints.fakes import EchoEngine

pytestmark = pytest.mark.anyio


async def test_models_and_version_and_server_info(serve):
    async with serve() as http:
        models = (await http.get("/v1/models")).json()
        one = await http.get("/v1/models/echo")
        other = await http.get("/v1/models/gpt-9")
        info = (await http.get("/server_info")).json()
        version = (await http.get("/version")).json()
    assert models["data"][0]["id"] == "echo" and models["data"][0]["max_model_len"] == 512
    assert one.status_code == 200 and other.status_code == 404
    assert info["scheme"] == "gllm" and info["driver"]["steps_total"] == 7.0
    assert version["version"] == info["version"]


async def test_health_is_ok_degraded_or_draining(serve):
    async with serve() as http:
        assert (await http.get("/health")).json()["status"] == "ok"
        http.service.problems = lambda: ["encoder0 is down"]
        degraded = await http.get("/health")
        assert degraded.status_code == 200 and degraded.json()["status"] == "degraded"
        http.service.is_draining = True
        assert (await http.get("/health")).status_code == 503


async def test_a_driver_that_is_silent_for_a_minute_makes_health_fail(serve):
    now = 0.0
    async with serve(EchoEngine(is_silent=True)) as http:
        http.service.clock = lambda: now
        http.service._heard = 0.0
        assert (await http.get("/health")).status_code == 200
        now = 61.0
        response = await http.get("/health")
    assert response.status_code == 503 and response.json()["status"] == "unresponsive"


async def test_metrics_count_tokens_times_and_the_drivers_gauges(serve):
    async with serve() as http:
        await http.post(CHAT, json=with_image("ok"))
        text = (await http.get("/metrics")).text
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert lines["rserve_generation_tokens_total"] == "3.0"
    assert lines["rserve_image_tokens_total"] == "4.0"
    assert lines["rserve_time_to_first_token_seconds_count"] == "1.0"
    assert lines["rserve_driver_running"] == "1.0"
    assert lines["rserve_driver_steps_total"] == "7.0"
    assert lines['rserve_driver_busy_seconds_total{process="rank1"}'] == "2.5"
    assert lines['rserve_http_responses_total{path="/v1/chat/completions",status="200"}'] == "1.0"


async def test_flush_cache_reaches_the_driver(serve):
    engine = EchoEngine()
    async with serve(engine) as http:
        assert (await http.post("/flush_cache")).status_code == 200
    assert engine.of(FlushCache)


async def test_the_request_id_comes_back(serve):
    async with serve() as http:
        given = await http.get("/health", headers={"x-request-id": "trace-42"})
        bad = await http.get("/health", headers={"x-request-id": "no spaces allowed"})
        refused = await http.post(CHAT, json={})
    assert given.headers["x-request-id"] == "trace-42"
    assert len(bad.headers["x-request-id"]) == 32
    assert refused.headers["x-request-id"]


async def test_a_key_is_asked_for_everywhere_but_health_and_version(serve):
    async with serve(config=ServerConfig(api_key="secret")) as http:
        missing = await http.post(CHAT, json=chat())
        wrong = await http.get("/v1/models", headers={"authorization": "Bearer secre"})
        right = await http.get("/v1/models", headers={"authorization": "Bearer secret"})
        health = await http.get("/health")
    assert (missing.status_code, wrong.status_code) == (401, 401)
    assert missing.json()["error"]["code"] == "invalid_api_key"
    assert missing.headers["www-authenticate"] == "Bearer"
    assert (right.status_code, health.status_code) == (200, 200)


async def test_a_body_beyond_the_limit_is_refused(serve):
    async with serve(config=ServerConfig(max_body_bytes=1024)) as http:
        declared = await http.post(CHAT, json=chat("x" * 2000))

        async def endless():
            for _ in range(100):
                yield b" " * 100

        headers = {"content-type": "application/json"}
        chunked = await http.post(CHAT, content=endless(), headers=headers)
    assert declared.status_code == 413 and chunked.status_code == 413
    assert "1024" in declared.json()["error"]["message"]


async def test_a_large_body_is_parsed_as_a_small_one(serve):
    async with serve() as http:
        response = await http.post(CHAT, json=chat(user="x" * 100_000))
    assert response.json()["choices"][0]["message"]["content"] == "hello"


async def test_unknown_paths_methods_and_content_types_are_errors_in_the_same_format(serve):
    async with serve() as http:
        found = [
            await http.get("/nothing"),
            await http.get(CHAT),
            await http.post(CHAT, content=b"{}", headers={"content-type": "text/plain"}),
        ]
    assert [response.status_code for response in found] == [404, 405, 415]
    assert all(response.json()["error"]["message"] for response in found)


async def test_cors_is_off_unless_an_origin_is_allowed(serve):
    headers = {"origin": "http://page", "access-control-request-method": "POST"}
    async with serve() as http:
        assert "access-control-allow-origin" not in (await http.options(CHAT, headers=headers)).headers
    async with serve(config=ServerConfig(cors_origins=("http://page",), api_key="k")) as http:
        allowed = await http.options(CHAT, headers=headers)
    assert allowed.headers["access-control-allow-origin"] == "http://page"


async def test_the_openapi_schema_knows_the_bodies(serve):
    async with serve() as http:
        schema = (await http.get("/openapi.json")).json()
    body = schema["paths"][CHAT]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/ChatCompletionRequest"}
    assert "messages" in schema["components"]["schemas"]["ChatCompletionRequest"]["properties"]
    assert "StreamOptions" in schema["components"]["schemas"]
