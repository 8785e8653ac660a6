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
from rserve.runtime.in_order import InOrder
from rserve.runtime.messages import EmbeddingsSent, EncoderJoined, EncoderLost
from rserve.runtime.shared_memory import Announce, Landing, hand_over

LOG = logging.getLogger("rserve")
TIMEOUT = timedelta(minutes=10)
MEETING_TIMEOUT = timedelta(seconds=10)
"""For the driver, once the encoder is there; should it die just then, gloo gives up after five times this."""
LOOK_S = 0.1
DRIVER, ENCODER = 0, 1
NO_TAG = 0
ARRIVED = "arrived"

Event = EmbeddingsSent | EncoderLost


def join(store: dist.Store, encoder: int, epoch: int) -> dist.ProcessGroup:
    """An encoder's end of its group in this epoch; waits for the driver."""
    prefix = _meeting_point(store, encoder, epoch)
    prefix.set(ARRIVED, "")
    return dist.ProcessGroupGloo(prefix, ENCODER, 2, TIMEOUT)


def await_encoder(
    store: dist.Store, encoder: int, epoch: int, is_lost: threading.Event
) -> dist.ProcessGroup | None:
    """The driver's end, once the encoder is there; None when it is lost before.

    A group that waits can't be interrupted, and an encoder may load for minutes: so the driver looks for it.
    """
    prefix = _meeting_point(store, encoder, epoch)
    while not prefix.check([ARRIVED]):
        if is_lost.wait(LOOK_S):
            return None
    return dist.ProcessGroupGloo(prefix, DRIVER, 2, MEETING_TIMEOUT)


def _meeting_point(store: dist.Store, encoder: int, epoch: int) -> dist.Store:
    return dist.PrefixStore(f"encoder{encoder}.{epoch}", store)


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
        self._open_group = open_group
        self._group: dist.ProcessGroup | None = None
        self._thread = InOrder(on_broken)
        self._thread.add(self._join)

    def send(self, message: EmbeddingsSent, embeddings: Sequence[Tensor]) -> None:
        """Returns at once; the tensors must not change afterwards."""
        self._announce(message)
        contiguous = [embedding.contiguous() for embedding in embeddings]
        self._thread.add(lambda: self._deliver(contiguous))

    def close(self) -> None:
        """The driver sees that this end is gone."""
        self._thread.close()
        self._group = None

    def _join(self) -> None:
        self._group = self._open_group()

    def _deliver(self, embeddings: Sequence[Tensor]) -> None:
        assert self._group is not None
        for embedding in embeddings:
            self._group.send([embedding], DRIVER, NO_TAG).wait()


class _Lane:
    """One encoder in one epoch: a thread that receives what was announced, in order, until it is lost."""

    def __init__(
        self,
        open_group: Callable[[threading.Event], dist.ProcessGroup | None],
        arena: Tensor,
        report: Callable[[Event], None],
    ) -> None:
        """open_group: gives up when the event is set."""
        self._announced: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._owed: list[EmbeddingsSent] = []
        self.is_joined = False
        self._is_over = threading.Event()
        self._open_group = open_group
        self._arena = arena
        self._report = report
        self._thread = threading.Thread(target=self._run, name="embeddings", daemon=True)
        self._thread.start()

    def expect(self, message: EmbeddingsSent) -> None:
        """Receive a batch."""
        self._owed.append(message)
        self._announced.put(message)

    def end(self, last: EncoderLost | None = None) -> bool:
        """Receive what was announced, report `last`, stop. False, and no report, where no encoder joined."""
        is_joined = self.is_joined
        self._announced.put(last if is_joined else None)
        self._is_over.set()
        return is_joined

    def with_owed(self, loss: EncoderLost) -> EncoderLost:
        """A loss that also names what was announced and never came: the API server takes it for encoded."""
        owed = [
            (message.request_id, item, attempt)
            for message in self._owed
            for item, attempt in zip(message.items, message.attempts, strict=True)
        ]
        return EncoderLost(loss.encoder, tuple(dict.fromkeys([*loss.items, *owed])))

    def _run(self) -> None:
        try:
            group = self._open_group(self._is_over)
        except RuntimeError as error:
            LOG.warning("an encoder did not join its channel: %s", str(error).splitlines()[0])
            return
        if group is None:
            return
        self.is_joined = True
        is_open = True
        while (event := self._announced.get()) is not None:
            match event:
                case EmbeddingsSent() if is_open:
                    is_open = self._receive(group, event)
                case EncoderLost():
                    self._report(self.with_owed(event))
                    return

    def _receive(self, group: dist.ProcessGroup, message: EmbeddingsSent) -> bool:
        """False when the encoder is gone."""
        try:
            for row, count in zip(message.rows, message.counts):
                group.recv([self._arena[row : row + count]], ENCODER, NO_TAG).wait(TIMEOUT)
        except RuntimeError:
            return False
        self._owed.remove(message)
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
            lambda is_over: await_encoder(self._store, encoder, epoch, is_over), self._arena, self._on_event
        )

    def on_sent(self, message: EmbeddingsSent) -> None:
        lane = self._lanes.get((message.encoder, message.epoch))
        if lane is not None:
            lane.expect(message)

    def on_lost(self, message: EncoderLost) -> None:
        is_reported, loss = False, message
        for key in [key for key in self._lanes if key[0] == message.encoder]:
            lane = self._lanes.pop(key)
            if lane.end(message):
                is_reported = True
            else:
                loss = lane.with_owed(loss)
        if not is_reported:
            self._on_event(loss)

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
            lane.end()

    def _on_event(self, event: Event) -> None:
        self._events.append(event)
        os.eventfd_write(self._wake, 1)
