"""The KV blocks of one deployment: reference counts, and reuse by content (prefix caching)."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class OutOfBlocks(Exception):
    """More blocks were asked for than are free; nothing was taken."""


class BlockPool:
    """Hands out block numbers 0 … num_blocks - 1.

    A block may be shared: it is free when its count drops to zero. A free block keeps its content key
    until it is handed out again, so that a later request with the same prefix can take it back; free
    blocks are reused in the order in which they were freed.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._count = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._block_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def allocate(self, n: int) -> list[int]:
        """Take n free blocks. Raises OutOfBlocks and takes none when fewer are free."""
        if n > len(self._free):
            raise OutOfBlocks(f"{n} KV blocks wanted, {len(self._free)} free")
        blocks = []
        for _ in range(n):
            block, _ = self._free.popitem(last=False)
            self._forget(block)
            self._count[block] = 1
            blocks.append(block)
        return blocks

    def retain(self, blocks: Iterable[int]) -> None:
        """Add one user to each block; cached free blocks leave the free list."""
        for block in blocks:
            if self._count[block] == 0:
                del self._free[block]
            self._count[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Take one user from each block. The last block of a prefix is reused first."""
        for block in reversed(blocks):
            self._count[block] -= 1
            if self._count[block] == 0:
                self._free[block] = None

    def publish(self, key: bytes, block: int) -> None:
        """Make a computed, full block findable by its content key; the first publisher of a key wins."""
        if key not in self._block_of and block not in self._key_of:
            self._block_of[key] = block
            self._key_of[block] = key

    def lookup(self, keys: Iterable[bytes]) -> list[int]:
        """The blocks of the longest run of keys that is cached. They are not retained."""
        blocks = []
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_idle(self, blocks: Iterable[int]) -> int:
        """How many of these blocks are in the free list now."""
        return sum(self._count[block] == 0 for block in blocks)

    def flush(self) -> int:
        """Forget all content keys; blocks in use stay in use. Returns how many were forgotten."""
        forgotten = len(self._key_of)
        self._block_of.clear()
        self._key_of.clear()
        return forgotten

    def _forget(self, block: int) -> None:
        key = self._key_of.pop(block, None)
        if key is not None:
            del self._block_of[key]
