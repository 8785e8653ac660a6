"""Filler text of a wanted length, in words or, with a tokenizer, in tokens."""

from __future__ import annotations

import random
from typing import Protocol

_COMMON_WORDS = """
    the of and to in a is that for it as was with be by on not he his but at are this have from or
    had an they which one you were all her she there would their we him been has when who will no
    more if out so up said what its about than into them can only other time new some could these
    two may first then do any like my now over such our man me even most made after also did many
    off before must well back through years where much your way
"""
VOCABULARY = tuple(_COMMON_WORDS.split())


class Tokenizer(Protocol):
    """What is needed of a tokenizer: of transformers' AutoTokenizer, for one."""

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]: ...
    def decode(self, token_ids: list[int]) -> str: ...


def random_words(rng: random.Random, num_words: int) -> str:
    """Words drawn from a hundred common English ones: about one token each in large vocabularies."""
    return " ".join(rng.choice(VOCABULARY) for _ in range(num_words))


def random_tokens(rng: random.Random, num_tokens: int, tokenizer: Tokenizer) -> str:
    """Random words cut to num_tokens tokens (one more or less where the cut falls inside a word)."""
    text = random_words(rng, num_tokens)  # a word is at least one token
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    return tokenizer.decode(token_ids[:num_tokens])


def filler(rng: random.Random, num_tokens: int, tokenizer: Tokenizer | None) -> tuple[str, int | None]:
    """Text of about num_tokens tokens, and how many; without a tokenizer as many words, count unknown."""
    if num_tokens <= 0:
        return "", 0
    if tokenizer is None:
        return random_words(rng, num_tokens), None
    text = random_tokens(rng, num_tokens, tokenizer)
    return text, len(tokenizer.encode(text, add_special_tokens=False))


def ranged_length(rng: random.Random, length: int, range_ratio: float) -> int:
    """A length drawn evenly from [length · range_ratio, length]: SGLang's `--random-range-ratio`."""
    return rng.randint(max(int(length * range_ratio), 1), length) if length > 0 else 0
