"""Random paged caches: blocks in any order, shared prefixes, NaN wherever nothing was written."""

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from gllm.layers.kv_cache import LayerKV

NAN = float("nan")
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass
class PagedCase:
    """Chunks of query_lens tokens at the end of kv_lens tokens; unused cache rows are NaN."""

    query_lens: list[int]
    kv_lens: list[int]
    q: Tensor
    kv: LayerKV
    tables: Tensor

    @property
    def cu_query(self) -> Tensor:
        lens = torch.tensor([0, *self.query_lens], device=self.q.device)
        return lens.cumsum(0).int()

    @property
    def seq_kv(self) -> Tensor:
        return torch.tensor(self.kv_lens, dtype=torch.int32, device=self.q.device)


def paged_case(
    rng: random.Random,
    chunks: list[tuple[int, int]],
    page: int,
    heads: tuple[int, int, int],
    dtype: torch.dtype,
    device: torch.device,
    share_first: bool = False,
) -> PagedCase:
    """chunks: (query_len, kv_len). share_first: all sequences have the same first block."""
    num_heads, kv_heads, dim = heads
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    counts = [-(-kv_len // page) for _, kv_len in chunks]
    free = list(range(sum(counts) + 3))
    rng.shuffle(free)
    tables = torch.zeros(len(chunks), max(max(counts), 1), dtype=torch.int32)
    k = torch.full((len(free), page, kv_heads, dim), NAN)
    v = torch.full_like(k, NAN)
    for i, ((_, kv_len), count) in enumerate(zip(chunks, counts)):
        for j in range(count):
            block = int(tables[0, 0]) if share_first and i and not j else free.pop()
            tables[i, j] = block
            filled = min(page, kv_len - j * page)
            fresh = torch.randn(2, filled, kv_heads, dim, generator=generator)
            known = ~k[block, :filled].isnan()
            k[block, :filled] = torch.where(known, k[block, :filled], fresh[0])
            v[block, :filled] = torch.where(known, v[block, :filled], fresh[1])
        tables[i, count:] = free[0]  # a block of NaN
    rows = torch.randn(sum(n for n, _ in chunks), num_heads + 2 * kv_heads, dim, generator=generator)
    q = rows.to(device, dtype)[:, :num_heads]  # a view with the row stride of q, k and v together
    kv = LayerKV(k.to(device, dtype), v.to(device, dtype))
    return PagedCase([n for n, _ in chunks], [m for _, m in chunks], q, kv, tables.to(device))


def poisoned(like: Tensor) -> Tensor:
    """An output that shows whatever was not written."""
    return torch.full(like.shape, NAN, dtype=like.dtype, device=like.device)
