"""Which items have to be encoded, and when their embeddings are done with."""

from gllm.core.effects import Effect, EncodeItems, ItemReleased, SkipItems
from gllm.core.embeddings import EmbeddingStore
from gllm.core.kv import KvCache
from gllm.core.sequence import Sequence
from gllm.core.served import Served
from gllm.core.stage_encoder import StageEncoder


class ItemFlow:
    """Asks for encodings and releases embeddings, by effects and, on stage 0, through its encoder."""

    def __init__(self, tracker: EmbeddingStore, kv: KvCache, stage_encoder: StageEncoder | None) -> None:
        self.tracker = tracker
        self.kv = kv
        self.stage_encoder = stage_encoder
        self.effects: list[Effect] = []

    def start(self, served: Served) -> None:
        """A request arrived. Without prefix caching all its items are encoded, which goes without saying."""
        request = served.request
        self.tracker.add(request.request_id, request.items)
        if self.kv.prefix_caching:
            self.decide(served)
        elif self.stage_encoder is not None and request.items:
            attempts = dict.fromkeys(range(len(request.items)), 0)
            self.stage_encoder.need(request.request_id, served.arrival, request.items, attempts)

    def decide(self, served: Served) -> None:
        """With prefix caching: ask for the encoding of items in order, once their lookup missed.

        A sequence that has its blocks already does not look up again: it computes what follows itself.
        """
        seq, items = served.sequences[0], served.request.items
        while served.num_decided < len(items) and served.digests[served.num_decided] is not None:
            item = served.num_decided
            served.num_decided += 1
            cached = seq.num_dispatched
            if not seq.holds_blocks:
                cached = self.kv.cached_tokens(seq, served.digests)
            covered = self.tracker.cover(served.request_id, cached)
            if covered:
                self._skip(served, covered)
            if item not in covered and items[item].end > cached:
                self._ask(served, [(item, 0)])

    def require(self, served: Served, seq: Sequence, start: int) -> None:
        """A sequence is computed from `start`: ask again for items after it whose embeddings are gone."""
        again = [] if seq.finished else self.tracker.require(served.request_id, start)
        if again:
            self._ask(served, again)

    def restart(self, served: Served, seq: Sequence) -> None:
        """A sequence starts again from its first token, or behind what the prefix cache still holds."""
        self.require(served, seq, self.kv.cached_tokens(seq, served.digests))

    def release_passed(self, served: Served) -> None:
        """Free the embeddings that every live sequence of the request has dispatched."""
        if not served.request.items:
            return
        freed = self.tracker.release_before(served.request_id, served.num_passed)
        for one in freed:
            if one.payload is not None:
                self._released(served, one.item, one.attempt)
        skipped = [one.item for one in freed if one.payload is None]
        if skipped:
            self._skip(served, skipped)

    def arrived(self, served: Served, item: int) -> None:
        """An item's embedding is here: stage 0 need not encode it."""
        if self.stage_encoder is not None:
            self.stage_encoder.skip(served.request_id, [item])

    def lost(self, served: Served, item: int, attempt: int) -> None:
        """An encoder died with this item: unless its embedding has arrived, its memory is free.

        When somebody waits for it, ask again.
        """
        new = self.tracker.retry(served.request_id, item, attempt)
        if not self.tracker.has_arrived(served.request_id, item, attempt):
            self._released(served, item, attempt)
        if new is not None:
            self._ask(served, [(item, new)])

    def drop(self, served: Served) -> None:
        """Give up the embeddings a request holds, and ask for them again."""
        for one in self.tracker.drop(served.request_id):
            self._released(served, one.item, one.attempt)
        for seq in served.sequences:
            self.require(served, seq, seq.num_dispatched)

    def stop(self, served: Served) -> None:
        """The request ended."""
        for one in self.tracker.remove(served.request_id):
            self._released(served, one.item, one.attempt)
        if self.stage_encoder is not None:
            self.stage_encoder.remove(served.request_id)

    def _ask(self, served: Served, wanted: list[tuple[int, int]]) -> None:
        items = tuple(item for item, _ in wanted)
        attempts = tuple(attempt for _, attempt in wanted)
        self.effects.append(EncodeItems(served.request_id, items, attempts))
        if self.stage_encoder is not None:
            self.stage_encoder.need(served.request_id, served.arrival, served.request.items, dict(wanted))

    def _skip(self, served: Served, items: list[int]) -> None:
        self.effects.append(SkipItems(served.request_id, tuple(items)))
        if self.stage_encoder is not None:
            self.stage_encoder.skip(served.request_id, items)

    def _released(self, served: Served, item: int, attempt: int) -> None:
        self.effects.append(ItemReleased(served.request_id, item, attempt))
