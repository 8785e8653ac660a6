"""The table of comparisons: quantity, paper, ours under each constant set, agree or differ, and why."""

from collections.abc import Mapping, Sequence

from .paper_quantities import ROWS
from .paper_results import PaperResults
from .paper_rows import Row, Values, agrees

HEADER = """# The paper's numbers and ours, simulated

Every run of section 4 through the production scheduler, on a simulated machine. Constants are not tuned to
make a row agree. Two values are 1K / 2K. A value agrees when percentages are within 5 points or a quarter of
the paper's value, factors and rates within 20 %; every value of a pair must agree.

Workload: two 1080p (1K) or 1440p (2K) images after a log-normal text of 3,000 tokens on average; Poisson
arrivals; one output token; token budget 2,048; as many micro-batches in flight as stages. Model 72B and H100
unless a row says otherwise. RServe uses one device more than gLLM, the encoder's, but for "equal devices".
Table 1 (answers) is measured, not simulated: see the evaluation.

"""


def render(by_set: Mapping[str, PaperResults], order: Sequence[Row] = ROWS) -> str:
    """The whole page in Markdown."""
    names = list(by_set)
    lines = [
        "| figure | quantity | paper | " + " | ".join(names) + " | why it differs |",
        "|---" * (len(names) + 4) + "|",
    ]
    for row in order:
        values = [row.compute(results) for results in by_set.values()]
        cells = [_cell(value, row) for value in values]
        differs = row.paper and not all(_agree(value, row) for value in values)
        why = row.why if differs or not row.paper else ""
        columns = [row.figure, row.quantity, _text(row.paper, row.unit) or "—", *cells, why]
        lines.append(f"| {' | '.join(columns)} |")
    return HEADER + "\n".join(lines) + "\n"


def _agree(values: Values, row: Row) -> bool:
    return all(agrees(ours, paper, row.unit) for ours, paper in zip(values, row.paper))


def _cell(values: Values, row: Row) -> str:
    text = _text(values, row.unit)
    if not row.paper:
        return text
    return f"{text} {'agrees' if _agree(values, row) else '**differs**'}"


def _text(values: Values, unit: str) -> str:
    match unit:
        case "yes":
            parts = ["yes" if value else "no" for value in values]
            return " / ".join(parts)
        case "%":
            return " / ".join(
                f"{value:+.0f}" if abs(value) >= 10 else f"{value:+.1f}" for value in values
            ) + (" %" if values else "")
        case "x":
            return " / ".join(f"{value:.2f}" for value in values) + ("×" if values else "")
        case _:
            return " / ".join(f"{value:.0f}" for value in values)
