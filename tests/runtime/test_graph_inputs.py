"""What CUDA graphs read: checked on the CPU, without capturing anything."""

from dataclasses import replace

import pytest
import torch

from gllm.layers.attention import create_backend
from gllm.layers.kv_cache import KVCache, KVCacheShape
from gllm.layers.placement import CPU, Placement
from gllm.runtime.cuda_graphs import CHUNK_ROWS, DECODE_SIZES, Limits, StaticInputs, _at_least
from gllm.runtime.input_batch import InputBatch
from tests.layers.paging import PagedSequences

HEADS, KV_HEADS, DIM = 4, 2, 64


def static_inputs() -> StaticInputs:
    return StaticInputs(Limits(64, HEADS * DIM, torch.float32, CPU), block_size=16)


@pytest.mark.parametrize("as_decodes", [True, False])
def test_padded_inputs_give_the_rows_of_the_micro_batch_and_write_nothing_else(as_decodes):
    backend = create_backend("triton", Placement())
    pages = PagedSequences(16, 16, seed=5)
    kv = KVCache(KVCacheShape(1, 16, 16, KV_HEADS, DIM), Placement()).layers[0]
    inputs = static_inputs()
    for name in ("seq_kv", "tables"):
        getattr(inputs, name).fill_(3)  # left over from an earlier micro-batch
    inputs.slots.fill_(7)
    meta = pages.step([(0, 9), (1, 21)])
    k, v = torch.randn(2, 30, KV_HEADS, DIM)
    backend.write_kv(k, v, kv, meta)
    chunks = [(0, 1), (1, 1)] if as_decodes else [(0, 1), (1, 4)]
    meta = pages.step(chunks)
    rows = sum(count for _, count in chunks)
    padded = inputs.decodes(4) if as_decodes else inputs.chunks(16)
    hidden = torch.randn(rows, HEADS * DIM)
    batch = InputBatch(rows, torch.arange(rows).repeat(3, 1), meta)
    inputs.load(hidden, batch, padded)
    total = len(padded.slot_mapping)
    assert torch.equal(inputs.positions[:, :rows], batch.positions)

    k, v = torch.randn(2, total, KV_HEADS, DIM)
    before = kv.k.clone()
    backend.write_kv(k, v, kv, padded)
    changed = (kv.k != before).flatten(0, 1).any(-1).any(-1).nonzero().flatten()
    assert changed.tolist() == sorted(meta.slot_mapping.tolist())
    q = inputs.hidden[:total].view(total, HEADS, DIM)
    out = backend.forward(q, kv, replace(padded, plan=None))
    expected = backend.forward(hidden.view(rows, HEADS, DIM), kv, meta)
    torch.testing.assert_close(out[:rows], expected, atol=1e-5, rtol=0)


def test_the_smallest_graph_that_holds_a_micro_batch_is_taken():
    assert _at_least(list(DECODE_SIZES), DECODE_SIZES, 3) == 4
    assert _at_least(list(CHUNK_ROWS), CHUNK_ROWS, 16) == 16
    assert _at_least(list(CHUNK_ROWS), CHUNK_ROWS, 257) is None
