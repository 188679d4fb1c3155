"""How a trace is shown: `Explanation` in a terminal, in a notebook, as text and as data.

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
from dataclasses import asdict, dataclass, fields, is_dataclass
from fractions import Fraction
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from bitmma import BITS_VERSION, formats
from bitmma.formats import Format, Kind
from bitmma.models import FDPA, GTRFDPA, Lowered, Model, SumTree
from bitmma.reference import Aligned, Step, Term, Trace

if TYPE_CHECKING:
    from rich.console import RenderableType

    from bitmma.isa import Provenance

__all__ = [
    "Explanation",
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
#: The same for one parameter in few words.
_WORD_SHOWN = 60
#: Cut bits shown in a row; `Explanation.to_dict` has all of them.
_CUT_SHOWN = 12
#: Fraction digits beyond which a row is written as a number instead of in binary.
_DIGITS_SHOWN = 64
#: Fraction digits of a sum beyond which trailing zeros are left out.
_SUM_PLACES = 32


# --- numbers as text ------------------------------------------------------------------------------


def hex_float(n: int, q: int) -> str:
    """``n * 2**q`` as a C hex float, exact whatever its size: ``0x1.8p+5``."""
    if n == 0:
        return "0x0p+0"
    magnitude = abs(n)
    exponent = magnitude.bit_length() - 1
    rest = magnitude - (1 << exponent)
    width = -(-exponent // 4)  # hex digits that hold the bits below the leading one
    digits = f"{rest << (4 * width - exponent):0{width}x}".rstrip("0") if rest else ""
    point = "." if digits else ""
    return f"{'-' if n < 0 else ''}0x1{point}{digits}p{exponent + q:+d}"


def _number(n: int, q: int, longest: int = 12) -> str:
    """``n * 2**q`` as a decimal where a short one is exact, else as a hex float."""
    if abs(n) < 1 << 64 and -64 <= q <= 64:
        decimal = repr(math.ldexp(float(n), q)).removesuffix(".0")
        if len(decimal) <= longest and Fraction(decimal) == Fraction(n) * Fraction(2) ** q:
            return decimal
    return hex_float(n, q)


def _fixed(n: int, q: int) -> str:
    """A significand, ``n * 2**q`` with no exponent: a short decimal or hex, ``-0x2.54217``."""
    decimal = _number(n, q)
    if "p" not in decimal:
        return decimal
    places = -(min(q, 0) // 4)
    digits = abs(n) << (4 * places + q)
    fraction = f"{digits & ((1 << 4 * places) - 1):0{places}x}".rstrip("0")
    return f"{'-' if n < 0 else ''}0x{digits >> 4 * places:x}.{fraction}"


def code_text(fmt: Format | str, code: int) -> str:
    """A code in hex, as wide as its format."""
    return f"0x{code:0{-(-formats.get(fmt).width // 4)}x}"


def value_of(fmt: Format | str, code: int) -> float:
    """The value of one code, exact (float64 holds every format)."""
    fmt = formats.get(fmt)
    kind, sign, significand, exponent = fmt.decode(code)
    if kind is Kind.NAN:
        return math.nan
    magnitude = (
        math.inf if kind is Kind.INF else math.ldexp(significand, exponent - fmt.mantissa_bits)
    )
    return -magnitude if sign else magnitude


def value_text(fmt: Format | str, code: int) -> str:
    """The value of one code, exact: a short decimal, a C hex float, ``nan``, ``inf`` or ``-0``."""
    fmt = formats.get(fmt)
    kind, sign, significand, exponent = fmt.decode(code)
    if kind is Kind.FINITE:
        return _number(-significand if sign else significand, exponent - fmt.mantissa_bits)
    return ("-" if sign and kind is not Kind.NAN else "") + _SPECIAL_TEXT[kind]


_SPECIAL_TEXT = {Kind.ZERO: "0", Kind.INF: "inf", Kind.NAN: "nan"}


def _decoded_text(fmt: Format, code: int) -> str:
    """As `value_text`, but a subnormal shows its significand below 1 and the lowest exponent."""
    kind, sign, significand, exponent = fmt.decode(code)
    if kind is Kind.FINITE and not significand >> fmt.mantissa_bits:
        return f"{'-' if sign else ''}{_fixed(significand, -fmt.mantissa_bits)}·2^{exponent}"
    return value_text(fmt, code)


def model_dict(model: Model) -> dict[str, Any]:
    """A model's family and parameters as JSON-able data."""

    def plain(value: object) -> Any:
        if isinstance(value, Model):
            return model_dict(value)
        if isinstance(value, tuple):
            return [plain(v) for v in value]
        return str(value) if is_dataclass(value) else value

    return {
        "family": model.family,
        **{f.name: plain(getattr(model, f.name)) for f in fields(model)},
    }


def model_text(model: Model) -> str:
    """A model in few words: ``T-FDPA L=16 F=25 RZ-FP32 e_zero=-133``."""
    values = [(f.name, getattr(model, f.name)) for f in fields(model)]
    if isinstance(model, FDPA | SumTree):  # of many fields, what is not at its default
        said = {"L", "F", "rho", *(f.name for f in model.chosen())}
        values = [(name, x) for name, x in values if name in said]
    words = [
        model_text(x) if isinstance(x, Model) else str(x) if name == "rho" else f"{name}={x}"
        for name, x in values
        if not isinstance(x, tuple)
    ]
    words = [x if len(x) <= _WORD_SHOWN else f"{x[:_WORD_SHOWN]}…" for x in words]
    return " ".join([model.family, *words])


def nan_claim(model: Model) -> str:
    """What is claimed of a NaN output: "bits", or "any": that it is a NaN."""
    return "bits" if model.nan == "ones" else "any"


def provenance_text(provenance: Provenance) -> str:
    """The levels without their sources: ``published (family recorded)``."""
    level, family = provenance.level, provenance.family_level
    return level if family == level else f"{level} (family {family})"


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
        return _cell(f"{_number(kept, unit)}", "kept")
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
            significand = _cell(_fixed(product.n, product.q - product.e))
            exponent = _cell(str(product.e))
        rows.append((
            _cell(str(first) if first == last else f"{first}–{last}", "dim"),
            _cell(code_text(a, code_a), "dim"), _cell(_decoded_text(a, code_a)),
            _cell(code_text(b, code_b), "dim"), _cell(_decoded_text(b, code_b)),
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
        _Span(f" = {_decoded_text(c, trace.c)}{e_c}"),
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
    F = getattr(unit_model, "F", 0) or 0
    result = _result_number(step, unit_model)
    aligned = step.e_max is not None
    total = step.total

    def point(term: Aligned) -> int:
        # An FDPA's terms may be cut at several places: all are written below its one e_max.
        if isinstance(model, FDPA) and step.e_max is not None:
            return step.e_max
        return term.unit + F

    spans = [(t.kept, t.unit, point(t)) for t in step.terms]
    if aligned and step.e_max is not None:
        spans += [(*x, step.e_max) for x in (total, result) if x]
    whole = max(1, _whole(spans))

    rows: list[_Row | None] = []
    halves = _halves(step.terms, start) if isinstance(model, GTRFDPA) else ("",) * len(step.terms)
    half = ""
    for term, count, last, its_half in _runs(step.terms, halves):
        if its_half and its_half != half:
            rows.append((_cell(its_half, "dim"), _cell(""), _cell(""), _cell("")))
            half = its_half
        name = _term_name(term.name)
        if count > 1:
            name = f"{name}…{_term_name(last.name)} ×{count}"
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
    return _cell(special[0], "mark") if special else _cell(_number(term.n, term.q))


def _exact_steps(steps: Sequence[Step]) -> _Block:
    """Steps whose sum is exact before its one rounding: a row each."""
    rows: list[_Row | None] = [
        (
            _cell(step.title),
            _cell(_number(*step.total, 20) if step.total else ""),
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


def _result_number(step: Step, unit_model: Model) -> tuple[int, int] | None:
    """What the rounding kept of the sum, as (n, unit); None where it is no number."""
    fmt = formats.get(step.format)
    kind, sign, significand, exponent = fmt.decode(step.result)
    if kind in (Kind.INF, Kind.NAN) or step.total is None:
        return None
    q = exponent - fmt.mantissa_bits
    rho = getattr(unit_model, "rho", None)
    if rho is not None and rho.mantissa_bits is not None and step.rounding == str(rho):
        q += fmt.mantissa_bits - rho.mantissa_bits
        significand >>= fmt.mantissa_bits - rho.mantissa_bits
    if q < step.total[1]:  # nothing was rounded: write the result as wide as the sum
        significand >>= step.total[1] - q
        q = step.total[1]
    return (-significand if sign else significand), q


def _shortened(number: tuple[int, int], point: int) -> tuple[int, int]:
    """The same number with fewer trailing zeros where it is long."""
    n, unit = number
    zeros = (n & -n).bit_length() - 1 if n else 0
    drop = max(0, min(zeros, point - unit - _SUM_PLACES))
    return n >> drop, unit + drop


def _difference(x: tuple[int, int], y: tuple[int, int]) -> tuple[int, int]:
    q = min(x[1], y[1])
    return (x[0] << (x[1] - q)) - (y[0] << (y[1] - q)), q


def _term_name(name: str) -> str:
    return name.replace("*", "·")


def _runs(
    terms: Sequence[Aligned], halves: Sequence[str]
) -> Iterator[tuple[Aligned, int, Aligned, str]]:
    """Neighbours of one half that differ in name only, as (first, how many, last, half)."""
    pairs = zip(terms, halves, strict=True)
    for _, group in groupby(pairs, lambda p: (*p[0][1:], p[0].name == "c", p[1])):
        run = list(group)
        yield run[0][0], len(run), run[-1][0], run[0][1]


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

    Shown by ``print`` (plain text), by Rich, and by notebooks; `to_dict` gives it all as data.

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
        return _html(self._head(), _blocks(self.trace), self._end())


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


def _step_dict(step: Step) -> dict[str, Any]:
    return {
        "title": step.title,
        "e_max": step.e_max,
        "terms": [
            {
                "name": t.name, "value": _exact(t.n, t.q), "exponent": t.e,
                "kept": _exact(t.kept, t.unit), "cut": _exact(*t.cut),
            }
            for t in step.terms
        ],
        "sum": _exact(*step.total) if step.total is not None else None,
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
