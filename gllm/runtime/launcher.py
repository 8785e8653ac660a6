"""A deployment as its parent sees it: starts its processes, waits until they are ready, watches, stops."""

import contextlib
import logging
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import zmq

from gllm.config import EngineConfig
from gllm.runtime.channels import Outbox
from gllm.runtime.codec import Codec
from gllm.runtime.messages import RankFailed, RankReady, Shutdown
from gllm.runtime.recorder import trace_clock
from gllm.runtime.request_lives import LifeLog, NoLives, RequestLives
from gllm.runtime.site import ChildPlan, LaunchError, make_site
from gllm.runtime.spawner import Exited, SpawnerLost
from gllm.runtime.trace_inbox import TraceInbox

LOG = logging.getLogger("gllm")
LAST_WORDS_S = 0.3
FAR_WORDS_MS = 1000
"""Spans of ranks on other hosts, whose end is not seen here, come within this time of each other."""


class Deployment:
    """All processes of a server but its own. Use from one thread; call `stop` in the end.

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
        self._rank_module = rank_module
        self.site = make_site(config, config_json, extra)
        self.addresses = self.site.addresses
        self.threads = self.site.threads
        self._is_open = False
        self._plans: dict[str, ChildPlan] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._outboxes: dict[str, Outbox] = {}
        self.inbox = self._bind_inbox()

    def add(self, plan: ChildPlan) -> None:
        """Plan a further process (or its successor); it starts with `start`, or at once after that."""
        self._plans[plan.name] = plan
        if self._is_open:
            self.ready.pop(plan.name, None)
            self.site.start(plan)

    def start(self, rank_fds: Mapping[int, Sequence[int]] | None = None) -> None:
        """Start all processes of this host. rank_fds: more descriptors for ranks, e.g. arenas for rank 0."""
        self.site.open(self._rank_module)
        self._is_open = True
        for rank in self.site.local_ranks:
            name = f"rank{rank}"
            spec = self.site.spec(name, rank).to_json()
            self._plans[name] = ChildPlan(
                name, self._rank_module, spec, tuple((rank_fds or {}).get(rank, ()))
            )
        for plan in self._plans.values():
            self.site.start(plan)

    def wait_ready(self, on_message: Callable[[object], None] = lambda message: None) -> None:
        """Until every process is loaded. on_message: gets what is neither RankReady nor RankFailed.

        Raises LaunchError, with the first failure's own words, after stopping everything.
        """
        try:
            while len(self.ready) < len(self._expected()):
                for message in self._messages_or_exits():
                    match message:
                        case RankReady():
                            self.on_ready(message)
                        case RankFailed():
                            raise LaunchError(self.diagnose([], [message]))
                        case _:
                            on_message(message)
                self.check()
        except BaseException:
            self.stop(grace_s=0.0)
            raise
        self._log_sizes()

    def on_ready(self, message: RankReady) -> None:
        """A process, or its successor, is loaded and has told where its inbox is."""
        self.ready[message.name] = message
        self.addresses[message.name] = message.inbox

    def fileno(self) -> int:
        """Readable when a process has ended: call `check`."""
        return self.site.fileno()

    def check(self) -> None:
        """Raise LaunchError when a process ended that the deployment cannot do without."""
        try:
            ended = self.site.poll()
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
                ended += self.site.poll()
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
        self.site.move_inbox(name, suffix)
        outbox = self._outboxes.pop(name, None)
        if outbox is not None:
            outbox.discard()

    def kill(self, name: str) -> None:
        """End a process at once; `on_exit` of its plan is called when it is gone."""
        self.site.kill(name)

    def stop(self, grace_s: float = 5.0) -> None:
        """Ask all processes to finish their step and end; kill what still runs after grace_s. Idempotent."""
        if self._is_open:
            if grace_s > 0:
                self._ask_to_end(grace_s)
            self.site.close()
            self._is_open = False
            self._write_trace()
        self.site.close()
        self.inbox.close()
        for outbox in self._outboxes.values():
            outbox.close()
        self._context.destroy(linger=0)

    def _ask_to_end(self, grace_s: float) -> None:
        """Give all processes time to end by themselves, unless one is missing already."""
        if not set(self._plans) <= self.site.alive:
            return
        for name in ("rank0", *(n for n in self._plans if not n.startswith("rank"))):
            if name in self.addresses:
                self.outbox(name).send(Shutdown())
        deadline = time.monotonic() + grace_s
        with contextlib.suppress(SpawnerLost):
            while self.site.alive and (left := deadline - time.monotonic()) > 0:
                self.site.poll(left)

    def _write_trace(self) -> None:
        path = self.config.server.trace
        if path is not None:
            wait_ms = 0 if self.config.parallel.is_on_one_host else FAR_WORDS_MS
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

    def _bind_inbox(self) -> TraceInbox:
        address = self.addresses["api"]
        try:
            inbox = TraceInbox(self._context, address, self.codec)
        except zmq.ZMQError as error:
            self.site.close()
            raise LaunchError(f"cannot listen on {address}: {error}") from error
        self.addresses["api"] = inbox.address
        return inbox


def how_it_ended(exited: Exited) -> str:
    """One line about a process that should not have ended."""
    if exited.reason:
        return f"{exited.name} is lost: {exited.reason}"
    if exited.code == -signal.SIGKILL:
        return f"{exited.name} was killed (signal 9): if nobody did that, the host ran out of memory"
    if exited.code < 0:
        return f"{exited.name} was ended by {signal.Signals(-exited.code).name}"
    return f"{exited.name} ended with exit code {exited.code}"
