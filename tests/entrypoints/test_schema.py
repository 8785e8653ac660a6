"""Whatever is sent to any route, the server answers, and never with a 5xx."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error

from gllm.config import ServerConfig
from gllm.entrypoints.app import build_app
from gllm.entrypoints.serve import bind
from gllm.entrypoints.service import Service
from gllm.models.names import resolve_model
from gllm.multimodal.limits import MediaLimits
from gllm.multimodal.processor import PromptProcessor
from tests.entrypoints.fakes import EchoEngine, make_client, make_model


@pytest.fixture(scope="module")
def schema() -> Iterator[schemathesis.BaseSchema]:
    """The echo engine behind real prompts and a real socket; no image is fetched from anywhere."""
    listener = bind("127.0.0.1", 0)
    processor = PromptProcessor(resolve_model("tiny"), MediaLimits(media_hosts=("none",)))
    service = Service(make_client(EchoEngine()), processor, make_model(), ServerConfig())
    config = uvicorn.Config(build_app(service), log_config=None, access_log=False, lifespan="on")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.02)
    yield schemathesis.openapi.from_url(f"http://127.0.0.1:{listener.getsockname()[1]}/openapi.json")
    server.should_exit = True
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.slow
def test_no_request_breaks_the_server(schema: schemathesis.BaseSchema):
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) >= 9
    for operation in operations:

        @settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(operation.as_strategy())
        def answers(case: schemathesis.Case) -> None:
            response = case.call(timeout=30)
            case.validate_response(response, checks=[not_a_server_error])

        answers()
