"""A real server in processes of its own, for tests."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

READY_S = 120.0
EXIT_S = 30.0


@dataclass
class Server:
    """A running `rserve serve`. url: without a slash at the end."""

    process: subprocess.Popen[str]
    url: str
    log: Path

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(EXIT_S)


def command(*flags: str) -> list[str]:
    return [sys.executable, "-m", "rserve.cli", "serve", *flags]


@contextmanager
def running(folder: Path, *flags: str) -> Iterator[Server]:
    """Start with these flags on a free port of the loopback address, wait until ready, stop in the end."""
    log = folder / "server.log"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    all_flags = (*flags, "--port", "0", "--kv-cache-gib", "0.1")
    with log.open("w") as output:
        process = subprocess.Popen(
            command(*all_flags), stdout=output, stderr=subprocess.STDOUT, text=True, env=environment
        )
    try:
        yield Server(process, _ready_url(process, log), log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(EXIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ready_url(process: subprocess.Popen[str], log: Path) -> str:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        for line in log.read_text().splitlines():
            if "is ready at " in line:
                return line.split("is ready at ")[1].split()[0]
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise AssertionError(f"the server did not start:\n{log.read_text()}")
