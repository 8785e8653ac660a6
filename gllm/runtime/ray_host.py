"""What runs one process of a deployment on a node of a Ray cluster; Ray makes an actor of it."""

import socket

import ray

from gllm.config import EngineConfig
from gllm.runtime.rank_spec import RankSpec, child_environment
from gllm.runtime.spawner import Spawner

BACKLOG = 1024


class RankHost:
    """Forks one process, as on a single host, and waits until it ends; the process never outlives it."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self._reserved: list[socket.socket] = []

    def node(self) -> str:
        """This node's address, as other nodes know it."""
        return str(ray.util.get_node_ip_address())

    def listen(self) -> int:
        """The port of a new socket that listens on this node and will be the process's next descriptor."""
        self._sockets.append(socket.create_server(("0.0.0.0", 0), backlog=BACKLOG))
        return int(self._sockets[-1].getsockname()[1])

    def reserve(self) -> int:
        """A port that the process can bind: it is kept from others, though nobody listens on it yet."""
        kept = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("0.0.0.0", 0))
        self._reserved.append(kept)
        return int(kept.getsockname()[1])

    def run(self, module: str, spec_json: str) -> tuple[int, int]:
        """Run module.main(spec, descriptors) in a process; its id and its exit code."""
        spec = RankSpec.from_json(spec_json)
        parallel = EngineConfig.from_json(spec.config).parallel
        spawner = Spawner((module,), child_environment(parallel, spec.threads))
        try:
            spawner.start(spec.name, module, spec_json, [one.fileno() for one in self._sockets])
            while not (ended := spawner.poll(60.0)):
                pass
        finally:
            spawner.close()
        return ended[0].pid, ended[0].code
