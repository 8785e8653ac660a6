"""Qwen2.5-VL: the language model with M-RoPE, and the vision tower where a rank encodes."""

from __future__ import annotations

from collections.abc import Iterator

from gllm.core.model_shape import ModelShape
from gllm.layers.attention import AttentionBackend
from gllm.layers.attention.registry import create_vision_attention
from gllm.layers.placement import Placement
from gllm.layers.weights import CheckpointWeight
from gllm.models.qwen2 import Qwen2Model
from gllm.models.qwen2_5_vit import VisionTower
from gllm.models.stage import StageSpec


class Qwen2_5_VLModel(Qwen2Model):
    """One pipeline stage. The language model does not know of pictures: rows of `embed`'s result that stand
    for an item are overwritten with the tower's embeddings before `forward`.

    `vision` is None on all stages but the first, and there unless `with_vision`: with encoder ranks, the
    first stage neither loads the tower nor reserves memory for it.
    """

    def __init__(
        self,
        shape: ModelShape,
        stage: StageSpec,
        place: Placement,
        backend: AttentionBackend,
        with_vision: bool,
    ) -> None:
        super().__init__(shape.text, stage, place, backend)
        self.vision: VisionTower | None = None
        if with_vision and stage.is_first:
            if shape.vision is None:
                raise ValueError(f"{shape.architecture} has no vision tower")
            self.vision = VisionTower(shape.vision, place, create_vision_attention(backend.name, place))

    def weights(self) -> Iterator[CheckpointWeight]:
        """This stage's tensors, and `visual.*` where it has the tower."""
        yield from super().weights()
        if self.vision is not None:
            yield from self.vision.weights()
