"""A deployment as its parent sees it: starts its processes, waits until they are ready, watches, stops."""

import contextlib
import logging
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import zmq

from gllm.config import EngineConfig, ParallelConfig
from gllm.runtime.channels import Outbox
from gllm.runtime.hosts import check_hosts, tcp_addresses
from gllm.runtime.messages import Codec, RankFailed, RankReady, Shutdown
from gllm.runtime.rank_spec import RankSpec, child_environment, cores_of, threads_per_rank
from gllm.runtime.recorder import trace_clock
from gllm.runtime.request_lives import LifeLog, NoLives, RequestLives
from gllm.runtime.spawner import Exited, Spawner, SpawnerLost
from gllm.runtime.trace_inbox import TraceInbox

LOG = logging.getLogger("gllm")
LAST_WORDS_S = 0.3
FAR_WORDS_MS = 1000
"""Spans of ranks on other hosts, whose end is not seen here, come within this time of each other."""


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


class Deployment:
    """All processes of a server on this host but its own. Use from one thread; call `stop` in the end.

    extra: names of further processes (encoders), whose inboxes get addresses too.
    """

    def __init__(
        self,
        config: EngineConfig,
        config_json: str,
        rank_module: str = "gllm.runtime.rank_main",
        extra: Sequence[str] = (),
        codec: Codec | None = None,
    ) -> None:
        """config_json: what the children get, at least `config`. Starts nothing yet.

        Raises LaunchError when a port is taken.
        """
        self.config = config
        self.codec = codec or Codec()
        self.ready: dict[str, RankReady] = {}
        self.lives: LifeLog = RequestLives(trace_clock(config.parallel)) if config.server.trace else NoLives()
        self._config_json = config_json
        self._rank_module = rank_module
        parallel = config.parallel
        check_hosts(parallel)
        self.local_ranks = parallel.ranks or tuple(range(parallel.world_size))
        self.num_processes = len(self.local_ranks) + len(extra)
        self.threads = threads_per_rank(parallel.threads_per_rank, self.num_processes)
        self._rendezvous = _listen(parallel) if parallel.world_size > 1 else None
        self._port = self._rendezvous.getsockname()[1] if self._rendezvous else parallel.master_port
        self._folder = tempfile.mkdtemp(prefix="rserve-")
        self.addresses = self._addresses(extra)
        self._plans: dict[str, ChildPlan] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._outboxes: dict[str, Outbox] = {}
        self._spawner: Spawner | None = None
        self.inbox = self._bind_inbox()

    def add(self, plan: ChildPlan) -> None:
        """Plan a further process (or its successor); it starts with `start`, or at once after that."""
        self._plans[plan.name] = plan
        if self._spawner is not None:
            self.ready.pop(plan.name, None)
            self._spawner.start(plan.name, plan.module, plan.spec, plan.fds)

    def spec(self, name: str, rank: int, index: int) -> RankSpec:
        """What a child gets; index: its place among this host's processes, for cores."""
        parallel = self.config.parallel
        cores = cores_of(index, self.threads) if parallel.cpu_affinity else ()
        return RankSpec(
            name,
            rank,
            self._config_json,
            self.addresses,
            parallel.master_addr,
            self._port,
            self.threads,
            cores,
        )

    def start(self, rank_fds: Mapping[int, Sequence[int]] | None = None) -> None:
        """Start all processes of this host. rank_fds: more descriptors for ranks, e.g. arenas for rank 0."""
        self._spawner = Spawner((self._rank_module,), child_environment(self.config.parallel, self.threads))
        for index, rank in enumerate(self.local_ranks):
            name = f"rank{rank}"
            fds = [*self._rendezvous_fd(rank), *(rank_fds or {}).get(rank, ())]
            spec = self.spec(name, rank, index).to_json()
            self._plans[name] = ChildPlan(name, self._rank_module, spec, tuple(fds))
        for plan in self._plans.values():
            self._spawner.start(plan.name, plan.module, plan.spec, plan.fds)
        self._close_rendezvous()

    def wait_ready(self, on_message: Callable[[object], None] = lambda message: None) -> None:
        """Until every process is loaded. on_message: gets what is neither RankReady nor RankFailed.

        Raises LaunchError, with the first failure's own words, after stopping everything.
        """
        try:
            while len(self.ready) < len(self._expected()):
                for message in self._messages_or_exits():
                    match message:
                        case RankReady():
                            self.ready[message.name] = message
                        case RankFailed():
                            raise LaunchError(self.diagnose([], [message]))
                        case _:
                            on_message(message)
                self.check()
        except BaseException:
            self.stop(grace_s=0.0)
            raise
        self._log_sizes()

    def fileno(self) -> int:
        """Readable when a process has ended: call `check`."""
        return self._running().fileno()

    def check(self) -> None:
        """Raise LaunchError when a process ended that the deployment cannot do without."""
        try:
            ended = self._running().poll()
        except SpawnerLost as lost:
            raise LaunchError(str(lost)) from lost
        for exited in ended:
            plan = self._plans.get(exited.name)
            if plan is None or not plan.on_exit(exited):
                raise LaunchError(self.diagnose([exited], []))

    def diagnose(self, ended: list[Exited], said: list[RankFailed]) -> str:
        """Why the deployment failed, given the first sign of it: waits a moment for what follows.

        A process that was killed is the cause of what its peers say; else the first that said something is.
        """
        deadline = time.monotonic() + LAST_WORDS_S
        while (left := deadline - time.monotonic()) > 0 and not any(e.code < 0 for e in ended):
            said += [m for m in self._messages_or_exits(left) if isinstance(m, RankFailed)]
            with contextlib.suppress(SpawnerLost):
                ended += self._running().poll()
        ended.sort(key=lambda exited: exited.code >= 0)
        if said and not any(exited.code < 0 for exited in ended):
            return f"{said[0].name}: {said[0].message}"
        return how_it_ended(ended[0])

    def outbox(self, name: str) -> Outbox:
        """The socket to this inbox; for the thread that uses the deployment."""
        if name not in self._outboxes:
            self._outboxes[name] = Outbox(self._context, self.addresses[name], self.codec)
        return self._outboxes[name]

    def move_inbox(self, name: str, suffix: str) -> None:
        """Give a process's successor an inbox of its own; what is queued for the dead one reaches nobody."""
        self.addresses[name] = f"ipc://{self._folder}/{name}.{suffix}"
        outbox = self._outboxes.pop(name, None)
        if outbox is not None:
            outbox.discard()

    def kill(self, name: str) -> None:
        """SIGKILL a process; `on_exit` of its plan is called when it is gone."""
        self._running().signal(name, signal.SIGKILL)

    def stop(self, grace_s: float = 5.0) -> None:
        """Ask all processes to finish their step and end; kill what still runs after grace_s. Idempotent."""
        if self._spawner is not None:
            if grace_s > 0:
                self._ask_to_end(self._spawner, grace_s)
            self._spawner.close()
            self._spawner = None
            self._write_trace()
        self._close_rendezvous()
        self.inbox.close()
        for outbox in self._outboxes.values():
            outbox.close()
        self._context.destroy(linger=0)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ask_to_end(self, spawner: Spawner, grace_s: float) -> None:
        """Give all processes time to end by themselves, unless one is missing already."""
        if not set(self._plans) <= spawner.alive:
            return
        for name in ("rank0", *(n for n in self._plans if not n.startswith("rank"))):
            self.outbox(name).send(Shutdown())
        deadline = time.monotonic() + grace_s
        with contextlib.suppress(SpawnerLost):
            while spawner.alive and (left := deadline - time.monotonic()) > 0:
                spawner.poll(left)

    def _write_trace(self) -> None:
        path = self.config.server.trace
        if path is not None:
            wait_ms = 0 if self.config.parallel.launch_mode == "normal" else FAR_WORDS_MS
            while self.inbox.receive(wait_ms) is not None:
                pass  # what the ranks said last
            self.inbox.write(path, self.lives.lives())
            LOG.info("wrote %d spans to %s", len(self.inbox.spans), path)

    def _expected(self) -> set[str]:
        """Processes that must be ready: all ranks of all hosts, and what was added."""
        return {f"rank{rank}" for rank in range(self.config.parallel.world_size)} | set(self._plans)

    def _messages_or_exits(self, timeout_s: float | None = None) -> Iterator[object]:
        """Wait until a message is there or a process has ended; the messages."""
        poller = zmq.Poller()
        poller.register(self.inbox.socket, zmq.POLLIN)
        poller.register(self.fileno(), zmq.POLLIN)
        poller.poll(None if timeout_s is None else int(timeout_s * 1000))
        return self.inbox.drain()

    def _running(self) -> Spawner:
        if self._spawner is None:
            raise LaunchError("the deployment is not running")
        return self._spawner

    def _log_sizes(self) -> None:
        ready = self.ready["rank0"]
        LOG.info(
            "ready: %d ranks, %d threads each; %d KV blocks = %d tokens; longest request %d tokens",
            self.config.parallel.world_size,
            self.threads,
            ready.num_kv_blocks,
            ready.num_kv_tokens,
            ready.max_model_len,
        )

    def _addresses(self, extra: Sequence[str]) -> dict[str, str]:
        parallel = self.config.parallel
        if parallel.launch_mode != "normal":
            return tcp_addresses(parallel, extra)
        names = ["api", *(f"rank{rank}" for rank in range(parallel.world_size)), "rank0-pixels", *extra]
        return {name: f"ipc://{self._folder}/{name}" for name in names}

    def _bind_inbox(self) -> TraceInbox:
        try:
            return TraceInbox(self._context, self.addresses["api"], self.codec)
        except zmq.ZMQError as error:
            self._close_rendezvous()
            shutil.rmtree(self._folder)
            raise LaunchError(f"cannot listen on {self.addresses['api']}: {error}") from error

    def _rendezvous_fd(self, rank: int) -> list[int]:
        return [self._rendezvous.fileno()] if self._rendezvous is not None and rank == 0 else []

    def _close_rendezvous(self) -> None:
        if self._rendezvous is not None:
            self._rendezvous.close()
            self._rendezvous = None


def _listen(parallel: ParallelConfig) -> socket.socket:
    """The socket on which rank 0 will serve the rendezvous; bound here, so that its port cannot be taken."""
    host = "0.0.0.0" if parallel.launch_mode == "master" else parallel.master_addr
    try:
        return socket.create_server((host, parallel.master_port), backlog=1024)
    except OSError as error:
        raise LaunchError(
            f"--master-port {parallel.master_port} on {host}: {error.strerror}: choose another, or 0"
        ) from error


def how_it_ended(exited: Exited) -> str:
    """One line about a process that should not have ended."""
    if exited.code == -signal.SIGKILL:
        return f"{exited.name} was killed (signal 9): if nobody did that, the host ran out of memory"
    if exited.code < 0:
        return f"{exited.name} was ended by {signal.Signals(-exited.code).name}"
    return f"{exited.name} ended with exit code {exited.code}"
