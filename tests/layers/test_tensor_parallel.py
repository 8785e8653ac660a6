"""Every parallel layer on several threads computes what the undivided layer computes."""

import threading

import pytest
import torch
import torch.nn.functional as F

from gllm.layers.comm import SINGLE, ThreadTensorParallel
from gllm.layers.embedding import VocabParallelEmbedding
from gllm.layers.linear import (
    ColumnParallelLinear,
    HeadSplit,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from gllm.layers.placement import Placement


def on_threads(size, work):
    """[work(tp) of each rank]; an exception of any rank is raised here."""
    results, errors = [None] * size, []

    def run(tp):
        try:
            results[tp.rank] = work(tp)
        except Exception as error:
            errors.append(error)
            tp.abort()

    ranks = ThreadTensorParallel.create(size)
    threads = [threading.Thread(target=run, args=(tp,)) for tp in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    if errors:
        raise errors[0]
    return results


def load(layer_weights, tensors):
    for weight in layer_weights:
        assert weight.shape == tuple(tensors[weight.name].shape), weight.name
        weight.load(tensors[weight.name])


@pytest.fixture
def tensors():
    generator = torch.Generator().manual_seed(3)

    def make(**shapes):
        return {
            name.replace("__", "."): torch.randn(shape, generator=generator) for name, shape in shapes.items()
        }

    return make


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_column_then_a_row_layer_equals_the_full_product_even_where_sizes_do_not_divide(size, tensors):
    full = tensors(up__weight=(10, 6), up__bias=(10,), down__weight=(5, 10), down__bias=(5,))
    x = torch.randn(4, 6)

    def work(tp):
        place = Placement(tp=tp)
        up, down = ColumnParallelLinear(6, 10, place), RowParallelLinear(10, 5, place)
        load(up.weights("up"), full)
        load(down.weights("down"), full)
        return down(up(x))

    hidden = F.linear(x, full["up.weight"], full["up.bias"])
    expected = F.linear(hidden, full["down.weight"], full["down.bias"])
    for result in on_threads(size, work):
        torch.testing.assert_close(result, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_merged_gate_and_up_keep_each_ranks_columns_side_by_side(size, tensors):
    full = tensors(gate__weight=(8, 6), up__weight=(8, 6))
    x = torch.randn(3, 6)

    def work(tp):
        layer = MergedColumnParallelLinear(6, 8, Placement(tp=tp))
        load(layer.weights(["gate", "up"]), full)
        return layer(x)

    for rank, result in enumerate(on_threads(size, work)):
        part = slice(rank * 8 // size, (rank + 1) * 8 // size)
        expected = torch.cat([x @ full[name].T[:, part] for name in ("gate.weight", "up.weight")], dim=1)
        torch.testing.assert_close(result, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("size", "kv_of_rank"), [(1, [(0, 1)]), (2, [(0,), (1,)]), (4, [(0,), (0,), (1,), (1,)])]
)
def test_key_value_heads_are_divided_or_repeated_with_the_query_heads_that_use_them(
    size, kv_of_rank, tensors
):
    full = tensors(
        q__weight=(16, 6), k__weight=(4, 6), v__weight=(4, 6), q__bias=(16,), k__bias=(4,), v__bias=(4,)
    )
    x = torch.randn(3, 6)

    def work(tp):
        layer = QKVParallelLinear(6, HeadSplit(8, 2, 2), Placement(tp=tp))
        load(layer.weights(["q", "k", "v"]), full)
        return layer.project(x)

    results = on_threads(size, work)
    whole = {name: F.linear(x, full[f"{name}.weight"], full[f"{name}.bias"]).view(3, -1, 2) for name in "qkv"}
    torch.testing.assert_close(torch.cat([q for q, _, _ in results], dim=1), whole["q"])
    for (_, k, v), heads in zip(results, kv_of_rank):
        torch.testing.assert_close(k, whole["k"][:, list(heads)])
        torch.testing.assert_close(v, whole["v"][:, list(heads)])


def test_a_checkpoint_with_fused_qkv_gives_the_same_layer_as_separate_tensors(tensors):
    full = tensors(
        q__weight=(8, 6), k__weight=(8, 6), v__weight=(8, 6), q__bias=(8,), k__bias=(8,), v__bias=(8,)
    )
    full["qkv.weight"] = torch.cat([full[f"{name}.weight"] for name in "qkv"])
    full["qkv.bias"] = torch.cat([full[f"{name}.bias"] for name in "qkv"])

    def work(tp):
        layers = [QKVParallelLinear(6, HeadSplit(4, 4, 2), Placement(tp=tp)) for _ in range(2)]
        load(layers[0].weights(["q", "k", "v"]), full)
        load(layers[1].fused_weights("qkv"), full)
        return [torch.equal(layers[0].weight, layers[1].weight), torch.equal(layers[0].bias, layers[1].bias)]

    assert on_threads(2, work) == [[True, True]] * 2


def test_heads_that_cannot_be_shared_are_refused():
    tp = ThreadTensorParallel.create(8)[0]
    with pytest.raises(ValueError, match="28 heads"):
        QKVParallelLinear(6, HeadSplit(28, 4, 2), Placement(tp=tp))
    tp = ThreadTensorParallel.create(4)[0]
    with pytest.raises(ValueError, match="6 key/value heads"):
        QKVParallelLinear(6, HeadSplit(24, 6, 2), Placement(tp=tp))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_vocabulary_that_does_not_divide_is_padded_and_cut_again(size, tensors):
    full = tensors(table=(10, 6))
    ids, hidden = torch.tensor([0, 9, 3, 4, 5]), torch.randn(2, 6)

    def work(tp):
        table = VocabParallelEmbedding(10, 6, Placement(tp=tp))
        load(table.weights("table"), full)
        return table(ids), table.logits(hidden)

    for embedded, logits in on_threads(size, work):
        assert torch.equal(embedded, full["table"][ids])
        torch.testing.assert_close(logits, hidden @ full["table"].T, atol=1e-5, rtol=0)


def test_threads_exchange_tensors_in_order_of_rank():
    def work(tp):
        mine = torch.full((2, 1), float(tp.rank + 1))
        gathered = tp.all_gather_last_dim(mine)
        summed = tp.all_reduce(mine.clone())
        sent = tp.broadcast(mine.clone(), src=1)
        return gathered[0].tolist(), summed[0, 0].item(), sent[0, 0].item()

    assert on_threads(3, work) == [([1.0, 2.0, 3.0], 6.0, 2.0)] * 3


def test_a_failed_thread_frees_those_that_wait_for_it():
    def work(tp):
        if tp.rank == 1:
            raise ZeroDivisionError
        return tp.all_reduce(torch.ones(1))

    with pytest.raises((ZeroDivisionError, threading.BrokenBarrierError)):
        on_threads(3, work)


def test_a_single_rank_exchanges_nothing():
    x = torch.ones(2)
    assert SINGLE.all_reduce(x) is x and SINGLE.all_gather_last_dim(x) is x and SINGLE.broadcast(x) is x
