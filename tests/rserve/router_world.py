"""The router, the dispatcher and the core as in production, around encoders that misbehave on purpose."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gllm.core.batch import BatchResult, EncodeBatch, MicroBatch, SampledToken
from gllm.core.core_config import CoreConfig
from gllm.core.effects import RequestFailed, RequestFinished
from gllm.core.request import Request
from gllm.entrypoints.pixel_gate import PixelGate
from gllm.multimodal.errors import BadInput
from gllm.runtime.messages import (
    AbortRequest,
    AddRequest,
    CreditsShort,
    EncodingStarted,
    ItemFailed,
    ItemHash,
    PixelBatch,
    RankReady,
)
from rserve.core.arena import Arena
from rserve.core.dispatcher import Dispatcher
from rserve.core.epd_core import Scheme, make_core
from rserve.entrypoints.encoders import Encoders
from rserve.entrypoints.router import EncoderRouter, RouterSettings
from rserve.runtime.messages import BatchEncoded, BatchFailed, EncodeRequest, EncoderLost


@dataclass(frozen=True)
class Faults:
    """Chances for one encoder batch; a dropped one is neither sent nor acknowledged."""

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    fail: float = 0.0
    die: float = 0.0
    delay_s: float = 0.0


@dataclass
class Source:
    """Pixels of one request. slow: items that take that many seconds; broken: items that are corrupt."""

    request: Request
    slow: dict[int, float] = field(default_factory=dict)
    broken: frozenset[int] = frozenset()
    asked: list[int] = field(default_factory=list)
    is_released: bool = False

    async def pixels(self, item: int) -> np.ndarray:
        self.asked.append(item)
        await asyncio.sleep(self.slow.get(item, 0.0))
        assert not self.is_released
        if item in self.broken:
            raise BadInput("is corrupt", f"part {item}", 400, "bad_image")
        return np.full((28, 28, 3), item, np.uint8)

    async def digest(self, item: int) -> bytes:
        return f"{self.request.request_id}{item}".encode()

    async def release(self) -> None:
        self.is_released = True


class FaultyEncoder:
    """One encoder rank: writes into the arena, tells the driver, acknowledges; or misbehaves."""

    def __init__(self, world: "World", index: int, faults: Faults) -> None:
        self.world, self.index, self.faults = world, index, faults
        self.waiting: asyncio.Queue[EncodeRequest] = asyncio.Queue()
        self.task = asyncio.get_running_loop().create_task(self._run())

    def send(self, message: object, frames: Sequence[object] = ()) -> None:
        assert isinstance(message, EncodeRequest) and len(frames) == len(message.items)
        self.waiting.put_nowait(message)

    async def _run(self) -> None:
        held: list[EncodeRequest] = []
        while True:
            held.append(await self.waiting.get())
            await asyncio.sleep(self.faults.delay_s)
            chance = self.world.rng.random
            if chance() < self.faults.die:
                self.world.host.exit(self.index)
                return
            if chance() < self.faults.reorder and self.waiting.qsize():
                continue
            for message in reversed(held):
                self._serve(message, chance)
            held.clear()

    def _serve(self, message: EncodeRequest, chance: Callable[[], float]) -> None:
        world = self.world
        if chance() < self.faults.drop:
            return
        if chance() < self.faults.fail:
            world.router.on_message(BatchFailed(self.index, message.batch_id, "out of memory"))
            return
        for _ in range(2 if chance() < self.faults.duplicate else 1):
            for item, attempt, row, count in zip(
                message.items, message.attempts, message.rows, message.counts
            ):
                key = (message.request_id, item)
                world.arena[row : row + count] = [key] * count
                world.core.on_embeddings(message.request_id, item, attempt, _View(world.arena, row, key))
                world.carry_out()
            world.router.on_message(BatchEncoded(self.index, message.batch_id))


@dataclass(frozen=True)
class _View:
    """Rows of the arena that should hold one item's embedding."""

    arena: list[object]
    row: int
    key: object

    def check(self, start: int, length: int) -> None:
        found = self.arena[self.row + start : self.row + start + length]
        assert found == [self.key] * length, (self.key, found)


class Host:
    """Runs the encoders; a killed one exits, a started one is ready a moment later."""

    def __init__(self, world: "World", num_encoders: int, faults: Faults) -> None:
        self.world, self.num_encoders, self.faults = world, num_encoders, faults
        self.on_encoder_exit: Callable[[int], bool] = lambda index: True
        self.encoders: dict[int, FaultyEncoder] = {}
        self.starts = True

    def open(self) -> None:
        for index in range(self.num_encoders):
            self.encoders[index] = FaultyEncoder(self.world, index, self.faults)

    def start_encoder(self, index: int) -> None:
        if self.starts:
            asyncio.get_running_loop().call_later(0.005, self._ready, index)

    def kill_encoder(self, index: int) -> None:
        self.encoders[index].task.cancel()
        self.exit(index)

    def exit(self, index: int) -> None:
        asyncio.get_running_loop().call_soon(lambda: self.on_encoder_exit(index))

    def on_ready(self, message: RankReady) -> None:
        """Its inbox needs no address."""

    def outbox(self, name: str) -> FaultyEncoder:
        return self.encoders[int(name.removeprefix("encoder"))]

    def _ready(self, index: int) -> None:
        self.encoders[index] = FaultyEncoder(self.world, index, self.faults)
        self.world.router.on_message(RankReady(f"encoder{index}", 1))


class StageZero:
    """The pixel inbox of rank 0."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.batches: list[PixelBatch] = []

    def send(self, message: object, frames: Sequence[object] = ()) -> None:
        assert isinstance(message, PixelBatch)
        self.batches.append(message)
        self.world.core.on_pixels(message.request_id, message.items[0], message.attempts[0])


@dataclass
class Options:
    """How a world is set up."""

    num_encoders: int = 1
    rows: int = 64
    min_tokens: float = 4
    gate_bytes: int = 1 << 30
    max_restarts: int = 1000
    timeout_s: float = 0.05
    prefix_caching: bool = False
    fallback: bool = False
    num_blocks: int = 64
    scheme: str = "rserve"


class World:
    """One event loop with everything in it. Use `async with`; `ended` tells how requests ended."""

    def __init__(self, options: Options | None = None, faults: Faults | None = None, seed: int = 0) -> None:
        self.options = o = options or Options()
        self.rng = random.Random(seed)
        config = CoreConfig(o.num_blocks, 4, maxp=16, prefix_caching=o.prefix_caching)
        self.core = make_core(Scheme(o.scheme), config, fallback=o.fallback)
        self.arena: list[object] = [None] * o.rows
        self.host = Host(self, o.num_encoders, faults or Faults())
        self.stage_zero = StageZero(self)
        self.gate = PixelGate(o.gate_bytes)
        self.dispatcher = Dispatcher(Arena(o.rows), o.min_tokens)
        self.encoders = Encoders(self.host, o.timeout_s, o.max_restarts)
        settings = RouterSettings(o.prefix_caching, 14, self.stage_zero if o.fallback else None)  # type: ignore[arg-type]
        self.router = EncoderRouter(
            self,
            self.host,  # type: ignore[arg-type]
            self.encoders,
            self.dispatcher,
            self.gate,
            settings,
        )
        self.ended: dict[str, str | int] = {}
        self.sources: dict[str, Source] = {}
        self.messages: list[object] = []

    async def __aenter__(self) -> "World":
        self.host.open()
        self._tasks = [asyncio.create_task(self._drive()), asyncio.create_task(self._watch())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in (*self._tasks, *(encoder.task for encoder in self.host.encoders.values())):
            task.cancel()
        await self.router.close()

    # -- the driver port ---------------------------------------------------------------------------------

    def send(self, message: object) -> None:
        self.messages.append(message)
        match message:
            case AddRequest(request):
                self.core.on_request(request)
            case AbortRequest(request_id, reason):
                self.core.on_abort(request_id, reason)
            case ItemHash(request_id, item, digest):
                self.core.on_item_hash(request_id, item, digest)
            case ItemFailed(request_id, item, status, text):
                self.core.on_item_failed(request_id, item, status, text)
            case EncodingStarted(request_id):
                self.core.on_encoding(request_id)
            case CreditsShort(request_id):
                self.core.on_credits_short(request_id)
            case EncoderLost(_, items):
                self.core.on_encoder_lost(list(items))
        asyncio.get_running_loop().call_soon(self.carry_out)

    def fail_item(self, request_id: str, item: int, error: BadInput) -> None:
        self.ended.setdefault(request_id, error.status)
        self.send(ItemFailed(request_id, item, error.status, error.message))

    # -- what tests do -----------------------------------------------------------------------------------

    def ask(self, request: Request, **options: object) -> Source:
        source = Source(request, **options)  # type: ignore[arg-type]
        self.sources[request.request_id] = source
        self.send(AddRequest(request))
        self.router.add_request(request, source)
        return source

    def leave(self, request_id: str) -> None:
        """The client went away."""
        self.send(AbortRequest(request_id, "abort"))
        self.router.remove_request(request_id)

    async def until(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._check()
                await asyncio.sleep(0.001)
        self._check()

    def check_empty(self) -> None:
        assert not self.core.requests and self.core.pool.num_used == 0
        assert self.core.tracker.tokens_held == 0 and len(self.core.tracker) == 0
        assert self.dispatcher.arena.num_free == self.options.rows, self.dispatcher._reserved
        assert self.gate.num_bytes == 0 == self.gate.num_waiting
        assert all(source.is_released for source in self.sources.values())
        assert not self.router._requests and not self.dispatcher.requests

    def carry_out(self) -> None:
        """The driver's effects reach the router."""
        for effect in self.core.take_effects():
            match effect:
                case RequestFinished(request_id, reason):
                    self.ended.setdefault(request_id, reason)
                case RequestFailed(request_id, status):
                    self.ended.setdefault(request_id, status)
            self.router.on_message(effect)
            if effect.__class__ in (RequestFinished, RequestFailed):
                self.router.remove_request(effect.request_id)

    def _check(self) -> None:
        """A failed background task is a failed test."""
        encoders = (encoder.task for encoder in self.host.encoders.values())
        for task in (*self._tasks, *encoders):
            if task.done() and not task.cancelled():
                task.result()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(0.01)
            self.encoders.kill_stalled()

    async def _drive(self) -> None:
        while True:
            work = self.core.step()
            match work:
                case MicroBatch():
                    for rows in work.embeds:
                        if rows.payload.__class__ is _View:
                            rows.payload.check(rows.start, rows.length)  # type: ignore[attr-defined]
                    tokens = [
                        SampledToken(t.seq_id, t.request_id, t.choice, t.position, 7)
                        for sample in work.samples
                        for t in sample.targets
                    ]
                    self.carry_out()
                    self.core.on_batch_done(BatchResult(work.batch_id, tuple(tokens)))
                case EncodeBatch():
                    for item, attempt in zip(work.items, work.attempts):
                        self.core.on_embeddings(work.request_id, item, attempt, "stage 0")
            self.carry_out()
            await asyncio.sleep(0 if work is not None else 0.001)
