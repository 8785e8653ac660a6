"""Chrome trace events: what Perfetto and the timeline plot read."""

import json

from gllm.core.trace import Span
from gllm.core.trace_file import trace_json


def test_spans_become_complete_events_in_microseconds_under_named_processes():
    span = Span("encoder 0", "encode 2 items", "encode", 0.5, 0.25, "7", {"tokens": 300})
    events = json.loads(trace_json([span], ["stage 0", "encoder 0"]))["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    assert names == {1: "stage 0", 2: "encoder 0"}
    (event,) = [e for e in events if e["ph"] == "X"]
    assert (event["ts"], event["dur"], event["pid"]) == (500000.0, 250000.0, 2)
    assert event["args"] == {"request": "7", "kind": "encode", "tokens": 300}


def test_transfers_have_a_row_of_their_own_below_the_rank():
    spans = [Span("stage 0", "b1", "prefill", 0.0, 1.0), Span("stage 0", "b1", "transfer", 0.5, 1.0)]
    events = json.loads(trace_json(spans, ["stage 0"]))["traceEvents"]
    assert [e["tid"] for e in events if e["ph"] == "X"] == [1, 2]
