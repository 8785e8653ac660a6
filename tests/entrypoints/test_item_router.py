"""Pixels go to stage 0 once per attempt, and no longer than somebody wants them."""

import asyncio

import pytest

from gllm.core.effects import EncodeItems
from gllm.core.request import MMItem, Request
from gllm.entrypoints.item_router import StageZeroRouter
from gllm.multimodal.errors import BadInput
from gllm.runtime.messages import PixelBatch
from tests.entrypoints.fakes import FakePrompt

pytestmark = pytest.mark.anyio


class Port:
    """Driver and pixel inbox of the router under test."""

    def __init__(self) -> None:
        self.sent: list[object] = []
        self.sizes: list[int] = []
        self.failed: list[tuple[str, int, int]] = []

    def send(self, message: object, frames=()) -> None:
        self.sent.append(message)
        self.sizes += [len(memoryview(frame).cast("B")) for frame in frames]

    def fail_item(self, request_id: str, item: int, error: BadInput) -> None:
        self.failed.append((request_id, item, error.status))

    def attempts(self) -> list[tuple[int, int]]:
        batches = [message for message in self.sent if type(message) is PixelBatch]
        return sorted((batch.items[0], batch.attempts[0]) for batch in batches)


def make(*urls: str) -> tuple[StageZeroRouter, Port, FakePrompt, Request]:
    items = tuple(MMItem(4 * i, 4, (1, 4, 4)) for i in range(len(urls)))
    prompt = FakePrompt([0] * 4 * len(urls), items, urls)
    port = Port()
    return StageZeroRouter(port, port, False), port, prompt, Request("r", tuple(prompt.token_ids), items)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_every_item_is_sent_once_although_the_driver_asks_for_it_too():
    router, port, prompt, request = make("a", "b")
    router.add_request(request, prompt)
    router.on_message(EncodeItems("r", (0, 1), (0, 0)))
    await settle()
    assert port.attempts() == [(0, 0), (1, 0)]
    assert port.sizes == [56 * 56 * 3] * 2


async def test_a_new_attempt_sends_the_pixels_again():
    router, port, prompt, request = make("a", "b")
    router.add_request(request, prompt)
    await settle()
    router.on_message(EncodeItems("r", (1,), (1,)))
    await settle()
    assert port.attempts() == [(0, 0), (1, 0), (1, 1)]


async def test_a_slow_item_holds_up_no_other_and_ends_with_its_request():
    router, port, prompt, request = make("slow", "b")
    router.add_request(request, prompt)
    await settle()
    assert port.attempts() == [(1, 0)] and not prompt.is_released
    router.remove_request("r")
    router.remove_request("r")
    await settle()
    assert prompt.is_released
    router.on_message(EncodeItems("r", (1,), (1,)))
    await router.close()
    assert port.attempts() == [(1, 0)]


async def test_an_item_that_fails_is_reported_with_its_status():
    router, port, prompt, request = make("a", "broken")
    router.add_request(request, prompt)
    await settle()
    assert port.failed == [("r", 1, 422)]
