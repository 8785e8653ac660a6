"""Result lines on disk: one JSON object a line, appended by the simulator and the benchmarks alike."""

import fcntl
import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from math import isinf
from pathlib import Path


def current_commit() -> str:
    """The commit of this checkout, with "+" when tracked files were changed; "unknown" outside git."""
    here = Path(__file__).parent
    head = _git(here, "rev-parse", "--short=12", "HEAD")
    if head is None:
        return "unknown"
    return head + ("+" if _git(here, "status", "--porcelain", "--untracked-files=no") else "")


def append_lines(path: Path, lines: Iterable[Mapping[str, object]]) -> None:
    """Append result lines in one locked write, so that parallel writers never interleave.

    Raises ValueError for NaN.
    """
    text = lines_text(lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def lines_text(lines: Iterable[Mapping[str, object]]) -> str:
    """One JSON object a line; an infinite number is "inf", since JSON has no infinity. ValueError for NaN."""
    return "".join(json.dumps(_plain(line), allow_nan=False) + "\n" for line in lines)


def _plain(value: object) -> object:
    match value:
        case Mapping():
            return {key: _plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case float() if isinf(value):
            return "inf" if value > 0 else "-inf"
        case _:
            return value


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
