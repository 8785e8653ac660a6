"""Gives stalls a name: logs what requests wait for that have not moved for a while."""

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Protocol

from gllm.core.sequence import Sequence

LOG = logging.getLogger("gllm.watchdog")
INTERVAL_S = 10.0
NAMED = 16
"""Requests that one line names, the oldest first."""


class Watched(Protocol):
    """What the watchdog asks of a core."""

    @property
    def sequences(self) -> Mapping[int, Sequence]:
        """Sequences being served."""
        ...

    def waits(self) -> dict[str, str]:
        """What each request waits for: embedding, kv, budget, pipeline slot or pipeline."""
        ...


class Watchdog:
    """Compares the progress of all requests every `interval_s` seconds."""

    def __init__(self, core: Watched, interval_s: float = INTERVAL_S) -> None:
        self.interval_s = interval_s
        self._core = core
        self._last_check = 0.0
        self._progress: dict[str, int] = {}

    def check(self, now: float) -> str | None:
        """Log requests that have not moved since the last check; what was logged. Cheap until it is time."""
        if now - self._last_check < self.interval_s:
            return None
        self._last_check = now
        before, self._progress = self._progress, self._measure()
        stalled = [request for request, tokens in self._progress.items() if before.get(request) == tokens]
        if not stalled:
            return None
        message = self._describe(stalled)
        LOG.warning("%s", message)
        return message

    def _describe(self, stalled: list[str]) -> str:
        waits = self._core.waits()
        reasons = Counter(waits[request] for request in stalled)
        counts = ", ".join(f"{count} for {reason}" for reason, count in reasons.most_common())
        named = ", ".join(f"{request}: {waits[request]}" for request in stalled[:NAMED])
        more = f" and {len(stalled) - NAMED} more" if len(stalled) > NAMED else ""
        return (
            f"{len(stalled)} requests have not moved for {self.interval_s:g} s, "
            f"waiting {counts} ({named}{more})"
        )

    def _measure(self) -> dict[str, int]:
        """Tokens dispatched and known, of each request."""
        progress: Counter[str] = Counter()
        for seq in self._core.sequences.values():
            progress[seq.request.request_id] += seq.num_dispatched + seq.num_tokens
        return dict(progress)
