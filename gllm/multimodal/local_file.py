"""``file:`` URLs: files below one folder that the operator has opened."""

from __future__ import annotations

import os
import stat
from urllib.parse import unquote, urlsplit

from gllm.multimodal.data_url import check_bytes
from gllm.multimodal.errors import BadInput


def read_local_file(url: str, allowed_path: str | None, max_bytes: int) -> bytes:
    """The bytes of a regular file below allowed_path, symbolic links resolved first.

    Raises BadInput; what lies outside and what does not exist get the same answer, so nothing is learnt.
    """
    if allowed_path is None:
        raise BadInput(
            "file: URLs are off (--allowed-media-path); send the image as a data: URL",
            code="invalid_image_url",
        )
    refused = BadInput(
        f"{url[:200]!r} is not a readable file below the folder that this server allows "
        "(--allowed-media-path)",
        code="invalid_image_url",
    )
    path = _resolve(url)
    root = os.path.realpath(allowed_path)
    if path is None or os.path.commonpath([root, path]) != root:
        raise refused
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        raise refused from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise refused
    with open(descriptor, "rb") as file:
        check_bytes(status.st_size, max_bytes)
        data = file.read(max_bytes + 1)
    check_bytes(len(data), max_bytes)
    return data


def _resolve(url: str) -> str | None:
    """The real path of a file: URL of this host; None if it is malformed or names another host."""
    try:
        parts = urlsplit(url)
        path = unquote(parts.path, errors="strict")
        if parts.netloc not in ("", "localhost") or not path.startswith("/"):
            return None
        return os.path.realpath(path)
    except (ValueError, OSError):
        return None
