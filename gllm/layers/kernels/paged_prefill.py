"""Causal attention of chunks of any length to their own past in the paged cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from gllm.layers.kernels.softmax import (
    INTERPRETED,
    LOG2_E,
    attend_tile,
    block_width,
    has_large_shared_memory,
    load_keys,
    load_values,
    paged_stages,
    product,
)
from gllm.layers.kv_cache import LayerKV


@triton.jit
def _attend(
    largest, total, out, q, k_base, v_base, table, key, end, seen, channel, scale, kv_slot,
    DIM: tl.constexpr, PAGE: tl.constexpr, KEYS: tl.constexpr, WIDEN: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Take keys key to key + KEYS into the running softmax; without MASKED every row sees all of them."""
    place = key + tl.arange(0, KEYS)
    exists = place < end
    page = tl.load(table + tl.minimum(place, end - 1) // PAGE).to(tl.int64)
    slot = (page * PAGE + place % PAGE) * kv_slot
    k = load_keys(k_base, slot, exists, channel, DIM, MASKED)
    v = load_values(v_base, slot, exists, channel, DIM, MASKED)
    scores = product(q, k, WIDEN) * scale
    if MASKED:
        scores = tl.where(place[None, :] < tl.minimum(seen, end)[:, None], scores, float("-inf"))
    return attend_tile(largest, total, out, scores, v, WIDEN)


@triton.jit(
    do_not_specialize=["table_row"],
    do_not_specialize_on_alignment=["cu_query_ptr", "seq_kv_ptr", "tables_ptr"],
)
def _prefill(
    q_ptr, k_ptr, v_ptr, out_ptr, cu_query_ptr, seq_kv_ptr, tables_ptr,
    scale, q_row, q_head, kv_slot, kv_head, table_row,
    GROUP: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """One program: ROWS queries of one head of one chunk. The last row of a chunk sees all of its keys."""
    chunk, head = tl.program_id(2), tl.program_id(1)
    first = tl.load(cu_query_ptr + chunk)
    length = tl.load(cu_query_ptr + chunk + 1) - first
    start = tl.program_id(0) * ROWS
    if start >= length:
        return
    kv_len = tl.load(seq_kv_ptr + chunk)
    row = start + tl.arange(0, ROWS)
    seen = kv_len - length + row + 1  # keys that each row sees
    channel = tl.arange(0, WIDTH)
    valid = (row < length)[:, None] & (channel < DIM)[None, :]
    token = (first + row).to(tl.int64)[:, None]
    q = tl.load(q_ptr + token * q_row + head * q_head + channel[None, :], mask=valid, other=0.0)
    k_base = k_ptr + (head // GROUP) * kv_head
    v_base = v_ptr + (head // GROUP) * kv_head
    table = tables_ptr + chunk.to(tl.int64) * table_row

    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    out = tl.zeros([ROWS, WIDTH], tl.float32)
    end = tl.minimum(kv_len, kv_len - length + start + ROWS)
    # Whole tiles that even the first row sees.
    visible = tl.maximum(kv_len - length + start + 1, 0) // KEYS * KEYS
    for key in range(0, visible, KEYS):
        largest, total, out = _attend(
            largest, total, out, q, k_base, v_base, table, key, end, seen, channel, scale, kv_slot,
            DIM, PAGE, KEYS, WIDEN, False,
        )  # fmt: skip
    for key in range(visible, end, KEYS):
        largest, total, out = _attend(
            largest, total, out, q, k_base, v_base, table, key, end, seen, channel, scale, kv_slot,
            DIM, PAGE, KEYS, WIDEN, True,
        )  # fmt: skip
    out = out / tl.where(total == 0.0, 1.0, total)[:, None]
    heads = tl.num_programs(1)
    target = out_ptr + (token * heads + head) * DIM + channel[None, :]
    tl.store(target, out.to(out_ptr.dtype.element_ty), mask=valid)


@dataclass(frozen=True, slots=True)
class PagedChunks:
    """n chunks: rows cu_query[i] to cu_query[i + 1] of q are the last of seq_kv[i] tokens in block_tables[i].

    cu_query int32 [n + 1], seq_kv int32 [n], block_tables int32 [n, blocks]; max_query_len: of any chunk.
    """

    cu_query: Tensor
    seq_kv: Tensor
    block_tables: Tensor
    max_query_len: int


def paged_prefill(q: Tensor, kv: LayerKV, chunks: PagedChunks, out: Tensor) -> None:
    """q [T, H, D] (rows may be spaced) -> out [T, H, D], contiguous; rows of no chunk are left as they are.

    kv: [blocks, block_size, KV, D], contiguous; D up to 256. Softmax and sums are fp32.
    """
    num, (_, heads, dim) = len(chunks.seq_kv), q.shape
    if not num or not chunks.max_query_len:
        return
    width = block_width(dim)
    rows, keys, warps, stages = _tiles(chunks.max_query_len, width, q)
    _prefill[(triton.cdiv(chunks.max_query_len, rows), heads, num)](
        q, kv.k, kv.v, out, chunks.cu_query, chunks.seq_kv, chunks.block_tables,
        dim**-0.5 * LOG2_E, q.stride(0), q.stride(1), kv.k.stride(1), kv.k.stride(2),
        chunks.block_tables.stride(0),
        heads // kv.k.shape[2], dim, kv.k.shape[1], rows, keys, width, INTERPRETED,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip


def _tiles(max_query_len: int, width: int, q: Tensor) -> tuple[int, int, int, int]:
    """Rows and keys of a tile, warps, pipeline stages (see `paged_stages`).

    128 rows and five stages of 64 keys and values of 128 channels in bf16 take 129 KiB of shared memory on
    an H100, 97 KiB on an A100.
    """
    if INTERPRETED:
        return 16, 32, 1, 1
    if q.dtype is torch.float32:
        return 32, 32, 4, 1
    large = has_large_shared_memory(q.device) and width <= 128
    rows = 16 if max_query_len <= 16 else 64 if max_query_len <= 128 or not large else 128
    return rows, 64, 4 if rows < 128 else 8, paged_stages(q.device, width)
