"""What a request went through, from its arrival to its end, as nested events of a trace."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gllm.core.trace import COMPUTE_ROW, Span, microseconds, name_event

ROW = "requests"
MILESTONES = (
    ("first_encode", "first encode", "encoding"),
    ("first_prefill", "first prefill", "prefill"),
    ("first_token", "first token", "decoding"),
)
"""Field, name of the moment, name of the phase that begins then. Until the first of them: waiting."""


@dataclass(frozen=True, slots=True)
class RequestLife:
    """Moments in seconds on the clock of all spans; None where one never came.

    arrival: the API server has read it. first_token: it reached the API server. end: the engine let the
    request go. reason: how it ended. num_tokens: tokens generated.
    """

    request: str
    arrival: float
    end: float
    first_token: float | None = None
    first_encode: float | None = None
    first_prefill: float | None = None
    reason: str = ""
    num_tokens: int = 0

    def phases(self) -> list[tuple[str, float, float]]:
        """(name, start, end) one after the other, in the order in which they began.

        A text before the first image may be prefilled before anything is encoded.
        """
        begun = [("waiting", self.arrival)]
        moments = {"first_encode": self.first_encode, "first_prefill": self.first_prefill}
        moments["first_token"] = self.first_token
        begun += [(phase, at) for field, _, phase in MILESTONES if (at := moments[field]) is not None]
        begun.sort(key=lambda phase: phase[1])
        ends = [start for _, start in begun[1:]] + [self.end]
        return [(name, start, end) for (name, start), end in zip(begun, ends, strict=True)]


def with_first_work(lives: Iterable[RequestLife], spans: Iterable[Span]) -> list[RequestLife]:
    """The lives, with first encode and first prefill taken from what the ranks did."""
    firsts: dict[tuple[str, str], float] = {}
    for span in spans:
        for request in span.requests:
            key = (span.kind, request)
            firsts[key] = min(span.start, firsts.get(key, span.start))
    return [
        replace(
            life,
            first_encode=firsts.get(("encode", life.request)),
            first_prefill=firsts.get(("prefill", life.request)),
        )
        for life in lives
    ]


def life_events(lives: Sequence[RequestLife], pid: int) -> list[dict[str, object]]:
    """Each request as an async event ("b" … "e") around its phases, with an instant ("n") per moment."""
    events = [name_event(ROW, pid)] if lives else []
    for life in lives:
        args = {"request": life.request, "reason": life.reason, "tokens": life.num_tokens}
        events.append(_event(life, pid, ("b", life.request, life.arrival)) | {"args": args})
        for name, start, end in life.phases():
            events.append(_event(life, pid, ("b", name, start)))
            moment = next((moment for _, moment, phase in MILESTONES if phase == name), "arrival")
            events.append(_event(life, pid, ("n", moment, start)))
            events.append(_event(life, pid, ("e", name, end)))
        events.append(_event(life, pid, ("e", life.request, life.end)))
    return events


def _event(life: RequestLife, pid: int, what: tuple[str, str, float]) -> dict[str, object]:
    phase, name, at = what
    return {
        "ph": phase,
        "cat": "request",
        "name": name,
        "id": life.request,
        "pid": pid,
        "tid": COMPUTE_ROW,
        "ts": microseconds(at),
        "args": {},
    }
