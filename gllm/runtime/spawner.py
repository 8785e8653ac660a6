"""Starts the processes of a deployment, and learns how they end; works through a zygote."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CLOSE_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Exited:
    """A child ended. code < 0: killed by signal -code. reason: where more is known than that."""

    name: str
    pid: int
    code: int
    reason: str = ""


class SpawnerLost(Exception):
    """The process that starts all others ended; its children are dead."""


class Spawner:
    """Children by name. They never outlive this process, and a terminal's Ctrl-C does not reach them.

    preload: modules that are imported once, before children are forked.
    environment: added to this process's own, e.g. the number of OpenMP threads.
    """

    def __init__(self, preload: Sequence[str], environment: Mapping[str, str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._alive: set[str] = set()
        with theirs:
            command = [sys.executable, "-m", "gllm.runtime.zygote", str(theirs.fileno()), *preload]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, **environment, "PYTHONPATH": _import_path()},
                start_new_session=True,
            )

    @property
    def alive(self) -> frozenset[str]:
        """Children that were started and, as far as `poll` knows, run."""
        return frozenset(self._alive)

    def fileno(self) -> int:
        """Readable when `poll` has something to return."""
        return self._control.fileno()

    def start(self, name: str, module: str, spec: str, fds: Sequence[int] = ()) -> None:
        """Fork a child that exits with `module.main(spec, descriptors)`; fds are duplicated for it."""
        order = json.dumps({"start": name, "module": module, "spec": spec}).encode()
        self._alive.add(name)
        self._send(order, fds)

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a child; nothing happens when it has ended."""
        self._send(json.dumps({"signal": name, "number": number}).encode(), ())

    def poll(self, timeout: float = 0.0) -> list[Exited]:
        """Children that ended since the last call; waits up to `timeout` seconds for the first.

        Raises SpawnerLost.
        """
        ended: list[Exited] = []
        while select.select([self._control], [], [], 0.0 if ended else timeout)[0]:
            ended.append(self._receive())
            self._alive.discard(ended[-1].name)
        return ended

    def close(self) -> None:
        """Kill what still runs, wait until it is gone, and end the zygote. Idempotent."""
        with contextlib.suppress(SpawnerLost):
            for name in self.alive:
                self.signal(name, signal.SIGKILL)
            deadline = time.monotonic() + CLOSE_WAIT_S
            while self._alive and (left := deadline - time.monotonic()) > 0:
                self.poll(left)
        self._control.close()
        self._alive.clear()
        try:
            self._process.wait(timeout=CLOSE_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, order: bytes, fds: Sequence[int]) -> None:
        try:
            socket.send_fds(self._control, [order], list(fds))
        except OSError as error:
            raise SpawnerLost(f"cannot start processes: {error}") from error

    def _receive(self) -> Exited:
        try:
            data = self._control.recv(4096)
        except OSError:
            data = b""
        if not data:
            self._alive.clear()
            raise SpawnerLost("the process that starts all others was killed")
        report = json.loads(data)
        return Exited(report["exited"], report["pid"], report["code"])


def _import_path() -> str:
    """PYTHONPATH with which a child finds this package, wherever the parent found it."""
    own = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join((own, *filter(None, [os.environ.get("PYTHONPATH")])))
