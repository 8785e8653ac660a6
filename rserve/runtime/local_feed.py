"""Encoder ranks inside one process, behind the production dispatcher: for tests and small offline runs."""

from collections import deque
from collections.abc import Callable, Sequence

from torch import Tensor

from gllm.core.effects import Effect, EncodeItems, ItemReleased, RequestFailed, RequestFinished, SkipItems
from gllm.core.engine_core import EngineCore
from gllm.core.request import Request
from gllm.runtime.item_encoder import ItemEncoder
from gllm.runtime.local_engine import Pixels
from rserve.core.dispatcher import Dispatch, Dispatcher


class EncoderFeed:
    """Encodes one dispatched batch a call, into an arena [rows, H] as the shared-memory channel does.

    digest: content hash of pixels, given with prefix caching. pick: which of the outstanding batches is
    finished next (the oldest by default); with several encoders embeddings may come out of order.
    """

    def __init__(
        self,
        core: EngineCore,
        dispatcher: Dispatcher,
        encoder: ItemEncoder,
        arena: Tensor,
        digest: Callable[[Pixels], bytes] | None = None,
        pick: Callable[[int], int] = lambda outstanding: 0,
    ) -> None:
        self._core, self._dispatcher = core, dispatcher
        self._encoder, self._arena = encoder, arena
        self._digest, self._pick = digest, pick
        self._outstanding: deque[Dispatch] = deque()
        self._pixels: dict[str, Sequence[Pixels]] = {}
        self._requests: dict[str, Request] = {}

    def add(self, request: Request, pixels: Sequence[Pixels]) -> None:
        """All pixels are there at once; with prefix caching their hashes go first."""
        if not request.items or request.request_id not in self._core.requests:
            return
        self._requests[request.request_id] = request
        self._pixels[request.request_id] = pixels
        self._dispatcher.add(request.request_id, request.items, ordered=self._digest is None)
        for item, picture in enumerate(pixels):
            if self._digest is not None:
                self._core.on_item_hash(request.request_id, item, self._digest(picture))
            self._dispatcher.on_pixels(request.request_id, item)
        self._dispatch()

    def on_effect(self, effect: Effect) -> None:
        """Tell the dispatcher what the core wants encoded, skips or has released."""
        match effect:
            case EncodeItems(request_id, items, attempts):
                self._dispatcher.need(request_id, dict(zip(items, attempts)))
            case SkipItems(request_id, items):
                self._dispatcher.skip(request_id, items)
            case ItemReleased(request_id, item, attempt):
                self._dispatcher.on_released(request_id, item, attempt)
            case RequestFinished(request_id) | RequestFailed(request_id):
                self._dispatcher.remove(request_id)
        self._dispatch()

    def advance(self) -> bool:
        """An encoder finishes a batch; False when none has work."""
        if not self._outstanding:
            return False
        index = self._pick(len(self._outstanding))
        dispatch = self._outstanding[index]
        del self._outstanding[index]
        self._encode(dispatch)
        self._dispatcher.on_encoded(dispatch.encoder, dispatch.batch_id)
        self._dispatch()
        return True

    def _encode(self, dispatch: Dispatch) -> None:
        request, pixels = self._requests[dispatch.request_id], self._pixels[dispatch.request_id]
        grids = [request.items[item].grid for item in dispatch.items]
        embeddings = self._encoder.encode([pixels[item] for item in dispatch.items], grids)
        for item, attempt, row, embedding in zip(
            dispatch.items, dispatch.attempts, dispatch.rows, embeddings
        ):
            place = self._arena[row : row + len(embedding)]
            place.copy_(embedding)
            self._core.on_embeddings(dispatch.request_id, item, attempt, place)

    def _dispatch(self) -> None:
        for dispatch in self._dispatcher.dispatch():
            self._outstanding.append(dispatch)
            if dispatch.is_first:
                self._core.on_encoding(dispatch.request_id)
        if self._dispatcher.short is not None:
            self._core.on_credits_short(self._dispatcher.short)
