"""The language model gives the logits of transformers, however it is chunked, paged and split."""

import random

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from tests.layers.paging import PagedSequences
from tests.models.staged import StagedModel

VOCAB = 67  # no multiple of any tensor-parallel size
LIMIT = 1e-4


def save_random(folder, **overrides):
    torch.manual_seed(0)
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 92,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
    }
    config = Qwen2Config(**(sizes | overrides), initializer_range=0.3)
    model = Qwen2ForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            parameter.data += torch.randn_like(parameter) * 0.2
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen2")
    return folder, save_random(folder)


def tokens(length, seed=0):
    return [random.Random(seed).randrange(VOCAB) for _ in range(length)]


@torch.inference_mode()
def expected(model, ids):
    return model(torch.tensor([ids])).logits[0]


def close(ours, theirs):
    difference = (ours - theirs).abs().max().item()
    assert difference < LIMIT, difference


@pytest.mark.parametrize("pp", [1, 2, 4])
@pytest.mark.parametrize("tp", [1, 2])
def test_a_prompt_gives_the_logits_of_transformers_for_every_split(checkpoint, pp, tp):
    folder, oracle = checkpoint
    ids = tokens(41)
    model = StagedModel(folder, PagedSequences(20, 4), pp, tp)
    close(model.run({0: ids}), expected(oracle, ids))


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 8, 13, 64])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_chunks_of_any_size_and_blocks_of_any_size_change_nothing(checkpoint, budget, block_size):
    folder, oracle = checkpoint
    ids = tokens(41)
    model = StagedModel(folder, PagedSequences(80, block_size))
    rows = [model.run({0: ids[at : at + budget]}) for at in range(0, len(ids), budget)]
    close(torch.cat(rows), expected(oracle, ids))


def test_batch_mates_change_nothing(checkpoint):
    folder, oracle = checkpoint
    prompts = {seq: tokens(length, seq) for seq, length in enumerate([30, 9, 55, 1])}
    model = StagedModel(folder, PagedSequences(200, 2), pp=2, tp=2)
    model.run({0: prompts[0][:20], 1: prompts[1][:8]})
    model.run({0: prompts[0][20:29], 1: prompts[1][8:], 2: prompts[2][:31]})
    last = model.run({0: prompts[0][29:], 2: prompts[2][31:], 3: prompts[3]})
    theirs = [expected(oracle, prompts[seq]) for seq in (0, 3, 2)]
    close(last[:2], torch.stack([theirs[0][-1], theirs[1][-1]]))
    close(last[2:], theirs[2][31:])


@pytest.mark.parametrize("pp", [1, 2])
def test_selected_rows_are_the_last_rows_of_their_chunks(checkpoint, pp):
    folder, oracle = checkpoint
    prompts = {0: tokens(25, 0), 1: tokens(12, 1), 2: tokens(1, 2)}
    model = StagedModel(folder, PagedSequences(40, 4), pp)
    selected = model.run(prompts, select=True)
    close(selected, torch.stack([expected(oracle, prompts[seq])[-1] for seq in (2, 0, 1)]))
    # The caches of all rows are filled: decoding goes on from them.
    following = model.run({0: [5], 1: [6]}, select=True)
    close(following, torch.stack([expected(oracle, [*prompts[seq], 5 + seq])[-1] for seq in (0, 1)]))


def test_a_micro_batch_from_which_nothing_is_sampled_still_fills_the_cache(checkpoint):
    from gllm.models.qwen2_layer import SampledRows

    folder, oracle = checkpoint
    ids = tokens(20)
    model = StagedModel(folder, PagedSequences(40, 4))
    stage, cache = model.stages[0][0]
    meta = model.pages.step([(0, 15)])
    hidden = stage.embed(torch.tensor(ids[:15]))
    before = hidden.clone()
    nothing = stage(hidden, torch.arange(15), cache.layers, meta, SampledRows.of(meta, []))
    assert nothing.shape == (0, 48) and torch.equal(hidden, before)
    close(model.run({0: ids[15:]}), expected(oracle, ids)[15:])


@pytest.mark.parametrize(
    "overrides",
    [
        {"tie_word_embeddings": True},
        {"num_key_value_heads": 6},
        {"num_attention_heads": 8, "num_key_value_heads": 1},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        {"rms_norm_eps": 1e-2},
    ],
    ids=["tied", "multi-head", "one-kv-head", "rope-theta", "norm-eps"],
)
def test_every_field_of_the_config_is_honoured(tmp_path, overrides):
    oracle = save_random(tmp_path, **overrides)
    ids = tokens(23)
    for pp, tp in [(1, 1), (2, 2)]:
        close(StagedModel(tmp_path, PagedSequences(20, 4), pp, tp).run({0: ids}), expected(oracle, ids))


def test_greedy_decoding_gives_the_tokens_of_transformers(checkpoint):
    folder, oracle = checkpoint
    prompts = {seq: tokens(10 + 7 * seq, seq) for seq in range(3)}
    theirs = {
        seq: oracle.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=20, do_sample=False
        )[0, len(ids) :].tolist()
        for seq, ids in prompts.items()
    }
    model = StagedModel(folder, PagedSequences(60, 4), pp=2, tp=2)
    ours = {}
    for seq, ids in prompts.items():
        ours[seq] = [model.run({seq: ids}, select=True).argmax(-1).item()]
    for _ in range(19):
        picked = model.run({seq: ours[seq][-1:] for seq in ours}, select=True).argmax(-1).tolist()
        for seq, token in zip(ours, picked):
            ours[seq].append(token)
    assert ours == theirs
