"""Token ids to text, one token at a time: whole characters only, and nothing of a stop string."""

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


class Vocabulary(Protocol):
    """What the detokeniser asks of a tokenizer (`tokenizers.Tokenizer` has it)."""

    def id_to_token(self, id: int) -> str | None: ...

    def get_added_tokens_decoder(self) -> Mapping[int, "AddedToken"]: ...


class AddedToken(Protocol):
    """A token outside the byte-level vocabulary: its text, and whether it is special."""

    content: str
    special: bool


def byte_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in byte-level BPE vocabularies, and that byte.

    Printable Latin-1 characters stand for themselves; the others are shifted to U+0100 and up in order:
    'A' -> 0x41, 'Ġ' (U+0120) -> 0x20.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


class TokenBytes:
    """The bytes of every token of a byte-level vocabulary, looked up once per token id."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._alphabet = byte_alphabet()
        added = vocabulary.get_added_tokens_decoder()
        self._special = frozenset(i for i, token in added.items() if token.special)
        self._known: dict[int, bytes] = {i: token.content.encode() for i, token in added.items()}

    def bytes_of(self, token_id: int) -> bytes:
        """The token's bytes; empty for an id that the vocabulary does not have (padded embeddings)."""
        found = self._known.get(token_id)
        if found is None:
            token = self._vocabulary.id_to_token(token_id) or ""
            found = bytes(self._alphabet[char] for char in token)
            self._known[token_id] = found
        return found

    def text_of(self, token_id: int) -> str:
        """The token alone as text; bytes that are no whole character become U+FFFD."""
        return self.bytes_of(token_id).decode("utf-8", errors="replace")

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special

    def decode(self, token_ids: Sequence[int], skip_special: bool = True) -> str:
        """All tokens as one text."""
        parts = (self.bytes_of(t) for t in token_ids if not (skip_special and self.is_special(t)))
        return b"".join(parts).decode("utf-8", errors="replace")


@dataclass(frozen=True)
class StopRule:
    """What ends a text and what may be shown of it.

    strings: the text ends before the first of them (after it with include_stop). skip_special: special
    tokens give no text.
    """

    strings: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special: bool = True


class StopMatcher:
    """Finds stop strings in a stream of text, however it is cut.

    The match that is complete first wins, and of those that end together the longest. Text that may be the
    beginning of a stop string is held back: with stop 'END', feeding 'xE' gives 'x', then 'a' gives 'Ea'.
    """

    def __init__(self, rule: StopRule) -> None:
        self._rule = rule
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """(text that can be shown, the stop string found or None)."""
        self._held += text
        found = self._first_match()
        if found is not None:
            start, end = found
            stop = self._held[start:end]
            shown = self._held[: end if self._rule.include_stop else start]
            self._held = ""
            return shown, stop
        keep = self._num_held()
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown, None

    def flush(self) -> str:
        """What was held back, once no more text can come."""
        shown, self._held = self._held, ""
        return shown

    def _first_match(self) -> tuple[int, int] | None:
        places = ((self._held.find(stop), len(stop)) for stop in self._rule.strings)
        matches = [(at + length, at) for at, length in places if at >= 0]
        if not matches:
            return None
        end, start = min(matches)
        return start, end

    def _num_held(self) -> int:
        longest = max((len(stop) for stop in self._rule.strings), default=1) - 1
        for size in range(min(longest, len(self._held)), 0, -1):
            tail = self._held[-size:]
            if any(stop.startswith(tail) for stop in self._rule.strings):
                return size
        return 0


@dataclass(slots=True)
class Detokenizer:
    """One answer as it grows: tokens go in, readable text comes out."""

    tokens: TokenBytes
    rule: StopRule
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")(errors="replace")
    )
    _matcher: StopMatcher | None = None

    def __post_init__(self) -> None:
        if self.rule.strings:
            self._matcher = StopMatcher(self.rule)

    def feed(self, token_id: int) -> tuple[str, str | None]:
        """(new text, the stop string that ends the answer or None)."""
        if self.rule.skip_special and self.tokens.is_special(token_id):
            return "", None
        text = self._decoder.decode(self.tokens.bytes_of(token_id))
        return (text, None) if self._matcher is None else self._matcher.feed(text)

    def finish(self) -> tuple[str, str | None]:
        """The rest, when no token follows: half a character becomes U+FFFD, held text is shown."""
        text = self._decoder.decode(b"", final=True)
        if self._matcher is None:
            return text, None
        shown, stop = self._matcher.feed(text)
        return (shown, stop) if stop is not None else (shown + self._matcher.flush(), None)
