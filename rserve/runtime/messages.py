"""Control messages of the EPD mode, in addition to gLLM's."""

from dataclasses import dataclass

from gllm.runtime.codec import Codec
from gllm.runtime.messages import TYPES


@dataclass(frozen=True, slots=True)
class EncodeRequest:
    """API server -> encoder: one encoder batch; a raw frame of uint8 pixels [H, W, 3] per item behind it.

    rows: where each item's embedding begins in the embedding memory; counts: how many rows it takes.
    """

    batch_id: int
    request_id: str
    items: tuple[int, ...]
    attempts: tuple[int, ...]
    grids: tuple[tuple[int, int, int], ...]
    rows: tuple[int, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EmbeddingsSent:
    """Encoder -> driver: embeddings are in place (shared memory), or about to be sent (point-to-point).

    encoder, epoch: who sends; epoch counts its restarts. sent_at: when it began, on the clock of traces.
    batch_id: of the encoder batch.
    """

    encoder: int
    epoch: int
    request_id: str
    items: tuple[int, ...]
    attempts: tuple[int, ...]
    rows: tuple[int, ...]
    counts: tuple[int, ...]
    sent_at: float = 0.0
    batch_id: int = 0


@dataclass(frozen=True, slots=True)
class BatchEncoded:
    """Encoder -> API server: a batch is encoded and announced to the driver; there is room for another."""

    encoder: int
    batch_id: int


@dataclass(frozen=True, slots=True)
class EncoderWorks:
    """Encoder -> API server, now and then within a batch: it has done one more part of it."""

    encoder: int


@dataclass(frozen=True, slots=True)
class BatchFailed:
    """Encoder -> API server: a batch can't be encoded; its request ends."""

    encoder: int
    batch_id: int
    message: str


@dataclass(frozen=True, slots=True)
class EncoderJoined:
    """API server -> driver: an encoder (again) starts; it will join the channel in this epoch."""

    encoder: int
    epoch: int


@dataclass(frozen=True, slots=True)
class EncoderLost:
    """API server -> driver: an encoder is dead and reaped; it had these (request, item, attempt)."""

    encoder: int
    items: tuple[tuple[str, int, int], ...]


EPD_TYPES = (
    EncodeRequest,
    EmbeddingsSent,
    BatchEncoded,
    EncoderWorks,
    BatchFailed,
    EncoderJoined,
    EncoderLost,
)


def epd_codec() -> Codec:
    """All messages of an RServe deployment."""
    return Codec((*TYPES, *EPD_TYPES))
