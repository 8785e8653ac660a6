"""A host that lends ranks to a deployment whose master is elsewhere: no API server, only processes."""

import logging
import select
import socket
import time

from gllm.config import EngineConfig
from gllm.runtime.codec import Codec
from gllm.runtime.hosts import check_hosts, tcp_addresses
from gllm.runtime.launcher import LaunchError, how_it_ended
from gllm.runtime.messages import RankFailed
from gllm.runtime.post import Post
from gllm.runtime.rank_spec import RankSpec, child_environment, cores_of, threads_per_rank
from gllm.runtime.spawner import Exited, Spawner

LOG = logging.getLogger("gllm")
MASTER_WAIT_S = 600.0
GRACE_S = 5.0
KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))


class SlaveHost:
    """Starts this host's ranks; they end with the master, and the master ends when one of them dies."""

    def __init__(
        self, config: EngineConfig, config_json: str, rank_module: str = "gllm.runtime.rank_main"
    ) -> None:
        """Starts nothing yet. Raises ConfigError."""
        check_hosts(config.parallel)
        self._config = config
        self._config_json = config_json
        self._module = rank_module
        self._ranks = config.parallel.ranks or ()
        self._addresses = tcp_addresses(config.parallel, ())

    def run(self) -> int:
        """Until all ranks have ended: 0 when the master said so. Raises LaunchError when anything is lost."""
        parallel = self._config.parallel
        threads = threads_per_rank(parallel.threads_per_rank, len(self._ranks))
        spawner = Spawner((self._module,), child_environment(parallel, threads))
        try:
            for index, rank in enumerate(self._ranks):
                spawner.start(f"rank{rank}", self._module, self._spec(rank, index, threads).to_json())
            with self._connect(spawner) as master:
                LOG.info("ranks %s are connected to %s", self._ranks, parallel.master_addr)
                self._watch(spawner, master)
        finally:
            spawner.close()
        return 0

    def _watch(self, spawner: Spawner, master: socket.socket) -> None:
        while spawner.alive:
            readable, _, _ = select.select([spawner, master], [], [])
            if master in readable:
                self._end(spawner)
                return
            self._check(spawner.poll())

    def _end(self, spawner: Spawner) -> None:
        """Rank 0 has ended: this host's ranks have been told, unless it died."""
        deadline = time.monotonic() + GRACE_S
        while spawner.alive and (left := deadline - time.monotonic()) > 0:
            self._check(spawner.poll(left))
        if spawner.alive:
            raise LaunchError(f"lost the master at {self._config.parallel.master_addr}")

    def _check(self, ended: list[Exited]) -> None:
        failed = [exited for exited in ended if exited.code != 0]
        if not failed:
            return
        reason = how_it_ended(failed[0])
        post = Post(self._addresses, Codec())
        for name in ("api", "rank0"):
            post.outbox(name).send(RankFailed(failed[0].name, reason))
        post.close()
        raise LaunchError(reason)

    def _spec(self, rank: int, index: int, threads: int) -> RankSpec:
        parallel = self._config.parallel
        cores = cores_of(index, threads) if parallel.cpu_affinity else ()
        host, port = parallel.master_addr, parallel.master_port
        return RankSpec(
            f"rank{rank}", rank, self._config_json, self._addresses, host, port, threads, cores, index
        )

    def _connect(self, spawner: Spawner) -> socket.socket:
        """A connection to rank 0's rendezvous that lasts as long as rank 0.

        Raises LaunchError after ten minutes, or when a rank fails meanwhile.
        """
        host, port = self._config.parallel.master_addr, self._config.parallel.master_port
        deadline = time.monotonic() + MASTER_WAIT_S
        while True:
            try:
                connection = socket.create_connection((host, port), timeout=10.0)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise LaunchError(f"no master at {host} port {port}: {error}") from error
                self._check(spawner.poll(0.5))
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        return connection
