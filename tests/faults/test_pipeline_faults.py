"""A small cache makes preemption certain; then a rank of the language model dies."""

import signal
from collections.abc import Iterator

import pytest

from benchmarks.inside import descendants
from tests.faults.deployment import Deployment, body, deployed, picture


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    flags = ("--scheme", "rserve", "--pp", "2", "--embedding-batch-size", "1", "--token-budget", "64")
    with deployed(tmp_path_factory.mktemp("server"), *flags, "--num-kv-blocks", "24") as server:
        yield server


@pytest.mark.slow
def test_preempted_requests_get_their_released_images_encoded_again(server: Deployment):
    asked = [
        body(picture(i, 84), picture(i + 20, 84), text=str(i), max_tokens=80, ignore_eos=True)
        for i in range(6)
    ]
    alone = [server.text_of(request) for request in asked]
    assert server.metrics()["preemptions_total"] == 0
    answers = [server.later(request) for request in asked]
    assert [a.result().json()["choices"][0]["message"]["content"] for a in answers] == alone
    assert server.metrics()["preemptions_total"] > 0
    server.wait_idle()


@pytest.mark.slow
def test_choices_that_end_by_a_stop_string_stop_the_engine(server: Deployment):
    """The driver knows nothing of stop strings: the API server tells it when the last choice has ended."""
    long = {"max_tokens": 200, "ignore_eos": True, "temperature": 1.0, "seed": 5, "n": 3}
    texts = [c["message"]["content"] for c in server.ask(body(picture(1), **long)).json()["choices"]]
    stops = [text[10:12] for text in texts]
    answer = server.ask(body(picture(1), **long, stop=stops)).json()["choices"]
    assert [choice["finish_reason"] for choice in answer] == ["stop"] * 3
    assert all(not any(stop in choice["message"]["content"] for stop in stops) for choice in answer)
    server.wait_idle()


@pytest.mark.slow
def test_a_dead_rank_ends_all_requests_and_the_server(server: Deployment):
    processes = descendants(server.server.process.pid)
    text = ""
    with server.stream(body(text="go on", max_tokens=300, ignore_eos=True)) as response:
        lines = response.iter_lines()
        next(lines)
        server.signal("rank1", signal.SIGKILL)
        text = "\n".join(lines)
    assert "rank1 was killed" in text
    assert server.server.process.wait(60) == 1
    assert "error: rank1 was killed" in server.server.log.read_text()
    gone = set(processes) - set(descendants(1)) if processes else set()
    assert gone == set(processes)
