"""All ZeroMQ sockets of one process."""

from collections.abc import Mapping

import zmq

from gllm.runtime.channels import Inbox, Outbox
from gllm.runtime.codec import Codec


class Post:
    """A process's sockets: its inboxes, and outboxes to others by name. For one thread."""

    def __init__(self, addresses: Mapping[str, str], codec: Codec) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._codec = codec
        self._addresses = dict(addresses)
        self._inboxes: list[Inbox] = []
        self._outboxes: dict[str, Outbox] = {}

    def inbox(self, name: str) -> Inbox:
        """Bind the inbox of this name; its owner calls this once. Raises zmq.ZMQError where it is bound."""
        self._inboxes.append(Inbox(self._context, self._addresses[name], self._codec))
        return self._inboxes[-1]

    def outbox(self, name: str) -> Outbox:
        """The socket to this inbox."""
        if name not in self._outboxes:
            self._outboxes[name] = Outbox(self._context, self._addresses[name], self._codec)
        return self._outboxes[name]

    def relocate(self, name: str, address: str) -> None:
        """The inbox of this name is elsewhere; to be called before its first message."""
        self._addresses[name] = address

    def close(self) -> None:
        """Deliver what is queued, within a second."""
        for inbox in self._inboxes:
            inbox.close()
        for outbox in self._outboxes.values():
            outbox.close()
        self._context.term()
