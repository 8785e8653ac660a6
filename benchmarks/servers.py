"""Start and stop servers of this project for a benchmark: the one place that knows their processes."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gllm.models.names import resolve_model

ROOT = Path(__file__).resolve().parent.parent
START_S = 300.0
STOP_S = 40.0
_READY = re.compile(rb"ready at (https?://\S+)")


@dataclass(frozen=True)
class ServerPlan:
    """A server to start: its model and flags, such as ("--scheme", "rserve", "--load-format", "dummy").

    program: the module that serves MODEL --host HOST --port PORT, and its subcommand. It prints "ready at
    URL" and ends on SIGTERM. start_s: how long that may take.
    """

    model: str
    flags: tuple[str, ...] = ()
    program: tuple[str, ...] = ("rserve.cli", "serve")
    start_s: float = START_S

    def command(self) -> list[str]:
        """The command line, with a free port on this machine."""
        return [
            *(sys.executable, "-m", *self.program, self.model),
            *("--host", "127.0.0.1", "--port", "0", *self.flags),
        ]

    @property
    def shown(self) -> str:
        """The command as a reader would type it."""
        program = " ".join(self.program).replace("rserve.cli serve", "rserve serve")
        return " ".join((program, self.model, *self.flags))


def model_folder(model: str) -> Path:
    """The folder of a model, whatever the working directory. Raises UnknownModelError."""
    return resolve_model(model).resolve()


def weight_flags(model: str) -> tuple[str, ...]:
    """Flags of our server: random weights for a model whose folder has none."""
    has_weights = any(model_folder(model).glob("*.safetensors"))
    return () if has_weights else ("--load-format", "dummy")


def core_per_rank(scheme: str, batch_tokens: int) -> tuple[str, ...]:
    """Flags of our server with one thread for each rank, on a core of its own.

    batch_tokens: of an encoder batch, where the scheme has encoder ranks.
    """
    flags = ("--scheme", scheme, "--threads-per-rank", "1", "--cpu-affinity")
    if scheme == "gllm":
        return flags
    return *flags, "--embedding-batch-size", str(batch_tokens), "--embedding-gib", "0.25"


def fast_dtype() -> str:
    """The number format that this CPU computes at full speed: bfloat16 needs instructions for it."""
    path = Path("/proc/cpuinfo")
    flags = path.read_text() if path.exists() else ""
    return "bfloat16" if "avx512_bf16" in flags or "amx_bf16" in flags else "float32"


class ServerFailed(RuntimeError):
    """A server did not start; the message ends with its last lines."""


class Server:
    """A running server and its processes, all of them descendants of the first."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, base_url: str, start_s: float) -> None:
        """start_s: seconds from the command to the first accepted request."""
        self.process = process
        self.log = log
        self.base_url = base_url
        self.start_s = start_s

    def cpu_seconds(self) -> float:
        """CPU time that all its processes have used so far."""
        return sum(process_tree(self.process.pid).values())

    def stop(self) -> int:
        """Ask it to end, then make it; returns the exit code."""
        return end(self.process, STOP_S)


@contextlib.contextmanager
def running(plan: ServerPlan, log_dir: Path | None = None) -> Iterator[Server]:
    """Start a server, wait until it is ready, stop it at the end. Raises ServerFailed."""
    with _ended_by_sigterm():
        server = start(plan, log_dir)
        try:
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM unwinds a benchmark, so that it leaves no server behind; in other threads nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def all_running(plans: Sequence[ServerPlan], log_dir: Path | None = None) -> Iterator[list[Server]]:
    """Several servers at once, started one after the other and stopped in reverse."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(running(plan, log_dir)) for plan in plans]


def start(plan: ServerPlan, log_dir: Path | None = None) -> Server:
    """Start a server and wait until it accepts requests. Raises ServerFailed."""
    folder = log_dir or Path(tempfile.gettempdir())
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix="server-", suffix=".log", dir=folder)
    begin = time.perf_counter()
    with os.fdopen(descriptor, "wb") as file:
        process = subprocess.Popen(
            plan.command(), stdout=subprocess.PIPE, stderr=file, cwd=ROOT, start_new_session=True
        )
    url = _wait_ready(process, begin + plan.start_s)
    server = Server(process, Path(name), url, time.perf_counter() - begin)
    if not url:
        server.stop()
        tail = "\n".join(Path(name).read_text(errors="replace").splitlines()[-8:])
        raise ServerFailed(f"`{plan.shown}` did not get ready:\n{tail}")
    return server


def end(process: subprocess.Popen[bytes], wait_s: float) -> int:
    """Ask a process to end; after wait_s seconds kill it and all its descendants. Its exit code."""
    family = process_tree(process.pid)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        return process.wait(wait_s)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
        kill_all(family)
        return code


def kill_all(pids: Iterable[int]) -> None:
    """Kill those that still run."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def process_tree(root: int) -> dict[int, float]:
    """CPU seconds of a process and of all its descendants, by pid, read from /proc."""
    ticks = os.sysconf("SC_CLK_TCK")
    seconds: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            seconds[int(entry.name)] = (int(fields[11]) + int(fields[12])) / ticks
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, waiting = {}, [root]
    while waiting:
        pid = waiting.pop()
        if pid in seconds:
            found[pid] = seconds[pid]
            waiting += children.get(pid, [])
    return found


def _wait_ready(process: subprocess.Popen[bytes], deadline: float) -> str:
    """The server's URL; empty when it ended or took too long."""
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    seen = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while (left := deadline - time.perf_counter()) > 0:
            if not selector.select(left):
                return ""
            data = os.read(descriptor, 65536)
            seen += data
            if found := _READY.search(seen):
                return found.group(1).decode()
            if not data:
                return ""
    return ""
