"""A Ray cluster as a deployment needs it: a connection, and a place for every process."""

import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from gllm.config import ParallelConfig
from gllm.runtime.site import LaunchError

PROBE_S = 10.0
PLACEMENT_WAIT_S = 60.0
Resources = Mapping[str, float]
"""Amounts by name, as Ray counts them: CPU, GPU."""


def connect(address: str) -> bool:
    """Join the cluster; False when this process had joined one before. Raises LaunchError."""
    if ray.is_initialized():
        return False
    try:
        _probe(address)
        with _own_signal_handlers():
            ray.init(address=address, logging_level=logging.WARNING, log_to_driver=True)
    except (OSError, RuntimeError, ValueError) as error:
        reason = (str(error).strip() or "no answer").splitlines()[0]
        raise LaunchError(
            f"--executor ray: no Ray cluster at {address} ({reason}): run `ray start --head`, "
            "or name another --ray-address"
        ) from error
    return True


def nodes() -> list[Resources]:
    """What each living node of the cluster has."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def room(nodes: Sequence[Resources], bundle: Resources) -> int:
    """How many such bundles the nodes hold together; a bundle is on one node."""
    return sum(
        min(int(node.get(name, 0) // amount) for name, amount in bundle.items() if amount) for node in nodes
    )


def choose_bundle(
    nodes: Sequence[Resources], parallel: ParallelConfig, num_processes: int
) -> dict[str, float]:
    """CPUs and GPUs of one process: a GPU where there are any, and the most CPUs with which all fit.

    On GPUs, one CPU unless --threads-per-rank says more. Raises LaunchError when they cannot all fit.
    """
    gpus = sum(node.get("GPU", 0) for node in nodes)
    use_gpus = parallel.device == "cuda" or (parallel.device == "auto" and gpus > 0)
    rest = {"GPU": 1.0} if use_gpus else {}
    most = int(max((node.get("CPU", 0) for node in nodes), default=0))
    for cpus in (
        (parallel.threads_per_rank,) if parallel.threads_per_rank else range(1 if use_gpus else most, 0, -1)
    ):
        if room(nodes, bundle := {"CPU": float(cpus), **rest}) >= num_processes:
            return bundle
    cpus = parallel.threads_per_rank or 1
    each = f"{cpus} CPU{'s' if cpus > 1 else ''}" + (" and 1 GPU" if use_gpus else "")
    has = ", ".join(f"{node.get('CPU', 0):g} CPUs + {node.get('GPU', 0):g} GPUs" for node in nodes)
    raise LaunchError(
        f"--executor ray: {num_processes} processes need {each} each, and the cluster's nodes have {has}: "
        "add nodes, or lower --pp, --tp, --encoders or --threads-per-rank"
        + (", or use --device cpu" if use_gpus else "")
    )


def place(bundle: Resources, num_processes: int, strategy: str) -> PlacementGroup:
    """A place for each process. Raises LaunchError when others hold what is needed."""
    group: PlacementGroup = placement_group([dict(bundle)] * num_processes, strategy=strategy.upper())
    if not group.wait(PLACEMENT_WAIT_S):
        remove_placement_group(group)
        free = ray.available_resources()
        raise LaunchError(
            f"--executor ray: {num_processes} processes need {bundle['CPU']:g} CPUs and "
            f"{bundle.get('GPU', 0):g} GPUs each, and {free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} "
            "GPUs of the cluster are free: end what else runs there, or ask for less"
        )
    return group


def _probe(address: str) -> None:
    """Raise OSError where nobody listens: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and "/" not in address and port.isdigit():
        socket.create_connection((host, int(port)), PROBE_S).close()


@contextlib.contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Ray sets a handler for SIGTERM where it is started; signals are this program's own affair."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
