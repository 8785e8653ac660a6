"""What a server holds: its gauges that are zero when it rests, and its processes' memory and descriptors."""

from __future__ import annotations

import os
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from benchmarks.servers import process_tree

RESTS_AT_ZERO = (
    "rserve_requests_active",
    "rserve_requests_with_images",
    "rserve_images_fetching",
    "rserve_pixel_bytes",
    "rserve_pixel_requests_waiting",
    "rserve_encoder_queue_batches",
    "rserve_encoder_outstanding_tokens",
    "rserve_embedding_rows_reserved",
    "rserve_driver_requests_running",
    "rserve_driver_requests_waiting",
    "rserve_driver_sequences_decoding",
    "rserve_driver_schedulable_tokens",
    "rserve_driver_micro_batches_in_flight",
    "rserve_driver_kv_blocks_used",
    "rserve_driver_tracker_requests",
    "rserve_driver_tracker_tokens",
    "rserve_driver_tracker_bytes",
)


def metrics(base_url: str) -> dict[str, float]:
    """The server's metrics without labels, by name."""
    with urllib.request.urlopen(f"{base_url}/metrics", timeout=60) as response:
        lines = response.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line and line[0] != "#" and "{" not in line)
    return {name: float(value) for name, value in pairs}


def held(base_url: str) -> dict[str, float]:
    """What is not at rest; empty for an idle server."""
    values = metrics(base_url)
    return {name: values[name] for name in RESTS_AT_ZERO if values.get(name)}


def wait_until_idle(base_url: str, timeout_s: float) -> dict[str, float]:
    """What the server still holds after at most this time; empty when it came to rest."""
    deadline = time.monotonic() + timeout_s
    while (left := held(base_url)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


@dataclass(frozen=True)
class ProcessState:
    """One process: resident memory in KiB, open descriptors, mapped anonymous shared memory segments."""

    name: str
    rss_kib: int
    descriptors: int
    shared: int


def descendants(pid: int) -> list[int]:
    """All processes below one; none when it has ended."""
    return [found for found in process_tree(pid) if found != pid]


def processes(root: int) -> dict[str, ProcessState]:
    """A server and its children, by name (two of one name are numbered)."""
    found: dict[str, ProcessState] = {}
    names: Counter[str] = Counter()
    for pid in (root, *descendants(root)):
        try:
            state = _state(pid)
        except OSError:
            continue
        names[state.name] += 1
        found[state.name if names[state.name] == 1 else f"{state.name}.{names[state.name]}"] = state
    return found


def _state(pid: int) -> ProcessState:
    folder = Path(f"/proc/{pid}")
    name = (folder / "comm").read_text().strip()
    status = (folder / "status").read_text().splitlines()
    rss = sum(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
    shared = sum("/memfd:" in line for line in (folder / "maps").read_text().splitlines())
    return ProcessState(name, rss, len(os.listdir(folder / "fd")), shared)
