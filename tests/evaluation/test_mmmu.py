"""MMMU: reading answers, scores, and a whole evaluation against a server with known answers."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest

from benchmarks.results import read_lines
from benchmarks.workloads import synthetic
from benchmarks.workloads.mmmu_rows import MmmuRow
from evaluation import mmmu, mmmu_score
from evaluation.mmmu_parse import matches_open, numbers_in, open_candidates, parse_choice
from tests.benchmarks.fake_server import FakeServer, serving

OPTIONS = ("red apple", "blue sky", "green field", "black cat")


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        ("B", "B"),
        (" b", None),
        ("B.", "B"),
        ("(C)", "C"),
        ("(C) green field", "C"),
        ("**D**", "D"),
        ("The answer is B.", "B"),
        ("Answer: B", "B"),
        ("A. red apple", "A"),
        ("B: blue sky", "B"),
        ("First I thought of (A), but it is (D)", "D"),
        ("blue sky", "B"),
        ("Looking closely at both pictures, one sees a green field with trees", "C"),
        ("I do not know", None),
        ("E", None),
        ("", None),
    ],
)
def test_a_choice_is_read_by_the_rules_and_never_guessed(response: str, letter: str | None) -> None:
    assert parse_choice(response, OPTIONS) == letter


@pytest.mark.parametrize(
    ("response", "answers", "is_right"),
    [
        ("7", ("7",), True),
        ("The area is 1,234.567 cm²", ("1234.57",), True),
        ("x = 3 + 4 = 7", ("7",), True),
        ("about 17", ("7",), False),
        ("It is the mitral valve.", ("mitral valve",), True),
        ("The colour is redish", ("red",), False),
        ("0.5", ("1/2", "0.5"), True),
        ("-3.0", ("-3",), True),
        ("", ("7",), False),
    ],
)
def test_an_open_answer_is_compared_by_number_or_by_whole_words(
    response: str, answers: tuple[str, ...], is_right: bool
) -> None:
    assert matches_open(open_candidates(response), answers) == is_right


def test_numbers_are_read_with_thousands_and_exponents() -> None:
    assert numbers_in("1,000 of 3.14159e1 and -.5, not 2,5") == [1000.0, 31.42, -0.5, 2.0, 5.0]


def choice_row(subject: str, number: int, answer: str) -> MmmuRow:
    return MmmuRow(f"validation_{subject}_{number}", "q", OPTIONS, (answer,), "multiple-choice", {})


def test_scores_are_by_subject_discipline_and_overall_and_failures_are_wrong() -> None:
    judged = [
        mmmu_score.judge(choice_row("Art", 1, "A"), "A"),
        mmmu_score.judge(choice_row("Art_Theory", 1, "B"), "(C)"),
        mmmu_score.judge(choice_row("Math", 1, "B"), "hm"),
        mmmu_score.judge(choice_row("Math", 2, "B"), None),
    ]
    subjects = {name: (part.correct, part.total) for name, part in mmmu_score.by_subject(judged).items()}
    assert subjects == {"Art": (1, 1), "Art_Theory": (0, 1), "Math": (0, 2)}
    disciplines = {name: part.percent for name, part in mmmu_score.by_discipline(judged).items()}
    assert disciplines == {"Art and Design": 50.0, "Science": 0.0}
    assert mmmu_score.accuracy(judged).percent == 25.0
    assert mmmu_score.unparsed_rate(judged) == pytest.approx(1 / 3)


def test_unreadable_choices_are_guessed_only_when_asked_for() -> None:
    row = choice_row("Math", 1, "B")
    assert not mmmu_score.judge(row, "no idea").is_correct
    guesses = [mmmu_score.judge(row, "no idea", random.Random(seed)) for seed in range(40)]
    assert 0 < sum(guess.is_correct for guess in guesses) < 40
    assert all(guess.parsed is None for guess in guesses)


def test_the_thirty_subjects_have_a_discipline_and_others_are_other() -> None:
    assert sum(len(subjects) for subjects in mmmu_score.DISCIPLINES.values()) == 30
    assert mmmu_score.discipline_of("Art_Theory") == "Art and Design"
    assert mmmu_score.discipline_of("Colour") == "Other"


def test_agreement_counts_equal_responses_to_questions_that_both_answered() -> None:
    assert mmmu_score.agreement({"a": "A", "b": "B", "c": "C"}, {"a": "A", "b": "D"}) == 0.5
    assert mmmu_score.agreement({"a": "A"}, {}) is None


def evaluate(server: FakeServer, *flags: str) -> int:
    async def run() -> int:
        async with serving(server) as url:
            return await asyncio.to_thread(mmmu.main, ["--base-url", url, "--disable-tqdm", *flags])

    return asyncio.run(run())


def test_an_evaluation_asks_every_question_and_scores_the_answers(tmp_path: Path) -> None:
    rows = synthetic.rows(20, seed=0)
    synthetic.write(tmp_path, synthetic.generate(20, seed=0))
    server = FakeServer(contents=("B",), info={"scheme": "rserve"})
    flags = ["--dataset-path", str(tmp_path), "--output-file", str(tmp_path / "o.jsonl")]
    assert evaluate(server, *flags, "--answers-file", str(tmp_path / "a.json")) == 0
    (line,) = read_lines([tmp_path / "o.jsonl"])
    right = sum("B" in row.answers for row in rows)
    assert line["score"] == pytest.approx(100 * right / 20)
    assert (line["workload"], line["scheme"], line["experiment"]) == ("synthetic", "rserve", "table1")
    assert line["responses"] == {row.row_id: "B" for row in rows}
    assert [answer["id"] for answer in json.loads((tmp_path / "a.json").read_text())] == [
        r.row_id for r in rows
    ]
    assert all(body["ignore_eos"] is False and body["temperature"] == 0.0 for body in server.bodies)


def test_a_failed_question_is_shown_and_fails_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    server = FakeServer(contents=("B",), faults={3: "500"})
    assert evaluate(server, "--dataset-path", "synthetic", "--limit", "6") == 1
    out = capsys.readouterr().out
    assert "FAILED: 1 × HTTP 500: out of blocks" in out
    assert "synthetic questions (not MMMU)" in out
