"""What tests do to a real server: ask, look inside, stop and kill its processes, compare before and after."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
from PIL import Image

from benchmarks.inside import descendants
from gllm.multimodal.data_url import to_data_url
from tests.e2e.server import Server, running

WAIT_S = 60.0
IDLE = (
    "requests_running",
    "requests_waiting",
    "sequences_decoding",
    "schedulable_tokens",
    "micro_batches_in_flight",
    "kv_blocks_used",
    "tracker_requests",
    "tracker_tokens",
    "tracker_bytes",
)
ROUTER_IDLE = (
    "requests_active",
    "requests_with_images",
    "images_fetching",
    "pixel_bytes",
    "pixel_requests_waiting",
    "encoder_queue_batches",
    "encoder_outstanding_tokens",
    "embedding_rows_reserved",
)


def picture(seed: int, size: int = 56) -> str:
    """A data URL of a noisy picture; every seed gives another."""
    colour = tuple(random.Random(seed).randrange(256) for _ in range(3))
    image = Image.new("RGB", (size, size), colour)
    image.putpixel((seed % size, seed // size % size), (seed % 251, seed % 241, seed % 239))
    return to_data_url(image)


def body(*urls: str, text: str = "What is this?", max_tokens: int = 6, **fields: object) -> dict:
    """A greedy chat request about images."""
    content = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    messages = [{"role": "user", "content": [*content, {"type": "text", "text": text}]}]
    return {"messages": messages, "max_tokens": max_tokens, "temperature": 0, **fields}


@dataclass
class Deployment:
    """A running server with its processes by name (rank0, encoder0, ...)."""

    server: Server

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(64)

    def ask(self, request: dict, timeout: float = WAIT_S) -> httpx.Response:
        return httpx.post(f"{self.server.url}/v1/chat/completions", json=request, timeout=timeout)

    def text_of(self, request: dict) -> str:
        response = self.ask(request)
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]["message"]["content"]

    def later(self, request: dict) -> "Future[httpx.Response]":
        """Ask in the background."""
        return self._pool.submit(self.ask, request)

    @contextmanager
    def stream(self, request: dict) -> Iterator[httpx.Response]:
        """A streaming request, cut off when the block ends."""
        url = f"{self.server.url}/v1/chat/completions"
        with httpx.stream("POST", url, json={**request, "stream": True}, timeout=WAIT_S) as response:
            yield response

    def health(self) -> dict:
        return httpx.get(f"{self.server.url}/health", timeout=WAIT_S).json()

    def metrics(self) -> dict[str, float]:
        """Metrics without labels and prefix, by name."""
        lines = httpx.get(f"{self.server.url}/metrics", timeout=WAIT_S).text.splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#") and "{" not in line)
        return {name.removeprefix("rserve_").removeprefix("driver_"): float(value) for name, value in pairs}

    def pid(self, name: str) -> int | None:
        """The process of this name, as `ps` shows it."""
        for pid in descendants(self.server.process.pid):
            try:
                if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                    return pid
            except OSError:
                continue
        return None

    def signal(self, name: str, number: int) -> int:
        pid = self.pid(name)
        assert pid is not None, name
        os.kill(pid, number)
        return pid

    @contextmanager
    def stopped(self, name: str) -> Iterator[int]:
        """The process stands still within the block."""
        pid = self.signal(name, signal.SIGSTOP)
        try:
            yield pid
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def descriptors(self) -> dict[str, int]:
        """Open files of the server and its children, by process name."""
        found = {}
        for pid in (self.server.process.pid, *descendants(self.server.process.pid)):
            try:
                name = Path(f"/proc/{pid}/comm").read_text().strip()
                found[name] = len(os.listdir(f"/proc/{pid}/fd"))
            except OSError:
                continue
        return found

    def resident_kib(self) -> dict[str, int]:
        """Resident memory of the server and its children, by process name."""
        found = {}
        for pid in (self.server.process.pid, *descendants(self.server.process.pid)):
            try:
                name = Path(f"/proc/{pid}/comm").read_text().strip()
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            except OSError:
                continue
            sizes = [int(line.split()[1]) for line in lines if line.startswith("VmRSS:")]
            found[name] = sum(sizes)
        return found

    def wait(self, condition: Callable[[], bool], what: str, timeout: float = WAIT_S) -> None:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if condition():
                return
            time.sleep(0.05)
        raise AssertionError(f"{what}: {self.metrics()}\n{self.server.log.read_text()[-3000:]}")

    def wait_idle(self) -> None:
        """Blocks, tokens, queues, pixels and embedding memory are all back."""
        self.wait(self.is_idle, "the server is not idle")

    def is_idle(self) -> bool:
        values = self.metrics()
        names = [name for name in (*IDLE, *ROUTER_IDLE) if name in values]
        assert {"kv_blocks_used", "tracker_tokens", "requests_active"} <= set(names)
        return not any(values[name] for name in names)


@contextmanager
def deployed(folder: Path, *flags: str) -> Iterator[Deployment]:
    """A server of the tiny model with a small cache."""
    with running(folder, "tiny", "--num-kv-blocks", "512", *flags) as server:
        yield Deployment(server)
