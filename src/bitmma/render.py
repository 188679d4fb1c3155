"""How a trace is shown: `Explanation` in a terminal, in a notebook, as pictures, text and data.

A trace is first laid out as blocks of cells (`_blocks`), once; each way of showing it is then a
short writer over the same blocks. Bits are written as binary fixed point with the point after the
weight 2**e_max, so that what alignment did to each term can be read down the column:
``1.0110|101`` keeps the bits before the bar and cut those after it.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from bitmma import BITS_VERSION, formats, pictures
from bitmma.formats import Kind
from bitmma.models import FDPA, GTRFDPA, Lowered, Model
from bitmma.notation import (
    code_text,
    decoded_text,
    exact_text,
    fixed_text,
    hex_float,
    model_dict,
    model_text,
    nan_claim,
    provenance_text,
    result_number,
    runs,
    term_name,
    value_of,
    value_text,
)
from bitmma.reference import Aligned, Stage, Step, Term, Trace

if TYPE_CHECKING:
    from rich.console import RenderableType

    from bitmma.isa import Provenance

__all__ = [
    "Explanation",
    "SideBySide",
    "code_text",
    "hex_float",
    "model_dict",
    "model_text",
    "nan_claim",
    "provenance_text",
    "value_of",
    "value_text",
]

#: Letters of a model beyond which it is shortened: a SumTree can have thousands.
_MODEL_SHOWN = 400
#: Cut bits shown in a row; `Explanation.to_dict` has all of them.
_CUT_SHOWN = 12
#: Fraction digits beyond which a row is written as a number instead of in binary.
_DIGITS_SHOWN = 64
#: Fraction digits of a sum beyond which trailing zeros are left out.
_SUM_PLACES = 32


# --- layout: blocks of cells ----------------------------------------------------------------------


class _Span(NamedTuple):
    """Text of one style: "", dim, kept, cut, mark or result."""

    text: str
    style: str = ""


_Cell = tuple[_Span, ...]
_Row = tuple[_Cell, ...]


class _Block(NamedTuple):
    """A table with a heading and lines under it; None among the rows is a rule."""

    heading: str
    columns: tuple[tuple[str, bool], ...]  # (title, right-aligned)
    rows: tuple[_Row | None, ...]
    lines: tuple[_Cell, ...]


def _cell(text: str, style: str = "") -> _Cell:
    return (_Span(text, style),)


def _binary(kept: int, unit: int, cut: tuple[int, int], point: int, whole: int) -> _Cell:
    """``kept * 2**unit`` in binary and, after a bar, the cut bits; ``cut`` is value - kept.

    Args:
        point: the exponent whose weight is the last digit before the binary point.
        whole: digits before the point.
    """
    places = max(point - unit, 0)
    if places > _DIGITS_SHOWN:
        return _cell(f"{exact_text(kept, unit)}", "kept")
    if unit > point and (cut[0] or unit - point > _DIGITS_SHOWN):  # cut above the point, or far
        lost = (_Span("|", "dim"), _Span(exact_text(*cut), "cut")) if cut[0] else ()
        return (_Span(exact_text(kept, unit), "kept"), *lost)
    if unit > point:
        kept, unit = kept << (unit - point), point
    negative = kept < 0 or (kept == 0 and cut[0] < 0)
    magnitude = abs(kept)
    head = f"{'-' if negative else '+'}{magnitude >> places:b}".rjust(1 + whole)
    tail = f"{magnitude & ((1 << places) - 1):0{places}b}" if places else ""
    kept_span = _Span(f"{head}.{tail}", "kept")
    if not cut[0]:
        return (kept_span,)
    width = unit - cut[1]
    digits = f"{abs(cut[0]) >> max(width - _CUT_SHOWN, 0):0{min(width, _CUT_SHOWN)}b}"
    exact = abs(cut[0]) & ((1 << max(width - _CUT_SHOWN, 0)) - 1) == 0
    digits = digits.rstrip("0") if exact else digits + "…"
    against = "-" if (cut[0] < 0) != negative else ""
    return kept_span, _Span("|", "dim"), _Span(against + digits, "cut")


def _whole(numbers: Iterable[tuple[int, int, int]]) -> int:
    """Digits that the numbers (n, unit, point) need before the point."""
    return max((abs(n).bit_length() + unit - point for n, unit, point in numbers), default=1)


def _blocks(trace: Trace) -> Iterator[_Block]:
    yield _operands(trace)
    if trace.scale_a:
        yield _scales(trace)

    def plain(numbered: tuple[int, Step]) -> str:
        step = numbered[1]  # one that aligns nothing and has nothing to say shares a table (FMA)
        return step.rounding if step.e_max is None and not step.notes else ""

    for rounding, steps in groupby(enumerate(trace.steps), plain):
        if rounding:
            yield _exact_steps([s for _, s in steps])
        else:
            yield from (_step(s, trace.model, i * trace.model.group) for i, s in steps)


def _operands(trace: Trace) -> _Block:
    a, b, c = (formats.get(f) for f in (trace.a_format, trace.b_format, trace.c_format))
    rows: list[_Row | None] = []
    items = enumerate(zip(trace.a, trace.b, trace.products, strict=True))
    for (code_a, code_b, _), group in groupby(items, lambda item: (*item[1][:2], None)):
        run = [(i, product) for i, (_, _, product) in group]
        first, last = run[0][0], run[-1][0]
        product = run[0][1]
        if isinstance(product, str):
            significand, exponent = _cell(product, "mark"), _cell("")
        elif product.n == 0:
            significand, exponent = _cell("0", "dim"), _cell("")
        else:
            significand = _cell(fixed_text(product.n, product.q - product.e))
            exponent = _cell(str(product.e))
        rows.append((
            _cell(str(first) if first == last else f"{first}–{last}", "dim"),
            _cell(code_text(a, code_a), "dim"), _cell(decoded_text(a, code_a)),
            _cell(code_text(b, code_b), "dim"), _cell(decoded_text(b, code_b)),
            significand, exponent,
        ))  # fmt: skip
    columns = (
        ("k", True), (f"a {a}", True), ("value", True), (f"b {b}", True), ("value", True),
        ("product s", True), ("e", True),
    )  # fmt: skip
    kind, _, _, exponent_c = c.decode(trace.c)
    e_c = f", exponent {exponent_c}" if kind is Kind.FINITE else ""
    line = (
        _Span(f"c {c} "), _Span(code_text(c, trace.c), "dim"),
        _Span(f" = {decoded_text(c, trace.c)}{e_c}"),
    )  # fmt: skip
    return _Block("Operands and products s·2^e, exact", columns, tuple(rows), (line,))


def _scales(trace: Trace) -> _Block:
    fmt = formats.get(trace.scale_format or "ue8m0")
    block = len(trace.a) // len(trace.scale_a)
    rows: list[_Row | None] = [
        (
            _cell(f"{i * block}–{(i + 1) * block - 1}", "dim"),
            _cell(code_text(fmt, x), "dim"), _cell(value_text(fmt, x)),
            _cell(code_text(fmt, y), "dim"), _cell(value_text(fmt, y)),
        )
        for i, (x, y) in enumerate(zip(trace.scale_a, trace.scale_b, strict=True))
    ]  # fmt: skip
    columns = (
        ("k", True), ("scale_a", True), ("value", True), ("scale_b", True), ("value", True),
    )  # fmt: skip
    return _Block(f"Scales {fmt}, one for {block} products", columns, tuple(rows), ())


def _step(step: Step, model: Model, start: int) -> _Block:
    """One fused step: what alignment kept and cut of each term, the sum, the rounding.

    ``start`` is its first product's index, where every group of products has one step.
    """
    unit_model = model.unit if isinstance(model, Lowered) else model
    F = getattr(unit_model, "F", 0)
    result = result_number(step, unit_model)
    aligned = step.e_max is not None
    total = step.total

    def point(term: Aligned) -> int:
        # An FDPA's terms may be cut at several places: all are written below its one e_max.
        if isinstance(model, FDPA) and step.e_max is not None:
            return step.e_max
        return term.unit + F

    spans = []
    if step.e_max is not None:
        spans = [(t.kept, t.unit, point(t)) for t in step.terms]
        spans += [(*x, step.e_max) for x in (total, result) if x]
    whole = max(1, _whole(spans))

    rows: list[_Row | None] = []
    halves = _halves(step.terms, start) if isinstance(model, GTRFDPA) else ("",) * len(step.terms)
    half = ""
    for term, count, last, its_half in runs(step.terms, halves):
        if its_half and its_half != half:
            rows.append((_cell(its_half, "dim"), _cell(""), _cell(""), _cell("")))
            half = its_half
        name = term_name(term.name)
        if count > 1:
            name = f"{name}…{term_name(last.name)} ×{count}"
        bits = (
            _binary(term.kept, term.unit, term.cut, point(term), whole)
            if aligned
            else _plain_value(term, step.notes)
        )
        zero = term.n == 0
        row = (_cell(name), _cell(str(term.e), "dim" if zero else ""), bits)
        rows.append((*row, _cell(f"2^{term.unit}", "dim")) if aligned else row)
    if step.e_max is not None and total is not None:
        total = _shortened(total, step.e_max)
        bits = _binary(*total, (0, 0), step.e_max, whole)
        rows += [None, (_cell("Σ"), _cell(""), bits, _cell(f"2^{total[1]}", "dim"))]
        if result is not None:
            cut = _difference(total, result)
            bits = _binary(*result, cut, step.e_max, whole)
            unit = _cell(f"2^{result[1]}", "dim")
        else:
            bits, unit = _cell("beyond the largest number: Inf", "mark"), _cell("")
        rows.append((_cell(step.rounding), _cell(""), bits, unit))

    lines = [_cell(note, "mark" if not step.terms else "") for note in step.notes]
    shown = "".join(span.text for row in rows if row for span in row[2])
    if "|-" in shown:
        lines.append(_cell("|-… : rounded away from zero by these bits", "dim"))
    lines.append(_result_line(step.format, step.result))
    heading = step.title[0].upper() + step.title[1:]
    if step.e_max is not None:
        heading += f" · e_max {step.e_max}"
    aligned_columns = ("kept|cut", False), ("unit", True)
    columns = ("term", False), ("e", True), *(aligned_columns if aligned else (("value", True),))
    return _Block(heading, columns if rows else (), tuple(rows), tuple(lines))


def _plain_value(term: Aligned, notes: Sequence[str]) -> _Cell:
    """A term that was not aligned; the notes say where it is no number."""
    said = f"{term.name} is "
    special = [note.removeprefix(said) for note in notes if note.startswith(said)]
    return _cell(special[0], "mark") if special else _cell(exact_text(term.n, term.q))


def _exact_steps(steps: Sequence[Step]) -> _Block:
    """Steps whose sum is exact before its one rounding: a row each."""
    rows: list[_Row | None] = [
        (
            _cell(step.title),
            _cell(exact_text(*step.total, 20) if step.total else ""),
            _cell(code_text(step.format, step.result), "dim"),
            _cell(value_text(step.format, step.result), "result"),
        )
        for step in steps
    ]
    columns = (
        ("step", False), ("exact sum", True), (steps[0].format, True), ("rounded", True),
    )  # fmt: skip
    return _Block(f"Exact sums, rounded {steps[0].rounding}", columns, tuple(rows), ())


def _result_line(fmt: str, code: int) -> _Cell:
    value = value_text(fmt, code)
    about = f" ≈ {value_of(fmt, code):.9g}" if "p" in value else ""
    return (
        _Span("→ "), _Span(code_text(fmt, code), "dim"), _Span(" = "), _Span(value, "result"),
        _Span(about, "dim"),
    )  # fmt: skip


def _shortened(number: tuple[int, int], point: int) -> tuple[int, int]:
    """The same number with fewer trailing zeros where it is long."""
    n, unit = number
    zeros = (n & -n).bit_length() - 1 if n else 0
    drop = max(0, min(zeros, point - unit - _SUM_PLACES))
    return n >> drop, unit + drop


def _difference(x: tuple[int, int], y: tuple[int, int]) -> tuple[int, int]:
    q = min(x[1], y[1])
    return (x[0] << (x[1] - q)) - (y[0] << (y[1] - q)), q


def _halves(terms: Sequence[Aligned], start: int) -> list[str]:
    """GTR-FDPA cuts and sums products of even and of odd index in the group apart, then meets c."""
    lanes = [re.match(r"a(\d+)", t.name) for t in terms]
    if not any(lanes):
        return [""] * len(terms)
    return [
        "joined with:" if lane is None else ("odd:" if (int(lane[1]) - start) % 2 else "even:")
        for lane in lanes
    ]


# --- what users hold ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Explanation:
    """One dot product, step by step: what ``instr.explain(a, b, c)`` returns.

    Shown by ``print`` (plain text), by Rich, and by notebooks (a picture, all numbers below it);
    `to_svg` and `to_html` give pictures for elsewhere, `to_dict` gives it all as data.

    Attributes:
        trace: every step, exact (`bitmma.reference.Trace`).
        title: what computed it, e.g. ``"Hopper wgmma m64n8k32.f32.e4m3.e4m3"``.
        provenance: what stands behind it, `bitmma.isa.Provenance`; None where nothing is said.
    """

    trace: Trace
    title: str
    provenance: Provenance | None = None

    @property
    def code(self) -> int:
        """The result's code in the d format."""
        return self.trace.result

    @property
    def result(self) -> float:
        """The result's value, exact."""
        return value_of(self.trace.d_format, self.code)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-able data.

        Codes are hex strings; exact numbers are strings ``"n*2^q"`` (integers n and q), values of
        codes C hex floats, ``"nan"``, ``"inf"`` or ``"-inf"``.
        """
        t = self.trace
        return {
            "bits_version": BITS_VERSION,
            "title": self.title,
            "model": model_dict(t.model),
            "nan": nan_claim(t.model),
            "provenance": asdict(self.provenance) if self.provenance else None,
            "a_format": t.a_format, "b_format": t.b_format, "c_format": t.c_format,
            "d_format": t.d_format, "scale_format": t.scale_format,
            "a": [_coded(t.a_format, x) for x in t.a],
            "b": [_coded(t.b_format, x) for x in t.b],
            "c": _coded(t.c_format, t.c),
            "scale_a": [_coded(t.scale_format or "ue8m0", x) for x in t.scale_a],
            "scale_b": [_coded(t.scale_format or "ue8m0", x) for x in t.scale_b],
            "products": [_product_dict(p) for p in t.products],
            "steps": [_step_dict(s) for s in t.steps],
            "result": _coded(t.d_format, t.result),
        }  # fmt: skip

    def to_svg(self, theme: str = "auto") -> str:
        """A picture: every summand a row of bits on one grid, what was cut in grey.

        Args:
            theme: "light", "dark", or "auto": as the page around it says (Jupyter, VS Code, MkDocs
                Material), else as the viewer's system.

        Raises:
            ValueError: another theme.
        """
        return pictures.svg([self._subject()], theme)

    def to_html(self, theme: str = "auto") -> str:
        """A page of its own, the picture and below it every number; themes as in `to_svg`."""
        return self.beside().to_html(theme)

    def beside(self, *others: Explanation) -> SideBySide:
        """This and others side by side, for pictures: ``x.beside(y).to_svg()``.

        Raises:
            TypeError: something that is no Explanation.
        """
        for other in others:
            if not isinstance(other, Explanation):
                raise TypeError(f"beside takes explanations, not {other!r}")
        return SideBySide((self, *others))

    def _subject(self) -> pictures.Subject:
        said = provenance_text(self.provenance) if self.provenance else ""
        return pictures.Subject(self.trace, self.title, said)

    def _table(self) -> str:
        return _html(self._head(), _blocks(self.trace), self._end())

    def _head(self) -> tuple[str, str]:
        said = f"; {provenance_text(self.provenance)}" if self.provenance else ""
        model = self.trace.model
        text = repr(model)
        if len(text) > _MODEL_SHOWN:
            text = model_text(model)
        return self.title, f"{model.family}: {text}{said}"

    def _end(self) -> _Cell:
        return (_Span("d "), _Span(f"{self.trace.d_format} "),
                *_result_line(self.trace.d_format, self.code)[1:])  # fmt: skip

    def __repr__(self) -> str:
        value = value_text(self.trace.d_format, self.code)
        return f"<Explanation {self.title}: {code_text(self.trace.d_format, self.code)} = {value}>"

    def __str__(self) -> str:
        return "\n".join(_plain_lines(self._head(), _blocks(self.trace), self._end()))

    def __rich__(self) -> RenderableType:
        return _rich(self._head(), _blocks(self.trace), self._end())

    def _repr_html_(self) -> str:
        return self.beside()._repr_html_()


@dataclass(frozen=True)
class SideBySide:
    """Several explanations next to one another: what ``x.beside(y)`` returns.

    Shown by ``print``, one below the other, and by notebooks, as pictures.
    """

    explanations: tuple[Explanation, ...]

    def to_svg(self, theme: str = "auto") -> str:
        """One picture of all, from left to right; themes as in `Explanation.to_svg`."""
        return pictures.svg([x._subject() for x in self.explanations], theme)

    def to_html(self, theme: str = "auto") -> str:
        """A page of its own: side by side where there is room, else one below the other."""
        return pictures.html_page(*self._parts(), theme)

    def to_dict(self) -> dict[str, Any]:
        """Each one's `Explanation.to_dict`, under ``"explanations"``."""
        return {"explanations": [x.to_dict() for x in self.explanations]}

    def __str__(self) -> str:
        return "\n\n\n".join(map(str, self.explanations))

    def __rich__(self) -> RenderableType:
        from rich.console import Group

        parts = [part for x in self.explanations for part in ("", "", x.__rich__())]
        return Group(*parts[2:])

    def _repr_html_(self) -> str:
        return pictures.html_figures(*self._parts())

    def _parts(self) -> tuple[list[pictures.Subject], list[str]]:
        xs = self.explanations
        return [x._subject() for x in xs], [x._table() for x in xs]


def _coded(fmt: str, code: int) -> dict[str, str]:
    value = value_of(fmt, code)
    return {
        "code": code_text(fmt, code),
        "value": value.hex() if math.isfinite(value) else str(value),
    }


def _exact(n: int, q: int) -> str:
    return f"{n}*2^{q}"


def _product_dict(product: Term | str) -> dict[str, Any]:
    if isinstance(product, str):
        return {"value": product.removeprefix("+")}
    return {"name": product.name, "value": _exact(product.n, product.q), "exponent": product.e}


def _term_dict(t: Aligned) -> dict[str, Any]:
    return {
        "name": t.name, "value": _exact(t.n, t.q), "exponent": t.e,
        "kept": _exact(t.kept, t.unit), "cut": _exact(*t.cut),
    }  # fmt: skip


def _stage_dict(stage: Stage) -> dict[str, Any]:
    return {
        "title": stage.title,
        "e_max": stage.e_max,
        "terms": [_term_dict(t) for t in stage.terms],
        "sum": _term_dict(stage.total) if stage.total else None,
    }


def _step_dict(step: Step) -> dict[str, Any]:
    return {
        "title": step.title,
        "e_max": step.e_max,
        "terms": [_term_dict(t) for t in step.terms],
        "sum": _exact(*step.total) if step.total is not None else None,
        "stages": [_stage_dict(s) for s in step.stages],
        "notes": list(step.notes),
        "rounding": step.rounding,
        "format": step.format,
        "result": _coded(step.format, step.result),
    }  # fmt: skip


# --- three writers over the same blocks -----------------------------------------------------------


def _text(cell: _Cell) -> str:
    return "".join(span.text for span in cell)


def _plain_lines(head: tuple[str, str], blocks: Iterable[_Block], end: _Cell) -> Iterator[str]:
    yield from head
    for block in blocks:
        yield ""
        yield block.heading
        cells = [[_text(cell) for cell in row] if row else None for row in block.rows]
        titles = [title for title, _ in block.columns]
        widths = [
            max(len(row[i]) for row in [titles, *filter(None, cells)]) for i in range(len(titles))
        ]
        table = [titles, *cells] if titles else []
        for row in table:
            texts = row or ["─" * width for width in widths]
            yield (
                "  "
                + "  ".join(
                    text.rjust(width) if right else text.ljust(width)
                    for text, width, (_, right) in zip(texts, widths, block.columns, strict=True)
                ).rstrip()
            )
        yield from ("  " + _text(line) for line in block.lines)
    yield ""
    yield _text(end)


_RICH_STYLES = {
    "": "", "dim": "dim", "kept": "", "cut": "red", "mark": "yellow", "result": "bold green",
}  # fmt: skip


def _rich(head: tuple[str, str], blocks: Iterable[_Block], end: _Cell) -> RenderableType:
    from rich.box import Box
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    def styled(cell: _Cell) -> Text:
        return Text.assemble(*((span.text, _RICH_STYLES[span.style]) for span in cell))

    # A rule under the titles and between sections, and no other line.
    ruled = Box("    \n    \n ── \n    \n ── \n ── \n    \n    \n")
    parts: list[RenderableType] = [Text(head[0], "bold"), Text(head[1], "dim")]
    for block in blocks:
        parts += [Text(""), Text(block.heading, "bold cyan")]
        if block.columns:
            table = Table(box=ruled, show_edge=False, pad_edge=False, header_style="dim")
            for title, right in block.columns:
                table.add_column(title, justify="right" if right else "left", overflow="fold")
            for row in block.rows:
                if row is None:
                    table.add_section()
                else:
                    table.add_row(*(styled(cell) for cell in row))
            parts.append(Padding(table, (0, 0, 0, 2), expand=False))
        parts += [Padding(styled(line), (0, 0, 0, 2), expand=False) for line in block.lines]
    return Group(*parts, Text(""), styled(end))


# Colours that read on white and on black; `inherit` and currentColor follow the notebook's theme.
_STYLE = """\
.bitmma{font-family:monospace;color:inherit;line-height:1.35;overflow-x:auto;--cut:#b3261e;\
--mark:#8a5a00;--res:#146c2e}
.bitmma table{border-collapse:collapse;margin:.2em 0 .2em 1em;background:transparent}
.bitmma th,.bitmma td{padding:0 .8em 0 0;border:0;background:transparent;color:inherit;\
white-space:pre;text-align:left}
.bitmma th{opacity:.6;font-weight:normal;border-bottom:1px solid currentColor}
.bitmma .r{text-align:right}
.bitmma tr.rule td{border-top:1px solid currentColor}
.bitmma p{margin:0 0 0 1em;white-space:pre-wrap}.bitmma h4{margin:.6em 0 0;font-size:1em}
.bitmma .dim{opacity:.6}.bitmma .cut{color:var(--cut);text-decoration:line-through}
.bitmma .mark{color:var(--mark)}.bitmma .result{color:var(--res);font-weight:bold}
@media (prefers-color-scheme:dark){.bitmma{--cut:#ff8a80;--mark:#ffd180;--res:#81e29a}}
[data-jp-theme-light="true"] .bitmma,.vscode-light .bitmma{--cut:#b3261e;--mark:#8a5a00;\
--res:#146c2e}
[data-jp-theme-light="false"] .bitmma,.vscode-dark .bitmma{--cut:#ff8a80;--mark:#ffd180;\
--res:#81e29a}"""


def _html(head: tuple[str, str], blocks: Iterable[_Block], end: _Cell) -> str:
    def spans(cell: _Cell) -> str:
        return "".join(
            f'<span class="{span.style}">{html.escape(span.text)}</span>'
            if span.style
            else html.escape(span.text)
            for span in cell
        )

    def tag(name: str, right: bool) -> str:
        return f'<{name} class="r">' if right else f"<{name}>"

    out = [f"<style>{_STYLE}</style>", '<div class="bitmma">']
    out.append(f"<b>{html.escape(head[0])}</b>")
    out.append(f'<p class="dim">{html.escape(head[1])}</p>')
    for block in blocks:
        out.append(f"<h4>{html.escape(block.heading)}</h4>")
        if block.columns:
            titles = "".join(f"{tag('th', r)}{html.escape(t)}</th>" for t, r in block.columns)
            out.append(f"<table><thead><tr>{titles}</tr></thead><tbody>")
            ruled = False
            for row in block.rows:
                if row is None:
                    ruled = True
                    continue
                cells = "".join(
                    f"{tag('td', right)}{spans(cell)}</td>"
                    for cell, (_, right) in zip(row, block.columns, strict=True)
                )
                out.append(f'<tr class="rule">{cells}</tr>' if ruled else f"<tr>{cells}</tr>")
                ruled = False
            out.append("</tbody></table>")
        out += [f"<p>{spans(line)}</p>" for line in block.lines]
    out += [f"<p>{spans(end)}</p>", "</div>"]
    return "\n".join(out)
