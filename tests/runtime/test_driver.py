"""The driver's loop: events first, one decision at a time, effects once inputs are built, sleep when idle."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from gllm.core.batch import BatchResult, EncodeBatch, MicroBatch, Payload, SampledToken
from gllm.core.core_config import CoreConfig
from gllm.core.effects import Effect, ItemReleased, RequestFailed, RequestFinished
from gllm.core.engine_core import EngineCore
from gllm.core.request import MMItem, Request, SamplingParams
from gllm.core.stage_encoder import StageEncoder
from gllm.runtime import driver
from gllm.runtime.channels import Inbox
from gllm.runtime.codec import Codec
from gllm.runtime.driver import Driver, MoreEvents
from gllm.runtime.messages import (
    AbortRequest,
    AddRequest,
    FlushCache,
    GetStats,
    ItemFailed,
    RankFailed,
    RankLoad,
    Shutdown,
    Stats,
)
from gllm.runtime.post import Post


class FakeExecutor:
    """Samples token 7 for every target, and keeps what it was asked."""

    def __init__(self, answers: bool = True) -> None:
        self.batches: list[MicroBatch] = []
        self.encodes: list[EncodeBatch] = []
        self.rested = threading.Event()
        self._answers = answers

    def submit(
        self, batch: MicroBatch, tokens_of: Callable[[int], Sequence[int]], after_input: Callable[[], None]
    ) -> BatchResult | None:
        self.batches.append(batch)
        after_input()
        return result_of(batch) if self._answers else None

    def encode(self, batch: EncodeBatch, items: Sequence[MMItem]) -> list[Payload]:
        self.encodes.append(batch)
        return [range(item.num_tokens) for item in items]

    def tell(self, on_progress: Callable[[], None]) -> None:
        self.on_progress = on_progress

    def rest(self) -> None:
        self.rested.set()


def result_of(batch: MicroBatch) -> BatchResult:
    targets = [target for sample in batch.samples for target in sample.targets]
    tokens = [SampledToken(t.seq_id, t.request_id, t.choice, t.position, 7) for t in targets]
    return BatchResult(batch.batch_id, tuple(tokens))


class Served:
    """A driver in a thread, and both ends of its sockets."""

    def __init__(self, folder: Path, executor: FakeExecutor, **core: int) -> None:
        addresses = {name: f"ipc://{folder}/{name}" for name in ("api", "rank0")}
        self.post = Post(addresses, Codec())
        self.api = self.post.inbox("api")
        self.executor = executor
        self.error: BaseException | None = None
        self.core = EngineCore(CoreConfig(**{"num_blocks": 64, **core}), stage_encoder=StageEncoder(1024))
        self.driver = Driver(self.core, executor, self.post.inbox("rank0"), self.post.outbox("api"))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def tell(self, *messages: object) -> None:
        for message in messages:
            self.post.outbox("rank0").send(message)

    def hear(self, wanted: type) -> object:
        """The next message of this type; others are passed over."""
        while (message := self.api.receive(20_000)) is not None:
            if isinstance(message, wanted):
                return message
        raise AssertionError(f"no {wanted.__name__} came")

    def first_batch(self) -> MicroBatch:
        """Wait until something was submitted."""
        while not self.executor.batches:
            self.tell(GetStats())
            self.hear(Stats)
        return self.executor.batches[0]

    def close(self) -> None:
        self.tell(Shutdown())
        self._thread.join(20)
        assert not self._thread.is_alive()
        self.post.close()

    def join(self) -> BaseException | None:
        self._thread.join(20)
        return self.error

    def _run(self) -> None:
        try:
            self.driver.run()
        except RuntimeError as error:
            self.error = error


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path, FakeExecutor())
    yield made
    made.close()


def text(request_id: str, length: int = 5, max_tokens: int = 3) -> Request:
    return Request(request_id, tuple(range(length)), (), SamplingParams(max_tokens=max_tokens))


def test_a_request_is_run_to_its_end_and_its_tokens_are_sent(served: Served):
    served.tell(AddRequest(text("a")))
    tokens = [served.hear(BatchResult) for _ in range(3)]
    assert [t.tokens[0].position for t in tokens] == [5, 6, 7]  # type: ignore[attr-defined]
    assert served.hear(RequestFinished) == RequestFinished("a", "length")
    assert [batch.num_tokens for batch in served.executor.batches] == [5, 1, 1]


def test_items_that_fail_end_their_request(served: Served):
    served.tell(AddRequest(Request("a", (1, 2, 3), (MMItem(1, 1),))), ItemFailed("a", 0, 400, "corrupt"))
    assert served.hear(RequestFailed) == RequestFailed("a", 400, "corrupt")


def test_without_requests_the_executor_may_rest_and_later_ones_are_served(served: Served):
    assert served.executor.rested.wait(20)
    served.tell(AddRequest(text("a", max_tokens=1)))
    assert served.hear(RequestFinished) == RequestFinished("a", "length")


def test_counters_are_sent_when_asked_for(served: Served):
    served.tell(RankLoad("rank1", 2.5, 9), FlushCache(), GetStats())
    stats = served.hear(Stats)
    assert isinstance(stats, Stats)
    assert stats.counters["busy_seconds_total:rank1"] == 2.5
    assert stats.counters["steps_total:rank1"] == 9
    assert stats.gauges["kv_blocks"] == 64


def test_who_asks_for_counters_more_often_than_the_driver_rests_gets_new_ones(served: Served):
    served.tell(GetStats())
    served.hear(Stats)
    assert served.executor.rested.is_set()


class SlowExecutor(FakeExecutor):
    """Tells of its progress before it is done."""

    def submit(
        self, batch: MicroBatch, tokens_of: Callable[[int], Sequence[int]], after_input: Callable[[], None]
    ) -> BatchResult | None:
        self.on_progress()
        return super().submit(batch, tokens_of, after_input)


@pytest.mark.parametrize(("every_s", "tells"), [(0.0, True), (1e9, False)])
def test_a_long_step_sends_counters_that_nobody_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every_s: float, tells: bool
):
    monkeypatch.setattr(driver, "TELL_EVERY_S", every_s)
    served = Served(tmp_path, SlowExecutor())
    served.tell(AddRequest(text("a", max_tokens=1)))
    first = served.api.receive(20_000)
    assert isinstance(first, Stats) == tells
    served.close()


def test_results_of_the_last_stage_come_as_messages(tmp_path: Path):
    executor = FakeExecutor(answers=False)
    served = Served(tmp_path, executor, num_stages=2)
    served.tell(AddRequest(text("a", max_tokens=1)))
    served.tell(result_of(served.first_batch()))
    assert served.hear(RequestFinished) == RequestFinished("a", "length")
    served.close()


def test_an_aborted_request_ends_without_more_steps(tmp_path: Path):
    executor = FakeExecutor(answers=False)
    served = Served(tmp_path, executor, num_stages=2)
    served.tell(AddRequest(text("a", max_tokens=1000)))
    batch = served.first_batch()
    served.tell(AbortRequest("a", "timeout"), result_of(batch))
    assert served.hear(RequestFinished) == RequestFinished("a", "timeout")
    assert executor.batches == [batch]
    served.close()


def test_a_failed_rank_elsewhere_ends_the_driver(tmp_path: Path):
    served = Served(tmp_path, FakeExecutor())
    served.tell(RankFailed("rank3", "was killed"))
    assert "rank3: was killed" in str(served.join())
    served.post.close()


class RecordingSource:
    """An event source that delivers one item's pixels and remembers effects."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self.effects: list[Effect] = []
        self.closed = False

    @property
    def wakes(self) -> object:
        return self.inbox.socket

    def drain(self, core: EngineCore) -> None:
        for message in self.inbox.drain():
            assert isinstance(message, AbortRequest)
            core.on_pixels(message.request_id, 0, 0)

    def on_effect(self, effect: Effect) -> None:
        self.effects.append(effect)

    def close(self) -> None:
        self.closed = True


def test_another_source_wakes_the_loop_and_hears_effects_after_inputs_are_built(tmp_path: Path):
    post = Post({name: f"ipc://{tmp_path}/{name}" for name in ("api", "rank0", "more")}, Codec())
    source = RecordingSource(post.inbox("more"))
    executor = FakeExecutor()
    core = EngineCore(CoreConfig(64), stage_encoder=StageEncoder(1024))
    api = post.inbox("api")
    driver = Driver(core, executor, post.inbox("rank0"), post.outbox("api"), MoreEvents((source,)))
    thread = threading.Thread(target=driver.run, daemon=True)
    thread.start()
    request = Request("a", (1, 2, 3), (MMItem(1, 1),), SamplingParams(max_tokens=1))
    post.outbox("rank0").send(AddRequest(request))
    post.outbox("rank0").send(GetStats())
    assert isinstance(api.receive(20_000), Stats)
    post.outbox("more").send(AbortRequest("a"))
    heard: list[object] = []
    while not any(isinstance(message, RequestFinished) for message in heard):
        heard.append(api.receive(20_000))
    assert [batch.items for batch in executor.encodes] == [(0,)]
    assert executor.batches[0].embeds[0].payload == range(1)
    kinds = [type(message) for message in heard]
    assert kinds.index(ItemReleased) < kinds.index(BatchResult)
    assert source.effects[0] == ItemReleased("a", 0, 0)
    post.outbox("rank0").send(Shutdown())
    thread.join(20)
    assert source.closed
    post.close()
