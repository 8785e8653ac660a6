"""One, 32, 200 and 1,000 clients at once, a quarter of whom vanish: every request ends, nothing stays."""

import asyncio
import time
from collections.abc import Iterator

import httpx
import pytest

from benchmarks.crowd import CrowdPlan, chat, crowd
from benchmarks.inside import processes, wait_until_idle
from tests.e2e.server import Server, running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = ("--scheme", "rserve", "--encoders", "2", "--num-kv-blocks", "256")
    memory = ("--embedding-batch-size", "16", "--embedding-gib", "0.0005")
    with running(tmp_path_factory.mktemp("server"), "tiny", *flags, *memory) as server:
        asyncio.run(crowd(server.url, CrowdPlan(32, seed=99)))
        wait_until_idle(server.url, 60)
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("num", [1, 32, 200, 1000])
def test_every_request_ends_and_nothing_stays(server: Server, num: int):
    before = processes(server.process.pid)
    report = asyncio.run(crowd(server.url, CrowdPlan(num, patience_s=max(1.0, num / 50), seed=num)))
    assert not report.errors and not report.hung, report
    assert report.ended == num
    assert wait_until_idle(server.url, 60) == {}
    started = time.monotonic()
    text = chat([], 4, text="Hello")
    assert httpx.post(f"{server.url}/v1/chat/completions", json=text, timeout=60).status_code == 200
    assert time.monotonic() - started < 30
    after = processes(server.process.pid)
    assert after.keys() == before.keys()
    for name, state in after.items():
        assert state.shared == before[name].shared, name
        assert state.descriptors <= before[name].descriptors + 8, (name, before[name], state)
    assert httpx.get(f"{server.url}/health", timeout=60).json()["status"] == "ok"
