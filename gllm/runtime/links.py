"""How hidden states get from one pipeline stage to the next."""

from collections import deque
from typing import Protocol

from torch import Tensor

from gllm.runtime.step_timer import NO_WAIT, Wait


class StageLink(Protocol):
    """One rank's way to the ranks with the same TP rank in the stages before and after it.

    Micro-batches pass in order; what travels is one tensor [T, H], the sum of hidden states and residual.
    """

    def expect(self, num_tokens: int) -> None:
        """The micro-batch after those already expected has this many tokens; its transfer may start."""
        ...

    def receive(self) -> Tensor:
        """[T, H] of the oldest expected micro-batch; waits for it."""
        ...

    def take_wait(self) -> Wait:
        """What `receive` waited since this was asked last."""
        ...

    def send(self, hidden: Tensor) -> None:
        """Pass on [T, H], which nobody changes any more; does not wait for the receiver."""
        ...

    def close(self) -> None:
        """Wait until all that was sent is received."""
        ...


class NoLink:
    """For the only stage of a pipeline."""

    def expect(self, num_tokens: int) -> None:
        """Nothing comes."""

    def receive(self) -> Tensor:
        """There is no stage before this one."""
        raise RuntimeError("the only stage has nothing to receive")

    def take_wait(self) -> Wait:
        """None."""
        return NO_WAIT

    def send(self, hidden: Tensor) -> None:
        """There is no stage behind this one."""
        raise RuntimeError("the only stage has nobody to send to")

    def close(self) -> None:
        """Nothing is under way."""


class QueueLink:
    """Stages in one process: a queue from the stage before, a queue to the stage behind."""

    def __init__(self, incoming: deque[Tensor], outgoing: deque[Tensor]) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    def expect(self, num_tokens: int) -> None:
        """Nothing to prepare."""

    def receive(self) -> Tensor:
        """The oldest tensor; IndexError when there is none."""
        return self._incoming.popleft()

    def take_wait(self) -> Wait:
        """None: what is received is there."""
        return NO_WAIT

    def send(self, hidden: Tensor) -> None:
        """Put it into the queue."""
        self._outgoing.append(hidden)

    def close(self) -> None:
        """Nothing to wait for."""
