"""The ranks of a deployment as torch.distributed sees them: TP groups, links between stages."""

import time
from collections import deque
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from gllm.layers.comm import SINGLE, GroupTensorParallel, TensorParallel
from gllm.runtime.links import NoLink, StageLink
from gllm.runtime.step_timer import NO_WAIT, Wait, device_events, mark

CONNECT_TIMEOUT = timedelta(minutes=10)  # other ranks may still read their weights


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where ranks find each other. listen_fd: on rank 0, a listening socket that is already bound."""

    host: str
    port: int
    listen_fd: int | None = None


@dataclass(frozen=True, slots=True)
class RankLayout:
    """A rank among pp * tp: rank = stage * tp + tp rank."""

    rank: int
    pp: int
    tp: int

    @property
    def world_size(self) -> int:
        return self.pp * self.tp

    @property
    def stage(self) -> int:
        return self.rank // self.tp

    @property
    def tp_rank(self) -> int:
        return self.rank % self.tp

    @property
    def sampler(self) -> int:
        """The rank that samples: TP rank 0 of the last stage."""
        return (self.pp - 1) * self.tp


@dataclass(frozen=True, slots=True)
class HiddenShape:
    """What travels between stages: [T, hidden_size] of this type."""

    hidden_size: int
    dtype: torch.dtype
    device: torch.device


LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Socket closed")


def is_lost_peer(error: BaseException) -> bool:
    """True when a rank fails because another one ended: not the cause, and not worth a message."""
    return isinstance(error, RuntimeError) and any(text in str(error) for text in LOST_PEER)


class GroupLink:
    """Point-to-point between stages. Sends are never waited for; on CPUs, receives are posted ahead.

    gloo completes a send only when its receive is posted, and its buffer must stay until then. At most
    max_in_flight micro-batches are inside the pipeline, so a send that is max_in_flight sends old has been
    received, and waiting for it returns at once.
    """

    def __init__(self, layout: RankLayout, shape: HiddenShape, max_in_flight: int) -> None:
        self._previous, self._next = layout.rank - layout.tp, layout.rank + layout.tp
        self._shape = shape
        self._max_in_flight = max_in_flight
        self._side = torch.cuda.Stream(shape.device) if shape.device.type == "cuda" else None
        self._expected: deque[int] = deque()
        self._receiving: deque[tuple[dist.Work | None, Tensor]] = deque()
        self._sending: deque[tuple[dist.Work | None, Tensor]] = deque()
        self._make_event = device_events(shape.device)
        self._wait = NO_WAIT

    def expect(self, num_tokens: int) -> None:
        """Post the receive of [num_tokens, H], or remember it: NCCL's would occupy the GPU while it waits."""
        if self._previous < 0:
            return
        self._expected.append(num_tokens)
        if self._shape.device.type == "cpu":
            self._post()

    def receive(self) -> Tensor:
        """Wait for the oldest posted receive. Raises RuntimeError when the peer is lost."""
        if not self._receiving:
            self._post()
        work, buffer = self._receiving.popleft()
        start = time.monotonic()
        if work is not None:
            work.wait()
        self._wait = Wait(self._wait.seconds + time.monotonic() - start, mark(self._make_event))
        if self._side is not None:
            buffer.record_stream(torch.cuda.current_stream(buffer.device))
        return buffer

    def take_wait(self) -> Wait:
        """What `receive` waited since this was asked last."""
        wait, self._wait = self._wait, NO_WAIT
        return wait

    def send(self, hidden: Tensor) -> None:
        """Start to send; the tensor is kept until it is received."""
        self._finish_sends(self._max_in_flight - 1)
        self._sending.append((dist.isend(hidden, self._next), hidden))

    def close(self) -> None:
        """Wait until the next stage has received everything."""
        self._finish_sends(0)

    def _post(self) -> None:
        shape = self._shape
        size = (self._expected.popleft(), shape.hidden_size)
        with torch.cuda.stream(self._side):  # on a CPU there is none, and this does nothing
            buffer = torch.empty(size, dtype=shape.dtype, device=shape.device)
            self._receiving.append((dist.irecv(buffer, self._previous), buffer))

    def _finish_sends(self, most: int) -> None:
        """Wait for the oldest sends until at most so many are under way."""
        while len(self._sending) > most:
            work, _ = self._sending.popleft()
            if work is not None:
                work.wait()


class ParallelContext:
    """This rank's groups. With one rank nothing is set up and nothing is exchanged."""

    def __init__(self, layout: RankLayout, device: torch.device, rendezvous: Rendezvous) -> None:
        """Meets the other ranks; all of them call this. Raises RuntimeError when they do not come."""
        self.layout = layout
        self.device = device
        self.tp: TensorParallel = SINGLE
        if layout.world_size == 1:
            return
        self._store = dist.TCPStore(
            rendezvous.host,
            rendezvous.port,
            is_master=layout.rank == 0,
            timeout=CONNECT_TIMEOUT,
            wait_for_workers=False,
            master_listen_fd=rendezvous.listen_fd,
        )
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=self._store, rank=layout.rank, world_size=layout.world_size)
        for stage in range(layout.pp) if layout.tp > 1 else ():
            first = stage * layout.tp
            group = dist.new_group(list(range(first, first + layout.tp)))
            if stage == layout.stage:
                self.tp = GroupTensorParallel(group)

    def inboxes(self, own: str) -> list[str]:
        """Addresses of all ranks' inboxes, in order of rank; all of them call this with their own."""
        if self.layout.world_size == 1:
            return [own]
        self._store.set(f"inbox of {self.layout.rank}", own)
        return [self._store.get(f"inbox of {rank}").decode() for rank in range(self.layout.world_size)]

    def link(self, shape: HiddenShape, max_in_flight: int) -> StageLink:
        """The link to the stages before and after this one."""
        return GroupLink(self.layout, shape, max_in_flight) if self.layout.pp > 1 else NoLink()

    def smallest(self, value: int) -> int:
        """The least of all ranks' values; all of them call this."""
        if self.layout.world_size == 1:
            return value
        number = torch.tensor([value], dtype=torch.int64)
        dist.all_reduce(number, op=dist.ReduceOp.MIN)
        return int(number)

    def close(self) -> None:
        """Leave the groups."""
        if self.layout.world_size > 1:
            dist.destroy_process_group()
