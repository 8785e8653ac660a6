"""Chrome trace events: where the time of a run went, for Perfetto and for `rserve timeline`.

Real workers and the simulator write the same events. Timestamps are arguments: nothing here reads a clock.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

KINDS = ("encode", "prefill", "decode", "transfer")


@dataclass(frozen=True, slots=True)
class Span:
    """Something that a rank did from `start` for `duration` seconds.

    rank: the row it is drawn in, e.g. "stage 0" or "encoder 0". kind: one of KINDS.
    request: id of the request, or several joined by commas when a micro-batch mixes them.
    args: further facts (tokens, batch id, item) shown on a click.
    """

    rank: str
    name: str
    kind: str
    start: float
    duration: float
    request: str = ""
    args: Mapping[str, object] = field(default_factory=dict)


def trace_events(spans: Iterable[Span], ranks: Iterable[str]) -> list[dict[str, object]]:
    """Complete events ("X", microseconds) after one process_name event per rank; pid is the rank's index."""
    pids = {rank: pid for pid, rank in enumerate(ranks)}
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": rank}}
        for rank, pid in pids.items()
    ]
    for span in spans:
        events.append(
            {
                "ph": "X",
                "name": span.name,
                "cat": span.kind,
                "pid": pids[span.rank],
                "tid": 1 if span.kind == "transfer" else 0,
                "ts": round(span.start * 1e6, 3),
                "dur": round(span.duration * 1e6, 3),
                "args": {"request": span.request, "kind": span.kind, **span.args},
            }
        )
    return events


def trace_json(spans: Iterable[Span], ranks: Iterable[str]) -> str:
    """The text of a trace file: {"traceEvents": [...]}."""
    return json.dumps({"traceEvents": trace_events(spans, ranks), "displayTimeUnit": "ms"})
