"""Send one request and time its answer."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import aiohttp

from benchmarks.client.record import RequestRecord
from benchmarks.client.sse import EventStream

MAX_ERROR_CHARS = 300


async def send(session: aiohttp.ClientSession, url: str, body: bytes, record: RequestRecord) -> None:
    """POST one body and fill the record; whatever goes wrong becomes its `error`, never an exception.

    An answer counts only when it is whole: HTTP 200, no error event, and at least one token.
    """
    timer = _AnswerTimer(record, time.perf_counter())
    try:
        async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as response:
            if response.status != 200:
                text = await response.text(errors="replace")
                record.error = f"HTTP {response.status}: {_error_message(text)}"
            elif response.content_type == "text/event-stream":
                await _read_stream(response, timer)
            else:
                timer.on_answer(await response.json())
    except TimeoutError:
        record.error = "timed out"
    except (aiohttp.ClientError, OSError, json.JSONDecodeError) as error:
        record.error = f"{type(error).__name__}: {error}"
    except asyncio.CancelledError:
        record.error = "cancelled"
        raise


async def _read_stream(response: aiohttp.ClientResponse, timer: _AnswerTimer) -> None:
    events = EventStream()
    async for chunk in response.content.iter_any():
        now = time.perf_counter()
        for event in events.feed(chunk):
            timer.on_event(event, now)
    now = time.perf_counter()
    for event in events.close():
        timer.on_event(event, now)
    timer.finish()


class _AnswerTimer:
    """Turns the events of one answer into times and token counts."""

    def __init__(self, record: RequestRecord, start: float) -> None:
        self._record = record
        self._start = start
        self._last: float | None = None  # when the latest token chunk came
        self._end = start
        self._num_chunks = 0
        self._is_done = False

    def on_event(self, event: str, now: float) -> None:
        """One `data:` payload that came at perf_counter time `now`."""
        if event.strip() == "[DONE]":
            self._is_done = True
            return
        message = json.loads(event)
        if message.get("error"):
            self._record.error = self._record.error or _error_message(event)
            return
        self._take_usage(message)
        for choice in message.get("choices") or ():
            self._on_choice(choice, now)

    def on_answer(self, message: dict[str, Any]) -> None:
        """A whole answer that was not streamed: its first token is known only when all of it is."""
        now = time.perf_counter()
        if message.get("error") or not message.get("choices"):
            self._record.error = _error_message(json.dumps(message))
            return
        self._take_usage(message)
        self._record.text = message["choices"][0]["message"].get("content") or ""
        self._num_chunks = 1
        self._record.ttft = self._record.latency = now - self._start
        self._check_tokens()

    def finish(self) -> None:
        """The stream ended: decide whether the answer is whole."""
        if self._record.error:
            return
        if self._last is None:
            self._record.error = "the stream ended without a token"
            return
        if not self._is_done:
            self._record.error = "the stream broke off before [DONE]"
            return
        self._record.latency = self._end - self._start
        self._check_tokens()

    def _on_choice(self, choice: dict[str, Any], now: float) -> None:
        delta = choice.get("delta") or {}
        content = delta.get("content") or delta.get("reasoning_content") or ""
        is_last = choice.get("finish_reason") is not None
        # A token may decode to nothing (half a character, a special token). The opening chunk, which only
        # tells the role, is no token; nor is a closing one, unless no token was seen before.
        if not content and ("role" in delta or is_last) and not (is_last and self._last is None):
            self._end = now
            return
        if self._last is None:
            self._record.ttft = now - self._start
        else:
            self._record.itls.append(now - self._last)
        self._last = self._end = now
        self._num_chunks += 1
        self._record.text += content

    def _take_usage(self, message: dict[str, Any]) -> None:
        usage = message.get("usage")
        if not usage:
            return
        details = usage.get("prompt_tokens_details") or {}
        self._record.has_usage = True
        self._record.prompt_tokens = usage.get("prompt_tokens")
        self._record.output_tokens = usage.get("completion_tokens") or 0
        self._record.vision_tokens = details.get("image_tokens", self._record.vision_tokens)

    def _check_tokens(self) -> None:
        if not self._record.has_usage:
            self._record.output_tokens = self._num_chunks
        if self._record.output_tokens < 1:
            self._record.error = "the answer holds no token"


def _error_message(text: str) -> str:
    """The message inside an OpenAI-style error, or the text itself."""
    try:
        found = json.loads(text)
        error = found.get("error", found)
        message = str(error.get("message", error) if type(error) is dict else error)
    except (json.JSONDecodeError, AttributeError):
        message = text
    return message.strip()[:MAX_ERROR_CHARS] or "no message"
