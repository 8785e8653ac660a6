"""``data:`` URLs: bytes inside the request itself."""

from __future__ import annotations

import base64
import binascii
import io
from urllib.parse import unquote, unquote_to_bytes

from PIL import Image

from gllm.multimodal.errors import BadInput

URL_SAFE = str.maketrans("-_", "+/")


def parse_data_url(url: str, max_bytes: int) -> bytes:
    """The bytes of a data: URL. Its declared type is ignored: the bytes tell what they are.

    Base64 in the usual or the URL-safe alphabet, with or without padding, white space anywhere, percent
    escapes allowed; without ``;base64``, percent-encoded bytes. Raises BadInput if malformed or too large.
    """
    head, comma, body = url.partition(",")
    if not comma:
        raise BadInput(
            "the data: URL has no comma; write data:image/png;base64,<base64 of the file>",
            code="invalid_image_url",
        )
    if not head.lower().replace(" ", "").endswith(";base64"):
        data = unquote_to_bytes(body)
    else:
        check_bytes(len(body) * 3 // 4 - 3, max_bytes)
        data = _from_base64(body)
    if not data:
        raise BadInput("the data: URL holds no bytes", code="invalid_image_url")
    check_bytes(len(data), max_bytes)
    return data


def check_bytes(size: int, max_bytes: int) -> None:
    """Raise BadInput for a file above the limit."""
    if size > max_bytes:
        raise BadInput(
            f"the image file has {size} bytes, above the limit of {max_bytes} (--max-media-bytes); "
            "send a smaller one",
            code="image_too_large",
        )


def to_data_url(image: Image.Image) -> str:
    """A PIL image as a lossless data: URL, for offline use; modes that PNG lacks are converted to RGB."""
    buffer = io.BytesIO()
    keeps = image.mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
    (image if keeps else image.convert("RGB")).save(buffer, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _from_base64(body: str) -> bytes:
    if "%" in body:
        body = unquote(body)
    body = "".join(body.split()).rstrip("=").translate(URL_SAFE)
    try:
        return base64.b64decode(body + "=" * (-len(body) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadInput(
            f"the data: URL is not valid base64 ({error}); encode the file again", code="invalid_image_url"
        ) from None
