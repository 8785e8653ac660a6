"""The tensors of a micro-batch are those that a loop over its tokens would give."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gllm.core.batch import Chunk, NewSequence
from gllm.core.request import MMItem, SamplingParams
from gllm.layers.mrope import mrope_positions
from gllm.runtime.input_batch import InputBuilder
from gllm.runtime.sequence_table import SequenceTable

CPU = torch.device("cpu")


def announce(seq_id: int, prompt_len: int, items: tuple[MMItem, ...], blocks: tuple[int, ...]) -> NewSequence:
    return NewSequence(seq_id, f"r{seq_id}", 0, prompt_len, prompt_len, items, SamplingParams(), blocks)


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, list[NewSequence], list[Chunk], int]:
    """Block size, sequences (some with an image), chunks with decodes first, number of decodes."""
    block_size = draw(st.integers(1, 5))
    sequences, decodes, prefills = [], [], []
    for seq_id in range(draw(st.integers(1, 5))):
        before, rows, columns = draw(st.integers(0, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
        with_image = draw(st.booleans())
        image = MMItem(before, rows * columns, (1, 2 * rows, 2 * columns))
        prompt_len = before + (rows * columns if with_image else 0) + draw(st.integers(1, 6))
        total = prompt_len + draw(st.integers(0, 5))
        count = -(-total // block_size)
        blocks = tuple(draw(st.lists(st.integers(0, 99), min_size=count, max_size=count)))
        sequences.append(announce(seq_id, prompt_len, (image,) if with_image else (), blocks))
        if total > prompt_len and draw(st.booleans()):
            decodes.append(Chunk(seq_id, total - 1, 1))
        else:
            start = draw(st.integers(0, total - 1))
            prefills.append(Chunk(seq_id, start, draw(st.integers(1, total - start))))
    return block_size, sequences, decodes + prefills, len(decodes)


@settings(max_examples=150, deadline=None)
@given(batches())
def test_every_token_has_its_position_and_its_slot(case: tuple[int, list[NewSequence], list[Chunk], int]):
    block_size, sequences, chunks, num_decodes = case
    table = SequenceTable(spatial_merge_size=2)
    table.apply([], sequences, [])
    batch = InputBuilder(table, block_size, CPU).build(chunks, num_decodes)
    positions, slots = [], []
    for chunk in chunks:
        seq = sequences[chunk.seq_id]
        mrope = mrope_positions(seq.prompt_len, seq.items, 2, 1.0)
        positions.append(mrope.positions_of(chunk.start, chunk.end))
        slots += [
            seq.block_table[i // block_size] * block_size + i % block_size
            for i in range(chunk.start, chunk.end)
        ]
    assert batch.num_tokens == sum(chunk.length for chunk in chunks)
    assert torch.equal(batch.positions, torch.cat(positions, dim=1))
    assert batch.meta.slot_mapping.tolist() == slots


@settings(max_examples=50, deadline=None)
@given(batches())
def test_attention_learns_lengths_and_blocks_of_each_chunk(
    case: tuple[int, list[NewSequence], list[Chunk], int],
):
    block_size, sequences, chunks, num_decodes = case
    table = SequenceTable()
    table.apply([], sequences, [])
    meta = InputBuilder(table, block_size, CPU).build(chunks, num_decodes).meta
    assert meta.query_lens == [chunk.length for chunk in chunks]
    assert meta.kv_lens == meta.seq_kv.tolist() == [chunk.end for chunk in chunks]
    assert meta.cu_query.tolist() == [sum(meta.query_lens[:i]) for i in range(len(chunks) + 1)]
    assert meta.num_decodes == num_decodes
    assert (meta.max_query_len, meta.max_kv_len) == (max(meta.query_lens), max(meta.kv_lens))
    for chunk, row in zip(chunks, meta.block_tables.tolist()):
        used = -(-chunk.end // block_size)
        assert tuple(row[:used]) == sequences[chunk.seq_id].block_table[:used]


def test_slots_of_the_example_in_the_docstring():
    table = SequenceTable()
    table.apply([], [announce(1, 8, (), (7, 9)), announce(2, 3, (), (3,))], [])
    batch = InputBuilder(table, 4, CPU).build([Chunk(1, 5, 3), Chunk(2, 2, 1)], 0)
    assert batch.meta.slot_mapping.tolist() == [37, 38, 39, 14]
