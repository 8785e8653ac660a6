"""A result line as a table for people."""

from __future__ import annotations

from benchmarks.results import Line

WIDTH = 60
LATENCIES = (
    ("e2e_latency", "End-to-end latency"),
    ("ttft", "Time to first token"),
    ("tpot", "Time per output token (without the first)"),
    ("itl", "Inter-token latency"),
)


def format_report(line: Line) -> str:
    """The numbers of one run, failures and their reasons first to be seen."""
    rows = [_title("Serving benchmark result")]
    rows += [_row(label, line[name]) for label, name in _HEAD if name in line]
    if line["slo_attainment"] is not None:
        limits = ", ".join(f"{name} {limit:g} ms" for name, limit in line["slo"].items())
        rows.append(_row(f"SLO attainment ({limits}):", f"{line['slo_attainment']:.1%}"))
    for name, title in LATENCIES:
        if line[f"mean_{name}_ms"] is not None:
            rows.append(_title(title, "-"))
            rows += [
                _row(f"{part.capitalize()} (ms):", line[f"{part}_{name}_ms"])
                for part in ("mean", "median", "std", "p90", "p95", "p99")
            ]
    if line["failed"]:
        rows.append(_title("FAILED REQUESTS", "!"))
        rows += [f"{count:>6} × {reason}" for reason, count in line["errors_by_reason"].items()]
    return "\n".join([*rows, "=" * WIDTH])


_HEAD = (
    ("Backend:", "backend"),
    ("Workload:", "workload"),
    ("Request rate (requests/s):", "request_rate"),
    ("Max concurrency:", "max_concurrency"),
    ("Successful requests:", "completed"),
    ("Failed requests:", "failed"),
    ("Duration (s):", "duration"),
    ("Total input tokens:", "total_input_tokens"),
    ("Total input text tokens:", "total_input_text_tokens"),
    ("Total input vision tokens:", "total_input_vision_tokens"),
    ("Total output tokens:", "total_output_tokens"),
    ("Request throughput (requests/s):", "request_throughput"),
    ("Input throughput (tokens/s):", "input_throughput"),
    ("  of text:", "input_text_throughput"),
    ("  of images:", "input_vision_throughput"),
    ("Output throughput (tokens/s):", "output_throughput"),
    ("Total throughput (tokens/s):", "total_throughput"),
    ("Concurrency:", "concurrency"),
    ("Largest client lag (ms):", "max_client_lag_ms"),
)


def _title(text: str, fill: str = "=") -> str:
    return f" {text} ".center(WIDTH, fill)


def _row(label: str, value: object) -> str:
    shown = f"{value:.2f}" if type(value) is float else str(value)
    return f"{label:<42}{shown:>18}"
