"""Log lines a program can read: a time, a level, words, then key=value fields."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

ROOT = "gllm"
SCHEMES = "rserve"


class FieldFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.123Z INFO request done request_id=chatcmpl-1 status=200`."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, Any] = vars(record).get("fields", {})
        words = [at.replace("+00:00", "Z"), record.levelname, record.getMessage()]
        words += [f"{key}={_quoted(value)}" for key, value in fields.items() if value is not None]
        line = " ".join(words)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def logger() -> logging.Logger:
    """The server's logger."""
    return logging.getLogger(ROOT)


def log(level: int, message: str, **fields: Any) -> None:
    """One line; values with spaces are quoted, None is left out."""
    logger().log(level, message, extra={"fields": fields})


def set_up(level: str) -> None:
    """Send the server's and uvicorn's lines to stderr, at this level and above."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FieldFormatter())
    for name, lowest in ((ROOT, level.upper()), (SCHEMES, level.upper()), ("uvicorn", "WARNING")):
        target = logging.getLogger(name)
        target.handlers = [handler]
        target.setLevel(lowest)
        target.propagate = False


def _quoted(value: Any) -> str:
    text = f"{value:.6g}" if value.__class__ is float else str(value)
    return text if text and not any(c.isspace() or c in '"=' for c in text) else json.dumps(text)
