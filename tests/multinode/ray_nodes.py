"""Two nodes of a Ray cluster on this machine."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.inside import descendants

START_S = 120.0
ATTEMPTS = 3
END_S = 30.0
ENVIRONMENT = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Cluster:
    """address: for --ray-address. nodes: what runs each node."""

    address: str
    nodes: list["subprocess.Popen[str]"]

    def processes(self) -> list[dict[str, int]]:
        """For each node, the processes that it runs by their names, as `ps` shows them."""
        return [{_name(pid): pid for pid in descendants(node.pid)} for node in self.nodes]

    def pid(self, name: str) -> int | None:
        """The process of this name."""
        return next((found[name] for found in self.processes() if name in found), None)

    def actor(self, name: str) -> int:
        """The actor in which this process runs: its parent's parent."""
        pid = self.pid(name)
        assert pid is not None, self.processes()
        return _parent(_parent(pid))


@contextmanager
def two_nodes(folder: Path, cpus: int) -> Iterator[Cluster]:
    """A cluster with so many CPUs a node and no GPU; all its processes are gone in the end."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    port = address.rpartition(":")[2]
    head = ("--head", "--port", port, "--include-dashboard", "false", "--temp-dir", str(folder / "ray"))
    nodes: list[subprocess.Popen[str]] = []
    try:
        for number, flags in enumerate((head, ("--address", address))):
            nodes.append(_start_node(folder / f"node{number}.log", cpus, *flags))
        yield Cluster(address, nodes)
    finally:
        _end(nodes)


def _start_node(log: Path, cpus: int, *flags: str) -> "subprocess.Popen[str]":
    """Ray gives up after 30 s, which a busy machine may need."""
    for _ in range(ATTEMPTS):
        node = _try_node(log, cpus, *flags)
        if _has_started(node, log):
            return node
        _end([node])
    raise AssertionError(f"a node did not start:\n{log.read_text()}")


def _has_started(node: "subprocess.Popen[str]", log: Path) -> bool:
    deadline = time.monotonic() + START_S
    while node.poll() is None and time.monotonic() < deadline:
        if "Ray runtime started" in log.read_text():
            return True
        time.sleep(0.2)
    return False


def _try_node(log: Path, cpus: int, *flags: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
    sizes = ("--num-cpus", str(cpus), "--num-gpus", "0", "--object-store-memory", "100000000")
    with log.open("w") as output:
        return subprocess.Popen(
            [*command, "--node-ip-address", "127.0.0.1", *sizes, *flags],
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            env=ENVIRONMENT,
        )


def _end(nodes: "list[subprocess.Popen[str]]") -> None:
    below = [pid for node in nodes for pid in descendants(node.pid)]
    for node in nodes:
        node.terminate()
    for node in nodes:
        try:
            node.wait(END_S)
        except subprocess.TimeoutExpired:
            node.kill()
            node.wait()
    deadline = time.monotonic() + END_S
    while any(map(_runs, below)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in filter(_runs, below):
        os.kill(pid, signal.SIGKILL)


def _runs(pid: int) -> bool:
    return _name(pid) != "gone"


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "gone"


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
