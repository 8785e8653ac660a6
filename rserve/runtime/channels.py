"""Opens the two ends of the embedding channel that the configuration names."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from gllm.config import ConfigError
from gllm.runtime.host_memory import GIB
from gllm.runtime.loading import ModelPlan, torch_dtype
from gllm.runtime.rank_spec import RankSpec
from rserve.config import RServeConfig
from rserve.runtime.arena_memory import ArenaShape, map_shared, touch
from rserve.runtime.cuda_ipc import CudaIpcReceiver, CudaIpcSender, open_arena
from rserve.runtime.device_memory import CudaMemory
from rserve.runtime.embedding_channel import EmbeddingReceiver, EmbeddingSender
from rserve.runtime.point_to_point import PointToPointReceiver, PointToPointSender
from rserve.runtime.shared_memory import Announce, SharedMemoryReceiver, SharedMemorySender
from rserve.runtime.wires import Wire, join

LOG = logging.getLogger("rserve")
STORE_TIMEOUT = timedelta(minutes=10)


def arena_shape(config: RServeConfig, plan: ModelPlan) -> ArenaShape:
    """How many embeddings the deployment holds, of which size."""
    dtype = torch_dtype(plan.dtype)
    hidden = plan.shape.text.hidden_size
    return ArenaShape(config.embedding_rows(hidden, dtype.itemsize), hidden, dtype)


@dataclass(frozen=True, slots=True)
class ChannelEnd:
    """What an end of the channel is opened with.

    device: of this process. fds: on the driver, the socket on which encoders find it, where one is needed;
    then, on both sides, the shared memory, where one is needed.
    """

    config: RServeConfig
    shape: ArenaShape
    device: torch.device
    fds: Sequence[int] = ()

    @property
    def kind(self) -> str:
        """The transport; both sides choose alike for `auto`. Raises ConfigError where a GPU is missing."""
        asked = self.config.epd.embedding_channel
        if asked == "cuda-ipc" and self.device.type != "cuda":
            raise ConfigError("--embedding-channel cuda-ipc: this host's ranks have no GPU: use shm")
        if asked != "auto":
            return asked
        if self.config.parallel.executor == "ray":
            return "p2p"
        return "cuda-ipc" if self.device.type == "cuda" else "shm"


def open_receiver(end: ChannelEnd) -> EmbeddingReceiver:
    """The driver's end. Raises ConfigError where it can't be opened."""
    shape, device = end.shape, end.device
    if end.kind == "shm":
        arena = map_shared(end.fds[-1], shape)
        touch(arena, device)
        return SharedMemoryReceiver(arena)
    store = dist.TCPStore(
        "127.0.0.1",
        0,
        is_master=True,
        wait_for_workers=False,
        timeout=STORE_TIMEOUT,
        master_listen_fd=end.fds[0],
    )
    if end.kind == "cuda-ipc":
        return CudaIpcReceiver(CudaMemory(device), _on_gpu(shape, device), store)
    if end.kind == "nixl":
        from rserve.runtime.nixl_channel import NixlReceiver  # an optional package

        arena = _on_host(shape)
        touch(arena, device)
        return NixlReceiver(arena, store)
    return PointToPointReceiver(_on_gpu(shape, device) if device.type == "cuda" else _on_host(shape), store)


def open_sender(end: ChannelEnd, spec: RankSpec, announce: Announce) -> EmbeddingSender:
    """An encoder's end. spec.extra: its index and epoch, and the port of the driver's store.

    announce: called from one thread, this one or the channel's. Raises ConfigError where it can't be opened.
    """
    if end.kind == "shm":
        return SharedMemorySender(map_shared(end.fds[-1], end.shape), announce)
    index, epoch, port = spec.extra["index"], spec.extra["epoch"], spec.extra["store_port"]

    def find_store() -> dist.Store:
        return dist.TCPStore(spec.host, port, is_master=False, wait_for_workers=False, timeout=STORE_TIMEOUT)

    if end.kind == "cuda-ipc":
        memory = CudaMemory(end.device)
        return CudaIpcSender(memory, open_arena(memory, find_store(), end.shape), announce, _leave)
    if end.kind == "nixl":
        from rserve.runtime.nixl_channel import NixlSender  # an optional package

        return NixlSender(f"encoder{index}.{epoch}", end.shape, find_store(), announce, _leave)

    def open_wire() -> Wire:
        return join(find_store(), index, epoch, end.device)

    return PointToPointSender(open_wire, announce, _leave, end.device)


def _on_host(shape: ArenaShape) -> torch.Tensor:
    return torch.zeros(shape.rows, shape.hidden_size, dtype=shape.dtype)


def _on_gpu(shape: ArenaShape, device: torch.device) -> torch.Tensor:
    free, _ = torch.cuda.mem_get_info(device)
    if shape.num_bytes > free:
        raise ConfigError(
            f"--embedding-gib {shape.num_bytes / GIB:.2f}: {free / GIB:.2f} GiB are free on the driver's GPU:"
            " lower it or --gpu-memory-util, or use --embedding-channel shm"
        )
    return torch.zeros(shape.rows, shape.hidden_size, dtype=shape.dtype, device=device)


def _leave(error: RuntimeError) -> None:
    """An encoder that can't send is of no use: it ends, so that its work goes to another."""
    LOG.error("the embedding channel broke: %s", str(error).splitlines()[0])
    os._exit(1)
