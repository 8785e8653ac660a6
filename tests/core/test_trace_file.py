"""A trace file: what ranks did, bubbles, and the lives of requests, as viewers read them."""

import json

from gllm.core.bubbles import bubbles, merged, without
from gllm.core.request_life import RequestLife, life_events, with_first_work
from gllm.core.trace import Span
from gllm.core.trace_file import trace_json

SPANS = [
    Span("encoder 0", "encode 1", "encode", 2.0, 1.0, "a"),
    Span("stage 0", "batch 0", "prefill", 1.5, 1.0, "a,b"),
    Span("stage 0", "batch 1", "prefill", 5.0, 1.0, "a"),
    Span("stage 1", "batch 0", "prefill", 2.5, 1.5, "a,b"),
    Span("encoder 0", "embeddings", "transfer", 3.0, 0.5, "a"),
]
LIFE = RequestLife("a", 1.0, 7.0, first_token=6.5, reason="stop", num_tokens=3)


def test_bubbles_are_the_gaps_of_stages_while_there_are_requests():
    found = [(b.rank, b.start, b.end) for b in bubbles(SPANS, [LIFE, RequestLife("b", 1.2, 3.0)])]
    assert found == [
        ("stage 0", 1.0, 1.5),
        ("stage 0", 2.5, 5.0),
        ("stage 0", 6.0, 7.0),
        ("stage 1", 1.0, 2.5),
        ("stage 1", 4.0, 7.0),
    ]


def test_time_without_requests_and_short_gaps_are_no_bubbles():
    spans = [Span("stage 0", "", "decode", 0.0, 1.0), Span("stage 0", "", "decode", 1.00005, 1.0)]
    assert bubbles(spans, []) == []
    assert bubbles(spans, [RequestLife("a", 0.0, 2.0)]) == []
    assert [b.start for b in bubbles(spans, [RequestLife("a", 0.0, 2.0), RequestLife("b", 5.0, 6.0)])] == [
        5.0
    ]


def test_intervals_are_merged_and_subtracted():
    assert merged([(6, 7), (2, 4), (1, 3), (4, 5)]) == [(1, 5), (6, 7)]
    assert without([(0, 9)], [(2, 3), (8, 12)]) == [(0, 2), (3, 8)]
    assert without([(0, 2), (4, 6)], [(1, 5)]) == [(0, 1), (5, 6)]
    assert without([(0, 2)], [(0, 2)]) == []


def test_first_work_comes_from_the_spans():
    (life,) = with_first_work([LIFE], SPANS)
    assert (life.first_encode, life.first_prefill, life.first_token) == (2.0, 1.5, 6.5)
    assert life.phases() == [
        ("waiting", 1.0, 1.5),
        ("prefill", 1.5, 2.0),
        ("encoding", 2.0, 6.5),
        ("decoding", 6.5, 7.0),
    ]
    assert RequestLife("c", 1.0, 2.0).phases() == [("waiting", 1.0, 2.0)]


def test_a_life_is_nested_async_events_that_all_end():
    events = life_events(with_first_work([LIFE], SPANS), pid=4)
    assert events[0]["args"] == {"name": "requests"}
    open_names = []
    for event in events[1:]:
        assert (event["cat"], event["id"], event["pid"]) == ("request", "a", 4)
        if event["ph"] == "b":
            open_names.append(event["name"])
        elif event["ph"] == "e":
            assert open_names.pop() == event["name"]
    assert open_names == []
    moments = [(e["name"], e["ts"]) for e in events if e["ph"] == "n"]
    assert moments == [
        ("arrival", 1e6),
        ("first prefill", 1.5e6),
        ("first encode", 2e6),
        ("first token", 6.5e6),
    ]
    assert events[1]["args"] == {"request": "a", "reason": "stop", "tokens": 3}


def test_transfers_at_the_same_time_get_rows_of_their_own():
    spans = [Span("encoder 0", "embeddings", "transfer", start, 1.0) for start in (0.0, 0.5, 1.0, 1.5)]
    events = json.loads(trace_json([*SPANS[:4], *spans], ["encoder 0", "stage 0", "stage 1"]))["traceEvents"]
    by_row: dict[int, float] = {}
    for event in sorted((e for e in events if e.get("cat") == "transfer"), key=lambda e: e["ts"]):
        assert by_row.get(event["tid"], 0.0) <= event["ts"]
        by_row[event["tid"]] = event["ts"] + event["dur"]
    assert sorted(by_row) == [2, 3]


def test_a_file_holds_ranks_bubbles_and_requests():
    trace = json.loads(trace_json(SPANS, ["encoder 0", "stage 0", "stage 1"], [LIFE]))
    events = trace["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    assert names == {1: "encoder 0", 2: "stage 0", 3: "stage 1", 4: "requests"}
    assert {e["cat"] for e in events if e["ph"] == "X"} == {"encode", "prefill", "transfer", "bubble"}
    assert {e["ph"] for e in events} == {"M", "X", "b", "n", "e"}
