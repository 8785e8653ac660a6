"""The steps of a server during a run, from its trace: what they held and how long they took."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rserve.sim.cost_model import CostModel

Window = tuple[float, float]
MicroBatch = tuple[list[tuple[int, int]], int, float]  # chunks (start, length), samples, seconds
Encode = tuple[list[int], float]  # embedding tokens of each item, seconds
S = TypeVar("S")


@dataclass(frozen=True)
class Steps:
    """Micro-batches of a one-stage server and its encoder batches, wherever they ran."""

    batches: Sequence[MicroBatch]
    encodes: Sequence[Encode]

    @classmethod
    def of(cls, line: dict[str, Any]) -> Steps:
        """From the fields that `as_fields` made."""
        return cls(line["steps"], line["encodes"])

    def as_fields(self) -> dict[str, Any]:
        return {"steps": self.batches, "encodes": self.encodes}

    def slowness(self, cost: CostModel) -> tuple[float, float]:
        """(stage, encoder): seconds that all steps took over those that the cost model gives them."""
        stage = sum(cost.stage_time(0, chunks, samples) for chunks, samples, _ in self.batches)
        encoder = sum(cost.encode_time(counts) for counts, _ in self.encodes)
        return (
            sum(seconds for _, _, seconds in self.batches) / stage,
            sum(seconds for _, seconds in self.encodes) / encoder,
        )

    def parts(self, count: int) -> list[Steps]:
        """The steps of a run in order, cut into so many parts of equally many steps."""
        return [Steps(_part(self.batches, i, count), _part(self.encodes, i, count)) for i in range(count)]


def read_steps(trace: Path, window: Window) -> Steps:
    """All steps that began in the window, in seconds of the trace's clock.

    On one host that is `time.monotonic()`.
    """
    start, end = (seconds * 1e6 for seconds in window)
    events = json.loads(trace.read_text())["traceEvents"]
    steps = [event for event in events if event["ph"] == "X" and start <= event["ts"] <= end]
    return Steps(
        [
            (
                [(chunk["start"], chunk["end"] - chunk["start"]) for chunk in step["args"]["chunks"]],
                step["args"]["samples"],
                step["dur"] / 1e6,
            )
            for step in steps
            if step["cat"] in ("prefill", "decode")
        ],
        [(step["args"]["counts"], step["dur"] / 1e6) for step in steps if step["cat"] == "encode"],
    )


def _part(steps: Sequence[S], index: int, count: int) -> Sequence[S]:
    return steps[len(steps) * index // count : len(steps) * (index + 1) // count]
