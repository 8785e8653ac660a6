"""The dispatcher as a specification: which batch goes to which encoder, and who gets memory."""

from gllm.core.request import MMItem
from rserve.core.arena import Arena
from rserve.core.dispatcher import Dispatch, Dispatcher


def items(*tokens: int) -> tuple[MMItem, ...]:
    offset, made = 0, []
    for n in tokens:
        made.append(MMItem(offset, n))
        offset += n
    return tuple(made)


def dispatcher(rows: int = 1000, least: float = 10, encoders: int = 1, depth: int = 1) -> Dispatcher:
    made = Dispatcher(Arena(rows), least, depth)
    for index in range(encoders):
        made.on_encoder_ready(index)
    return made


def sent(dispatches: list[Dispatch]) -> list[tuple[int, str, tuple[int, ...]]]:
    return [(d.encoder, d.request_id, d.items) for d in dispatches]


def with_pixels(d: Dispatcher, name: str, request_items: tuple[MMItem, ...]) -> None:
    d.add(name, request_items, ordered=True)
    for index in range(len(request_items)):
        d.on_pixels(name, index)


def test_first_come_first_served_in_prompt_order():
    d = dispatcher()
    with_pixels(d, "a", items(10, 10))
    with_pixels(d, "b", items(10))
    (first,) = d.dispatch()
    d.on_encoded(0, first.batch_id)
    (second,) = d.dispatch()
    d.on_encoded(0, second.batch_id)
    assert sent([first, second, *d.dispatch()]) == [(0, "a", (0,)), (0, "a", (1,)), (0, "b", (0,))]


def test_a_slow_image_idles_nobody():
    d = dispatcher()
    d.add("slow", items(10, 10), ordered=True)
    with_pixels(d, "quick", items(10))
    assert sent(d.dispatch()) == [(0, "quick", (0,))]


def test_encoding_starts_while_later_items_are_still_fetched():
    d = dispatcher()
    d.add("a", items(10, 10), ordered=True)
    d.on_pixels("a", 0)
    assert sent(d.dispatch()) == [(0, "a", (0,))]


def test_an_infinite_batch_waits_for_the_whole_request():
    d = dispatcher(least=float("inf"))
    d.add("a", items(10, 10), ordered=True)
    d.on_pixels("a", 0)
    assert d.dispatch() == []
    d.on_pixels("a", 1)
    assert sent(d.dispatch()) == [(0, "a", (0, 1))]


def test_whole_requests_go_to_the_encoder_with_the_fewest_tokens():
    d = dispatcher(encoders=2, depth=2, least=float("inf"))
    with_pixels(d, "large", items(100))
    with_pixels(d, "small", items(10))
    with_pixels(d, "next", items(10))
    assert sent(d.dispatch()) == [(0, "large", (0,)), (1, "small", (0,)), (1, "next", (0,))]


def test_an_idle_encoder_takes_items_of_a_request_that_is_elsewhere():
    d = dispatcher(encoders=2)
    with_pixels(d, "a", items(10, 10, 10))
    assert sent(d.dispatch()) == [(0, "a", (0,)), (1, "a", (1,))]


def test_memory_is_reserved_for_a_whole_request_before_its_first_item():
    d = dispatcher(rows=25)
    with_pixels(d, "a", items(10, 10))
    (first,) = d.dispatch()
    assert d.arena.num_free == 5
    with_pixels(d, "b", items(10))
    d.on_encoded(0, first.batch_id)
    (second,) = d.dispatch()
    d.on_encoded(0, second.batch_id)
    assert d.dispatch() == []
    assert d.short == "b"
    d.on_released("a", 0, 0)
    assert sent(d.dispatch()) == [(0, "b", (0,))]
    assert d.short is None


def test_a_second_release_of_the_same_attempt_does_nothing():
    d = dispatcher(rows=10)
    with_pixels(d, "a", items(10))
    d.dispatch()
    d.on_released("a", 0, 0)
    d.on_released("a", 0, 0)
    assert d.arena.num_free == 10


def test_a_request_that_ends_returns_what_was_not_sent_at_once_and_the_rest_when_released():
    d = dispatcher(rows=30)
    with_pixels(d, "a", items(10, 10))
    d.dispatch()
    d.remove("a")
    assert d.arena.num_free == 20
    d.on_released("a", 0, 0)
    assert d.arena.num_free == 30


def test_what_a_lost_encoder_had_goes_to_another_under_a_new_attempt():
    d = dispatcher(encoders=2, least=float("inf"))
    with_pixels(d, "a", items(10))
    d.dispatch()
    assert d.on_encoder_lost(0) == [("a", 0, 0)]
    d.on_released("a", 0, 0)
    d.need("a", {0: 1})
    assert [(x.encoder, x.attempts) for x in d.dispatch()] == [(1, (1,))]


def test_batches_that_have_memory_do_not_wait_behind_a_request_that_lacks_it():
    d = dispatcher(rows=25, encoders=2)
    with_pixels(d, "a", items(10, 10))
    d.dispatch()
    with_pixels(d, "b", items(10))
    d.on_encoder_lost(1)
    d.on_encoded(0, 0)
    assert d.dispatch() == []
    assert d.short == "b"
    d.need("a", {1: 1})
    assert d.dispatch() == []
    d.on_released("a", 1, 0)
    assert sent(d.dispatch())[0][1:] in (("a", (1,)), ("b", (0,)))


def test_with_prefix_caching_an_item_waits_for_its_lookup_and_a_covered_one_is_never_sent():
    d = dispatcher(rows=20)
    d.add("a", items(10, 10), ordered=False)
    d.on_pixels("a", 0)
    d.on_pixels("a", 1)
    assert d.dispatch() == []
    d.skip("a", [0])
    d.need("a", {1: 0})
    assert sent(d.dispatch()) == [(0, "a", (1,))]
    assert d.arena.num_free == 10
