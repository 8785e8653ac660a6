"""MMMU through a server: `python -m evaluation.mmmu --base-url http://127.0.0.1:8000 --dataset-path DIR`.

Questions are asked greedily with `--concurrency` at a time. Without `--dataset-path` the published validation
set is fetched from the Hub; `--dataset-path synthetic` makes the stand-in of benchmarks.workloads.synthetic,
whose scores are named "synthetic".
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.client import BenchResult, BenchSpec, result_line, run_benchmark
from benchmarks.client.backends import BACKENDS
from benchmarks.workloads import Prompt, synthetic
from benchmarks.workloads.mmmu import MmmuSpec, workload_name
from benchmarks.workloads.mmmu_prompt import original_image, question_parts
from benchmarks.workloads.mmmu_rows import MmmuRow, load_rows
from evaluation import mmmu_score
from evaluation.mmmu_score import Accuracy, Judged

SYNTHETIC = "synthetic"
SYNTHETIC_ROWS = 300


def main(argv: list[str] | None = None) -> int:
    """Ask, judge, print; 0 when every request succeeded, 1 when some failed, 2 for a wrong call."""
    args = _parser().parse_args(argv)
    try:
        rows = _rows(args.dataset_path, args.split, args.limit)
        result = asyncio.run(run_benchmark(_spec(rows, args)))
    except (ValueError, ConnectionError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    judged = judge_all(rows, result, args.guess_seed)
    line = score_line(judged, result, args.scheme)
    print(format_table(judged, line))
    if args.output_file:
        results.append_line(args.output_file, line)
    if args.answers_file:
        _write_answers(args.answers_file, judged)
    return 1 if result.failed else 0


def judge_all(rows: Sequence[MmmuRow], result: BenchResult, guess_seed: int | None = None) -> list[Judged]:
    """Judge the answers of a run whose prompts are these questions, in order."""
    guess = None if guess_seed is None else random.Random(guess_seed)
    texts = [record.text if record.ok else None for record in result.records]
    return [mmmu_score.judge(row, text, guess) for row, text in zip(rows, texts, strict=True)]


def score_line(judged: Sequence[Judged], result: BenchResult, scheme: str | None = None) -> results.Line:
    """The result line of Table 1: `score` in percent, parts of it, and every response by question id."""
    rows = [answer.row for answer in judged]
    extra: dict[str, Any] = {
        "experiment": "table1",
        "score": mmmu_score.accuracy(judged).percent,
        "num_questions": len(judged),
        "unparsed_rate": mmmu_score.unparsed_rate(judged),
        "score_by_subject": _percents(mmmu_score.by_subject(judged)),
        "score_by_discipline": _percents(mmmu_score.by_discipline(judged)),
        "responses": {answer.row.row_id: answer.response for answer in judged if answer.response is not None},
    }
    if scheme is not None:
        extra["scheme"] = scheme
    return result_line(result, workload_name(rows, MmmuSpec()), **extra)


def format_table(judged: Sequence[Judged], line: results.Line) -> str:
    """Accuracy by subject and discipline, failures, and answers that could not be read."""
    title = "synthetic questions (not MMMU)" if line["workload"] == SYNTHETIC else "MMMU validation"
    rows = [f"{title}, {line['model']}, scheme {line['scheme'] or 'unknown'}", ""]
    for name, part in mmmu_score.by_subject(judged).items():
        rows.append(_row(name.replace("_", " "), part))
    rows.append("-" * 60)
    for name, part in mmmu_score.by_discipline(judged).items():
        rows.append(_row(name, part))
    rows += ["=" * 60, _row("Overall", mmmu_score.accuracy(judged)), ""]
    rows.append(f"could not be read: {line['unparsed_rate']:.1%} of the answers (counted as wrong)")
    if line["failed"]:
        rows += [f"FAILED: {count} × {reason}" for reason, count in line["errors_by_reason"].items()]
    return "\n".join(rows)


def _spec(rows: Sequence[MmmuRow], args: argparse.Namespace) -> BenchSpec:
    prompts = [
        Prompt(tuple(question_parts(row, original_image)), args.max_tokens, None, row.row_id) for row in rows
    ]
    return BenchSpec(
        base_url=args.base_url.rstrip("/").removesuffix("/v1"),
        prompts=prompts,
        model=args.model,
        backend=args.backend,
        max_concurrency=args.concurrency,
        ignore_eos=False,
        warmup_requests=0,
        timeout_s=args.request_timeout,
        progress=not args.disable_tqdm,
    )


def _rows(dataset_path: str, split: str, limit: int | None) -> list[MmmuRow]:
    if dataset_path == SYNTHETIC:
        return synthetic.rows(limit or SYNTHETIC_ROWS, seed=0)
    return load_rows(dataset_path, split, limit)


def _percents(parts: dict[str, Accuracy]) -> dict[str, dict[str, float]]:
    return {name: {"score": part.percent, "num_questions": part.total} for name, part in parts.items()}


def _row(name: str, part: Accuracy) -> str:
    return f"{name:<42}{part.percent:>7.1f} %{part.correct:>5}/{part.total}"


def _write_answers(path: str, judged: Sequence[Judged]) -> None:
    answers = [
        {
            "id": answer.row.row_id,
            "answers": answer.row.answers,
            "response": answer.response,
            "parsed": answer.parsed,
            "correct": answer.is_correct,
        }
        for answer in judged
    ]
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(answers, indent=1, ensure_ascii=False), encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mmmu", description="Score a server on MMMU.")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000", help="default %(default)s")
    parser.add_argument(
        "--backend", choices=BACKENDS, default="rserve", help="kind of server (default %(default)s)"
    )
    parser.add_argument("--model", help="default: the first that the server lists")
    parser.add_argument("--scheme", help="name in the result line (default: what the server tells)")
    parser.add_argument("--dataset-path", default="", help=f"parquet folder or Hub name, or {SYNTHETIC!r}")
    parser.add_argument("--split", default="validation", help="default %(default)s")
    parser.add_argument("--limit", type=int, help="ask only the first questions")
    parser.add_argument(
        "--concurrency", type=int, default=16, help="requests at a time (default %(default)s)"
    )
    parser.add_argument("--max-tokens", type=int, default=512, help="longest answer (default %(default)s)")
    parser.add_argument(
        "--request-timeout", type=float, default=3600.0, metavar="S", help="default %(default)s s"
    )
    parser.add_argument("--guess-seed", type=int, help="guess choices that cannot be read, from this seed")
    parser.add_argument("--output-file", metavar="FILE.jsonl", help="the result line is appended")
    parser.add_argument("--answers-file", metavar="FILE.json", help="every answer and how it was read")
    parser.add_argument("--disable-tqdm", action="store_true", help="no progress bar")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
