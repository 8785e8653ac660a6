"""The embedding channel by CUDA IPC: another process's embeddings, bit by bit, and how fast they come.

`python -m benchmarks.gpu.channel PORT GPU` is that process. Not run on a GPU so far.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.gpu.report import Report
from benchmarks.servers import ROOT
from rserve.runtime.arena_memory import ArenaShape
from rserve.runtime.cuda_ipc import CudaIpcReceiver, CudaIpcSender, HandleStore, open_arena
from rserve.runtime.device_memory import CudaMemory, DeviceMemory
from rserve.runtime.messages import EmbeddingsSent

SHAPE = ArenaShape(8 * 2048, 3584, torch.bfloat16)
"""Eight batches of 2,048 embeddings of the 7B model, 14.7 MB each."""
BATCHES = 16
PER_BATCH = 2048


def check_channel(report: Report, device: torch.device) -> None:
    """The sender is on the last GPU: this one where there is no other."""
    gpu = torch.cuda.device_count() - 1
    where = "from the same GPU" if gpu == torch.cuda.current_device() else f"from GPU {gpu}"
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    arena = torch.zeros(SHAPE.rows, SHAPE.hidden_size, dtype=SHAPE.dtype, device=device)
    receiver = CudaIpcReceiver(CudaMemory(device), arena, store)
    command = [sys.executable, "-m", "benchmarks.gpu.channel", str(store.port), str(gpu)]
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    seconds, right = [], 0
    try:
        for number in range(BATCHES):
            said, errors = _ask(child)
            if not said:
                report.check("channel", f"CUDA IPC {where}: every batch comes", False, errors[-200:])
                return
            seconds.append(float(said))
            right += _is_right(arena, SHAPE, number)
    finally:
        child.kill()
        child.wait()
        receiver.close()
    report.check("channel", f"CUDA IPC {where}: {BATCHES} batches are right", right == BATCHES)
    size = PER_BATCH * SHAPE.hidden_size * SHAPE.dtype.itemsize
    report.measure("channel", f"CUDA IPC {where}: a batch", size / statistics.median(seconds) / 1e9, "GB/s")


def send_batches(
    memory: DeviceMemory, store: HandleStore, shape: ArenaShape, device: torch.device
) -> Iterator[float]:
    """Sends a batch for each value taken: the seconds until it was announced."""
    announced = threading.Event()
    broken: list[RuntimeError] = []

    def fail(error: RuntimeError) -> None:
        broken.append(error)
        announced.set()

    sender = CudaIpcSender(memory, open_arena(memory, store, shape), lambda message: announced.set(), fail)
    for number in range(BATCHES):
        rows = _pattern(shape, number, device)
        message = EmbeddingsSent(0, 0, "r", (0,), (0,), (_first_row(shape, number),), (len(rows),))
        begin = time.perf_counter()
        sender.send(message, [rows])
        announced.wait()
        if broken:
            raise broken[0]
        announced.clear()
        yield time.perf_counter() - begin
    sender.close()


def _ask(child: subprocess.Popen[str]) -> tuple[str, str]:
    """The child's next line, or why there is none."""
    assert child.stdin is not None and child.stdout is not None and child.stderr is not None
    try:
        child.stdin.write("\n")
        child.stdin.flush()
    except BrokenPipeError:
        return "", child.stderr.read()
    line = child.stdout.readline()
    return line, "" if line else child.stderr.read()


def _first_row(shape: ArenaShape, number: int) -> int:
    return number * PER_BATCH % shape.rows


def _pattern(shape: ArenaShape, number: int, device: torch.device) -> Tensor:
    """Integers that bf16 holds exactly, others for each batch."""
    values = torch.arange(PER_BATCH * shape.hidden_size, device=device) * 7 + 31 * number
    return (values % 251).to(shape.dtype).view(PER_BATCH, shape.hidden_size)


def _is_right(arena: Tensor, shape: ArenaShape, number: int) -> bool:
    row = _first_row(shape, number)
    return torch.equal(arena[row : row + PER_BATCH], _pattern(shape, number, arena.device))


def main(arguments: list[str]) -> int:
    """The sending process: one batch for each line that it reads."""
    port, gpu = map(int, arguments)
    device = torch.device("cuda", gpu)
    torch.cuda.set_device(device)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    batches = send_batches(CudaMemory(device), store, SHAPE, device)
    for _ in sys.stdin:
        print(next(batches), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
