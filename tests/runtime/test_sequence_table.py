"""A rank's table holds what the deltas say, and nothing of sequences that ended."""

import numpy as np
import pytest

from gllm.core.batch import Chunk, GrownSequence, NewSequence
from gllm.core.request import MMItem, SamplingParams
from gllm.layers.mrope import mrope_positions
from gllm.runtime.sequence_table import SequenceTable


def new(
    seq_id: int, blocks: tuple[int, ...], prompt_len: int = 8, items: tuple[MMItem, ...] = ()
) -> NewSequence:
    return NewSequence(seq_id, f"r{seq_id}", 0, prompt_len, prompt_len, items, SamplingParams(), blocks)


def blocks_of(table: SequenceTable, seq_id: int, count: int) -> list[int]:
    (row,) = table.rows_of([Chunk(seq_id, 0, 1)])
    return table.block_tables[row, :count].tolist()


def test_grown_blocks_follow_those_of_the_announcement():
    table = SequenceTable()
    table.apply([], [new(1, (5, 6))], [])
    table.apply([], [], [GrownSequence(1, (9,))])
    assert blocks_of(table, 1, 3) == [5, 6, 9]


def test_an_announcement_replaces_what_was_known():
    table = SequenceTable()
    table.apply([], [new(1, (5, 6, 7))], [])
    table.apply([], [new(1, (2,))], [GrownSequence(1, (3,))])
    assert blocks_of(table, 1, 2) == [2, 3]
    assert len(table) == 1


def test_a_finished_sequence_is_forgotten_before_new_ones_come():
    table = SequenceTable()
    table.apply([], [new(1, (5,))], [])
    table.apply([1], [new(2, (6,))], [])
    assert 1 not in table
    assert blocks_of(table, 2, 1) == [6]


def test_finishing_an_unknown_sequence_changes_nothing():
    table = SequenceTable()
    table.apply([7], [], [])
    assert len(table) == 0


def test_growth_of_an_unknown_sequence_is_an_error():
    with pytest.raises(KeyError):
        SequenceTable().apply([], [], [GrownSequence(3, (1,))])


def test_the_table_grows_in_rows_and_blocks_and_keeps_what_it_holds():
    table = SequenceTable()
    for seq_id in range(100):
        table.apply([], [new(seq_id, (seq_id, seq_id + 1))], [])
    table.apply([], [], [GrownSequence(50, tuple(range(1000, 1300)))])
    assert blocks_of(table, 50, 302) == [50, 51, *range(1000, 1300)]
    assert blocks_of(table, 99, 2) == [99, 100]
    assert blocks_of(table, 3, 3) == [3, 4, 0]


def test_rows_of_ended_sequences_are_used_again():
    table = SequenceTable()
    for seq_id in range(1000):
        table.apply([seq_id - 1], [new(seq_id, (1,))], [])
    assert table.block_tables.shape[0] == 16


def test_positions_in_a_prompt_with_items_come_from_their_grids():
    items = (MMItem(offset=3, num_tokens=6, grid=(1, 4, 6)),)
    table = SequenceTable(spatial_merge_size=2)
    table.apply([], [new(1, (1,), prompt_len=12, items=items)], [])
    expected = mrope_positions(12, items, 2, 1.0)
    found = table.prompt_positions(Chunk(1, 2, 9))
    assert found is not None
    assert np.array_equal(found, expected.positions_of(2, 11).numpy())
    assert table.prompt_positions(Chunk(1, 12, 1)) is None
    assert table.deltas(table.rows_of([Chunk(1, 12, 1)])).tolist() == [expected.delta]


def test_text_has_no_positions_of_its_own():
    table = SequenceTable()
    table.apply([], [new(1, (1,))], [])
    assert table.prompt_positions(Chunk(1, 0, 4)) is None
    assert table.deltas(table.rows_of([Chunk(1, 0, 4)])).tolist() == [0]
