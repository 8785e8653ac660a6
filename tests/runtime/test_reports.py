"""What ranks say of themselves: stalls have names, loads and spans add up."""

from gllm.core.batch import Chunk, NewSequence
from gllm.core.core_config import CoreConfig
from gllm.core.engine_core import EngineCore
from gllm.core.request import MMItem, Request, SamplingParams
from gllm.core.request_life import RequestLife
from gllm.core.stage_encoder import StageEncoder
from gllm.core.step_spans import ItemWork
from gllm.runtime.messages import RankLoad, StageBatch, TraceSpans
from gllm.runtime.recorder import StepRecorder
from gllm.runtime.request_lives import NoLives, RequestLives
from gllm.runtime.step_timer import Begin, Wait
from gllm.runtime.watchdog import Watchdog


def waiting_core() -> EngineCore:
    core = EngineCore(CoreConfig(64), stage_encoder=StageEncoder(1024))
    core.on_request(Request("stuck", (1, 2, 3), (MMItem(1, 1),), SamplingParams()))
    return core


def test_a_request_that_does_not_move_is_reported_with_what_it_waits_for():
    core = waiting_core()
    watchdog = Watchdog(core, interval_s=10.0)
    assert watchdog.check(100.0) is None
    assert watchdog.check(105.0) is None
    message = watchdog.check(111.0)
    assert message == "1 requests have not moved for 10 s, waiting 1 for embedding (stuck: embedding)"


def test_a_request_that_moves_is_not_reported():
    core = EngineCore(CoreConfig(64))
    core.on_request(Request("runs", (1, 2, 3), (), SamplingParams()))
    watchdog = Watchdog(core, interval_s=10.0)
    watchdog.check(100.0)
    assert core.step() is not None
    assert watchdog.check(111.0) is None
    assert watchdog.check(122.0) is not None


def delta(batch_id: int, decodes: int) -> StageBatch:
    chunks = (Chunk(1, 0, 4),) if not decodes else (Chunk(1, 4, 1),)
    new = (NewSequence(1, "r1", 0, 4, 4, (), SamplingParams(), (0,)),) if not decodes else ()
    return StageBatch(batch_id, chunks, decodes, (), new, (), (), ())


def test_busy_time_leaves_out_what_was_waited_for():
    recorder = StepRecorder("rank1", "stage 1", None, None)
    begin = Begin(recorder.now() - 10.0, None)
    recorder.batch(delta(0, 0), begin, Wait(9.0))
    assert 1.0 <= recorder.busy_seconds < 2.0
    assert recorder.steps == 1


def test_spans_name_their_requests_and_kinds():
    sent: list[object] = []
    recorder = StepRecorder("rank1", "stage 1", None, sent.append)
    recorder.encode(ItemWork("r0", (0, 1), (10, 20)), recorder.begin())
    recorder.batch(delta(0, 0), recorder.begin())
    recorder.batch(delta(1, 1), recorder.begin())
    recorder.flush()
    (message,) = sent
    assert isinstance(message, TraceSpans)
    assert [(s.kind, s.request, s.rank) for s in message.spans] == [
        ("encode", "r0", "stage 1"),
        ("prefill", "r1", "stage 1"),
        ("decode", "r1", "stage 1"),
    ]
    assert [s.args["tokens"] for s in message.spans] == [30, 4, 1]
    assert message.spans[0].args["counts"] == [10, 20]
    assert message.spans[2].args["chunks"] == [{"request": "r1", "start": 4, "end": 5}]


def test_a_rank_at_rest_reports_once_what_it_did_last():
    sent: list[object] = []
    recorder = StepRecorder("rank2", "stage 2", sent.append, None)
    recorder.rest()
    assert sent == []
    recorder.batch(delta(0, 0), recorder.begin())
    recorder.rest()
    recorder.rest()
    assert sent == [RankLoad("rank2", recorder.busy_seconds, 1)]


def test_the_load_is_sent_at_the_end():
    sent: list[object] = []
    recorder = StepRecorder("rank2", "stage 2", sent.append, None)
    recorder.batch(delta(0, 0), recorder.begin())
    recorder.flush()
    assert sent == [RankLoad("rank2", recorder.busy_seconds, 1)]


def test_lives_hold_the_first_token_and_the_end_and_those_that_go_on():
    now = [10.0]
    log = RequestLives(lambda: now[0])
    log.begin("a", age_s=0.5)
    log.begin("b", age_s=0.0)
    now[0] = 11.0
    log.token("a")
    now[0] = 12.0
    log.token("a")
    log.end("a", "stop", 2)
    log.end("a", "again", 2)
    log.token("a")
    now[0] = 13.0
    assert log.lives() == [
        RequestLife("a", 9.5, 12.0, first_token=11.0, reason="stop", num_tokens=2),
        RequestLife("b", 10.0, 13.0, reason="unfinished"),
    ]
    assert NoLives().lives() == ()
