"""KV blocks of sequences: whole-prompt reservation, growth, forks and prefix reuse."""

from gllm.core.block_pool import BlockPool
from gllm.core.prefix import extend_keys
from gllm.core.sequence import Sequence


class KvCache:
    """Gives sequences their blocks.

    The blocks of all known tokens are reserved with the first chunk, so that half-prefilled sequences
    never wait for each other's blocks; a decode grows by one block at a time.
    """

    def __init__(self, pool: BlockPool, block_size: int, prefix_caching: bool) -> None:
        self.pool = pool
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.num_hit_tokens = 0
        self._keys: dict[int, list[bytes]] = {}
        self._published: dict[int, int] = {}

    def blocks_for(self, num_tokens: int) -> int:
        """ceil(num_tokens / block_size)"""
        return -(-num_tokens // self.block_size)

    def cached_tokens(self, seq: Sequence, digests: list[bytes | None]) -> int:
        """Leading tokens of a sequence that the prefix cache holds now; at least one is left to compute."""
        return len(self._hits(seq, digests)) * self.block_size

    def reserve(self, seq: Sequence, digests: list[bytes | None], headroom: int) -> bool:
        """Give a sequence the blocks of all its tokens, cached ones first.

        False, and nothing changed, when fewer than `headroom` blocks would stay free. On success the
        counters of the sequence stand behind the cached prefix.
        """
        hits = self._hits(seq, digests)
        fresh = self.blocks_for(seq.num_tokens) - len(hits)
        if fresh + self.pool.num_idle(hits) + headroom > self.pool.num_free:
            return False
        self.pool.retain(hits)
        seq.block_table = hits + self.pool.allocate(fresh)
        seq.num_cached = seq.num_dispatched = seq.num_computed = len(hits) * self.block_size
        self.num_hit_tokens += seq.num_cached
        self._published[seq.seq_id] = len(hits)
        return True

    def grow(self, seq: Sequence) -> bool:
        """Make room for the token at num_dispatched. False when no block is free."""
        if seq.num_dispatched < len(seq.block_table) * self.block_size:
            return True
        if self.pool.num_free == 0:
            return False
        seq.block_table += self.pool.allocate(1)
        return True

    def fork(self, parent: Sequence, child: Sequence) -> tuple[tuple[int, int], ...] | None:
        """Let `child` start from the parent's prompt: full blocks shared, the partial one copied.

        Returns the (source, destination) blocks to copy, or None when no block is free.
        """
        full, partial = divmod(child.prompt_len, self.block_size)
        if partial and self.pool.num_free == 0:
            return None
        shared = parent.block_table[:full]
        self.pool.retain(shared)
        copies: tuple[tuple[int, int], ...] = ()
        child.block_table = list(shared)
        if partial:
            child.block_table += self.pool.allocate(1)
            copies = ((parent.block_table[full], child.block_table[full]),)
        return copies

    def publish(self, seq: Sequence, digests: list[bytes | None]) -> None:
        """Make the computed full blocks of a sequence findable."""
        if not self.prefix_caching:
            return
        keys = self._extend(seq, digests)
        first, last = self._published.get(seq.seq_id, 0), min(seq.num_computed // self.block_size, len(keys))
        for index in range(first, last):
            self.pool.publish(keys[index], seq.block_table[index])
        self._published[seq.seq_id] = max(first, last)

    def release(self, blocks: list[int]) -> None:
        """Take blocks back."""
        self.pool.release(blocks)

    def forget(self, seq: Sequence) -> None:
        """A sequence ended: drop what is kept about it."""
        self._keys.pop(seq.seq_id, None)
        self._published.pop(seq.seq_id, None)

    def _hits(self, seq: Sequence, digests: list[bytes | None]) -> list[int]:
        if not self.prefix_caching:
            return []
        most = (seq.num_tokens - 1) // self.block_size
        return self.pool.lookup(self._extend(seq, digests)[:most])

    def _extend(self, seq: Sequence, digests: list[bytes | None]) -> list[bytes]:
        keys = self._keys.setdefault(seq.seq_id, [])
        extend_keys(keys, seq.token_ids, seq.items, digests, self.block_size)
        return keys
