"""What a GPU check found: rows that are printed at once, kept for the table, and written as result lines."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.results import append_line, current_commit


@dataclass(frozen=True)
class Row:
    """A check (passed is True or False) or a measurement (passed is None, or whether its goal was met)."""

    section: str
    name: str
    value: float | None
    unit: str
    passed: bool | None = None
    note: str = ""

    def shown(self) -> str:
        """One line of the table."""
        mark = {True: "ok", False: "FAILED", None: ""}[self.passed]
        value = "" if self.value is None else f"{self.value:.4g}"
        return f"{self.section:10} {self.name:44} {value:>10} {self.unit:10} {mark:7} {self.note}".rstrip()


@dataclass
class Report:
    """Rows so far; `deadline` is the time on `time.monotonic` at which no further section starts."""

    hardware: str
    path: Path | None
    deadline: float
    rows: list[Row] = field(default_factory=list)
    is_goal: set[str] = field(default_factory=set)

    @property
    def seconds_left(self) -> float:
        """Until the deadline."""
        return self.deadline - time.monotonic()

    def check(self, section: str, name: str, passed: bool, note: str = "") -> None:
        """Something that must hold."""
        self._add(Row(section, name, None, "", passed, note))

    def bounded(self, section: str, name: str, error: float, limit: float) -> None:
        """A difference that must stay below a limit; NaN does not."""
        self._add(Row(section, name, error, "error", error < limit, f"limit {limit:g}"))

    def measure(self, section: str, name: str, value: float, unit: str, note: str = "") -> None:
        """A number."""
        self._add(Row(section, name, value, unit, None, note))

    def goal(self, section: str, name: str, share: float, wanted: float) -> None:
        """A share of what is possible, with a goal; missing it does not fail the run."""
        self.is_goal.add(name)
        self._add(Row(section, name, 100 * share, "%", share >= wanted, f"goal {100 * wanted:.0f} %"))

    def skip(self, section: str, name: str, reason: str) -> None:
        """Something that was not run, which the table must not hide."""
        self._add(Row(section, name, None, "", None, f"NOT RUN: {reason}"))

    @property
    def failed(self) -> list[Row]:
        """Checks that do not hold."""
        return [row for row in self.rows if row.passed is False and row.name not in self.is_goal]

    def table(self) -> str:
        """All rows."""
        return "\n".join(row.shown() for row in self.rows)

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        print(row.shown(), flush=True)
        if self.path is not None:
            line = {
                "experiment": "gpu_check",
                "section": row.section,
                "name": row.name,
                "value": None if row.value is None or math.isnan(row.value) else row.value,
                "unit": row.unit,
                "passed": row.passed,
                "note": row.note,
                "hardware": self.hardware,
                "source": "measured",
                "commit": current_commit(),
            }
            append_line(self.path, line)
