"""What cannot be served is refused before it is queued; what is too slow ends; exact fits are served."""

import signal
from collections.abc import Iterator

import pytest

from tests.faults.deployment import Deployment, body, deployed, picture

EMBEDDINGS = 64
TEXT = body(text="Hello")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Room for 64 embeddings (the tiny model's picture of 56 x 56 takes 4, of 224 x 224 takes 64)."""
    from gllm.models.names import resolve_model
    from gllm.models.shape_file import read_shape

    hidden = read_shape(resolve_model("tiny")).text.hidden_size
    gib = (EMBEDDINGS * hidden * 4 + 1) / 2**30
    flags = ("--scheme", "rserve", "--embedding-gib", repr(gib), "--limit-mm-per-prompt", "image=17")
    limits = ("--max-queued-requests", "3", "--request-timeout", "6")
    with deployed(tmp_path_factory.mktemp("server"), *flags, *limits) as server:
        yield server


def refused(server: Deployment, request: dict) -> dict:
    response = server.ask(request)
    assert response.status_code == 400, response.text
    return response.json()["error"]


@pytest.mark.slow
def test_images_that_exactly_fill_the_embedding_memory_are_served(server: Deployment):
    assert server.metrics()["embedding_rows"] == EMBEDDINGS
    assert server.ask(body(picture(1, 224))).status_code == 200
    assert server.ask(body(*map(picture, range(16)))).status_code == 200


@pytest.mark.slow
def test_images_beyond_the_embedding_memory_are_refused_with_both_numbers(server: Deployment):
    error = refused(server, body(*map(picture, range(17))))
    assert error["code"] == "embedding_capacity_exceeded" and error["param"] == "messages"
    assert "68 embeddings" in error["message"] and "holds 64 (--embedding-gib)" in error["message"]
    error = refused(server, body(picture(1), picture(2, 252)))
    assert "image 2 of 2 takes 81 embeddings" in error["message"]


@pytest.mark.slow
def test_one_image_too_many_is_refused_where_it_stands(server: Deployment):
    error = refused(server, body(*map(picture, range(18))))
    assert error["param"] == "messages[0].content[17]" and "17" in error["message"]


@pytest.mark.slow
def test_a_full_queue_answers_429_and_requests_end_with_504_in_time(server: Deployment):
    with server.stopped("encoder0"):
        answers = [server.later(body(picture(i), text=str(i))) for i in range(3)]
        server.wait(lambda: server.metrics()["requests_active"] == 3, "three requests do not wait")
        over = server.ask(TEXT)
        assert over.status_code == 429 and int(over.headers["retry-after"]) >= 1
        assert over.json()["error"]["code"] == "queue_full"
        assert {answer.result().status_code for answer in answers} == {504}
        assert server.ask(TEXT).status_code == 200
    server.wait_idle()
    assert server.ask(body(picture(9))).status_code == 200


@pytest.mark.slow
def test_more_images_than_the_memory_holds_wait_for_each_other_and_are_all_served(server: Deployment):
    for _ in range(4):
        answers = [server.later(body(picture(i, 168), picture(i + 50), text=str(i))) for i in range(3)]
        assert [answer.result().status_code for answer in answers] == [200] * 3
    server.wait_idle()


@pytest.mark.slow
def test_a_signal_ends_a_server_whose_encoder_stands_still(server: Deployment):
    with server.stopped("encoder0"):
        answer = server.later(body(picture(1)))
        server.wait(lambda: server.metrics()["requests_active"] == 1, "the request does not wait")
        server.server.process.send_signal(signal.SIGTERM)
        assert answer.result().status_code in (503, 504)
        assert server.server.process.wait(60) == 0
