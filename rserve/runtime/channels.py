"""Opens the two ends of the embedding channel that the configuration names."""

import logging
import os
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from gllm.runtime.loading import ModelPlan, torch_dtype
from gllm.runtime.rank_spec import RankSpec
from rserve.config import RServeConfig
from rserve.runtime.arena_memory import ArenaShape, map_shared, touch
from rserve.runtime.embedding_channel import EmbeddingReceiver, EmbeddingSender
from rserve.runtime.point_to_point import ENCODER, PointToPointReceiver, PointToPointSender, join
from rserve.runtime.shared_memory import Announce, SharedMemoryReceiver, SharedMemorySender

LOG = logging.getLogger("rserve")
STORE_TIMEOUT = timedelta(minutes=10)


def arena_shape(config: RServeConfig, plan: ModelPlan) -> ArenaShape:
    """How many embeddings the deployment holds, of which size."""
    dtype = torch_dtype(plan.dtype)
    hidden = plan.shape.text.hidden_size
    return ArenaShape(config.embedding_rows(hidden, dtype.itemsize), hidden, dtype)


def open_receiver(
    config: RServeConfig, shape: ArenaShape, device: torch.device, fds: Sequence[int]
) -> EmbeddingReceiver:
    """The driver's end. fds: the shared memory, or the socket on which encoders find the driver."""
    if config.epd.embedding_channel == "shm":
        arena = map_shared(fds[0], shape)
        touch(arena, device)
        return SharedMemoryReceiver(arena)
    store = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=STORE_TIMEOUT, master_listen_fd=fds[0]
    )
    arena = torch.zeros(shape.rows, shape.hidden_size, dtype=shape.dtype)
    if config.epd.embedding_channel == "nixl":
        from rserve.runtime.nixl_channel import NixlReceiver  # an optional package

        touch(arena, device)
        return NixlReceiver(arena, store)
    return PointToPointReceiver(arena, store)


def open_sender(
    config: RServeConfig, shape: ArenaShape, spec: RankSpec, fds: Sequence[int], announce: Announce
) -> EmbeddingSender:
    """An encoder's end. spec.extra: its index and epoch, and the port of the driver's store."""
    if config.epd.embedding_channel == "shm":
        return SharedMemorySender(map_shared(fds[0], shape), announce)
    index, epoch, port = spec.extra["index"], spec.extra["epoch"], spec.extra["store_port"]

    def find_store() -> dist.Store:
        return dist.TCPStore(spec.host, port, is_master=False, wait_for_workers=False, timeout=STORE_TIMEOUT)

    if config.epd.embedding_channel == "nixl":
        from rserve.runtime.nixl_channel import NixlSender  # an optional package

        return NixlSender(f"encoder{index}.{epoch}", shape, find_store(), announce, _leave)

    def open_group() -> dist.ProcessGroup:
        return join(find_store(), index, epoch, ENCODER)

    return PointToPointSender(open_group, announce, _leave)


def _leave(error: RuntimeError) -> None:
    """An encoder that can't send is of no use: it ends, so that its work goes to another."""
    LOG.error("the embedding channel broke: %s", str(error).splitlines()[0])
    os._exit(1)
