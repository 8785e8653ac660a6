"""A server with --trace, seen from its metrics and its trace file: nothing of two requests is missing."""

import itertools
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image, ImageDraw
from prometheus_client.parser import text_string_to_metric_families

from gllm.multimodal.data_url import to_data_url
from plots import timeline
from plots.trace import load
from tests.e2e.server import running

COLOURS = (("red", "green", "blue"), ("yellow", "black", "white"))
OUTPUT = 6
ALL_RANKS = {"encoder 0", "stage 0", "stage 1"}


def body(colours: tuple[str, ...]) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    for colour in colours:
        image = Image.new("RGB", (224, 224), "white")
        ImageDraw.Draw(image).ellipse((20, 20, 200, 200), fill=colour)
        url = to_data_url(image)
        content += [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": colour}]
    messages = [{"role": "user", "content": content}]
    return {"messages": messages, "max_tokens": OUTPUT, "temperature": 0, "ignore_eos": True}


@dataclass(frozen=True)
class Seen:
    """What a run left behind. ids: of both requests."""

    trace: Path
    events: list[dict[str, Any]]
    metrics: str
    ids: list[str]

    def spans(self, rank: str, kind: str) -> list[dict[str, Any]]:
        pids = {e["pid"]: e["args"]["name"] for e in self.events if e["ph"] == "M"}
        return [e for e in self.events if e["ph"] == "X" and pids[e["pid"]] == rank and e["cat"] == kind]

    def moments(self, request: str) -> dict[str, float]:
        """Arrival, instants and end of a request, in microseconds."""
        mine = [e for e in self.events if e.get("cat") == "request" and e["id"] == request]
        assert [e["ph"] for e in mine].count("b") == [e["ph"] for e in mine].count("e") >= 4
        ends = max(e["ts"] for e in mine if e["ph"] == "e")
        return {e["name"]: e["ts"] for e in mine if e["ph"] == "n"} | {"end": ends}


HAS_NIXL = find_spec("nixl") is not None
NIXL = pytest.param("nixl", marks=pytest.mark.skipif(not HAS_NIXL, reason="NIXL is not installed"))


def metrics_with_loads(url: str, timeout_s: float = 20.0) -> str:
    """/metrics once ranks have said what they did, which they do about a second after their first step."""
    deadline = time.monotonic() + timeout_s
    while True:
        text = httpx.get(f"{url}/metrics", timeout=60).text
        if "rserve_driver_busy_seconds_total" in text or time.monotonic() > deadline:
            return text
        time.sleep(0.2)


@pytest.fixture(scope="module", params=["shm", "p2p", NIXL])
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    folder = tmp_path_factory.mktemp("trace")
    trace = folder / "trace.json"
    flags = ("--pp", "2", "--embedding-batch-size", "1", "--maxp", "64", "--channel", request.param)
    with running(folder, "tiny", "--num-kv-blocks", "512", "--trace", str(trace), *flags) as server:

        def ask(colours: tuple[str, ...]) -> str:
            answer = httpx.post(f"{server.url}/v1/chat/completions", json=body(colours), timeout=120)
            return str(answer.raise_for_status().json()["id"])

        with ThreadPoolExecutor(2) as pool:
            ids = list(pool.map(ask, COLOURS))
        metrics = metrics_with_loads(server.url)
        assert server.stop() == 0
    yield Seen(trace, json.loads(trace.read_text())["traceEvents"], metrics, ids)


@pytest.mark.slow
def test_every_event_has_what_chrome_s_format_asks_for(seen: Seen):
    names = {e["args"]["name"] for e in seen.events if e["ph"] == "M" and e["name"] == "process_name"}
    assert names == ALL_RANKS | {"requests"}
    for event in seen.events:
        assert event["ph"] in ("M", "X", "b", "n", "e")
        assert isinstance(event["name"], str) and event["pid"] >= 1 and event["tid"] >= 1
        if event["ph"] != "M":
            assert isinstance(event["ts"], float) and event["cat"]
        if event["ph"] == "X":
            assert event["dur"] >= 0
        if event["ph"] in "bne":
            assert event["id"] in seen.ids


@pytest.mark.slow
def test_encodings_transfers_and_micro_batches_of_both_requests_are_there(seen: Seen):
    for request in seen.ids:
        encodings = [e for e in seen.spans("encoder 0", "encode") if e["args"]["request"] == request]
        transfers = [e for e in seen.spans("encoder 0", "transfer") if e["args"]["request"] == request]
        assert len(encodings) == len(transfers) == 3
        for encoding, transfer in zip(encodings, sorted(transfers, key=lambda e: e["ts"]), strict=True):
            assert encoding["args"]["tokens"] == transfer["args"]["tokens"] == 64
            assert transfer["ts"] >= encoding["ts"] + encoding["dur"]
        for stage in ("stage 0", "stage 1"):
            batches = [e for e in seen.spans(stage, "prefill") if request in e["args"]["request"]]
            assert len(batches) >= 3
    on_both = [{e["args"]["batch"] for e in seen.spans(f"stage {s}", "decode")} for s in (0, 1)]
    assert on_both[0] == on_both[1] != set()


@pytest.mark.slow
def test_a_request_s_life_is_in_order_on_the_clock_of_the_ranks(seen: Seen):
    for request in seen.ids:
        at = seen.moments(request)
        assert at["arrival"] < min(at["first encode"], at["first prefill"])
        assert at["first prefill"] < at["first token"] < at["end"]
        mine = [e for e in seen.events if e["ph"] == "X" and request in e["args"]["request"].split(",")]
        assert at["arrival"] < min(e["ts"] for e in mine)
        encoded = max(e["ts"] + e["dur"] for e in mine if e["cat"] == "encode")
        assert at["first encode"] < encoded < at["first token"]
        assert at["end"] > max(e["ts"] + e["dur"] for e in mine if e["cat"] == "transfer")


@pytest.mark.slow
def test_bubbles_fill_the_gaps_of_the_last_stage_and_overlap_no_work(seen: Seen):
    for stage in ("stage 0", "stage 1"):
        gaps = seen.spans(stage, "bubble")
        work = seen.spans(stage, "prefill") + seen.spans(stage, "decode")
        assert gaps
        spans = sorted([*gaps, *work], key=lambda e: e["ts"])
        for before, after in itertools.pairwise(spans):
            assert before["ts"] + before["dur"] <= after["ts"] + 0.01


@pytest.mark.slow
def test_the_trace_becomes_a_picture_with_a_row_per_rank(seen: Seen, capsys: pytest.CaptureFixture[str]):
    trace = load(seen.trace)
    assert trace.ranks == ["encoder 0", "stage 0", "stage 1"]
    assert set(trace.requests) == set(seen.ids)
    assert all(0 < trace.busy_share(rank) <= 1 for rank in trace.ranks)
    assert timeline.main([str(seen.trace)]) == 0
    assert seen.trace.with_suffix(".png").stat().st_size > 10_000
    assert "bubbles" in capsys.readouterr().out


@pytest.mark.slow
def test_metrics_hold_loads_queues_memory_and_distributions_under_conventional_names(seen: Seen):
    families = {family.name: family for family in text_string_to_metric_families(seen.metrics)}
    types = {
        "rserve_driver_busy_seconds": "counter",
        "rserve_driver_requests_running": "gauge",
        "rserve_driver_requests_waiting": "gauge",
        "rserve_encoder_queue_batches": "gauge",
        "rserve_driver_schedulable_tokens": "gauge",
        "rserve_driver_tracker_bytes": "gauge",
        "rserve_time_to_first_token_seconds": "histogram",
        "rserve_encode_batch_tokens": "histogram",
    }
    assert {name: families[name].type for name in types} == types
    busy = {s.labels["process"]: s.value for s in families["rserve_driver_busy_seconds"].samples}
    assert set(busy) >= {"rank0"} and all(seconds > 0 for seconds in busy.values())
    counts = {s.name: s.value for f in families.values() for s in f.samples if s.name.endswith("_count")}
    assert counts["rserve_time_to_first_token_seconds_count"] == 2
    assert counts["rserve_encode_batch_tokens_count"] == 6
    for family in families.values():
        assert family.documentation
        assert all(s.name.endswith("_total") for s in family.samples if family.type == "counter")
