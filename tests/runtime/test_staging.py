import numpy as np
import torch

from gllm.core.batch import EmbedRows
from gllm.runtime.embedding_rows import BorrowedRows, EmbeddingRows
from gllm.runtime.staging import HostCopy, Packing, Staging

ARRAYS = [
    np.arange(9, dtype=np.int64).reshape(3, 3),
    np.arange(5, dtype=np.int32),
    np.zeros((2, 0), dtype=np.int32),
    np.arange(12, dtype=np.int32).reshape(3, 4)[:, :2],
]


def test_arrays_come_back_out_of_one_run_of_bytes():
    packing = Packing.of(ARRAYS)
    assert [start for start, _, _ in packing.places] == [0, 80, 112, 112]
    packed = torch.full((packing.num_bytes + 7,), 255, dtype=torch.uint8)
    packing.write(ARRAYS, packed.numpy())
    for array, tensor in zip(ARRAYS, packing.read(packed)):
        assert tensor.dtype == torch.from_numpy(array).dtype
        assert np.array_equal(tensor.numpy(), array)


def test_on_a_cpu_nothing_is_copied():
    tensors = Staging(torch.device("cpu"))(ARRAYS)
    assert all(t.data_ptr() == a.ctypes.data for t, a in zip(tensors, ARRAYS) if a.size)


def test_tensors_on_the_host_are_there_at_once():
    copy = HostCopy([torch.arange(3)])
    assert copy.is_done()
    assert copy.get()[0].tolist() == [0, 1, 2]
    assert HostCopy([]).get() == []


def test_encoded_rows_replace_placeholders():
    hidden, payload = torch.zeros(6, 2), torch.arange(8.0).view(4, 2)
    EmbeddingRows(torch.device("cpu")).write(
        hidden, [EmbedRows(1, payload, 2, 2), EmbedRows(5, payload, 0, 1)]
    )
    assert hidden[:, 0].tolist() == [0, 4, 6, 0, 0, 0]


def test_borrowed_rows_may_be_written_to_again_when_they_are_in():
    hidden, arena = torch.zeros(3, 2), torch.arange(8.0).view(4, 2)
    EmbeddingRows(torch.device("cpu")).write(hidden, [EmbedRows(1, BorrowedRows(arena[1:]), 1, 2)])
    arena.zero_()
    assert hidden[:, 0].tolist() == [0, 4, 6]
