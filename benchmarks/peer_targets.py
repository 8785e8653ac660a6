"""What the same requests can be sent to: a server over HTTP, or transformers in a process of its own."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from benchmarks.alternate import run
from benchmarks.client import BenchSpec, RequestRecord
from benchmarks.servers import ROOT, Server
from benchmarks.workloads import Prompt

Measured = tuple[list[RequestRecord], float]
"""Records of requests sent together, and the seconds until all were answered."""


class Target(Protocol):
    """One engine under test."""

    name: str

    def ask(self, prompts: Sequence[Prompt]) -> Measured:
        """Send all prompts at once; returns when all are answered."""
        ...

    def cpu_seconds(self) -> float:
        """CPU time used so far; 0 where unknown."""
        ...


class HttpTarget:
    """Any OpenAI-compatible server."""

    def __init__(self, name: str, base_url: str, backend: str, server: Server | None = None) -> None:
        self.name = name
        self._spec = BenchSpec(
            base_url.rstrip("/").removesuffix("/v1"),
            prompts=[],
            backend=backend,
            request_rate=math.inf,
            warmup_requests=0,
            progress=False,
            timeout_s=3600,
        )
        self._server = server

    def ask(self, prompts: Sequence[Prompt]) -> Measured:
        result = run(replace(self._spec, prompts=prompts))
        return list(result.records), result.duration

    def cpu_seconds(self) -> float:
        return self._server.cpu_seconds() if self._server else 0.0


class TransformersTarget:
    """transformers' generate, requests that come together as one batch."""

    def __init__(self, folder: Path, dtype: str, threads: int) -> None:
        self.name = "transformers"
        command = [sys.executable, "-m", "benchmarks.transformers_peer", str(folder)]
        variables = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        self._process = subprocess.Popen(
            [*command, "--dtype", dtype, "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env={**os.environ, **variables},
        )
        self._read()

    def ask(self, prompts: Sequence[Prompt]) -> Measured:
        assert self._process.stdin is not None
        request = {
            "messages": [prompt.messages() for prompt in prompts],
            "output_len": prompts[0].output_len,
        }
        start = time.perf_counter()
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        duration = time.perf_counter() - start
        records = [
            RequestRecord(
                index,
                0.0,
                ttft=answer["ttfts"][index],
                latency=answer["latencies"][index],
                prompt_tokens=answer["prompt_tokens"][index],
                output_tokens=prompt.output_len,
                vision_tokens=0,
            )
            for index, prompt in enumerate(prompts)
        ]
        return records, duration

    def cpu_seconds(self) -> float:
        return 0.0

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"transformers ended with code {self._process.wait()}")
        return json.loads(line)
