"""Host memory in the place of a GPU's: what a channel by CUDA IPC does, without CUDA."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from rserve.runtime.arena_memory import ArenaShape, map_shared
from rserve.runtime.device_memory import MemoryHandle


@dataclass(frozen=True)
class FileArrival:
    """Copies that happen when somebody waits for them; a device that fails says so then."""

    targets: Sequence[Tensor]
    sources: Sequence[Tensor]
    error: str | None

    def wait(self) -> None:
        if self.error is not None:
            raise RuntimeError(self.error)
        for target, source in zip(self.targets, self.sources):
            target.copy_(source)


@dataclass
class FileMemory:
    """Exports the descriptor of an anonymous file. error: of every copy, and of opening when is_closed."""

    fd: int
    error: str | None = None
    is_closed: bool = False
    opened: list[MemoryHandle] = field(default_factory=list)

    def export(self, arena: Tensor) -> MemoryHandle:
        return MemoryHandle(0, str(self.fd).encode(), arena.numel() * arena.element_size())

    def open(self, handle: MemoryHandle, shape: ArenaShape) -> Tensor:
        if self.is_closed:
            raise RuntimeError("invalid device context\nsecond line")
        self.opened.append(handle)
        return map_shared(int(handle.memory), shape)

    def copy(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> FileArrival:
        return FileArrival(targets, sources, self.error)
