"""Measured and simulated points side by side, as a Markdown table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.results import Line, rate_of

QUANTITIES = {
    "mean_ttft_ms": "mean TTFT (ms)",
    "median_ttft_ms": "median TTFT (ms)",
    "input_throughput": "tokens/s",
}
SHORT = dict(zip(QUANTITIES, ("mean", "median", "tokens/s")))
LIMIT = 0.15


def table(pairs: Sequence[tuple[Line, Line]], title: str) -> str:
    """A row for each point.

    A cell holds measured, simulated, simulated / measured as calibrated; then this ratio where stage and
    encoder are simulated at the speed they had, see `slowness`.
    """
    limit = f"within {LIMIT:.0%}"
    head = (
        "scheme",
        "load",
        "requests/s",
        "slowness of stage, encoder",
        *QUANTITIES.values(),
        limit,
        f"{limit} at that speed",
    )
    rows = [title, "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for measured, simulated in pairs:
        ratios = {name: simulated[name] / measured[name] for name in QUANTITIES}
        scaled = {name: simulated[f"{name}_scaled"] / measured[name] for name in QUANTITIES}
        cells = [measured["scheme"], f"{measured['load']:g}", f"{rate_of(measured):.2f}"]
        cells.append(f"{_slowness(simulated, 'stage')}, {_slowness(simulated, 'encoder')}")
        cells += [
            f"{measured[name]:.0f} / {simulated[name]:.0f} = {ratios[name]:.2f}; {scaled[name]:.2f}"
            for name in QUANTITIES
        ]
        rows.append("| " + " | ".join([*cells, _verdict(ratios), _verdict(scaled)]) + " |")
    return "\n".join([*rows, ""])


def _slowness(line: Line, rank: str) -> str:
    """Of the whole point, and of its slowest and fastest quarter."""
    quarters = line[f"{rank}_slowness_of_quarters"]
    return f"{line[f'{rank}_slowness']:.2f} ({min(quarters):.2f} to {max(quarters):.2f})"


def _verdict(ratios: Mapping[str, float]) -> str:
    outside = [SHORT[name] for name, ratio in ratios.items() if abs(ratio - 1) > LIMIT]
    return "not: " + ", ".join(outside) if outside else "yes"
