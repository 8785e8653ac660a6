"""Calls of a core, recorded in a real run and replayed in the simulator: same calls, same micro-batches."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from gllm.core.batch import BatchResult, EncodeBatch, MicroBatch, Payload, Work
from gllm.core.effects import Effect
from gllm.core.engine_core import EngineCore
from gllm.core.request import Request
from gllm.core.sequence import Sequence
from gllm.core.served import Served

from .pipeline import SimulatedPipeline


@dataclass(frozen=True, slots=True)
class Call:
    """One event or step. arguments: as the core got them, an embedding replaced by a range of its rows."""

    name: str
    arguments: tuple[object, ...] = ()


class RecordingCore:
    """A core that writes down what is asked of it; everything else passes through.

    calls: events and steps in order. works: what each step decided, None where it decided nothing.
    """

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.calls: list[Call] = []
        self.works: list[Work | None] = []

    @property
    def sequences(self) -> Mapping[int, Sequence]:
        return self.core.sequences

    @property
    def requests(self) -> Mapping[str, Served]:
        return self.core.requests

    @property
    def has_work(self) -> bool:
        return self.core.has_work

    def on_request(self, request: Request) -> None:
        self._record("on_request", request)
        self.core.on_request(request)

    def on_item_hash(self, request_id: str, item: int, digest: bytes) -> None:
        self._record("on_item_hash", request_id, item, digest)
        self.core.on_item_hash(request_id, item, digest)

    def on_item_failed(self, request_id: str, item: int, status: int, message: str) -> None:
        self._record("on_item_failed", request_id, item, status, message)
        self.core.on_item_failed(request_id, item, status, message)

    def on_pixels(self, request_id: str, item: int, attempt: int) -> None:
        self._record("on_pixels", request_id, item, attempt)
        self.core.on_pixels(request_id, item, attempt)

    def on_encoding(self, request_id: str) -> None:
        self._record("on_encoding", request_id)
        self.core.on_encoding(request_id)

    def on_embeddings(self, request_id: str, item: int, attempt: int, payload: Payload) -> bool:
        served = self.core.requests.get(request_id)
        num_tokens = served.request.items[item].num_tokens if served is not None else 0
        self._record("on_embeddings", request_id, item, attempt, range(num_tokens))
        return self.core.on_embeddings(request_id, item, attempt, payload)

    def on_encoder_lost(self, items: list[tuple[str, int, int]]) -> None:
        self._record("on_encoder_lost", list(items))
        self.core.on_encoder_lost(items)

    def on_batch_done(self, result: BatchResult) -> None:
        self._record("on_batch_done", result)
        self.core.on_batch_done(result)

    def on_abort(self, request_id: str, reason: str = "abort") -> None:
        self._record("on_abort", request_id, reason)
        self.core.on_abort(request_id, reason)

    def on_credits_short(self, request_id: str) -> None:
        self._record("on_credits_short", request_id)
        self.core.on_credits_short(request_id)

    def flush_cache(self) -> int:
        self._record("flush_cache")
        return self.core.flush_cache()

    def stats(self) -> dict[str, float]:
        return self.core.stats()

    def waits(self) -> dict[str, str]:
        return self.core.waits()

    def step(self) -> Work | None:
        self._record("step")
        work = self.core.step()
        self.works.append(work)
        return work

    def take_effects(self) -> list[Effect]:
        return self.core.take_effects()

    def _record(self, name: str, *arguments: object) -> None:
        self.calls.append(Call(name, arguments))


def replay(calls: Iterable[Call], core: EngineCore, pipeline: SimulatedPipeline) -> list[Work | None]:
    """Repeat recorded calls on a fresh core and run its micro-batches on a simulated machine.

    Returns what every step decided, to compare with `without_payloads` of the recorded decisions.
    """
    events: dict[str, Callable[..., object]] = {
        "on_request": core.on_request,
        "on_item_hash": core.on_item_hash,
        "on_item_failed": core.on_item_failed,
        "on_pixels": core.on_pixels,
        "on_encoding": core.on_encoding,
        "on_embeddings": core.on_embeddings,
        "on_encoder_lost": core.on_encoder_lost,
        "on_batch_done": core.on_batch_done,
        "on_abort": core.on_abort,
        "on_credits_short": core.on_credits_short,
        "flush_cache": core.flush_cache,
    }
    works: list[Work | None] = []
    for call in calls:
        if call.name != "step":
            events[call.name](*call.arguments)
            continue
        work = core.step()
        works.append(work)
        match work:
            case MicroBatch():
                pipeline.run(work, pipeline.stage_free[0])
            case EncodeBatch():
                items = core.requests[work.request_id].request.items
                pipeline.encode(work, [items[i].num_tokens for i in work.items], pipeline.stage_free[0])
    return works


def without_payloads(works: Iterable[Work | None]) -> list[Work | None]:
    """Decisions with embeddings replaced by nothing: what two worlds have in common."""
    return [_without_payloads(work) for work in works]


def _without_payloads(work: Work | None) -> Work | None:
    match work:
        case MicroBatch():
            return replace(work, embeds=tuple(replace(rows, payload=None) for rows in work.embeds))
        case _:
            return work
