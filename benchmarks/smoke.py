"""The first thing a newcomer sees: the `tiny` model served, asked about real images over HTTP, and timed.

    python -m benchmarks.smoke --out results

Prints each question with the answer, the expected answer and the time to first token; appends one result line
and draws a first figure, the times to first token.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import results
from benchmarks.alternate import one_at_a_time
from benchmarks.client import BenchResult, BenchSpec, result_line
from benchmarks.servers import Server, ServerPlan, running
from benchmarks.workloads import Prompt, synthetic
from benchmarks.workloads.mmmu_prompt import original_image, question_parts
from benchmarks.workloads.mmmu_rows import MmmuRow
from plots import style

MAX_TOKENS = 16


def main(argv: list[str] | None = None) -> int:
    """0 when every request was answered."""
    args = build_parser().parse_args(argv)
    rows = synthetic.rows(args.questions, args.seed)
    plan = ServerPlan("tiny", ("--scheme", args.scheme))
    print(f"starting: {plan.shown}", flush=True)
    with running(plan, args.out / "logs") as server:
        print(f"ready after {server.start_s:.1f} s at {server.base_url}", flush=True)
        result = ask(server, rows)
    tell(rows, result)
    line = result_line(result, "synthetic", experiment="smoke", start_s=server.start_s)
    results.append_line(args.out / "smoke.jsonl", line)
    for path in draw(result, line, args.out / "figures"):
        print(f"figure: {path}")
    print(f"result line: {args.out / 'smoke.jsonl'}; the server is stopped", flush=True)
    return 1 if result.failed else 0


def ask(server: Server, rows: Sequence[MmmuRow]) -> BenchResult:
    """Every question by itself, one after the other; the first one also warms up."""
    prompts = [
        Prompt(tuple(question_parts(row, original_image)), MAX_TOKENS, None, row.row_id) for row in rows
    ]
    (result,) = one_at_a_time([BenchSpec(server.base_url, prompts=[], ignore_eos=False)], prompts)
    return result


def tell(rows: Sequence[MmmuRow], result: BenchResult) -> None:
    """Questions and answers for people."""
    for row, prompt, record in zip(rows, result.spec.prompts, result.records):
        print(f"\n[{len(prompt.images)} image(s)] {' '.join(prompt.text.split())}")
        if record.ok:
            expected = " or ".join(map(str, row.answers))
            print(f"  → {record.text.strip()}   (expected {expected}; TTFT {record.ttft * 1e3:.0f} ms)")
        else:
            print(f"  → FAILED: {record.error}")
    times = [record.ttft * 1e3 for record in result.records if record.ok]
    if times:
        print(f"\n{len(times)} answers, median TTFT {statistics.median(times):.0f} ms")


def draw(result: BenchResult, line: results.Line, out_dir: Path) -> list[Path]:
    """TTFT of each question, by its number of images."""
    figure, (axis,) = style.new_figure(1)
    good = [(len(p.images), r.ttft) for p, r in zip(result.spec.prompts, result.records) if r.ok]
    axis.plot([x for x, _ in good], [y * 1e3 for _, y in good], label="RServe", **_dots())
    axis.set_xticks(sorted({x for x, _ in good}))
    axis.set_xlabel("Images in the request")
    axis.set_ylabel("TTFT (ms)")
    axis.set_ylim(bottom=0)
    figure.suptitle(f"First requests, tiny, one at a time\nmeasured on {line['hardware']}")
    rows = [{"images": x, "ttft_ms": y * 1e3} for x, y in good]
    return style.save(figure, "first_requests", rows, out_dir)


def _dots() -> dict[str, object]:
    return style.look_of("RServe").line() | {"linestyle": "none"}


def build_parser() -> argparse.ArgumentParser:
    """All flags."""
    parser = argparse.ArgumentParser(prog="smoke", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder (default %(default)s)")
    parser.add_argument("--scheme", default="rserve", help="(default: %(default)s)")
    parser.add_argument("--questions", type=int, default=8, help="how many (default %(default)s)")
    parser.add_argument("--seed", type=int, default=3, help="of the pictures (default %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
