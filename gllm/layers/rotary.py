"""Rotary position embedding, plain or in three sections (M-RoPE), in the rotate-half layout."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class RotaryTable:
    """Angles of a rotary embedding, and from which position axis each of them takes its position.

    Pair i of a head (channels i and i + D/2) is turned by position * theta^(-2i/D). With `mrope_section`
    (t, h, w) = (16, 24, 24), pairs 0-15 use the temporal position, 16-39 the row, 40-63 the column; text has
    three equal positions, so that plain RoPE is the special case (Qwen2-VL, section 2.1).

    Angles are computed when they are needed: a table would bound the positions, and those of a video are
    bounded by its duration, not by its number of tokens.
    """

    def __init__(
        self,
        head_dim: int,
        theta: float,
        mrope_section: Sequence[int] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        half = head_dim // 2
        if mrope_section is not None and sum(mrope_section) != half:
            raise ValueError(f"mrope_section {tuple(mrope_section)} does not sum to {half}, half of the head")
        exponent = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        self.inv_freq = (1.0 / (theta**exponent)).to(device)
        self._sections = tuple(mrope_section) if mrope_section is not None else None

    def cos_sin(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions int64 [3, T], or [T] for text -> cos, sin fp32 [T, D/2]; once for each micro-batch."""
        if positions.is_cuda and positions.dim() == 2:
            from gllm.layers.kernels.rotary import mrope_cos_sin

            return mrope_cos_sin(positions, self.inv_freq, self._sections)
        angles = self._by_pair(positions).float() * self.inv_freq
        return angles.cos(), angles.sin()

    def _by_pair(self, positions: Tensor) -> Tensor:
        """The position that each pair uses: [T, D/2], or [T, 1] where all pairs use the same."""
        if positions.dim() == 1:
            return positions.unsqueeze(-1)
        if self._sections is None:
            return positions[0].unsqueeze(-1)
        columns = [axis.unsqueeze(-1).expand(-1, n) for axis, n in zip(positions, self._sections)]
        return torch.cat(columns, dim=-1)


def rotate_in_place(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Turn every head of x [T, H, D] by cos, sin [T, D/2], in x's memory; x may be a view.

    (a, b) -> (a cos - b sin, b cos + a sin) for the halves a, b of a head. bf16 and fp16 are widened to fp32
    and rounded once.
    """
    if x.is_cuda:
        from gllm.layers.kernels.rotary import rotate

        rotate(x, x[:, :0], cos, sin)
        return
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)  # [T, 1, D/2]
    half = x.shape[-1] // 2
    wide = x.float()  # x itself where x is fp32
    first, second = wide[..., :half], wide[..., half:]
    turned = first * cos
    turned.addcmul_(second, sin, value=-1.0)
    second.mul_(cos).addcmul_(first, sin)
    x[..., :half].copy_(turned)
    if wide is not x:
        x[..., half:].copy_(second)


def apply_rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Turn q [T, H, D] and k [T, KV, D] in place by cos, sin [T, D/2]."""
    if q.is_cuda:
        from gllm.layers.kernels.rotary import rotate

        rotate(q, k, cos, sin)
        return
    rotate_in_place(q, cos, sin)
    rotate_in_place(k, cos, sin)
