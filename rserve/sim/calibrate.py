"""From measured times to a constant set: what the cost model's parameters must be to give those times.

Every table has a point for each size that was measured alone; context, several chunks and decodes are fitted
by least squares over all points. Units are SI.

Stage, for a micro-batch of T tokens in n chunks (see `CostModel.stage_time`):

    t = a + c n + layers' FLOPs / g(T) + head's FLOPs / h(samples)
          + sum over chunks of (pairs x FLOPs a pair) / r(length)

r(length) comes from the slope of t over the context of one chunk, c from the same tokens in more chunks, a
from the intercept of t over T, h from decodes with logits less the same decodes without, g(T) from what then
remains. Encoder, for items of B tokens in all: t = gemm / v(B) + attention / w, with w from batches of equal
B in items of different sizes. The peak of which the tables are shares is the highest of all these rates, so
it needs no data sheet.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import TypeVar

from gllm.core.model_shape import VisionShape

from .cost_model import CostModel, StageCoefficients, attention_pairs
from .vision_cost import item_flops

MOST_DECODES = 16
"""Micro-batches up to so many tokens are fitted from decodes, larger ones from prefill."""
LEAST_SHARE = 0.1
"""No part that is subtracted takes more than all but this share of a measured time."""

Rates = tuple[tuple[float, float], ...]
P = TypeVar("P")
K = TypeVar("K", int, tuple[int, int])


@dataclass(frozen=True, slots=True)
class StagePoint:
    """A measured micro-batch. chunks: (start, length); samples: rows for which logits were computed."""

    chunks: tuple[tuple[int, int], ...]
    samples: int
    seconds: float

    @property
    def tokens(self) -> int:
        return sum(length for _, length in self.chunks)

    @property
    def is_decode(self) -> bool:
        return all(length == 1 for _, length in self.chunks)

    @property
    def is_fresh(self) -> bool:
        """One chunk from the start of its prompt."""
        return len(self.chunks) == 1 and self.chunks[0][0] == 0


@dataclass(frozen=True, slots=True)
class EncodePoint:
    """A measured encoder batch: embedding tokens of each item."""

    items: tuple[int, ...]
    seconds: float

    @property
    def tokens(self) -> int:
        return sum(self.items)


@dataclass(frozen=True, slots=True)
class StageFit:
    """Costs of a stage. gemm, attention: FLOP/s by tokens of a micro-batch, of a chunk; head: by samples.

    bandwidth: bytes/s of weights or cache.
    """

    iteration_overhead: float
    chunk_overhead: float
    gemm: Rates
    head: Rates
    attention: Rates
    bandwidth: float


@dataclass(frozen=True, slots=True)
class EncoderFit:
    """Costs of the encoder. gemm: FLOP/s by tokens of a batch. floor: seconds that any batch takes."""

    gemm: Rates
    attention: float
    floor: float


def fit_stage(k: StageCoefficients, points: Sequence[StagePoint]) -> StageFit:
    """Costs of one stage that holds all layers and the head.

    Needs decodes of the same chunks with a sample each and without; chunks without samples at start 0, of at
    least two lengths above MOST_DECODES; one length with at least two starts; and one number of tokens in one
    and in more chunks (else chunks cost nothing). Raises ValueError where there is no slope over the context.
    """
    attention = _attention_rates(k, points)

    def attended(point: StagePoint) -> float:
        return sum(
            attention_pairs(start, length) * k.pair_flops / _rate_at(attention, length)
            for start, length in point.chunks
        )

    prefills = [p for p in points if not p.is_decode and p.samples == 0]
    decodes = [p for p in points if p.is_decode and p.samples == 0]
    alone = [p for p in prefills if p.is_fresh and p.tokens > MOST_DECODES]
    fixed = max(_intercept([(float(p.tokens), _rest(p.seconds, attended(p))) for p in alone]), 0.0)
    fixed = min(fixed, (1 - LEAST_SHARE) * min(p.seconds for p in points))
    fastest = max(rate for _, rate in _gemm_rates(k, alone, lambda p: attended(p) + fixed))
    room = [
        (p.seconds - attended(p) - fixed - p.tokens * k.gemm_flops / fastest) / (len(p.chunks) - 1)
        for p in decodes
        if len(p.chunks) > 1
    ]
    chunk = max(min(_chunk_overhead(prefills, attended), fixed, *room), 0.0)
    iteration = fixed - chunk
    gemm = _gemm_rates(k, alone + decodes, lambda p: attended(p) + iteration + chunk * len(p.chunks))
    head = _head_rates(k, points)
    return StageFit(iteration, chunk, gemm, head, attention, _bandwidth(k, gemm, head, attention, points))


def fit_encoder(vision: VisionShape, points: Sequence[EncodePoint]) -> EncoderFit:
    """Costs of the encoder.

    Where no two batches of equal tokens differ in attention, that runs as fast as the fastest batch.
    """
    flops = {p.items: [item_flops(vision, tokens) for tokens in p.items] for p in points}
    gemm = {items: sum(f.gemm for f in parts) for items, parts in flops.items()}
    pairs = {items: sum(f.attention for f in parts) for items, parts in flops.items()}
    sizes = _grouped(points, lambda p: p.tokens)
    slope = _common_slope([[(pairs[p.items], p.seconds) for p in same] for same in sizes.values()])
    slope = min(max(slope, 0.0), min((1 - LEAST_SHARE) * p.seconds / pairs[p.items] for p in points))
    if slope == 0.0:
        slope = 1 / max((gemm[p.items] + pairs[p.items]) / p.seconds for p in points)
    rates = tuple(
        (float(size), fmean(gemm[p.items] / _rest(p.seconds, slope * pairs[p.items]) for p in same))
        for size, same in sizes.items()
    )
    return EncoderFit(rates, 1 / slope, min(p.seconds for p in points))


def worst_errors(
    cost: CostModel, stages: Iterable[StagePoint], encodes: Iterable[EncodePoint]
) -> tuple[float, float]:
    """Largest relative error of the cost model over measured micro-batches and over encoder batches."""
    stage = max(abs(cost.stage_time(0, p.chunks, p.samples) / p.seconds - 1) for p in stages)
    return stage, max(abs(cost.encode_time(p.items) / p.seconds - 1) for p in encodes)


def _attention_rates(k: StageCoefficients, points: Sequence[StagePoint]) -> Rates:
    """FLOP/s by chunk length, from lengths measured after different numbers of cached tokens."""
    alike = _grouped([p for p in points if len(p.chunks) == 1], lambda p: (p.chunks[0][1], p.samples))
    rates: dict[float, float] = {}
    for (length, _), same in alike.items():
        slope = _common_slope([[(float(p.chunks[0][0]), p.seconds) for p in same]])
        if slope > 0:
            rates[float(length)] = length * k.pair_flops / slope
    if not rates:
        raise ValueError("no chunk takes longer after a longer context: measure again on a quiet machine")
    return tuple(sorted(rates.items()))


def _chunk_overhead(prefills: Sequence[StagePoint], attended: Callable[[StagePoint], float]) -> float:
    costs = []
    for same in _grouped(prefills, lambda p: p.tokens).values():
        one = next((p for p in same if p.is_fresh), None)
        for p in same:
            if one is not None and len(p.chunks) > 1:
                longer = p.seconds - attended(p) - one.seconds + attended(one)
                costs.append(longer / (len(p.chunks) - 1))
    return max(median(costs), 0.0) if costs else 0.0


def _gemm_rates(
    k: StageCoefficients, points: Sequence[StagePoint], other: Callable[[StagePoint], float]
) -> Rates:
    rates = []
    for tokens, same in _grouped(points, lambda p: p.tokens).items():
        work = tokens * k.gemm_flops
        rates.append((float(tokens), fmean(work / _rest(p.seconds, other(p)) for p in same)))
    return tuple(rates)


def _head_rates(k: StageCoefficients, points: Sequence[StagePoint]) -> Rates:
    """FLOP/s of the vocabulary projection by rows, from the median over contexts of what sampling adds."""
    without = {p.chunks: p.seconds for p in points if p.samples == 0}
    rates = []
    for samples, same in _grouped([p for p in points if p.samples], lambda p: p.samples).items():
        added = [_rest(p.seconds, without[p.chunks]) for p in same if p.chunks in without]
        if added:
            rates.append((float(samples), samples * k.head_flops / median(added)))
    return tuple(rates)


def _bandwidth(
    k: StageCoefficients, gemm: Rates, head: Rates, attention: Rates, points: Sequence[StagePoint]
) -> float:
    """Bytes/s at which no measured product or attention would be faster than its memory traffic."""
    rates = [k.weight_bytes / (tokens * k.gemm_flops / rate) for tokens, rate in gemm]
    rates += [k.head_bytes / (samples * k.head_flops / rate) for samples, rate in head]
    for start, length in {chunk for p in points for chunk in p.chunks}:
        seconds = attention_pairs(start, length) * k.pair_flops / _rate_at(attention, length)
        rates.append((start + length) * k.kv_bytes / seconds)
    return max(rates)


def _rate_at(rates: Rates, size: float) -> float:
    """Linear between points, constant outside: as `Table` reads it."""
    for (x0, y0), (x1, y1) in pairwise(rates):
        if x0 <= size <= x1:
            return y0 + (y1 - y0) * (size - x0) / (x1 - x0)
    return rates[0][1] if size < rates[0][0] else rates[-1][1]


def _intercept(points: Sequence[tuple[float, float]]) -> float:
    """a of the line a + b x that fits (x, y) best in relative terms; 0 for fewer than two points."""
    if len(points) < 2:
        return 0.0
    weights = [1 / (y * y) for _, y in points]
    total = sum(weights)
    mx = sum(w * x for w, (x, _) in zip(weights, points)) / total
    my = sum(w * y for w, (_, y) in zip(weights, points)) / total
    spread = sum(w * (x - mx) ** 2 for w, (x, _) in zip(weights, points))
    slope = sum(w * (x - mx) * (y - my) for w, (x, y) in zip(weights, points)) / spread
    return my - slope * mx


def _common_slope(groups: Sequence[Sequence[tuple[float, float]]]) -> float:
    """Least-squares slope that groups of (x, y) share, each with its own intercept; 0 without spread."""
    top = bottom = 0.0
    for group in groups:
        mx, my = fmean(x for x, _ in group), fmean(y for _, y in group)
        top += sum((x - mx) * (y - my) for x, y in group)
        bottom += sum((x - mx) ** 2 for x, _ in group)
    return top / bottom if bottom else 0.0


def _rest(seconds: float, other: float) -> float:
    return max(seconds - other, LEAST_SHARE * seconds)


def _grouped(points: Sequence[P], key: Callable[[P], K]) -> Mapping[K, list[P]]:
    """Points by key, in the order of the keys."""
    groups: dict[K, list[P]] = {}
    for point in sorted(points, key=key):
        groups.setdefault(key(point), []).append(point)
    return groups
