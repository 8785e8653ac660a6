"""Rank 0's loop: events change the core's state; when stage 0 is free, the core decides what it does."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import zmq

from gllm.core.batch import BatchResult, EncodeBatch, MicroBatch
from gllm.core.effects import Effect
from gllm.runtime.channels import Inbox, Outbox
from gllm.runtime.executor import DrivenCore, Executor
from gllm.runtime.messages import (
    AbortRequest,
    AddRequest,
    CreditsShort,
    EncodingStarted,
    FlushCache,
    GetStats,
    ItemFailed,
    ItemHash,
    RankFailed,
    RankLoad,
    Shutdown,
    Stats,
)
from gllm.runtime.recorder import REST_AFTER_MS
from gllm.runtime.watchdog import Watchdog

TELL_EVERY_S = 5.0
"""A step that takes longer sends figures so often."""


class EventSource(Protocol):
    """Another road by which events come to the core: pixels, embeddings."""

    @property
    def wakes(self) -> zmq.Socket[bytes] | int:
        """A socket or file descriptor that is readable when `drain` has something to do."""
        ...

    def drain(self, core: Any) -> None:
        """Hand all events that are there to the core; never waits."""
        ...

    def on_effect(self, effect: Effect) -> None:
        """The core said this; called for every effect, once the inputs of its step are built."""
        ...

    def close(self) -> None:
        """The loop has ended."""
        ...


@dataclass(frozen=True, slots=True)
class MoreEvents:
    """What a scheme adds to the driver's events. handlers: by message type, for its inbox."""

    sources: Sequence[EventSource] = ()
    handlers: Mapping[type, Callable[[Any], object]] = field(default_factory=dict)


class Driver:
    """Drives a core: drains all events, steps, executes; sleeps in a poller when there is nothing to do."""

    def __init__(
        self,
        core: DrivenCore,
        executor: Executor,
        inbox: Inbox,
        api: Outbox,
        more: MoreEvents | None = None,
    ) -> None:
        self._core = core
        self._executor = executor
        self._inbox = inbox
        self._api = api
        more = more or MoreEvents()
        self._sources = more.sources
        self._watchdog = Watchdog(core)
        self._loads: dict[str, RankLoad] = {}
        self._stopping = False
        self._told_at = time.monotonic()
        executor.tell(self._still_works)
        self._handlers: dict[type, Callable[[Any], object]] = {
            AddRequest: lambda m: core.on_request(m.request),
            AbortRequest: lambda m: core.on_abort(m.request_id, m.reason),
            ItemHash: lambda m: core.on_item_hash(m.request_id, m.item, m.digest),
            ItemFailed: lambda m: core.on_item_failed(m.request_id, m.item, m.status, m.message),
            EncodingStarted: lambda m: core.on_encoding(m.request_id),
            CreditsShort: lambda m: core.on_credits_short(m.request_id),
            FlushCache: lambda m: core.flush_cache(),
            BatchResult: core.on_batch_done,
            RankLoad: self._on_load,
            GetStats: lambda m: self._send_stats(),
            Shutdown: lambda m: self._stop(),
            RankFailed: self._on_rank_failed,
            **more.handlers,
        }
        self._poller = zmq.Poller()
        for wakes in (inbox.socket, *(source.wakes for source in more.sources)):
            self._poller.register(wakes, zmq.POLLIN)

    def run(self) -> None:
        """Until Shutdown. Raises RuntimeError when another rank is lost."""
        try:
            while True:
                self._drain()
                if self._stopping:
                    return
                if not self._advance():
                    self._wait()
                self._watchdog.check(time.monotonic())
        finally:
            for source in self._sources:
                source.close()

    def _drain(self) -> None:
        for message in self._inbox.drain():
            self._handlers[type(message)](message)
        for source in self._sources:
            source.drain(self._core)

    def _advance(self) -> bool:
        """One step and its execution; False when there is nothing to do now."""
        work = self._core.step()
        match work:
            case MicroBatch():
                self._run(work)
            case EncodeBatch():
                self._encode(work)
        self._emit()
        return work is not None

    def _run(self, batch: MicroBatch) -> None:
        result = self._executor.submit(batch, self._tokens_of, self._emit)
        if result is not None:
            if result.tokens:
                self._api.send(result)
            self._core.on_batch_done(result)

    def _tokens_of(self, seq_id: int) -> Sequence[int]:
        return self._core.sequences[seq_id].token_ids

    def _encode(self, batch: EncodeBatch) -> None:
        items = self._core.requests[batch.request_id].request.items
        payloads = self._executor.encode(batch, [items[index] for index in batch.items])
        for item, attempt, payload in zip(batch.items, batch.attempts, payloads):
            self._core.on_embeddings(batch.request_id, item, attempt, payload)

    def _emit(self) -> None:
        for effect in self._core.take_effects():
            self._api.send(effect)
            for source in self._sources:
                source.on_effect(effect)

    def _wait(self) -> None:
        """Sleep until an event comes; while requests are served, look every few seconds for stalls."""
        if self._core.has_work:
            self._poller.poll(int(self._watchdog.interval_s * 1000))
        elif not self._poller.poll(REST_AFTER_MS):
            self._executor.rest()
            self._poller.poll()

    def _still_works(self) -> None:
        """Within a step: one that takes minutes is not a driver that hangs."""
        if time.monotonic() - self._told_at >= TELL_EVERY_S:
            self._send_stats()

    def _send_stats(self) -> None:
        """This rank's own load is in the next answer: whoever asks often never lets it come to rest."""
        self._told_at = time.monotonic()
        self._executor.rest()
        values = self._core.stats()
        counters = {name: value for name, value in values.items() if name.endswith("_total")}
        gauges = {name: value for name, value in values.items() if name not in counters}
        for load in self._loads.values():
            counters[f"busy_seconds_total:{load.name}"] = load.busy_seconds
            counters[f"steps_total:{load.name}"] = float(load.steps)
        self._api.send(Stats(gauges, counters))

    def _on_load(self, load: RankLoad) -> None:
        self._loads[load.name] = load

    def _on_rank_failed(self, failed: RankFailed) -> None:
        raise RuntimeError(f"{failed.name}: {failed.message}")

    def _stop(self) -> None:
        self._stopping = True
