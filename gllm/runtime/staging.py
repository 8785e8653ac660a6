"""Small arrays between host and device without waiting: inputs of a micro-batch, and what was sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGNMENT = 16  # bytes; every type fits, and kernels may read 16 bytes at once
BUFFERS = 4  # page-locked buffers in turn: the host writes one while the device still reads others

Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Packing:
    """Where arrays stand in one run of bytes: (first byte, dtype, shape) of each, and how long the run is."""

    places: tuple[tuple[int, torch.dtype, tuple[int, ...]], ...]
    num_bytes: int

    @classmethod
    def of(cls, arrays: Sequence[Array]) -> Packing:
        """One after another, each at a multiple of ALIGNMENT: 3 int64 and 5 int32 start at 0 and 32."""
        places, end = [], 0
        for array in arrays:
            places.append((end, torch.from_numpy(array[:0]).dtype, array.shape))
            end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        return cls(tuple(places), end)

    def write(self, arrays: Sequence[Array], target: NDArray[np.uint8]) -> None:
        """Copy the arrays into a buffer of at least num_bytes."""
        for (start, _, _), array in zip(self.places, arrays, strict=True):
            flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            target[start : start + len(flat)] = flat

    def read(self, packed: Tensor) -> list[Tensor]:
        """The arrays as views of a uint8 tensor."""
        views = []
        for start, dtype, shape in self.places:
            size = int(np.prod(shape)) * dtype.itemsize
            views.append(packed[start : start + size].view(dtype).view(shape))
        return views


class Staging:
    """Arrays to the device in one copy out of page-locked memory; on a CPU, tensors of the arrays' memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._buffers: list[Tensor] = []
        self._copied: list[torch.cuda.Event] = []
        self._next = 0

    def __call__(self, arrays: Sequence[Array]) -> list[Tensor]:
        """The arrays on the device, in the order of its current stream; they may be changed afterwards."""
        if self.device.type != "cuda":
            return [torch.from_numpy(array) for array in arrays]
        packing = Packing.of(arrays)
        buffer, copied = self._take(packing.num_bytes)
        packing.write(arrays, buffer.numpy())
        packed = buffer[: packing.num_bytes].to(self.device, non_blocking=True)
        copied.record()
        return packing.read(packed)

    def _take(self, num_bytes: int) -> tuple[Tensor, torch.cuda.Event]:
        """The buffer whose copy is oldest; it has long been made, unless the host is BUFFERS steps ahead."""
        index, self._next = self._next, (self._next + 1) % BUFFERS
        if index == len(self._buffers):
            self._buffers.append(_page_locked(num_bytes))
            self._copied.append(torch.cuda.Event())
        self._copied[index].synchronize()
        if len(self._buffers[index]) < num_bytes:
            self._buffers[index] = _page_locked(num_bytes)
        return self._buffers[index], self._copied[index]


def _page_locked(num_bytes: int) -> Tensor:
    return torch.empty(max(2 * num_bytes, 1 << 16), dtype=torch.uint8, pin_memory=True)


class HostCopy:
    """Tensors on their way to the host: the copy starts at once, and only `get` waits for it."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = list(tensors)
        self._copied: torch.cuda.Event | None = None
        if self._tensors and self._tensors[0].is_cuda:
            self._tensors = [_to_page_locked(tensor) for tensor in self._tensors]
            self._copied = torch.cuda.Event()
            self._copied.record()

    def is_done(self) -> bool:
        """Whether `get` would not wait."""
        return self._copied is None or self._copied.query()

    def get(self) -> list[Tensor]:
        """The tensors on the host."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._tensors


def _to_page_locked(tensor: Tensor) -> Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
