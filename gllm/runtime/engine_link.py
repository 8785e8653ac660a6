"""The road between the API server's event loop and the deployment."""

import asyncio
from collections.abc import Callable

import zmq

from gllm.runtime.channels import Outbox
from gllm.runtime.launcher import Deployment, LaunchError
from gllm.runtime.messages import RankFailed


class DeploymentLink:
    """Sends to the driver; calls back for every message, and once more when a process has died.

    All calls, and the deployment's, come from the event loop's thread.
    """

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_message: Callable[[object], None] = lambda message: None
        self.failure: asyncio.Future[str] | None = None

    @property
    def pixels(self) -> Outbox:
        """The socket for pixels to stage 0."""
        return self._deployment.outbox("rank0-pixels")

    def send(self, message: object) -> None:
        """Queue a message for the driver; never waits."""
        self._deployment.outbox("rank0").send(message)

    def listen(self, on_message: Callable[[object], None]) -> None:
        """Call on_message in the running event loop for every message, in order.

        A process that ends unexpectedly comes as a RankFailed, and `failure` is set to its words.
        """
        self._loop = asyncio.get_running_loop()
        self._on_message = on_message
        self.failure = self._loop.create_future()
        self._loop.add_reader(self._deployment.inbox.socket.getsockopt(zmq.FD), self._drain)
        self._loop.add_reader(self._deployment.fileno(), self._check)
        self._loop.call_soon(self._drain)

    def close(self) -> None:
        """Stop listening. Idempotent."""
        if self._loop is not None:
            self._loop.remove_reader(self._deployment.inbox.socket.getsockopt(zmq.FD))
            self._loop.remove_reader(self._deployment.fileno())
            self._loop = None

    def _drain(self) -> None:
        """Read until nothing is left: the descriptor of a ZeroMQ socket reports only changes."""
        for message in self._deployment.inbox.drain():
            if isinstance(message, RankFailed):
                self._fail(self._deployment.diagnose([], [message]))
            else:
                self._on_message(message)

    def _check(self) -> None:
        try:
            self._deployment.check()
        except LaunchError as error:
            self._fail(str(error))

    def _fail(self, reason: str) -> None:
        if self.failure is not None and not self.failure.done():
            self.failure.set_result(reason)
            self._on_message(RankFailed("engine", reason))
