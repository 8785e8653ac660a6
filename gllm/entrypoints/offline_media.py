"""Images of offline requests: pictures in memory and files on disk become data URLs."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from gllm.multimodal.data_url import to_data_url

URL_SCHEMES = ("http://", "https://", "data:", "file:")
KEYS = ("image", "image_url", "url")


def with_data_urls(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with the images of its parts as the HTTP API takes them; other parts stay as they are.

    Raises OSError for a file that cannot be read.
    """
    content = message.get("content")
    if content.__class__ is not list:
        return dict(message)
    return {**message, "content": [_part(part) for part in content]}


def _part(part: Any) -> Any:
    if part.__class__ is not dict:
        return part
    return {key: _as_url(value) if key in KEYS else value for key, value in part.items()}


def _as_url(value: Any) -> Any:
    match value:
        case Image.Image():
            return to_data_url(value)
        case Path():
            return _file_url(value)
        case str() if not value.lower().startswith(URL_SCHEMES):
            return _file_url(Path(value).expanduser())
        case {"url": inner}:
            return {**value, "url": _as_url(inner)}
        case _:
            return value


def _file_url(path: Path) -> str:
    return "data:application/octet-stream;base64," + base64.b64encode(path.read_bytes()).decode()
