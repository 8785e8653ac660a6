"""The contract of an embedding channel, for every transport: posted, sent, landed, released."""

import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch

from gllm.core.core_config import CoreConfig
from gllm.core.effects import EncodeItems, ItemReleased
from gllm.core.request import MMItem, Request
from rserve.core.epd_core import Scheme, make_core
from rserve.runtime.messages import EncoderJoined, EncoderLost
from rserve.runtime.point_to_point import PointToPointSender
from rserve.runtime.wires import Wire, wire_kind
from tests.rserve.channel_ends import ENDS, HIDDEN, Channel, PointToPointEnds, sent

HAS_NIXL = find_spec("nixl") is not None


def needs_gpus(count: int) -> pytest.MarkDecorator:
    found = torch.cuda.device_count()
    return pytest.mark.skipif(found < count, reason=f"{count} GPUs are needed, {found} are here")


@pytest.fixture(
    params=[
        "shm",
        "cuda-ipc",
        "p2p",
        pytest.param("p2p over gloo, one GPU", marks=needs_gpus(1)),
        pytest.param("p2p over NCCL, two GPUs", marks=needs_gpus(2)),
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
        assert payload.dtype == dtype and torch.equal(payload, tensor.cpu())
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
        first.send(sent("a", (0,), (0,)), [torch.ones(4, HIDDEN, device=channel.device)])
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

    def refuse() -> Wire:
        raise RuntimeError("connection reset")

    sender = PointToPointSender(refuse, lambda message: None, broken.append, torch.device("cpu"))
    sender.close()
    assert [str(error) for error in broken] == ["connection reset"]


@pytest.mark.parametrize(
    ("driver", "encoder", "kind"),
    [("", "", "gloo"), ("GPU-1", "", "gloo"), ("", "GPU-1", "gloo"), ("GPU-1", "GPU-1", "gloo")],
)
def test_nccl_carries_embeddings_between_two_gpus_and_gloo_all_others(driver: str, encoder: str, kind: str):
    assert wire_kind(driver, encoder) == kind
    assert wire_kind("GPU-1", "GPU-2") == "nccl"
