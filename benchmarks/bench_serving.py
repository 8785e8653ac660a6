"""Benchmark a server: `python -m benchmarks.bench_serving --help`, the same as `rserve bench`."""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):  # run as a file: `python benchmarks/bench_serving.py`
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.client.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
