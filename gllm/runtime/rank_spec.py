"""What a launcher tells each process that it starts, and how that process starts with it."""

import dataclasses
import json
import os
from dataclasses import dataclass, field

from gllm.config import ParallelConfig
from gllm.runtime.hosts import interface_of, own_address

GLIBC_KEEPS_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
    "MALLOC_TOP_PAD_": "67108864",
}
"""On CPUs, activations of each step are the same memory again, instead of fresh zeroed pages."""


@dataclass(frozen=True, slots=True)
class RankSpec:
    """One rank of a deployment (or an encoder: rank -1).

    config: the deployment's configuration as JSON. addresses: inboxes by name. host, port: where
    torch.distributed meets. threads: of torch. cores: to stay on, if any. gpu: which of those that the
    process sees is its own, where there are any.
    """

    name: str
    rank: int
    config: str
    addresses: dict[str, str]
    host: str = "127.0.0.1"
    port: int = 0
    threads: int = 1
    cores: tuple[int, ...] = ()
    gpu: int = 0
    extra: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> str:
        """Text for the child."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "RankSpec":
        """The spec in a child."""
        values = json.loads(text)
        return cls(**{**values, "cores": tuple(values["cores"])})


def child_environment(parallel: ParallelConfig, threads: int) -> dict[str, str]:
    """Variables that must be set before torch is imported; those that the user has set stay as they are.

    Idle OpenMP threads sleep after about a millisecond instead of spinning. gloo uses the interface that
    leads to the other ranks.
    """
    interface = "lo" if parallel.is_on_one_host else interface_of(own_address(parallel.master_addr))
    wanted = {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": "1",
        "GOMP_SPINCOUNT": "20000",
        "KMP_BLOCKTIME": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **({"GLOO_SOCKET_IFNAME": interface} if interface else {}),
        **(GLIBC_KEEPS_MEMORY if parallel.device != "cuda" else {}),
    }
    kept = ("GOMP_SPINCOUNT", "KMP_BLOCKTIME", "GLOO_SOCKET_IFNAME", *GLIBC_KEEPS_MEMORY)
    return {name: value for name, value in wanted.items() if name not in kept or name not in os.environ}


def threads_per_rank(asked: int | None, num_processes: int) -> int:
    """max(1, cores // processes) unless asked for otherwise."""
    return asked or max(1, len(os.sched_getaffinity(0)) // num_processes)


def cores_of(index: int, threads: int) -> tuple[int, ...]:
    """Cores for the index-th process of a host when processes are pinned; they share where cores run out."""
    cores = sorted(os.sched_getaffinity(0))
    return tuple(cores[(index * threads + i) % len(cores)] for i in range(min(threads, len(cores))))
