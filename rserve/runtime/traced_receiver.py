"""An embedding channel whose transfers are recorded, from the encoder's send to the landing."""

import zmq

from gllm.core.effects import Effect
from gllm.core.step_spans import ItemWork
from gllm.runtime.embedding_rows import BorrowedRows
from gllm.runtime.recorder import StepRecorder
from rserve.runtime.embedding_channel import EmbeddingReceiver
from rserve.runtime.messages import EmbeddingsSent, EncoderJoined, EncoderLost
from rserve.runtime.shared_memory import Landing

Key = tuple[str, int, int]


class TracedReceiver:
    """Passes everything on to a receiver; a batch is recorded when its last item has landed."""

    def __init__(self, receiver: EmbeddingReceiver, recorder: StepRecorder) -> None:
        self._receiver = receiver
        self._recorder = recorder
        self._under_way: dict[Key, EmbeddingsSent] = {}

    @property
    def wakes(self) -> zmq.Socket[bytes] | int:
        """The receiver's."""
        return self._receiver.wakes

    def on_sent(self, message: EmbeddingsSent) -> None:
        self._under_way[message.request_id, message.items[-1], message.attempts[-1]] = message
        self._receiver.on_sent(message)

    def on_joined(self, message: EncoderJoined) -> None:
        self._receiver.on_joined(message)

    def on_lost(self, message: EncoderLost) -> None:
        self._receiver.on_lost(message)

    def drain(self, core: Landing) -> None:
        self._receiver.drain(_Watched(core, self))

    def on_effect(self, effect: Effect) -> None:
        self._receiver.on_effect(effect)

    def close(self) -> None:
        self._receiver.close()

    def landed(self, key: Key) -> None:
        """An item is there; others of its batch landed before it."""
        message = self._under_way.pop(key, None)
        if message is not None:
            work = ItemWork(message.request_id, message.items, message.counts)
            self._recorder.transfer(f"encoder {message.encoder}", work, message.sent_at)

    def lost(self, items: list[Key]) -> None:
        """These never land."""
        for key in items:
            self._under_way.pop(key, None)


class _Watched:
    """A core, as receivers see it, that lets the traced receiver know."""

    def __init__(self, core: Landing, watcher: TracedReceiver) -> None:
        self._core = core
        self._watcher = watcher

    def on_embeddings(self, request_id: str, item: int, attempt: int, payload: BorrowedRows) -> bool:
        self._watcher.landed((request_id, item, attempt))
        return self._core.on_embeddings(request_id, item, attempt, payload)

    def on_encoder_lost(self, items: list[Key]) -> None:
        self._watcher.lost(items)
        self._core.on_encoder_lost(items)
