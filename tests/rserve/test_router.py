"""The EPD item router: what goes when to which encoder, and that every request ends whatever encoders do."""

import asyncio
import random

import pytest

from gllm.core.effects import ItemReleased
from gllm.core.request import Request
from gllm.entrypoints.errors import ApiError
from gllm.runtime.messages import CreditsShort, EncodingStarted
from tests.core.world import make_request
from tests.rserve.router_world import Faults, Options, World

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def images(name: str, *tokens: int, max_tokens: int = 2) -> Request:
    layout = [2]
    for count in tokens:
        layout += [-count, 1]
    return make_request(name, layout, max_tokens)


async def test_requests_with_images_are_served_and_leave_nothing():
    async with World() as world:
        for index in range(8):
            world.ask(images(f"r{index}", 4, 4, 8))
        await world.until(lambda: len(world.ended) == 8)
        assert set(world.ended.values()) == {"length"}
        await world.until(lambda: not world.router._requests)
        await asyncio.sleep(0.01)
        world.check_empty()
        assert world.messages.count(EncodingStarted("r0")) == 1


async def test_a_slow_image_idles_nobody():
    async with World() as world:
        world.ask(images("slow", 4, 4), slow={0: 30.0})
        world.ask(images("quick", 4))
        await world.until(lambda: "quick" in world.ended)
        assert "slow" not in world.ended
        world.leave("slow")
        await world.until(lambda: "slow" in world.ended)
        await asyncio.sleep(0.01)
        world.check_empty()


async def test_first_items_are_encoded_while_later_ones_are_still_fetched():
    async with World() as world:
        world.ask(images("a", 4, 4), slow={1: 30.0})
        await world.until(lambda: world.core.stats()["kv_blocks_used"] > 0)
        sequence = next(iter(world.core.sequences.values()))
        await world.until(lambda: sequence.num_dispatched == 7)
        world.leave("a")
        await world.until(lambda: not world.core.requests)
        await asyncio.sleep(0.01)
        world.check_empty()


async def test_a_corrupt_image_ends_its_request_alone():
    async with World() as world:
        world.ask(images("bad", 4, 4), broken=frozenset({1}))
        world.ask(images("good", 4))
        await world.until(lambda: len(world.ended) == 2)
        assert world.ended == {"bad": 400, "good": "length"}
        await world.until(lambda: not world.router._requests)
        await asyncio.sleep(0.01)
        world.check_empty()


async def test_a_preempted_request_has_its_pixels_fetched_again():
    async with World(Options(num_blocks=14)) as world:
        asked = [images(f"r{i}", 8, 8, max_tokens=20) for i in range(3)]
        sources = [world.ask(request) for request in asked]
        await world.until(lambda: len(world.ended) == 3)
        assert set(world.ended.values()) == {"length"}
        assert world.core.residency.num_preemptions > 0
        assert max(len(source.asked) for source in sources) > 2
        await world.until(lambda: not world.router._requests)
        await asyncio.sleep(0.01)
        world.check_empty()


async def test_the_gate_bounds_decoded_pixels_and_lets_everybody_in_at_last():
    one = 28 * 28 * 3
    async with World(Options(gate_bytes=3 * one)) as world:
        asked = [make_request(f"r{i}", [2, -4, 1, -4], 1) for i in range(10)]
        asked = [
            Request(r.request_id, r.token_ids, tuple(_square(i) for i in r.items), r.sampling) for r in asked
        ]
        highest = 0
        for request in asked:
            world.ask(request)
        while len(world.ended) < 10:
            highest = max(highest, world.gate.num_bytes)
            await world.until(lambda: True)
            await asyncio.sleep(0)
        assert 0 < highest <= 3 * one
        await world.until(lambda: not world.router._requests)
        await asyncio.sleep(0.01)
        world.check_empty()


def _square(item):
    return type(item)(item.offset, item.num_tokens, (1, 2, 2))


async def test_a_request_beyond_the_embedding_memory_is_refused_with_both_numbers():
    async with World(Options(rows=64)) as world:
        world.router.check(images("fits", 32, 32))
        with pytest.raises(ApiError, match=r"2 images take 65 embeddings together and .* holds 64") as caught:
            world.router.check(images("large", 32, 33))
        assert caught.value.status == 400
        with pytest.raises(ApiError, match="image 2 of 2 takes 70 embeddings"):
            world.router.check(images("large", 4, 70))


async def test_without_encoders_requests_are_refused_or_stage_zero_encodes():
    for fallback in (False, True):
        async with World(Options(fallback=fallback, max_restarts=0), Faults(die=1.0)) as world:
            world.ask(images("a", 4, 4))
            await world.until(lambda: "a" in world.ended)
            assert world.ended["a"] == ("length" if fallback else 503)
            assert world.encoders.problems() == ["encoder 0 is lost"]
            if not fallback:
                with pytest.raises(ApiError, match="no encoder is left") as caught:
                    world.router.check(images("b", 4))
                assert caught.value.status == 503 and caught.value.retry_after
            await world.until(lambda: not world.router._requests)
            await asyncio.sleep(0.01)
            world.check_empty()


async def test_an_encoder_that_fails_a_batch_ends_its_request_with_500():
    async with World(faults=Faults(fail=1.0)) as world:
        world.ask(images("a", 4, 4))
        await world.until(lambda: "a" in world.ended)
        assert world.ended["a"] == 500
        await world.until(lambda: not world.router._requests)
        await asyncio.sleep(0.01)
        world.check_empty()


async def test_a_request_that_kills_encoders_does_not_take_them_all():
    """Every encoder that gets a batch dies; two restarts are left when the request is given up."""
    async with World(Options(max_restarts=5), Faults(die=1.0)) as world:
        world.ask(images("poison", 4))
        await world.until(lambda: "poison" in world.ended)
        assert world.ended["poison"] == 503
        assert world.encoders.states[0].num_losses == 3
        await world.until(lambda: not world.router._requests)
        await asyncio.sleep(0.01)
        world.check_empty()


async def test_the_driver_hears_again_that_memory_is_short_when_too_little_came_free():
    async with World(faults=Faults(delay_s=0.2)) as world:
        world.ask(images("holds", 40))
        world.ask(images("waits", 40))
        await world.until(lambda: CreditsShort("waits") in world.messages)
        world.messages.clear()
        world.router.on_message(ItemReleased("waits", 0, 0))  # frees nothing
        assert world.messages.count(CreditsShort("waits")) == 1
        await world.until(lambda: "waits" in world.ended)
        world.check_empty()


async def test_load_counts_queues_and_batches():
    async with World() as world:
        world.ask(images("a", 4, 4, 8))
        await world.until(lambda: "a" in world.ended)
        load = world.router.load()
        assert load.gauges["encoders_alive"] == 1 and load.gauges["embedding_rows"] == 64
        sizes = load.distributions["encode_batch_tokens"]
        assert sum(sizes.counts) == 3 and sizes.total == 16


FAULTS = {
    "none": Faults(),
    "drop": Faults(drop=0.1),
    "duplicate": Faults(duplicate=0.5),
    "reorder": Faults(reorder=0.5),
    "slow": Faults(delay_s=0.003),
    "die": Faults(die=0.1),
    "all": Faults(drop=0.03, duplicate=0.2, reorder=0.3, fail=0.02, die=0.03, delay_s=0.001),
}


QUICK = ("all", "duplicate")


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize(
    "fault", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FAULTS]
)
async def test_every_request_ends_and_nothing_is_left_whatever_encoders_do(fault: str, caching: bool):
    """A quarter of the clients leave at random moments; each embedding that is used is its item's own."""
    for seed in range(3):
        rng = random.Random(seed)
        options = Options(
            num_encoders=rng.choice([1, 2, 3]),
            rows=48,
            min_tokens=rng.choice([1, 8, 1000]),
            num_blocks=24,
            prefix_caching=caching,
            scheme=rng.choice(["rserve", "gllm-epd"]),
        )
        async with World(options, FAULTS[fault], seed) as world:
            for index in range(30):
                sizes = [rng.choice([1, 4, 8]) for _ in range(rng.randint(1, 4))]
                world.ask(images(f"r{index}", *sizes, max_tokens=rng.choice([1, 8])))
                if rng.random() < 0.25:
                    asyncio.get_running_loop().call_later(rng.random() * 0.1, world.leave, f"r{index}")
                await asyncio.sleep(rng.random() * 0.003)
            await world.until(lambda: len(world.ended) == 30)
            assert set(world.ended.values()) <= {"length", "abort", 500, 503}
            await world.until(lambda: not world.router._requests)
            await world.until(lambda: not world.dispatcher._reserved, 5)
            await asyncio.sleep(0.02)
            world.check_empty()
