"""What the core wants done outside itself; the driver (or the simulator) carries it out.

`EngineCore.take_effects()` returns them in order after events and steps.
"""

from dataclasses import dataclass

from gllm.core.batch import Payload


@dataclass(frozen=True, slots=True)
class EncodeItems:
    """Items of a request that must be encoded, with the attempt each embedding has to carry.

    Sent on arrival (prefix caching: once the lookup is done) and again after a preemption that needs
    embeddings which were already released.
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
    """An item's embedding memory is free again (used, unneeded, or dropped)."""

    request_id: str
    item: int
    attempt: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class ReleasePayload:
    """A payload that never reached a micro-batch: free its memory now."""

    payload: Payload


@dataclass(frozen=True, slots=True)
class PrefillDone:
    """The prompt is computed; its pixels are needed again only after a preemption."""

    request_id: str


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


Effect = (
    EncodeItems | SkipItems | ItemReleased | ReleasePayload | PrefillDone | RequestFinished | RequestFailed
)
