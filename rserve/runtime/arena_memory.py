"""The embedding memory as tensors: anonymous shared memory, or the driver's own."""

import mmap
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class ArenaShape:
    """[rows, hidden_size] of one number format."""

    rows: int
    hidden_size: int
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return self.rows * self.hidden_size * self.dtype.itemsize


def map_shared(fd: int, shape: ArenaShape) -> Tensor:
    """The shared memory as a tensor [rows, hidden_size]; it stays mapped while the tensor lives."""
    return torch.frombuffer(mmap.mmap(fd, shape.num_bytes), dtype=shape.dtype).view(
        shape.rows, shape.hidden_size
    )


def touch(arena: Tensor, device: torch.device) -> None:
    """Make all pages present, and on GPUs page-locked, before the first embedding comes."""
    arena.zero_()
    if device.type == "cuda":
        size = arena.numel() * arena.element_size()
        torch.cuda.check_error(int(torch.cuda.cudart().cudaHostRegister(arena.data_ptr(), size, 0)))
