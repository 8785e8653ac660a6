"""Ranks as real processes: same answers, clean ends, and failures that name their cause."""

import json
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gllm.config import CacheConfig, EngineConfig, ModelConfig, ParallelConfig, ServerConfig
from gllm.core.batch import BatchResult
from gllm.core.core_config import CoreConfig
from gllm.core.effects import RequestFinished
from gllm.core.request import SamplingParams
from gllm.runtime.launcher import Deployment, LaunchError
from gllm.runtime.loading import ModelPlan
from gllm.runtime.messages import AddRequest, GetStats, PixelBatch, Stats
from tests.runtime.local_server import Asked, ask, load, make_engine

NUM_BLOCKS = 128
GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
CONFIG = EngineConfig(
    model=ModelConfig(model="tiny"),
    parallel=ParallelConfig(device="cpu", threads_per_rank=1),
    cache=CacheConfig(num_kv_blocks=NUM_BLOCKS),
)


def with_ranks(pp: int, tp: int, **changes: object) -> EngineConfig:
    return replace(CONFIG, parallel=replace(CONFIG.parallel, pp=pp, tp=tp, **changes))


def start(config: EngineConfig) -> Deployment:
    deployment = Deployment(config, config.to_json())
    deployment.start()
    deployment.wait_ready()
    return deployment


def questions() -> list[Asked]:
    plan = ModelPlan.of(CONFIG)
    return [
        ask(plan, "text", [5, 6, 7, 8], [], GREEDY),
        ask(plan, "two images", [20, 21], [(2, 3), (1, 4)], GREEDY),
        ask(plan, "image", [30, 31, 32], [(4, 4)], GREEDY),
    ]


def one_more() -> list[Asked]:
    return [ask(ModelPlan.of(CONFIG), "the last", [20, 21], [(2, 3), (1, 4)], GREEDY)]


def expected_tokens() -> dict[str, list[int]]:
    executor = load(ModelPlan.of(CONFIG), NUM_BLOCKS)
    engine = make_engine(executor, CoreConfig(NUM_BLOCKS))
    for asked in questions():
        engine.add(asked.request, asked.pixels)
    return {name: output.token_ids() for name, output in engine.run().items()}


def serve_all(deployment: Deployment, asked: list[Asked]) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {one.request.request_id: [] for one in asked}
    for one in asked:
        request = one.request
        deployment.outbox("rank0").send(AddRequest(request))
        for item, pixels in enumerate(one.pixels):
            batch = PixelBatch(item, request.request_id, (item,), (0,), (request.items[item].grid,))
            deployment.outbox("rank0-pixels").send(batch, [pixels.data])
    unfinished = set(tokens)
    while unfinished:
        for message in [deployment.inbox.receive(30_000), *deployment.inbox.drain()]:
            match message:
                case BatchResult(_, sampled):
                    for token in sampled:
                        tokens[token.request_id].append(token.token_id)
                case RequestFinished(request_id):
                    unfinished.discard(request_id)
                case None:
                    deployment.check()
                    raise AssertionError(f"no answer to {unfinished}")
    return tokens


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.fixture(scope="module")
def two_stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    trace = tmp_path_factory.mktemp("trace") / "trace.json"
    deployment = start(replace(with_ranks(2, 1), server=ServerConfig(trace=str(trace))))
    yield deployment
    deployment.stop()


def test_two_processes_answer_as_one_does(two_stages: Deployment):
    assert serve_all(two_stages, questions()) == expected_tokens()


def test_ready_tells_what_the_deployment_holds(two_stages: Deployment):
    ready = two_stages.ready["rank0"]
    assert (ready.num_kv_blocks, ready.num_kv_tokens) == (NUM_BLOCKS, NUM_BLOCKS * 16)
    assert ready.max_model_len == NUM_BLOCKS * 16
    assert set(two_stages.ready) == {"rank0", "rank1"}


def test_the_driver_answers_with_its_counters(two_stages: Deployment):
    two_stages.outbox("rank0").send(GetStats())
    message = two_stages.inbox.receive(30_000)
    assert isinstance(message, Stats)
    assert message.gauges["kv_blocks"] == NUM_BLOCKS
    assert message.gauges["kv_blocks_used"] == 0
    assert "preemptions_total" in message.counters


def test_idle_ranks_use_no_processor_time(two_stages: Deployment):
    pids = [ready.pid for ready in two_stages.ready.values()]
    before = [cpu_seconds(pid) for pid in pids]
    assert two_stages.inbox.receive(1500) is None
    assert [cpu_seconds(pid) - start for pid, start in zip(pids, before)] == pytest.approx([0, 0], abs=0.05)


def test_stopping_ends_all_processes_and_writes_the_trace(two_stages: Deployment):
    serve_all(two_stages, one_more())
    pids = [ready.pid for ready in two_stages.ready.values()]
    two_stages.stop()
    assert not any(is_running(pid) for pid in pids)
    assert two_stages.config.server.trace is not None
    events = json.loads(Path(two_stages.config.server.trace).read_text())["traceEvents"]
    tracks = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert set(tracks.values()) == {"stage 0", "stage 1"}
    kinds = {(tracks[e["pid"]], e["cat"]) for e in events if e["ph"] == "X"}
    assert kinds == {
        ("stage 0", "encode"), ("stage 0", "prefill"), ("stage 0", "decode"),
        ("stage 1", "prefill"), ("stage 1", "decode"),
    }  # fmt: skip
    assert any("the last" in e["args"]["request"] for e in events if e["ph"] == "X")


@pytest.mark.slow
@pytest.mark.parametrize(("pp", "tp"), [(1, 1), (1, 2), (4, 1), (2, 2)])
def test_any_layout_of_processes_answers_as_one_does(pp: int, tp: int):
    deployment = start(with_ranks(pp, tp))
    try:
        assert serve_all(deployment, questions()) == expected_tokens()
    finally:
        deployment.stop()


@pytest.mark.slow
def test_a_killed_rank_ends_the_deployment_and_is_named():
    deployment = start(with_ranks(2, 1))
    pids = {name: ready.pid for name, ready in deployment.ready.items()}
    for asked in questions():
        deployment.outbox("rank0").send(AddRequest(replace(asked.request, items=())))
    os.kill(pids["rank1"], 9)
    with pytest.raises(LaunchError, match="rank1 was killed"):
        while True:
            deployment.inbox.receive(100)
            deployment.check()
    deployment.stop()
    assert not any(is_running(pid) for pid in pids.values())


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (replace(CONFIG, model=ModelConfig(model="/does/not/exist")), "no such folder"),
        (replace(with_ranks(2, 1), cache=CacheConfig(kv_cache_gib=1e6)), "--kv-cache-gib 1e\\+06 needs"),
    ],
)
def test_a_deployment_that_cannot_start_says_why_in_one_line(config: EngineConfig, words: str):
    deployment = Deployment(config, config.to_json())
    deployment.start()
    with pytest.raises(LaunchError, match=words) as failure:
        deployment.wait_ready()
    assert "\n" not in str(failure.value)
    assert not Path(deployment.addresses["api"].removeprefix("ipc://")).exists()


def test_a_busy_rendezvous_port_is_refused_before_anything_starts():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = with_ranks(2, 1, master_port=taken.getsockname()[1])
        with pytest.raises(LaunchError, match="--master-port"):
            Deployment(config, config.to_json())
