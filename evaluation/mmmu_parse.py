"""From a model's words to an option letter or to what an open answer is compared by: MMMU's rules.

Nothing is guessed here: what cannot be read is None, or no candidates.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_EDGE_PUNCTUATION = " \t\n,.!?;:'\"*"
_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][+-]?\d+)?|-?\.\d+")
_ANSWER_CUES = ("could be ", "so ", "is ", "thus ", "therefore ", "final ", "answer ", "result ")
_SENTENCE_END = re.compile(r"\.\s+|\n+")
MAX_PHRASE_WORDS = 5


def parse_choice(response: str, options: Sequence[str]) -> str | None:
    """The letter that a response to a multiple-choice question names, or None.

    Tried in order: a letter in brackets "(B)", a letter standing alone "B", a letter before a full stop "B.",
    and, in a response of more than five words, the text of an option. The last one named wins. Examples:
    "B", "(B) because of A" and "The answer is B." are all B; "I do not know" is None.
    """
    letters = [chr(65 + index) for index in range(len(options))]
    text = f" {response.strip(_EDGE_PUNCTUATION)} "
    for pattern in (r"\({}\)", r"(?<=\s){}(?=\s)", r"(?<=\s){}(?=[.:),])"):
        found = _last_named(text, {letter: re.compile(pattern.format(letter)) for letter in letters})
        if found is not None:
            return found
    if len(text.split()) <= MAX_PHRASE_WORDS:
        return _whole_option(response, options, letters)
    contents = {
        letter: re.compile(re.escape(option.strip()), re.IGNORECASE)
        for letter, option in zip(letters, options)
        if option.strip()
    }
    return _last_named(text, contents)


def open_candidates(response: str) -> list[str | float]:
    """What a free answer may mean: its telling phrases in lower case, and its numbers rounded to two places.

    Of each sentence the part after the last cue ("is", "so", "answer", "=" in the last sentence, …) counts;
    when no sentence has one, the whole response. "The area is 1,234.567 cm²." → ["1,234.567 cm²", 1234.57].
    """
    text = response.strip().strip(_EDGE_PUNCTUATION).lower()
    if not text:
        return []
    phrases = _telling_phrases(text) or [text]
    numbers = [number for phrase in phrases for number in numbers_in(phrase)]
    return list(dict.fromkeys([*phrases, *numbers]))


def numbers_in(text: str) -> list[float]:
    """Every number in a text, rounded to two places: "1,000 of 3.14159e1" → [1000.0, 31.42]."""
    return [round(float(found.replace(",", "")), 2) for found in _NUMBER.findall(text)]


def matches_open(candidates: Sequence[str | float], answers: Sequence[str]) -> bool:
    """Whether some candidate says one of the right answers.

    A number must be equal to two decimal places; words must occur in a phrase as whole words.
    """
    return any(_says(candidate, answer) for candidate in candidates for answer in answers)


def _last_named(text: str, patterns: dict[str, re.Pattern[str]]) -> str | None:
    ends = {letter: match.start() for letter, pattern in patterns.items() for match in pattern.finditer(text)}
    return max(ends, key=lambda letter: ends[letter]) if ends else None


def _whole_option(response: str, options: Sequence[str], letters: Sequence[str]) -> str | None:
    """A short response that is exactly one option's text: "blue" for (C) blue."""
    said = response.strip(_EDGE_PUNCTUATION).lower()
    found = [
        letter for letter, option in zip(letters, options) if option.strip(_EDGE_PUNCTUATION).lower() == said
    ]
    return found[0] if said and len(found) == 1 else None


def _telling_phrases(text: str) -> list[str]:
    sentences = [sentence for sentence in _SENTENCE_END.split(text) if sentence.strip()]
    phrases = []
    for index, sentence in enumerate(sentences):
        cues = (*_ANSWER_CUES, "=") if index == len(sentences) - 1 else _ANSWER_CUES
        tails = [sentence.rsplit(cue, 1)[1].strip(_EDGE_PUNCTUATION) for cue in cues if cue in sentence]
        phrases += [min(tails, key=len)] if any(tails) else []
    return [phrase for phrase in phrases if phrase]


def _says(candidate: str | float, answer: str) -> bool:
    wanted = answer.strip().lower()
    if _NUMBER.fullmatch(wanted):
        return candidate == numbers_in(wanted)[0]
    if type(candidate) is float:
        return False
    return re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", str(candidate)) is not None
