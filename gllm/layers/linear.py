"""Linear layers that divide their matrix over tensor-parallel ranks.

Weights are [out, in], contiguous. Column-parallel layers divide `out` and need no communication; row-parallel
layers divide `in` and sum their results over the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from gllm.layers.comm import TensorParallel
from gllm.layers.gemm import linear
from gllm.layers.placement import Placement
from gllm.layers.weights import CheckpointWeight, WeightPart, rows, whole


class ColumnParallelLinear(nn.Module):
    """x [..., in] -> this rank's columns of the result [..., out / tp]."""

    def __init__(self, in_features: int, out_features: int, place: Placement, bias: bool = True) -> None:
        super().__init__()
        self.out_features = out_features
        self.part = place.tp.shard(out_features)
        self.weight = place.parameter(len(self.part), in_features)
        self.bias = place.parameter(len(self.part)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out / tp]."""
        return linear(x, self.weight, self.bias)

    def weights(self, prefix: str) -> Iterator[CheckpointWeight]:
        """`prefix.weight` [out, in] and `prefix.bias` [out]."""
        yield rows(f"{prefix}.weight", self.weight, self.out_features, self.part)
        if self.bias is not None:
            yield rows(f"{prefix}.bias", self.bias, self.out_features, self.part)


class RowParallelLinear(nn.Module):
    """This rank's columns of x [..., in / tp] -> the whole result [..., out] on every rank.

    The bias is added by rank 0, so that the sum contains it once.
    """

    def __init__(self, in_features: int, out_features: int, place: Placement, bias: bool = True) -> None:
        super().__init__()
        self.tp = place.tp
        self.in_features = in_features
        self.part = place.tp.shard(in_features)
        self.weight = place.parameter(out_features, len(self.part))
        self.bias = place.parameter(out_features) if bias and place.tp.rank == 0 else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., in / tp] -> [..., out], summed over the ranks."""
        return self.tp.all_reduce(linear(x, self.weight, self.bias))

    def weights(self, prefix: str) -> Iterator[CheckpointWeight]:
        """`prefix.weight` [out, in] and, on rank 0, `prefix.bias` [out]."""
        source = (slice(None), slice(self.part.start, self.part.stop))
        shape = (self.weight.shape[0], self.in_features)
        part = WeightPart(source, (slice(None),))
        yield CheckpointWeight(f"{prefix}.weight", shape, self.weight, (part,))
        if self.bias is not None:
            yield whole(f"{prefix}.bias", self.bias)


class StackedColumnParallelLinear(nn.Module):
    """Several column-parallel matrices with the same input, computed as one.

    `totals` are their full output sizes, `parts` what this rank keeps of each.
    """

    def __init__(
        self, in_features: int, totals: Sequence[int], parts: Sequence[range], place: Placement
    ) -> None:
        super().__init__()
        self.totals = tuple(totals)
        self.parts = tuple(parts)
        self.sizes = [len(part) for part in parts]
        self.weight = place.parameter(sum(self.sizes), in_features)
        self.bias: nn.Parameter | None = None

    def add_bias(self, place: Placement) -> None:
        """Give the layer a bias."""
        self.bias = place.parameter(sum(self.sizes))

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., sum(sizes)]: this rank's columns of the first matrix, then of the second, ..."""
        return linear(x, self.weight, self.bias)

    def weights(self, prefixes: Sequence[str]) -> Iterator[CheckpointWeight]:
        """One `prefix.weight` [total, in] (and `.bias`) for each matrix."""
        start = 0
        for prefix, total, part in zip(prefixes, self.totals, self.parts, strict=True):
            target = slice(start, start + len(part))
            yield rows(f"{prefix}.weight", self.weight[target], total, part)
            if self.bias is not None:
                yield rows(f"{prefix}.bias", self.bias[target], total, part)
            start += len(part)

    def fused_weights(self, prefix: str) -> Iterator[CheckpointWeight]:
        """A checkpoint that stores the matrices as one: `prefix.weight` [sum(totals), in] (and `.bias`)."""
        parts, source, target = [], 0, 0
        for total, part in zip(self.totals, self.parts):
            read = slice(source + part.start, source + part.stop)
            parts.append((read, slice(target, target + len(part))))
            source, target = source + total, target + len(part)
        columns = self.weight.shape[1]
        yield CheckpointWeight(
            f"{prefix}.weight",
            (source, columns),
            self.weight,
            tuple(WeightPart((read, slice(None)), (write,)) for read, write in parts),
        )
        if self.bias is not None:
            bias_parts = tuple(WeightPart((read,), (write,)) for read, write in parts)
            yield CheckpointWeight(f"{prefix}.bias", (source,), self.bias, bias_parts)


class MergedColumnParallelLinear(StackedColumnParallelLinear):
    """Gate and up projection as one matrix: x [..., in] -> [..., 2 * intermediate / tp], gate first."""

    def __init__(self, in_features: int, intermediate: int, place: Placement, bias: bool = False) -> None:
        part = place.tp.shard(intermediate)
        super().__init__(in_features, (intermediate, intermediate), (part, part), place)
        if bias:
            self.add_bias(place)


@dataclass(frozen=True, slots=True)
class HeadSplit:
    """Attention heads of a whole layer, and which of them a rank computes."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    def query_heads(self, tp: TensorParallel) -> range:
        """This rank's query heads. Raises ValueError where tp does not divide them."""
        if self.num_heads % tp.size:
            raise ValueError(f"tensor-parallel size {tp.size} does not divide {self.num_heads} heads")
        return tp.shard(self.num_heads)

    def kv_heads(self, tp: TensorParallel) -> range:
        """The key/value heads that this rank's query heads use.

        8 query and 2 key/value heads over 4 ranks: heads 0, 0, 1, 1.
        """
        group = self.num_heads // self.num_kv_heads
        query = self.query_heads(tp)
        if len(query) % group and group % len(query):
            raise ValueError(
                f"tensor-parallel size {tp.size} does not divide {self.num_kv_heads} key/value heads"
            )
        return range(query.start // group, (query.stop - 1) // group + 1)


class QKVParallelLinear(StackedColumnParallelLinear):
    """Query, key and value projection as one matrix, divided by heads.

    With more ranks than key/value heads, each such head is held by tp / num_kv_heads ranks: those whose query
    heads use it.
    """

    def __init__(self, in_features: int, heads: HeadSplit, place: Placement, bias: bool = True) -> None:
        dim = heads.head_dim
        query, kv = heads.query_heads(place.tp), heads.kv_heads(place.tp)
        parts = [range(part.start * dim, part.stop * dim) for part in (query, kv, kv)]
        totals = (heads.num_heads * dim, heads.num_kv_heads * dim, heads.num_kv_heads * dim)
        super().__init__(in_features, totals, parts, place)
        self.num_heads, self.num_kv_heads, self.head_dim = len(query), len(kv), dim
        if bias:
            self.add_bias(place)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [T, in] -> views q [T, H, D], k [T, KV, D], v [T, KV, D] of this rank's heads."""
        heads = self(x).view(x.shape[0], -1, self.head_dim)
        q, k, v = heads.split([self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=1)
        return q, k, v
