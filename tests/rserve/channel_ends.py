"""Both ends of an embedding channel in one process, for every transport."""

import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from gllm.runtime.embedding_rows import BorrowedRows
from rserve.runtime.arena_memory import ArenaShape, map_shared
from rserve.runtime.channels import STORE_TIMEOUT
from rserve.runtime.cuda_ipc import CudaIpcReceiver, CudaIpcSender, open_arena
from rserve.runtime.embedding_channel import EmbeddingReceiver, EmbeddingSender
from rserve.runtime.messages import EmbeddingsSent, EncoderJoined
from rserve.runtime.point_to_point import PointToPointReceiver, PointToPointSender
from rserve.runtime.shared_file import create_shared
from rserve.runtime.shared_memory import SharedMemoryReceiver, SharedMemorySender
from rserve.runtime.wires import Wire, join
from tests.rserve.file_memory import FileMemory

ROWS, HIDDEN = 64, 8


@dataclass
class Landed:
    """A core that writes down what lands; nobody waits for items of the request `gone`."""

    events: list[tuple[object, ...]] = field(default_factory=list)
    payloads: list[Tensor] = field(default_factory=list)

    def on_embeddings(self, request_id: str, item: int, attempt: int, payload: BorrowedRows) -> bool:
        self.events.append((request_id, item, attempt))
        self.payloads.append(payload.tensor.cpu())
        return request_id != "gone"

    def on_encoder_lost(self, items: list[tuple[str, int, int]]) -> None:
        self.events.append(("lost", *items))


class SharedMemoryEnds:
    """Both ends in this process, over memory as a parent would make it."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.shape = ArenaShape(ROWS, HIDDEN, dtype)
        self.fd = create_shared(self.shape.num_bytes)
        self.receiver: EmbeddingReceiver = SharedMemoryReceiver(map_shared(self.fd, self.shape))

    def sender(self, encoder: int, epoch: int, announce: Callable[[object], None]) -> EmbeddingSender:
        return SharedMemorySender(map_shared(self.fd, self.shape), announce)

    def close(self) -> None:
        self.receiver.close()
        os.close(self.fd)


class CudaIpcEnds:
    """Both ends in this process, over host memory in the place of a GPU's."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.broken: list[RuntimeError] = []
        self.shape = ArenaShape(ROWS, HIDDEN, dtype)
        self.fd = create_shared(self.shape.num_bytes)
        self.memory, self.store = FileMemory(self.fd), dist.HashStore()
        arena = map_shared(self.fd, self.shape)
        self.receiver: EmbeddingReceiver = CudaIpcReceiver(self.memory, arena, self.store)

    def sender(self, encoder: int, epoch: int, announce: Callable[[object], None]) -> EmbeddingSender:
        arena = open_arena(self.memory, self.store, self.shape)
        return CudaIpcSender(self.memory, arena, announce, self.broken.append)

    def close(self) -> None:
        self.receiver.close()
        os.close(self.fd)


class PointToPointEnds:
    """Both ends in this process, over gloo, or NCCL between two GPUs, and the driver's store."""

    def __init__(self, dtype: torch.dtype, devices: tuple[str, str] = ("cpu", "cpu")) -> None:
        """devices: the driver's, the encoders'."""
        self.encoder_device = torch.device(devices[1])
        self.broken: list[RuntimeError] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        fd = self.listener.detach()
        store = dist.TCPStore(
            "127.0.0.1", 0, None, True, STORE_TIMEOUT, wait_for_workers=False, master_listen_fd=fd
        )
        arena = torch.zeros(ROWS, HIDDEN, dtype=dtype, device=devices[0])
        self.receiver: EmbeddingReceiver = PointToPointReceiver(arena, store)

    def sender(self, encoder: int, epoch: int, announce: Callable[[object], None]) -> EmbeddingSender:
        def open_wire() -> Wire:
            store = dist.TCPStore("127.0.0.1", self.port, None, False, STORE_TIMEOUT, wait_for_workers=False)
            return join(store, encoder, epoch, self.encoder_device)

        return PointToPointSender(open_wire, announce, self.broken.append, self.encoder_device)

    def close(self) -> None:
        self.receiver.close()


class NixlEnds:
    """Both ends in this process, over NIXL and a store."""

    def __init__(self, dtype: torch.dtype) -> None:
        from rserve.runtime.nixl_channel import NixlReceiver

        self.broken: list[RuntimeError] = []
        self.shape = ArenaShape(ROWS, HIDDEN, dtype)
        self.store = dist.HashStore()
        self.receiver: EmbeddingReceiver = NixlReceiver(torch.zeros(ROWS, HIDDEN, dtype=dtype), self.store)

    def sender(self, encoder: int, epoch: int, announce: Callable[[object], None]) -> EmbeddingSender:
        from rserve.runtime.nixl_channel import NixlSender

        return NixlSender(f"encoder{encoder}.{epoch}", self.shape, self.store, announce, self.broken.append)

    def close(self) -> None:
        self.receiver.close()


Ends = SharedMemoryEnds | CudaIpcEnds | PointToPointEnds | NixlEnds
ENDS: dict[str, Callable[[torch.dtype], Ends]] = {
    "shm": SharedMemoryEnds,
    "cuda-ipc": CudaIpcEnds,
    "p2p": PointToPointEnds,
    "p2p over gloo, one GPU": lambda dtype: PointToPointEnds(dtype, ("cuda:0", "cuda:0")),
    "p2p over NCCL, two GPUs": lambda dtype: PointToPointEnds(dtype, ("cuda:0", "cuda:1")),
    "nixl": NixlEnds,
}


class Channel:
    """Encoders and the driver around one channel; announcements wait until they are delivered."""

    def __init__(self, ends: Ends, dtype: torch.dtype) -> None:
        self.ends, self.receiver, self.dtype = ends, ends.receiver, dtype
        self.device = getattr(ends, "encoder_device", torch.device("cpu"))
        self.core = Landed()
        self.announced: deque[EmbeddingsSent] = deque()
        self.senders: list[EmbeddingSender] = []

    def start(self, encoder: int = 0, epoch: int = 0) -> EmbeddingSender:
        self.receiver.on_joined(EncoderJoined(encoder, epoch))
        self.senders.append(self.ends.sender(encoder, epoch, self.announced.append))
        return self.senders[-1]

    def send(self, sender: EmbeddingSender, message: EmbeddingsSent, *values: float) -> list[Tensor]:
        """Embeddings full of these values, plus the row's number, one tensor per item."""
        tensors = [
            (torch.arange(count)[:, None] + value).repeat(1, HIDDEN).to(self.device, self.dtype)
            for count, value in zip(message.counts, values)
        ]
        sender.send(message, tensors)
        return tensors

    def deliver(self, core: object | None = None) -> None:
        """The driver reads its inbox."""
        while self.announced:
            self.receiver.on_sent(self.announced.popleft())
        self.receiver.drain(core or self.core)

    def wait_for(self, num_events: int) -> None:
        deadline = time.monotonic() + 20
        self.deliver()
        while len(self.core.events) < num_events and time.monotonic() < deadline:
            select.select([self.receiver.wakes], [], [], 0.02)
            self.deliver()
        assert len(self.core.events) == num_events, self.core.events

    def close(self) -> None:
        for sender in self.senders:
            sender.close()
        self.ends.close()


def sent(
    request: str,
    items: tuple[int, ...],
    rows: tuple[int, ...],
    count: int = 4,
    encoder: int = 0,
    epoch: int = 0,
) -> EmbeddingsSent:
    counts = (count,) * len(items)
    return EmbeddingsSent(encoder, epoch, request, items, (0,) * len(items), rows, counts)
