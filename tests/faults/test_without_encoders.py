"""The last encoder is gone for good: stage 0 takes over, or only requests with images fail."""

import signal

import pytest

from tests.faults.deployment import body, deployed, picture

TEXT = body(text="Hello")


@pytest.mark.slow
def test_stage_zero_encodes_when_no_encoder_is_left(tmp_path):
    flags = ("--scheme", "rserve", "--encoder-restarts", "0", "--encoder-fallback", "driver")
    with deployed(tmp_path, *flags) as server:
        asked = body(*map(picture, range(3)))
        alone = server.text_of(asked)
        with server.stopped("encoder0"):
            answers = [server.later(asked) for _ in range(4)]
            server.wait(lambda: server.metrics()["encoder_outstanding_tokens"] > 0, "nothing was encoded")
            server.signal("encoder0", signal.SIGKILL)
        for answer in answers:
            assert answer.result().json()["choices"][0]["message"]["content"] == alone
        assert server.text_of(asked) == alone
        assert server.health() == {"status": "degraded", "problems": ["encoder 0 is lost"]}
        server.wait_idle()


@pytest.mark.slow
def test_without_fallback_only_requests_with_images_fail(tmp_path):
    flags = ("--scheme", "rserve", "--encoder-restarts", "0", "--encoder-fallback", "fail")
    with deployed(tmp_path, *flags) as server:
        text = server.text_of(TEXT)
        with server.stopped("encoder0"):
            answer = server.later(body(picture(1), picture(2)))
            server.wait(lambda: server.metrics()["encoder_outstanding_tokens"] > 0, "nothing was encoded")
            assert server.text_of(TEXT) == text
            server.signal("encoder0", signal.SIGKILL)
        assert answer.result().status_code == 503
        assert "no encoder is left" in answer.result().json()["error"]["message"]
        refused = server.ask(body(picture(3)))
        assert refused.status_code == 503 and refused.headers["retry-after"]
        assert server.text_of(TEXT) == text
        assert server.health()["status"] == "degraded"
        server.wait_idle()
