"""Memory of a GPU that several processes of one host use: the few CUDA calls of the channel by CUDA IPC.

Not run on a GPU so far: the calls follow those of torch.multiprocessing, which exports and opens tensors in
the same way. `tests/rserve/test_cuda_ipc.py` runs them where there is a GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import torch
from torch import Tensor

from rserve.runtime.arena_memory import ArenaShape


class MemoryHandle(msgspec.Struct, frozen=True):
    """What another process needs to open memory of a GPU: fields of PyTorch's own handle, in its order.

    device: number of the GPU, the same in all processes. memory: CUDA's handle of the allocation in which
    the num_bytes begin at offset. counter, counter_offset: where PyTorch counts users. event: recorded
    behind what the owner did last; whoever opens waits for it if must_wait.
    """

    device: int
    memory: bytes
    num_bytes: int
    offset: int = 0
    counter: bytes = b""
    counter_offset: int = 0
    event: bytes = b""
    must_wait: bool = False


class Arrival(Protocol):
    """Copies that are under way."""

    def wait(self) -> None:
        """Until they are in place. Raises RuntimeError when they never will be."""
        ...


class DeviceMemory(Protocol):
    """What the channel asks of a device; a test gives memory of the host."""

    def export(self, arena: Tensor) -> MemoryHandle:
        """A handle of a tensor that this process owns and keeps."""
        ...

    def open(self, handle: MemoryHandle, shape: ArenaShape) -> Tensor:
        """Another process's tensor [rows, hidden_size]. Raises RuntimeError where that is not possible."""
        ...

    def copy(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> Arrival:
        """Start to copy each source into its target, behind what computes the sources; does not wait."""
        ...


@dataclass(frozen=True, slots=True)
class CudaArrival:
    """An event behind the copies. sources: kept until they are read."""

    event: torch.cuda.Event
    sources: Sequence[Tensor]

    def wait(self) -> None:
        self.event.synchronize()


class CudaMemory:
    """CUDA IPC as PyTorch offers it.

    A copy is one transfer from device to device, or within one: over NVLink or PCIe where the GPUs reach each
    other, else CUDA takes it through the host. A process that opens memory of another GPU than its own
    gets a context there, some hundred MB of that GPU.
    """

    def __init__(self, device: torch.device) -> None:
        """device: this process's GPU."""
        self._device = device
        self._side = torch.cuda.Stream(device)

    def export(self, arena: Tensor) -> MemoryHandle:
        torch.cuda.synchronize(self._device)
        return MemoryHandle(*arena.untyped_storage()._share_cuda_())

    def open(self, handle: MemoryHandle, shape: ArenaShape) -> Tensor:
        torch.cuda.init()
        storage = torch.UntypedStorage._new_shared_cuda(*msgspec.structs.astuple(handle))
        arena = torch.empty(0, dtype=shape.dtype, device=storage.device)
        arena.set_(storage, 0, (shape.rows, shape.hidden_size))
        torch.cuda.synchronize(storage.device)
        return arena

    def copy(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> CudaArrival:
        event = torch.cuda.Event(blocking=True)  # who waits for it sleeps
        self._side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._side):
            for target, source in zip(targets, sources):
                target.copy_(source, non_blocking=True)
            event.record(self._side)
        return CudaArrival(event, sources)
