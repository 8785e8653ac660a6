"""What the driver pays for each megabyte of embeddings that it receives, over both channels.

    python -m benchmarks.channel_cost --out results

An encoder's end in another process sends batches of 256 embeddings. CPU time of the driver's process (all of
its threads: on one core, that is what stage 0 loses) over the bytes received; the copy of the rows into a
micro-batch's input, which any design needs, is measured beside it. Latency: one batch, from the sender's call
to the driver's core.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import zmq

from benchmarks import results
from benchmarks.servers import ROOT, fast_dtype
from gllm.config import ModelConfig
from gllm.runtime.channels import Inbox, Outbox
from gllm.runtime.embedding_rows import BorrowedRows
from gllm.runtime.loading import ModelPlan, torch_dtype
from gllm.runtime.rank_spec import RankSpec
from rserve.config import EpdConfig, RServeConfig
from rserve.runtime.channels import ChannelEnd, arena_shape, open_receiver, open_sender
from rserve.runtime.embedding_channel import EmbeddingReceiver
from rserve.runtime.messages import EmbeddingsSent, EncoderJoined, epd_codec
from rserve.runtime.shared_file import create_shared

ROWS = 256
CHANNELS = ("shm", "p2p")


@dataclass
class CountingCore:
    """Takes embeddings as the engine's core does, and counts them."""

    rows: int = 0
    latencies: list[float] | None = None

    def on_embeddings(self, request_id: str, item: int, attempt: int, payload: BorrowedRows) -> bool:
        self.rows += payload.tensor.shape[0]
        if self.latencies is not None:
            self.latencies.append(time.monotonic() - float(request_id))
        return True

    def on_encoder_lost(self, items: list[tuple[str, int, int]]) -> None:
        raise RuntimeError("the sender died")


def measure(channel: str, batches: int, dtype: str) -> dict[str, float]:
    """Milliseconds of the driver's CPU per MB, the sender's wall time per MB, and the latency of a batch."""
    config = RServeConfig(
        model=ModelConfig(model="small", dtype=dtype, load_format="dummy"),
        epd=EpdConfig(embedding_channel=channel, embedding_gib=0.25),
    )
    shape = arena_shape(config, ModelPlan.of(config))
    batches = min(batches, shape.rows // ROWS)
    fds, port = _endpoint(channel, shape.num_bytes)
    with tempfile.TemporaryDirectory() as folder:
        address = f"ipc://{folder}/driver"
        context = zmq.Context()
        inbox = Inbox(context, address, epd_codec())
        job = {"channel": channel, "dtype": dtype, "address": address, "port": port, "batches": batches}
        keep = fds if channel == "shm" else []
        command = [sys.executable, "-m", "benchmarks.channel_cost", "--sender", json.dumps(job)]
        sender = subprocess.Popen([*command, *map(str, keep)], pass_fds=keep, cwd=ROOT)
        try:
            receiver = open_receiver(ChannelEnd(config, shape, torch.device("cpu"), fds))
            receiver.on_joined(EncoderJoined(0, 0))
            return _receive(inbox, receiver, batches, shape.num_bytes / shape.rows)
        finally:
            sender.wait(30)
            inbox.close()
            context.term()


def _endpoint(channel: str, num_bytes: int) -> tuple[list[int], int]:
    if channel == "shm":
        return [create_shared(num_bytes)], 0
    listener = socket.create_server(("127.0.0.1", 0), backlog=16)
    port = listener.getsockname()[1]
    return [listener.detach()], port


def _receive(inbox: Inbox, receiver: EmbeddingReceiver, batches: int, row_bytes: float) -> dict[str, float]:
    """The driver's loop: block, drain, hand over. Batch by batch with pauses, then all at once."""
    poller = zmq.Poller()
    poller.register(inbox.socket, zmq.POLLIN)
    poller.register(receiver.wakes, zmq.POLLIN)
    core = CountingCore(latencies=[])

    def until(rows: int) -> None:
        while core.rows < rows:
            poller.poll()
            for message in inbox.drain():
                if type(message) is EmbeddingsSent:
                    receiver.on_sent(message)
            receiver.drain(core)  # type: ignore[arg-type]

    half = batches // 2
    until(ROWS)  # the first batch opens connections
    cpu = time.process_time()
    until(half * ROWS)
    paced = (time.process_time() - cpu) / (half - 1)
    latency = statistics.median(core.latencies or [0.0])
    core.latencies = None
    cpu, wall = time.process_time(), time.perf_counter()
    until(batches * ROWS)
    burst, seconds = (time.process_time() - cpu) / (batches - half), time.perf_counter() - wall
    megabytes = ROWS * row_bytes / 1e6
    return {
        "driver_cpu_ms_per_mb": paced * 1e3 / megabytes,
        "driver_cpu_ms_per_mb_burst": burst * 1e3 / megabytes,
        "burst_mb_per_s": (batches - half) * megabytes / seconds,
        "latency_ms": latency * 1e3,
        "batch_mb": megabytes,
    }


def send(job: dict[str, object], fds: Sequence[int]) -> None:
    """The encoder's end: half of the batches 20 ms apart, the rest without pause."""
    config = RServeConfig(
        model=ModelConfig(model="small", dtype=str(job["dtype"]), load_format="dummy"),
        epd=EpdConfig(embedding_channel=str(job["channel"]), embedding_gib=0.25),
    )
    shape = arena_shape(config, ModelPlan.of(config))
    context = zmq.Context()
    outbox = Outbox(context, str(job["address"]), epd_codec())
    extra = {"index": 0, "epoch": 0, "store_port": int(str(job["port"]))}
    spec = RankSpec("encoder0", -1, config.to_json(), {}, extra=extra)
    sender = open_sender(ChannelEnd(config, shape, torch.device("cpu"), fds), spec, outbox.send)
    embedding = torch.randn(ROWS, shape.hidden_size).to(shape.dtype)
    batches = int(str(job["batches"]))
    for number in range(batches):
        if number <= batches // 2:
            time.sleep(0.02)
        now = f"{time.monotonic():.9f}"
        message = EmbeddingsSent(0, 0, now, (0,), (0,), (number * ROWS,), (ROWS,))
        sender.send(message, [embedding])
    sender.close()
    outbox.close()
    context.term()


def copy_cost(dtype: str, hidden_size: int = 1024) -> float:
    """Milliseconds per MB of copying received rows into a micro-batch's input."""
    source = torch.randn(64 * ROWS, hidden_size).to(torch_dtype(dtype))
    target = torch.zeros(ROWS, hidden_size, dtype=source.dtype)
    times = []
    for number in range(64):
        start = time.perf_counter()
        target[:] = source[number * ROWS : (number + 1) * ROWS]
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3 / (target.numel() * target.element_size() / 1e6)


def main(argv: list[str] | None = None) -> int:
    """Print a table and append lines."""
    parser = argparse.ArgumentParser(prog="channel_cost", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder (default %(default)s)")
    parser.add_argument("--batches", type=int, default=120, help="of 256 embeddings (default %(default)s)")
    parser.add_argument("--dtype", default=fast_dtype(), help="of the embeddings (default %(default)s)")
    parser.add_argument("--sender", help=argparse.SUPPRESS)
    parser.add_argument("fds", type=int, nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    if args.sender:
        send(json.loads(args.sender), args.fds)
        return 0
    copied = copy_cost(args.dtype)
    print(f"copy of the rows into a micro-batch's input: {copied:.3f} ms/MB")
    rows = [
        f"{results.hardware_name()}, {args.dtype}, commit {results.current_commit()}; copying rows into a "
        f"micro-batch's input: {copied:.3f} ms/MB",
        "",
        "| channel | driver's CPU (ms/MB) | … in a burst | burst (MB/s) | latency of a batch (ms) |",
        "|---|---|---|---|---|",
    ]
    for channel in CHANNELS:
        found = measure(channel, args.batches, args.dtype)
        print(
            f"{channel}: driver {found['driver_cpu_ms_per_mb']:.3f} ms CPU/MB "
            f"({found['driver_cpu_ms_per_mb_burst']:.3f} in a burst of {found['burst_mb_per_s']:.0f} MB/s), "
            f"latency of {found['batch_mb']:.2f} MB {found['latency_ms']:.2f} ms"
        )
        rows.append(
            f"| {channel} | {found['driver_cpu_ms_per_mb']:.3f} "
            f"| {found['driver_cpu_ms_per_mb_burst']:.3f} | {found['burst_mb_per_s']:.0f} "
            f"| {found['latency_ms']:.2f} ({found['batch_mb']:.2f} MB) |"
        )
        line = {
            "experiment": "channel_cost",
            "source": "measured",
            "embedding_channel": channel,
            "dtype": args.dtype,
            "copy_ms_per_mb": copied,
            **found,
            "hardware": results.hardware_name(),
            "commit": results.current_commit(),
        }
        results.append_line(args.out / "costs.jsonl", line)
    (args.out / "channel-cost.md").write_text("\n".join([*rows, ""]))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    sys.exit(main())
