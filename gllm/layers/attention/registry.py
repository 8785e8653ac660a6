"""The attention backends by name."""

from __future__ import annotations

from collections.abc import Callable

from gllm.layers.attention.interface import AttentionBackend
from gllm.layers.attention.sdpa import SdpaBackend
from gllm.layers.placement import Placement

BACKENDS: dict[str, Callable[[Placement], AttentionBackend]] = {
    "sdpa": lambda place: SdpaBackend(),
}


def create_backend(name: str, place: Placement) -> AttentionBackend:
    """The backend of this name; `auto` is the best one for the device. Raises ValueError."""
    if name == "auto":
        name = "sdpa"
    if name not in BACKENDS:
        raise ValueError(f"attention backend {name!r}: choose auto, {', '.join(BACKENDS)}")
    return BACKENDS[name](place)
