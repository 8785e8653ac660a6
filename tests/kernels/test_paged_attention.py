import random

import pytest
import torch

from tests.kernels.cases import NAN, TOLERANCE, paged_case, poisoned

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def error(out, case):
    from gllm.layers.kernels.reference import paged_attention

    expected = paged_attention(case.q, case.kv, case.query_lens, case.kv_lens, case.tables)
    return (out.double() - expected).abs().max().item()


def prefill(case, extra_rows=0):
    from gllm.layers.kernels.paged_prefill import PagedChunks, paged_prefill

    out = poisoned(torch.cat((case.q, case.q[:1].expand(extra_rows, -1, -1))))
    longest = max(case.query_lens)
    paged_prefill(case.q, case.kv, PagedChunks(case.cu_query, case.seq_kv, case.tables, longest), out)
    return out


def decode(case, splits):
    from gllm.layers.kernels.paged_decode import paged_decode

    out = poisoned(case.q)
    paged_decode(case.q, case.kv, case.seq_kv, case.tables, out, splits)
    return out


@pytest.mark.parametrize("seed", range(6))
def test_prefill_of_random_chunks_is_exact(seed, device):
    rng = random.Random(seed)
    page = rng.choice([16, 32, 64, 256])
    heads = rng.choice([(4, 2, 64), (7, 1, 80), (2, 2, 128), (3, 1, 32)])
    dtype = DTYPES[seed % 3]
    chunks = [
        (n := rng.randrange(1, 40), n + rng.choice([0, 0, 1, 37, 70])) for _ in range(rng.randrange(1, 4))
    ]
    case = paged_case(rng, chunks, page, heads, dtype, device)
    assert error(prefill(case), case) < TOLERANCE[dtype]


def test_a_prefix_that_two_sequences_share_is_read_from_the_same_block(device):
    rng = random.Random(1)
    case = paged_case(rng, [(3, 40), (18, 50)], 16, (4, 2, 64), torch.float32, device, share_first=True)
    assert case.tables[0, 0] == case.tables[1, 0]
    assert error(prefill(case), case) < 2e-5


def test_a_chunk_attends_to_the_lower_right_of_the_mask(device):
    case = paged_case(random.Random(2), [(5, 21)], 16, (2, 1, 64), torch.float32, device)
    whole = prefill(case)
    later = int(case.tables[0, 1]), 4  # the last key, which only the last row sees
    case.kv.k[later] += 1.0
    changed = (prefill(case) - whole).abs().amax((1, 2)) > 0
    assert changed.tolist() == [False, False, False, False, True]


def test_rows_behind_the_last_chunk_stay_untouched(device):
    case = paged_case(random.Random(3), [(2, 2), (3, 9)], 16, (2, 1, 64), torch.float32, device)
    out = prefill(case, extra_rows=4)
    assert out[5:].isnan().all() and not out[:5].isnan().any()


def test_empty_chunks_are_passed_over(device):
    case = paged_case(random.Random(3), [(0, 0), (5, 12), (0, 0)], 16, (2, 1, 64), torch.float32, device)
    out = prefill(case)
    assert not out.isnan().any()


@pytest.mark.parametrize("seed", range(6))
def test_decode_of_random_lengths_is_exact_for_any_number_of_splits(seed, device):
    rng = random.Random(100 + seed)
    page = rng.choice([16, 32, 64, 256])
    heads = rng.choice([(4, 2, 64), (7, 1, 80), (2, 2, 128), (3, 1, 32)])
    dtype = DTYPES[seed % 3]
    chunks = [(1, rng.randrange(1, 150)) for _ in range(rng.randrange(1, 4))]
    case = paged_case(rng, chunks, page, heads, dtype, device)
    assert error(decode(case, [1, 2, 3, 5, 4, 9][seed]), case) < TOLERANCE[dtype]


def test_a_sequence_without_keys_gives_zeros(device):
    case = paged_case(random.Random(5), [(1, 0), (1, 20)], 16, (2, 1, 64), torch.float32, device)
    for splits in (1, 3):
        out = decode(case, splits)
        assert (out[0] == 0).all() and not out[1].isnan().any()


def test_infinities_in_unused_rows_of_a_reused_block_do_not_spread(device):
    for stale in (NAN, float("inf")):
        case = paged_case(random.Random(6), [(1, 17)], 16, (2, 1, 64), torch.float32, device)
        last = int(case.tables[0, 1])
        case.kv.k[last, 1:] = stale
        case.kv.v[last, 1:] = stale
        assert error(decode(case, 1), case) < 2e-5
        assert error(prefill(case), case) < 2e-5


def test_large_scores_do_not_overflow(device):
    case = paged_case(random.Random(7), [(4, 30)], 16, (2, 1, 64), torch.float32, device)
    case.q.mul_(300.0)
    assert error(prefill(case), case) < 1e-3


def test_splits_fill_the_gpu_and_are_never_too_short():
    from gllm.layers.kernels.paged_decode import num_splits

    assert num_splits(1, 4, 8192, 132) == 32
    assert num_splits(64, 4, 8192, 132) == 3
    assert num_splits(512, 4, 8192, 132) == 1
    assert num_splits(1, 4, 100, 132) == 1
