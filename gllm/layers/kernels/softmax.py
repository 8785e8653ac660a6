"""What the attention kernels share: products of tiles, softmax over tiles (Milakov & Gimelshein 2018)."""

import functools

import torch
import triton
import triton.language as tl

INTERPRETED: bool = triton.knobs.runtime.interpret
"""Whether kernels run in Triton's interpreter, whose `tl.dot` is wrong for bf16: operands are widened."""

LOG2_E = 1.4426950408889634


@triton.jit
def product(a, b, WIDEN: tl.constexpr):
    """a [M, K] times b [K, N], summed in fp32; fp32 operands are not rounded to TF32."""
    if WIDEN:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def load_keys(base, slot, exists, channel, DIM: tl.constexpr, MASKED: tl.constexpr):
    """Rows `slot` [N] of a cache or matrix, as columns [D, N]; zero where they do not exist."""
    inside = (channel < DIM)[:, None]
    if MASKED:
        inside = inside & exists[None, :]
    return tl.load(base + slot[None, :] + channel[:, None], mask=inside, other=0.0)


@triton.jit
def load_values(base, slot, exists, channel, DIM: tl.constexpr, MASKED: tl.constexpr):
    """Rows `slot` [N], as rows [N, D]; zero where they do not exist, so that no stale NaN spreads."""
    inside = (channel < DIM)[None, :]
    if MASKED:
        inside = inside & exists[:, None]
    return tl.load(base + slot[:, None] + channel[None, :], mask=inside, other=0.0)


@triton.jit
def attend_tile(largest, total, out, scores, v, WIDEN: tl.constexpr):
    """Take one more tile of keys into the running softmax.

    So far: largest score [M], sum of weights [M], weighted values [M, D], all fp32. scores [M, N] in units of
    log 2, -inf where hidden; v [N, D], finite also where hidden. A row that has seen nothing yet keeps
    weights of zero.
    """
    above = tl.maximum(largest, tl.max(scores, 1))
    base = tl.where(above == float("-inf"), 0.0, above)
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(largest - base)
    total = total * shrink + tl.sum(weights, 1)
    out = out * shrink[:, None] + product(weights.to(v.dtype), v, WIDEN)
    return above, total, out


def block_width(head_dim: int) -> int:
    """Channels of a tile: a power of two, at least 16. 80 channels take a tile of 128, masked."""
    return max(16, triton.next_power_of_2(head_dim))


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Of a GPU; 1 elsewhere."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@functools.cache
def has_large_shared_memory(device: torch.device) -> bool:
    """Whether a program may use 160 KiB (A100, H100, H200), not only 99 KiB (L40S, consumer GPUs)."""
    if device.type != "cuda":
        return False
    return int(torch.cuda.get_device_properties(device).shared_memory_per_block_optin) >= 160 * 1024


def paged_stages(device: torch.device, width: int) -> int:
    """Pipeline stages of a loop over keys and values that a block table points to.

    Loading the table takes up stages: with three or four, Triton 3.6 and 3.9 wait for all loads in every turn
    (`cp.async.wait_group 0` in the PTX for sm_90), with five they load two tiles ahead.
    """
    return 5 if has_large_shared_memory(device) and width <= 128 else 2
