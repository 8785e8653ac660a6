"""Attention of a vision tower: every token sees its whole segment and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LengthGroup:
    """`count` segments of `length` tokens, side by side from token `start`."""

    start: int
    count: int
    length: int

    @property
    def rows(self) -> slice:
        """The tokens of all these segments."""
        return slice(self.start, self.start + self.count * self.length)


@dataclass(frozen=True, slots=True)
class Segments:
    """Non-overlapping segments that cover N tokens.

    groups: segments of one length stand side by side, so that each group is one batched call.
    order: int64 [N], the tokens in the order in which groups and cu_seqlens count; None where they stand so.
    cu_seqlens: int32 [segments + 1], for kernels that take segments of any length.
    """

    groups: tuple[LengthGroup, ...]
    order: Tensor | None
    cu_seqlens: Tensor
    max_length: int

    @classmethod
    def from_lengths(cls, lengths: Tensor, order: Tensor | None = None) -> Segments:
        """lengths int64 [segments] on the host, equal ones side by side: [64, 64, 32] is two groups."""
        ends = lengths.cumsum(0)
        values, counts = lengths.unique_consecutive(return_counts=True)
        groups, start = [], 0
        for length, count in zip(values.tolist(), counts.tolist()):
            groups.append(LengthGroup(start, count, length))
            start += length * count
        cu_seqlens = torch.cat((ends.new_zeros(1), ends)).int()
        return cls(tuple(groups), order, cu_seqlens, int(values.max()))

    def to(self, device: torch.device) -> Segments:
        """The same with its tensors on a device."""
        order = self.order.to(device) if self.order is not None else None
        return Segments(self.groups, order, self.cu_seqlens.to(device), self.max_length)


def vision_attention(q: Tensor, k: Tensor, v: Tensor, segments: Segments) -> Tensor:
    """q, k, v [N, H, D] (views will do) -> [N, H, D]: softmax(q k / sqrt(D)) v within each segment."""
    if segments.order is None:
        return _by_group(q, k, v, segments.groups)
    q, k, v = (x.index_select(0, segments.order) for x in (q, k, v))
    ordered = _by_group(q, k, v, segments.groups)
    return torch.empty_like(ordered).index_copy_(0, segments.order, ordered)


def _by_group(q: Tensor, k: Tensor, v: Tensor, groups: tuple[LengthGroup, ...]) -> Tensor:
    if len(groups) == 1:
        return _batched(q, k, v, groups[0])
    out = q.new_empty(q.shape)
    for group in groups:
        rows = group.rows
        out[rows] = _batched(q[rows], k[rows], v[rows], group)
    return out


def _batched(q: Tensor, k: Tensor, v: Tensor, group: LengthGroup) -> Tensor:
    """One call for segments of one length: [count * length, H, D], seen as [count, H, length, D]."""
    heads = [x.unflatten(0, (group.count, group.length)).transpose(1, 2) for x in (q, k, v)]
    return F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(0, 1)
