"""OpenAI chat messages, checked and taken apart: text for the template, images as a list.

One rule for each input: what is understood is used, anything else is a BadInput that names the part.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from gllm.multimodal.errors import BadInput, excerpt, located

ROLES = ("system", "developer", "user", "assistant", "tool")
TEXT_TYPES = ("text", "input_text")
IMAGE_TYPES = ("image_url", "image", "input_image")
UNSUPPORTED = {
    "video": "videos are not supported; send frames as images",
    "video_url": "videos are not supported; send frames as images",
    "input_audio": "audio is not supported; send its transcript as text",
    "audio_url": "audio is not supported; send its transcript as text",
    "file": "files are not supported; send pages as images",
    "input_file": "files are not supported; send pages as images",
}
DETAILS = ("auto", "low", "high")
PIXEL_OPTIONS = ("min_pixels", "max_pixels")
# Where the URL of an image part may stand, and what else it may hold.
URL_KEYS = ("image_url", "image", "url")
PART_KEYS = ("type", "detail", "cache_control", *PIXEL_OPTIONS)
MESSAGE_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content")


@dataclass(frozen=True, slots=True)
class ImageSource:
    """An image that a message refers to, before anything is known of it.

    part: where it stands, ``messages[0].content[1]``. min_pixels, max_pixels: the part's own bounds.
    """

    part: str
    url: str
    detail: str | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None


@dataclass(frozen=True, slots=True)
class ParsedChat:
    """Messages for the chat template, and the images in the order of their parts.

    A message's content is a string, or a list of ``{"type": "text", "text": ...}`` and ``{"type": "image"}``.
    """

    messages: list[dict[str, Any]]
    images: tuple[ImageSource, ...]


def parse_chat(messages: object, max_images: int) -> ParsedChat:
    """Check a request's messages. Raises BadInput; nothing is dropped without one."""
    if not isinstance(messages, list) or not messages:
        raise BadInput("must be a list of at least one message", "messages")
    parsed: list[dict[str, Any]] = []
    images: list[ImageSource] = []
    for index, message in enumerate(messages):
        parsed.append(_message(message, f"messages[{index}]", images))
    if len(images) > max_images:
        raise BadInput(
            f"image {max_images + 1} of {len(images)}; this server takes at most {max_images} in a request "
            "(--limit-mm-per-prompt); send fewer",
            images[max_images].part,
            code="too_many_images",
        )
    return ParsedChat(parsed, tuple(images))


def check_text(value: object, what: str) -> str:
    """A string that UTF-8 can hold; raises BadInput for other types and for lone surrogates."""
    if not isinstance(value, str):
        raise BadInput(f"{what} must be a string, got {excerpt(value)}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadInput(
            f"{what} holds half of a surrogate pair at character {error.start}; send valid Unicode"
        ) from None
    return value


def check_json(value: object, what: str, depth: int = 32) -> None:
    """Refuse JSON values whose strings are no Unicode, or that nest deeper than any template needs."""
    if depth == 0:
        raise BadInput(f"{what} is nested too deeply")
    if isinstance(value, str):
        check_text(value, what)
    elif isinstance(value, dict):
        for key, inner in value.items():
            check_text(key, what)
            check_json(inner, what, depth - 1)
    elif isinstance(value, list):
        for inner in value:
            check_json(inner, what, depth - 1)


def _message(message: object, where: str, images: list[ImageSource]) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise BadInput(f"must be an object with role and content, got {excerpt(message)}", where)
    _known_keys(message, MESSAGE_KEYS, where)
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise BadInput(f"role is {excerpt(role)}, allowed: {', '.join(ROLES)}", f"{where}.role")
    parsed: dict[str, Any] = {"role": "system" if role == "developer" else role}
    for name in ("name", "tool_call_id", "reasoning_content"):
        if message.get(name) is not None:
            parsed[name] = check_text(message[name], f"{where}.{name}")
    if message.get("tool_calls") is not None:
        parsed["tool_calls"] = _tool_calls(message["tool_calls"], role, f"{where}.tool_calls")
    parsed["content"] = _content(message, "tool_calls" in parsed, where, images)
    return parsed


def _content(
    message: dict[str, Any], may_be_empty: bool, where: str, images: list[ImageSource]
) -> str | list[dict[str, Any]]:
    content = message.get("content")
    where = f"{where}.content"
    if isinstance(content, str):
        with located(where):
            return check_text(content, "content")
    if content is None and may_be_empty:
        return ""
    if not isinstance(content, list):
        raise BadInput(f"must be a string or a list of parts, got {excerpt(content)}", where)
    if not content:
        raise BadInput('the list of parts is empty; send at least one part, or "" for no text', where)
    return [_part(part, f"{where}[{index}]", images) for index, part in enumerate(content)]


def _part(part: object, where: str, images: list[ImageSource]) -> dict[str, Any]:
    if not isinstance(part, dict):
        raise BadInput(
            f'must be an object such as {{"type": "text", "text": ...}}, got {excerpt(part)}', where
        )
    kind = part.get("type")
    with located(where):
        if isinstance(kind, str) and kind in TEXT_TYPES:
            _known_keys(part, ("type", "text", "cache_control"), where)
            return {"type": "text", "text": check_text(part.get("text"), "text")}
        if isinstance(kind, str) and kind in IMAGE_TYPES:
            images.append(_image(part, where))
            return {"type": "image"}
        if isinstance(kind, str) and kind in UNSUPPORTED:
            raise BadInput(UNSUPPORTED[kind], code="unsupported_content")
        raise BadInput(
            f"type is {excerpt(kind)}, supported: {', '.join((*TEXT_TYPES, *IMAGE_TYPES))}",
            code="unsupported_content",
        )


def _image(part: dict[str, Any], where: str) -> ImageSource:
    """The URL stands under image_url, image or url, as a string or as {"url": ..., options}."""
    _known_keys(part, (*PART_KEYS, *URL_KEYS), where)
    given = [key for key in URL_KEYS if part.get(key) is not None]
    if len(given) != 1:
        found = f"it has {' and '.join(given)}" if given else "it has none"
        raise BadInput(f"an image part needs its URL under one of {', '.join(URL_KEYS)}; {found}")
    options = {key: part[key] for key in ("detail", *PIXEL_OPTIONS) if part.get(key) is not None}
    url = part[given[0]]
    if isinstance(url, dict):
        _known_keys(url, ("url", "detail", *PIXEL_OPTIONS), f"{where}.{given[0]}")
        options |= {key: value for key, value in url.items() if key != "url" and value is not None}
        url = url.get("url")
    if not isinstance(url, str) or not url.strip():
        raise BadInput(f"the image's URL must be a non-empty string, got {excerpt(url)}")
    check_text(url, "the image's URL")
    detail = options.pop("detail", None)
    if detail is not None and detail not in DETAILS:
        raise BadInput(f"detail is {excerpt(detail)}, allowed: {', '.join(DETAILS)}")
    return ImageSource(where, url, detail, **options)


def _tool_calls(calls: object, role: str, where: str) -> list[Any]:
    if role != "assistant":
        raise BadInput(f"only an assistant's message has tool_calls, this is from {role}", where)
    if not isinstance(calls, list) or not calls or not all(isinstance(call, dict) for call in calls):
        raise BadInput(f"must be a list of at least one object, got {excerpt(calls)}", where)
    with located(where):
        calls = [_parsed_arguments(call) for call in calls]
        check_json(calls, "tool_calls")
    return calls


def _parsed_arguments(call: dict[str, Any]) -> dict[str, Any]:
    """A call whose arguments are an object: the API has them as JSON text, templates print them as JSON."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        message = f"the arguments of a call must be JSON, got {excerpt(function['arguments'])}"
        raise BadInput(message) from None
    return {**call, "function": {**function, "arguments": arguments}}


def _known_keys(value: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    """Refuse fields that would be ignored; null counts as absent, as clients send it for any field."""
    for key, inner in value.items():
        if key not in known and inner not in (None, []):
            raise BadInput(
                f"unknown field {excerpt(key)}; known: {', '.join(known)}", where, code="unknown_field"
            )
