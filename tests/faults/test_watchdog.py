"""A stall has a name: the log tells what requests wait for while an encoder stands still."""

import re

import pytest

from tests.faults.deployment import body, deployed, picture

FLAGS = ("--scheme", "rserve", "--embedding-batch-size", "1", "--encoder-timeout", "120")


@pytest.mark.slow
def test_a_request_whose_encoder_stands_still_is_said_to_wait_for_its_embedding(tmp_path):
    with deployed(tmp_path, *FLAGS) as server:
        alone = server.text_of(body(picture(1), picture(2)))
        with server.stopped("encoder0"):
            answer = server.later(body(picture(1), picture(2)))
            server.wait(lambda: said(server.server.log.read_text()) is not None, "the log names no stall")
            assert not answer.done()
            assert server.health()["status"] == "ok"
        assert answer.result().json()["choices"][0]["message"]["content"] == alone
        assert said(server.server.log.read_text()) == "embedding"
        server.wait_idle()


def said(log: str) -> str | None:
    """What the first stalled request waits for, according to the log."""
    line = re.search(r"1 requests have not moved for 10 s, waiting 1 for (\w+) \(chatcmpl-\w+: \1\)", log)
    return line and line[1]
