"""KV blocks: counts, prefixes, content keys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gllm.core.block_pool import BlockPool, OutOfBlocks
from gllm.core.prefix import extend_keys
from gllm.core.request import MMItem


def test_a_refused_allocation_takes_nothing():
    pool = BlockPool(3)
    pool.allocate(2)
    with pytest.raises(OutOfBlocks):
        pool.allocate(2)
    assert pool.num_free == 1


def test_a_shared_block_is_free_after_its_last_user():
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.retain(blocks)
    pool.release(blocks)
    assert pool.num_free == 1
    pool.release(blocks)
    assert pool.num_free == 2


def test_a_free_block_can_be_found_by_content_until_it_is_handed_out_again():
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.publish(b"key", block)
    pool.release([block])
    assert pool.lookup([b"key", b"other"]) == [block]
    pool.allocate(2)
    assert pool.lookup([b"key"]) == []


def test_flush_forgets_prefixes_and_keeps_blocks_in_use():
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.publish(b"key", block)
    assert pool.flush() == 1
    assert pool.lookup([b"key"]) == []
    assert pool.num_used == 1


@given(st.lists(st.integers(0, 5), max_size=60))
def test_every_block_comes_back(sizes: list[int]):
    pool = BlockPool(16)
    held: list[list[int]] = []
    for size in sizes:
        if size and size <= pool.num_free:
            held.append(pool.allocate(size))
        elif held:
            pool.release(held.pop(0))
    assert pool.num_used == sum(map(len, held))
    for blocks in held:
        pool.release(blocks)
    assert pool.num_free == 16


def keys(tokens: list[int], items: list[MMItem], digests: list[bytes | None]) -> list[bytes]:
    found: list[bytes] = []
    extend_keys(found, tokens, items, digests, 4)
    return found


def test_equal_placeholders_of_different_images_have_different_keys():
    image = [MMItem(2, 4)]
    tokens = [1, 2, 9, 9, 9, 9, 3, 4]
    assert keys(tokens, image, [b"cat"])[0] != keys(tokens, image, [b"dog"])[0]
    assert keys(tokens, image, [b"cat"]) == keys(tokens, image, [b"cat"])


def test_keys_stop_at_the_first_image_whose_hash_is_not_known():
    assert len(keys(list(range(12)), [MMItem(6, 2)], [None])) == 1
    assert len(keys(list(range(12)), [MMItem(6, 2)], [b"x"])) == 3


def test_a_key_depends_on_all_tokens_before_it():
    assert keys([0, 1, 2, 3, 4, 5, 6, 7], [], [])[1] != keys([9, 1, 2, 3, 4, 5, 6, 7], [], [])[1]
