"""Draw every figure that the result lines allow: `python -m plots --results results`."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.results import read_lines
from plots import (
    fig02,
    fig10,
    fig12,
    fig13,
    fig14,
    fig15,
    fig16,
    fig17,
    fig18,
    fig19,
    fig20,
    fig21,
    table1,
)
from plots.command import Draw, command_parser

FIGURES: dict[str, Draw] = {
    "fig02": fig02.draw,
    "fig12": fig12.draw,
    "fig13": fig13.draw,
    "fig14": fig14.draw,
    "fig15": fig15.draw,
    "fig16": fig16.draw,
    "fig17": fig17.draw,
    "fig18": fig18.draw,
    "fig19": fig19.draw,
    "fig20": fig20.draw,
    "fig21": fig21.draw,
    "table1": table1.draw,
}


def draw_all(results: Path, out_dir: Path, only: list[str] | None = None) -> dict[str, list[Path]]:
    """Draw the figures named in `only` (None: all); figures without lines have an empty list."""
    lines = read_lines([results])
    wanted = only or ["fig10", *FIGURES]
    drawn = {name: FIGURES[name](lines, out_dir) for name in FIGURES if name in wanted}
    if "fig10" in wanted:
        drawn["fig10"] = fig10.draw_folder(results / "traces", out_dir)
    return dict(sorted(drawn.items()))


def main(argv: list[str] | None = None) -> int:
    """Command line; 2 for an unknown figure."""
    parser = command_parser()
    parser.add_argument("--only", help="figures to draw, separated by commas, such as fig12,table1")
    args = parser.parse_args(argv)
    only = args.only.split(",") if args.only else None
    unknown = sorted(set(only or ()) - {"fig10", *FIGURES})
    if unknown:
        print(f"no figure {', '.join(unknown)}; there are fig10, {', '.join(FIGURES)}", file=sys.stderr)
        return 2
    for name, paths in draw_all(args.results, args.out or args.results / "figures", only).items():
        pictures = [str(path) for path in paths if path.suffix == ".png"]
        print(f"{name}: {', '.join(pictures) or 'no lines'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
