"""results/index.html: every figure with its caption and the command behind it, and every table."""

from __future__ import annotations

import csv
import html
from collections.abc import Sequence
from pathlib import Path

from benchmarks.experiments import Experiment
from benchmarks.results import current_commit, hardware_name

STYLE = """
body { font-family: sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
figure { margin: 1.5rem 0; border-top: 1px solid #ddd; padding-top: 1rem; }
img { max-width: 100%; } code { background: #f4f4f4; padding: 0 .2rem; overflow-wrap: anywhere; }
table { border-collapse: collapse; font-size: .85rem; }
td, th { border: 1px solid #ccc; padding: .2rem .4rem; }
"""
FIGURES = {
    "first_requests": "First requests to the tiny model.",
    "overlap": "TTFT on two cores: the language model on one, the encoder on the other.",
    "fig02": "Figure 2: latency of one request by resolution, and the encoder's part of it.",
    "fig10": "Figure 10: pipelines with and without inter-request parallelism.",
    "fig12": "Figure 12: TTFT against request rate.",
    "fig13": "Figure 13: throughput against request rate.",
    "fig14": "Figure 14: SLO attainment against request rate.",
    "fig15": "Figure 15: lengths of requests.",
    "fig16": "Figure 16: the embedding batch size C.",
    "fig17": "Figure 17: RServe against RServe-intra.",
    "fig18": "Figure 18: TTFT with tensor parallelism.",
    "fig19": "Figure 19: strict SLOs.",
    "fig20": "Figure 20: one LLM device and one encoder.",
    "fig21": "Figure 21: A100s.",
    "table1": "Table 1: scores.",
    "simulated": "The simulator, calibrated on this machine, against measured runs.",
}


def write(out: Path, experiments: Sequence[tuple[Experiment, list[list[str]]]]) -> Path:
    """Write the page; returns its path. Figures are linked, not embedded."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>RServe results</title>",
        f"<style>{STYLE}</style><h1>RServe: results</h1>",
        f"<p>Commit {html.escape(current_commit())}, this machine: {html.escape(hardware_name())}. Each "
        "title says whether a figure is measured (on which machine) or simulated (with which constants).</p>",
        "<h2>Figures</h2>",
        *(_figure(path, out, experiments) for path in sorted((out / "figures").glob("*.png"))),
        "<h2>Tables</h2>",
        *(_table(path) for path in sorted(out.glob("*.md"))),
        "<h2>Commands</h2>",
        *(_commands(experiment, commands) for experiment, commands in experiments),
        "</html>",
    ]
    path = out / "index.html"
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


def _figure(path: Path, out: Path, experiments: Sequence[tuple[Experiment, list[list[str]]]]) -> str:
    name = path.stem
    key = next(
        (key for key in FIGURES if name == key or name.startswith((f"{key}_", f"{key}-"))),
        "",
    )
    caption = html.escape(FIGURES.get(key, name))
    measured = "measured" in name or key in ("first_requests",)
    makers = [
        words
        for experiment, commands in experiments
        if key in experiment.figures and (experiment.name == "paper") != measured
        for words in commands
    ]
    shown = "; ".join(f"<code>python -m {html.escape(' '.join(words))}</code>" for words in makers)
    base = f"figures/{name}"
    files = " ".join(f'<a href="{base}.{kind}">{kind}</a>' for kind in ("png", "pdf", "csv"))
    return (
        f'<figure id="{name}"><img src="{base}.png" alt="{caption}">'
        f"<figcaption>{caption} {files}{_rows(path.with_suffix('.csv'))}<br>{shown}</figcaption></figure>"
    )


def _rows(path: Path) -> str:
    if not path.exists():
        return ""
    with open(path, newline="", encoding="utf-8") as file:
        return f" ({sum(1 for _ in csv.reader(file)) - 1} rows)"


def _table(path: Path) -> str:
    return f"<h3>{path.name}</h3>{markdown(path.read_text(encoding='utf-8'))}"


def markdown(text: str) -> str:
    """Headings, paragraphs and tables of our own Markdown files as HTML."""
    rows, inside = [], False
    for line in text.splitlines():
        is_row = line.startswith("|")
        if inside and not is_row:
            rows.append("</table>")
        if is_row and set(line) <= set("|-: "):
            continue
        if is_row:
            cells = [html.escape(cell.strip()) for cell in line.strip("|").split("|")]
            tag = "td" if inside else "th"
            rows.append(
                ("" if inside else "<table>")
                + "<tr>"
                + "".join(f"<{tag}>{c}</{tag}>" for c in cells)
                + "</tr>"
            )
        elif line.startswith("#"):
            rows.append(f"<h4>{html.escape(line.lstrip('# '))}</h4>")
        elif line.strip():
            rows.append(f"<p>{html.escape(line)}</p>")
        inside = is_row
    return "\n".join([*rows, "</table>" if inside else ""])


def _commands(experiment: Experiment, commands: list[list[str]]) -> str:
    shown = "".join(f"<li><code>python -m {html.escape(' '.join(words))}</code></li>" for words in commands)
    return f"<p>{html.escape(experiment.name)}: {html.escape(experiment.about)}</p><ul>{shown}</ul>"
