"""A world without time for the core: events happen in random order, and every rule is checked at each one."""

import random
from collections import deque
from dataclasses import dataclass, field

from gllm.core.batch import BatchResult, EncodeBatch, MicroBatch, SampledToken
from gllm.core.core_config import CoreConfig
from gllm.core.effects import EncodeItems, ItemReleased, RequestFailed, RequestFinished, SkipItems
from gllm.core.request import MMItem, Request, SamplingParams
from rserve.core.arena import Arena
from rserve.core.dispatcher import Dispatch, Dispatcher
from rserve.core.epd_core import Scheme, make_core


@dataclass
class Setup:
    """What a world is made of."""

    scheme: str = "rserve"
    intra_reading: str = "serial"
    num_blocks: int = 64
    block_size: int = 4
    num_stages: int = 2
    max_in_flight: int = 3
    maxp: int = 16
    method: str = "chunked_prefill"
    prefix_caching: bool = False
    min_tokens: float = 8
    encoders: int = 1
    arena: int = 64
    fallback: bool = False
    kvthresh: float = 0.05


@dataclass
class World:
    """Drives an EngineCore and a Dispatcher by hand or at random; asserts the invariants of the design."""

    setup: Setup
    outputs: dict[str, dict[int, list[int]]] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    batches: list[MicroBatch] = field(default_factory=list)

    def __post_init__(self) -> None:
        s = self.setup
        config = CoreConfig(
            num_blocks=s.num_blocks,
            block_size=s.block_size,
            num_stages=s.num_stages,
            max_in_flight=s.max_in_flight,
            schedule_method=s.method,
            maxp=s.maxp,
            maxd=s.maxp,
            minp=4,
            iterp=2,
            kvthresh=s.kvthresh,
            prefix_caching=s.prefix_caching,
            encode_tokens=32,
            embedding_tokens=64,
        )
        scheme = Scheme(s.scheme, s.intra_reading)
        self.epd = scheme.has_encoder_ranks
        self.core = make_core(scheme, config, fallback=s.fallback)
        self.dispatcher = Dispatcher(Arena(s.arena), scheme.batch_tokens(s.min_tokens))
        if self.epd:
            for index in range(s.encoders):
                self.dispatcher.on_encoder_ready(index)
        self.pipeline: deque[MicroBatch] = deque()
        self.at_encoder: deque[Dispatch] = deque()
        self.landing: deque[tuple[str, int, int, range]] = deque()
        self.fetching: list[tuple[str, int]] = []
        self.requests: dict[str, Request] = {}
        self.dispatched: dict[int, int] = {}
        self.lost_encoders: list[int] = []
        self.had_pixels: set[tuple[str, int]] = set()
        self.local_needed: list[tuple[str, int, int]] = []
        self.has_released = False

    # -- events --------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.outputs[request.request_id] = {}
        self.core.on_request(request)
        self.fetching += [(request.request_id, item) for item in range(len(request.items))]
        if self.epd and request.items:
            self.dispatcher.add(request.request_id, request.items, ordered=not self.setup.prefix_caching)
        elif not self.setup.prefix_caching:
            self.local_needed += [(request.request_id, item, 0) for item in range(len(request.items))]
        self.carry_out()

    def fetch(self, which: int = 0) -> None:
        """The pixels of one item arrive; with prefix caching, first its hash."""
        request_id, item = self.fetching.pop(which)
        if self.setup.prefix_caching:
            self.core.on_item_hash(request_id, item, b"%d" % (self.requests[request_id].items[item].grid[0]))
            self.carry_out()
        self.had_pixels.add((request_id, item))
        if self.epd:
            self.dispatcher.on_pixels(request_id, item)
        self.carry_out()

    def encode(self) -> None:
        """An encoder finishes its oldest batch; its embeddings are on their way."""
        done = self.at_encoder.popleft()
        self.dispatcher.on_encoded(done.encoder, done.batch_id)
        for item, attempt, row in zip(done.items, done.attempts, done.rows):
            n = self.requests[done.request_id].items[item].num_tokens
            self.landing.append((done.request_id, item, attempt, range(row, row + n)))
        self.carry_out()

    def land(self) -> None:
        """One embedding reaches the driver."""
        self.core.on_embeddings(*self.landing.popleft())
        self.carry_out()

    def lose_encoder(self, index: int) -> None:
        items = self.dispatcher.on_encoder_lost(index)
        self.at_encoder = deque(d for d in self.at_encoder if d.encoder != index)
        self.lost_encoders.append(index)
        self.core.on_encoder_lost(items)
        self.carry_out()

    def restart_encoder(self) -> None:
        self.dispatcher.on_encoder_ready(self.lost_encoders.pop())
        self.carry_out()

    def abort(self, request_id: str) -> None:
        self.core.on_abort(request_id)
        self.carry_out()

    def finish_batch(self) -> None:
        """The oldest micro-batch leaves the last stage; token 7 is sampled everywhere."""
        batch = self.pipeline.popleft()
        tokens = []
        for sample in batch.samples:
            for t in sample.targets:
                tokens.append(SampledToken(t.seq_id, t.request_id, t.choice, t.position, 7))
                outputs = self.outputs[t.request_id].setdefault(t.choice, [])
                if t.request_id not in self.ended and t.position == len(
                    self.requests[t.request_id].token_ids
                ) + len(outputs):
                    outputs.append(7)
        self.core.on_batch_done(BatchResult(batch.batch_id, tuple(tokens)))
        self.carry_out()

    def step(self) -> bool:
        """One decision of the core; False when it has nothing to do, and gives nothing up for others."""
        self.has_released = False
        work = self.core.step()
        if isinstance(work, EncodeBatch):
            for item, attempt in zip(work.items, work.attempts):
                n = self.requests[work.request_id].items[item].num_tokens
                assert self.core.on_embeddings(work.request_id, item, attempt, range(n))
        elif work is not None:
            self.check(work)
            self.pipeline.append(work)
            self.batches.append(work)
        self.carry_out()
        return work is not None or self.has_released

    def carry_out(self) -> None:
        """Effects of the core, dispatches of the dispatcher."""
        for effect in self.core.take_effects():
            match effect:
                case EncodeItems(request_id, items, attempts):
                    self.dispatcher.need(request_id, dict(zip(items, attempts)))
                    self.local_needed += [(request_id, i, a) for i, a in zip(items, attempts)]
                case SkipItems(request_id, items):
                    self.dispatcher.skip(request_id, items)
                case ItemReleased(request_id, item, attempt):
                    self.dispatcher.on_released(request_id, item, attempt)
                    self.has_released = True
                case RequestFinished(request_id, reason):
                    self.dispatcher.remove(request_id)
                    self.ended[request_id] = reason
                case RequestFailed(request_id, _, message):
                    self.ended[request_id] = message
        self.fetching = [(r, i) for r, i in self.fetching if r not in self.ended]
        if self.epd:
            self.at_encoder += self.dispatcher.dispatch()
            if self.dispatcher.short:
                self.core.on_credits_short(self.dispatcher.short)
        if not self.epd:
            self.ship_to_stage_zero()
        elif self.setup.fallback and not self.dispatcher.encoders:
            for key in self.dispatcher.take_queued():
                self.core.on_pixels(*key)
        assert 0 <= self.dispatcher.arena.num_free <= self.setup.arena

    def ship_to_stage_zero(self) -> None:
        waiting, self.local_needed = self.local_needed, []
        for request_id, item, attempt in waiting:
            if request_id in self.ended:
                continue
            if (request_id, item) in self.had_pixels:
                self.core.on_pixels(request_id, item, attempt)
            else:
                self.local_needed.append((request_id, item, attempt))

    # -- rules -----------------------------------------------------------------------------------------

    def check(self, batch: MicroBatch) -> None:
        """What must hold of every micro-batch."""
        decodes = sum(1 for c in batch.chunks[: batch.num_decodes] if c.length == 1)
        assert decodes == batch.num_decodes
        limit = self.setup.maxp * (2 if self.setup.method == "token_throttling" else 1)
        assert 0 < batch.num_tokens == sum(c.length for c in batch.chunks) <= limit
        assert self.core.in_flight <= self.setup.max_in_flight
        for seq_id in batch.finished:
            self.dispatched.pop(seq_id, None)
        fresh = {new.seq_id for new in batch.new}
        covered = {row for e in batch.embeds for row in range(e.row, e.row + e.length)}
        row = 0
        for chunk in batch.chunks:
            seq = self.core.sequences[chunk.seq_id]
            expected = self.dispatched.get(chunk.seq_id, 0)
            if chunk.seq_id in fresh:
                assert chunk.start == seq.num_cached or seq.choice > 0
            else:
                assert chunk.start == expected
            self.dispatched[chunk.seq_id] = chunk.end
            assert len(seq.block_table) * self.setup.block_size >= chunk.end
            for item in seq.items:
                for position in range(max(chunk.start, item.offset), min(chunk.end, item.end)):
                    assert row + position - chunk.start in covered
            row += chunk.length
        used = [b for s in self.core.residency.holders.values() for b in s.block_table]
        if not self.setup.prefix_caching and all(len(o) <= 1 for o in self.outputs.values()):
            assert len(used) == len(set(used))

    def check_empty(self) -> None:
        """Nothing is left behind when everything has ended."""
        assert not self.core.requests and not self.core.sequences and not self.core.residency.holders
        assert self.core.pool.num_free == self.setup.num_blocks
        assert self.core.tracker.tokens_held == 0 and not self.core.tracker.entries
        assert self.dispatcher.arena.num_free == self.setup.arena, self.dispatcher._reserved
        assert self.core.scheduler.waiting_tokens == 0
        assert not self.core.residency.decoding and not self.core.kv._keys

    # -- whole runs --------------------------------------------------------------------------------------

    def run(
        self, requests: list[Request], rng: random.Random, aborts: float = 0.0, losses: float = 0.0
    ) -> None:
        """Let everything happen in random order until all requests ended and all is quiet."""
        todo = deque(requests)
        for _ in range(200_000):
            if rng.random() < aborts and self.core.requests:
                self.abort(rng.choice(list(self.core.requests)))
            if self.epd and rng.random() < losses and self.dispatcher.encoders:
                self.lose_encoder(rng.choice(list(self.dispatcher.encoders)))
            events = [self.step_event]
            if todo:
                events.append(lambda: self.add(todo.popleft()))
            if self.fetching:
                events.append(lambda: self.fetch(rng.randrange(len(self.fetching))))
            if self.at_encoder:
                events.append(self.encode)
            if self.landing:
                events.append(self.land)
            if self.pipeline:
                events.append(self.finish_batch)
            if self.lost_encoders and not self.setup.fallback:
                events.append(self.restart_encoder)
            rng.choice(events)()
            if len(events) == 1 and not self.pipeline and not self.step() and not self.at_encoder:
                break
        assert not self.core.requests, self.core.waits()
        assert not todo

    def step_event(self) -> None:
        self.step()


def make_request(name: str, layout: list[int], max_tokens: int = 1, n: int = 1, content: int = 1) -> Request:
    """layout: lengths, positive for text and negative for an image, in prompt order."""
    items, offset = [], 0
    for length in layout:
        if length < 0:
            items.append(MMItem(offset, -length, (content + len(items), 1, 1)))
        offset += abs(length)
    sampling = SamplingParams(max_tokens=max_tokens, n=n)
    return Request(name, tuple(range(offset)), tuple(items), sampling)
