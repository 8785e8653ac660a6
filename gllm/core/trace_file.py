"""A whole trace file: what ranks did, their bubbles, and the lives of requests, on one clock."""

import json
from collections.abc import Iterable

from gllm.core.bubbles import bubbles
from gllm.core.request_life import RequestLife, life_events, with_first_work
from gllm.core.trace import Span, trace_events


def trace_json(spans: Iterable[Span], ranks: Iterable[str], lives: Iterable[RequestLife] = ()) -> str:
    """The text of a trace file: {"traceEvents": [...]}, which Perfetto and `rserve timeline` open.

    ranks: the rows, top to bottom. lives: what is known of requests; without them there are no bubbles.
    """
    spans, ranks = list(spans), list(ranks)
    known = with_first_work(lives, spans)
    events = trace_events([*spans, *bubbles(spans, known)], ranks)
    events += life_events(known, len(ranks) + 1)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
