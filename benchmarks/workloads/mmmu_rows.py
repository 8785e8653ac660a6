"""MMMU questions from the Hub or from a folder of parquet files with its columns.

MMMU: Yue et al., 2024. Columns: id, question, options (the text of a Python list), image_1 … image_7, answer,
question_type ("multiple-choice" or "open"), and others that are not needed.
"""

from __future__ import annotations

import ast
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image as PilImage

HUB_NAME = "MMMU/MMMU"
MAX_IMAGES = 7
OPEN = "open"


@dataclass(frozen=True)
class MmmuRow:
    """One question. `images` maps n of `<image n>` to an image file; `answers`: every accepted answer."""

    row_id: str
    question: str
    options: tuple[str, ...]
    answers: tuple[str, ...]
    question_type: str
    images: Mapping[int, bytes]

    @property
    def subject(self) -> str:
        """What is between the first and the last underscore: validation_Art_Theory_3 → Art_Theory."""
        return self.row_id[self.row_id.index("_") + 1 : self.row_id.rindex("_")]

    @property
    def is_open(self) -> bool:
        return self.question_type == OPEN

    @property
    def is_synthetic(self) -> bool:
        """Whether it comes from this project's generator (benchmarks.workloads.synthetic)."""
        return self.row_id.startswith("synthetic_")

    def picture(self, number: int) -> PilImage.Image:
        """`<image number>` decoded, in RGB with transparent parts over white."""
        with PilImage.open(io.BytesIO(self.images[number])) as picture:
            rgba = picture.convert("RGBA")
        white = PilImage.new("RGBA", rgba.size, (255, 255, 255, 255))
        return PilImage.alpha_composite(white, rgba).convert("RGB")


def load_rows(dataset_path: str = "", split: str = "validation", limit: int | None = None) -> list[MmmuRow]:
    """Questions in the order of the files, at most `limit`.

    dataset_path: a folder (searched for *.parquet, those of the split where names tell), one parquet file, or
    a Hub name; empty is the published set. Raises FileNotFoundError, or ConnectionError when the Hub is not
    reachable, saying what to do.
    """
    path = Path(dataset_path or HUB_NAME)
    source = _local_rows(path, split) if path.exists() else _hub_rows(dataset_path or HUB_NAME, split)
    rows: list[MmmuRow] = []
    for raw in source:
        if limit is not None and len(rows) >= limit:
            break
        rows.append(parse_row(raw))
    if not rows:
        raise FileNotFoundError(f"{path} holds no questions of the split {split!r}")
    return rows


def parse_row(raw: Mapping[str, Any]) -> MmmuRow:
    """One row of the data set, its image columns as {"bytes": …, "path": …} or None.

    `answer` may be the text of a list for open questions with several right answers.
    """
    images = {n: _image_bytes(raw[f"image_{n}"]) for n in range(1, MAX_IMAGES + 1) if raw.get(f"image_{n}")}
    return MmmuRow(
        row_id=raw["id"],
        question=raw["question"],
        options=tuple(str(option) for option in _as_list(raw.get("options") or "[]")),
        answers=tuple(str(answer) for answer in _as_list(raw["answer"])),
        question_type=raw.get("question_type") or "multiple-choice",
        images=images,
    )


def _as_list(text: str | list[Any]) -> list[Any]:
    """ "['a', 'b']" → ['a', 'b']; "C" → ['C']."""
    if type(text) is str and text.startswith("[") and text.endswith("]"):
        return list(ast.literal_eval(text))
    return [text] if type(text) is str else list(text)


def _image_bytes(cell: Mapping[str, Any]) -> bytes:
    return cell["bytes"] if cell.get("bytes") else Path(cell["path"]).read_bytes()


def _local_rows(path: Path, split: str) -> Iterator[Mapping[str, Any]]:
    import datasets  # takes two seconds to import: only where a data set is read

    files = [path] if path.is_file() else sorted(path.rglob("*.parquet"))
    if not files:
        raise FileNotFoundError(f"{path} holds no parquet file")
    of_split = [file for file in files if split in file.name]
    names = [str(file) for file in of_split or files]
    stream = datasets.load_dataset("parquet", data_files=names, split="train", streaming=True)
    return iter(_undecoded(stream))


def _hub_rows(name: str, split: str) -> Iterator[Mapping[str, Any]]:
    import datasets

    try:
        subjects = datasets.get_dataset_config_names(name)
        sets = [datasets.load_dataset(name, subject, split=split) for subject in subjects]
    except (OSError, datasets.exceptions.DatasetNotFoundError) as error:
        raise ConnectionError(
            f"{name} is neither a folder nor reachable on the Hub ({error}): give --dataset-path with its "
            "parquet files, or make a stand-in with `python -m benchmarks.workloads.synthetic --out DIR`"
        ) from error
    return (row for one in sets for row in _undecoded(one))


def _undecoded(dataset: Any) -> Iterable[Mapping[str, Any]]:
    """Image columns as file bytes, not decoded."""
    import datasets

    for number in range(1, MAX_IMAGES + 1):
        if f"image_{number}" in (dataset.column_names or ()):
            dataset = dataset.cast_column(f"image_{number}", datasets.Image(decode=False))
    rows: Iterable[Mapping[str, Any]] = dataset
    return rows
