"""The embedding channel over NIXL: encoders write into the driver's memory, by RDMA where there is any.

The driver registers its embedding memory and publishes how to reach it; an encoder copies a batch into a
registered staging buffer, writes it to its rows, and announces it when the write is complete. So what is
announced has landed, as in shared memory. Measured of NIXL 1.5 over UCX without RDMA: an agent starts in
0.1 s, 400 kB take 0.2 ms, and an idle agent's progress thread uses 2 % of a core.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from nixl._api import nixl_agent, nixl_agent_config
from torch import Tensor

from rserve.runtime.arena_memory import ArenaShape
from rserve.runtime.messages import EmbeddingsSent, EncoderLost
from rserve.runtime.shared_memory import Announce, Landing, SharedMemoryReceiver

DRIVER = "driver"
AGENT_KEY, ADDRESS_KEY = "nixl/agent", "nixl/address"
HOST_MEMORY = "DRAM"
POLL_S = 5e-5
SETTLE_S = 0.5
"""After the death of an encoder, writes that it had begun end within this time."""


def make_agent(name: str) -> Any:
    """An agent that uses UCX: RDMA, shared memory or TCP, whatever leads to the other side."""
    return nixl_agent(name, nixl_agent_config(backends=["UCX"]))


class NixlSender:
    """Writes each batch to its rows, then announces it."""

    def __init__(
        self,
        name: str,
        shape: ArenaShape,
        store: dist.Store,
        announce: Announce,
        on_broken: Callable[[RuntimeError], None],
    ) -> None:
        """name: of this encoder in this epoch. store: where the driver is found; waits until it is.

        on_broken: called when the driver can't be reached.
        """
        self._shape = shape
        self._announce = announce
        self._on_broken = on_broken
        self._agent = make_agent(name)
        self._driver = self._agent.add_remote_agent(store.get(AGENT_KEY))
        self._address = int(store.get(ADDRESS_KEY))
        self._staging = torch.empty(0, shape.hidden_size, dtype=shape.dtype)
        self._registered: Any = None

    def send(self, message: EmbeddingsSent, embeddings: Sequence[Tensor]) -> None:
        """Returns when the embeddings are in place."""
        try:
            self._write(message, embeddings)
        except Exception as error:  # the bindings' errors have no base of their own
            self._on_broken(RuntimeError(str(error)))
        else:
            self._announce(message)

    def close(self) -> None:
        """Nothing is under way after `send`."""
        if self._registered is not None:
            self._agent.deregister_memory(self._registered)
            self._registered = None

    def _write(self, message: EmbeddingsSent, embeddings: Sequence[Tensor]) -> None:
        num_rows = sum(message.counts)
        if num_rows > len(self._staging):
            self._grow(num_rows)
        row_bytes = self._shape.hidden_size * self._shape.dtype.itemsize
        here, there, first = [], [], 0
        for row, count, embedding in zip(message.rows, message.counts, embeddings):
            self._staging[first : first + count].copy_(embedding)  # also from a GPU
            here.append((self._staging.data_ptr() + first * row_bytes, count * row_bytes, 0))
            there.append((self._address + row * row_bytes, count * row_bytes, 0))
            first += count
        self._transfer(here, there)

    def _transfer(self, here: list[tuple[int, int, int]], there: list[tuple[int, int, int]]) -> None:
        agent = self._agent
        local, remote = agent.get_xfer_descs(here, HOST_MEMORY), agent.get_xfer_descs(there, HOST_MEMORY)
        handle = agent.initialize_xfer("WRITE", local, remote, self._driver)
        try:
            state = agent.transfer(handle)
            while state == "PROC":
                time.sleep(POLL_S)
                state = agent.check_xfer_state(handle)
        finally:
            agent.release_xfer_handle(handle)
        if state != "DONE":
            raise RuntimeError(f"NIXL could not write embeddings: {state}")

    def _grow(self, num_rows: int) -> None:
        """Registering memory is slow on some networks: the buffer is kept, and at least doubled."""
        self.close()
        size = max(num_rows, 2 * len(self._staging))
        self._staging = torch.empty(size, self._shape.hidden_size, dtype=self._shape.dtype)
        self._registered = self._agent.register_memory(self._staging)


class NixlReceiver(SharedMemoryReceiver):
    """Its memory is written to by encoders; what is announced is there.

    The loss of an encoder reaches the core a moment later, so that no write that was still under way
    reaches rows which others have got.
    """

    def __init__(self, arena: Tensor, store: dist.Store) -> None:
        """arena: [rows, hidden_size] in host memory. store: where encoders find it."""
        super().__init__(arena)
        self._store = store  # serves encoders that come later
        self._agent = make_agent(DRIVER)
        self._registered = self._agent.register_memory(arena)
        self._timers: list[threading.Timer] = []
        store.set(ADDRESS_KEY, str(arena.data_ptr()))
        store.set(AGENT_KEY, self._agent.get_agent_metadata())

    def on_lost(self, message: EncoderLost) -> None:
        timer = threading.Timer(SETTLE_S, self._settled, (message,))
        timer.daemon = True
        self._timers = [*(other for other in self._timers if other.is_alive()), timer]
        timer.start()

    def drain(self, core: Landing) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        super().drain(core)

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
            timer.join()
        self._agent.deregister_memory(self._registered)
        super().close()

    def _settled(self, message: EncoderLost) -> None:
        self._events.append(message)
        os.eventfd_write(self._wake, 1)
