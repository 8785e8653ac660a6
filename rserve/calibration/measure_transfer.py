"""Times of what travels: embeddings through shared memory, messages, hidden states between two ranks."""

import statistics
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import zmq

from gllm.config import EngineConfig
from gllm.runtime.channels import Inbox, Outbox
from gllm.runtime.loading import ModelPlan, torch_dtype
from rserve.calibration.stopwatch import Stopwatch
from rserve.runtime.arena_memory import ArenaShape, map_shared, touch
from rserve.runtime.messages import EmbeddingsSent, epd_codec
from rserve.runtime.shared_file import create_shared
from rserve.runtime.shared_memory import SharedMemorySender

ROWS = 1024
SMALL, LARGE = 1024, 2 * 2**20
"""fp32 numbers in the messages between two ranks: 4 KB and 8 MB."""
LIMIT = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Road:
    """latency: seconds of something small; bandwidth: bytes/s beyond that."""

    latency: float
    bandwidth: float

    @classmethod
    def of(cls, small: tuple[float, float], large: tuple[float, float]) -> "Road":
        """From (bytes, seconds) of a small and a large transfer."""
        per_byte = max(large[1] - small[1], 1e-9) / (large[0] - small[0])
        return cls(max(small[1] - small[0] * per_byte, 0.0), 1 / per_byte)


@dataclass(frozen=True, slots=True)
class Transfers:
    """message: seconds of one control message. embedding: encoder to driver. row_copy: seconds a byte to copy
    embeddings into a micro-batch's input. link, all_reduce: between two ranks of a node."""

    message: float
    embedding: Road
    row_copy: float
    link: Road
    all_reduce: Road


def measure_transfers(config: EngineConfig, device: torch.device, watch: Stopwatch) -> Transfers:
    """The link between stages is measured over gloo, on GPUs too."""
    plan = ModelPlan.of(config)
    shape = ArenaShape(2 * ROWS, plan.shape.text.hidden_size, torch_dtype(plan.dtype))
    arena = map_shared(create_shared(shape.num_bytes), shape)
    touch(arena, torch.device("cpu"))
    rows = torch.randn(ROWS, shape.hidden_size).to(shape.dtype).to(device)
    message = EmbeddingsSent(0, 0, "chatcmpl-0123456789abcdef", (0,), (0,), (0,), (ROWS,))
    sender = SharedMemorySender(arena, lambda _: None)
    size = rows.numel() * rows.element_size()
    one = rows.numel() // ROWS * rows.element_size()
    send = watch.median(lambda: sender.send(message, [rows]))
    few = watch.median(lambda: sender.send(message, [rows[:1]]))
    hidden = torch.zeros(ROWS, shape.hidden_size, dtype=shape.dtype, device=device)
    copy = watch.median(lambda: hidden.copy_(arena[:ROWS]))
    messages = measure_message(watch)
    embedding = Road.of((one, few), (size, send))
    link, all_reduce = measure_link()
    landed = Road(embedding.latency + messages, embedding.bandwidth)
    return Transfers(messages, landed, copy / size, link, all_reduce)


def measure_message(watch: Stopwatch) -> float:
    """Seconds from sending a control message to having it decoded, over a local socket."""
    context = zmq.Context()
    with tempfile.TemporaryDirectory() as folder:
        address = f"ipc://{Path(folder) / 'box'}"
        inbox, outbox = Inbox(context, address, epd_codec()), Outbox(context, address, epd_codec())
        message = EmbeddingsSent(0, 0, "chatcmpl-0123456789abcdef", (0,), (0,), (0,), (ROWS,))

        def pass_one() -> None:
            outbox.send(message)
            inbox.receive()

        seconds = watch.median(pass_one)
        outbox.close()
        inbox.close()
        context.term()
    return seconds


def measure_link() -> tuple[Road, Road]:
    """(point-to-point, all-reduce) between two processes of this host over gloo, one way."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, (folder,), nprocs=2, join=True)  # type: ignore[attr-defined, no-untyped-call]
        lines = (Path(folder) / "seconds").read_text().split()
    small, large, reduce_small, reduce_large = map(float, lines)
    sizes = (SMALL * 4, LARGE * 4)
    return (
        Road.of((sizes[0], small), (sizes[1], large)),
        Road.of((sizes[0], reduce_small), (sizes[1], reduce_large)),
    )


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", 2)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=LIMIT)
    seconds = [
        *(_ping_pong(rank, size) for size in (SMALL, LARGE)),
        *(_all_reduce(size) for size in (SMALL, LARGE)),
    ]
    if rank == 0:
        (Path(folder) / "seconds").write_text(" ".join(map(repr, seconds)))
    dist.barrier()
    dist.destroy_process_group()


def _ping_pong(rank: int, size: int) -> float:
    tensor = torch.zeros(size)
    times = []
    for _ in range(20):
        start = time.perf_counter()
        if rank == 0:
            dist.send(tensor, 1)
            dist.recv(tensor, 1)
        else:
            dist.recv(tensor, 0)
            dist.send(tensor, 0)
        times.append((time.perf_counter() - start) / 2)
    return statistics.median(times)


def _all_reduce(size: int) -> float:
    tensor = torch.zeros(size)
    times = []
    for _ in range(20):
        start = time.perf_counter()
        dist.all_reduce(tensor)
        times.append(time.perf_counter() - start)
    return statistics.median(times)
