"""Log-probabilities in the two formats of OpenAI's API."""

from typing import Any

from gllm.core.batch import TokenLogprobs
from gllm.entrypoints.detokenize import TokenBytes
from gllm.entrypoints.engine_client import TokenEvent

FLOOR = -9999.0
"""Stands for minus infinity, which JSON cannot hold."""


def chat_entry(event: TokenEvent, tokens: TokenBytes) -> dict[str, Any] | None:
    """One token's entry of `choices[].logprobs.content`."""
    if event.logprobs is None:
        return None
    entry = _token(event.token_id, event.logprobs.chosen, tokens)
    return entry | {"top_logprobs": [_token(i, value, tokens) for i, value in event.logprobs.top]}


class CompletionLogprobs:
    """Collects one choice's `logprobs` of a text completion; text_offset counts characters of the answer."""

    def __init__(self, tokens: TokenBytes) -> None:
        self._tokens = tokens
        self._offset = 0

    def take(self, events: list[TokenEvent]) -> dict[str, Any] | None:
        """The object for these events; None when none was asked for."""
        known = [(event, event.logprobs) for event in events if event.logprobs is not None]
        if not known:
            return None
        offsets = []
        for event, _ in known:
            offsets.append(self._offset)
            self._offset += len(event.text)
        return {
            "tokens": [self._tokens.text_of(event.token_id) for event, _ in known],
            "token_logprobs": [_finite(logprobs.chosen) for _, logprobs in known],
            "top_logprobs": [self._top(event, logprobs) for event, logprobs in known],
            "text_offset": offsets,
        }

    def _top(self, event: TokenEvent, logprobs: TokenLogprobs) -> dict[str, float]:
        """The best tokens, and the chosen one if it is not among them."""
        found = {self._tokens.text_of(i): _finite(value) for i, value in logprobs.top}
        found.setdefault(self._tokens.text_of(event.token_id), _finite(logprobs.chosen))
        return found


def _token(token_id: int, value: float, tokens: TokenBytes) -> dict[str, Any]:
    data = tokens.bytes_of(token_id)
    return {"token": data.decode("utf-8", errors="replace"), "logprob": _finite(value), "bytes": list(data)}


def _finite(value: float) -> float:
    return max(value, FLOOR)
