"""Table 1, measured: the same questions at a server of every scheme, and at transformers.

    python -m benchmarks.table1 --out results                       tiny in fp32, synthetic questions
    python -m benchmarks.table1 --model PATH --dataset-path DIR     another checkpoint, MMMU's parquet files

In fp32 all answers must be the same. Other servers: `python -m evaluation.mmmu --base-url …` appends theirs.
"""

from __future__ import annotations

import argparse
import io
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks import results
from benchmarks.client import BenchResult, BenchSpec, RequestRecord
from benchmarks.servers import ServerPlan, running
from benchmarks.workloads import Prompt, synthetic
from benchmarks.workloads.mmmu_prompt import original_image, question_parts
from benchmarks.workloads.mmmu_rows import MmmuRow, load_rows
from evaluation import mmmu
from rserve.core.epd_core import SCHEMES

MAX_TOKENS = 32


def main(argv: list[str] | None = None) -> int:
    """0 when every request was answered."""
    args = build_parser().parse_args(argv)
    path = args.out / "table1.jsonl"
    code = 0
    for scheme in args.schemes:
        point = {
            "experiment": "table1",
            "scheme": scheme,
            "num_questions": args.questions,
            "model": args.model,
        }
        if results.is_finished(results.read_lines([path]), point):
            continue
        flags = ("--scheme", scheme, "--dtype", args.dtype, "--device", args.device, *args.server_flags)
        with running(ServerPlan(args.model, flags), args.out / "logs") as server:
            words = ["--base-url", server.base_url, "--dataset-path", args.dataset_path, "--scheme", scheme]
            words += ["--limit", str(args.questions), "--max-tokens", str(MAX_TOKENS)]
            code = max(code, mmmu.main([*words, "--output-file", str(path), "--disable-tqdm"]))
    if not args.no_transformers:
        point = {"experiment": "table1", "label": "transformers", "num_questions": args.questions}
        if not results.is_finished(results.read_lines([path]), point):
            results.append_line(path, transformers_line(args))
    return code


def transformers_line(args: argparse.Namespace) -> results.Line:
    """The reference: the same questions at transformers' own model class, greedily, in fp32."""
    from evaluation.tiny_vlm.reference import load_tokenizer, reference_generate
    from gllm.models.names import resolve_model

    folder = resolve_model(args.model)
    rows = _rows(args.dataset_path, args.questions)
    records = []
    start = time.perf_counter()
    for index, row in enumerate(rows):
        prompt = Prompt(tuple(question_parts(row, original_image)), MAX_TOKENS)
        began = time.perf_counter()
        answer = reference_generate(folder, _template_messages(prompt), _images(prompt), MAX_TOKENS)
        text = load_tokenizer(str(folder)).decode(answer.token_ids, skip_special_tokens=True)
        seconds = time.perf_counter() - began
        records.append(
            RequestRecord(
                index,
                0.0,
                ttft=seconds,
                latency=seconds,
                prompt_tokens=len(answer.prompt_ids),
                vision_tokens=0,
                output_tokens=len(answer.token_ids),
                text=text,
            )
        )
    spec = BenchSpec("transformers", [Prompt(())] * len(rows), backend="openai")
    result = BenchResult(spec, args.model, {}, tuple(records), time.perf_counter() - start)
    line = mmmu.score_line(mmmu.judge_all(rows, result), result, "transformers")
    print(f"transformers: score {line['score']:.1f} on {len(rows)} questions")
    return line | {"label": "transformers", "dtype": "float32", "request_rate": None}


def _rows(dataset_path: str, limit: int) -> list[MmmuRow]:
    if dataset_path == mmmu.SYNTHETIC:
        return synthetic.rows(limit, seed=0)
    return load_rows(dataset_path, "validation", limit)


def _template_messages(prompt: Prompt) -> list[dict[str, Any]]:
    parts = []
    for part in prompt.messages()[0]["content"]:
        parts.append({"type": "image"} if part["type"] == "image_url" else part)
    return [{"role": "user", "content": parts}]


def _images(prompt: Prompt) -> Sequence[Image.Image]:
    return [Image.open(io.BytesIO(image.data)) for image in prompt.images]


def build_parser() -> argparse.ArgumentParser:
    """All flags."""
    parser = argparse.ArgumentParser(prog="table1", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder (default %(default)s)")
    parser.add_argument("--model", default="tiny", help="(default: %(default)s)")
    parser.add_argument("--dtype", default="float32", help="(default: %(default)s)")
    parser.add_argument("--device", default="auto", help="(default: %(default)s)")
    parser.add_argument("--dataset-path", default=mmmu.SYNTHETIC, help="(default: %(default)s)")
    parser.add_argument("--questions", type=int, default=100, help="(default: %(default)s)")
    parser.add_argument("--schemes", nargs="+", default=list(SCHEMES), choices=SCHEMES)
    parser.add_argument("--no-transformers", action="store_true", help="leave the reference out")
    parser.add_argument(
        "--server-flags", nargs=argparse.REMAINDER, default=[], help="the rest goes to the server"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
