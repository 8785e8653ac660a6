"""What tells two items apart in a prefix cache."""

from __future__ import annotations

import hashlib


def item_digest(data: bytes, target: tuple[int, int], orientation: int = 1, resample: int = 3) -> bytes:
    """16 bytes over a file and all that shapes its pixels; equal digests mean equal pixels.

    target: (height, width) after resizing. The same bytes at another size or orientation differ.
    """
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{target[0]}x{target[1]};{orientation};{resample};{len(data)};".encode())
    digest.update(data)
    return digest.digest()
