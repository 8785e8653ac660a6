"""Scores of MMMU: per question, subject, discipline and overall, and the agreement of two runs."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.workloads.mmmu_rows import MmmuRow
from evaluation.mmmu_parse import matches_open, open_candidates, parse_choice

DISCIPLINES: dict[str, tuple[str, ...]] = {
    "Art and Design": ("Art", "Art_Theory", "Design", "Music"),
    "Business": ("Accounting", "Economics", "Finance", "Manage", "Marketing"),
    "Science": ("Biology", "Chemistry", "Geography", "Math", "Physics"),
    "Health and Medicine": (
        "Basic_Medical_Science",
        "Clinical_Medicine",
        "Diagnostics_and_Laboratory_Medicine",
        "Pharmacy",
        "Public_Health",
    ),
    "Humanities and Social Science": ("History", "Literature", "Psychology", "Sociology"),
    "Tech and Engineering": (
        "Agriculture",
        "Architecture_and_Engineering",
        "Computer_Science",
        "Electronics",
        "Energy_and_Power",
        "Materials",
        "Mechanical_Engineering",
    ),
}
OTHER = "Other"


@dataclass(frozen=True)
class Judged:
    """One judged response; `parsed` is what was read in it, None when nothing could be."""

    row: MmmuRow
    response: str | None
    parsed: str | None
    is_correct: bool


@dataclass(frozen=True)
class Accuracy:
    """Right answers out of all that were asked."""

    correct: int
    total: int

    @property
    def percent(self) -> float:
        return 100.0 * self.correct / self.total if self.total else 0.0


def judge(row: MmmuRow, response: str | None, guess: random.Random | None = None) -> Judged:
    """Judge one response; None is a request that failed, and is wrong.

    guess: picks a letter where a choice could not be read; without it such an answer is simply wrong.
    """
    if response is None:
        return Judged(row, None, None, False)
    if row.is_open:
        candidates = open_candidates(response)
        said = "; ".join(str(candidate) for candidate in candidates)
        return Judged(row, response, said or None, matches_open(candidates, row.answers))
    letter = parse_choice(response, row.options)
    if letter is None and guess is not None:
        return Judged(row, response, None, chr(65 + guess.randrange(len(row.options))) in row.answers)
    return Judged(row, response, letter, letter in row.answers)


def discipline_of(subject: str) -> str:
    """The discipline of an MMMU subject; "Other" for subjects that are none of MMMU's."""
    return next((name for name, subjects in DISCIPLINES.items() if subject in subjects), OTHER)


def accuracy(judged: Iterable[Judged]) -> Accuracy:
    """Share of right answers, as MMMU counts it: every question weighs the same."""
    answers = list(judged)
    return Accuracy(sum(answer.is_correct for answer in answers), len(answers))


def by_subject(judged: Sequence[Judged]) -> dict[str, Accuracy]:
    """Accuracy of each subject, in alphabetical order."""
    subjects = sorted({answer.row.subject for answer in judged})
    return {name: accuracy(answer for answer in judged if answer.row.subject == name) for name in subjects}


def by_discipline(judged: Sequence[Judged]) -> dict[str, Accuracy]:
    """Accuracy of each discipline that was asked about, in MMMU's order."""
    found = {}
    for name in (*DISCIPLINES, OTHER):
        answers = [answer for answer in judged if discipline_of(answer.row.subject) == name]
        if answers:
            found[name] = accuracy(answers)
    return found


def unparsed_rate(judged: Sequence[Judged]) -> float:
    """Share of answered questions whose response could not be read."""
    answered = [answer for answer in judged if answer.response is not None]
    return sum(answer.parsed is None for answer in answered) / len(answered) if answered else 0.0


def agreement(first: Mapping[str, str], second: Mapping[str, str]) -> float | None:
    """Share of the questions answered in both runs whose responses are the same, letter by letter.

    None when no question was answered in both.
    """
    shared = first.keys() & second.keys()
    return sum(first[key] == second[key] for key in shared) / len(shared) if shared else None
