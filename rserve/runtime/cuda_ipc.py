"""The embedding channel by CUDA IPC, between GPUs of one host or processes on one GPU.

The driver's embedding memory lies on its GPU. It is exported once; an encoder opens it once, and copies each
batch to its rows on a stream of its own, device to device, without the host. A thread waits for the copy and
announces the batch. So what is announced has landed, as in shared memory.

A dead encoder writes nothing more: its GPU work ends with its process, before that is reaped.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from torch import Tensor

from gllm.config import ConfigError
from rserve.runtime.arena_memory import ArenaShape
from rserve.runtime.device_memory import Arrival, DeviceMemory, MemoryHandle
from rserve.runtime.in_order import InOrder
from rserve.runtime.messages import EmbeddingsSent
from rserve.runtime.shared_memory import Announce, SharedMemoryReceiver

HANDLE_KEY = "cuda-ipc/handle"


class HandleStore(Protocol):
    """Where the driver leaves the handle: a torch.distributed store."""

    def set(self, key: str, value: bytes) -> None: ...

    def get(self, key: str) -> bytes:
        """Waits until it is set."""
        ...


def open_arena(memory: DeviceMemory, store: HandleStore, shape: ArenaShape) -> Tensor:
    """The driver's embedding memory in an encoder; waits until the driver has made it.

    Raises ConfigError where this process can't open it.
    """
    handle = msgspec.msgpack.decode(store.get(HANDLE_KEY), type=MemoryHandle)
    try:
        if handle.num_bytes < shape.num_bytes:
            raise RuntimeError(f"the driver has {handle.num_bytes} bytes, not {shape.num_bytes}")
        return memory.open(handle, shape)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"--embedding-channel cuda-ipc: the driver's memory cannot be opened ({reason}): use shm"
        ) from error


class CudaIpcSender:
    """Starts a copy and returns; announces when it is complete, from a thread of its own."""

    def __init__(
        self,
        memory: DeviceMemory,
        arena: Tensor,
        announce: Announce,
        on_broken: Callable[[RuntimeError], None],
    ) -> None:
        """arena: from open_arena. announce, on_broken (the device failed): both called in the thread."""
        self._memory = memory
        self._arena = arena
        self._announce = announce
        self._thread = InOrder(on_broken, arena.device)

    def send(self, message: EmbeddingsSent, embeddings: Sequence[Tensor]) -> None:
        """Returns at once; the tensors must not change afterwards."""
        rows = [self._arena[row : row + count] for row, count in zip(message.rows, message.counts)]
        arrival = self._memory.copy(rows, embeddings)
        self._thread.add(lambda: self._finish(arrival, message))

    def close(self) -> None:
        self._thread.close()

    def _finish(self, arrival: Arrival, message: EmbeddingsSent) -> None:
        arrival.wait()
        self._announce(message)


class CudaIpcReceiver(SharedMemoryReceiver):
    """Its memory is written to by encoders; what is announced is there."""

    def __init__(self, memory: DeviceMemory, arena: Tensor, store: HandleStore) -> None:
        """arena: [rows, hidden_size] on the driver's GPU. store: where encoders find its handle."""
        super().__init__(arena)
        self._store = store  # serves encoders that come later
        store.set(HANDLE_KEY, msgspec.msgpack.encode(memory.export(arena)))
