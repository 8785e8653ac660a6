"""Measures what docs/reliability.md says: load, faults, bad input, memory.

`python -m benchmarks.reliability [--parts load faults memory suites] [--soak-requests N]`. Each part prints
its result as it ends; what earlier runs measured stays in the results file and on the page.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from benchmarks.crowd import CrowdPlan, chat, crowd
from benchmarks.inside import descendants, processes, wait_until_idle
from benchmarks.results import current_commit
from benchmarks.servers import Server, ServerPlan, running
from benchmarks.soak import soak

CROWDS = (1, 32, 200, 1000)
FLAGS = ("--scheme", "rserve", "--encoders", "2", "--num-kv-blocks", "256", "--encoder-timeout", "3")
PLAN = ServerPlan("tiny", (*FLAGS, "--encoder-restarts", "100", "--embedding-gib", "0.0005"))
SOAK_PLAN = ServerPlan("tiny", ("--scheme", "rserve", "--kv-cache-gib", "0.1"))
SUITES = (
    ("encoders lost, clients gone, ranks dead", ("tests/faults",)),
    ("encoders that drop, duplicate, reorder, delay, fail, die", ("tests/rserve/test_router.py",)),
    ("one contract for both channels", ("tests/rserve/test_channel.py",)),
    ("20,000 files and messages, made by chance", ("tests/multimodal/test_fuzz.py",)),
    ("any call that OpenAPI allows, echo engine", ("tests/entrypoints/test_schema.py",)),
    ("the official client, any call, real engine", ("tests/reliability/test_conformance.py",)),
    ("content, images, fetching", ("tests/multimodal", "--deselect", "tests/multimodal/test_fuzz.py")),
    ("HTTP: validation, errors, disconnects", ("tests/entrypoints", "-m", "not slow")),
)
ABOUT = (
    "Made by `python -m benchmarks.reliability` with the `tiny` model on a small machine. Times depend "
    "on the machine and what else it does; how requests end does not."
)
PARTS = {
    "load": (
        "Load: a quarter of the clients vanish at random moments",
        f"`{PLAN.shown}`; requests with 0 to 2 distinct images, half of them streaming, all sent at once. "
        "“Left behind” are gauges of `/metrics` that should be zero: KV blocks, tracker tokens and bytes, "
        "queues, pixels, embedding memory. “Text after”: time of a small text request afterwards.",
    ),
    "faults": (
        "Encoders killed and stalled under load",
        "Each round stops one of two encoders, sends eight requests with two images, then kills it or leaves "
        "it to the server's own watch (`--encoder-timeout 3`).",
    ),
    "memory": (
        "Memory",
        f"`python -m benchmarks.soak` (`{SOAK_PLAN.shown}`): every request has an image of its own.",
    ),
    "suites": ("Faults and bad input in the test suites", "Run by the script, slow tests included."),
}


def _row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def load_table(server: Server) -> list[str]:
    """One row per crowd: how its requests ended and what stayed."""
    heads = ("clients", "answered", "went away", "failed", "no end", "seconds", "left behind", "text after")
    rows = [_row(heads), _row(["---"] * len(heads))]
    for num in CROWDS:
        report = asyncio.run(crowd(server.base_url, CrowdPlan(num, patience_s=max(1.0, num / 50), seed=num)))
        left = wait_until_idle(server.base_url, 60)
        seconds = timed(server.base_url, chat([], 4, text="Hello"))
        failed = sum(report.errors.values())
        ends = (num, report.answered, report.vanished, failed, report.hung, f"{report.seconds:.1f}")
        rows.append(_row((*ends, left or "nothing", f"{1000 * seconds:.0f} ms")))
        print(rows[-1], flush=True)
    return rows


def fault_table(server: Server, rounds: int = 5) -> list[str]:
    """An encoder killed, then one stalled, while requests with images run: how long an answer takes."""
    heads = ("fault", "times", "requests", "answered", "longest answer", "longest text answer meanwhile")
    rows = [_row(heads), _row(["---"] * len(heads))]
    for name, number in (("kill -9", signal.SIGKILL), ("SIGSTOP, `--encoder-timeout 3`", signal.SIGSTOP)):
        answered, longest, text = 0, 0.0, 0.0
        for round_ in range(rounds):
            found, slowest, meanwhile = _with_fault(server, number, round_)
            answered, longest, text = answered + found, max(longest, slowest), max(text, meanwhile)
            _wait_healthy(server.base_url)
        ends = (name, rounds, 8 * rounds, answered, f"{longest:.1f} s", f"{1000 * text:.0f} ms")
        rows.append(_row(ends))
        print(rows[-1], flush=True)
    return rows


def _with_fault(server: Server, number: int, round_: int) -> tuple[int, float, float]:
    """Eight requests with two images; their encoder is hit while it holds them."""
    victim = f"encoder{round_ % 2}"
    pid = next(p for p in descendants(server.process.pid) if _comm(p) == victim)
    os.kill(pid, signal.SIGSTOP)
    times: list[float] = []
    bodies = [chat([90_000 + round_ * 100 + i * 2, 90_001 + round_ * 100 + i * 2], 8) for i in range(8)]
    threads = [threading.Thread(target=lambda b=b: times.append(timed(server.base_url, b))) for b in bodies]
    for thread in threads:
        thread.start()
    meanwhile = timed(server.base_url, chat([], 4, text="Hello"))
    if number == signal.SIGKILL:
        with contextlib.suppress(ProcessLookupError):  # the server's own watch was quicker
            os.kill(pid, number)
    for thread in threads:
        thread.join()
    good = [seconds for seconds in times if seconds >= 0]
    return len(good), max(good, default=0.0), meanwhile


def timed(base_url: str, body: dict[str, object]) -> float:
    """Seconds for one answer; -1 when it failed."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(
        f"{base_url}/v1/chat/completions", data, {"content-type": "application/json"}
    )
    started = time.perf_counter()
    try:
        urllib.request.urlopen(request, timeout=300).read()
    except (urllib.error.URLError, OSError):
        return -1.0
    return time.perf_counter() - started


def suite_table() -> list[str]:
    """The test suites that inject faults and bad input, run now."""
    rows = [_row(("what is tried", "command", "result", "seconds")), _row(["---"] * 4)]
    for what, paths in SUITES:
        started = time.perf_counter()
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths]
        done = subprocess.run(command, capture_output=True, text=True)
        lines = done.stdout.strip().splitlines()
        result = (lines[-1] if lines else "no output").strip("= ").partition(" in ")[0]
        seconds = f"{time.perf_counter() - started:.0f}"
        rows.append(_row((what, f"`pytest {' '.join(paths)}`", result, seconds)))
        print(rows[-1], flush=True)
    return rows


def measure_load() -> str:
    """Crowds, and what they leave."""
    with running(PLAN) as server:
        asyncio.run(crowd(server.base_url, CrowdPlan(32, seed=98)))
        wait_until_idle(server.base_url, 60)
        before = processes(server.process.pid)
        rows = load_table(server)
        after = processes(server.process.pid)
    if before.keys() != after.keys():
        changes = f"processes differ: {sorted(before)} and {sorted(after)}."
    else:
        pairs = [(name, before[name], after[name]) for name in before]
        changes = "; ".join(
            f"{name} {old.descriptors}/{old.shared} → {new.descriptors}/{new.shared}"
            for name, old, new in pairs
        )
    text = f"Open descriptors/shared segments of each process, before and after all crowds: {changes}"
    return "\n".join([*rows, "", text])


def measure_faults() -> str:
    """Encoders killed and stalled."""
    with running(PLAN) as server:
        asyncio.run(crowd(server.base_url, CrowdPlan(32, seed=97)))
        return "\n".join(fault_table(server))


def measure_memory(num_requests: int) -> str:
    """The soak."""
    found = soak(SOAK_PLAN, num_requests, 16)
    verdict = "held" if found.is_steady else "NOT held"
    text = (
        f"{num_requests} requests with distinct images in {found.seconds:.0f} s, {found.failed} failed, "
        f"left behind: {found.left or 'nothing'}. Resident memory in MiB; the bound, +5 % between a fifth of "
        f"the requests and the last, is {verdict}."
    )
    print(found.table(), flush=True)
    return f"{text}\n\n{found.table()}"


def page(parts: dict[str, dict[str, str]]) -> str:
    """The report, of the parts measured so far."""
    lines = ["# Reliability, measured", "", ABOUT, ""]
    for name, (title, about) in PARTS.items():
        lines += [f"## {title}", "", about, ""]
        if name in parts:
            lines += [f"Measured {parts[name]['when']}, commit {parts[name]['commit']}.", ""]
            lines += [parts[name]["text"], ""]
        else:
            lines += ["Not measured yet.", ""]
    return "\n".join(lines)


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _wait_healthy(base_url: str, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"{base_url}/health", timeout=60) as response:
            if json.load(response)["status"] == "ok":
                return
        time.sleep(0.2)
    raise TimeoutError("the server did not become healthy again")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure parts, remember them, write the page."""
    parser = argparse.ArgumentParser(prog="benchmarks.reliability", description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--out", type=Path, default=Path("docs/reliability.md"))
    parser.add_argument("--results", type=Path, default=Path("results/reliability.json"))
    parser.add_argument("--soak-requests", type=int, default=5000)
    args = parser.parse_args(argv)
    measured = json.loads(args.results.read_text()) if args.results.exists() else {}
    measures = {
        "load": measure_load,
        "faults": measure_faults,
        "memory": lambda: measure_memory(args.soak_requests),
        "suites": lambda: "\n".join(suite_table()),
    }
    commit = current_commit()
    for name in args.parts:
        when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
        measured[name] = {"when": when, "commit": commit, "text": measures[name]()}
        args.results.parent.mkdir(parents=True, exist_ok=True)
        args.results.write_text(json.dumps(measured, indent=1))
        args.out.write_text(page(measured))
    print(f"wrote {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
