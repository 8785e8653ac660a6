"""Figure 20 on this machine: the overlap run has exactly its setting."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Protocol

from benchmarks import results

SCHEMES = ("gllm-epd", "rserve")


class HasOut(Protocol):
    """Anything with a results folder."""

    @property
    def out(self) -> Path: ...


def copy_lines(options: HasOut) -> None:
    """Write fig20-measured.jsonl anew from overlap.jsonl: one LLM device and one encoder device, Poisson."""
    path = options.out / "fig20-measured.jsonl"
    path.unlink(missing_ok=True)
    lines = results.read_lines([options.out / "overlap.jsonl"])
    for line in results.select(lines, experiment="overlap", scheme=SCHEMES, max_concurrency=None):
        if math.isfinite(results.rate_of(line)) and not line["failed"]:
            kept = {name: value for name, value in line.items() if name != "bound_ttft_ms"}
            results.append_line(path, kept | {"experiment": "fig20"})
