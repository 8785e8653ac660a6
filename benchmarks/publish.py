"""The small committed set: tables and figures of one run, in docs/results and docs/performance.md.

    python -m benchmarks.publish --results results

docs/performance.md has pairs of comments, `<!-- table: NAME.md -->` and `<!-- end -->`; what stands between
them is replaced by that file of the results folder, where it exists.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.results import current_commit, hardware_name
from benchmarks.servers import ROOT

TABLES = ("*.md", "*/*.md")
FIGURES = (
    "first_requests",
    "overlap_*",
    "fig02_*clean-h100",
    "fig1[0-9]_*clean-h100",
    "fig10",
    "fig16_*clean-h100",
    "fig20_measured*",
    "fig20_simulated-clean-h100",
    "fig21_*clean-a100*",
    "table1_*",
    "simulated*",
)
_SLOT = re.compile(r"(<!-- table: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def main(argv: list[str] | None = None) -> int:
    """Copy and fill in; says what it wrote."""
    parser = argparse.ArgumentParser(prog="publish", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder (default %(default)s)")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder (default %(default)s)")
    args = parser.parse_args(argv)
    target = args.docs / "results"
    copied = copy(args.results, target)
    (target / "README.md").write_text(listing(copied), encoding="utf-8")
    page = args.docs / "performance.md"
    page.write_text(fill(page.read_text(encoding="utf-8"), args.results), encoding="utf-8")
    print(f"{len(copied)} files in {target}; tables in {page}")
    return 0


def copy(results: Path, target: Path) -> list[Path]:
    """Replace the set by the tables, and the figures as PNG, of a results folder.

    The table of a folder inside has the folder in its name: vllm/peers.md becomes vllm-peers.md.
    """
    if target.exists():
        shutil.rmtree(target)
    target.mkdir(parents=True)
    tables = {path for pattern in TABLES for path in results.glob(pattern)}
    names = {path: "-".join(path.relative_to(results).parts) for path in tables}
    names |= {path: path.name for name in FIGURES for path in (results / "figures").glob(f"{name}.png")}
    copied = []
    for path in sorted(names):
        shutil.copy(path, target / names[path])
        copied.append(target / names[path])
    return copied


def listing(copied: Sequence[Path]) -> str:
    """What the set is, and all of it on one page."""
    rows = [
        "# Results of one run",
        "",
        f"Commit {current_commit()}, {hardware_name()}; made by `bash benchmarks/run_all.sh` and "
        "`python -m benchmarks.publish`. Each title says what is measured and what is simulated.",
        "",
    ]
    rows += [f"- [{path.name}]({path.name})" for path in copied if path.suffix == ".md"]
    rows += ["", *(f"![{path.stem}]({path.name})" for path in copied if path.suffix == ".png"), ""]
    return "\n".join(rows)


def fill(text: str, results: Path) -> str:
    """Put tables between their comments; slots whose file is missing keep what they have."""

    def put(slot: re.Match[str]) -> str:
        path = results / slot.group(2)
        if not path.exists():
            return slot.group(0)
        return f"{slot.group(1)}{path.read_text(encoding='utf-8').strip()}\n{slot.group(4)}"

    return _SLOT.sub(put, text)


if __name__ == "__main__":
    sys.exit(main())
