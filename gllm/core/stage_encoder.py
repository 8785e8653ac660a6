"""Which items stage 0 encodes next, when it is the item executor (scheme gllm, encoder fallback)."""

from dataclasses import dataclass, field
from heapq import heappop, heappush

from gllm.core.batch import EncodeBatch
from gllm.core.request import MMItem


@dataclass(slots=True)
class Needed:
    """One request's items that stage 0 has to encode: attempt by item, and whose pixels are here."""

    request_id: str
    arrival: int
    items: tuple[MMItem, ...]
    attempts: dict[int, int] = field(default_factory=dict)
    pixels: set[int] = field(default_factory=set)

    @property
    def complete(self) -> bool:
        return bool(self.attempts) and self.pixels.issuperset(self.attempts)


class StageEncoder:
    """First come, first served among requests whose needed pixels are all there.

    A request is encoded as a whole (its prefill can't start before), in batches of at most max_tokens
    embeddings, or of one item that is larger.
    """

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self._needed: dict[str, Needed] = {}
        self._early: dict[str, dict[int, int]] = {}
        self._complete: dict[str, Needed] = {}
        self._order: list[tuple[int, str]] = []

    @property
    def has_work(self) -> bool:
        return bool(self._complete)

    def need(
        self, request_id: str, arrival: int, items: tuple[MMItem, ...], attempts: dict[int, int]
    ) -> None:
        """These items (index → attempt) must be encoded; earlier attempts of them are void."""
        needed = self._needed.setdefault(request_id, Needed(request_id, arrival, items))
        for item, attempt in attempts.items():
            needed.attempts[item] = attempt
            needed.pixels.discard(item)
        early = self._early.pop(request_id, {})
        for item, attempt in early.items():
            self.on_pixels(request_id, item, attempt)
        self._refresh(needed)

    def on_pixels(self, request_id: str, item: int, attempt: int) -> None:
        """An item's pixels are in this process. They may come before the request itself."""
        needed = self._needed.get(request_id)
        if needed is None:
            self._early.setdefault(request_id, {})[item] = attempt
        elif needed.attempts.get(item) == attempt:
            needed.pixels.add(item)
            self._refresh(needed)

    def skip(self, request_id: str, items: list[int]) -> None:
        """These items need not be encoded after all."""
        needed = self._needed.get(request_id)
        if needed is not None:
            for item in items:
                needed.attempts.pop(item, None)
                needed.pixels.discard(item)
            self._refresh(needed)

    def remove(self, request_id: str) -> None:
        """A request ended."""
        self._needed.pop(request_id, None)
        self._early.pop(request_id, None)
        self._complete.pop(request_id, None)

    def next_batch(self) -> EncodeBatch | None:
        """The next items to encode in one forward, or None."""
        needed = self._oldest()
        if needed is None:
            return None
        chosen: list[int] = []
        tokens = 0
        for item in sorted(needed.attempts):
            size = needed.items[item].num_tokens
            if chosen and tokens + size > self.max_tokens:
                break
            chosen.append(item)
            tokens += size
        attempts = tuple(needed.attempts.pop(item) for item in chosen)
        needed.pixels.difference_update(chosen)
        self._refresh(needed)
        return EncodeBatch(needed.request_id, tuple(chosen), attempts, tokens)

    def _oldest(self) -> Needed | None:
        while self._order:
            needed = self._complete.get(self._order[0][1])
            if needed is not None:
                return needed
            heappop(self._order)
        return None

    def _refresh(self, needed: Needed) -> None:
        if needed.complete:
            self._complete[needed.request_id] = needed
            heappush(self._order, (needed.arrival, needed.request_id))
        else:
            self._complete.pop(needed.request_id, None)
            if not needed.attempts:
                self._needed.pop(needed.request_id, None)
