"""Room is kept from the first byte of work on, pixels are bounded, and ended choices stop the engine."""

import asyncio

import numpy as np
import pytest

from gllm.config import ServerConfig
from gllm.core.effects import EncodeItems, ItemReleased, SkipItems
from gllm.core.request import MMItem, Request
from gllm.entrypoints.engine_client import ClientLimits
from gllm.entrypoints.errors import ApiError
from gllm.entrypoints.item_router import BYTES_PER_PATCH, StageZeroRouter
from gllm.entrypoints.pixel_gate import PixelGate
from gllm.entrypoints.process_link import ProcessLink
from gllm.entrypoints.protocol import ChatCompletionRequest
from gllm.entrypoints.router_load import Distribution
from gllm.entrypoints.service import Service
from gllm.multimodal.errors import BadInput
from gllm.runtime.messages import AbortRequest, PixelBatch
from tests.entrypoints.fakes import EchoEngine, FakeProcessor, make_client, make_model

pytestmark = pytest.mark.anyio


class SlowProcessor(FakeProcessor):
    """Prompts take until the event is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = asyncio.Event()

    async def prepare_chat(self, chat):
        await self.go_on.wait()
        return await super().prepare_chat(chat)


def chat(text: str = "hello", **fields) -> ChatCompletionRequest:
    return ChatCompletionRequest.checked({"messages": [{"role": "user", "content": text}], **fields})


async def test_requests_whose_prompts_are_being_prepared_count_for_the_queue():
    processor = SlowProcessor()
    service = Service(
        make_client(EchoEngine(), ClientLimits(max_requests=2)), processor, make_model(), ServerConfig()
    )
    service.engine.start()
    first = [asyncio.create_task(service.chat.start(chat(), f"r{i}")) for i in range(2)]
    await asyncio.sleep(0.01)
    with pytest.raises(ApiError, match="the limit is 2") as caught:
        await service.chat.start(chat(), "r2")
    assert caught.value.status == 429 and caught.value.retry_after
    processor.go_on.set()
    for task in first:
        assert (await service.chat.full(await task))["choices"]
    assert (await service.chat.full(await service.chat.start(chat(), "r3")))["choices"]


async def test_a_choice_that_ended_by_a_stop_string_before_the_last_one_stops_the_engine_too():
    """Choice 0 hits a stop string, of which the engine knows nothing; choice 1 ends by its end of text."""
    engine = EchoEngine(answers=[list(b"abcdef"), [*b"xy", 256]])
    service = Service(make_client(engine), FakeProcessor(), make_model(), ServerConfig())
    service.engine.start()
    generation = await service.chat.start(chat(n=2, stop=["cd"], max_tokens=100), "r0")
    answer = await service.chat.full(generation)
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["ab", "xy"]
    assert [abort.reason for abort in engine.of(AbortRequest)] == ["stop"]


class Source:
    """Black pixels of one patch."""

    def __init__(self) -> None:
        self.is_released = False

    async def pixels(self, item: int) -> np.ndarray:
        return np.zeros((14, 14, 3), np.uint8)

    async def digest(self, item: int) -> bytes:
        return bytes([item])

    async def release(self) -> None:
        self.is_released = True


class Broken(Source):
    async def pixels(self, item: int) -> np.ndarray:
        raise KeyError("a bug")


class Port:
    """Writes down what the router sends."""

    def __init__(self) -> None:
        self.sent: list[object] = []
        self.failed: list[BadInput] = []

    def send(self, message: object, frames: object = ()) -> None:
        self.sent.append(message)

    def fail_item(self, request_id: str, item: int, error: BadInput) -> None:
        self.failed.append(error)


def one_image(name: str) -> Request:
    return Request(name, (1, 2, 3), (MMItem(1, 1, (1, 1, 1)),))


@pytest.mark.parametrize("leaves", [ItemReleased("r0", 0, 0), SkipItems("r0", (0,)), None])
async def test_pixels_wait_until_those_before_them_are_used(leaves):
    port, gate = Port(), PixelGate(2 * BYTES_PER_PATCH)
    router = StageZeroRouter(port, port, prefix_caching=False, gate=gate)
    for index in range(3):
        router.add_request(one_image(f"r{index}"), Source())
    await asyncio.sleep(0.01)
    assert [batch.request_id for batch in port.sent] == ["r0", "r1"]
    assert router.load().gauges["pixel_requests_waiting"] == 1
    if leaves is None:
        router.remove_request("r0")
    else:
        router.on_message(leaves)
    await asyncio.sleep(0.01)
    assert [batch.request_id for batch in port.sent] == ["r0", "r1", "r2"]
    for index in range(3):
        router.remove_request(f"r{index}")
    assert gate.num_bytes == 0
    await router.close()


async def test_items_that_are_wanted_again_pass_the_gate_without_waiting():
    port = Port()
    router = StageZeroRouter(port, port, prefix_caching=False, gate=PixelGate(BYTES_PER_PATCH))
    router.add_request(one_image("r0"), Source())
    router.add_request(one_image("r1"), Source())
    await asyncio.sleep(0.01)
    router.on_message(EncodeItems("r0", (0,), (1,)))
    await asyncio.sleep(0.01)
    assert [(b.request_id, b.attempts) for b in port.sent if type(b) is PixelBatch] == [
        ("r0", (0,)),
        ("r0", (1,)),
    ]
    await router.close()


async def test_a_bug_while_fetching_ends_the_request_instead_of_leaving_it():
    port = Port()
    router = StageZeroRouter(port, port, prefix_caching=False)
    router.add_request(one_image("r0"), Broken())
    await asyncio.sleep(0.01)
    assert [error.status for error in port.failed] == [500]
    await router.close()


def test_a_distribution_counts_up_to_its_bounds():
    sizes = Distribution((4, 16))
    for value in (1, 4, 5, 16, 17):
        sizes.add(value)
    assert sizes.cumulative() == [("4", 2.0), ("16", 4.0), ("+Inf", 5.0)]
    assert sizes.total == 43


async def test_a_message_that_breaks_its_handler_does_not_stop_the_others():
    class Inbox:
        def drain(self):
            return iter(["bad", "good"])

    class Socket:
        def fileno(self) -> int:
            return reader

    import os

    reader, writer = os.pipe()
    inbox = Inbox()
    inbox.socket = Socket()
    seen = []

    def handle(message: object) -> None:
        if message == "bad":
            raise KeyError(message)
        seen.append(message)

    link = ProcessLink(inbox, Port())
    link.listen(handle)
    await asyncio.sleep(0.01)
    link.close()
    os.close(reader)
    os.close(writer)
    assert seen == ["good"]
