import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gllm.layers.attention import create_backend
from gllm.layers.attention.sdpa_plan import SdpaPlanner
from gllm.layers.kv_cache import KVCache, KVCacheShape
from gllm.layers.placement import Placement
from tests.layers.paging import PagedSequences


def naive_attention(q, k, v):
    """float64 causal attention of the last tokens q [n, H, D] over k, v [m, KV, D], head by head."""
    n, num_heads, dim = q.shape
    m, group = len(k), num_heads // k.shape[1]
    out = torch.empty(n, num_heads, dim, dtype=torch.float64)
    for row in range(n):
        visible = m - n + row + 1
        for head in range(num_heads):
            keys, values = k[:visible, head // group].double(), v[:visible, head // group].double()
            scores = keys @ q[row, head].double() / dim**0.5
            out[row, head] = torch.softmax(scores, 0) @ values
    return out


class Attended:
    """Runs random micro-batches through the backend and remembers all keys and values for the oracle."""

    def __init__(self, pages, heads=(4, 2, 8), seed=0, dtype=torch.float32):
        self.pages = pages
        self.heads = heads
        self.dtype = dtype
        self.generator = torch.Generator().manual_seed(seed)
        place = Placement(dtype)
        shape = KVCacheShape(1, pages.num_blocks, pages.block_size, heads[1], heads[2])
        self.kv = KVCache(shape, place).layers[0]
        self.backend = create_backend("sdpa", place)
        self.seen = {}

    def step(self, chunks):
        """Largest difference from the oracle over all rows of this micro-batch."""
        num_heads, kv_heads, dim = self.heads
        meta = self.pages.step(chunks)
        total = sum(meta.query_lens)
        qkv = torch.randn(total, num_heads + 2 * kv_heads, dim, generator=self.generator).to(self.dtype)
        q, k, v = qkv.split([num_heads, kv_heads, kv_heads], dim=1)
        self.backend.write_kv(k, v, self.kv, meta)
        out = self.backend.forward(q, self.kv, meta)
        assert out.shape == q.shape and out.is_contiguous()
        row, worst = 0, 0.0
        for seq, count in chunks:
            rows = slice(row, row + count)
            keys, values = self.seen.get(seq, (k[:0], v[:0]))
            self.seen[seq] = (torch.cat([keys, k[rows]]), torch.cat([values, v[rows]]))
            expected = naive_attention(q[rows], *self.seen[seq])
            worst = max(worst, (out[rows].double() - expected).abs().max().item())
            row += count
        return worst


@settings(max_examples=60, deadline=None)
@given(
    block_size=st.integers(1, 32),
    heads=st.sampled_from([(4, 4, 8), (4, 2, 8), (6, 1, 16), (8, 2, 32)]),
    shuffled=st.booleans(),
    seed=st.integers(0, 2**16),
    steps=st.lists(
        st.lists(st.sampled_from([1, 1, 1, 2, 3, 7, 16, 17, 40]), min_size=1, max_size=4), max_size=5
    ),
)
def test_chunks_of_any_size_attend_to_their_own_past_in_any_blocks(block_size, heads, shuffled, seed, steps):
    pages = PagedSequences(
        num_blocks=4 * 200 // block_size + 8, block_size=block_size, shuffled=shuffled, seed=seed
    )
    attended = Attended(pages, heads, seed)
    for counts in steps:
        sequences = random.Random(seed).sample(range(4), len(counts))
        chunks = sorted(zip(sequences, counts), key=lambda chunk: chunk[1] != 1)
        assert attended.step(chunks) < 1e-5


def test_a_long_chunk_after_a_prefix_attends_tile_by_tile():
    attended = Attended(PagedSequences(num_blocks=80, block_size=16))
    assert attended.step([(0, 37)]) < 1e-5
    assert attended.step([(0, 600)]) < 1e-5


def test_decodes_of_very_different_lengths_are_not_padded_to_the_longest():
    pages = PagedSequences(num_blocks=200, block_size=8)
    attended = Attended(pages)
    lengths = [700, 3, 650, 20, 5]
    for seq, length in enumerate(lengths):
        attended.step([(seq, length)])
    chunks = [(seq, 1) for seq in range(len(lengths))]
    assert attended.step(chunks) < 1e-5
    plan = SdpaPlanner(pages.step(chunks), torch.float32, 2).plan()
    assert sorted(group.source.num_sequences for group in plan.decodes) == [2, 3]


def test_a_run_of_blocks_is_read_without_a_copy():
    pages = PagedSequences(num_blocks=8, block_size=16, shuffled=False)
    attended = Attended(pages)
    attended.step([(0, 50)])
    plan = SdpaPlanner(pages.step([(0, 1)]), torch.float32, 2).plan()
    keys, _ = plan.decodes[0].source.read(attended.kv)
    assert keys.data_ptr() == attended.kv.k.data_ptr()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_close_to_the_oracle(dtype):
    attended = Attended(PagedSequences(num_blocks=20, block_size=16), heads=(8, 2, 64), dtype=dtype)
    assert attended.step([(0, 100)]) < 0.03
    assert attended.step([(0, 1), (1, 30)]) < 0.03
    assert attended.step([(0, 1), (1, 1)]) < 0.03


def test_last_tokens_ask_the_same_cache_with_one_query_each():
    pages = PagedSequences(num_blocks=40, block_size=4)
    attended = Attended(pages)
    attended.step([(0, 9), (1, 5)])
    meta = pages.step([(0, 1), (1, 20), (2, 6)])
    q = torch.randn(27, 4, 8)
    attended.backend.write_kv(torch.randn(27, 2, 8), torch.randn(27, 2, 8), attended.kv, meta)
    full = attended.backend.forward(q, attended.kv, meta)
    some = attended.backend.forward(q[[26, 0]], attended.kv, meta.last_tokens([2, 0]))
    torch.testing.assert_close(some, full[[26, 0]], atol=1e-6, rtol=0)
    assert attended.backend.forward(q[:0], attended.kv, meta.last_tokens([])).shape == (0, 4, 8)


@pytest.mark.parametrize("stale", [float("nan"), float("inf")])
def test_what_finished_sequences_left_in_the_padding_of_a_decode_does_not_spread(stale):
    pages = PagedSequences(num_blocks=12, block_size=16)
    attended = Attended(pages)
    for seq, length in enumerate([40, 19, 33]):
        attended.step([(seq, length)])
    for seq in range(3):
        pages.reserve(seq, pages.lengths[seq] + 1)
    for cache in (attended.kv.k, attended.kv.v):
        rows = cache.flatten(0, 1)
        used = [
            pages.tables[seq][at // 16] * 16 + at % 16 for seq in range(3) for at in range(pages.lengths[seq])
        ]
        kept = rows[used].clone()
        rows.fill_(stale)
        rows[used] = kept
    assert attended.step([(0, 1), (1, 1), (2, 1)]) < 1e-5


def test_an_unknown_backend_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="sdpa"):
        create_backend("magic", Placement())
