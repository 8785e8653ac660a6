"""Scheduling methods as formulas."""

from hypothesis import given
from hypothesis import strategies as st

from gllm.core.budget import ChunkedPrefill, Load, TokenThrottling


def throttling(stages: int = 4, kvthresh: float = 0.0) -> TokenThrottling:
    return TokenThrottling(2048, 2048, 32, 8, kvthresh, stages, 16)


def test_sarathi_has_one_fixed_budget():
    assert ChunkedPrefill(512, 2048).limits(Load(9999, 3, 10, 100)).total == 512


def test_throttling_follows_what_waits_and_what_is_free():
    limits = throttling().limits(Load(waiting=8000, decoding=0, free_blocks=50, num_blocks=100))
    assert (limits.prefill, limits.fresh) == (1000, 800)


def test_sequences_that_hold_blocks_are_not_gated_by_free_blocks():
    limits = throttling(kvthresh=0.05).limits(Load(waiting=8000, decoding=0, free_blocks=4, num_blocks=100))
    assert limits.fresh == 0
    assert limits.prefill == 1000


def test_one_stage_takes_all_decodes_and_the_whole_budget():
    limits = throttling(stages=1).limits(Load(10, 77, 100, 100))
    assert (limits.decode, limits.prefill) == (77, 2048)


@given(st.integers(1, 500), st.integers(2, 8))
def test_decodes_are_spread_evenly_over_one_turn_of_the_stages(decoding: int, stages: int):
    method = throttling(stages)
    turns = [method.limits(Load(0, decoding, 100, 100)).decode for _ in range(stages)]
    assert max(turns) - min(turns) <= 1
    assert sum(turns) >= decoding
