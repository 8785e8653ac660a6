"""What happened to one request."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class RequestRecord:
    """Times are monotonic seconds: `arrival` and `sent` from the start of the run, others from `sent`.

    A request failed when `error` is not empty; its ttft and latency then mean nothing.
    Token counts are the server's (`usage`) when has_usage, else what the client could count itself.
    """

    index: int
    arrival: float
    sent: float = 0.0
    ttft: float = 0.0
    latency: float = 0.0
    itls: list[float] = field(default_factory=list)
    prompt_tokens: int | None = None
    vision_tokens: int | None = None
    output_tokens: int = 0
    has_usage: bool = False
    text: str = ""
    error: str = ""

    @property
    def ok(self) -> bool:
        return not self.error

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first; None for an answer of one token."""
        if self.output_tokens < 2:
            return None
        return (self.latency - self.ttft) / (self.output_tokens - 1)

    @property
    def lag(self) -> float:
        """Seconds by which the client itself was late (or waited for `--max-concurrency`)."""
        return self.sent - self.arrival
