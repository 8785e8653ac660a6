"""Result lines in `results/*.jsonl`: what a line must hold, and how lines are read and selected.

A line is one flat JSON object: the fields of SGLang's `bench_serving` under the same names, plus `failed`,
`slo_attainment`, `scheme`, `pp`, `tp`, `encoders`, `embedding_batch_size`, `token_budget`, `model`,
`workload`, `hardware`, `source` (`measured` or `simulated`) and `commit`. Figures are drawn from these alone.
An infinite request rate is written as the string "inf", because JSON has no infinity.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gllm.entrypoints.about import hardware as hardware_name
from rserve.sim.output import append_lines, current_commit

__all__ = [
    "append_line",
    "current_commit",
    "hardware_name",
    "is_finished",
    "rate_of",
    "read_lines",
    "select",
]

Line = dict[str, Any]

SOURCES = ("measured", "simulated")


def append_line(path: str | Path, line: Mapping[str, Any]) -> None:
    """Append one line in one locked write, so that parallel writers never interleave.

    Raises ValueError when `source` is missing or unknown, or when a number is NaN.
    """
    if line.get("source") not in SOURCES:
        raise ValueError(
            f"a result line needs source={SOURCES[0]!r} or {SOURCES[1]!r}, got {line.get('source')!r}"
        )
    append_lines(Path(path), [line])


def read_lines(paths: Iterable[str | Path]) -> list[Line]:
    """Read every line of the given files; folders stand for their `*.jsonl`.

    Raises ValueError naming file and line number when a line is not a JSON object.
    """
    return [line for path in paths for file in _files(Path(path)) for line in _read_file(file)]


def select(lines: Iterable[Line], **fields: Any) -> list[Line]:
    """The lines whose fields have exactly these values; a tuple, list or set allows any of its members."""
    return [
        line for line in lines if all(_matches(line.get(name), wanted) for name, wanted in fields.items())
    ]


def is_finished(lines: Iterable[Line], point: Mapping[str, Any]) -> bool:
    """Whether a line without failed requests exists for this point: what makes a run resumable."""
    return any(not line.get("failed") for line in select(lines, **point))


def rate_of(line: Mapping[str, Any]) -> float:
    """The request rate in requests per second; "inf" becomes math.inf."""
    return float(line["request_rate"])


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(path.glob("*.jsonl"))
    return [path] if path.exists() else []


def _read_file(path: Path) -> Iterator[Line]:
    with open(path, encoding="utf-8") as file:
        for number, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                line = json.loads(text)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}:{number} is not JSON: {error}") from error
            if type(line) is not dict:
                raise ValueError(f"{path}:{number} is not a JSON object")
            yield line


def _matches(value: Any, wanted: Any) -> bool:
    if type(wanted) in (tuple, list, set, frozenset):
        return value in wanted
    if wanted == math.inf:
        return value in ("inf", math.inf)
    return bool(value == wanted)
