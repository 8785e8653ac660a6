"""Control messages between processes: dataclasses, encoded by a Codec, sent over ZeroMQ.

A message travels as two frames, its type's name and its body; pixels follow as further raw frames.
Bulk tensors take other roads: torch.distributed between stages, the embedding channel from encoders.
"""

from dataclasses import dataclass, field

from gllm.core.batch import BatchResult, Chunk, GrownSequence, MicroBatch, NewSequence, Sample
from gllm.core.effects import (
    EncodeItems,
    ItemReleased,
    RequestFailed,
    RequestFinished,
    SkipItems,
)
from gllm.core.request import Request
from gllm.core.trace import Span


@dataclass(frozen=True, slots=True)
class AddRequest:
    """API server -> driver: a new request; its items' pixels go elsewhere. hashes as in ItemHash."""

    request: Request


@dataclass(frozen=True, slots=True)
class AbortRequest:
    """API server -> driver: nobody waits for this request any more (reason: abort, stop, timeout)."""

    request_id: str
    reason: str = "abort"


@dataclass(frozen=True, slots=True)
class ItemHash:
    """API server -> driver: content hash of an item (only with prefix caching)."""

    request_id: str
    item: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class ItemFailed:
    """API server -> driver: an item can't be fetched, decoded or encoded; its request ends."""

    request_id: str
    item: int
    status: int
    message: str


@dataclass(frozen=True, slots=True)
class EncodingStarted:
    """API server -> driver: the first item of this request went to an encoder."""

    request_id: str


@dataclass(frozen=True, slots=True)
class CreditsShort:
    """API server -> driver: the first request in the encoder queue waits for embedding memory."""

    request_id: str


@dataclass(frozen=True, slots=True)
class FlushCache:
    """API server -> driver: forget all cached prefixes that nobody uses."""


@dataclass(frozen=True, slots=True)
class GetStats:
    """API server -> driver: answer with Stats."""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """To any rank: finish the current step and exit with code 0."""


@dataclass(frozen=True, slots=True)
class PixelBatch:
    """API server -> item executor: resized uint8 pixels, one raw frame [H, W, 3] per item behind it.

    grids: (t, h, w) in patches, so H = 14 h and W = 14 w. One item each for items, attempts, grids.
    """

    batch_id: int
    request_id: str
    items: tuple[int, ...]
    attempts: tuple[int, ...]
    grids: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class RankReady:
    """Rank or encoder -> API server: loaded and waiting; the driver adds what the deployment can hold.

    inbox: where it listens. embedding_channel: by which embeddings come to the driver, if they do.
    """

    name: str
    pid: int
    inbox: str = ""
    num_kv_blocks: int = 0
    num_kv_tokens: int = 0
    max_model_len: int = 0
    embedding_tokens: int = 0
    embedding_channel: str | None = None


@dataclass(frozen=True, slots=True)
class RankFailed:
    """Rank -> API server: it can't start or go on; message is one line that says what to do."""

    name: str
    message: str


@dataclass(frozen=True, slots=True)
class Stats:
    """Driver -> API server: counters and gauges by name, for /metrics and /server_info."""

    gauges: dict[str, float]
    counters: dict[str, float]


@dataclass(frozen=True, slots=True)
class StageBatch:
    """Driver -> every other rank: a micro-batch without token ids and embeddings (the delta schedule).

    has_embeds: some input rows come from the encoder, so that stage 0's ranks exchange the merged input.
    prompts: tokens so far of new sequences whose sampler needs a history; sent to the last stage only.
    """

    batch_id: int
    chunks: tuple[Chunk, ...]
    num_decodes: int
    samples: tuple[Sample, ...]
    new: tuple[NewSequence, ...]
    grown: tuple[GrownSequence, ...]
    finished: tuple[int, ...]
    copies: tuple[tuple[int, int], ...]
    has_embeds: bool = False
    prompts: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return sum(chunk.length for chunk in self.chunks)

    @classmethod
    def of(cls, batch: MicroBatch) -> "StageBatch":
        """What the other ranks must know of a micro-batch (without prompts)."""
        return cls(
            batch.batch_id,
            batch.chunks,
            batch.num_decodes,
            batch.samples,
            batch.new,
            batch.grown,
            batch.finished,
            batch.copies,
            bool(batch.embeds),
        )


@dataclass(frozen=True, slots=True)
class StageEncode:
    """Driver -> its TP followers: encode these items together; pixels come by broadcast in the TP group.

    frames: pictures in each item, 1 for an image.
    """

    grids: tuple[tuple[int, int, int], ...]
    frames: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RankLoad:
    """Any rank or encoder -> driver, about once a second while it works: totals since its start."""

    name: str
    busy_seconds: float
    steps: int


@dataclass(frozen=True, slots=True)
class TraceSpans:
    """Any process -> API server: what it did lately (only with --trace)."""

    spans: tuple[Span, ...]


TYPES = (
    AddRequest, AbortRequest, ItemHash, ItemFailed, EncodingStarted, CreditsShort, FlushCache, GetStats,
    Shutdown, PixelBatch, RankReady, RankFailed, RankLoad, Stats, StageBatch, StageEncode, BatchResult,
    TraceSpans, EncodeItems, SkipItems, ItemReleased, RequestFinished, RequestFailed,
)  # fmt: skip
