"""Result lines: the one place that appends to and reads from `results/*.jsonl`.

A line is one flat JSON object: the fields of SGLang's `bench_serving` under the same names, plus `failed`,
`slo_attainment`, `scheme`, `pp`, `tp`, `encoders`, `embedding_batch_size`, `token_budget`, `model`,
`workload`, `hardware`, `source` (`measured` or `simulated`) and `commit`. Figures are drawn from these alone.
An infinite request rate is written as the string "inf", because JSON has no infinity.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

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
    text = json.dumps(_with_inf_as_text(line), allow_nan=False) + "\n"
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


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


def current_commit() -> str:
    """The commit of this checkout, with "+" when tracked files were changed; "unknown" outside git."""
    here = Path(__file__).resolve().parent
    head = _git(here, "rev-parse", "--short=12", "HEAD")
    if head is None:
        return "unknown"
    return head + ("+" if _git(here, "status", "--porcelain", "--untracked-files=no") else "")


def hardware_name() -> str:
    """This machine as `/server_info` of this project's server names it: "2 cores of Intel(R) Xeon(R) …"."""
    model = "unknown CPU"
    for row in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if row.startswith("model name"):
            model = row.split(":", 1)[1].strip()
            break
    return f"{len(os.sched_getaffinity(0))} cores of {model}"


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


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


def _with_inf_as_text(value: Any) -> Any:
    match value:
        case dict():
            return {key: _with_inf_as_text(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_with_inf_as_text(inner) for inner in value]
        case float() if math.isinf(value):
            return "inf" if value > 0 else "-inf"
        case _:
            return value
