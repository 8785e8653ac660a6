"""Messages arrive whole, in order, and with their frames; what is unknown is an error."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from gllm.core.batch import BatchResult, Chunk, MicroBatch, NewSequence, Sample, SampledToken, SampleTarget
from gllm.core.request import MMItem, Request, SamplingParams
from gllm.runtime.channels import Inbox, Outbox
from gllm.runtime.codec import Codec
from gllm.runtime.messages import AbortRequest, AddRequest, PixelBatch, StageBatch
from gllm.runtime.post import Post

Pair = tuple[Inbox, Outbox]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    context = zmq.Context()
    address = f"ipc://{tmp_path}/inbox"
    inbox, outbox = Inbox(context, address, Codec()), Outbox(context, address, Codec())
    yield inbox, outbox
    inbox.close()
    outbox.close()
    context.term()


def test_an_inbox_without_a_port_finds_one_and_tells_its_address():
    context = zmq.Context()
    inbox = Inbox(context, "tcp://127.0.0.1:0", Codec())
    outbox = Outbox(context, inbox.address, Codec())
    outbox.send(AbortRequest("found"))
    assert inbox.receive(5000) == AbortRequest("found")
    inbox.close()
    outbox.close()
    context.term()


def test_messages_arrive_in_the_order_they_were_sent(pair: Pair):
    inbox, outbox = pair
    for number in range(5):
        outbox.send(AbortRequest(str(number)))
    first = inbox.receive(5000)
    rest: list[object] = []
    while len(rest) < 4:
        inbox.socket.poll(5000)
        rest += inbox.drain()
    assert [first, *rest] == [AbortRequest(str(number)) for number in range(5)]


def test_frames_travel_behind_their_message(pair: Pair):
    inbox, outbox = pair
    pixels = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    batch = PixelBatch(1, "a", (0,), (0,), ((1, 2, 2),))
    outbox.send(batch, [pixels.data])
    received = inbox.receive_frames(5000)
    assert received is not None
    assert received[0] == batch
    assert bytes(received[1][0]) == pixels.tobytes()


def test_an_empty_inbox_gives_nothing_and_does_not_wait(pair: Pair):
    assert pair[0].receive(0) is None
    assert list(pair[0].drain()) == []


def test_messages_wait_for_an_owner_that_binds_later(tmp_path: Path):
    context = zmq.Context()
    address = f"ipc://{tmp_path}/late"
    outbox = Outbox(context, address, Codec())
    outbox.send(AbortRequest("early"))
    inbox = Inbox(context, address, Codec())
    assert inbox.receive(10_000) == AbortRequest("early")
    inbox.close()
    outbox.close()
    context.term()


def test_an_address_in_use_is_an_error():
    context = zmq.Context()
    first = context.socket(zmq.PULL)
    port = first.bind_to_random_port("tcp://*")
    with pytest.raises(zmq.ZMQError):
        Inbox(context, f"tcp://127.0.0.1:{port}", Codec())
    context.destroy()


def test_a_post_sends_to_where_an_inbox_was_moved(tmp_path: Path):
    post = Post({"a": f"ipc://{tmp_path}/a", "b": f"ipc://{tmp_path}/wrong"}, Codec())
    inbox = post.inbox("a")
    post.relocate("b", f"ipc://{tmp_path}/a")
    post.outbox("b").send(AbortRequest("x"))
    assert inbox.receive(5000) == AbortRequest("x")
    post.close()


def test_unknown_types_and_bodies_that_do_not_fit_are_errors():
    codec = Codec()
    with pytest.raises(ValueError, match="unknown message type"):
        codec.decode(b"Nothing", b"")
    with pytest.raises(ValueError, match="request_id"):
        codec.decode(*[b"AbortRequest", codec.encode(PixelBatch(0, "a", (), (), ()))[1]][:1], b"\x80")


ids = st.lists(st.integers(0, 2**31), max_size=20).map(tuple)
sampling = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 100),
    temperature=st.floats(0, 2),
    seed=st.integers(0, 2**63 - 1),
    logprobs=st.none() | st.integers(0, 20),
    stop_token_ids=ids,
)
items = st.lists(
    st.builds(MMItem, st.integers(0, 99), st.integers(1, 99), st.just((1, 4, 6)), st.floats(0, 1)), max_size=3
).map(tuple)


@given(st.builds(Request, st.text(), ids, items, sampling, ids))
def test_a_request_survives_the_wire(request: Request):
    codec = Codec()
    assert codec.decode(*codec.encode(AddRequest(request))) == AddRequest(request)


@given(sampling, ids, items)
def test_a_delta_survives_the_wire_without_token_ids(
    params: SamplingParams, blocks: tuple[int, ...], of_image: tuple[MMItem, ...]
):
    new = NewSequence(3, "r", 0, 9, 9, of_image, params, blocks)
    sample = Sample(0, params, (SampleTarget(3, "r", 0, 9),))
    batch = MicroBatch(
        1, (Chunk(3, 0, 9),), 0, tuple(range(9)), samples=(sample,), new=(new,), copies=((1, 2),)
    )
    delta = StageBatch.of(batch)
    codec = Codec()
    assert codec.decode(*codec.encode(delta)) == delta
    assert delta.num_tokens == batch.num_tokens


def test_a_result_survives_the_wire():
    result = BatchResult(4, (SampledToken(1, "r", 0, 12, 99),))
    codec = Codec()
    assert codec.decode(*codec.encode(result)) == result
