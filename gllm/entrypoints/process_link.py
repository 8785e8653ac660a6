"""The engine link of a real deployment: ZeroMQ sockets inside an asyncio event loop."""

import asyncio
import logging
from collections.abc import Callable

from gllm.runtime.channels import Inbox, Outbox

LOG = logging.getLogger("gllm")


class ProcessLink:
    """Sends to the driver's inbox, and reads the API server's whenever its descriptor wakes the loop."""

    def __init__(self, inbox: Inbox, driver: Outbox) -> None:
        self._inbox = inbox
        self._driver = driver
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_message: Callable[[object], None] = lambda message: None

    def send(self, message: object) -> None:
        self._driver.send(message)

    def listen(self, on_message: Callable[[object], None]) -> None:
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._inbox.socket.fileno(), self._drain)
        self._loop.call_soon(self._drain)

    def close(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._inbox.socket.fileno())
            self._loop = None

    def _drain(self) -> None:
        """ZeroMQ's descriptor tells only of changes: read until nothing is left, whoever raises."""
        if self._loop is not None:
            for message in self._inbox.drain():
                try:
                    self._on_message(message)
                except Exception:
                    LOG.exception("a message from another process was not handled: a bug")
