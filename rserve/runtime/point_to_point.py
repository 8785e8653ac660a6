"""The embedding channel over torch.distributed: one two-rank group per encoder and epoch.

Measured of gloo: a send does not complete before its receive is posted, and its buffer must stay
untouched; a killed peer ends the waiting side with an error in milliseconds, while other groups go on.
So each end has a thread that waits, and groups of lost encoders are never used again.
"""

import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch.distributed as dist
from torch import Tensor

from gllm.core.effects import Effect
from rserve.runtime.messages import EmbeddingsSent, EncoderJoined, EncoderLost
from rserve.runtime.shared_memory import Announce, Landing, hand_over

LOG = logging.getLogger("rserve")
JOIN_TIMEOUT = timedelta(minutes=10)
DRIVER, ENCODER = 0, 1
NO_TAG = 0

Event = EmbeddingsSent | EncoderLost


def join(store: dist.Store, encoder: int, epoch: int, rank: int) -> dist.ProcessGroup:
    """The group of an encoder and the driver in this epoch; waits for the other side."""
    prefix = dist.PrefixStore(f"encoder{encoder}.{epoch}", store)
    return dist.ProcessGroupGloo(prefix, rank, 2, JOIN_TIMEOUT)


class PointToPointSender:
    """Announces a batch, then sends its embeddings in order from a thread of its own."""

    def __init__(
        self,
        open_group: Callable[[], dist.ProcessGroup],
        announce: Announce,
        on_broken: Callable[[RuntimeError], None],
    ) -> None:
        """open_group: joins the driver; on_broken: the driver can't be reached; both called in the thread."""
        self._announce = announce
        self._on_broken = on_broken
        self._open_group = open_group
        self._waiting: queue.SimpleQueue[Sequence[Tensor] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="embeddings", daemon=True)
        self._thread.start()

    def send(self, message: EmbeddingsSent, embeddings: Sequence[Tensor]) -> None:
        """Returns at once; the tensors must not change afterwards."""
        self._announce(message)
        self._waiting.put([embedding.contiguous() for embedding in embeddings])

    def close(self) -> None:
        self._waiting.put(None)
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        try:
            group = self._open_group()
            while (embeddings := self._waiting.get()) is not None:
                for embedding in embeddings:
                    group.send([embedding], DRIVER, NO_TAG).wait()
        except RuntimeError as error:
            self._on_broken(error)


class _Lane:
    """One encoder in one epoch: a thread that receives what was announced, in order, until it is lost."""

    def __init__(
        self, open_group: Callable[[], dist.ProcessGroup], arena: Tensor, report: Callable[[Event], None]
    ) -> None:
        self.announced: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self.is_joined = False
        self._open_group = open_group
        self._arena = arena
        self._report = report
        self._thread = threading.Thread(target=self._run, name="embeddings", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            group = self._open_group()
        except RuntimeError as error:
            LOG.warning("an encoder did not join its channel: %s", str(error).splitlines()[0])
            return
        self.is_joined = True
        is_open = True
        while (event := self.announced.get()) is not None:
            match event:
                case EmbeddingsSent() if is_open:
                    is_open = self._receive(group, event)
                case EncoderLost():
                    self._report(event)
                    return

    def _receive(self, group: dist.ProcessGroup, message: EmbeddingsSent) -> bool:
        """False when the encoder is gone."""
        try:
            for row, count in zip(message.rows, message.counts):
                group.recv([self._arena[row : row + count]], ENCODER, NO_TAG).wait()
        except RuntimeError:
            return False
        self._report(message)
        return True


class PointToPointReceiver:
    """Receives into the driver's own memory; the rows of aborted items too, for they are still reserved.

    The loss of an encoder reaches the core after all that it sent, so that no late bytes are written to
    rows that others have got.
    """

    def __init__(self, arena: Tensor, store: dist.Store) -> None:
        self._arena = arena
        self._store = store
        self._lanes: dict[tuple[int, int], _Lane] = {}
        self._events: deque[Event] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    @property
    def wakes(self) -> int:
        """Readable when something has landed or is lost."""
        return self._wake

    def on_joined(self, message: EncoderJoined) -> None:
        encoder, epoch = message.encoder, message.epoch
        self._lanes[encoder, epoch] = _Lane(
            lambda: join(self._store, encoder, epoch, DRIVER), self._arena, self._on_event
        )

    def on_sent(self, message: EmbeddingsSent) -> None:
        lane = self._lanes.get((message.encoder, message.epoch))
        if lane is not None:
            lane.announced.put(message)

    def on_lost(self, message: EncoderLost) -> None:
        is_reported = False
        for key in [key for key in self._lanes if key[0] == message.encoder]:
            lane = self._lanes.pop(key)
            lane.announced.put(message if lane.is_joined else None)
            is_reported |= lane.is_joined
        if not is_reported:
            self._on_event(message)

    def drain(self, core: Landing) -> None:
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            return
        while self._events:
            hand_over(core, self._events.popleft(), self._arena)

    def on_effect(self, effect: Effect) -> None:
        """Rows are given out and taken back by the dispatcher."""

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.announced.put(None)

    def _on_event(self, event: Event) -> None:
        self._events.append(event)
        os.eventfd_write(self._wake, 1)
