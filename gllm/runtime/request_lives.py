"""Keeps when requests came, gave their first token and ended, for a trace."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from gllm.core.request_life import RequestLife


class LifeLog(Protocol):
    """Told by the API server about each request."""

    def begin(self, request_id: str, age_s: float) -> None:
        """A request goes to the engine; it was read age_s seconds ago."""
        ...

    def token(self, request_id: str) -> None:
        """A token has come; only the first matters."""
        ...

    def end(self, request_id: str, reason: str, num_tokens: int) -> None:
        """The engine has let the request go."""
        ...

    def lives(self) -> Sequence[RequestLife]:
        """All requests so far; those that go on end now."""
        ...


class NoLives:
    """Without a trace nothing is kept."""

    def begin(self, request_id: str, age_s: float) -> None: ...

    def token(self, request_id: str) -> None: ...

    def end(self, request_id: str, reason: str, num_tokens: int) -> None: ...

    def lives(self) -> Sequence[RequestLife]:
        return ()


class RequestLives:
    """Keeps all requests in memory."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """clock: that of all spans, in seconds."""
        self._clock = clock
        self._open: dict[str, RequestLife] = {}
        self._ended: list[RequestLife] = []

    def begin(self, request_id: str, age_s: float) -> None:
        arrival = self._clock() - age_s
        self._open[request_id] = RequestLife(request_id, arrival, arrival)

    def token(self, request_id: str) -> None:
        life = self._open.get(request_id)
        if life is not None and life.first_token is None:
            self._open[request_id] = replace(life, first_token=self._clock())

    def end(self, request_id: str, reason: str, num_tokens: int) -> None:
        life = self._open.pop(request_id, None)
        if life is not None:
            self._ended.append(replace(life, end=self._clock(), reason=reason, num_tokens=num_tokens))

    def lives(self) -> Sequence[RequestLife]:
        now = self._clock()
        return [*self._ended, *(replace(life, end=now, reason="unfinished") for life in self._open.values())]
