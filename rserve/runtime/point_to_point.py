"""The embedding channel over torch.distributed: one two-rank group, a wire, per encoder and epoch.

Each end has a thread that waits; wires of lost encoders are never used again.
"""

import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from gllm.core.effects import Effect
from rserve.runtime.in_order import InOrder, work_on
from rserve.runtime.messages import EmbeddingsSent, EncoderJoined, EncoderLost
from rserve.runtime.shared_memory import Announce, Landing, hand_over
from rserve.runtime.wires import Wire, await_encoder, receive_from_encoders

LOG = logging.getLogger("rserve")

Event = EmbeddingsSent | EncoderLost


class PointToPointSender:
    """Announces a batch once it is computed and sends it, in order, from a thread of its own."""

    def __init__(
        self,
        open_wire: Callable[[], Wire],
        announce: Announce,
        on_broken: Callable[[RuntimeError], None],
        device: torch.device,
    ) -> None:
        """open_wire: joins the driver; on_broken: it can't be reached. All three are called in the thread.

        device: of the embeddings.
        """
        self._announce = announce
        self._open_wire = open_wire
        self._wire: Wire | None = None
        self._thread = InOrder(on_broken, device)
        self._thread.add(self._join)

    def send(self, message: EmbeddingsSent, embeddings: Sequence[Tensor]) -> None:
        """Returns at once; the tensors must not change afterwards."""
        computed = _computed(embeddings)
        self._thread.add(lambda: self._deliver(message, embeddings, computed))

    def close(self) -> None:
        """The driver sees that this end is gone."""
        self._thread.close()
        self._wire = None

    def _join(self) -> None:
        self._wire = self._open_wire()

    def _deliver(
        self, message: EmbeddingsSent, embeddings: Sequence[Tensor], computed: torch.cuda.Event | None
    ) -> None:
        assert self._wire is not None
        if computed is not None:
            computed.synchronize()
        self._announce(message)
        self._wire.send(embeddings)


def _computed(tensors: Sequence[Tensor]) -> torch.cuda.Event | None:
    """An event behind what computes them; None on a CPU, where they are."""
    if not tensors or not tensors[0].is_cuda:
        return None
    event = torch.cuda.Event(blocking=True)  # who waits for it sleeps
    event.record(torch.cuda.current_stream(tensors[0].device))
    return event


class _Lane:
    """One encoder in one epoch: a thread that receives what was announced, in order, until it is lost."""

    def __init__(
        self,
        open_wire: Callable[[threading.Event], Wire | None],
        arena: Tensor,
        report: Callable[[Event], None],
    ) -> None:
        """open_wire: gives up when the event is set."""
        self._announced: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._owed: list[EmbeddingsSent] = []
        self.is_joined = False
        self._is_over = threading.Event()
        self._open_wire = open_wire
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
        work_on(self._arena.device)
        try:
            wire = self._open_wire(self._is_over)
        except RuntimeError as error:
            LOG.warning("an encoder did not join its channel: %s", str(error).splitlines()[0])
            return
        if wire is None:
            return
        self.is_joined = True
        is_open = True
        while (event := self._announced.get()) is not None:
            match event:
                case EmbeddingsSent() if is_open:
                    is_open = self._receive(wire, event)
                case EncoderLost():
                    self._report(self.with_owed(event))
                    return

    def _receive(self, wire: Wire, message: EmbeddingsSent) -> bool:
        """False when the encoder is gone."""
        rows = [self._arena[row : row + count] for row, count in zip(message.rows, message.counts)]
        try:
            wire.receive(rows, self._is_over)
        except RuntimeError:
            return False
        self._owed.remove(message)
        self._report(message)
        return True


class PointToPointReceiver:
    """Receives into memory of the driver's device; rows of aborted items too, for they are still reserved.

    The loss of an encoder reaches the core after all that it sent, so that no late bytes are written to
    rows that others have got.
    """

    def __init__(self, arena: Tensor, store: dist.Store) -> None:
        receive_from_encoders(store, arena.device)
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

        def open_wire(is_over: threading.Event) -> Wire | None:
            return await_encoder(self._store, encoder, epoch, self._arena.device, is_over)

        self._lanes[encoder, epoch] = _Lane(open_wire, self._arena, self._on_event)

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
