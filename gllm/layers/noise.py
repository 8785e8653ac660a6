"""Sampling noise that depends on nothing but (seed, choice, position, token).

So a preempted sequence, run again in another batch, draws the same tokens, and any subset of the vocabulary
can be drawn for without the rest.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MASK64 = (1 << 64) - 1


def noise_key(seed: int, choice: int, position: int) -> tuple[int, int]:
    """Two signed 32-bit words for the token at `position` of choice `choice` (of n) of a request.

    SplitMix64's finaliser (Steele et al. 2014) over the three numbers in turn; any integers will do.
    """
    state = 0
    for number in (seed, choice, position):
        state = _mix64((state + number + 0x9E3779B97F4A7C15) & _MASK64)
    return _signed32(state & 0xFFFFFFFF), _signed32(state >> 32)


def gumbel_noise(keys: Tensor, token_ids: Tensor) -> Tensor:
    """Standard Gumbel noise fp32 [n, K] for keys int32 [n, 2] and token ids int32 [n, K] or [1, K].

    The largest of logit + noise is a draw from softmax(logits). A counter-based generator: the token is
    hashed with both words by the 32-bit mixer `lowbias32` (C. Wellons, hash-prospector).
    """
    bits = token_ids * _GOLDEN32 + keys[:, :1]
    shifted = torch.empty_like(bits)
    _xor_shifted(bits, shifted, 15)
    bits.mul_(_signed32(0x2C1B3C6D)).add_(keys[:, 1:])
    _mix32(bits, shifted)
    uniform = bits.float().add_(2.0**31 + 0.5).mul_(2.0**-32)
    exponential = uniform.clamp_(2.0**-33, 1 - 2.0**-24).neg_().log1p_().neg_()
    return exponential.log_().neg_()


def _mix64(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def _signed32(x: int) -> int:
    return x - (1 << 32) if x >= 1 << 31 else x


def _mix32(x: Tensor, scratch: Tensor) -> None:
    """Mix int32 in place; products wrap."""
    _xor_shifted(x, scratch, 16)
    x.mul_(0x7FEB352D)
    _xor_shifted(x, scratch, 15)
    x.mul_(_signed32(0x846CA68B))
    _xor_shifted(x, scratch, 16)


def _xor_shifted(x: Tensor, scratch: Tensor, bits: int) -> None:
    """x ^= x >> bits, a logical shift: int32's own shift copies the sign, which the mask removes."""
    torch.bitwise_right_shift(x, bits, out=scratch)
    x.bitwise_xor_(scratch.bitwise_and_((1 << (32 - bits)) - 1))


_GOLDEN32 = _signed32(0x9E3779B9)  # 2^32 / golden ratio: spreads consecutive tokens
