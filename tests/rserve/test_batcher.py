"""Algorithm 1, and the memory of embeddings."""

from hypothesis import given
from hypothesis import strategies as st

from rserve.core.arena import Arena
from rserve.core.batcher import encoder_batches

sizes = st.lists(st.integers(1, 2000), max_size=40)


def test_a_batch_closes_when_it_holds_enough():
    assert list(encoder_batches(enumerate([400, 700, 300]), 1024)) == [[0, 1], [2]]


def test_infinity_makes_one_batch_of_a_request():
    assert list(encoder_batches(enumerate([5, 5, 5]), float("inf"))) == [[0, 1, 2]]


@given(sizes, st.integers(1, 4000))
def test_batches_keep_the_order_and_all_but_the_last_hold_enough(tokens: list[int], least: int):
    batches = list(encoder_batches(enumerate(tokens), least))
    assert [i for batch in batches for i in batch] == list(range(len(tokens)))
    for batch in batches[:-1]:
        assert sum(tokens[i] for i in batch) >= least
        assert sum(tokens[i] for i in batch[:-1]) < least


@given(st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=5), max_size=30))
def test_rows_never_overlap_and_all_come_back(requests: list[list[int]]):
    arena = Arena(100)
    held: list[list[tuple[int, int]]] = []
    for lengths in requests:
        rows = arena.reserve(lengths)
        if rows is None:
            for row, length in held.pop(0) if held else []:
                arena.release(row, length)
            continue
        held.append(list(zip(rows, lengths)))
        taken = [r for one in held for row, length in one for r in range(row, row + length)]
        assert len(taken) == len(set(taken)) == 100 - arena.num_free
    for one in held:
        for row, length in one:
            arena.release(row, length)
    assert arena.reserve([100]) == [0]
