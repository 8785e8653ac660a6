"""The item router of the EPD schemes: pixels go to encoder ranks, batch by batch."""

import asyncio
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gllm.core.effects import EncodeItems, ItemReleased, RequestFailed, RequestFinished, SkipItems
from gllm.core.request import Request
from gllm.entrypoints.errors import ApiError, too_many_embeddings
from gllm.entrypoints.pixel_gate import PixelGate
from gllm.entrypoints.ports import DriverPort, PixelSource
from gllm.entrypoints.routed import Routed, RoutedRequests, or_fail
from gllm.entrypoints.router_load import Distribution, RouterLoad
from gllm.multimodal.errors import BadInput
from gllm.runtime.channels import Outbox
from gllm.runtime.messages import CreditsShort, EncodingStarted, ItemHash, PixelBatch, RankReady
from rserve.core.dispatcher import Dispatch, Dispatcher
from rserve.entrypoints.encoders import EncoderHost, Encoders
from rserve.runtime.deployment import encoder_index, encoder_name
from rserve.runtime.messages import BatchEncoded, BatchFailed, EncodeRequest, EncoderLost, EncoderWorks

Pixels = NDArray[np.uint8]
CHECK_EVERY_S = 0.5
RETRY_AFTER_S = 60
MAX_LOSSES = 3
NO_ENCODER = "no encoder is left to encode images: send text, or try again in some minutes"
BATCH_TOKENS = (16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384)


@dataclass(eq=False, slots=True)
class Encoded(Routed):
    """A request whose items encoders encode.

    wanted: items that have to be encoded, with the attempt; all of them at first. pixels: decoded items,
    until an encoder has acknowledged them. fetching: items whose pixels are under way. losses: encoders that
    died while they had some of it.
    """

    wanted: dict[int, int] = field(default_factory=dict)
    pixels: dict[int, Pixels] = field(default_factory=dict)
    fetching: set[int] = field(default_factory=set)
    losses: int = 0


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """prefix_caching: hashes go first. fallback: the socket to stage 0's pixels, where stage 0 can encode."""

    prefix_caching: bool
    patch_size: int
    fallback: Outbox | None = None


class EncoderRouter:
    """Carries out what the pure dispatcher decides.

    Items are fetched and decoded concurrently; a batch goes to an encoder when its pixels are there,
    while later items of its request are still being fetched. When no encoder is left, stage 0 encodes
    (fallback) or the requests concerned end with a 503.
    """

    def __init__(
        self,
        port: DriverPort,
        host: EncoderHost,
        encoders: Encoders,
        dispatcher: Dispatcher,
        gate: PixelGate,
        settings: RouterSettings,
    ) -> None:
        self._port, self._host, self._encoders = port, host, encoders
        self._dispatcher, self._gate, self._settings = dispatcher, gate, settings
        self._requests: RoutedRequests[Encoded] = RoutedRequests(gate)
        self._batches: dict[int, Dispatch] = {}
        self._short: str | None = None
        self._sizes = Distribution(BATCH_TOKENS)
        self._watch: asyncio.Task[None] | None = None
        encoders.on_lost = self._on_lost
        for index in encoders.states:
            dispatcher.on_encoder_ready(index)

    # -- the item router protocol ------------------------------------------------------------------------

    def check(self, request: Request) -> None:
        """Refuse what can't be served before anything is queued: too large (400), or no encoder (503)."""
        if not self._dispatcher.can_ever_fit(request.num_mm_tokens):
            raise too_many_embeddings(request, self._dispatcher.arena.capacity)
        if self._encoders.are_gone and self._settings.fallback is None:
            raise ApiError(503, NO_ENCODER, code="no_encoder", retry_after=RETRY_AFTER_S)

    def add_request(self, request: Request, source: PixelSource) -> None:
        if self._watch is None:
            self._watch = asyncio.create_task(self._watch_encoders())
        routed = Encoded(request, source, wanted=dict.fromkeys(range(len(request.items)), 0))
        self._requests.add(routed)
        self._dispatcher.add(request.request_id, request.items, ordered=not self._settings.prefix_caching)
        routed.run(self._bring(routed))

    def on_message(self, message: object) -> None:
        match message:
            case BatchEncoded(encoder, batch_id):
                self._on_encoded(encoder, batch_id)
            case EncoderWorks(encoder):
                self._encoders.on_progress(encoder)
            case ItemReleased(request_id, item, attempt):
                self._dispatcher.on_released(request_id, item, attempt)
                self._leave_gate(request_id, item)
                self._short = None  # what came free may not be enough: the driver is told again
            case EncodeItems(request_id, items, attempts):
                self._on_wanted(request_id, dict(zip(items, attempts)))
            case SkipItems(request_id, items):
                self._dispatcher.skip(request_id, items)
                for item in items:
                    self._drop(request_id, item)
            case RequestFinished(request_id) | RequestFailed(request_id):
                self._dispatcher.remove(request_id)
            case BatchFailed():
                self._on_failed(message)
            case RankReady() if (index := encoder_index(message)) is not None:
                self._host.on_ready(message)
                if self._encoders.on_ready(index):
                    self._dispatcher.on_encoder_ready(index)
        self._dispatch()

    def remove_request(self, request_id: str) -> None:
        if self._requests.end(request_id):
            self._dispatcher.remove(request_id)
            self._dispatch()

    async def close(self) -> None:
        await self._requests.close()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)

    def load(self) -> RouterLoad:
        """Queues, memory and encoders, for /metrics."""
        dispatcher, states = self._dispatcher, self._encoders.states.values()
        gauges = {
            "requests_with_images": len(self._requests),
            "images_fetching": sum(len(routed.fetching) for routed in self._requests),
            "pixel_bytes": self._gate.num_bytes,
            "pixel_requests_waiting": self._gate.num_waiting,
            "encoder_queue_batches": dispatcher.num_queued,
            "encoder_outstanding_tokens": dispatcher.outstanding_tokens,
            "embedding_rows": dispatcher.arena.capacity,
            "embedding_rows_reserved": dispatcher.arena.capacity - dispatcher.arena.num_free,
            "encoders_alive": sum(state.alive for state in states),
        }
        counters = {"encoder_losses": sum(state.num_losses for state in states)}
        return RouterLoad(gauges, counters, {"encode_batch_tokens": self._sizes})

    # -- pixels ------------------------------------------------------------------------------------------

    async def _bring(self, routed: Encoded) -> None:
        """Fetch all items of a new request, once there is room for their pixels."""
        sizes = {i: self._num_bytes(item.grid) for i, item in enumerate(routed.request.items)}
        await self._requests.enter(routed, sizes)
        for item in sizes:
            self._fetch(routed, item, with_hash=self._settings.prefix_caching)

    def _fetch(self, routed: Encoded, item: int, with_hash: bool) -> None:
        """Have an item's pixels brought; a failure ends its request."""
        routed.fetching.add(item)
        step = partial(self._bring_item, routed, item, with_hash)
        routed.run(or_fail(self._port, routed.request, item, step))

    async def _bring_item(self, routed: Encoded, item: int, with_hash: bool) -> None:
        request_id = routed.request.request_id
        try:
            if with_hash:
                self._port.send(ItemHash(request_id, item, await routed.source.digest(item)))
            pixels = np.ascontiguousarray(await routed.source.pixels(item))
        finally:
            routed.fetching.discard(item)
        if item in routed.wanted:
            routed.pixels[item] = pixels
            self._dispatcher.on_pixels(request_id, item)
            self._dispatch()

    def _on_wanted(self, request_id: str, attempts: dict[int, int]) -> None:
        """The core wants items encoded: for the first time (prefix caching) or again."""
        routed = self._requests.get(request_id)
        if routed is None:
            return
        routed.wanted.update(attempts)
        self._dispatcher.need(request_id, attempts)
        for item, attempt in attempts.items():
            if attempt > 0 and item not in routed.pixels and item not in routed.fetching:
                self._fetch(routed, item, with_hash=False)

    def _drop(self, request_id: str, item: int) -> None:
        """Nobody wants an item encoded (any more): its pixels go, their bytes leave the gate."""
        routed = self._requests.get(request_id)
        if routed is not None:
            routed.wanted.pop(item, None)
            routed.pixels.pop(item, None)
            self._dispatcher.on_pixels_dropped(request_id, item)
            self._leave_gate(request_id, item)

    def _leave_gate(self, request_id: str, item: int) -> None:
        """An item's decoded bytes are gone, here and at stage 0. Nothing happens the second time."""
        routed = self._requests.get(request_id)
        if routed is not None and item not in routed.pixels:
            self._requests.leave(routed, item)

    def _num_bytes(self, grid: tuple[int, int, int]) -> int:
        return grid[1] * grid[2] * self._settings.patch_size**2 * 3

    # -- encoders ----------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        for dispatch in self._dispatcher.dispatch():
            self._send(dispatch)
        if self._dispatcher.short != self._short:
            self._short = self._dispatcher.short
            if self._short is not None:
                self._port.send(CreditsShort(self._short))
        if self._encoders.are_gone:
            self._without_encoders()

    def _send(self, dispatch: Dispatch) -> None:
        routed = self._requests.get(dispatch.request_id)
        if routed is None:
            raise LookupError(f"request {dispatch.request_id} was dispatched after its end")
        items = [routed.request.items[index] for index in dispatch.items]
        message = EncodeRequest(
            dispatch.batch_id,
            dispatch.request_id,
            dispatch.items,
            dispatch.attempts,
            tuple(item.grid for item in items),
            dispatch.rows,
            tuple(item.num_tokens for item in items),
        )
        frames = [routed.pixels[index].data for index in dispatch.items]
        self._host.outbox(encoder_name(dispatch.encoder)).send(message, frames)
        self._batches[dispatch.batch_id] = dispatch
        self._encoders.on_dispatched(dispatch.encoder, dispatch.batch_id, max(message.counts))
        if dispatch.is_first:
            self._port.send(EncodingStarted(dispatch.request_id))

    def _on_encoded(self, encoder: int, batch_id: int) -> None:
        self._encoders.on_done(encoder, batch_id)
        self._dispatcher.on_encoded(encoder, batch_id)
        done = self._batches.pop(batch_id, None)
        if done is None:
            return
        self._sizes.add(done.num_tokens)
        routed = self._requests.get(done.request_id)
        for item, attempt in zip(done.items, done.attempts):
            if routed is not None and routed.wanted.get(item) == attempt:
                self._drop(done.request_id, item)

    def _on_failed(self, message: BatchFailed) -> None:
        self._encoders.on_done(message.encoder, message.batch_id)
        self._dispatcher.on_failed(message.encoder, message.batch_id)
        failed = self._batches.pop(message.batch_id, None)
        if failed is not None:
            error = BadInput(f"the encoder failed: {message.message}", None, 500, "encoder_failed")
            self._port.fail_item(failed.request_id, failed.items[0], error)

    def _on_lost(self, index: int) -> None:
        for batch_id in [b for b, dispatch in self._batches.items() if dispatch.encoder == index]:
            del self._batches[batch_id]
        lost = self._dispatcher.on_encoder_lost(index)
        self._port.send(EncoderLost(index, tuple(lost)))
        for request_id, item in {request_id: item for request_id, item, _ in lost}.items():
            self._count_loss(request_id, item)
        self._dispatch()

    def _count_loss(self, request_id: str, item: int) -> None:
        """A request that encoders die of again and again must not take them all with it."""
        routed = self._requests.get(request_id)
        if routed is not None:
            routed.losses += 1
            if routed.losses >= MAX_LOSSES:
                text = f"{routed.losses} encoders were lost while they encoded this request: it is given up"
                self._port.fail_item(request_id, item, BadInput(text, None, 503, "encoder_lost"))

    def _without_encoders(self) -> None:
        """Stage 0 encodes what is ready to go, or its requests end."""
        for request_id, item, attempt in self._dispatcher.take_queued():
            if self._settings.fallback is not None:
                self._send_to_stage_zero(self._settings.fallback, request_id, item, attempt)
            else:
                self._port.fail_item(request_id, item, BadInput(NO_ENCODER, None, 503, "no_encoder"))

    def _send_to_stage_zero(self, outbox: Outbox, request_id: str, item: int, attempt: int) -> None:
        routed = self._requests.get(request_id)
        if routed is not None:
            grid = routed.request.items[item].grid
            batch = PixelBatch(0, request_id, (item,), (attempt,), (grid,))
            outbox.send(batch, [routed.pixels.pop(item).data])
            self._dispatcher.on_pixels_dropped(request_id, item)

    async def _watch_encoders(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            self._encoders.kill_stalled()
