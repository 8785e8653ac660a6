"""Server-sent events: how a stream of answers is written."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from gllm.entrypoints.errors import ApiError

DONE = b"data: [DONE]\n\n"
_encoder = msgspec.json.Encoder()


def to_json(value: dict[str, Any]) -> bytes:
    return _encoder.encode(value)


def event(value: dict[str, Any]) -> bytes:
    """One event with a JSON object."""
    return b"data: " + _encoder.encode(value) + b"\n\n"


async def guarded(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A stream whose first event is there already; an error after it becomes an event, then the end."""
    yield first
    try:
        async for data in rest:
            yield data
    except ApiError as error:
        yield event(error.body())
    yield DONE
