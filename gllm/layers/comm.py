"""What tensor-parallel layers say to each other."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor


class TensorParallel(ABC):
    """The ranks that share every layer of one pipeline stage; all call the same methods in the same order.

    is_capturable: whether what they exchange can be part of a CUDA graph.
    """

    is_capturable = True

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    def shard(self, total: int) -> range:
        """This rank's part of `total` rows; parts differ by one where `total` is no multiple of `size`.

        3420 over 8 ranks: 427, 428, 427, 428, ...
        """
        return range(total * self.rank // self.size, total * (self.rank + 1) // self.size)

    @abstractmethod
    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum of every rank's x, in x's memory where that is possible."""

    @abstractmethod
    def all_gather_last_dim(self, x: Tensor) -> Tensor:
        """Every rank's x [..., n] side by side in order of rank: [..., size * n]."""

    @abstractmethod
    def broadcast(self, x: Tensor, src: int = 0) -> Tensor:
        """Rank src's x, written into x on every other rank."""


class SingleRank(TensorParallel):
    """No tensor parallelism: nothing to exchange."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def all_reduce(self, x: Tensor) -> Tensor:
        """x itself."""
        return x

    def all_gather_last_dim(self, x: Tensor) -> Tensor:
        """x itself."""
        return x

    def broadcast(self, x: Tensor, src: int = 0) -> Tensor:
        """x itself."""
        return x


SINGLE = SingleRank()


class GroupTensorParallel(TensorParallel):
    """Ranks that are processes of a `torch.distributed` group (gloo or NCCL)."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(dist.get_rank(group), dist.get_world_size(group))
        self._group = group

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum over the group, in place."""
        dist.all_reduce(x, group=self._group)
        return x

    def all_gather_last_dim(self, x: Tensor) -> Tensor:
        """Gather over the group: [..., n] -> [..., size * n]."""
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x.contiguous(), group=self._group)
        return torch.cat(parts, dim=-1)

    def broadcast(self, x: Tensor, src: int = 0) -> Tensor:
        """Broadcast within the group; src counts within the group, too."""
        dist.broadcast(x, group=self._group, group_src=src)
        return x


class ThreadTensorParallel(TensorParallel):
    """Ranks that are threads of one process: they exchange references and wait at a barrier.

    Sums are taken in order of rank, so every rank gets the same bits.
    """

    is_capturable = False

    def __init__(self, rank: int, slots: list[Tensor | None], barrier: threading.Barrier) -> None:
        super().__init__(rank, len(slots))
        self._slots = slots
        self._barrier = barrier

    @classmethod
    def create(cls, size: int) -> list[ThreadTensorParallel]:
        """One object for each of `size` threads."""
        slots: list[Tensor | None] = [None] * size
        barrier = threading.Barrier(size)
        return [cls(rank, slots, barrier) for rank in range(size)]

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum over the threads, in place."""
        total = self._exchange(x, self._sum)
        return x.copy_(total)

    def all_gather_last_dim(self, x: Tensor) -> Tensor:
        """Gather over the threads: [..., n] -> [..., size * n]."""
        return self._exchange(x, lambda: torch.cat(self._tensors(), dim=-1))

    def broadcast(self, x: Tensor, src: int = 0) -> Tensor:
        """Copy thread src's x into x."""
        source = self._exchange(x, lambda: self._tensors()[src].clone())
        return x if self.rank == src else x.copy_(source)

    def abort(self) -> None:
        """Make every thread that waits, now or later, fail with BrokenBarrierError: one rank has failed."""
        self._barrier.abort()

    def _exchange(self, x: Tensor, combine: Callable[[], Tensor]) -> Tensor:
        self._slots[self.rank] = x
        self._barrier.wait()
        combined = combine()
        self._barrier.wait()  # nobody overwrites its x, or its slot, before all have read it
        return combined

    def _tensors(self) -> list[Tensor]:
        return [slot for slot in self._slots if slot is not None]

    def _sum(self) -> Tensor:
        first, *others = self._tensors()
        total = first.clone()
        for other in others:
            total += other
        return total
