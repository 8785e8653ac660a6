"""Master and slave hosts, here two process trees on one machine, serve one model over TCP."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gllm.config import ConfigError, EngineConfig, ParallelConfig
from gllm.runtime.hosts import check_hosts, interface_of, on_host, own_address, tcp_addresses
from gllm.runtime.launcher import Deployment, LaunchError
from tests.runtime.test_deployment import expected_tokens, is_running, questions, serve_all, start, with_ranks

ROOT = Path(__file__).parents[2]


def free_port_base(count: int) -> int:
    """The first of `count` ports in a row that nobody uses."""
    for base in range(20000 + os.getpid() % 8000, 60000, 97):
        sockets = []
        try:
            for port in range(base, base + count):
                sockets.append(socket.create_server(("127.0.0.1", port)))
            return base
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
    raise RuntimeError("no free ports")


def host_config(mode: str, ranks: tuple[int, ...], ports: int) -> EngineConfig:
    return with_ranks(2, 1, launch_mode=mode, ranks=ranks, master_port=ports, zmq_port_base=ports + 1)


@pytest.fixture
def hosts() -> Iterator[tuple[Deployment, subprocess.Popen[str]]]:
    ports = free_port_base(6)
    text = host_config("slave", (1,), ports).to_json()
    command = [sys.executable, "-m", "tests.runtime.slave_process", text]
    slave = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        deployment = start(host_config("master", (0,), ports))
        yield deployment, slave
        deployment.stop()
    finally:
        if slave.poll() is None:
            slave.kill()
        slave.wait()


@pytest.mark.slow
def test_two_hosts_answer_as_one_and_end_together(hosts: tuple[Deployment, subprocess.Popen[str]]):
    deployment, slave = hosts
    assert serve_all(deployment, questions()) == expected_tokens()
    deployment.stop()
    assert slave.wait(timeout=20) == 0


@pytest.mark.slow
def test_a_rank_that_dies_on_a_slave_ends_both_hosts(hosts: tuple[Deployment, subprocess.Popen[str]]):
    deployment, slave = hosts
    os.kill(deployment.ready["rank1"].pid, signal.SIGKILL)
    assert slave.wait(timeout=20) == 1
    with pytest.raises(LaunchError, match="rank1 was killed"):
        while True:
            deployment.inbox.socket.poll(100)
            deployment.check()


@pytest.mark.slow
def test_a_slave_ends_when_its_master_is_gone(hosts: tuple[Deployment, subprocess.Popen[str]]):
    deployment, slave = hosts
    deployment.stop(grace_s=0.0)
    assert slave.wait(timeout=20) == 1
    assert not is_running(deployment.ready["rank1"].pid)
    assert slave.stdout is not None
    assert "lost the master" in slave.stdout.read()


def test_ports_follow_each_other_from_the_base():
    parallel = ParallelConfig(pp=3, master_addr="10.0.0.1", zmq_port_base=7000)
    assert tcp_addresses(parallel, ["encoder0"]) == {
        "api": "tcp://10.0.0.1:7000",
        "rank0": "tcp://10.0.0.1:7001",
        "rank0-pixels": "tcp://10.0.0.1:7002",
        "rank1": "tcp://10.0.0.1:7003",
        "rank2": "tcp://10.0.0.1:7004",
        "encoder0": "tcp://10.0.0.1:7005",
    }
    assert on_host("tcp://10.0.0.1:7003", "10.0.0.2") == "tcp://10.0.0.2:7003"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"zmq_port_base": 0}, "--zmq-port-base"),
        ({"ranks": None}, "--ranks"),
        ({"ranks": (1,)}, "rank 0 is on the master"),
        ({"ranks": (0, 2)}, "ranks are 0 to 1"),
    ],
)
def test_what_hosts_must_agree_on_is_asked_for(changes: dict[str, object], words: str):
    good = ParallelConfig(pp=2, launch_mode="master", ranks=(0,), master_port=6000, zmq_port_base=7000)
    check_hosts(good)
    with pytest.raises(ConfigError, match=words):
        check_hosts(replace(good, **changes))


def test_the_interface_of_the_loopback_address_is_found():
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert interface_of("127.0.0.1") == "lo"
