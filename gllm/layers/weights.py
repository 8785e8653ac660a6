"""Which part of which checkpoint tensor goes into which parameter.

Every layer with parameters answers `weights(prefix)` with one CheckpointWeight for each checkpoint tensor it
needs; a model answers `weights()` with those of all its layers. Names are those of the Hub layout
(`model.layers.0.self_attn.q_proj.weight`, `visual.blocks.0.attn.qkv.weight`). The loader alone reads files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class SafeSlice(Protocol):
    """A tensor that reads only what is indexed: safetensors' `get_slice`, or generated weights."""

    def get_shape(self) -> list[int]:
        """The whole tensor's shape."""
        ...

    def __getitem__(self, index: tuple[slice, ...]) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class WeightPart:
    """Copy `full[source]` to `param[target]`; reshaped where only the number of dimensions differs."""

    source: tuple[slice, ...]
    target: tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class CheckpointWeight:
    """One tensor of a checkpoint, its full shape, and the parts of it that this rank keeps in `param`."""

    name: str
    shape: tuple[int, ...]
    param: Tensor
    parts: tuple[WeightPart, ...]

    def load(self, full: SafeSlice) -> None:
        """Read this rank's parts of the checkpoint tensor into the parameter, converting the dtype."""
        for part in self.parts:
            target = self.param[part.target]
            target.copy_(full[part.source].reshape(target.shape))


class HasWeights(Protocol):
    """A model: everything the loader has to fill."""

    def weights(self) -> Iterator[CheckpointWeight]:
        """One entry for each checkpoint tensor that this rank reads."""
        ...


def whole(name: str, param: Tensor, shape: tuple[int, ...] | None = None) -> CheckpointWeight:
    """A tensor that this rank keeps whole; `shape` is the checkpoint's, where a convolution is kept flat."""
    source = tuple(slice(None) for _ in (shape or param.shape))
    return CheckpointWeight(name, shape or tuple(param.shape), param, (WeightPart(source, (slice(None),)),))


def rows(name: str, param: Tensor, total: int, part: range) -> CheckpointWeight:
    """Rows `part` of `total`, into the first rows of the parameter."""
    source = (slice(part.start, part.stop), *(slice(None) for _ in param.shape[1:]))
    target = (slice(0, len(part)),)
    return CheckpointWeight(name, (total, *param.shape[1:]), param, (WeightPart(source, target),))
