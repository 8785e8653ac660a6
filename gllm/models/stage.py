"""Which part of a model a pipeline stage holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gllm.core.model_shape import split_layers


@dataclass(frozen=True, slots=True)
class StageSpec:
    """Decoder layers of a stage. The first stage also embeds, the last one also has the norm and the head."""

    layers: range
    is_first: bool
    is_last: bool

    @classmethod
    def whole(cls, num_layers: int) -> StageSpec:
        """A pipeline of one stage."""
        return cls(range(num_layers), is_first=True, is_last=True)


def no_news() -> None:
    """Nobody asks how far a model is."""


def pipeline_stages(num_layers: int, pp: int, assigned: Sequence[int] | None = None) -> list[StageSpec]:
    """The stages of a pipeline, layers spread evenly or as assigned. Raises ValueError."""
    parts = split_layers(num_layers, pp, assigned)
    return [StageSpec(part, stage == 0, stage == pp - 1) for stage, part in enumerate(parts)]
