"""Where the processes of a deployment run, and how they find each other: this host, or a Ray cluster."""

import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Protocol

from gllm.config import ConfigError, EngineConfig, ParallelConfig
from gllm.runtime.hosts import check_hosts, tcp_addresses
from gllm.runtime.rank_spec import RankSpec, child_environment, cores_of, threads_per_rank
from gllm.runtime.spawner import Exited, Spawner


class LaunchError(RuntimeError):
    """The deployment cannot start or go on; one line says why and what to do."""


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """A process to start: module.main(spec, descriptors) is its exit code.

    on_exit: called when it ends; True when that is taken care of, else the deployment ends.
    """

    name: str
    module: str
    spec: str
    fds: tuple[int, ...] = ()
    on_exit: Callable[[Exited], bool] = lambda exited: False


class Site(Protocol):
    """Starts processes by name, and tells how they end. Use from one thread; call `close` in the end.

    addresses: inboxes by name, "api" among them. An inbox that chooses its own port is missing until its
    process has told its address. local_ranks: the ranks that are started from here. threads: of each process.
    """

    addresses: dict[str, str]
    local_ranks: tuple[int, ...]
    threads: int

    @property
    def alive(self) -> frozenset[str]:
        """Processes that were started and, as far as `poll` knows, run."""
        ...

    def listen(self) -> int:
        """The port of a new socket that listens for rank 0 and will be its next descriptor."""
        ...

    def move_inbox(self, name: str, suffix: str) -> None:
        """The next process of this name gets an inbox of its own, not its predecessor's."""
        ...

    def spec(self, name: str, rank: int) -> RankSpec:
        """What a process gets; rank -1: an encoder."""
        ...

    def open(self, module: str) -> None:
        """From now on processes can be started. module: what most of them run."""
        ...

    def start(self, plan: ChildPlan) -> None:
        """Start a process; never waits for it. Rank 0 gets its listening sockets before the plan's fds."""
        ...

    def kill(self, name: str) -> None:
        """End a process at once; nothing happens when it has ended."""
        ...

    def fileno(self) -> int:
        """Readable when `poll` has something to return."""
        ...

    def poll(self, timeout: float = 0.0) -> list[Exited]:
        """Processes that ended since the last call; waits up to `timeout` seconds for the first."""
        ...

    def close(self) -> None:
        """End what still runs and forget the place. Idempotent."""
        ...


class LocalSite:
    """This host: Unix sockets; TCP ports on the master of several hosts."""

    def __init__(self, config: EngineConfig, config_json: str, extra: Sequence[str]) -> None:
        """extra: names of processes besides this host's ranks. Starts nothing.

        Raises ConfigError, and LaunchError when a port is taken.
        """
        parallel = self._parallel = config.parallel
        check_hosts(parallel)
        self._config_json = config_json
        self._spawner: Spawner | None = None
        self.local_ranks = parallel.ranks or tuple(range(parallel.world_size))
        self._names = [*(f"rank{rank}" for rank in self.local_ranks), *extra]
        self.threads = threads_per_rank(parallel.threads_per_rank, len(self._names))
        self._sockets = [_rendezvous(parallel)] if parallel.world_size > 1 else []
        self._port = self._sockets[0].getsockname()[1] if self._sockets else parallel.master_port
        self._folder = tempfile.mkdtemp(prefix="rserve-")
        self.addresses = self._addresses(extra)

    @property
    def alive(self) -> frozenset[str]:
        return self._spawner.alive if self._spawner is not None else frozenset()

    def listen(self) -> int:
        self._sockets.append(socket.create_server(("127.0.0.1", 0), backlog=64))
        return int(self._sockets[-1].getsockname()[1])

    def move_inbox(self, name: str, suffix: str) -> None:
        self.addresses[name] = f"ipc://{self._folder}/{name}.{suffix}"

    def spec(self, name: str, rank: int) -> RankSpec:
        parallel, index = self._parallel, self._names.index(name)
        return RankSpec(
            name,
            rank,
            self._config_json,
            self.addresses,
            parallel.master_addr,
            self._port,
            self.threads,
            cores_of(index, self.threads) if parallel.cpu_affinity else (),
            index,
        )

    def open(self, module: str) -> None:
        self._spawner = Spawner((module,), child_environment(self._parallel, self.threads))

    def start(self, plan: ChildPlan) -> None:
        sockets = self._sockets if plan.name == "rank0" else []
        fds = [*(one.fileno() for one in sockets), *plan.fds]
        self._running().start(plan.name, plan.module, plan.spec, fds)
        if plan.name == "rank0":
            self._close_sockets()

    def kill(self, name: str) -> None:
        self._running().signal(name, signal.SIGKILL)

    def fileno(self) -> int:
        return self._running().fileno()

    def poll(self, timeout: float = 0.0) -> list[Exited]:
        return self._running().poll(timeout)

    def close(self) -> None:
        if self._spawner is not None:
            self._spawner.close()
            self._spawner = None
        self._close_sockets()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _running(self) -> Spawner:
        if self._spawner is None:
            raise LaunchError("the deployment is not running")
        return self._spawner

    def _close_sockets(self) -> None:
        for one in self._sockets:
            one.close()
        self._sockets.clear()

    def _addresses(self, extra: Sequence[str]) -> dict[str, str]:
        parallel = self._parallel
        if parallel.launch_mode != "normal":
            return tcp_addresses(parallel, extra)
        names = ["api", *(f"rank{rank}" for rank in range(parallel.world_size)), "rank0-pixels", *extra]
        return {name: f"ipc://{self._folder}/{name}" for name in names}


def make_site(config: EngineConfig, config_json: str, extra: Sequence[str]) -> Site:
    """The place that `--executor` names. Raises ConfigError and LaunchError."""
    if config.parallel.executor == "local":
        return LocalSite(config, config_json, extra)
    if find_spec("ray") is None:
        raise ConfigError("--executor ray: Ray is not installed: pip install rserve[ray]")
    from gllm.runtime.ray_site import RaySite  # an optional package

    return RaySite(config, config_json, extra)


def _rendezvous(parallel: ParallelConfig) -> socket.socket:
    """The socket on which rank 0 will serve the rendezvous; bound here, so that its port cannot be taken."""
    host = "0.0.0.0" if parallel.launch_mode == "master" else parallel.master_addr
    try:
        return socket.create_server((host, parallel.master_port), backlog=1024)
    except OSError as error:
        raise LaunchError(
            f"--master-port {parallel.master_port} on {host}: {error.strerror}: choose another, or 0"
        ) from error
