"""The channel by CUDA IPC: its own rules on a CPU, and two processes on one GPU where there is one."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from gllm.config import ConfigError, ParallelConfig
from gllm.core.batch import EmbedRows
from gllm.runtime.embedding_rows import BorrowedRows, EmbeddingRows
from rserve.config import EpdConfig, RServeConfig
from rserve.runtime.arena_memory import ArenaShape, map_shared
from rserve.runtime.channels import ChannelEnd
from rserve.runtime.cuda_ipc import HANDLE_KEY, CudaIpcReceiver, CudaIpcSender, open_arena
from rserve.runtime.messages import EmbeddingsSent
from rserve.runtime.shared_file import create_shared
from tests.rserve.file_memory import FileArrival, FileMemory

SHAPE = ArenaShape(64, 8, torch.float32)
ROOT = Path(__file__).parents[2]
HAS_GPU = torch.cuda.is_available()
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="no CUDA device is here")


def batch(item: int, row: int) -> EmbeddingsSent:
    return EmbeddingsSent(0, 0, "r", (item,), (0,), (row,), (4,), batch_id=item)


@pytest.fixture
def fd() -> Iterator[int]:
    made = create_shared(SHAPE.num_bytes)
    yield made
    os.close(made)


@dataclass
class GatedMemory(FileMemory):
    """Copies arrive when the test opens the gate."""

    gate: threading.Event = field(default_factory=threading.Event)

    def copy(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> "GatedArrival":
        return GatedArrival(targets, sources, None, self.gate)


@dataclass(frozen=True)
class GatedArrival(FileArrival):
    gate: threading.Event

    def wait(self) -> None:
        assert self.gate.wait(10)
        super().wait()


def test_a_batch_is_announced_when_its_copy_is_complete_and_the_encoder_goes_on_meanwhile(fd: int):
    memory, arena = GatedMemory(fd), map_shared(fd, SHAPE)
    seen: list[tuple[int, float]] = []
    announced = threading.Event()

    def announce(message: EmbeddingsSent) -> None:
        seen.append((message.batch_id, arena[message.rows[0], 0].item()))
        announced.set()

    sender = CudaIpcSender(memory, map_shared(fd, SHAPE), announce, lambda error: None)
    sender.send(batch(1, 0), [torch.full((4, 8), 5.0)])
    sender.send(batch(2, 8), [torch.full((4, 8), 6.0)])
    assert not announced.wait(0.05) and arena.sum() == 0
    memory.gate.set()
    sender.close()
    assert seen == [(1, 5.0), (2, 6.0)]


def test_a_device_that_fails_ends_the_encoder_and_announces_nothing(fd: int):
    seen: list[EmbeddingsSent] = []
    broken: list[RuntimeError] = []
    sender = CudaIpcSender(FileMemory(fd, "CUDA error"), map_shared(fd, SHAPE), seen.append, broken.append)
    sender.send(batch(1, 0), [torch.ones(4, 8)])
    sender.close()
    assert not seen and [str(error) for error in broken] == ["CUDA error"]


def test_the_memory_is_exported_once_and_every_encoder_opens_it(fd: int):
    store, memory = dist.HashStore(), FileMemory(fd)
    receiver = CudaIpcReceiver(memory, map_shared(fd, SHAPE), store)
    first, second = (open_arena(memory, store, SHAPE) for _ in range(2))
    first[3] = 1.0
    assert second[3].sum() == 8 and memory.opened[0] == memory.opened[1]
    receiver.close()


def test_memory_that_cannot_be_opened_is_one_line_that_says_what_to_do(fd: int):
    store = dist.HashStore()
    receiver = CudaIpcReceiver(FileMemory(fd), map_shared(fd, SHAPE), store)
    with pytest.raises(ConfigError, match=r"\(invalid device context\): use shm$"):
        open_arena(FileMemory(fd, is_closed=True), store, SHAPE)
    with pytest.raises(ConfigError, match="2048 bytes, not 4096"):
        open_arena(FileMemory(fd), store, ArenaShape(128, 8, torch.float32))
    receiver.close()


@pytest.mark.parametrize(
    ("asked", "executor", "device", "kind"),
    [
        ("auto", "local", "cpu", "shm"),
        ("auto", "local", "cuda", "cuda-ipc"),
        ("auto", "ray", "cuda", "p2p"),
        ("shm", "local", "cuda", "shm"),
        ("p2p", "local", "cpu", "p2p"),
    ],
)
def test_auto_stages_through_the_host_only_on_cpus(asked: str, executor: str, device: str, kind: str):
    config = RServeConfig(parallel=ParallelConfig(executor=executor), epd=EpdConfig(embedding_channel=asked))
    assert ChannelEnd(config, SHAPE, torch.device(device)).kind == kind


def test_cuda_ipc_without_a_gpu_is_refused():
    end = ChannelEnd(RServeConfig(epd=EpdConfig(embedding_channel="cuda-ipc")), SHAPE, torch.device("cpu"))
    with pytest.raises(ConfigError, match="no GPU: use shm"):
        assert end.kind


# -- on a GPU -----------------------------------------------------------------------------------------------

ENCODER = """
import sys, torch
import torch.distributed as dist
from rserve.runtime.arena_memory import ArenaShape
from rserve.runtime.cuda_ipc import CudaIpcSender, open_arena
from rserve.runtime.device_memory import CudaMemory
from rserve.runtime.messages import EmbeddingsSent
port, epoch, device = int(sys.argv[1]), int(sys.argv[2]), torch.device("cuda", int(sys.argv[3]))
torch.cuda.set_device(device)
store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
shape = ArenaShape(4096, 512, torch.bfloat16)
memory = CudaMemory(device)
arena = open_arena(memory, store, shape)
def announce(message):
    print(message.batch_id, flush=True)
def fail(error):
    print(error, file=sys.stderr, flush=True)
sender = CudaIpcSender(memory, arena, announce, fail)
for line in sys.stdin:
    item = int(line)
    generator = torch.Generator(device).manual_seed(1000 * epoch + item)
    rows = torch.randn(1024, 512, generator=generator, device=device).to(torch.bfloat16)
    row = 1024 * (item % 4)
    message = EmbeddingsSent(0, epoch, "r", (item, item), (0, 0), (row, row + 1000), (1000, 24), 0.0, item)
    sender.send(message, [rows[:1000], rows[1000:]])
sender.close()
"""


def start_encoder(port: int, epoch: int, device: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", ENCODER, str(port), str(epoch), str(device)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def expected(epoch: int, item: int, device: int) -> Tensor:
    generator = torch.Generator(torch.device("cuda", device)).manual_seed(1000 * epoch + item)
    made = torch.randn(1024, 512, generator=generator, device=torch.device("cuda", device))
    return made.to(torch.bfloat16).to("cuda:0")


@needs_gpu
@pytest.mark.parametrize("device", range(min(2, torch.cuda.device_count())) if HAS_GPU else [0])
def test_two_processes_share_a_gpus_memory_and_a_killed_encoder_has_a_successor(device: int):
    from rserve.runtime.device_memory import CudaMemory

    here = torch.device("cuda", 0)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    arena = torch.zeros(4096, 512, dtype=torch.bfloat16, device=here)
    receiver = CudaIpcReceiver(CudaMemory(here), arena, store)
    assert store.get(HANDLE_KEY)
    for epoch in range(2):
        encoder = start_encoder(store.port, epoch, device)
        assert encoder.stdin is not None and encoder.stdout is not None
        for item in range(8):
            encoder.stdin.write(f"{item}\n")
            encoder.stdin.flush()
            assert int(encoder.stdout.readline()) == item
            row = 1024 * (item % 4)
            assert torch.equal(arena[row : row + 1024], expected(epoch, item, device))
        encoder.kill()
        encoder.wait(30)
        encoder.stdin.close()
        encoder.stdout.close()
    receiver.close()


@needs_gpu
def test_borrowed_rows_may_be_overwritten_as_soon_as_they_are_taken():
    """Behind a long queue of other work on the device, the rows that were taken are the old ones."""
    here = torch.device("cuda", 0)
    arena = torch.ones(1024, 512, device=here)
    hidden, busy = torch.zeros(1024, 512, device=here), torch.randn(8192, 8192, device=here)
    torch.cuda.synchronize(here)
    for _ in range(20):
        busy = busy @ busy
    EmbeddingRows(here).write(hidden, [EmbedRows(0, BorrowedRows(arena), 0, 1024)])
    with torch.cuda.stream(torch.cuda.Stream(here)):
        arena.fill_(2.0)
    torch.cuda.synchronize(here)
    assert (hidden == 1.0).all()
