"""A synthetic stand-in for MMMU, in its columns, for where the real set cannot be reached.

`python -m benchmarks.workloads.synthetic --out DIR` writes `DIR/synthetic-validation.parquet`: questions
about one to four drawn pictures from the generator of the `tiny` model, whose answers can be scored. Ids
read `synthetic_SUBJECT_N`; whatever is drawn from these questions is called "synthetic", never "MMMU".
"""

from __future__ import annotations

import argparse
import io
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image as PilImage

from benchmarks.workloads.mmmu_rows import MAX_IMAGES, MmmuRow, parse_row
from evaluation.tiny_vlm.pictures import PLACEMENTS, Example, Style, make_example

FILE_NAME = "synthetic-validation.parquet"
KINDS = ("colour", "shape", "digit", "lookup")
OPEN_SHARE = 0.1  # of MMMU's validation questions, six in a hundred are open


def generate(num_rows: int, seed: int, max_images: int = 4, side: int = 56) -> list[dict[str, Any]]:
    """Rows in MMMU's columns; pictures are about side × side pixels. The same seed gives the same rows."""
    rng = random.Random(seed)
    return [_row(rng, index, rng.randint(1, max_images), side) for index in range(num_rows)]


def rows(num_rows: int, seed: int, max_images: int = 4, side: int = 56) -> list[MmmuRow]:
    """The same as questions, without a file between."""
    return [parse_row(raw) for raw in generate(num_rows, seed, max_images, side)]


def write(folder: str | Path, raw_rows: list[dict[str, Any]]) -> Path:
    """Write rows as one parquet file that `datasets` reads; returns its path."""
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    texts = ("id", "question", "options", "explanation", "answer", "question_type", "subfield", "img_type")
    images = [f"image_{n}" for n in range(1, MAX_IMAGES + 1)]
    schema = pa.schema([(name, pa.string()) for name in texts] + [(name, image) for name in images])
    path = Path(folder) / FILE_NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(raw_rows, schema=schema), path)
    return path


def main(argv: list[str] | None = None) -> int:
    """Command line: write the file and say where it is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", required=True, help="folder that gets the parquet file")
    parser.add_argument("--num-rows", type=int, default=300, help="number of questions (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the generator (default %(default)s)")
    parser.add_argument(
        "--max-images", type=int, default=4, help="most images in a question (default %(default)s)"
    )
    parser.add_argument(
        "--side", type=int, default=56, help="side of a picture in pixels (default %(default)s)"
    )
    args = parser.parse_args(argv)
    path = write(args.out, generate(args.num_rows, args.seed, args.max_images, args.side))
    print(f"wrote {args.num_rows} synthetic questions to {path}")
    return 0


def _row(rng: random.Random, index: int, num_images: int, side: int) -> dict[str, Any]:
    is_open = rng.random() < OPEN_SHARE
    sizes = ((side, side), (side * 3 // 2, side), (side, side * 3 // 2))
    kind = rng.choice([kind for kind in KINDS if num_images > 1 or kind != "lookup"])
    style = Style(kind, 0 if is_open else 4, rng.choice(PLACEMENTS), sizes)
    example = make_example(rng, num_images, style)
    return _columns(example, f"synthetic_{kind.capitalize()}_{index + 1}") | _image_columns(example)


def _columns(example: Example, row_id: str) -> dict[str, Any]:
    return {
        "id": row_id,
        "question": example.question,
        "options": str(list(example.options)),
        "explanation": "",
        "answer": example.answer,
        "question_type": "multiple-choice" if example.options else "open",
        "subfield": "synthetic",
        "img_type": "['Drawing']",
    }


def _image_columns(example: Example) -> dict[str, Any]:
    cells: dict[str, Any] = {f"image_{n}": None for n in range(1, MAX_IMAGES + 1)}
    for number, picture in enumerate(example.images, start=1):
        cells[f"image_{number}"] = {"bytes": _png(picture), "path": None}
    return cells


def _png(picture: PilImage.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return buffer.getvalue()


if __name__ == "__main__":
    raise SystemExit(main())
