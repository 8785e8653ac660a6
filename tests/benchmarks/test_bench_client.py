"""The benchmark client against a server whose answers and faults are known."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path

import pytest

from benchmarks.client import BenchResult, BenchSpec, result_line, run_benchmark
from benchmarks.client.cli import main
from benchmarks.results import read_lines
from benchmarks.workloads import Prompt, Text, peers
from benchmarks.workloads.image import ImageSpec
from benchmarks.workloads.image import prompts as image_prompts
from tests.benchmarks.fake_server import FakeServer, serving

# The fields that SGLang 0.5.23's client writes for its image data set.
SGLANG_FIELDS = [
    *(
        "backend",
        "dataset_name",
        "tag",
        "server_info",
        "request_rate",
        "max_concurrency",
        "duration",
        "completed",
    ),
    *("random_input_len", "random_output_len", "random_range_ratio", "sharegpt_output_len"),
    *("total_input_tokens", "total_input_text_tokens", "total_input_vision_tokens", "total_output_tokens"),
    *("total_output_tokens_retokenized", "request_throughput", "input_throughput", "output_throughput"),
    *(
        "total_throughput",
        "concurrency",
        "max_concurrent_requests",
        "max_output_tokens_per_s",
        "accept_length",
    ),
    *(f"{part}_e2e_latency_ms" for part in ("mean", "median", "std", "p90", "p95", "p99")),
    *(f"{part}_ttft_ms" for part in ("mean", "median", "std", "p90", "p95", "p99")),
    *(f"{part}_tpot_ms" for part in ("mean", "median", "std", "p90", "p95", "p99")),
    *(f"{part}_itl_ms" for part in ("mean", "median", "std", "p90", "p95", "p99")),
]

PROMPTS = [Prompt((Text(f"question {n}"),), output_len=3) for n in range(4)]


def bench(server: FakeServer, **options: object) -> BenchResult:
    async def run() -> BenchResult:
        async with serving(server) as url:
            spec = BenchSpec(**({"base_url": url, "prompts": PROMPTS, "progress": False} | options))
            return await run_benchmark(spec)

    return asyncio.run(run())


def run_cli(server: FakeServer, *flags: str) -> int:
    async def run() -> int:
        async with serving(server) as url:
            argv = ["--base-url", url, "--disable-tqdm", "--random-output-len", "3", *flags]
            return await asyncio.to_thread(main, argv)

    return asyncio.run(run())


def test_every_request_is_recorded_with_the_servers_token_counts() -> None:
    result = bench(FakeServer(prompt_tokens=50))
    assert [(r.prompt_tokens, r.output_tokens, r.text, r.error) for r in result.records] == [
        (50, 3, "abc", "")
    ] * 4
    metrics = result.metrics()
    assert (metrics["completed"], metrics["failed"]) == (4, 0)
    assert (metrics["total_input_tokens"], metrics["total_output_tokens"]) == (200, 12)
    assert metrics["input_throughput"] == pytest.approx(200 / result.duration)


def test_ttft_is_the_time_to_the_first_token_and_itl_the_time_between_tokens() -> None:
    result = bench(FakeServer(first_delay=0.05, gap=0.03))
    for record in result.records:
        assert record.ttft >= 0.05
        assert len(record.itls) == 2
        assert record.ttft + sum(record.itls) >= 0.11 - 0.002  # however late this process reads them
        assert record.tpot == pytest.approx((record.latency - record.ttft) / 2)
        assert record.ttft + sum(record.itls) <= record.latency + 1e-9


@pytest.mark.parametrize("contents", [("",), ("", "x"), ("x", "")])
def test_a_token_that_decodes_to_nothing_still_sets_ttft(contents: tuple[str, ...]) -> None:
    result = bench(FakeServer(contents=contents, first_delay=0.02))
    assert all(record.ok and record.ttft >= 0.02 for record in result.records)
    assert all(len(record.itls) == len(contents) - 1 for record in result.records)


@pytest.mark.parametrize("piece", [1, 3, 7])
def test_events_are_read_across_network_chunk_boundaries(piece: int) -> None:
    result = bench(FakeServer(contents=("日本", "é"), piece=piece))
    assert [record.text for record in result.records] == ["日本é"] * 4


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("500", "HTTP 500: out of blocks"),
        ("error-event", "the image is corrupt"),
        ("cut", "the stream broke off before [DONE]"),
        ("empty", "the stream ended without a token"),
        ("hang", "timed out"),
    ],
)
def test_a_failed_request_is_counted_with_its_reason_and_kept_out_of_the_means(
    fault: str, reason: str
) -> None:
    server = FakeServer(faults={2: fault})
    result = bench(server, warmup_requests=0, timeout_s=3.0 if fault == "hang" else 60.0)
    metrics = result.metrics()
    assert metrics["errors_by_reason"] == {reason: 1}
    assert (metrics["completed"], metrics["failed"]) == (3, 1)
    assert metrics["total_input_tokens"] == 150
    assert metrics["max_concurrent_requests"] <= 3


def test_a_failed_request_misses_every_slo() -> None:
    result = bench(FakeServer(faults={1: "500"}), warmup_requests=0, slo_ms={"ttft": 60_000.0})
    assert result.metrics()["slo_attainment"] == 0.75


def test_slo_attainment_counts_requests_within_the_limit() -> None:
    assert bench(FakeServer(first_delay=0.05), slo_ms={"ttft": 1.0}).metrics()["slo_attainment"] == 0.0
    assert bench(FakeServer(), slo_ms={}).metrics()["slo_attainment"] is None


def test_requests_are_sent_at_their_times_though_none_was_answered_yet() -> None:
    server = FakeServer(hold_until=4)  # answers none before it has seen all
    result = bench(server, arrivals=[0.0, 0.02, 0.04, 0.06], warmup_requests=0, timeout_s=60.0)
    assert result.failed == 0
    assert all(record.sent >= record.arrival - 1e-3 for record in result.records)
    assert result.metrics()["max_concurrent_requests"] == 4


def test_max_concurrency_holds_requests_back() -> None:
    result = bench(FakeServer(first_delay=0.03), max_concurrency=1)
    assert result.metrics()["max_concurrent_requests"] == 1
    assert max(record.lag for record in result.records) > 0.08


def test_without_usage_output_tokens_are_the_streamed_chunks_and_input_is_not_invented() -> None:
    result = bench(FakeServer(has_usage=False))
    assert [(r.prompt_tokens, r.output_tokens) for r in result.records] == [(None, 3)] * 4
    assert result_line(result, "custom")["input_token_source"] == "unknown"


def test_image_tokens_come_from_usage_or_from_the_models_resize_rule() -> None:
    prompts = peers.prompts(2, seed=0)
    told = bench(FakeServer(prompt_tokens=2000, image_tokens=900), prompts=prompts).metrics()
    counted = bench(FakeServer(prompt_tokens=2000), prompts=prompts).metrics()
    assert (told["total_input_vision_tokens"], told["total_input_text_tokens"]) == (1800, 2200)
    assert (counted["total_input_vision_tokens"], counted["total_input_text_tokens"]) == (2048, 1952)


def test_images_are_sent_as_data_urls_in_their_places() -> None:
    server = FakeServer()
    spec = ImageSpec(
        image_count=2, width=8, height=8, image_format="png", input_len=4, output_len=5, range_ratio=1.0
    )
    bench(server, prompts=image_prompts(1, 0, spec), warmup_requests=0)
    body = server.bodies[0]
    content = body["messages"][0]["content"]
    assert [part["type"] for part in content] == ["image_url", "image_url", "text"]
    assert content[0]["image_url"]["url"].startswith("data:image/png;base64,")
    assert (body["max_completion_tokens"], body["temperature"], body["ignore_eos"]) == (5, 0.0, True)


def test_the_openai_backend_gets_no_field_that_openai_does_not_know() -> None:
    server = FakeServer()
    bench(server, backend="openai", extra_body={"top_p": 0.5})
    assert "ignore_eos" not in server.bodies[0]
    assert server.bodies[0]["top_p"] == 0.5


def test_whole_answers_are_timed_when_streaming_is_off() -> None:
    result = bench(FakeServer(first_delay=0.02), stream=False)
    assert [(r.text, r.output_tokens) for r in result.records] == [("abc", 3)] * 4
    assert all(record.ttft == record.latency >= 0.02 for record in result.records)


def test_the_deployment_in_a_result_line_is_what_the_server_tells() -> None:
    info = {"scheme": "rserve", "pp": 4, "encoders": 1, "hardware": "H100"}
    line = result_line(bench(FakeServer(info=info)), "peers", experiment="fig12")
    assert (line["scheme"], line["pp"], line["tp"], line["hardware"]) == ("rserve", 4, None, "H100")
    assert (line["source"], line["workload"], line["experiment"]) == ("measured", "peers", "fig12")


def test_the_command_line_appends_one_line_for_each_rate(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    flags = ["--num-prompts", "3", "--request-rate", "200", "inf", "--output-file", str(file)]
    assert run_cli(FakeServer(), *flags, "--goodput", "ttft:60000", "--set", "C=1024", "note=hello") == 0
    lines = read_lines([file])
    assert [line["request_rate"] for line in lines] == [200.0, "inf"]
    assert all(line["completed"] == 3 and line["slo_attainment"] == 1.0 for line in lines)
    assert (lines[0]["C"], lines[0]["note"]) == (1024, "hello")
    assert json.loads(file.read_text().splitlines()[0])["dataset_name"] == "random"
    assert set(SGLANG_FIELDS) <= set(lines[0])


def test_the_command_line_fails_and_shows_why_when_a_request_fails(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_cli(FakeServer(faults={2: "500"}), "--num-prompts", "3") == 1
    assert "1 × HTTP 500: out of blocks" in capsys.readouterr().out


def test_the_command_line_says_what_to_do_when_no_server_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--base-url", "http://127.0.0.1:9", "--num-prompts", "1", "--disable-tqdm"]) == 2
    assert "is the server up?" in capsys.readouterr().err


def test_a_failed_warm_up_ends_the_run_before_it_is_timed() -> None:
    with pytest.raises(ConnectionError, match="out of blocks"):
        bench(FakeServer(faults={0: "500"}))


def test_details_hold_one_entry_for_each_request(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    run_cli(FakeServer(), "--num-prompts", "2", "--output-file", str(file), "--output-details")
    (line,) = read_lines([file])
    assert line["generated_texts"] == ["abc", "abc"]
    assert [len(line[name]) for name in ("input_lens", "output_lens", "ttfts", "itls", "errors")] == [2] * 5
    assert all(math.isfinite(ttft) and ttft > 0 for ttft in line["ttfts"])
