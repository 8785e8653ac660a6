"""Attention of one new token per sequence: keys are divided over programs, whose results are then joined.

Flash-decoding (Dao et al. 2023): otherwise few sequences with a long past keep few multiprocessors busy.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gllm.layers.kernels.softmax import (
    INTERPRETED,
    LOG2_E,
    attend_tile,
    block_width,
    load_keys,
    load_values,
    paged_stages,
    product,
)
from gllm.layers.kv_cache import LayerKV

MAX_SPLITS = 64
MIN_KEYS = 256  # of a split: fewer would cost more to join than to read


@triton.jit(
    do_not_specialize=["table_row", "splits"],
    do_not_specialize_on_alignment=["seq_kv_ptr", "tables_ptr"],
)
def _decode(
    q_ptr, k_ptr, v_ptr, out_ptr, part_ptr, weight_ptr, seq_kv_ptr, tables_ptr,
    scale, q_row, q_head, kv_slot, kv_head, table_row, heads, splits,
    GROUP: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, WHOLE: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """One program: the query heads of one key/value head of one sequence, over one part of its keys.

    WHOLE: there is one part, whose result goes to `out`. What changes from one micro-batch to the next is no
    constant, or kernels would be compiled while requests wait.
    """
    seq = tl.program_id(0).to(tl.int64)
    kv_index, split = tl.program_id(1), tl.program_id(2)
    kv_len = tl.load(seq_kv_ptr + seq)
    span = tl.cdiv(tl.cdiv(kv_len, splits), KEYS) * KEYS
    begin = split * span
    end = tl.minimum(begin + span, kv_len)
    in_group, channel = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    head = kv_index * GROUP + in_group
    valid = (in_group < GROUP)[:, None] & (channel < DIM)[None, :]
    q = tl.load(q_ptr + seq * q_row + head[:, None] * q_head + channel[None, :], mask=valid, other=0.0)
    k_base, v_base = k_ptr + kv_index * kv_head, v_ptr + kv_index * kv_head

    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    out = tl.zeros([ROWS, WIDTH], tl.float32)
    for key in range(begin, end, KEYS):
        place = key + tl.arange(0, KEYS)
        exists = place < end
        page = tl.load(tables_ptr + seq * table_row + place // PAGE, mask=exists, other=0).to(tl.int64)
        slot = (page * PAGE + place % PAGE) * kv_slot
        k = load_keys(k_base, slot, exists, channel, DIM, True)
        v = load_values(v_base, slot, exists, channel, DIM, True)
        scores = tl.where(exists[None, :], product(q, k, WIDEN) * scale, float("-inf"))
        largest, total, out = attend_tile(largest, total, out, scores, v, WIDEN)
    out = out / tl.where(total == 0.0, 1.0, total)[:, None]
    if WHOLE:
        target = out_ptr + (seq * heads + head[:, None]) * DIM + channel[None, :]
        tl.store(target, out.to(out_ptr.dtype.element_ty), mask=valid)
    else:
        part = (seq * heads + head) * splits + split
        tl.store(part_ptr + part[:, None] * DIM + channel[None, :], out, mask=valid)
        log_total = tl.where(
            total == 0.0, float("-inf"), largest + tl.log2(tl.where(total == 0.0, 1.0, total))
        )
        tl.store(weight_ptr + part, log_total, mask=in_group < GROUP)


@triton.jit(do_not_specialize=["splits"])
def _join(
    part_ptr, weight_ptr, out_ptr, splits, DIM: tl.constexpr, PARTS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """One program: one head of one sequence; a part without keys weighs nothing."""
    row = tl.program_id(0).to(tl.int64)
    split, channel = tl.arange(0, PARTS), tl.arange(0, WIDTH)
    log_total = tl.load(weight_ptr + row * splits + split, mask=split < splits, other=float("-inf"))
    largest = tl.max(log_total, 0)
    weight = tl.exp2(log_total - tl.where(largest == float("-inf"), 0.0, largest))
    parts = tl.load(
        part_ptr + (row * splits + split)[:, None] * DIM + channel[None, :],
        mask=(split < splits)[:, None] & (channel < DIM)[None, :], other=0.0,
    )  # fmt: skip
    total = tl.sum(weight, 0)
    out = tl.sum(parts * weight[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + row * DIM + channel, out.to(out_ptr.dtype.element_ty), mask=channel < DIM)


def paged_decode(
    q: Tensor, kv: LayerKV, seq_kv: Tensor, block_tables: Tensor, out: Tensor, splits: int
) -> None:
    """q [n, H, D] (rows may be spaced), one token of each sequence -> out [n, H, D], contiguous.

    seq_kv int32 [n]: tokens in the cache, 0 gives zeros; block_tables int32 [n, blocks]. splits: parts of the
    keys that are attended side by side (see `num_splits`).
    """
    num, heads, dim = q.shape
    if not num:
        return
    kv_heads, width = kv.k.shape[2], block_width(dim)
    parts = logs = out
    if splits > 1:
        parts = torch.empty(num, heads, splits, dim, dtype=torch.float32, device=q.device)
        logs = torch.empty(num, heads, splits, dtype=torch.float32, device=q.device)
    group = heads // kv_heads
    wide = INTERPRETED or q.dtype is torch.float32
    _decode[(num, kv_heads, splits)](
        q, kv.k, kv.v, out, parts, logs, seq_kv, block_tables,
        dim**-0.5 * LOG2_E, q.stride(0), q.stride(1), kv.k.stride(1), kv.k.stride(2),
        block_tables.stride(0), heads, splits,
        group, dim, kv.k.shape[1], splits == 1,
        max(16, triton.next_power_of_2(group)), 32 if wide else 64, width, INTERPRETED,
        num_warps=4, num_stages=1 if wide else paged_stages(q.device, width),
    )  # fmt: skip
    if splits > 1:
        _join[(num * heads,)](parts, logs, out, splits, dim, triton.next_power_of_2(splits), width)


def num_splits(num_sequences: int, kv_heads: int, max_kv_len: int, processors: int) -> int:
    """Parts that give every multiprocessor about four programs, each with at least MIN_KEYS keys.

    One sequence, 4 key/value heads and 8192 keys on 132 multiprocessors: 32 parts of 256; 64 sequences: 3.
    """
    wanted = -(-4 * processors // max(num_sequences * kv_heads, 1))
    useful = -(-max_kv_len // MIN_KEYS)
    return max(1, min(wanted, useful, MAX_SPLITS))
