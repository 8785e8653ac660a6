"""What the core wants done outside itself; the driver (or the simulator) carries it out.

`EngineCore.take_effects()` returns them in order after events and steps.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EncodeItems:
    """Items of a request that must be encoded, with the attempt each embedding has to carry.

    With prefix caching, sent for each item once its lookup missed; always sent after a preemption that
    needs embeddings which were already released. Without caching, attempt 0 goes without saying.
    """

    request_id: str
    items: tuple[int, ...]
    attempts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SkipItems:
    """Items whose tokens are covered by the prefix cache: nobody has to encode them."""

    request_id: str
    items: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ItemReleased:
    """The memory of one embedding (request, item, attempt) is free: used, unneeded, stale or dropped.

    Effects of a step hold once the step's inputs are built: whoever executes builds first, then frees.
    """

    request_id: str
    item: int
    attempt: int


@dataclass(frozen=True, slots=True)
class RequestFinished:
    """All sequences of a request ended and its resources are back. reason: stop, length, abort or error."""

    request_id: str
    reason: str
    num_cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A request ends with an error; status is the HTTP code a client should see."""

    request_id: str
    status: int
    message: str


Effect = EncodeItems | SkipItems | ItemReleased | RequestFinished | RequestFailed
