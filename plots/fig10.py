"""Figure 10: the intra-request pipeline alone against both pipelines, from two traces (§3.3)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from plots.timeline import draw_traces

TRACES = (
    ("(a) RServe-intra: intra-request pipeline only", "fig10-rserve-intra.json"),
    ("(b) RServe: intra- and inter-request pipeline", "fig10-rserve.json"),
)


def draw_folder(traces: Path, out_dir: Path, suffix: str = "simulated, costs clean (H100)") -> list[Path]:
    """Draw the two traces of a folder; nothing when one is missing. suffix: where the traces come from."""
    paths = [(title, traces / name) for title, name in TRACES]
    if not all(path.exists() for _, path in paths):
        return []
    return draw_traces(paths, "fig10", out_dir, f"Figure 10. Where the time of each rank goes, {suffix}")


def main(argv: list[str] | None = None) -> int:
    """Command line: draw RESULTS/traces/fig10-*.json; 1 when they are missing."""
    parser = argparse.ArgumentParser(description="Draw Figure 10 from two traces.")
    parser.add_argument("--results", type=Path, default=Path("results"), help="default %(default)s")
    parser.add_argument("--out", type=Path, help="folder for the figure (default: RESULTS/figures)")
    args = parser.parse_args(argv)
    paths = draw_folder(args.results / "traces", args.out or args.results / "figures")
    for path in paths:
        print(path)
    if not paths:
        print(
            f"{args.results / 'traces'} holds no {' and '.join(name for _, name in TRACES)}", file=sys.stderr
        )
    return 0 if paths else 1


if __name__ == "__main__":
    raise SystemExit(main())
