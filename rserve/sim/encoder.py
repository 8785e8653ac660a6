"""Who encodes items in the simulator: encoder ranks behind the production dispatcher, or stage 0."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import Literal

from gllm.core.effects import Effect, EncodeItems, ItemReleased, RequestFailed, RequestFinished, SkipItems
from gllm.core.step_spans import ItemWork
from gllm.core.trace import Span
from rserve.core.dispatcher import Dispatch, Dispatcher

from .driver import SimulatedDriver
from .workload import SimRequest


class PixelSource:
    """Images on the way from the API server: which items of a request can be encoded when.

    Where preprocessing runs in line with the encoder, all at once; else one item after the other.
    """

    def __init__(self, driver: SimulatedDriver) -> None:
        self.cost = driver.pipeline.cost
        self.clock = driver.clock

    def announce(self, request: SimRequest, on_pixels: Callable[[str, Sequence[int]], None]) -> None:
        """Call on_pixels(request id, items) when their pixels are there."""
        tokens = [item.num_tokens for item in request.items]
        delays = [self.cost.preprocess_delay(tokens[: i + 1]) for i in range(len(tokens))]
        for delay in sorted(set(delays)):
            items = [item for item in range(len(tokens)) if delays[item] == delay]
            self.clock.at(self.clock.now + delay, partial(on_pixels, request.request_id, items))


class StageZeroItems:
    """Scheme gllm: pixels go to stage 0, and the core decides when it encodes."""

    def __init__(self, driver: SimulatedDriver) -> None:
        self.driver = driver
        self.clock = driver.clock
        self.source = PixelSource(driver)

    def add(self, request: SimRequest) -> None:
        self.source.announce(request, self._on_pixels)

    def on_effect(self, effect: Effect) -> None:
        """Items to encode again: the API server still has their images."""
        match effect:
            case EncodeItems(request_id, items, attempts):
                self.clock.at(self.clock.now, partial(self._on_pixels, request_id, items, attempts))

    def _on_pixels(self, request_id: str, items: Sequence[int], attempts: Sequence[int] = ()) -> None:
        for item, attempt in zip(items, attempts or repeat(0)):
            self.driver.core.on_pixels(request_id, item, attempt)
        self.driver.after_event()


class EncoderRanks:
    """Encoder ranks of one device each, fed by the dispatcher, with a channel each to the driver.

    An encoder works through its batches in order; a channel sends one batch after the other while its
    encoder goes on.
    """

    def __init__(self, driver: SimulatedDriver, dispatcher: Dispatcher, spans: list[Span] | None) -> None:
        self.driver = driver
        self.dispatcher = dispatcher
        self.source = PixelSource(driver)
        self.cost = driver.pipeline.cost
        num_encoders = self.cost.machine.encoders
        self.encoder_free = [0.0] * num_encoders
        self.channel_free = [0.0] * num_encoders
        self.busy = [0.0] * num_encoders
        self._spans = spans
        for encoder in range(num_encoders):
            dispatcher.on_encoder_ready(encoder)

    def add(self, request: SimRequest) -> None:
        if not self.dispatcher.can_ever_fit(request.num_mm_tokens):
            self.driver.refuse(request.request_id, "more embeddings than the driver has memory for")
            return
        self.dispatcher.add(request.request_id, request.items, ordered=True)
        self.source.announce(request, self._on_pixels)

    def on_effect(self, effect: Effect) -> None:
        match effect:
            case EncodeItems(request_id, items, attempts):
                self.dispatcher.need(request_id, dict(zip(items, attempts)))
            case SkipItems(request_id, items):
                self.dispatcher.skip(request_id, items)
            case ItemReleased(request_id, item, attempt):
                self.dispatcher.on_released(request_id, item, attempt)
            case RequestFinished(request_id) | RequestFailed(request_id):
                self.dispatcher.remove(request_id)
        self._dispatch()

    def _on_pixels(self, request_id: str, items: Sequence[int]) -> None:
        for item in items:
            self.dispatcher.on_pixels(request_id, item)
        self._dispatch()

    def _dispatch(self) -> None:
        for dispatch in self.dispatcher.dispatch():
            if dispatch.is_first:
                self.driver.core.on_encoding(dispatch.request_id)
            self._encode(dispatch)
        if self.dispatcher.short is not None:
            self.driver.core.on_credits_short(self.dispatcher.short)

    def _encode(self, dispatch: Dispatch) -> None:
        start = max(self.driver.clock.now, self.encoder_free[dispatch.encoder])
        duration = self.cost.encode_time(self._counts(dispatch))
        self.encoder_free[dispatch.encoder] = start + duration
        self.busy[dispatch.encoder] += duration
        self._trace(dispatch, "encode", start, duration)
        self.driver.clock.at(start + duration, partial(self._on_encoded, dispatch))

    def _on_encoded(self, dispatch: Dispatch) -> None:
        begin = max(self.driver.clock.now, self.channel_free[dispatch.encoder])
        self.channel_free[dispatch.encoder] = begin + self.cost.embedding_send_time(dispatch.num_tokens)
        landed = begin + self.cost.embedding_transfer_time(dispatch.num_tokens)
        self._trace(dispatch, "transfer", begin, landed - begin)
        self.driver.clock.at(landed, partial(self._on_landed, dispatch))
        self.dispatcher.on_encoded(dispatch.encoder, dispatch.batch_id)
        self._dispatch()

    def _on_landed(self, dispatch: Dispatch) -> None:
        for item, attempt in zip(dispatch.items, dispatch.attempts):
            self.driver.on_embeddings(dispatch.request_id, item, attempt)

    def _counts(self, dispatch: Dispatch) -> list[int]:
        request = self.driver.outcomes[dispatch.request_id].request
        return [request.items[item].num_tokens for item in dispatch.items]

    def _trace(
        self, dispatch: Dispatch, kind: Literal["encode", "transfer"], start: float, duration: float
    ) -> None:
        if self._spans is not None:
            work = ItemWork(dispatch.request_id, dispatch.items, self._counts(dispatch))
            self._spans.append(work.span(kind, f"encoder {dispatch.encoder}", start, duration))
