"""Serve a checkpoint with vLLM's CPU build: one server, or encoder and language model on a core each.

    bash benchmarks/vllm_env.sh /tmp/vllm-env
    python -m benchmarks.vllm_peer /tmp/small --env /tmp/vllm-env --cores 0-1
    python -m benchmarks.vllm_peer /tmp/small --env /tmp/vllm-env --cores 0 --encoder-cores 1

Prints "ready at URL" and ends on SIGTERM, as our own server does. The first start of a kind compiles and can
take minutes; vLLM keeps what it compiled.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web

from benchmarks.servers import ServerPlan, end, kill_all, process_tree
from benchmarks.vllm_proxy import EncodeFirst

START_S = 1200.0
STOP_S = 15.0
LARGEST = {"image": {"count": 16, "width": 448, "height": 448}, "video": 0}
PRELOADED = ("libtcmalloc_minimal.so.4", "libiomp5.so")


def vllm_plan(
    env: Path, model: str, dtype: str, cores: range, encoder_cores: range = range(0), kv_gib: int = 2
) -> ServerPlan:
    """vLLM as a server for a benchmark; without encoder cores it is not disaggregated."""
    flags = ["--env", str(env), "--dtype", dtype, "--cores", shown(cores), "--kv-cache-gib", str(kv_gib)]
    if encoder_cores:
        flags += ["--encoder-cores", shown(encoder_cores)]
    return ServerPlan(model, tuple(flags), ("benchmarks.vllm_peer",), START_S)


def shown(cores: range) -> str:
    """0-1, or 1 for one core: as VLLM_CPU_OMP_THREADS_BIND reads it."""
    return str(cores[0]) if len(cores) == 1 else f"{cores[0]}-{cores[-1]}"


@dataclass(frozen=True)
class VllmServer:
    """One `vllm serve`. role: None, or the `ec_role` of its side, with the folder that both sides share."""

    env: Path
    model: str
    dtype: str
    cores: str
    kv_gib: int
    role: str | None = None
    shared: str = ""

    def command(self, port: int) -> list[str]:
        """Nothing is cached from one request to the next, but what the two sides pass each other."""
        transfer = {
            "ec_connector": "ECExampleConnector",
            "ec_role": self.role,
            "ec_connector_extra_config": {"shared_storage_path": self.shared},
        }
        # Without its processor cache vLLM numbers images instead of hashing them: two sides would disagree.
        passing = (
            ["--ec-transfer-config", json.dumps(transfer)] if self.role else ["--mm-processor-cache-gb", "0"]
        )
        return [
            *(str(self.env / "bin" / "vllm"), "serve", self.model, "--dtype", self.dtype),
            *("--host", "127.0.0.1", "--port", str(port), "--max-model-len", "4096"),
            # Otherwise it takes our template for one of plain strings, and breaks the line after each image.
            *("--chat-template-content-format", "openai"),
            # An encoder tries out its largest input before it is ready: an hour for one core.
            *("--limit-mm-per-prompt", json.dumps(LARGEST), "--skip-mm-profiling"),
            *("--no-enable-prefix-caching", *passing),
        ]

    def variables(self) -> dict[str, str]:
        """Its environment; our own numbers of threads must not reach it."""
        kept = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
        libraries = [self.env / "lib" / name for name in PRELOADED]
        return kept | {
            "LD_PRELOAD": ":".join(str(path) for path in libraries if path.exists()),
            "VLLM_CPU_OMP_THREADS_BIND": self.cores,
            "VLLM_CPU_KVCACHE_SPACE": str(self.kv_gib),
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }


@contextlib.contextmanager
def started(server: VllmServer) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Its base URL and process, not ready yet; it and all its descendants end with the context."""
    port = free_port()
    process = subprocess.Popen(
        server.command(port), env=server.variables(), stdout=sys.stderr, stderr=sys.stderr
    )
    try:
        yield f"http://127.0.0.1:{port}", process
    finally:
        family = process_tree(process.pid)
        end(process, STOP_S)
        kill_all(family)  # what it left behind when it ended


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class VllmEnded(RuntimeError):
    """vLLM ended before it was ready; what it wrote stands before this in the log."""


async def wait_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    """Until it answers. Raises VllmEnded."""
    async with aiohttp.ClientSession() as session:
        while process.poll() is None:
            with contextlib.suppress(aiohttp.ClientError, OSError):
                async with session.get(f"{url}/health") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.5)
    raise VllmEnded(f"vLLM ended with code {process.returncode}")


async def serve(args: argparse.Namespace) -> None:
    """Start everything, say so, and stay until SIGTERM."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    whole = asyncio.create_task(stop.wait())
    work = asyncio.create_task(_run(args))
    await asyncio.wait((whole, work), return_when=asyncio.FIRST_COMPLETED)
    for task in (whole, work):
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work


async def _run(args: argparse.Namespace) -> None:
    plain = VllmServer(args.env, args.model, args.dtype, args.cores, args.kv_cache_gib)
    async with contextlib.AsyncExitStack() as stack:
        if args.encoder_cores is None:
            url, process = stack.enter_context(started(plain))
            await wait_ready(url, process)
        else:
            url = await _run_disaggregated(plain, args, stack)
        print(f"ready at {url}", flush=True)
        await asyncio.Event().wait()


async def _run_disaggregated(
    plain: VllmServer, args: argparse.Namespace, stack: contextlib.AsyncExitStack
) -> str:
    """One side after the other, so that the second finds what the first compiled; then the proxy's URL."""
    memory = Path("/dev/shm")
    shared = stack.enter_context(
        tempfile.TemporaryDirectory(prefix="vllm-embeddings-", dir=memory if memory.is_dir() else None)
    )
    urls = []
    for role, cores in (("ec_producer", args.encoder_cores), ("ec_consumer", args.cores)):
        side = VllmServer(args.env, args.model, args.dtype, cores, args.kv_cache_gib, role, shared)
        url, process = stack.enter_context(started(side))
        await wait_ready(url, process)
        urls.append(url)
    runner = web.AppRunner(EncodeFirst(*urls).app(), shutdown_timeout=0.1)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, args.host, args.port).start()
    return f"http://{args.host}:{runner.addresses[0][1]}"


def build_parser() -> argparse.ArgumentParser:
    """All flags."""
    parser = argparse.ArgumentParser(prog="vllm_peer", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="a folder with weights")
    parser.add_argument("--env", type=Path, required=True, help="the environment of vllm_env.sh")
    parser.add_argument("--dtype", default="float32", help="(default %(default)s)")
    parser.add_argument("--cores", default="0-1", help="of the (language) model (default %(default)s)")
    parser.add_argument("--encoder-cores", help="cores of an encoder beside it")
    parser.add_argument("--kv-cache-gib", type=int, default=2, help="(default %(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="of the proxy (default %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="of the proxy (default: a free one)")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM; 1 when vLLM ended by itself."""
    args = build_parser().parse_args(argv)
    try:
        asyncio.run(serve(args))
    except VllmEnded as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
