"""Hands encoder batches to encoders: first come, first served among batches whose pixels are there.

Pure: the API server (or the simulator) feeds it events and carries out the dispatches it returns.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from gllm.core.request import MMItem
from rserve.core.arena import Arena
from rserve.core.batcher import encoder_batches

Key = tuple[str, int, int]
"""(request id, item, attempt): one embedding."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One encoder batch: items of one request, and the arena row where each embedding begins."""

    batch_id: int
    encoder: int
    request_id: str
    items: tuple[int, ...]
    attempts: tuple[int, ...]
    rows: tuple[int, ...]
    num_tokens: int
    is_first: bool


@dataclass(eq=False, slots=True)
class Batch:
    """Items of a job that are encoded together; `missing` lack pixels or the order to encode them."""

    items: list[int]
    missing: set[int]
    sent: bool = False


@dataclass(eq=False, slots=True)
class Job:
    """Items of one request to encode in one go: all of them on arrival, or some again later."""

    request_id: str
    arrival: int
    attempts: dict[int, int]
    batches: list[Batch]
    rows: dict[int, int] = field(default_factory=dict)
    home: int | None = None
    over: bool = False


@dataclass(eq=False, slots=True)
class Known:
    """A request in the dispatcher: its items, whose pixels are there, and its jobs."""

    arrival: int
    items: tuple[MMItem, ...]
    pixels: set[int] = field(default_factory=set)
    ordered: set[int] = field(default_factory=set)
    place: dict[int, tuple[Job, Batch]] = field(default_factory=dict)
    started: bool = False


Entry = tuple[int, int, int, Job, Batch]
"""(arrival, first item, serial number, job, batch): a batch in a queue."""


@dataclass(eq=False, slots=True)
class Encoder:
    """An encoder rank: its batches that are not done, and the queue of batches meant for it."""

    outstanding: dict[int, Dispatch] = field(default_factory=dict)
    queue: list[Entry] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(d.num_tokens for d in self.outstanding.values())


class Dispatcher:
    """Algorithm 1's batches, encoders, and the embedding memory (credits).

    min_tokens: C. depth: batches an encoder may have at once, so that it never waits for pixels.
    A request's embeddings are reserved as a whole before its first item is dispatched, so that no set
    of requests can deadlock. A request stays with the encoder that had the fewest tokens to encode;
    an encoder with nothing to do takes batches of other encoders' requests.
    """

    def __init__(self, arena: Arena, min_tokens: float, depth: int = 2) -> None:
        self.arena = arena
        self.min_tokens = min_tokens
        self.depth = depth
        self.encoders: dict[int, Encoder] = {}
        self.requests: dict[str, Known] = {}
        self.short: str | None = None
        self._reserved: dict[Key, tuple[int, int]] = {}
        self._queue: list[Entry] = []
        self._homeless: list[Entry] = []
        self._order = 0
        self._next_batch_id = 0

    # -- events ----------------------------------------------------------------------------------------

    def on_encoder_ready(self, encoder: int) -> None:
        """An encoder (again) waits for work."""
        self.encoders[encoder] = Encoder()

    def on_encoder_lost(self, encoder: int) -> list[Key]:
        """An encoder is dead and reaped. Returns what it had; the core asks for it again."""
        lost = self.encoders.pop(encoder, None)
        if lost is None:
            return []
        for _, _, _, job, batch in lost.queue:
            job.home = None
            self._enqueue(job, batch)
        return [
            (d.request_id, item, attempt)
            for d in lost.outstanding.values()
            for item, attempt in zip(d.items, d.attempts)
        ]

    def add(self, request_id: str, items: tuple[MMItem, ...], ordered: bool) -> None:
        """A new request. ordered: encode all items; else each waits for `need` or `skip` (prefix caching)."""
        known = Known(self._order, items)
        self._order += 1
        self.requests[request_id] = known
        everything = dict.fromkeys(range(len(items)), 0)
        if ordered:
            known.ordered.update(everything)
        self._new_job(request_id, known, everything)

    def on_pixels(self, request_id: str, item: int) -> None:
        """An item's pixels are here, until `on_pixels_dropped`."""
        known = self.requests.get(request_id)
        if known is not None:
            known.pixels.add(item)
            self._settle(known, item)

    def on_pixels_dropped(self, request_id: str, item: int) -> None:
        """An item's pixels are gone: a later attempt waits until they are here again."""
        known = self.requests.get(request_id)
        if known is not None:
            known.pixels.discard(item)

    def need(self, request_id: str, attempts: dict[int, int]) -> None:
        """The core wants these items (index → attempt) encoded."""
        known = self.requests.get(request_id)
        if known is None:
            return
        first = {item for item, attempt in attempts.items() if attempt == 0}
        known.ordered |= first
        for item in first:
            self._settle(known, item)
        again = {item: attempt for item, attempt in attempts.items() if attempt > 0}
        if again:
            self._withdraw(request_id, known, again)
            known.ordered.update(again)
            self._new_job(request_id, known, again)

    def skip(self, request_id: str, items: Seq[int]) -> None:
        """These items need no encoding (any more), if they have not gone to an encoder."""
        known = self.requests.get(request_id)
        if known is not None:
            self._withdraw(request_id, known, items)

    def on_released(self, request_id: str, item: int, attempt: int) -> None:
        """The driver is done with an embedding: its rows are free. A second release does nothing."""
        rows = self._reserved.pop((request_id, item, attempt), None)
        if rows is not None:
            self.arena.release(*rows)
            self.short = None

    def on_encoded(self, encoder: int, batch_id: int) -> None:
        """An encoder finished a batch and has room for another."""
        if encoder in self.encoders:
            self.encoders[encoder].outstanding.pop(batch_id, None)

    def on_failed(self, encoder: int, batch_id: int) -> None:
        """An encoder could not encode a batch: its rows hold nothing."""
        if encoder in self.encoders:
            lost = self.encoders[encoder].outstanding.pop(batch_id, None)
            if lost is not None:
                for item, attempt in zip(lost.items, lost.attempts):
                    self.on_released(lost.request_id, item, attempt)

    def remove(self, request_id: str) -> None:
        """A request ended. Rows of items at an encoder return when the driver releases them."""
        known = self.requests.pop(request_id, None)
        if known is None:
            return
        for item, (job, batch) in known.place.items():
            job.over = True
            if not batch.sent:
                self.on_released(request_id, item, job.attempts[item])
        if self.short == request_id:
            self.short = None

    # -- decisions ---------------------------------------------------------------------------------------

    def dispatch(self) -> list[Dispatch]:
        """Batches to send now, in order. Call it after every event."""
        sent: list[Dispatch] = []
        while True:
            self._route()
            for _, index in sorted(
                (e.tokens, i) for i, e in self.encoders.items() if len(e.outstanding) < self.depth
            ):
                found = self._next_for(index)
                if found is not None:
                    sent.append(self._send(index, *found))
                    break
            else:
                return sent

    def take_queued(self) -> list[Key]:
        """All batches that could go now, for another item executor (no encoder rank is left)."""
        taken: list[Key] = []
        for queue in (self._homeless, self._queue):
            while _peek(queue) is not None:
                _, _, _, job, batch = heappop(queue)
                batch.sent = True
                for item in batch.items:
                    self.on_released(job.request_id, item, job.attempts[item])
                    taken.append((job.request_id, item, job.attempts[item]))
        return taken

    @property
    def outstanding_tokens(self) -> int:
        return sum(encoder.tokens for encoder in self.encoders.values())

    @property
    def num_queued(self) -> int:
        """Batches whose pixels are there and that no encoder has."""
        queues = (self._queue, self._homeless, *(encoder.queue for encoder in self.encoders.values()))
        return sum(
            not entry[3].over and not entry[4].sent and bool(entry[4].items)
            for queue in queues
            for entry in queue
        )

    def can_ever_fit(self, num_tokens: int) -> bool:
        """True when a request with that many embeddings can be served at all."""
        return num_tokens <= self.arena.capacity

    # -- inside --------------------------------------------------------------------------------------------

    def _route(self) -> None:
        """Batches of a job that has an encoder wait for that one."""
        while (entry := _peek(self._queue)) is not None and entry[3].home is not None:
            heappop(self._queue)
            self._enqueue(entry[3], entry[4])

    def _next_for(self, index: int) -> tuple[Job, Batch] | None:
        """The oldest batch for an encoder: its own, a lost encoder's, a new request's, or another's.

        A batch without memory never stands before one that has some: it may wait for it.
        """
        mine = min((self.encoders[index].queue, self._homeless), key=_top)
        if _top(self._queue) < _top(mine) and self._reserve(self._queue[0][3]):
            mine = self._queue
        if not mine and not self.encoders[index].outstanding:
            mine = self._richest(index)
        if not mine:
            return None
        _, _, _, job, batch = heappop(mine)
        if job.home not in self.encoders:
            job.home = index
        return job, batch

    def _richest(self, index: int) -> list[Entry]:
        """The queue of the busiest other encoder, from which this idle one may take a batch."""
        others = [e for i, e in self.encoders.items() if i != index and e.outstanding and _peek(e.queue)]
        return max(others, key=lambda e: e.tokens).queue if others else []

    def _reserve(self, job: Job) -> bool:
        """Reserve memory for all items of a job; while the first in line lacks it, nobody else gets any."""
        if job.rows:
            return True
        if self.short is not None:
            return False
        known = self.requests[job.request_id]
        items = [item for batch in job.batches for item in batch.items]
        rows = self.arena.reserve([known.items[item].num_tokens for item in items])
        if rows is None:
            self.short = job.request_id
            return False
        for item, row in zip(items, rows):
            job.rows[item] = row
            key = (job.request_id, item, job.attempts[item])
            self._reserved[key] = (row, known.items[item].num_tokens)
        return True

    def _send(self, index: int, job: Job, batch: Batch) -> Dispatch:
        known = self.requests[job.request_id]
        batch.sent = True
        dispatch = Dispatch(
            batch_id=self._next_batch_id,
            encoder=index,
            request_id=job.request_id,
            items=tuple(batch.items),
            attempts=tuple(job.attempts[item] for item in batch.items),
            rows=tuple(job.rows[item] for item in batch.items),
            num_tokens=sum(known.items[item].num_tokens for item in batch.items),
            is_first=not known.started,
        )
        known.started = True
        self._next_batch_id += 1
        self.encoders[index].outstanding[dispatch.batch_id] = dispatch
        return dispatch

    def _new_job(self, request_id: str, known: Known, attempts: dict[int, int]) -> None:
        sized = [(item, known.items[item].num_tokens) for item in sorted(attempts)]
        job = Job(request_id, known.arrival, attempts, [])
        for items in encoder_batches(sized, self.min_tokens):
            missing = {item for item in items if item not in known.pixels or item not in known.ordered}
            job.batches.append(Batch(items, missing))
            known.place.update(dict.fromkeys(items, (job, job.batches[-1])))
        for batch in job.batches:
            if not batch.missing:
                self._enqueue(job, batch)

    def _settle(self, known: Known, item: int) -> None:
        """An item got its pixels or its order: its batch may be complete now."""
        job, batch = known.place[item]
        if item in batch.missing and item in known.pixels and item in known.ordered:
            batch.missing.discard(item)
            if not batch.missing:
                self._enqueue(job, batch)

    def _withdraw(self, request_id: str, known: Known, items: Iterable[int]) -> None:
        """Take items out of batches that have not been sent; their memory returns."""
        for item in items:
            job, batch = known.place[item]
            if item in batch.items and not batch.sent:
                self.on_released(request_id, item, job.attempts[item])
                batch.items.remove(item)
                if batch.missing == {item} and batch.items:
                    self._enqueue(job, batch)
                batch.missing.discard(item)
        if self.short == request_id:
            self.short = None

    def _enqueue(self, job: Job, batch: Batch) -> None:
        queue = self._homeless if job.rows else self._queue
        if job.home is not None and job.home in self.encoders:
            queue = self.encoders[job.home].queue
        heappush(queue, (job.arrival, batch.items[0], self._tick(), job, batch))

    def _tick(self) -> int:
        self._order += 1
        return self._order


def _peek(queue: list[Entry]) -> Entry | None:
    """The first batch of a queue that still has something to encode."""
    while queue:
        _, _, _, job, batch = queue[0]
        if not job.over and batch.items and not batch.sent:
            return queue[0]
        heappop(queue)
    return None


def _top(queue: list[Entry]) -> tuple[float, float]:
    """Arrival and first item of a queue's first batch; infinite when it is empty."""
    entry = _peek(queue)
    return (inf, inf) if entry is None else entry[:2]
