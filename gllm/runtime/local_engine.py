"""Drives a core in one process: the real core, ranks and kernels, without sockets and processes."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gllm.core.batch import BatchResult, EncodeBatch, MicroBatch, SampledToken
from gllm.core.effects import Effect, EncodeItems, RequestFailed, RequestFinished
from gllm.core.request import Request
from gllm.runtime.executor import DrivenCore, Executor
from gllm.runtime.pixel_store import PixelStore

Pixels = NDArray[np.uint8]


class ItemFeed(Protocol):
    """Stands for API server and item executors: gets items encoded when the core asks."""

    def add(self, request: Request, pixels: Sequence[Pixels]) -> None:
        """A request was given to the core; its items have these pixels."""
        ...

    def on_effect(self, effect: Effect) -> None:
        """The core wants something done."""
        ...

    def advance(self) -> bool:
        """Do one piece of work and tell the core; False when there is none."""
        ...


class StageZeroFeed:
    """Pixels go to stage 0, which encodes them when the core says so (scheme gllm).

    digest: content hash of pixels, given with prefix caching; items then wait for the core's lookup.
    """

    def __init__(
        self, core: DrivenCore, store: PixelStore, digest: Callable[[Pixels], bytes] | None = None
    ) -> None:
        self._core = core
        self._store = store
        self._digest = digest
        self._pixels: dict[str, Sequence[Pixels]] = {}

    def add(self, request: Request, pixels: Sequence[Pixels]) -> None:
        """Without prefix caching all pixels are there at once."""
        self._pixels[request.request_id] = pixels
        self._store.begin(request.request_id)
        for item, picture in enumerate(pixels):
            if self._digest is not None:
                self._core.on_item_hash(request.request_id, item, self._digest(picture))
            else:
                self._send(request.request_id, item, 0)

    def on_effect(self, effect: Effect) -> None:
        """Send the pixels of items that must be encoded; forget those of requests that ended."""
        match effect:
            case EncodeItems(request_id, items, attempts):
                for item, attempt in zip(items, attempts):
                    self._send(request_id, item, attempt)
            case RequestFinished(request_id) | RequestFailed(request_id):
                self._pixels.pop(request_id, None)
                self._store.end(request_id)

    def advance(self) -> bool:
        """Stage 0 encodes on the core's decision, not here."""
        return False

    def _send(self, request_id: str, item: int, attempt: int) -> None:
        if request_id in self._pixels and self._store.put(request_id, item, self._pixels[request_id][item]):
            self._core.on_pixels(request_id, item, attempt)


@dataclass(slots=True)
class Output:
    """What became of a request: tokens of each choice in order, why it ended, or its error."""

    tokens: dict[int, list[SampledToken]] = field(default_factory=dict)
    finish: RequestFinished | None = None
    failure: RequestFailed | None = None

    def token_ids(self, choice: int = 0) -> list[int]:
        """Ids of the tokens of one choice."""
        return [token.token_id for token in self.tokens.get(choice, [])]


class LocalEngine:
    """Core and executor in a loop. Results come back late, so that micro-batches overlap as in a pipeline.

    delay: results held back while the core has more to dispatch; the oldest is delivered when more than
    this many are held, or when the core has nothing to do (None: only then).
    on_work: called with each decision before it is carried out.
    """

    def __init__(
        self,
        core: DrivenCore,
        executor: Executor,
        feed: ItemFeed,
        delay: int | None = None,
        on_work: Callable[[MicroBatch | EncodeBatch], None] = lambda work: None,
    ) -> None:
        self.core = core
        self._executor = executor
        self._feed = feed
        self._delay = delay
        self._on_work = on_work
        self._held: deque[BatchResult] = deque()
        self._requests: dict[str, Request] = {}
        self.outputs: dict[str, Output] = {}

    def add(self, request: Request, pixels: Sequence[Pixels] = ()) -> None:
        """Give a request to the core, and the pixels of its items to the feed."""
        self._requests[request.request_id] = request
        self.outputs[request.request_id] = Output()
        self.core.on_request(request)
        self._feed.add(request, pixels)
        self._effects()

    def abort(self, request_id: str) -> None:
        """Nobody waits for this request any more."""
        self.core.on_abort(request_id)
        self._effects()

    def run(self) -> dict[str, Output]:
        """Until every request ended. Raises RuntimeError when nothing can go on although requests wait."""
        while self.core.has_work or self._held:
            self.advance()
        return self.outputs

    def advance(self) -> None:
        """One decision and its execution, or one result."""
        self._feed.advance()
        work = self.core.step()
        if work is None:
            self._effects()
            if not self._deliver() and not self._feed.advance():
                raise RuntimeError(f"the engine is stuck, its requests wait for {self.core.waits()}")
        elif isinstance(work, MicroBatch):
            self._on_work(work)
            self._run(work)
        else:
            self._on_work(work)
            self._encode(work)
        if self._delay is not None and len(self._held) > self._delay:
            self._deliver()
        self._effects()

    def _run(self, batch: MicroBatch) -> None:
        result = self._executor.submit(
            batch, lambda seq_id: self.core.sequences[seq_id].token_ids, self._effects
        )
        if result is None:
            raise RuntimeError("this executor's results come another way: use a driver")
        self._held.append(result)

    def _encode(self, batch: EncodeBatch) -> None:
        items = self._requests[batch.request_id].items
        payloads = self._executor.encode(batch, [items[index] for index in batch.items])
        for index, attempt, payload in zip(batch.items, batch.attempts, payloads):
            self.core.on_embeddings(batch.request_id, index, attempt, payload)

    def _deliver(self) -> bool:
        if not self._held:
            return False
        result = self._held.popleft()
        for token in result.tokens:
            request = self._requests[token.request_id]
            tokens = self.outputs[token.request_id].tokens.setdefault(token.choice, [])
            if token.position == len(request.token_ids) + len(tokens):
                tokens.append(token)
        self.core.on_batch_done(result)
        return True

    def _effects(self) -> None:
        for effect in self.core.take_effects():
            match effect:
                case RequestFinished(request_id):
                    self.outputs[request_id].finish = effect
                case RequestFailed(request_id):
                    self.outputs[request_id].failure = effect
            self._feed.on_effect(effect)
