"""The largest steps that a GPU's memory must hold, as far as they run on a CPU."""

import numpy as np
import torch

from gllm.config import EngineConfig, ModelConfig
from gllm.layers import sampler
from gllm.layers.placement import Placement
from gllm.layers.sampler import ROWS_AT_ONCE
from gllm.models.names import resolve_model
from gllm.runtime.loading import ModelPlan
from gllm.runtime.profiling import encode_largest, sample_block


class Encoder:
    """Notes what it is given."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []

    def encode(self, pixels: list[np.ndarray], grids: list[tuple[int, int, int]]) -> None:
        self.calls.append(("encode", (pixels[0].shape, grids)))

    def follow(self, grids: list[tuple[int, int, int]], frames: list[int]) -> None:
        self.calls.append(("follow", (grids, frames)))


class Follower:
    rank, size = 1, 2


def test_the_largest_encoder_batch_is_one_square_item_on_all_ranks_of_the_stage():
    plan = ModelPlan.of(EngineConfig(model=ModelConfig(model=str(resolve_model("tiny")))))
    encoder = Encoder()
    encode_largest(plan, Placement(), encoder)
    encode_largest(plan, Placement(tp=Follower()), encoder)
    grid = (1, 256, 256)
    assert encoder.calls == [("encode", ((3584, 3584, 3), [grid])), ("follow", ([grid], [1]))]


def test_the_largest_sampling_is_a_block_whose_rows_need_the_whole_vocabulary(monkeypatch):
    seen = []

    draw = sampler._draw
    monkeypatch.setattr(
        sampler, "_draw", lambda scores, group: seen.append(group.width) or draw(scores, group)
    )
    sample_block(torch.zeros(2 * ROWS_AT_ONCE, 4096), Placement())
    assert seen == [sampler.NUCLEUS_WIDTH, 4096]
