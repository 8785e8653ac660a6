"""A process that imports the heavy modules once and forks all other processes of a deployment.

`python -m gllm.runtime.zygote FD MODULE...` obeys orders on the Unix socket FD and ends when it closes; its
children get SIGKILL when it ends, however it ends. Orders and reports are JSON:

    {"start": name, "module": m, "spec": text} + descriptors   fork, then exit with m.main(spec, descriptors)
    {"signal": name, "number": n}                              send a signal to a child
    -> {"exited": name, "pid": p, "code": c}                   c < 0: killed by signal -c
"""

import contextlib
import ctypes
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from typing import Any

MAX_ORDER_BYTES = 1 << 17
MAX_DESCRIPTORS = 64
PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15


class Zygote:
    """Forks children on orders from `control`, reaps them and reports how they ended."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._names: dict[int, str] = {}
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> None:
        """Until the socket's other end closes."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(self._wake_read, select.POLLIN)
        while True:
            for fd, _ in poller.poll():
                if fd == self._wake_read:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_read, 4096)
                    self._reap()
                elif not self._obey():
                    return

    def _obey(self) -> bool:
        """Carry out one order; False when nobody gives orders any more."""
        try:
            data, fds, _, _ = socket.recv_fds(self._control, MAX_ORDER_BYTES, MAX_DESCRIPTORS)
        except ConnectionResetError:  # it was killed with reports unread
            return False
        if not data:
            return False
        order = json.loads(data)
        if "start" in order:
            self._start(order, fds)
        else:
            for pid, name in self._names.items():
                if name == order["signal"]:
                    os.kill(pid, order["number"])
        return True

    def _start(self, order: dict[str, Any], fds: list[int]) -> None:
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._become_child(parent, order["start"])
            _run(order["module"], order["spec"], fds)
        self._names[pid] = order["start"]
        for fd in fds:
            os.close(fd)

    def _become_child(self, parent: int, name: str) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        libc.prctl(PR_SET_NAME, name.encode())
        if os.getppid() != parent:
            os._exit(1)
        self._control.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _reap(self) -> None:
        while self._names:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            report = {"exited": self._names.pop(pid), "pid": pid, "code": code}
            self._control.send(json.dumps(report).encode())


def _run(module: str, spec: str, fds: list[int]) -> None:
    """Run module.main in this forked process and leave with its exit code; never returns."""
    code = 1
    try:
        code = importlib.import_module(module).main(spec, fds)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main(argv: list[str]) -> None:
    """argv: descriptor of the control socket, modules to import before the first fork."""
    for module in argv[1:]:
        importlib.import_module(module)
    Zygote(socket.socket(fileno=int(argv[0]))).run()
    os._exit(0)  # at once: taking torch apart would take a second


if __name__ == "__main__":
    main(sys.argv[1:])
