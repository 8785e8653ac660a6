"""Control messages between processes: one inbox each, and sockets to the inboxes of others.

ZeroMQ PUSH and PULL without high-water marks: nothing is dropped, senders never block. A socket belongs
to one thread.
"""

from collections.abc import Iterator, Sequence

import zmq

from gllm.runtime.codec import Codec

Frames = Sequence[bytes | memoryview]


class Inbox:
    """Where one process (or one of its threads) receives messages; bound by its owner.

    address: as asked for, with the port that was found where that was 0.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, codec: Codec) -> None:
        """TCP addresses are bound on all interfaces. Raises zmq.ZMQError where the address is in use."""
        self.socket = context.socket(zmq.PULL)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(f"tcp://*:{address.rpartition(':')[2]}" if address.startswith("tcp:") else address)
        self.address = address
        if address.startswith("tcp:"):
            bound = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
            self.address = f"{address.rpartition(':')[0]}:{bound.rpartition(':')[2]}"
        self._codec = codec

    def receive(self, timeout_ms: int | None = None) -> object | None:
        """The next message; None when none came within the time (None: wait for ever)."""
        received = self.receive_frames(timeout_ms)
        return None if received is None else received[0]

    def receive_frames(self, timeout_ms: int | None = None) -> tuple[object, list[memoryview]] | None:
        """The next message and the raw frames behind it (not copied)."""
        if timeout_ms is not None and not self.socket.poll(timeout_ms):
            return None
        frames = self.socket.recv_multipart(copy=False)
        message = self._codec.decode(frames[0].bytes, frames[1].bytes)
        return message, [frame.buffer for frame in frames[2:]]

    def drain(self) -> Iterator[object]:
        """All messages that are there now; never waits."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            yield self._codec.decode(frames[0], frames[1])

    def close(self) -> None:
        """Close at once; what was not read is lost."""
        self.socket.close()


class Outbox:
    """Sends to one inbox; connecting does not wait for its owner."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, codec: Codec) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.LINGER, 1000)
        self._socket.connect(address)
        self._codec = codec

    def send(self, message: object, frames: Frames = ()) -> None:
        """Queue a message, and raw frames behind it; large ones are not copied: leave them as they are."""
        head = self._codec.encode(message)
        if not frames:
            self._socket.send_multipart(head)
            return
        self._socket.send_multipart(head, zmq.SNDMORE)
        self._socket.send_multipart(frames, copy=False)

    def close(self) -> None:
        """What is queued is still delivered, for at most a second while the context ends."""
        self._socket.close()

    def discard(self) -> None:
        """Close and drop what is queued: the receiver is dead."""
        self._socket.close(linger=0)
