"""Pictures of traces: SVG, and pages of HTML around it.

`bitmma.panels` says what is drawn; this puts it on paper. A picture needs nothing from anywhere
else, and its text is text.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from typing import NamedTuple

from bitmma.notation import code_text, model_text
from bitmma.panels import Panel, Row, about, outcome, panels, power
from bitmma.reference import Trace

__all__ = ["THEMES", "Subject", "html_figures", "html_page", "svg"]

THEMES = ("auto", "light", "dark")

#: Columns of a panel beyond which runs of columns that say nothing are folded.
_COLUMNS = 64
#: Columns that are drawn at most, where all may be folded and below those that may not be; what
#: lies lower is only said in the row's title.
_MOST_COLUMNS, _MOST_BELOW = 132, 44
#: Columns beyond which they are narrow.
_WIDE_COLUMNS = 72
#: The shortest run worth folding.
_SHORTEST_FOLD = 6


# --- rows on paper --------------------------------------------------------------------------------

#: Light and dark: what is drawn how. Every entry is one CSS rule of the picture's classes.
_COLOURS: dict[str, tuple[str, str]] = {
    "bg": ("fill:#ffffff", "fill:#12171e"),
    "ink": ("fill:#1f2328", "fill:#e6edf3"),
    "dim": ("fill:#5f6873", "fill:#9aa5b1"),
    "mark": ("fill:#a8400c", "fill:#ffa96b"),
    "good": ("fill:#0f6b35", "fill:#5fd39b"),
    "rule": ("stroke:#cfd6de", "stroke:#343c47"),
    "bar": ("stroke:#cf4a0a;stroke-width:1.6", "stroke:#ff9e5e;stroke-width:1.6"),
    "pad": ("fill:#87919c", "fill:#657080"),
    "k1": ("fill:#1559ad", "fill:#77b5ff"), "K1": ("fill:#ffffff", "fill:#08182b"),
    "k0": ("fill:#cbdff8", "fill:#1e4068"), "K0": ("fill:#123f78", "fill:#c5dfff"),
    "x1": ("fill:#8d949d", "fill:#767f8a"), "X1": ("fill:#ffffff", "fill:#12171e"),
    "x0": ("fill:#e2e5e9", "fill:#2b323b"), "X0": ("fill:#5f6873", "fill:#a3adb8"),
    "s1": ("fill:#3d4855", "fill:#c6cfd9"), "S1": ("fill:#ffffff", "fill:#12171e"),
    "s0": ("fill:#d5dbe2", "fill:#3b4550"), "S0": ("fill:#28313b", "fill:#dfe6ed"),
    "r1": ("fill:#12733b", "fill:#53c78f"), "R1": ("fill:#ffffff", "fill:#06190f"),
    "r0": ("fill:#c8ead5", "fill:#17452d"), "R0": ("fill:#0c5029", "fill:#b5ecd0"),
}  # fmt: skip

_MONO = "ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace"
_SANS = "system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif"
_FONTS = (
    f"font:11px {_MONO}", {
        "h": f"font:600 16px {_SANS}", "p": f"font:12px {_SANS}", "b": f"font:600 12.5px {_SANS}",
        "a": f"font:10px {_SANS}", "d": f"font:600 14px {_SANS}", "c": "text-anchor:middle",
        "e": "text-anchor:end",
    },
)  # fmt: skip

#: Where a page says which theme it has, whatever the system's: Jupyter, VS Code, MkDocs Material.
_HOSTS = (
    ('[data-jp-theme-light="true"]', ".vscode-light", '[data-md-color-scheme="default"]'),
    ('[data-jp-theme-light="false"]', ".vscode-dark", '[data-md-color-scheme="slate"]'),
)

_LEGEND = (
    ("kept", "10", "enters the sum"),
    ("pad", "0", "padding"),
    ("cut", "10", "cut or rounded away"),
    ("sum", "10", "sum"),
    ("result", "10", "result"),
)

_SHADES = {"kept": "k", "cut": "x", "sum": "s", "result": "r"}


def _style(theme: str) -> str:
    """The rules that a picture needs; "auto" follows the page around it, else the system."""
    root = f".bitmma-{theme}"
    base, fonts = _FONTS
    rules = [f"{root} text{{{base}}}", *(f"{root} .{k}{{{v}}}" for k, v in fonts.items())]

    def colours(prefix: str, side: int) -> str:
        return "".join(f"{prefix} .{name}{{{c[side]}}}" for name, c in _COLOURS.items())

    rules.append(colours(root, theme == "dark"))
    if theme == "auto":
        rules.append(f"@media (prefers-color-scheme:dark){{{colours(root, 1)}}}")
        rules += [colours(f":is({','.join(h)}) {root}", i) for i, h in enumerate(_HOSTS)]
    return "".join(rules)


_CELL, _NARROW, _ROW, _GAP = 13.0, 9.5, 19, 26.0
_MARGIN = 20


class Subject(NamedTuple):
    """What is drawn: a trace, what computed it, and what stands behind it in a word or two."""

    trace: Trace
    title: str
    provenance: str


class _Columns:
    """Where the weights of a panel are drawn."""

    def __init__(self, panel: Panel) -> None:
        rows = [row for block in panel.blocks for row in (*block.terms, *block.sums)]
        weights = [w for row in rows for w in row.cells]
        weights += [m for m in panel.marks if weights and min(weights) <= m <= max(weights)]
        self.parts: list[list[int]] = []  # a weight, or the weights of a fold
        if weights:
            self.parts = [[w] for w in range(max(weights), min(weights) - 1, -1)]
        while len(self.parts) > _COLUMNS and self._fold(rows, panel):
            pass
        most = _MOST_COLUMNS
        if panel.whole is not None:
            most = _MOST_BELOW + sum(part[-1] >= panel.whole for part in self.parts)
        self.left_out = {w for part in self.parts[most:] for w in part}
        del self.parts[most:]
        self.width = _CELL if len(self.parts) <= _WIDE_COLUMNS else _NARROW
        self.x: dict[int, float] = {}
        self.folds: list[tuple[float, list[int]]] = []
        x = 0.0
        for part in self.parts:
            if len(part) == 1:
                self.x[part[0]] = x
                x += self.width
            else:
                self.folds.append((x, part))
                x += _GAP
        self.end = x

    def _fold(self, rows: Sequence[Row], panel: Panel) -> bool:
        """Fold the longest run of columns that are alike in every row; whether there was one."""

        def alike(part: list[int]) -> tuple[object, ...]:
            solid = panel.whole is not None and part[0] >= panel.whole
            if len(part) > 1 or solid:
                return (part[0],)  # nothing is like this
            return tuple(row.cells.get(part[0]) for row in rows)

        longest: list[list[int]] = []
        for _, run in groupby(self.parts, alike):
            found = list(run)
            if len(found) > len(longest):
                longest = found
        if len(longest) < _SHORTEST_FOLD:
            return False
        at = self.parts.index(longest[0])
        inner = [w for part in longest[1:-1] for w in part]
        self.parts[at + 1 : at + len(longest) - 1] = [inner]
        return True


def _number(x: float) -> str:
    return f"{x:.1f}".removesuffix(".0")


def _text(x: float, y: float, words: str, classes: str) -> str:
    return f'<text x="{_number(x)}" y="{_number(y)}" class="{classes}">{escape(words)}</text>'


def _mono(words: str) -> float:
    return 6.65 * len(words)


def _sans(words: str, size: float = 12) -> float:
    return 0.56 * size * len(words)


class _Sheet:
    """One trace's picture while it is drawn: elements, and how far down they reach."""

    def __init__(self, subject: Subject) -> None:
        trace, title, said = subject
        self.out: list[str] = []
        self.y = 0.0
        self.title, self.outcome = title, outcome(trace)
        self.said = model_text(trace.model) + (f" · {said}" if said else "")
        self.code = f"{trace.d_format} {code_text(trace.d_format, trace.result)}"
        self.panels = [(panel, _Columns(panel)) for panel in panels(trace)]
        blocks = [block for panel, _ in self.panels for block in panel.blocks]
        self.rows = [row for block in blocks for row in (*block.terms, *block.sums)]
        self.name = max((_mono(row.name) for row in self.rows), default=0)
        self.detail = max((_mono(row.detail) for row in self.rows), default=0)
        exponent = max((_mono(row.exponent) for row in self.rows), default=0)
        self.grid = _MARGIN + self.name + self.detail + exponent + 62
        notes = 14 + max((_mono(row.note) for row in self.rows), default=0)
        widths = [600 - _MARGIN, _sans(title, 20), _sans(self.outcome[0], 17) + 150]
        widths += [self.grid - _MARGIN + columns.end + notes for _, columns in self.panels]
        widths += [_sans(block.caption) for block in blocks]
        for panel, _ in self.panels:
            widths += [_sans(panel.heading, 15), *map(_sans, panel.words)]
            widths += [self._pitch(panel) * len(panel.table[0]) + 70] if panel.table else []
        self.width = 2 * _MARGIN + max(widths)
        self.about = textwrap.wrap(about(trace.model), int((self.width - 2 * _MARGIN) / 6.5))

    def draw(self, lines: int) -> _Sheet:
        """Everything from top to bottom, the panels below so many lines of explanation."""
        self._words(self.title, "h ink", 30)
        self._words(self.said, "p dim", 20)
        for line in self.about:
            self._words(line, "p ink", 18)
        self.y += 18 * (lines - len(self.about))
        for panel, columns in self.panels:
            self._panel(panel, columns)
        self.y += 10
        self._rule(self.y)
        self._words(self.outcome[0], "d good", 26)
        x = _MARGIN + _sans(self.outcome[0], 15) + 24
        self.out.append(_text(x, self.y, self.code, "dim"))
        if self.outcome[1]:
            self._words(self.outcome[1], "p dim", 20)
        self._legend({shade for row in self.rows for _, shade in row.cells.values()})
        self.y += 16
        return self

    def _words(self, words: str, classes: str, down: float, x: float = _MARGIN) -> None:
        self.y += down
        self.out.append(_text(x, self.y, words, classes))

    def _rule(self, y: float) -> None:
        self.out.append(
            f'<path class="rule" d="M{_MARGIN} {_number(y)}H{_number(self.width - _MARGIN)}"/>'
        )

    def _pitch(self, panel: Panel) -> float:
        return max(_mono(cell) for line in panel.table for cell in line[1:]) + 10

    def _panel(self, panel: Panel, columns: _Columns) -> None:
        self.out.append('<g class="panel">')
        self.y += 12
        self._rule(self.y)
        self._words(panel.heading, "b ink", 20)
        if panel.table:
            self._table(panel)
        for i, block in enumerate(panel.blocks):
            self.out.append('<g class="block">')
            if block.caption:
                self._words(block.caption, "p dim", 20)
            if not i and columns.parts:
                self._axis(columns, panel)
            self.y += 4
            for row in block.terms:
                self._row(row, columns, "term")
            if block.sums and block.terms and columns.parts:
                self._grid_rule(columns)
            for row in block.sums:
                self._row(row, columns, "sum")
            self.y += 4
            self.out.append("</g>")
        for words in panel.words:
            self._words(words, "p mark", 20)
        self.out.append("</g>")

    def _table(self, panel: Panel) -> None:
        self._words("Products of each group, exact", "p dim", 20)
        for line in panel.table:
            self.y += 17
            self.out.append(_text(_MARGIN, self.y, line[0], "dim"))
            for i, cell in enumerate(line[1:]):
                x = _MARGIN + 70 + (i + 1) * self._pitch(panel)
                self.out.append(_text(x, self.y, cell, "e dim" if cell == "0" else "e ink"))

    def _grid_rule(self, columns: _Columns) -> None:
        y = self.y + 2.5
        self.out.append(
            f'<path class="rule" d="M{_number(self.grid - 20)} {_number(y)}'
            f'H{_number(self.grid + columns.end)}"/>'
        )
        self.y += 5

    def _axis(self, columns: _Columns, panel: Panel) -> None:
        """Weights over the columns: the marked ones, then as many others as there is room for."""
        self.y += 17
        taken: list[float] = []
        for x, fold in columns.folds:
            taken.append(x + _GAP / 2)
            self.out.append(_text(self.grid + x + _GAP / 2, self.y, f"×{len(fold)}", "a c dim"))
        weights = [w for w in panel.marks if w in columns.x]
        weights += [w for w in columns.x if w % 8 == 0] + [max(columns.x), min(columns.x)]
        for w in dict.fromkeys(weights):
            x = columns.x[w] + columns.width / 2
            if all(abs(x - other) >= 30 for other in taken):
                taken.append(x)
                style = "ink" if w in panel.marks else "dim"
                self.out.append(_text(self.grid + x, self.y, power(w), f"a c {style}"))
        if any("×" in row.detail for row in panel.blocks[0].terms):
            made_of = "Σ a·b × scales" if panel.table else "a × b"
            self.out.append(_text(_MARGIN + self.name + 14, self.y, made_of, "a dim"))
        self.out.append(_text(self.grid - 30, self.y, "e", "a e dim"))

    def _row(self, row: Row, columns: _Columns, kind: str) -> None:
        top, base = self.y + 1.5, self.y + 13.5
        self.y += _ROW
        out = [f'<g class="row {kind}">', f"<title>{escape(row.about)}</title>"]
        x = float(_MARGIN)
        out.append(_text(x, base, row.name, "ink"))
        out.append(_text(x + self.name + 14, base, row.detail, "dim"))
        if row.exponent:
            out.append(_text(self.grid - 30, base, row.exponent, "e ink"))
        if row.sign:
            out.append(_text(self.grid - 13, base, row.sign, "c ink"))
        out += self._cells(row, columns, top, base)
        end = self.grid + columns.end
        if any(w in columns.left_out for w in row.cells):
            out.append(_text(end + 1, base, "…", "dim"))
        if row.unit is not None and row.unit in columns.x:
            at = self.grid + columns.x[row.unit] + columns.width
            y, down = _number(self.y - _ROW), _number(_ROW)
            out.append(f'<path class="bar" d="M{_number(at)} {y}v{down}"/>')
        if row.note:
            style = {"dim": "dim", "mark": "mark", "result": "good"}.get(row.note_style, "ink")
            out.append(_text(end + 14, base, row.note, style))
        self.out += [*out, "</g>"]

    def _cells(self, row: Row, columns: _Columns, top: float, base: float) -> Iterator[str]:
        """Squares, one path for all of a kind, and digits, one text for all of a kind."""
        squares: dict[str, list[str]] = {}
        digits: dict[str, list[tuple[float, str]]] = {}
        height = _ROW - 3
        items = [(columns.x[w], columns.width, w) for w in row.cells if w in columns.x]
        items += [(x, _GAP, fold[0]) for x, fold in columns.folds if fold[0] in row.cells]
        for x, width, w in sorted(items):
            digit, shade = row.cells[w]
            left = self.grid + x
            kind = "pad" if shade == "pad" else _SHADES[shade] + digit
            if shade != "pad":
                squares.setdefault(kind, []).append(
                    f"M{_number(left + 0.5)} {_number(top)}h{_number(width - 1)}v{height}"
                    f"h-{_number(width - 1)}z"
                )
            text = "⋯" if width == _GAP else digit
            digits.setdefault(kind, []).append((left + width / 2, text))
        for kind, paths in squares.items():
            yield f'<path class="{kind}" d="{"".join(paths)}"/>'
        for kind, found in digits.items():
            xs = " ".join(_number(x) for x, _ in found)
            colour = kind if kind == "pad" else kind.upper()
            yield (
                f'<text class="c {colour}" x="{xs}" y="{_number(base)}">'
                f"{''.join(text for _, text in found)}</text>"
            )

    def _legend(self, shades: set[str]) -> None:
        """What the colours mean, of those that the picture has."""
        x, self.y = float(_MARGIN), self.y + 24
        for shade, digits, words in _LEGEND:
            if shade not in shades:
                continue
            width = 13 * len(digits) + 5 + _sans(words, 9.5) + 14
            if x > _MARGIN and x + width > self.width:
                x, self.y = float(_MARGIN), self.y + 19
            at = x
            for digit in digits:
                if shade in _SHADES:
                    self.out.append(
                        f'<rect class="{_SHADES[shade]}{digit}" x="{_number(at)}" '
                        f'y="{_number(self.y - 11)}" width="12" height="14"/>'
                    )
                colour = f"{_SHADES[shade]}{digit}".upper() if shade in _SHADES else shade
                self.out.append(_text(at + 6, self.y, digit, f"c {colour}"))
                at += 13
            self.out.append(_text(at + 5, self.y, words, "a dim"))
            if shade == "cut":
                y = _number(self.y - 11)
                self.out.append(f'<path class="bar" d="M{_number(x - 1)} {y}v14"/>')
            x += width


def svg(subjects: Sequence[Subject], theme: str = "auto") -> str:
    """One picture of one trace or of several side by side.

    Args:
        theme: "light", "dark", or "auto": as the page around it says, else as the viewer's system.
    """
    if theme not in THEMES:
        raise ValueError(f"theme must be one of {', '.join(THEMES)}, not {theme!r}")
    sheets = [_Sheet(subject) for subject in subjects]
    lines = max(len(sheet.about) for sheet in sheets)
    sheets = [sheet.draw(lines) for sheet in sheets]
    gap = 12
    width = sum(sheet.width for sheet in sheets) + gap * (len(sheets) - 1)
    height = max(sheet.y for sheet in sheets)
    said = "; ".join(f"{s.title}: {outcome(s.trace)[0]}" for s in subjects)
    told = " ".join(
        f"{s.title}: {about(s.trace.model)} {'; '.join(filter(None, outcome(s.trace)))}."
        for s in subjects
    )
    size = f'width="{_number(width)}" height="{_number(height)}"'
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} '
        f'viewBox="0 0 {_number(width)} {_number(height)}" class="bitmma-{theme}" role="group">',
        f"<title>{escape(said)}</title>",
        f"<desc>{escape(told)}</desc>",
        f"<style>{_style(theme)}</style>",
        f'<rect class="bg" {size} rx="6"/>',
    ]
    x = 0.0
    for i, sheet in enumerate(sheets):
        if i:
            line = f"M{_number(x - gap / 2)} {_MARGIN}V{_number(height - _MARGIN)}"
            out.append(f'<path class="rule" d="{line}"/>')
        out += [f'<g transform="translate({_number(x)} 0)">', *sheet.out, "</g>"]
        x += sheet.width + gap
    return "\n".join([*out, "</svg>"])


def html_figures(subjects: Sequence[Subject], tables: Sequence[str], theme: str = "auto") -> str:
    """Part of a page: the pictures, beside one another where there is room, else below; folded
    away under them every number, as the tables given.
    """
    figures = "".join(
        f'<figure style="margin:0;overflow-x:auto;max-width:100%">{svg([s], theme)}</figure>'
        for s in subjects
    )
    details = "".join(
        f"<details><summary>{escape(s.title)}: every number</summary>{table}</details>"
        for s, table in zip(subjects, tables, strict=True)
    )
    row = "display:flex;flex-wrap:wrap;gap:12px;align-items:flex-start"
    return f'<div style="{row}">{figures}</div>\n{details}'


def html_page(subjects: Sequence[Subject], tables: Sequence[str], theme: str = "auto") -> str:
    """A page of its own around `html_figures`."""
    title = escape("; ".join(s.title for s in subjects))
    scheme = "light dark" if theme == "auto" else theme
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width"/>'
        f"<title>{title}</title><style>:root{{color-scheme:{scheme}}}"
        f"body{{margin:16px;font:14px {_SANS}}}details{{margin-top:16px}}"
        "summary{cursor:pointer}</style></head><body>\n"
        f"{html_figures(subjects, tables, theme)}\n</body></html>\n"
    )
