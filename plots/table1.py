"""Table 1: MMMU scores of all schemes and other engines, and how far their answers agree (§4.4.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import Line, select
from evaluation.mmmu_score import agreement
from plots import paper, style
from plots.command import draw_command
from plots.lines import Group, curve_name, groups, workload_title

REFERENCES = ("transformers", "gLLM")  # whose answers the others are compared with: the first that is there
COLUMNS = ("Framework", "Score", "Paper", "Unread", "Agreement")
WIDTHS = (0.28, 0.16, 0.16, 0.18, 0.22)


def draw(lines: Sequence[Line], out_dir: Path) -> list[Path]:
    """One table for each group and workload; returns the files written."""
    return [
        path
        for group in groups(lines, "table1")
        for workload in group.workloads()
        for path in _draw(group, workload, out_dir)
    ]


def table_rows(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Rows of the table, the latest line of each framework. Agreement is with the first of REFERENCES."""
    latest = {curve_name(line): line for line in lines}
    names = style.in_order(list(latest))
    reference = next((name for name in REFERENCES if name in latest), names[0])
    return [
        {
            "framework": name,
            "score": latest[name]["score"],
            "paper": paper.MMMU_SCORES.get(name) if _is_mmmu(latest[name]) else None,
            "num_questions": latest[name]["num_questions"],
            "unparsed_rate": latest[name]["unparsed_rate"],
            "agreement": _agreement(latest[name], latest[reference]),
            "agreement_with": reference,
        }
        for name in names
    ]


def _draw(group: Group, workload: str, out_dir: Path) -> list[Path]:
    rows = table_rows(select(group.lines, workload=workload))
    figure, (axis,) = style.new_figure(1, height=0.85 + 0.2 * len(rows))
    axis.axis("off")
    table = axis.table(
        [_cells(row) for row in rows],
        colLabels=COLUMNS,
        colWidths=WIDTHS,
        loc="center",
        cellLoc="center",
        edges="horizontal",
    )
    table.auto_set_font_size(False)
    table.set_fontsize(style.FONT)
    table.scale(1, 1.15)
    what = f"{max(row['num_questions'] for row in rows)} {workload_title(workload)} questions"
    style.title(
        figure, f"Table 1. Score on {what}\n{group.suffix}\nagreement with {rows[0]['agreement_with']}"
    )
    return style.save(figure, f"table1_{workload}_{group.slug}", rows, out_dir)


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
        row["framework"],
        f"{row['score']:.1f}",
        "–" if row["paper"] is None else f"{row['paper']:.1f}",
        f"{row['unparsed_rate']:.1%}",
        "–" if row["agreement"] is None else f"{row['agreement']:.1%}",
    ]


def _agreement(line: Line, reference: Line) -> float | None:
    return agreement(line.get("responses") or {}, reference.get("responses") or {})


def _is_mmmu(line: Line) -> bool:
    return str(line["workload"]).startswith("mmmu")


if __name__ == "__main__":
    raise SystemExit(draw_command(draw))
