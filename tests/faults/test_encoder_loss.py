"""Encoders are killed and stalled in the middle of requests; two of them, over both channels."""

import signal
from collections.abc import Iterator

import pytest

from tests.faults.deployment import Deployment, body, deployed, picture

TEXT = body(text="Hello")


@pytest.fixture(scope="module", params=["shm", "p2p"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    flags = ("--scheme", "rserve", "--encoders", "2", "--embedding-batch-size", "1")
    limits = ("--encoder-timeout", "3", "--encoder-restarts", "100", "--channel", request.param)
    with deployed(tmp_path_factory.mktemp("server"), *flags, *limits) as server:
        yield server


def healthy(server: Deployment) -> bool:
    return server.health()["status"] == "ok"


def is_encoding(server: Deployment) -> bool:
    return server.metrics()["encoder_outstanding_tokens"] > 0


@pytest.mark.slow
def test_a_killed_encoder_costs_nobody_an_answer(server: Deployment):
    asked = body(*map(picture, range(4)))
    alone = server.text_of(asked)
    with server.stopped("encoder0"):
        answer = server.later(asked)
        server.wait(lambda: is_encoding(server), "nothing went to an encoder")
        server.text_of(TEXT)
        assert not answer.done()
        killed = server.signal("encoder0", signal.SIGKILL)
    assert answer.result().json()["choices"][0]["message"]["content"] == alone
    server.wait(lambda: server.pid("encoder0") not in (None, killed), "encoder 0 was not started again")
    server.wait(lambda: healthy(server), "the server is not healthy")
    server.wait_idle()
    assert server.text_of(asked) == alone


@pytest.mark.slow
def test_a_stalled_encoder_is_killed_and_its_items_go_elsewhere(server: Deployment):
    asked = body(*map(picture, range(10, 14)))
    alone = server.text_of(asked)
    losses = server.metrics()["encoder_losses_total"]
    with server.stopped("encoder0"):
        assert server.text_of(asked) == alone
    assert server.metrics()["encoder_losses_total"] == losses + 1
    server.wait(lambda: healthy(server), "the server is not healthy")
    server.wait_idle()


@pytest.mark.slow
def test_health_tells_of_a_missing_encoder_and_text_is_served_without_any(server: Deployment):
    server.signal("encoder0", signal.SIGKILL)
    server.signal("encoder1", signal.SIGKILL)
    server.wait(lambda: server.health()["status"] == "degraded" or healthy(server), "health says nothing")
    asked = server.later(body(picture(20)))
    server.text_of(TEXT)
    assert asked.result().status_code == 200
    server.wait(lambda: healthy(server), "the server is not healthy")
    assert "encoder 0 ended" in server.server.log.read_text()


@pytest.mark.slow
def test_lost_encoders_leave_no_descriptors_and_no_wrong_embeddings(server: Deployment):
    asked = [body(picture(30 + i), picture(40 + i)) for i in range(6)]
    alone = [server.text_of(request) for request in asked]
    before = server.descriptors()
    for round_ in range(4):
        name = f"encoder{round_ % 2}"
        with server.stopped(name):
            answers = [server.later(request) for request in asked]
            server.wait(lambda: is_encoding(server), "nothing went to an encoder")
            server.signal(name, signal.SIGKILL)
        texts = [answer.result().json()["choices"][0]["message"]["content"] for answer in answers]
        assert texts == alone
        server.wait(lambda: healthy(server), "the server is not healthy")
    server.wait_idle()
    after = server.descriptors()
    assert after["rank0"] <= before["rank0"] + 2, (before, after)
    assert sum(after.values()) <= sum(before.values()) + 6, (before, after)
