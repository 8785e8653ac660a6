"""What a server says about itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp

SERVER_FIELDS = (
    "scheme",
    "pp",
    "tp",
    "encoders",
    "embedding_batch_size",
    "token_budget",
    "dtype",
    "hardware",
)


async def first_model(session: aiohttp.ClientSession, base_url: str) -> str:
    """The name of the first served model. Raises ConnectionError with what to do when there is no answer."""
    url = f"{base_url}/v1/models"
    try:
        async with session.get(url) as response:
            response.raise_for_status()
            return str((await response.json())["data"][0]["id"])
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise ConnectionError(
            f"no answer from {url} ({error}): is the server up? Check --base-url"
        ) from error
    except (KeyError, IndexError, ValueError) as error:
        raise ConnectionError(f"{url} names no model: give --model") from error


async def server_info(session: aiohttp.ClientSession, base_url: str) -> dict[str, Any]:
    """The JSON of `GET /server_info`; empty where a server has none."""
    try:
        async with session.get(f"{base_url}/server_info") as response:
            found = await response.json() if response.status == 200 else {}
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return {}
    return found if type(found) is dict else {}


def deployment_fields(info: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a result line that describe the deployment; None where the server does not tell."""
    return {name: info.get(name) for name in SERVER_FIELDS}


async def flush_cache(session: aiohttp.ClientSession, base_url: str) -> bool:
    """Ask the server to drop its prefix cache; whether it did."""
    try:
        async with session.post(f"{base_url}/flush_cache") as response:
            return response.status == 200
    except (aiohttp.ClientError, OSError, TimeoutError):
        return False
