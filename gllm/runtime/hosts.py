"""Deployments over several hosts: where inboxes are, and which interface leads to the master."""

import fcntl
import socket
import struct
from collections.abc import Sequence

from gllm.config import ConfigError, ParallelConfig

SIOCGIFADDR = 0x8915


def check_hosts(parallel: ParallelConfig) -> None:
    """Raise ConfigError where master or slave mode lacks what the hosts must agree on."""
    if parallel.launch_mode == "normal":
        return
    missing = [
        flag
        for flag, value in (
            ("--ranks", parallel.ranks),
            ("--master-port", parallel.master_port),
            ("--zmq-port-base", parallel.zmq_port_base),
        )
        if not value
    ]
    if missing:
        raise ConfigError(f"--launch-mode {parallel.launch_mode} also needs {', '.join(missing)}")
    outside = [rank for rank in parallel.ranks or () if not 0 <= rank < parallel.world_size]
    if outside or (0 in (parallel.ranks or ())) != (parallel.launch_mode == "master"):
        raise ConfigError(
            f"--ranks {','.join(map(str, parallel.ranks or ()))}: ranks are 0 to {parallel.world_size - 1}, "
            "and rank 0 is on the master"
        )


def tcp_addresses(parallel: ParallelConfig, extra: Sequence[str]) -> dict[str, str]:
    """Inboxes by name: port base + 0 is the API server, then rank 0, its pixels, ranks 1 to n - 1, others.

    Those of ranks 1 to n - 1 are where such a rank listens; rank 0 learns their hosts at the rendezvous.
    """
    names = ["api", "rank0", "rank0-pixels"]
    names += [f"rank{rank}" for rank in range(1, parallel.world_size)]
    names += extra
    return {
        name: f"tcp://{parallel.master_addr}:{parallel.zmq_port_base + index}"
        for index, name in enumerate(names)
    }


def on_host(address: str, host: str) -> str:
    """The same port on another host: tcp://a:5 on b is tcp://b:5."""
    return f"tcp://{host}:{address.rpartition(':')[2]}"


def reachable(inbox: str, parallel: ParallelConfig) -> str:
    """The address of an inbox of this process for processes on all hosts of the deployment."""
    return on_host(inbox, own_address(parallel.master_addr)) if inbox.startswith("tcp:") else inbox


def own_address(master: str) -> str:
    """This host's IPv4 address as the master sees it; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((master, 9))
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """The network interface that has this IPv4 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None
