"""Properties of the scheduling core under random arrivals, encode orders, aborts and encoder losses."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.world import Setup, World, make_request

SCHEMES = ["gllm", "gllm-epd", "rserve-intra", "rserve"]

layouts = st.lists(st.integers(-16, 20).filter(bool), min_size=1, max_size=6)
requests = st.lists(
    st.tuples(layouts, st.integers(1, 6), st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=8
)
setups = st.builds(
    Setup,
    scheme=st.sampled_from(SCHEMES),
    intra_reading=st.sampled_from(["serial", "per-micro-batch"]),
    num_blocks=st.integers(32, 64),
    num_stages=st.sampled_from([1, 2, 4]),
    max_in_flight=st.integers(1, 5),
    maxp=st.sampled_from([1, 3, 8, 32]),
    method=st.sampled_from(["chunked_prefill", "token_throttling"]),
    prefix_caching=st.booleans(),
    min_tokens=st.sampled_from([1, 8, 1000]),
    encoders=st.integers(1, 3),
    arena=st.integers(96, 160),
    kvthresh=st.sampled_from([0.0, 0.05, 0.3]),
)


def build(specs):
    return [
        make_request(f"r{i}", layout, max_tokens, n, content)
        for i, (layout, max_tokens, n, content) in enumerate(specs)
    ]


@given(setups, requests, st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_every_request_ends_with_all_its_tokens_and_nothing_is_left(setup, specs, seed):
    world = World(setup)
    asked = build(specs)
    world.run(asked, random.Random(seed))
    for request in asked:
        outputs = world.outputs[request.request_id]
        assert world.ended[request.request_id] == "length"
        assert {c: len(t) for c, t in outputs.items()} == dict.fromkeys(
            range(request.sampling.n), request.sampling.max_tokens
        )
    world.check_empty()


@given(setups, requests, st.integers(0, 2**32), st.booleans())
@settings(max_examples=100, deadline=None)
def test_aborts_and_lost_encoders_leave_nothing_behind(setup, specs, seed, fallback):
    setup.fallback = fallback and setup.scheme != "gllm"
    world = World(setup)
    world.run(build(specs), random.Random(seed), aborts=0.02, losses=0.02)
    assert len(world.ended) == len(specs)
    world.check_empty()


@given(setups, requests, st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_the_same_events_give_the_same_schedule(setup, specs, seed):
    worlds = [World(setup), World(setup)]
    for world in worlds:
        world.run(build(specs), random.Random(seed), aborts=0.01)
    assert worlds[0].batches == worlds[1].batches


def test_one_that_needs_the_embedding_memory_of_several_gets_it():
    """The request whose turn it is waits for memory that younger ones hold, each of them too little."""
    setup = Setup(
        "rserve-intra", "serial", 33, 4, 4, 3, 1, "token_throttling", True, 1000, arena=126, kvthresh=0.0
    )
    specs = [
        ([3, 16, 8, 4], 2, 1, 3),
        ([6, -15, -16, -10, -5, 3], 1, 2, 1),
        ([19, 12, 19, -12, -14, -7], 2, 3, 3),
        ([-8, 7, -14, 5, -7, -9], 2, 1, 1),
        ([20], 5, 1, 2),
        ([-11, 5, 7], 5, 1, 2),
        ([14, 17, 8, -15, -2, -13], 2, 1, 1),
        ([4, 5, 9, -2, 4], 3, 1, 3),
    ]
    world = World(setup)
    world.run(build(specs), random.Random(224), aborts=0.01)
    world.check_empty()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_pool_for_one_request_serves_many(scheme):
    setup = Setup(scheme=scheme, num_blocks=10, block_size=4, arena=24, maxp=8)
    world = World(setup)
    asked = [make_request(f"r{i}", [2, -12, 3, -12, 5], max_tokens=6) for i in range(6)]
    world.run(asked, random.Random(1))
    assert set(world.ended.values()) == {"length"}
    world.check_empty()


@pytest.mark.slow
def test_two_thousand_random_worlds_come_to_an_end():
    for seed in range(2000):
        rng = random.Random(seed)
        setup = Setup(
            scheme=rng.choice(SCHEMES),
            intra_reading=rng.choice(["serial", "per-micro-batch"]),
            num_blocks=rng.randint(32, 64),
            num_stages=rng.choice([1, 2, 4]),
            max_in_flight=rng.randint(1, 5),
            maxp=rng.choice([1, 3, 8, 32]),
            method=rng.choice(["chunked_prefill", "token_throttling"]),
            prefix_caching=rng.random() < 0.5,
            min_tokens=rng.choice([1, 8, 1000]),
            encoders=rng.randint(1, 3),
            arena=rng.randint(96, 160),
            kvthresh=rng.choice([0.0, 0.05, 0.3]),
        )
        setup.fallback = setup.scheme != "gllm" and rng.random() < 0.3
        world = World(setup)
        layouts = [[rng.choice([-16, -7, -3, 2, 9, 20]) for _ in range(rng.randint(1, 6))] for _ in range(6)]
        asked = [
            make_request(f"r{i}", layout, rng.randint(1, 6), rng.choice([1, 1, 3]), i % 3)
            for i, layout in enumerate(layouts)
        ]
        world.run(asked, rng, aborts=0.01, losses=0.01)
        world.check_empty()
