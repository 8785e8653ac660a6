"""A Ray cluster as the place of a deployment: an actor for each process, all in one placement group.

Ray says where processes run and ends them with their actors. They find each other as on several hosts, by
torch.distributed's rendezvous on rank 0 and by TCP inboxes; none of their data passes through Ray.
"""

import contextlib
import json
import os
import select
import signal
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import ray
from ray.util.placement_group import remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from gllm.config import EngineConfig
from gllm.runtime.rank_spec import RankSpec
from gllm.runtime.ray_cluster import choose_bundle, connect, nodes, place
from gllm.runtime.ray_host import RankHost
from gllm.runtime.site import ChildPlan
from gllm.runtime.spawner import Exited

ANSWER_S = 120.0
CLOSE_WAIT_S = 5.0
ANY_PORT = "tcp://*:0"
RANK_HOST: Any = ray.remote(RankHost)


class RaySite:
    """All processes are elsewhere: on this node of the cluster, or on others. See Site."""

    def __init__(self, config: EngineConfig, config_json: str, extra: Sequence[str]) -> None:
        """Joins the cluster, takes its places there, and starts rank 0's actor. Raises LaunchError."""
        parallel = config.parallel
        self.local_ranks = tuple(range(parallel.world_size))
        self._names = [*(f"rank{rank}" for rank in self.local_ranks), *extra]
        self._actors: dict[str, Any] = {}
        self._alive: set[str] = set()
        self._ended: deque[Exited] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._is_closed = False
        self._joined_here = connect(parallel.ray_address)
        self._group: Any = None
        try:
            self._bundle = choose_bundle(nodes(), parallel, len(self._names))
            self.threads = int(self._bundle["CPU"])
            self._group = place(self._bundle, len(self._names), parallel.ray_placement)
            self._meet_rank_zero(config, config_json)
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> frozenset[str]:
        return frozenset(self._alive)

    def listen(self) -> int:
        return int(ray.get(self._actors["rank0"].listen.remote(), timeout=ANSWER_S))

    def move_inbox(self, name: str, suffix: str) -> None:
        self.addresses.pop(name, None)

    def spec(self, name: str, rank: int) -> RankSpec:
        addresses = {name: ANY_PORT, **self.addresses}
        return RankSpec(name, rank, self._config_json, addresses, self._master, self._port, self.threads)

    def open(self, module: str) -> None:
        """Actors are started with their processes."""

    def start(self, plan: ChildPlan) -> None:
        if plan.fds:
            raise ValueError(f"{plan.name}: descriptors do not reach other hosts")
        if plan.name != "rank0":  # whose actor is there from the beginning
            self._actors[plan.name] = self._new_actor(plan.name)
        self._alive.add(plan.name)
        ended = self._actors[plan.name].run.remote(plan.module, plan.spec).future()
        ended.add_done_callback(partial(self._on_end, plan.name))

    def kill(self, name: str) -> None:
        if name in self._alive:
            ray.kill(self._actors[name])

    def fileno(self) -> int:
        return self._wake

    def poll(self, timeout: float = 0.0) -> list[Exited]:
        select.select([self._wake], [], [], timeout)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        found = []
        while self._ended:
            found.append(self._ended.popleft())
            self._alive.discard(found[-1].name)
            ray.kill(self._actors[found[-1].name])  # else it keeps its place from its successor
        return found

    def close(self) -> None:
        if self._is_closed:
            return
        for actor in self._actors.values():
            ray.kill(actor)
        while self._alive and self.poll(CLOSE_WAIT_S):
            pass
        if self._group is not None:
            remove_placement_group(self._group)
        if self._joined_here:
            ray.shutdown()
        with self._lock:
            self._is_closed = True
            os.close(self._wake)

    def _meet_rank_zero(self, config: EngineConfig, config_json: str) -> None:
        """Fix the addresses that all processes must know from the beginning."""
        actor = self._actors["rank0"] = self._new_actor("rank0")
        asked = [actor.node.remote(), actor.reserve.remote(), actor.reserve.remote()]
        self._master, port, pixel_port = ray.get(asked, timeout=ANSWER_S)
        self._port = self.listen() if config.parallel.world_size > 1 else 0
        self.addresses = {
            "api": f"tcp://{ray.util.get_node_ip_address()}:0",
            "rank0": f"tcp://{self._master}:{port}",
            "rank0-pixels": f"tcp://{self._master}:{pixel_port}",
        }
        values = json.loads(config_json)
        device = "cuda" if "GPU" in self._bundle else "cpu"
        values["parallel"] |= {"master_addr": self._master, "device": device}
        self._config_json = json.dumps(values)

    def _new_actor(self, name: str) -> Any:
        """An actor in the process's place of the group; it is started when its node is there."""
        strategy = PlacementGroupSchedulingStrategy(self._group, self._names.index(name))
        options = {
            "num_cpus": self._bundle["CPU"],
            "num_gpus": self._bundle.get("GPU", 0),
            "scheduling_strategy": strategy,
        }
        return RANK_HOST.options(**options).remote()

    def _on_end(self, name: str, ended: "Future[tuple[int, int]]") -> None:
        """Called in a thread of Ray's."""
        error = ended.exception()
        if error is None:
            pid, code = ended.result()
            exited = Exited(name, pid, code)
        else:
            exited = Exited(name, 0, -signal.SIGKILL, last_words(error))
        with self._lock:
            if not self._is_closed:
                self._ended.append(exited)
                os.eventfd_write(self._wake, 1)


def last_words(error: BaseException) -> str:
    """Why an actor ended: the first sentence of the last line that Ray says of it."""
    lines = str(error).strip().splitlines()
    return lines[-1].split(". ")[0].strip() if lines else type(error).__name__
