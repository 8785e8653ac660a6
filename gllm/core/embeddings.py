"""Which items of a request are encoded, and their embeddings until they are used."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from gllm.core.batch import Payload
from gllm.core.request import MMItem

ALL_READY = 1 << 62


class ItemState(Enum):
    """waiting: to be encoded; ready: embedding held; used: released; covered: in the prefix cache."""

    WAITING = "waiting"
    READY = "ready"
    USED = "used"
    COVERED = "covered"


@dataclass(frozen=True, slots=True)
class ItemRows:
    """`payload[start:start + length]` belongs at prompt position `position`."""

    position: int
    payload: Payload
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Freed:
    """An item whose embedding nobody needs now. payload is None when it has not arrived."""

    item: int
    attempt: int
    payload: Payload | None


@dataclass(slots=True)
class Entry:
    """One request's items: state, expected attempt and payload of each."""

    items: tuple[MMItem, ...]
    states: list[ItemState]
    attempts: list[int]
    payloads: list[Payload | None]
    num_waiting: int

    def set(self, item: int, state: ItemState) -> None:
        before = self.states[item]
        self.num_waiting += (state is ItemState.WAITING) - (before is ItemState.WAITING)
        self.states[item] = state


class EmbeddingStore:
    """Readiness of whole requests: prefill may start when all items are encoded (gLLM, gLLM-epd).

    `rserve.core.tracker` refines `ready_until` to the longest ready prefix. tokens_held counts the
    embeddings in memory; num_stale those that came too late (aborted, preempted or covered).
    """

    def __init__(self, bytes_per_token: int = 0) -> None:
        self.bytes_per_token = bytes_per_token
        self.tokens_held = 0
        self.num_stale = 0
        self.entries: dict[str, Entry] = {}

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def bytes_held(self) -> int:
        return self.tokens_held * self.bytes_per_token

    def add(self, request_id: str, items: tuple[MMItem, ...]) -> None:
        """Start to track a request; its text is ready, its items are not."""
        n = len(items)
        self.entries[request_id] = Entry(items, [ItemState.WAITING] * n, [0] * n, [None] * n, n)

    def ready_until(self, request_id: str, start: int) -> int:
        """End of the tokens after `start` that may be prefilled: `start` itself while an item waits."""
        return start if self.is_waiting(request_id, start) else ALL_READY

    def is_waiting(self, request_id: str, start: int) -> bool:
        """True when an item after `start` is not encoded."""
        return self._first_waiting(self.entries[request_id], start) is not None

    def put(self, request_id: str, item: int, attempt: int, payload: Payload) -> bool:
        """An embedding arrived. False when nobody waits for it: the caller frees its memory."""
        entry = self.entries.get(request_id)
        if entry is None or entry.states[item] is not ItemState.WAITING or entry.attempts[item] != attempt:
            self.num_stale += 1
            return False
        entry.set(item, ItemState.READY)
        entry.payloads[item] = payload
        self.tokens_held += entry.items[item].num_tokens
        return True

    def rows(self, request_id: str, start: int, end: int) -> list[ItemRows]:
        """The embeddings of prompt positions [start, end), by item.

        An item of 80 tokens at 20 and the chunk [10, 74) give rows 0-53 of it at position 20.
        """
        found = []
        entry = self.entries[request_id]
        for index, item in enumerate(entry.items):
            first, last = max(start, item.offset), min(end, item.end)
            if first < last:
                payload = entry.payloads[index]
                if payload is None:
                    raise LookupError(f"request {request_id}: item {index} scheduled without its embedding")
                found.append(ItemRows(first, payload, first - item.offset, last - first))
        return found

    def release_before(self, request_id: str, position: int) -> list[Freed]:
        """All sequences of the request passed `position`: items that end there are not needed any more.

        An item before it that never arrived was in the prefix cache; its embedding, should it come, is stale.
        """
        freed = []
        entry = self.entries[request_id]
        for index, item in enumerate(entry.items):
            if item.end <= position and entry.states[index] in (ItemState.WAITING, ItemState.READY):
                waiting = entry.states[index] is ItemState.WAITING
                freed.append(self._free(entry, index))
                entry.set(index, ItemState.COVERED if waiting else ItemState.USED)
        return freed

    def cover(self, request_id: str, position: int) -> list[int]:
        """The first `position` tokens are in the prefix cache: items wholly inside need no encoding."""
        entry = self.entries[request_id]
        found = []
        for index, item in enumerate(entry.items):
            if item.end <= position and entry.states[index] is ItemState.WAITING:
                entry.set(index, ItemState.COVERED)
                found.append(index)
        return found

    def require(self, request_id: str, start: int) -> list[tuple[int, int]]:
        """A sequence starts (again) at `start`: items after it that were released must be encoded again.

        Returns (item, new attempt) of each.
        """
        entry = self.entries[request_id]
        again = []
        for index, item in enumerate(entry.items):
            if item.end > start and entry.states[index] in (ItemState.USED, ItemState.COVERED):
                entry.attempts[index] += 1
                entry.set(index, ItemState.WAITING)
                again.append((index, entry.attempts[index]))
        return again

    def retry(self, request_id: str, item: int, attempt: int) -> int | None:
        """An attempt failed: the next attempt's number, or None when nobody waits for that attempt."""
        entry = self.entries[request_id]
        if entry.states[item] is not ItemState.WAITING or entry.attempts[item] != attempt:
            return None
        entry.attempts[item] += 1
        return entry.attempts[item]

    def drop(self, request_id: str) -> list[Freed]:
        """Give up the embeddings a request holds; they count as used and must be required again."""
        entry = self.entries[request_id]
        freed = []
        for index, state in enumerate(entry.states):
            if state is ItemState.READY:
                freed.append(self._free(entry, index))
                entry.set(index, ItemState.USED)
        return freed

    def holds(self, request_id: str) -> bool:
        """True when an embedding of the request is in memory."""
        return any(state is ItemState.READY for state in self.entries[request_id].states)

    def has_arrived(self, request_id: str, item: int, attempt: int) -> bool:
        """True when exactly this embedding is in memory, or was and has been released."""
        entry = self.entries.get(request_id)
        if entry is None or entry.attempts[item] != attempt:
            return False
        return entry.states[item] in (ItemState.READY, ItemState.USED)

    def remove(self, request_id: str) -> list[Freed]:
        """Forget a request; returns what it still held."""
        freed = self.drop(request_id)
        del self.entries[request_id]
        return freed

    def _free(self, entry: Entry, index: int) -> Freed:
        payload = entry.payloads[index]
        if payload is not None:
            self.tokens_held -= entry.items[index].num_tokens
        entry.payloads[index] = None
        return Freed(index, entry.attempts[index], payload)

    @staticmethod
    def _first_waiting(entry: Entry, start: int) -> MMItem | None:
        if entry.num_waiting == 0:
            return None
        pairs: Iterable[tuple[MMItem, ItemState]] = zip(entry.items, entry.states)
        return next((i for i, s in pairs if s is ItemState.WAITING and i.end > start), None)
