"""Result lines on disk: one JSON object a line, appended."""

import json
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
    """Append result lines. An infinite rate is written as "inf", since JSON has no infinity."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for line in lines:
            file.write(
                json.dumps({key: _plain(value) for key, value in line.items()}, allow_nan=False) + "\n"
            )


def _plain(value: object) -> object:
    match value:
        case float() if isinf(value):
            return "inf"
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
