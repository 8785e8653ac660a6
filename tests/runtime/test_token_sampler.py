"""The last stage's sampler: forks, log-probabilities, and histories that follow the deltas."""

import torch

from gllm.core.batch import Chunk, NewSequence, Sample, SampleTarget
from gllm.core.request import SamplingParams
from gllm.runtime.messages import StageBatch
from gllm.runtime.prompts import with_prompts
from gllm.runtime.token_sampler import TokenSampler

VOCAB = 8
GREEDY = SamplingParams(temperature=0.0)
PENALISED = SamplingParams(temperature=0.0, presence_penalty=2.0)


def new(seq_id: int, params: SamplingParams, prompt_len: int, num_tokens: int) -> NewSequence:
    return NewSequence(seq_id, "r", 0, prompt_len, num_tokens, (), params, (0,))


def batch(
    samples: list[Sample],
    announced: list[NewSequence],
    finished: tuple[int, ...] = (),
    **prompts: tuple[int, ...],
) -> StageBatch:
    chunks = tuple(Chunk(choice.targets[0].seq_id, 0, 1) for choice in samples)
    told = {int(name[1:]): ids for name, ids in prompts.items()}
    return StageBatch(0, chunks, 0, tuple(samples), tuple(announced), (), finished, (), prompts=told)


def sample(index: int, params: SamplingParams, *targets: tuple[int, int, int]) -> Sample:
    """targets: (seq_id, choice, position)."""
    return Sample(index, params, tuple(SampleTarget(seq, "r", choice, at) for seq, choice, at in targets))


def logits(*best: int) -> torch.Tensor:
    rows = torch.zeros(len(best), VOCAB)
    rows[torch.arange(len(best)), torch.tensor(best)] = 1.0
    return rows


def test_each_target_gets_its_token_and_place():
    found = TokenSampler(VOCAB).sample(
        logits(3, 5), batch([sample(0, GREEDY, (1, 0, 10)), sample(1, GREEDY, (2, 0, 7))], [])
    )
    assert [(t.seq_id, t.position, t.token_id) for t in found] == [(1, 10, 3), (2, 7, 5)]


def test_forks_draw_from_one_row_with_noise_of_their_own():
    params = SamplingParams(temperature=1.0, seed=5, n=4)
    targets = [(seq, seq, 10) for seq in range(4)]
    flat = torch.zeros(1, 1000)
    sampler = TokenSampler(1000)
    found = sampler.sample(flat, batch([sample(0, params, *targets)], []))
    assert [t.choice for t in found] == [0, 1, 2, 3]
    assert len({t.token_id for t in found}) > 1
    again = sampler.sample(flat, batch([sample(0, params, *targets)], []))
    assert again == found


def test_as_many_logprobs_come_back_as_each_request_asked_for():
    two = SamplingParams(temperature=0.0, logprobs=2)
    none = SamplingParams(temperature=0.0, logprobs=0)
    found = TokenSampler(VOCAB).sample(
        logits(3, 5, 6),
        batch([sample(0, two, (1, 0, 1)), sample(1, none, (2, 0, 1)), sample(2, GREEDY, (3, 0, 1))], []),
    )
    assert found[0].logprobs is not None
    assert found[1].logprobs is not None
    assert len(found[0].logprobs.top) == 2
    assert found[0].logprobs.top[0] == (3, found[0].logprobs.chosen)
    assert found[1].logprobs.top == ()
    assert found[2].logprobs is None


def test_penalties_count_the_tokens_sampled_here():
    sampler = TokenSampler(VOCAB)
    first = batch([sample(0, PENALISED, (1, 0, 4))], [new(1, PENALISED, 4, 4)], s1=(0, 1, 2, 3))
    sampler.apply(first)
    assert sampler.sample(logits(3), first)[0].token_id == 3
    again = batch([sample(0, PENALISED, (1, 0, 5))], [])
    sampler.apply(again)
    assert sampler.sample(logits(3), again)[0].token_id != 3


def test_a_restarted_sequence_keeps_what_it_had_said():
    sampler = TokenSampler(VOCAB)
    restarted = batch([sample(0, PENALISED, (1, 0, 5))], [new(1, PENALISED, 4, 5)], s1=(0, 1, 2, 2, 3))
    sampler.apply(restarted)
    assert sampler.sample(logits(3), restarted)[0].token_id != 3


def test_the_first_token_of_a_fork_is_penalised_by_the_parents_history():
    sampler = TokenSampler(VOCAB)
    params = SamplingParams(temperature=0.0, repetition_penalty=100.0, n=2)
    first = batch([sample(0, params, (1, 0, 2), (2, 1, 2))], [new(1, params, 2, 2)], s1=(3, 4))
    sampler.apply(first)
    assert 3 not in {t.token_id for t in sampler.sample(logits(3) + 0.5, first)}


def test_a_finished_sequence_is_forgotten():
    sampler = TokenSampler(VOCAB)
    first = batch([sample(0, PENALISED, (1, 0, 4))], [new(1, PENALISED, 4, 4)], s1=(0, 1, 2, 3))
    sampler.apply(first)
    sampler.sample(logits(3), first)
    sampler.apply(batch([], [], finished=(1,)))
    other = batch([sample(0, PENALISED, (1, 0, 4))], [new(1, PENALISED, 4, 4)], s1=(0, 1, 2, 3))
    sampler.apply(other)
    assert sampler.sample(logits(3), other)[0].token_id == 3


def test_only_sequences_with_penalties_have_their_tokens_sent():
    delta = batch([], [new(1, GREEDY, 2, 2), new(2, PENALISED, 2, 3)])
    tokens = {1: [5, 6], 2: [7, 8, 9, 10]}
    assert with_prompts(delta, tokens.__getitem__).prompts == {2: (7, 8, 9)}
    plain = batch([], [new(1, GREEDY, 2, 2)])
    assert with_prompts(plain, tokens.__getitem__) is plain
