"""Chrome trace events: where the time of a run went, for Perfetto and for `rserve timeline`.

Real workers and the simulator write the same events. Timestamps are arguments: nothing here reads a clock.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

KINDS = ("encode", "prefill", "decode", "transfer", "bubble")
COMPUTE_ROW = 1
FIRST_TRANSFER_ROW = 2


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

    @property
    def end(self) -> float:
        return self.start + self.duration

    @property
    def requests(self) -> tuple[str, ...]:
        """The requests one by one."""
        return tuple(name for name in self.request.split(",") if name)


def trace_events(spans: Iterable[Span], ranks: Iterable[str]) -> list[dict[str, object]]:
    """Complete events ("X", microseconds) after one process_name event per rank; pid is the rank's place.

    Both begin at 1: viewers keep process and thread 0 for an idle processor. Transfers, of which several
    can be under way, stand in rows of their own below the rank.
    """
    pids = {rank: pid for pid, rank in enumerate(ranks, start=1)}
    events = [name_event(rank, pid) for rank, pid in pids.items()]
    rows = _Rows()
    for span in spans:
        events.append(
            {
                "ph": "X",
                "name": span.name,
                "cat": span.kind,
                "pid": pids[span.rank],
                "tid": rows.of(span),
                "ts": microseconds(span.start),
                "dur": microseconds(span.duration),
                "args": {"request": span.request, "kind": span.kind, **span.args},
            }
        )
    return events


def name_event(name: str, pid: int) -> dict[str, object]:
    """Names a process, a group of rows in a viewer."""
    return {"ph": "M", "name": "process_name", "pid": pid, "tid": COMPUTE_ROW, "args": {"name": name}}


def microseconds(seconds: float) -> float:
    """The unit of trace files, to a nanosecond."""
    return round(seconds * 1e6, 3)


class _Rows:
    """Gives each span a row (tid) of its rank in which no other span is at that time."""

    def __init__(self) -> None:
        self._free_from: dict[str, list[float]] = {}

    def of(self, span: Span) -> int:
        if span.kind != "transfer":
            return COMPUTE_ROW
        ends = self._free_from.setdefault(span.rank, [])
        for row, end in enumerate(ends):
            if end <= span.start:
                ends[row] = span.end
                return FIRST_TRANSFER_ROW + row
        ends.append(span.end)
        return FIRST_TRANSFER_ROW + len(ends) - 1
