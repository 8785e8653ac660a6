"""Turns chosen chunks into a micro-batch: token ids, embeddings, samples, and the delta for the ranks."""

from collections.abc import Sequence as Seq

from gllm.core.batch import Chunk, EmbedRows, GrownSequence, MicroBatch, NewSequence, Sample, SampleTarget
from gllm.core.embeddings import EmbeddingStore
from gllm.core.sequence import Sequence

Pair = tuple[Sequence, Chunk]


class BatchBuilder:
    """Remembers what the ranks know, so that each micro-batch says only what is new to them."""

    def __init__(self) -> None:
        self._next_batch_id = 0
        self._known: dict[int, int] = {}
        self._finished: list[int] = []
        self._copies: list[tuple[int, int]] = []

    def forget(self, seq: Sequence) -> None:
        """A sequence starts again: its next chunk announces it anew."""
        self._known.pop(seq.seq_id, None)

    def finish(self, seq: Sequence) -> None:
        """A sequence ended: the ranks forget it with the next micro-batch."""
        self._known.pop(seq.seq_id, None)
        self._finished.append(seq.seq_id)

    def copy(self, blocks: Seq[tuple[int, int]]) -> None:
        """Have (source, destination) blocks copied before the next micro-batch."""
        self._copies += blocks

    def build(self, pairs: Seq[Pair], children: Seq[Sequence], tracker: EmbeddingStore) -> MicroBatch:
        """The micro-batch of these chunks. children: sequences that fork from samples of this batch."""
        token_ids: list[int] = []
        embeds: list[EmbedRows] = []
        for seq, chunk in pairs:
            if seq.items and chunk.start < seq.items[-1].end:
                base = len(token_ids) - chunk.start
                rows = tracker.rows(seq.request.request_id, chunk.start, chunk.end)
                embeds += [EmbedRows(base + r.position, r.payload, r.start, r.length) for r in rows]
            token_ids += seq.token_ids[chunk.start : chunk.end]
        new, grown = self._deltas(pairs)
        batch = MicroBatch(
            batch_id=self._next_batch_id,
            chunks=tuple(chunk for _, chunk in pairs),
            num_decodes=_leading_decodes(pairs),
            token_ids=tuple(token_ids),
            embeds=tuple(embeds),
            samples=_samples(pairs, children),
            new=new,
            grown=grown,
            finished=tuple(self._finished),
            copies=tuple(self._copies),
        )
        self._next_batch_id += 1
        self._finished, self._copies = [], []
        return batch

    def _deltas(self, pairs: Seq[Pair]) -> tuple[tuple[NewSequence, ...], tuple[GrownSequence, ...]]:
        new, grown = [], []
        for seq, _ in pairs:
            known = self._known.get(seq.seq_id)
            if known is None:
                new.append(_announce(seq))
            elif known < len(seq.block_table):
                grown.append(GrownSequence(seq.seq_id, tuple(seq.block_table[known:])))
            self._known[seq.seq_id] = len(seq.block_table)
        return tuple(new), tuple(grown)


def _announce(seq: Sequence) -> NewSequence:
    return NewSequence(
        seq_id=seq.seq_id,
        request_id=seq.request.request_id,
        choice=seq.choice,
        prompt_len=seq.prompt_len,
        num_tokens=seq.num_tokens,
        items=seq.items,
        sampling=seq.request.sampling,
        block_table=tuple(seq.block_table),
    )


def _leading_decodes(pairs: Seq[Pair]) -> int:
    for index, (seq, chunk) in enumerate(pairs):
        if chunk.length != 1 or chunk.start < seq.prompt_len:
            return index
    return len(pairs)


def _samples(pairs: Seq[Pair], children: Seq[Sequence]) -> tuple[Sample, ...]:
    samples = []
    for index, (seq, chunk) in enumerate(pairs):
        if chunk.end == seq.num_tokens:
            forks = [child for child in children if child.request is seq.request]
            targets = tuple(
                SampleTarget(s.seq_id, s.request.request_id, s.choice, s.num_tokens) for s in [seq, *forks]
            )
            samples.append(Sample(index, seq.request.sampling, targets))
    return tuple(samples)
