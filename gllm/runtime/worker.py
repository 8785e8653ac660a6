"""Every rank but the first: does what rank 0 says, in order."""

from collections import deque
from collections.abc import Callable

from gllm.core.batch import BatchResult
from gllm.core.step_spans import ItemWork
from gllm.runtime.channels import Inbox
from gllm.runtime.item_encoder import ItemEncoder
from gllm.runtime.messages import Shutdown, StageBatch, StageEncode
from gllm.runtime.model_runner import LateResult, ModelRunner
from gllm.runtime.recorder import REST_AFTER_MS, StepRecorder


class Worker:
    """Runs micro-batches (and, on stage 0, its part of encodings) as they are announced.

    Announcements that have come are read before each step, so that the transfer of the next micro-batch's
    hidden states goes on while this one runs. Tokens that a GPU still computes are waited for only when there
    is nothing else to start.
    """

    def __init__(
        self,
        runner: ModelRunner,
        inbox: Inbox,
        recorder: StepRecorder,
        on_result: Callable[[BatchResult], None],
        encoder: ItemEncoder | None = None,
    ) -> None:
        """on_result: called where this rank samples."""
        self._runner = runner
        self._inbox = inbox
        self._recorder = recorder
        self._on_result = on_result
        self._encoder = encoder
        self._announced: deque[object] = deque()
        self._late: deque[LateResult] = deque()

    def run(self) -> None:
        """Until Shutdown. Raises RuntimeError when a peer is lost."""
        while True:
            if not self._announced:
                self._deliver(waits=True)
                self._announce(self._next())
            for message in self._inbox.drain():
                self._announce(message)
            message = self._announced.popleft()
            if isinstance(message, Shutdown):
                break
            self._execute(message)
            self._deliver(waits=False)
        self._deliver(waits=True)
        self._recorder.close()
        self._runner.close()

    def _next(self) -> object:
        message = self._inbox.receive(REST_AFTER_MS)
        if message is None:
            self._recorder.rest()
            message = self._inbox.receive()
        return message

    def _announce(self, message: object) -> None:
        if isinstance(message, StageBatch):
            self._runner.place.link.expect(message.num_tokens)
        self._announced.append(message)

    def _deliver(self, waits: bool) -> None:
        """Pass on results in order: all of them, or those that are there."""
        while self._late and (waits or self._late[0].is_done()):
            self._on_result(self._late.popleft().get())

    def _execute(self, message: object) -> None:
        begin = self._recorder.begin()
        match message:
            case StageBatch():
                late = self._runner.start(message)
                if late is not None:
                    self._late.append(late)
                self._recorder.batch(message, begin, self._runner.place.link.take_wait())
            case StageEncode(grids, frames) if self._encoder is not None:
                counts = self._encoder.follow(grids, frames)
                self._recorder.encode(ItemWork("", (), counts), begin)
            case _:
                raise ValueError(f"a rank does not understand {type(message).__name__}")
