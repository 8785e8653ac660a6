"""Memory of an embedding is free exactly when nobody can write to it or read it any more."""

from gllm.core.core_config import CoreConfig
from gllm.core.effects import EncodeItems, ItemReleased
from gllm.core.engine_core import EngineCore
from gllm.core.request import MMItem, Request, SamplingParams
from rserve.core.epd_core import Scheme, make_core


def core_with(*items: MMItem) -> EngineCore:
    core = make_core(Scheme("rserve"), CoreConfig(64, 4))
    length = max((item.end for item in items), default=0) + 2
    core.on_request(Request("a", tuple(range(length)), items, SamplingParams(max_tokens=2)))
    core.take_effects()
    return core


def released(core: EngineCore) -> list[ItemReleased]:
    return [effect for effect in core.take_effects() if type(effect) is ItemReleased]


def test_an_embedding_that_comes_twice_stays_in_memory_until_it_is_used():
    core = core_with(MMItem(1, 4), MMItem(6, 4))
    assert core.on_embeddings("a", 0, 0, range(4))
    assert not core.on_embeddings("a", 0, 0, range(4))
    assert released(core) == []
    assert core.step() is not None
    assert released(core) == [ItemReleased("a", 0, 0)]
    assert not core.on_embeddings("a", 0, 0, range(4))
    assert released(core) == []


def test_an_embedding_of_an_earlier_attempt_is_released_when_it_comes():
    core = core_with(MMItem(1, 4))
    core.on_encoder_lost([("a", 0, 0)])
    assert core.take_effects() == [ItemReleased("a", 0, 0), EncodeItems("a", (0,), (1,))]
    assert not core.on_embeddings("a", 0, 0, range(4))
    assert released(core) == [ItemReleased("a", 0, 0)]
    assert core.on_embeddings("a", 0, 1, range(4))


def test_a_lost_encoder_leaves_what_has_arrived():
    core = core_with(MMItem(1, 4), MMItem(6, 4))
    core.on_embeddings("a", 0, 0, range(4))
    core.on_encoder_lost([("a", 0, 0), ("a", 1, 0)])
    assert core.take_effects() == [ItemReleased("a", 1, 0), EncodeItems("a", (1,), (1,))]


def test_a_lost_encoder_frees_items_that_the_prefix_cache_covered_meanwhile():
    core = core_with(MMItem(1, 4))
    assert core.tracker.cover("a", 5) == [0]
    core.on_encoder_lost([("a", 0, 0)])
    assert core.take_effects() == [ItemReleased("a", 0, 0)]


def test_a_lost_encoder_frees_items_of_requests_that_have_ended():
    core = core_with(MMItem(1, 4))
    core.on_abort("a")
    core.take_effects()
    core.on_encoder_lost([("a", 0, 0)])
    assert core.take_effects() == [ItemReleased("a", 0, 0)]
