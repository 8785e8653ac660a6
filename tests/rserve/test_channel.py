"""The contract of an embedding channel, for every transport: posted, sent, landed, released."""

import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from gllm.core.core_config import CoreConfig
from gllm.core.effects import EncodeItems, ItemReleased
from gllm.core.request import MMItem, Request
from gllm.runtime.embedding_rows import BorrowedRows
from rserve.core.epd_core import Scheme, make_core
from rserve.runtime.arena_memory import ArenaShape, map_shared
from rserve.runtime.channels import STORE_TIMEOUT
from rserve.runtime.cuda_ipc import CudaIpcReceiver, CudaIpcSender, open_arena
from rserve.runtime.embedding_channel import EmbeddingReceiver, EmbeddingSender
from rserve.runtime.messages import EmbeddingsSent, EncoderJoined, EncoderLost
from rserve.runtime.point_to_point import PointToPointReceiver, PointToPointSender, join
from rserve.runtime.shared_file import create_shared
from rserve.runtime.shared_memory import SharedMemoryReceiver, SharedMemorySender
from tests.rserve.file_memory import FileMemory

ROWS, HIDDEN = 64, 8
HAS_NIXL = find_spec("nixl") is not None


@dataclass
class Landed:
    """A core that writes down what lands; nobody waits for items of the request `gone`."""

    events: list[tuple[object, ...]] = field(default_factory=list)
    payloads: list[Tensor] = field(default_factory=list)

    def on_embeddings(self, request_id: str, item: int, attempt: int, payload: BorrowedRows) -> bool:
        self.events.append((request_id, item, attempt))
        self.payloads.append(payload.tensor)
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
    """Both ends in this process, over gloo and the driver's store."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.broken: list[RuntimeError] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        fd = self.listener.detach()
        store = dist.TCPStore(
            "127.0.0.1", 0, None, True, STORE_TIMEOUT, wait_for_workers=False, master_listen_fd=fd
        )
        self.receiver: EmbeddingReceiver = PointToPointReceiver(torch.zeros(ROWS, HIDDEN, dtype=dtype), store)

    def sender(self, encoder: int, epoch: int, announce: Callable[[object], None]) -> EmbeddingSender:
        def open_group() -> dist.ProcessGroup:
            store = dist.TCPStore("127.0.0.1", self.port, None, False, STORE_TIMEOUT, wait_for_workers=False)
            return join(store, encoder, epoch)

        return PointToPointSender(open_group, announce, self.broken.append)

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
    "nixl": NixlEnds,
}


class Channel:
    """Encoders and the driver around one channel; announcements wait until they are delivered."""

    def __init__(self, ends: Ends, dtype: torch.dtype) -> None:
        self.ends, self.receiver, self.dtype = ends, ends.receiver, dtype
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
            (torch.arange(count, dtype=torch.float32)[:, None] + value).repeat(1, HIDDEN).to(self.dtype)
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


@pytest.fixture(
    params=[
        "shm",
        "cuda-ipc",
        "p2p",
        pytest.param("nixl", marks=pytest.mark.skipif(not HAS_NIXL, reason="NIXL is not installed")),
    ]
)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def make(kind: str, dtype: torch.dtype = torch.float32) -> Channel:
    return Channel(ENDS[kind](dtype), dtype)


@pytest.fixture
def channel(kind: str) -> Iterator[Channel]:
    channel = make(kind)
    yield channel
    channel.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_embeddings_land_bit_by_bit_at_their_rows(kind: str, dtype: torch.dtype):
    channel = make(kind, dtype)
    sender = channel.start()
    tensors = channel.send(sender, sent("a", (0, 1), (40, 8)), 1.5, -300.25)
    channel.wait_for(2)
    assert channel.core.events == [("a", 0, 0), ("a", 1, 0)]
    for payload, tensor in zip(channel.core.payloads, tensors):
        assert payload.dtype == dtype and torch.equal(payload, tensor)
    channel.close()


def test_nothing_lands_before_it_is_announced(channel: Channel):
    sender = channel.start()
    channel.send(sender, sent("a", (0,), (0,)), 1.0)
    channel.receiver.drain(channel.core)
    assert not channel.core.events
    channel.wait_for(1)


def test_batches_of_one_encoder_land_in_the_order_they_were_sent(channel: Channel):
    sender = channel.start()
    for item in (3, 1, 2, 0):
        channel.send(sender, sent("a", (item,), (item * 8,)), float(item))
    channel.wait_for(4)
    assert [event[1] for event in channel.core.events] == [3, 1, 2, 0]
    assert [payload[0, 0].item() for payload in channel.core.payloads] == [3.0, 1.0, 2.0, 0.0]


def test_an_encoder_that_has_not_sent_holds_up_no_other(channel: Channel):
    first, second = channel.start(0), channel.start(1)
    channel.receiver.on_sent(sent("a", (0,), (0,))) if channel.ends.__class__ is PointToPointEnds else None
    channel.send(second, sent("b", (0,), (8,), encoder=1), 2.0)
    channel.wait_for(1)
    assert channel.core.events == [("b", 0, 0)]
    if channel.ends.__class__ is not PointToPointEnds:
        channel.send(first, sent("a", (0,), (0,)), 1.0)
    else:
        first.send(sent("a", (0,), (0,)), [torch.ones(4, HIDDEN)])
        channel.announced.clear()
    channel.wait_for(2)
    assert channel.core.events[-1] == ("a", 0, 0)


def test_items_of_aborted_requests_land_too_and_the_next_ones_are_right(channel: Channel):
    sender = channel.start()
    channel.send(sender, sent("gone", (0, 1), (0, 4)), 1.0, 2.0)
    channel.send(sender, sent("a", (0,), (8,)), 3.0)
    channel.wait_for(3)
    assert channel.core.events == [("gone", 0, 0), ("gone", 1, 0), ("a", 0, 0)]
    assert channel.core.payloads[-1][0, 0].item() == 3.0


def test_released_rows_serve_the_next_request(channel: Channel):
    sender = channel.start()
    for round_ in range(5):
        channel.send(sender, sent(f"r{round_}", (0,), (16,)), float(round_ * 10))
        channel.wait_for(round_ + 1)
        assert channel.core.payloads[-1][:, 0].tolist() == [round_ * 10 + i for i in range(4)]


def test_draining_with_nothing_there_returns_at_once(channel: Channel):
    channel.start()
    for _ in range(3):
        channel.receiver.drain(channel.core)
    assert not channel.core.events


def test_what_was_sent_before_a_loss_lands_before_it(channel: Channel):
    sender = channel.start()
    channel.send(sender, sent("a", (0,), (0,)), 1.0)
    channel.wait_for(1)
    channel.receiver.on_sent(sent("a", (1,), (8,))) if channel.ends.__class__ is PointToPointEnds else None
    sender.close()
    channel.receiver.on_lost(EncoderLost(0, (("a", 0, 0), ("a", 1, 0))))
    channel.wait_for(2)
    assert channel.core.events == [("a", 0, 0), ("lost", ("a", 0, 0), ("a", 1, 0))]


@pytest.mark.parametrize("is_joined", [True, False])
def test_what_a_lost_encoder_announced_and_never_sent_is_lost_although_it_counts_as_encoded(is_joined: bool):
    channel = Channel(PointToPointEnds(torch.float32), torch.float32)
    try:
        channel.receiver.on_joined(EncoderJoined(0, 0))
        sender = channel.ends.sender(0, 0, lambda message: None) if is_joined else None
        if sender is not None:
            channel.receiver.on_sent(sent("a", (0,), (0,)))
            sender.send(sent("a", (0,), (0,)), [torch.ones(4, HIDDEN)])
            channel.wait_for(1)
        channel.receiver.on_sent(sent("a", (1, 2), (8, 12)))
        if sender is not None:
            sender.close()
        channel.receiver.on_lost(EncoderLost(0, (("b", 0, 0),)))
        channel.wait_for(2 if is_joined else 1)
        assert channel.core.events[-1] == ("lost", ("b", 0, 0), ("a", 1, 0), ("a", 2, 0))
    finally:
        channel.close()


def test_the_successor_of_a_lost_encoder_sends_in_its_own_epoch(channel: Channel):
    for epoch in range(3):
        sender = channel.start(0, epoch)
        channel.send(sender, sent("a", (epoch,), (8,), epoch=epoch), float(epoch))
        channel.wait_for(2 * epoch + 1)
        sender.close()
        channel.receiver.on_lost(EncoderLost(0, ()))
        channel.wait_for(2 * epoch + 2)
    assert [e[1] for e in channel.core.events if e[0] == "a"] == [0, 1, 2]
    assert [payload[0, 0].item() for payload in channel.core.payloads][-1] == 2.0


def test_an_encoder_that_dies_before_it_joins_is_reported_too(channel: Channel):
    channel.receiver.on_joined(EncoderJoined(0, 0))
    channel.receiver.on_lost(EncoderLost(0, (("a", 0, 0),)))
    channel.wait_for(1)
    assert channel.core.events == [("lost", ("a", 0, 0))]


def test_a_late_announcement_of_a_lost_encoder_reaches_nobody_who_waits(channel: Channel):
    core = make_core(Scheme("rserve"), CoreConfig(num_blocks=16))
    core.on_request(Request("a", (1,) * 8, (MMItem(2, 4),)))
    sender = channel.start()
    sender.close()
    channel.receiver.on_lost(EncoderLost(0, (("a", 0, 0),)))
    deadline = time.monotonic() + 20
    while not core.items.effects and time.monotonic() < deadline:
        channel.deliver(core)
    assert core.take_effects() == [ItemReleased("a", 0, 0), EncodeItems("a", (0,), (1,))]
    channel.receiver.on_sent(sent("a", (0,), (0,)))
    channel.deliver(core)
    assert core.tracker.tokens_held == 0


def num_threads() -> int:
    return [thread.name for thread in threading.enumerate()].count("embeddings")


def test_lost_encoders_leave_no_thread(channel: Channel):
    before = num_threads()
    for epoch in range(5):
        sender = channel.start(0, epoch)
        channel.send(sender, sent("a", (epoch,), (0,), epoch=epoch), 1.0)
        channel.wait_for(2 * epoch + 1)
        sender.close()
        channel.receiver.on_lost(EncoderLost(0, ()))
        channel.wait_for(2 * epoch + 2)
    wait_for_threads(before)


def test_encoders_that_die_before_they_join_leave_no_thread(channel: Channel):
    before = num_threads()
    for epoch in range(5):
        channel.receiver.on_joined(EncoderJoined(0, epoch))
        channel.receiver.on_lost(EncoderLost(0, ()))
    wait_for_threads(before)
    sender = channel.start(0, 5)
    channel.wait_for(5)
    channel.send(sender, sent("a", (0,), (0,), epoch=5), 1.0)
    channel.wait_for(6)


def wait_for_threads(most: int) -> None:
    deadline = time.monotonic() + 10
    while num_threads() > most and time.monotonic() < deadline:
        time.sleep(0.02)
    assert num_threads() <= most


def test_an_encoder_that_cannot_reach_the_driver_says_so():
    broken: list[RuntimeError] = []

    def refuse() -> dist.ProcessGroup:
        raise RuntimeError("connection reset")

    sender = PointToPointSender(refuse, lambda message: None, broken.append)
    sender.close()
    assert [str(error) for error in broken] == ["connection reset"]
