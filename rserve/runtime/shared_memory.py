"""The embedding channel on one host: encoders write into memory that the driver reads."""

import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from gllm.core.effects import Effect
from gllm.runtime.embedding_rows import BorrowedRows
from rserve.runtime.messages import EmbeddingsSent, EncoderJoined, EncoderLost

Announce = Callable[[EmbeddingsSent], None]


class Landing(Protocol):
    """What a receiver tells a core that can lose encoders."""

    def on_embeddings(self, request_id: str, item: int, attempt: int, payload: BorrowedRows) -> bool: ...

    def on_encoder_lost(self, items: list[tuple[str, int, int]]) -> None: ...


class SharedMemorySender:
    """Copies each embedding into its rows (the only copy), then announces it."""

    def __init__(self, arena: Tensor, announce: Announce) -> None:
        """arena: [rows, hidden_size]. announce: sends a message to the driver."""
        self._arena = arena
        self._announce = announce

    def send(self, message: EmbeddingsSent, embeddings: Sequence[Tensor]) -> None:
        """Returns when the embeddings are in place."""
        for row, count, embedding in zip(message.rows, message.counts, embeddings):
            self._arena[row : row + count].copy_(embedding)
        self._announce(message)

    def close(self) -> None:
        """Nothing is under way after `send`."""


class SharedMemoryReceiver:
    """What is announced has landed: the core gets views of the rows."""

    def __init__(self, arena: Tensor) -> None:
        self._arena = arena
        self._events: deque[EmbeddingsSent | EncoderLost] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    @property
    def wakes(self) -> int:
        """Never readable: announcements wake the driver through its inbox."""
        return self._wake

    def on_sent(self, message: EmbeddingsSent) -> None:
        self._events.append(message)

    def on_joined(self, message: EncoderJoined) -> None:
        """Rows belong to nobody in particular: nothing to prepare."""

    def on_lost(self, message: EncoderLost) -> None:
        """What was announced is in place and stays valid."""
        self._events.append(message)

    def drain(self, core: Landing) -> None:
        while self._events:
            hand_over(core, self._events.popleft(), self._arena)

    def on_effect(self, effect: Effect) -> None:
        """Rows are given out and taken back by the dispatcher."""

    def close(self) -> None:
        os.close(self._wake)


def hand_over(core: Landing, event: EmbeddingsSent | EncoderLost, arena: Tensor) -> None:
    """Tell the core: the embeddings of a batch are there, as views of the arena, or an encoder is gone."""
    match event:
        case EmbeddingsSent():
            for item, attempt, row, count in zip(event.items, event.attempts, event.rows, event.counts):
                rows = BorrowedRows(arena[row : row + count])
                core.on_embeddings(event.request_id, item, attempt, rows)
        case EncoderLost():
            core.on_encoder_lost(list(event.items))
