"""The results as a terminal table, as Markdown and as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.measure import Measured
from benchmarks.rows import Row

HEAD = ("row", "median", "spread", "target", "met", "GMAC/s", "mmasim", "times")

#: What stands around the table in a Markdown file, and around a table of ``--ratios``.
MARKS = ("<!-- python -m benchmarks --markdown: from here -->", "<!-- to here -->")
RATIOS = ("<!-- python -m benchmarks --ratios --markdown: from here -->", "<!-- to here -->")


@dataclass(frozen=True)
class Result:
    """A row, what was measured (or why not), and mmasim's GMAC/s on its instruction."""

    row: Row
    measured: Measured | None
    why_not: str = ""
    peer_rate: float | None = None

    @property
    def met(self) -> str:
        """ "aim", "yes", "no", or "" where nothing is asked or nothing was measured."""
        row, m = self.row, self.measured
        limit = row.at_least if row.at_least is not None else row.at_most
        if m is None or limit is None:
            return ""
        sign = 1 if row.at_least is not None else -1
        if row.aim is not None and sign * m.value >= sign * row.aim:
            return "aim"
        return "yes" if sign * m.value >= sign * limit else "no"

    @property
    def times(self) -> float | None:
        """How many times faster than mmasim, product for product."""
        rate = self.measured and self.measured.rate
        return rate / self.peer_rate if rate and self.peer_rate else None

    def to_dict(self) -> dict[str, Any]:
        m = self.measured
        return {
            "group": self.row.group,
            "name": self.row.name,
            "unit": self.row.unit,
            "median": m and m.value,
            "low": m and m.low,
            "high": m and m.high,
            "gmacs": m and m.rate,
            "at_least": self.row.at_least,
            "at_most": self.row.at_most,
            "aim": self.row.aim,
            "met": self.met or None,
            "mmasim_gmacs": self.peer_rate,
            "times_mmasim": self.times,
            "why_not": self.why_not or None,
        }

    def cells(self) -> tuple[str, ...]:
        row, m = self.row, self.measured
        target = ""
        if row.at_least is not None or row.at_most is not None:
            bound = f"≥ {row.at_least:g}" if row.at_least is not None else f"≤ {row.at_most:g}"
            target = bound + (f", aim {row.aim:g}" if row.aim is not None else "")
        if m is None:
            return (row.name, self.why_not, "", target, "", "", "", "")
        return (
            row.name,
            f"{_number(m.value)} {row.unit}",
            f"{_number(m.low)} – {_number(m.high)}",
            target,
            self.met,
            _number(m.rate),
            _number(self.peer_rate),
            _number(self.times),
        )


def _number(x: float | None) -> str:
    """Three digits."""
    if x is None:
        return ""
    return f"{x:,.0f}" if abs(x) >= 100 else f"{x:#.3g}"


def to_dict(
    about: dict[str, Any], settings: dict[str, Any], results: Sequence[Result]
) -> dict[str, Any]:
    """Everything, for ``--json``."""
    return {"machine": about, "settings": settings, "rows": [r.to_dict() for r in results]}


def _heading(about: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    how = (
        f"medians of {settings['repetitions']}, spread is lowest – highest; "
        f"products of {settings['n']}³"
    )
    if settings["quick"]:
        how += "; a QUICK run, too small to judge by"
    return [*machine.sentences(about), how]


def show(
    console: Console, about: dict[str, Any], settings: dict[str, Any], results: Sequence[Result]
) -> None:
    """The table in a terminal."""
    colour = {"aim": "bold green", "yes": "green", "no": "red", "": ""}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    for i, title in enumerate(HEAD):
        table.add_column(title, justify="right" if i in (2, 5, 6, 7) else "left")
    group = ""
    for result in results:
        if group and result.row.group != group:
            table.add_section()
        group = result.row.group
        table.add_row(*result.cells(), style=colour[result.met])
    for line in _heading(about, settings):
        console.print(line, style="dim", highlight=False)
    console.print(table)


def markdown(
    about: dict[str, Any], settings: dict[str, Any], results: Sequence[Result], columns: int
) -> str:
    """The table for a document, of the first so many columns."""
    rules = ("---", "---", "--:", "---", "---", "--:", "--:", "--:")
    lines = [*(f"{line}  " for line in _heading(about, settings)), ""]
    lines += [f"| {' | '.join(HEAD[:columns])} |", f"|{'|'.join(rules[:columns])}|"]
    lines += [f"| {' | '.join(r.cells()[:columns])} |" for r in results]
    return "\n".join(lines)


def around(path: Path, marks: tuple[str, str]) -> tuple[str, str]:
    """What stands before and after a table in a document, its marks included.

    Raises:
        OSError, ValueError: no such document, or it lacks the marks.
    """
    before, first, rest = path.read_text(encoding="utf-8").partition(marks[0])
    _, second, after = rest.partition(marks[1])
    if not first or not second:
        raise ValueError(f"{path} lacks the lines {marks[0]!r} and {marks[1]!r}")
    return before + first, second + after


def into(path: Path, text: str, marks: tuple[str, str]) -> None:
    """Put a table between a document's marks."""
    before, after = around(path, marks)
    path.write_text(f"{before}\n{text}\n{after}", encoding="utf-8")
