"""The tiny model served by real processes, asked with the official client."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest
from PIL import Image, ImageDraw

from benchmarks.gpu.shapes import write_config
from benchmarks.inside import descendants
from gllm.core.model_shape import PRESETS
from gllm.multimodal.data_url import to_data_url
from gllm.runtime.host_memory import GIB, free_cpu_bytes
from tests.e2e.server import Server, command, running


def picture(colour: str = "red", size: tuple[int, int] = (56, 56)) -> str:
    image = Image.new("RGB", size, "white")
    ImageDraw.Draw(image).ellipse((8, 8, size[0] - 8, size[1] - 8), fill=colour)
    return to_data_url(image)


def ask(*urls: str, text: str = "What colour is the object?") -> list[dict]:
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [*images, {"type": "text", "text": text}]}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("server"), "tiny") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60)


def test_the_official_client_lists_the_model_and_chats_about_an_image(client: openai.OpenAI):
    model = client.models.list().data[0].id
    answer = client.chat.completions.create(model=model, messages=ask(picture()), max_tokens=8)
    assert answer.model == model == "tiny"
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.prompt_tokens_details.model_dump()["image_tokens"] == 4
    assert 1 <= answer.usage.completion_tokens <= 8


def test_a_stream_gives_the_same_text_as_a_whole_answer(client: openai.OpenAI):
    asked = {"model": "tiny", "messages": ask(picture("blue"), picture("green")), "max_tokens": 12}
    whole = client.chat.completions.create(**asked)
    stream = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    text, usage = "", None
    for chunk in stream:
        usage = chunk.usage or usage
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert usage == whole.usage


def test_choices_logprobs_and_seeds(client: openai.OpenAI):
    asked = {
        "model": "tiny",
        "messages": ask(picture()),
        "max_tokens": 5,
        "n": 3,
        "temperature": 1.0,
        "seed": 11,
        "logprobs": True,
        "top_logprobs": 2,
        "extra_body": {"ignore_eos": True},
    }
    first = client.chat.completions.create(**asked)
    second = client.chat.completions.create(**asked)
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in second.choices]
    assert len(set(texts)) > 1
    for choice in first.choices:
        assert len(choice.logprobs.content) == 5
        assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content)
        assert all(token.logprob <= 0 for token in choice.logprobs.content)


def test_text_completions_and_stop_strings(client: openai.OpenAI):
    asked = {"model": "tiny", "prompt": "Hello", "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**asked, extra_body={"ignore_eos": True})
    text = whole.choices[0].text
    stop = text[4:6]
    cut = client.completions.create(**asked, stop=[stop], extra_body={"ignore_eos": True})
    assert cut.choices[0].text == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


def test_twenty_requests_at_once_are_answered_as_they_are_alone(client: openai.OpenAI):
    def one(index: int) -> str:
        colour = ("red", "green", "blue", "black")[index % 4]
        answer = client.chat.completions.create(model="tiny", messages=ask(picture(colour)), max_tokens=6)
        return answer.choices[0].message.content

    alone = [one(index) for index in range(4)]
    with ThreadPoolExecutor(20) as pool:
        together = list(pool.map(one, range(20)))
    assert together == [alone[index % 4] for index in range(20)]


@pytest.mark.parametrize(
    "messages, status, where",
    [
        (ask("data:image/png;base64,AAAA"), 400, "messages[0].content[0]"),
        (ask(picture()[:200]), 400, "messages[0].content[0]"),
        (ask("http://127.0.0.1:9/x.png"), 400, "messages[0].content[0]"),
        (ask("file:///etc/passwd"), 400, "messages[0].content[0]"),
        (
            [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "x"}}]}],
            400,
            "messages[0]",
        ),
        ([{"role": "nobody", "content": "x"}], 400, "messages[0].role"),
        ([{"role": "user", "content": "x" * 60000}], 400, "messages"),
    ],
)
def test_bad_input_is_refused_and_names_its_part(server: Server, messages, status, where):
    response = httpx.post(f"{server.url}/v1/chat/completions", json={"messages": messages}, timeout=60)
    assert response.status_code == status, response.text
    assert response.json()["error"]["param"].startswith(where)


def test_clients_that_vanish_leave_nothing_behind(server: Server):
    body = {"messages": ask(picture()), "max_tokens": 2000, "stream": True, "ignore_eos": True}
    for _ in range(5):
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=60) as response:
            next(response.iter_lines())
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        driver = httpx.get(f"{server.url}/server_info", timeout=60).json()["driver"]
        if driver["kv_blocks_used"] == 0 and driver["requests_running"] == 0:
            return
        time.sleep(0.2)
    raise AssertionError(driver)


def test_metrics_and_health_tell_of_the_running_server(server: Server):
    assert httpx.get(f"{server.url}/health", timeout=60).json()["status"] == "ok"
    text = httpx.get(f"{server.url}/metrics", timeout=60).text
    assert "rserve_time_to_first_token_seconds_bucket" in text
    assert "rserve_driver_kv_blocks " in text


@pytest.mark.slow
def test_a_signal_lets_running_answers_end_and_leaves_no_process(tmp_path):
    with running(tmp_path, "tiny") as server:
        processes = descendants(server.process.pid)
        body = {"messages": ask(picture()), "max_tokens": 40, "stream": True, "ignore_eos": True}
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert rest[-2:] == ["data: [DONE]", ""]
        assert server.process.wait(30) == 0
    assert processes and not [pid for pid in processes if os.path.exists(f"/proc/{pid}")]


@pytest.mark.slow
def test_an_answer_that_outlives_the_drain_time_ends_with_an_error(tmp_path):
    with running(tmp_path, "tiny", "--drain-timeout", "0.5") as server:
        body = {"messages": ask(picture()), "max_tokens": 20000, "stream": True, "ignore_eos": True}
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert "shutting down" in rest[-2] and rest[-1] == "data: [DONE]"
        assert server.process.wait(30) == 0


@pytest.mark.slow
def test_a_second_signal_ends_running_answers_at_once(tmp_path):
    with running(tmp_path, "tiny") as server:
        body = {"messages": ask(picture()), "max_tokens": 20000, "stream": True, "ignore_eos": True}
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(1)
            assert server.process.poll() is None
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(10) == 0
    assert "Traceback" not in server.log.read_text()


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_server_with_a_message(tmp_path):
    with running(tmp_path, "tiny") as server:
        rank = max(descendants(server.process.pid))
        os.kill(rank, signal.SIGKILL)
        assert server.process.wait(30) == 1
        assert "error: rank0 was killed" in server.log.read_text()


def test_a_port_in_use_and_an_unknown_model_end_at_once_with_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        busy = subprocess.run(command("tiny", "--port", port), capture_output=True, text=True, timeout=60)
    assert busy.returncode == 1 and f"port {port}" in busy.stderr and "choose another" in busy.stderr
    unknown = subprocess.run(
        command("no-such-model", "--port", "0"), capture_output=True, text=True, timeout=60
    )
    assert unknown.returncode == 1 and "no such folder" in unknown.stderr
    assert len(busy.stderr.splitlines()) == len(unknown.stderr.splitlines()) == 1


@pytest.mark.skipif(free_cpu_bytes() > 137 * GIB, reason="the model fits")
def test_a_model_larger_than_memory_ends_at_once_with_one_line_and_no_process(tmp_path: Path):
    folder = write_config(tmp_path / "72b", PRESETS["qwen2.5-vl-72b"])
    flags = (str(folder), "--load-format", "dummy", "--device", "cpu", "--port", "0", "--kv-cache-gib", "2")
    ended = subprocess.run(command(*flags), capture_output=True, text=True, timeout=60)  # children hold pipes
    assert ended.returncode == 1 and ended.stderr.startswith("error: not enough memory: ")
    assert "(weights 136.7, KV cache 2.0, embeddings 0.5)" in ended.stderr
    assert "use a smaller model, a lower --kv-cache-gib, or fewer ranks" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1 and not ended.stdout
