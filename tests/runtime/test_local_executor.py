"""Ranks as threads: one that fails does not leave the others waiting."""

from pathlib import Path

import pytest

from gllm.core.batch import Chunk, MicroBatch, NewSequence
from gllm.core.request import SamplingParams
from tests.runtime.local_server import load, make_plan

TINY = Path("gllm/models_data/tiny")


def batch(token: int) -> MicroBatch:
    new = NewSequence(0, "a", 0, 1, 1, (), SamplingParams(), (0,))
    return MicroBatch(0, (Chunk(0, 0, 1),), 0, (token,), new=(new,))


def test_a_failing_tensor_parallel_rank_ends_the_step_with_its_error():
    executor = load(make_plan(TINY, tp=2), num_blocks=4)
    unknown = MicroBatch(0, (Chunk(5, 0, 1),), 0, (1,))
    with pytest.raises(KeyError):
        executor.submit(unknown, lambda seq_id: (), lambda: None)
    executor.close()


def test_inputs_are_built_before_effects_are_carried_out():
    executor = load(make_plan(TINY), num_blocks=4)
    calls: list[str] = []
    result = executor.submit(batch(3), lambda seq_id: (), lambda: calls.append("built"))
    assert calls == ["built"]
    assert result.tokens == ()
