"""A thread that does what it is given, one thing after the other."""

import queue
import threading
from collections.abc import Callable

import torch

CLOSE_WAIT_S = 5.0


class InOrder:
    """Jobs may wait. The first that raises a RuntimeError is the last: on_broken is called with it."""

    def __init__(self, on_broken: Callable[[RuntimeError], None], device: torch.device) -> None:
        """on_broken: called in the thread, as the jobs are. device: of the jobs' work."""
        self._on_broken = on_broken
        self._device = device
        self._waiting: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="embeddings", daemon=True)
        self._thread.start()

    def add(self, job: Callable[[], None]) -> None:
        """Returns at once."""
        self._waiting.put(job)

    def close(self) -> None:
        """What was added is still done, as far as a few seconds allow."""
        self._waiting.put(None)
        self._thread.join(timeout=CLOSE_WAIT_S)

    def _run(self) -> None:
        try:
            work_on(self._device)
            while (job := self._waiting.get()) is not None:
                job()
        except RuntimeError as error:
            self._on_broken(error)


def work_on(device: torch.device) -> None:
    """For a new thread: else it takes memory of the first GPU with its first wait."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
