"""Clients go away at every stage of a request; nothing of it stays, and late embeddings harm nobody."""

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.faults.deployment import Deployment, body, deployed, picture


class _Stalling(BaseHTTPRequestHandler):
    """Sends the first bytes of a picture, and the rest only after a long time."""

    def do_GET(self) -> None:
        data = _png()
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[:64])
        self.wfile.flush()
        time.sleep(8)

    def log_message(self, *_: object) -> None:
        """Quiet."""


def _png() -> bytes:
    import base64

    return base64.b64decode(picture(3, 224).partition(",")[2])


@pytest.fixture(scope="module")
def slow_host() -> Iterator[str]:
    host = ThreadingHTTPServer(("127.0.0.1", 0), _Stalling)
    host.daemon_threads = True
    threading.Thread(target=host.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{host.server_address[1]}/x.png"
    host.shutdown()
    host.server_close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    flags = ("--scheme", "rserve", "--pp", "2", "--embedding-batch-size", "1", "--token-budget", "64")
    hosts = ("--media-hosts", "127.0.0.1", "--media-fetch-timeout", "60")
    with deployed(tmp_path_factory.mktemp("server"), *flags, *hosts) as server:
        server.text_of(body(picture(0)))
        server.wait_idle()
        yield server


def hang_up_when(server: Deployment, request: dict, condition, what: str) -> None:
    """Send a request over a raw socket, close it once the condition holds."""
    import json

    host, port = server.server.url.removeprefix("http://").split(":")
    data = json.dumps(request).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n"
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + b"content-type: application/json\r\n\r\n" + data)
        server.wait(condition, what)


def metric(server: Deployment, name: str) -> float:
    return server.metrics()[name]


@pytest.mark.slow
def test_clients_that_leave_while_queued_or_encoding_leave_nothing_but_stale_embeddings(server: Deployment):
    stale = metric(server, "stale_embeddings_total")
    with server.stopped("encoder0"):
        for seed in range(4):
            hang_up_when(
                server,
                body(picture(seed), picture(10 + seed)),
                lambda: (
                    metric(server, "encoder_outstanding_tokens") > 0
                    and metric(server, "requests_active") == 1
                ),
                "nothing is encoded",
            )
            server.wait(lambda: metric(server, "requests_active") == 0, "the request is still there")
        assert metric(server, "kv_blocks_used") == 0 == metric(server, "tracker_requests")
    server.wait_idle()
    assert metric(server, "stale_embeddings_total") > stale


@pytest.mark.slow
def test_a_client_that_leaves_while_half_prefilled_leaves_nothing(server: Deployment, slow_host: str):
    asked = body(picture(1, 224), slow_host, text="compare")
    hang_up_when(
        server,
        asked,
        lambda: metric(server, "kv_blocks_used") > 0 and metric(server, "tracker_tokens") == 0,
        "the first image is not prefilled",
    )
    server.wait_idle()
    assert server.text_of(body(picture(5)))


@pytest.mark.slow
def test_a_slow_host_holds_up_nobody_else(server: Deployment, slow_host: str):
    waiting = [server.later(body(slow_host, text=str(i))) for i in range(3)]
    started = time.monotonic()
    assert server.text_of(body(picture(6)))
    assert not any(answer.done() for answer in waiting), time.monotonic() - started
    assert all(answer.result().status_code == 400 for answer in waiting)
    server.wait_idle()


@pytest.mark.slow
def test_a_client_that_leaves_while_decoding_leaves_nothing(server: Deployment):
    for _ in range(3):
        with server.stream(body(picture(7), max_tokens=4000, ignore_eos=True)) as response:
            next(response.iter_lines())
        server.wait_idle()
