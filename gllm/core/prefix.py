"""Content keys of KV blocks: a chain of hashes over tokens and the images inside them."""

import hashlib
from array import array
from collections.abc import Sequence as Seq

from gllm.core.request import MMItem

ROOT = b"gllm"


def known_until(items: Seq[MMItem], digests: Seq[bytes | None], num_tokens: int) -> int:
    """How many leading tokens have a known content: up to the first item without a digest."""
    for item, digest in zip(items, digests):
        if digest is None:
            return item.offset
    return num_tokens


def block_key(previous: bytes, tokens: Seq[int], start: int, mm: Seq[tuple[MMItem, bytes | None]]) -> bytes:
    """Key of the block that holds `tokens` at prompt positions [start, start + len(tokens)).

    previous: key of the block before (ROOT for the first). mm: the items that overlap the block; an
    item counts with its digest and where the block lies in it, so equal placeholders of different
    images differ. Not Python's hash(): keys must not collide when a client wants them to.
    """
    h = hashlib.blake2b(previous, digest_size=16)
    h.update(array("q", tokens).tobytes())
    for item, digest in mm:
        h.update(digest or b"")
        h.update(array("q", (item.offset - start, item.num_tokens)).tobytes())
    return h.digest()


def extend_keys(
    keys: list[bytes],
    tokens: Seq[int],
    items: Seq[MMItem],
    digests: Seq[bytes | None],
    block_size: int,
) -> None:
    """Append the keys of all further full blocks whose content is known.

    32 tokens, block size 16, an image without digest at offset 20: one key, that of tokens 0-15.
    """
    limit = min(known_until(items, digests, len(tokens)), len(tokens)) // block_size
    for index in range(len(keys), limit):
        start, end = index * block_size, (index + 1) * block_size
        mm = [(i, d) for i, d in zip(items, digests) if i.offset < end and i.end > start]
        keys.append(block_key(keys[-1] if keys else ROOT, tokens[start:end], start, mm))
