"""A model whose stages are on two hosts answers as it does on one, and both hosts end together."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server import running
from tests.faults.deployment import body, picture
from tests.multinode.client import ask
from tests.multinode.hosts import Host, two_hosts, why_not

READY_S = 300.0
MASTER_PORT, ZMQ_PORT, HTTP_PORT = 29500, 29600, 8000
COMMON = ("tiny", "--num-kv-blocks", "512", "--pp", "2", "--maxp", "32", "--embedding-batch-size", "1")
NOT_HERE = why_not()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(NOT_HERE), reason=NOT_HERE)]


def bodies() -> list[dict[str, Any]]:
    return [
        body(text="Hello", max_tokens=12),
        body(picture(1), max_tokens=12),
        body(picture(2, 112), picture(3), picture(4, 84), text="What are these?", max_tokens=12),
    ]


def serve(host: Host, mode: str, rank: int, log: Path, *more: str) -> "subprocess.Popen[str]":
    where = ("--master-addr", "10.77.0.1", "--master-port", str(MASTER_PORT))
    ports = ("--zmq-port-base", str(ZMQ_PORT), "--port", str(HTTP_PORT))
    command = [sys.executable, "-m", "rserve.cli", "serve", *COMMON, "--launch-mode", mode]
    return host.start([*command, "--ranks", str(rank), *where, *ports, *more], log)


def wait_until_ready(master: "subprocess.Popen[str]", log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while "is ready at " not in log.read_text():
        assert master.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)


def end(*processes: "subprocess.Popen[str]") -> None:
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()


def test_two_hosts_give_the_answers_of_one_and_a_trace_on_one_clock(tmp_path: Path):
    with running(tmp_path, *COMMON) as single:
        expected = [ask(single.url, one) for one in bodies()]
    log, slave_log, trace = tmp_path / "master.log", tmp_path / "slave.log", tmp_path / "trace.json"
    with two_hosts() as (first, second):
        slave = serve(second, "slave", 1, slave_log, "--trace", str(tmp_path / "not-written.json"))
        master = serve(first, "master", 0, log, "--trace", str(trace))
        try:
            wait_until_ready(master, log)
            client = [sys.executable, "-m", "tests.multinode.client", f"http://127.0.0.1:{HTTP_PORT}"]
            assert json.loads(first.run(client, json.dumps(bodies()), 300)) == expected
            master.terminate()
            assert (master.wait(60), slave.wait(60)) == (0, 0), log.read_text() + slave_log.read_text()
        finally:
            end(master, slave)
    assert stages_run_in_order(json.loads(trace.read_text())["traceEvents"])


def stages_run_in_order(events: list[dict[str, Any]]) -> bool:
    """Every micro-batch begins on the first host before it ends on the second, by the trace's clock."""
    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    batches = [e for e in events if e["ph"] == "X" and "batch" in e["args"]]
    starts = {e["args"]["batch"]: e["ts"] for e in batches if names[e["pid"]] == "stage 0"}
    ends = {e["args"]["batch"]: e["ts"] + e["dur"] for e in batches if names[e["pid"]] == "stage 1"}
    return starts.keys() == ends.keys() != set() and all(starts[b] < ends[b] for b in starts)
