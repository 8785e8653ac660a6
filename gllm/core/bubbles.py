"""Bubbles: the time in which a pipeline stage is idle although there are requests to serve."""

from collections.abc import Iterable, Sequence

from gllm.core.request_life import RequestLife
from gllm.core.trace import Span

STAGE_WORK = ("prefill", "decode")
SHORTEST_S = 1e-4
"""What a rank needs between two micro-batches is not a bubble."""

Interval = tuple[float, float]


def bubbles(spans: Sequence[Span], lives: Iterable[RequestLife]) -> list[Span]:
    """One span per gap of a stage, within the time in which requests are in the server.

    A stage that is busy in [2, 3] and [5, 6] while requests live from 1 to 6: bubbles [1, 2] and [3, 5].
    Encoders have none: that they are idle when everything is encoded is how it should be.
    """
    alive = merged((life.arrival, life.end) for life in lives)
    stages = dict.fromkeys(span.rank for span in spans if span.kind in STAGE_WORK)
    found = []
    for rank in stages:
        busy = merged(
            (span.start, span.end) for span in spans if span.rank == rank and span.kind != "transfer"
        )
        for start, end in without(alive, busy):
            if end - start >= SHORTEST_S:
                found.append(Span(rank, "bubble", "bubble", start, end - start))
    return found


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The union, in order and disjoint: [1, 3], [2, 4], [6, 7] are [1, 4], [6, 7]."""
    union: list[Interval] = []
    for start, end in sorted(intervals):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((start, end))
    return union


def without(whole: Sequence[Interval], parts: Sequence[Interval]) -> list[Interval]:
    """What is left of one union of intervals without another; [0, 9] without [2, 3] is [0, 2], [3, 9]."""
    left: list[Interval] = []
    first = 0
    for start, end in whole:
        while first < len(parts) and parts[first][1] <= start:
            first += 1
        for part_start, part_end in parts[first:]:
            if part_start >= end:
                break
            if part_start > start:
                left.append((start, part_start))
            start = max(start, part_end)
        if start < end:
            left.append((start, end))
    return left
