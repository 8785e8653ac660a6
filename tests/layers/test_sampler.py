"""The sampler: what is chosen, with which frequency, and that batch mates change nothing."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gllm.layers import sampler
from gllm.layers.noise import gumbel_noise, noise_key
from gllm.layers.penalties import TokenHistory
from gllm.layers.sampler import NUCLEUS_WIDTH, SamplingBatch, SamplingRow, best_token, sample, sample_rows

VOCAB = 96


@dataclass(frozen=True)
class Knobs:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    logprobs: int | None = None


def random_logits(rows: int, vocab: int = VOCAB, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 2


def draws(logits: torch.Tensor, knobs: Knobs, num: int) -> torch.Tensor:
    """`num` draws from the same logits [V], at different positions."""
    batch = SamplingBatch.build([SamplingRow(knobs, 0, position) for position in range(num)])
    return sample(logits.expand(num, -1), batch).token_ids


def frequencies(tokens: torch.Tensor, vocab: int) -> torch.Tensor:
    return torch.bincount(tokens, minlength=vocab) / len(tokens)


def test_temperature_zero_takes_the_best_token():
    logits = random_logits(5)
    batch = SamplingBatch.build([SamplingRow(Knobs(temperature=0.0), i, 3) for i in range(5)])
    assert torch.equal(sample(logits, batch).token_ids, logits.argmax(-1))


@pytest.mark.parametrize("vocab", [1, 7, 96, 128, 640])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_best_token_is_argmax_for_every_vocabulary_size(vocab, dtype):
    logits = random_logits(9, vocab).to(dtype)
    found = best_token(logits)
    assert torch.equal(logits.gather(1, found[:, None])[:, 0], logits.amax(-1))


def test_of_equal_logits_the_first_token_is_the_best():
    assert best_token(torch.zeros(2, 256)).tolist() == [0, 0]


def test_draws_follow_the_softmax_of_the_scaled_logits():
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -3.0, 1.5])
    found = frequencies(draws(logits, Knobs(temperature=0.7), 40000), 6)
    torch.testing.assert_close(found, (logits / 0.7).softmax(-1), atol=0.01, rtol=0)


def test_noise_is_uniform_over_tokens_positions_and_seeds():
    for key_of in (lambda i: (i, 0, 0), lambda i: (0, i, 0), lambda i: (0, 0, i)):
        keys = torch.tensor([noise_key(*key_of(i)) for i in range(400)], dtype=torch.int32)
        noise = gumbel_noise(keys, torch.arange(500, dtype=torch.int32)[None])
        uniform = torch.exp(-torch.exp(-noise))
        counts = torch.histc(uniform, bins=20, min=0, max=1)
        assert ((counts - 10000) ** 2 / 10000).sum() < 50  # chi-square with 19 degrees: 0.9999 quantile is 50
        for axis in (0, 1):
            centred = uniform - 0.5
            neighbour = (centred * centred.roll(1, axis)).mean() * 12
            assert abs(neighbour) < 0.01


@pytest.mark.parametrize(
    "other", [Knobs(seed=3), Knobs(temperature=0.0), Knobs(top_k=5), Knobs(top_p=0.4), Knobs(min_p=0.2)]
)
@pytest.mark.parametrize(
    "mine", [Knobs(seed=9), Knobs(seed=9, top_k=7, top_p=0.9), Knobs(seed=9, min_p=0.05)]
)
def test_batch_mates_do_not_change_a_draw(mine, other):
    logits = random_logits(6)
    for position in range(8):
        alone = sample(logits[2:3], SamplingBatch.build([SamplingRow(mine, 2, position)])).token_ids
        rows = [SamplingRow(mine if i == 2 else other, i, position) for i in range(6)]
        assert sample(logits, SamplingBatch.build(rows)).token_ids[2] == alone[0]


def test_seed_choice_and_position_each_change_the_noise():
    keys = {
        noise_key(1, 0, 0),
        noise_key(2, 0, 0),
        noise_key(1, 1, 0),
        noise_key(1, 0, 1),
        noise_key(-1, 0, 0),
    }
    assert len(keys) == 5
    assert noise_key(2**63 + 5, 0, 0) != noise_key(5, 0, 0)


def test_a_subset_of_the_vocabulary_gets_the_noise_of_the_whole():
    keys = torch.tensor([noise_key(4, 0, 7)], dtype=torch.int32)
    every = gumbel_noise(keys, torch.arange(50, dtype=torch.int32)[None])
    some = torch.tensor([[3, 49, 7]], dtype=torch.int32)
    assert torch.equal(gumbel_noise(keys, some)[0], every[0, [3, 49, 7]])


def test_top_k_draws_among_the_k_best_in_proportion():
    logits = random_logits(1)[0]
    found = frequencies(draws(logits, Knobs(top_k=4), 20000), VOCAB)
    best = logits.topk(4)
    expected = torch.zeros(VOCAB).index_copy(0, best.indices, best.values.softmax(-1))
    torch.testing.assert_close(found, expected, atol=0.015, rtol=0)


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert set(draws(logits, Knobs(top_p=0.79), 500).tolist()) == {0, 1}
    assert set(draws(logits, Knobs(top_p=0.81), 500).tolist()) == {0, 1, 2}
    assert set(draws(logits, Knobs(top_p=0.0), 500).tolist()) == {0}


def test_top_p_counts_what_top_k_left_as_everything():
    logits = torch.tensor([0.4, 0.2, 0.19, 0.19]).log()
    assert set(draws(logits, Knobs(top_k=2, top_p=0.66), 500).tolist()) == {0}
    assert set(draws(logits, Knobs(top_k=2, top_p=0.67), 500).tolist()) == {0, 1}


def test_a_nucleus_wider_than_the_first_guess_is_found():
    vocab = 3 * NUCLEUS_WIDTH
    tokens = draws(torch.zeros(vocab), Knobs(top_p=0.9), 4000)
    assert len(tokens.unique()) > NUCLEUS_WIDTH
    assert len(tokens.unique()) <= 0.9 * vocab + 1


def test_rows_whose_nucleus_is_wide_change_nothing_for_their_neighbours():
    flat, steep = torch.zeros(3 * NUCLEUS_WIDTH), torch.zeros(3 * NUCLEUS_WIDTH)
    steep[7] = 9.0
    rows = [SamplingRow(Knobs(top_p=0.95, min_p=1e-9 * n), n, n) for n in range(6)]
    logits = torch.stack([flat, steep, flat, steep, steep, flat])
    together = sample(logits, SamplingBatch.build(rows)).token_ids
    alone = [sample(logits[[n]], SamplingBatch.build([rows[n]])).token_ids[0] for n in range(6)]
    assert together.tolist() == [int(token) for token in alone]


@pytest.mark.parametrize("num", [0, 1, 3, 4, 10])
def test_many_rows_are_sampled_in_blocks_with_the_same_result(num: int, monkeypatch: pytest.MonkeyPatch):
    logits = random_logits(num)
    knobs = [Knobs(0.0), Knobs(), Knobs(top_p=0.7), Knobs(0.5, top_k=3, logprobs=2), Knobs(0.0, logprobs=4)]
    rows = [SamplingRow(knobs[n % 5], n, n) for n in range(num)]
    whole = sample(logits, SamplingBatch.build(rows))
    monkeypatch.setattr(sampler, "ROWS_AT_ONCE", 3)
    blocks = sample_rows(logits, rows)
    for name in ("token_ids", "logprobs", "top_ids", "top_logprobs"):
        ours, theirs = getattr(blocks, name), getattr(whole, name)
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs)


def test_min_p_drops_what_is_less_likely_than_a_fraction_of_the_best():
    logits = torch.tensor([0.5, 0.24, 0.16, 0.1]).log()
    assert set(draws(logits, Knobs(min_p=0.3), 500).tolist()) == {0, 1, 2}
    assert set(draws(logits, Knobs(min_p=0.5), 500).tolist()) == {0}


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.integers(0, 11), max_size=8),
    st.lists(st.integers(0, 11), max_size=8),
    st.floats(0.5, 2),
    st.floats(-2, 2),
    st.floats(-2, 2),
)
def test_penalties_equal_their_definition_token_by_token(prompt, said, repetition, presence, frequency):
    logits = random_logits(2, 12)
    history = TokenHistory(12)
    history.add(7, prompt, said[:2])
    for token in said[2:]:
        history.append([7], torch.tensor([token]))
    expected = logits[1].clone()
    for token in range(12):
        if token in prompt or token in said:
            expected[token] *= 1 / repetition if expected[token] > 0 else repetition
        expected[token] -= presence * (token in said) + frequency * said.count(token)
    knobs = Knobs(0.0, repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency)
    before = logits.clone()
    batch = SamplingBatch.build([SamplingRow(Knobs(0.0), 1, 0), SamplingRow(knobs, 7, 0)])
    found = sample(logits, batch, history).token_ids
    assert found[0] == logits[0].argmax()
    assert expected[found[1]] >= expected.max() - 1e-5
    assert torch.equal(logits, before)


def test_a_history_row_is_clean_when_it_is_used_again():
    history = TokenHistory(8)
    for seq_id in range(9):  # more than the first rows
        history.add(seq_id, [seq_id % 8], [1, 1])
    history.remove(3)
    history.add(20, [5])
    row, token, times = history.seen([20, 4])
    assert list(zip(row.tolist(), token.tolist(), times.tolist())) == [(0, 5, 0), (1, 1, 2), (1, 4, 0)]
    assert 3 not in history and 20 in history


def test_a_restarted_sequence_counts_its_outputs_once():
    history = TokenHistory(8)
    history.add(1, [2], [3])
    history.add(1, [2], [3, 3])
    assert [column.tolist() for column in history.seen([1])] == [[0, 0], [2, 3], [0, 2]]


def test_tokens_of_sequences_without_history_are_passed_over():
    history = TokenHistory(8)
    history.add(1, [2])
    history.append([0, 1], torch.tensor([4, 6]))
    assert [column.tolist() for column in history.seen([1])] == [[0, 0], [2, 6], [0, 1]]


def test_penalties_without_a_history_are_refused():
    batch = SamplingBatch.build([SamplingRow(Knobs(0.0, presence_penalty=1.0), 0, 0)])
    with pytest.raises(ValueError, match="history"):
        sample(random_logits(1), batch)


def test_logprobs_are_those_of_the_raw_logits():
    logits = random_logits(3).bfloat16()
    rows = [SamplingRow(Knobs(temperature=0.3, top_k=2, logprobs=4), 0, 0), SamplingRow(Knobs(0.0), 1, 0)]
    found = sample(logits[:2], SamplingBatch.build(rows))
    expected = logits[:2].float().log_softmax(-1)
    torch.testing.assert_close(found.logprobs, expected.gather(1, found.token_ids[:, None])[:, 0])
    torch.testing.assert_close(found.top_logprobs, expected.topk(4).values)
    assert found.top_ids.shape == (2, 4)


def test_logprobs_of_the_chosen_token_alone_need_no_others():
    found = sample(random_logits(1), SamplingBatch.build([SamplingRow(Knobs(0.0, logprobs=0), 0, 0)]))
    assert found.logprobs.shape == (1,) and found.top_ids.shape == (1, 0)


def test_without_logprobs_none_are_computed():
    found = sample(random_logits(1), SamplingBatch.build([SamplingRow(Knobs(0.0), 0, 0)]))
    assert found.logprobs is None and found.top_ids is None


def test_both_words_of_a_key_change_the_noise():
    keys = torch.tensor([[1, 2], [1, 3], [4, 2]], dtype=torch.int32)
    noise = gumbel_noise(keys, torch.arange(200, dtype=torch.int32)[None])
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert abs(torch.corrcoef(noise[[one, other]])[0, 1]) < 0.25
