"""How embeddings get from an encoder to the driver: one contract, several transports.

An embedding's life: *posted* when the dispatcher reserves its rows and tells the encoder; *sent* when
the encoder has it and says so (`EmbeddingsSent`); *landed* when the driver can read it, and the core
learns of it; *released* when the core says `ItemReleased`, after which the dispatcher may post others to
the same rows. Whatever is sent lands, also when nobody waits for it any more: the core then releases it
at once. A receiver never blocks the driver's loop.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from gllm.runtime.driver import EventSource
from rserve.runtime.messages import EmbeddingsSent, EncoderJoined, EncoderLost


class EmbeddingSender(Protocol):
    """An encoder's end."""

    def send(self, message: EmbeddingsSent, embeddings: Sequence[Tensor]) -> None:
        """Bring one batch to its rows and announce it. May return before it is there; keeps the tensors."""
        ...

    def close(self) -> None:
        """Wait until all is sent."""
        ...


class EmbeddingReceiver(EventSource, Protocol):
    """The driver's end: an event source whose `drain` hands landed embeddings to the core."""

    def on_sent(self, message: EmbeddingsSent) -> None:
        """An encoder announced a batch."""
        ...

    def on_joined(self, message: EncoderJoined) -> None:
        """An encoder starts or starts again."""
        ...

    def on_lost(self, message: EncoderLost) -> None:
        """An encoder is dead; what it announced and did not send never lands."""
        ...
