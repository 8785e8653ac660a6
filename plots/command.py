"""The command line of every figure: read result lines, draw, and say what was written."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.results import Line, read_lines

Draw = Callable[[Sequence[Line], Path], list[Path]]


def draw_command(draw: Draw, argv: list[str] | None = None) -> int:
    """Draw one figure from `--results` into `--out`; 1 when the lines for it are missing."""
    args = command_parser().parse_args(argv)
    paths = draw(read_lines([args.results]), args.out or args.results / "figures")
    for path in paths:
        print(path)
    if not paths:
        print(f"{args.results} holds no lines for this figure", file=sys.stderr)
    return 0 if paths else 1


def command_parser() -> argparse.ArgumentParser:
    """`--results` and `--out`."""
    parser = argparse.ArgumentParser(description="Draw a figure from result lines.")
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="folder of *.jsonl (default %(default)s)"
    )
    parser.add_argument("--out", type=Path, help="folder for the figures (default: RESULTS/figures)")
    return parser
