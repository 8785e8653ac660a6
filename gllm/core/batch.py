"""The contract between who decides and who executes: micro-batches, encode batches and their results.

A decision is a value. The driver executes it on stage 0 and sends its delta (without token ids and
embeddings) to the other ranks; the simulator looks up how long it takes.
"""

from dataclasses import dataclass

from gllm.core.request import MMItem, SamplingParams

Payload = object
"""An item's embeddings, or rows of them: anything that slices, a tensor or (in the simulator) a range."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of one sequence's tokens, [start, start + length), in one micro-batch."""

    seq_id: int
    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class NewSequence:
    """What a rank must know about a sequence before its first chunk (of this attempt).

    It replaces whatever the rank knew of the same seq_id. items give M-RoPE positions; prompt_len and
    num_tokens differ when a preempted sequence starts again with tokens it has already produced.
    """

    seq_id: int
    request_id: str
    choice: int
    prompt_len: int
    num_tokens: int
    items: tuple[MMItem, ...]
    sampling: SamplingParams
    block_table: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GrownSequence:
    """Blocks appended to the block table of a known sequence."""

    seq_id: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SampleTarget:
    """One token to sample: for which sequence, and at which position it will stand."""

    seq_id: int
    request_id: str
    choice: int
    position: int


@dataclass(frozen=True, slots=True)
class Sample:
    """Sample from the last row of chunk `chunk_index`: one target, or n when a request forks."""

    chunk_index: int
    sampling: SamplingParams
    targets: tuple[SampleTarget, ...]


@dataclass(frozen=True, slots=True)
class EmbedRows:
    """Input rows [row, row + length) of a micro-batch are `payload[start:start + length]`."""

    row: int
    payload: Payload
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The chunks that go through the pipeline together, and all that is needed to run them.

    chunks: decodes (one token, prompt complete) first, `num_decodes` of them.
    token_ids: input ids of all chunks, concatenated: len == num_tokens (placeholders inside items).
    embeds: the rows that the encoder made, which replace those placeholders.
    finished: sequences that every rank forgets *before* running this batch.
    copies: (source, destination) KV blocks to copy on every stage before this batch (forks).
    """

    batch_id: int
    chunks: tuple[Chunk, ...]
    num_decodes: int
    token_ids: tuple[int, ...]
    embeds: tuple[EmbedRows, ...] = ()
    samples: tuple[Sample, ...] = ()
    new: tuple[NewSequence, ...] = ()
    grown: tuple[GrownSequence, ...] = ()
    finished: tuple[int, ...] = ()
    copies: tuple[tuple[int, int], ...] = ()

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class EncodeBatch:
    """Items of one request that stage 0 encodes now, between two micro-batches, in one forward."""

    request_id: str
    items: tuple[int, ...]
    attempts: tuple[int, ...]
    num_tokens: int


Work = MicroBatch | EncodeBatch


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural-log probabilities of the raw logits: of the chosen token, and the k best as (id, logprob)."""

    chosen: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class SampledToken:
    """One sampled token. position is its index in the sequence (prompt included)."""

    seq_id: int
    request_id: str
    choice: int
    position: int
    token_id: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class BatchResult:
    """A micro-batch left the last stage, with what was sampled from it (in the order of its samples)."""

    batch_id: int
    tokens: tuple[SampledToken, ...] = ()
