"""Text that grows token by token is the text of all its bytes, whatever the cuts."""

import itertools
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from gllm.entrypoints.detokenize import Detokenizer, StopMatcher, StopRule, TokenBytes, byte_alphabet


@dataclass(frozen=True)
class Added:
    content: str
    special: bool


class FakeVocabulary:
    """Token i is pieces[i]; two added tokens follow, the first of them special."""

    def __init__(self, pieces: list[bytes]) -> None:
        alphabet = {byte: char for char, byte in byte_alphabet().items()}
        self._tokens = ["".join(alphabet[b] for b in piece) for piece in pieces]
        size = len(pieces)
        self._added = {size: Added("<|end|>", True), size + 1: Added("<tool>", False)}

    def id_to_token(self, id: int) -> str | None:
        return self._tokens[id] if id < len(self._tokens) else None

    def get_added_tokens_decoder(self) -> dict[int, Added]:
        return self._added


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(p % (len(data) + 1) for p in places)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def run(pieces: list[bytes], rule: StopRule) -> tuple[str, str | None, list[str]]:
    """(whole text, stop string found, the text of each token)."""
    detokenizer = Detokenizer(TokenBytes(FakeVocabulary(pieces)), rule)
    shown: list[str] = []
    for token_id in range(len(pieces)):
        text, stop = detokenizer.feed(token_id)
        shown.append(text)
        if stop is not None:
            return "".join(shown), stop, shown
    text, stop = detokenizer.finish()
    return "".join([*shown, text]), stop, shown


@given(st.text(), st.lists(st.integers(0, 1000)))
def test_any_split_of_utf8_over_tokens_gives_the_text_back(text: str, places: list[int]):
    text = text.encode("utf-8", "ignore").decode()
    assert run(cut(text.encode(), places), StopRule())[0] == text


@given(st.binary(), st.lists(st.integers(0, 1000)))
def test_bytes_that_are_no_text_decode_as_they_would_in_one_piece(data: bytes, places: list[int]):
    assert run(cut(data, places), StopRule())[0] == data.decode("utf-8", errors="replace")


def test_half_a_character_is_held_back_until_the_rest_comes():
    euro = "€".encode()
    _, _, shown = run([b"a", euro[:1], euro[1:2], euro[2:], b"b"], StopRule())
    assert shown == ["a", "", "", "€", "b"]


def test_half_a_character_at_the_end_becomes_a_replacement_mark():
    assert run(["€".encode()[:2]], StopRule())[0] == "\ufffd"


letters = st.text(alphabet="abc", max_size=12)
stop_strings = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), min_size=1, max_size=3)


@given(letters, stop_strings, st.lists(st.integers(0, 30)), st.booleans())
def test_stop_strings_end_the_text_at_the_same_place_however_it_is_cut(text, stops, places, include):
    rule = StopRule(tuple(stops), include)
    whole = run([text.encode()] if text else [], rule)[:2]
    assert run(cut(text.encode(), places) if text else [], rule)[:2] == whole
    assert run([c.encode() for c in text], rule)[:2] == whole


@given(letters, stop_strings)
def test_shown_text_never_holds_a_stop_string_and_loses_nothing_without_one(text, stops):
    shown, stop, _ = run([c.encode() for c in text], StopRule(tuple(stops)))
    assert not any(s in shown for s in stops)
    if stop is None:
        assert shown == text
    else:
        assert text.startswith(shown + stop)


def test_the_beginning_of_a_stop_string_is_held_back_until_it_is_none():
    matcher = StopMatcher(StopRule(("END",)))
    assert matcher.feed("xE") == ("x", None)
    assert matcher.feed("N") == ("", None)
    assert matcher.feed("a") == ("ENa", None)
    assert matcher.feed("END!") == ("", "END")


def test_the_stop_string_is_shown_when_asked_for():
    assert run([b"one EN", b"D two"], StopRule(("END",), include_stop=True))[0] == "one END"


def test_special_tokens_give_no_text_unless_asked_for():
    tokens = TokenBytes(FakeVocabulary([b"a"]))
    assert tokens.decode([0, 1, 2]) == "a<tool>"
    assert tokens.decode([0, 1, 2], skip_special=False) == "a<|end|><tool>"
    assert Detokenizer(tokens, StopRule()).feed(1) == ("", None)
    assert Detokenizer(tokens, StopRule(skip_special=False)).feed(1) == ("<|end|>", None)


def test_an_id_beyond_the_vocabulary_gives_no_text():
    assert TokenBytes(FakeVocabulary([b"a"])).bytes_of(99) == b""
