"""Two hosts on one machine: network namespaces with a cable (a veth pair) between them."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)}


@dataclass(frozen=True)
class Host:
    """A namespace with an address."""

    name: str
    address: str

    def start(self, command: Sequence[str], log: Path) -> "subprocess.Popen[str]":
        """Run a program there; its process is the program's own."""
        with log.open("w") as output:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.name, *command],
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=ROOT,
                env=ENVIRONMENT,
            )

    def run(self, command: Sequence[str], text: str, timeout: float) -> str:
        """What a program there prints, given this text. Raises CalledProcessError."""
        return subprocess.run(
            ["ip", "netns", "exec", self.name, *command],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            timeout=timeout,
            cwd=ROOT,
            env=ENVIRONMENT,
        ).stdout


def why_not() -> str:
    """Why there can be no namespaces here; empty when there can."""
    if shutil.which("ip") is None:
        return "there is no `ip` (iproute2)"
    name = f"rs{os.getpid()}try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode != 0:
        return f"network namespaces are not permitted: {made.stderr.strip()}"
    _ip("netns", "del", name)
    return ""


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Connected, and with loopback interfaces; gone in the end."""
    hosts = [Host(f"rs{os.getpid()}{letter}", f"10.77.0.{n}") for n, letter in enumerate("ab", start=1)]
    cables = [f"v{host.name}" for host in hosts]
    try:
        for host in hosts:
            _ip("netns", "add", host.name)
        _ip("link", "add", cables[0], "type", "veth", "peer", "name", cables[1])
        for host, cable in zip(hosts, cables):
            _ip("link", "set", cable, "netns", host.name)
            _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", cable)
            _ip("-n", host.name, "link", "set", cable, "up")
            _ip("-n", host.name, "link", "set", "lo", "up")
        yield hosts[0], hosts[1]
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
