"""An encoder that is lost again and again leaves nothing behind in the processes that live on."""

import os
import signal
from pathlib import Path

import pytest

from tests.faults.deployment import Deployment, body, deployed, picture

RESTARTS = {"shm": 100, "p2p": 30}
SPARE = 4
"""Descriptors that come and go: connections of clients and of encoders that are just joining."""


@pytest.mark.slow
@pytest.mark.parametrize("channel", RESTARTS)
def test_many_restarts_of_an_encoder_leave_no_descriptor_and_no_thread(tmp_path: Path, channel: str):
    flags = ("--scheme", "rserve", "--encoder-restarts", "1000", "--channel", channel)
    asked = body(picture(1), picture(2))
    with deployed(tmp_path, *flags) as server:
        restart(server, 1)
        alone = server.text_of(asked)
        server.wait_idle()
        before = held(server)
        for number in range(2, RESTARTS[channel] + 2):
            restart(server, number)
        assert server.text_of(asked) == alone
        server.wait_idle()
        server.wait(lambda: is_as(before, held(server)), f"more is held than before: {before}")


def restart(server: Deployment, number: int) -> None:
    """Kill the encoder, wait until its successor works; number: how often that has happened then."""
    server.signal("encoder0", signal.SIGKILL)
    server.wait(
        lambda: server.server.log.read_text().count("encoder 0 works again") == number,
        "the encoder was not started again",
    )


def held(server: Deployment) -> dict[str, tuple[int, int]]:
    """Descriptors and threads of the API server, the process that starts the others, and the driver."""
    driver = server.pid("rank0")
    assert driver is not None
    parent = int(Path(f"/proc/{driver}/stat").read_text().rpartition(")")[2].split()[1])
    pids = {"api": server.server.process.pid, "zygote": parent, "driver": driver}
    return {name: (entries(pid, "fd"), entries(pid, "task")) for name, pid in pids.items()}


def entries(pid: int, folder: str) -> int:
    return len(os.listdir(f"/proc/{pid}/{folder}"))


def is_as(before: dict[str, tuple[int, int]], now: dict[str, tuple[int, int]]) -> bool:
    pairs = [pair for name in before for pair in zip(before[name], now[name], strict=True)]
    return all(new <= old + SPARE for old, new in pairs)
