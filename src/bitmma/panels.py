"""A trace laid out for a picture: panels of rows of bits, and the words around them.

Each step is a panel, each summand a row of bits on the panel's one fixed-point grid: a column is a
weight 2**w, whatever row it is in. Nothing is computed here, the trace has it all;
`bitmma.pictures` puts it on paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import groupby
from typing import NamedTuple

from bitmma import formats
from bitmma.formats import Kind
from bitmma.models import (
    EFDPA,
    FDPA,
    FMA,
    GSTFDPA,
    GTRFDPA,
    STFDPA,
    TFDPA,
    TRFDPA,
    FTZMulAdd,
    Lowered,
    Model,
    SumTree,
)
from bitmma.notation import (
    code_text,
    exact_text,
    hex_float,
    result_number,
    runs,
    term_name,
    value_of,
    value_text,
)
from bitmma.reference import Aligned, Stage, Step, Term, Trace

__all__ = ["Block", "Cells", "Panel", "Row", "about", "outcome", "panels", "power"]

#: Columns that steps of exact sums may share.
_SHARED_COLUMNS = 128
#: Columns below e_max that are always drawn: F is at most 64.
_WHOLE_COLUMNS = 66
#: Models that are one chain of steps: the result of each is the c of the next.
_CHAINS = (FMA, FTZMulAdd, EFDPA, TFDPA, STFDPA, GSTFDPA, TRFDPA, GTRFDPA)

# --- a trace as panels of rows --------------------------------------------------------------------

#: weight -> (digit, shade); shades: pad, kept, cut, sum, result.
Cells = Mapping[int, tuple[str, str]]


class Row(NamedTuple):
    """One number on the grid.

    Attributes:
        name, detail, exponent, sign: what stands before the bits.
        cells: its bits; the kept ones from ``unit`` up.
        unit: the weight of the last bit kept; None where nothing limits it.
        note: what stands behind the bits, and its style.
        about: everything exactly, in words: the row's title.
    """

    name: str
    detail: str
    exponent: str
    sign: str
    cells: Cells
    unit: int | None
    note: str
    note_style: str
    about: str


class Block(NamedTuple):
    """Rows under a caption: the summands, then their sum and what became of it."""

    caption: str
    terms: tuple[Row, ...]
    sums: tuple[Row, ...]


class Panel(NamedTuple):
    """One step, or several that share a grid.

    Attributes:
        words: lines below the bits.
        table: rows of words above the bits (the products behind GST-FDPA's group sums).
        marks: weights to be named on the axis.
        whole: the columns from this weight up are all drawn; None: any may be folded.
    """

    heading: str
    blocks: tuple[Block, ...] = ()
    words: tuple[str, ...] = ()
    table: tuple[tuple[str, ...], ...] = ()
    marks: tuple[int, ...] = ()
    whole: int | None = None


def _bits(
    value: tuple[int, int],
    kept: tuple[int, int],
    shade: str,
    *,
    exponent: int | None = None,
    pad_from: int | None = None,
) -> dict[int, tuple[str, str]]:
    """The bits of ``kept`` down to its unit, then those of ``value`` below that.

    Args:
        value, kept: (n, q), worth n * 2**q.
        exponent: the weight where the significand begins, even if with zeros.
        pad_from: the weight from which on there are zeros before and behind the significand; None:
            the significand alone.
    """
    (n, q), (digits, unit) = (abs(value[0]), value[1]), (abs(kept[0]), kept[1])
    high = low = None
    if n:
        high = max(n.bit_length() - 1 + q, q if exponent is None else exponent)
        low = (n & -n).bit_length() - 1 + q
    tops = [
        digits.bit_length() - 1 + unit,
        unit - 1,
        *(x for x in (high, pad_from) if x is not None),
    ]
    cells = {}
    for w in range(max(tops), unit - 1, -1):
        digit = digits >> (w - unit) & 1
        if digit or (high is not None and low is not None and low <= w <= high):
            cells[w] = str(digit), shade
        elif pad_from is not None and w <= max(pad_from, tops[0]):
            cells[w] = "0", "pad"
    if high is not None and low is not None:
        for w in range(min(high, unit - 1), low - 1, -1):
            cells[w] = str(n >> (w - q) & 1), "cut"
    return cells


def _term_row(term: Aligned, name: str, detail: str, pad_from: int | None, *, aligned: bool) -> Row:
    # The exponent of a sum, such as T, places it; its digits begin at the leading one.
    begins = term.e if "*" in term.name or term.name == "c" else None
    cells = _bits((term.n, term.q), (term.kept, term.unit), "kept", exponent=begins,
                  pad_from=pad_from)  # fmt: skip
    cut, left_out = term.cut, ""
    about = f"{name} = {hex_float(term.n, term.q)}, exponent {term.e}"
    if cut[0]:
        about += f"; kept {hex_float(term.kept, term.unit)}, cut {hex_float(*cut)}"
        left_out = f"cut {_decimal(*cut, 6)}"
    away = cut[0] and (cut[0] < 0) != (term.n < 0)
    if away:
        left_out = f"rounded {'down' if cut[0] > 0 else 'up'} by {_decimal(abs(cut[0]), cut[1], 6)}"
    return Row(name, detail, _signed(term.e), _sign(term.n), cells, term.unit if aligned else None,
               left_out, "mark" if away else "dim", about)  # fmt: skip


class _Value(NamedTuple):
    """A sum, or what a rounding made of one."""

    name: str
    detail: str
    number: tuple[int, int]
    said: str  # its value in words


def _value_rows(
    values: Sequence[_Value], terms: Sequence[Row], pad_from: int | None, *, ends_in_result: bool
) -> Iterator[Row]:
    """A sum and its successive roundings, a row each; grey is what the next one takes away.

    Zeros behind are drawn as far as the summands reach.
    """
    drawn = [
        w for row in terms for w, (_, s) in row.cells.items() if pad_from is None or s != "cut"
    ]
    floor = min(drawn, default=None)
    for i, value in enumerate(values):
        last = i == len(values) - 1
        shade = "result" if ends_in_result and last else "sum"
        n, q = value.number
        if floor is not None and floor > q:
            zeros = min((n & -n).bit_length() - 1, floor - q) if n else floor - q
            n, q = n >> zeros, q + zeros
        unit = q if last else max(q, values[i + 1].number[1])
        cells = _bits((n, q), (abs(n) >> (unit - q), unit), shade, pad_from=pad_from)
        leading = abs(n).bit_length() - 1 + q
        cells |= {w: (cells.get(w, "0")[0], shade) for w in range(leading, unit - 1, -1)}
        style = "result" if shade == "result" else ""
        yield Row(
            value.name, value.detail, "", _sign(n), cells, unit if unit > q else None,
            _equals("", value.said).strip(), style, f"{value.name} = {hex_float(n, q)}",
        )  # fmt: skip


def _sign(n: int) -> str:
    return "−" if n < 0 else "+" if n else ""


def panels(trace: Trace) -> Iterator[Panel]:
    """The panels of a trace, in order; steps that add nothing are one of words."""
    steps = list(enumerate(trace.steps))
    quiet = {i for i, step in steps if i and _is_quiet(trace, i, step)}
    kinds = groupby(steps, lambda s: (s[0] in quiet, _is_plain(s[1])))
    for (is_quiet, plain), some in kinds:
        group = [i for i, _ in some]
        if is_quiet:
            said = _value(trace.d_format, trace.steps[group[-1]].result)
            what = "One more step" if len(group) == 1 else f"{len(group)} more steps"
            yield Panel(_equals(f"{what}: every product is 0, still d", said))
        elif plain:
            yield from _exact_panels(trace, group)
        else:
            yield from (_panel(trace, i) for i in group)


def _exact_panels(trace: Trace, steps: Sequence[int]) -> Iterator[Panel]:
    """Steps that align nothing (FMA, E-FDPA) share a grid as long as it does not get too wide."""
    shared: list[list[int]] = []
    span: list[int] = []
    for i in steps:
        block = _block(trace, i)
        weights = [w for row in (*block.terms, *block.sums) for w in row.cells] or [0]
        joint = [*span, *weights]
        if shared and max(joint) - min(joint) < _SHARED_COLUMNS:
            shared[-1].append(i)
            span = joint
        else:
            shared.append([i])
            span = weights
    for group in shared:
        if len(group) == 1:
            yield Panel(_heading(trace, group[0]), (_block(trace, group[0]),))
            continue
        heading = f"{_numbered(trace, group[0], group[-1])}each sum exact, rounded once"
        blocks = [_block(trace, i)._replace(caption=_heading(trace, i)) for i in group]
        if isinstance(trace.model, _CHAINS):  # from the second on, c is the row above it
            blocks[1:] = [
                block._replace(terms=tuple(row for row in block.terms if row.name != "c"))
                for block in blocks[1:]
            ]
        yield Panel(heading, tuple(blocks))


def _is_plain(step: Step) -> bool:
    return step.e_max is None and not step.notes


def _is_quiet(trace: Trace, i: int, step: Step) -> bool:
    """Whether a step has no product but zeros and hands on what it was given."""
    before = trace.steps[i - 1]
    return (
        isinstance(trace.model, _CHAINS)
        and bool(step.terms)
        and all(t.n == 0 for t in step.terms if t.name != "c")
        and (step.result, step.format) == (before.result, before.format)
    )


def _is_t(trace: Trace, i: int) -> bool:
    """Whether a step is one of the instructions that a lowered one is made of."""
    return isinstance(trace.model, Lowered) and trace.steps[i].title.startswith("t ")


def _result_name(trace: Trace, i: int) -> str:
    """What the result of a step is called: d, unless the title says otherwise."""
    name, equals, _ = trace.steps[i].title.partition(" = ")
    return "t" if _is_t(trace, i) else name if equals else "d"


def _incoming(trace: Trace, i: int) -> Step | None:
    """The step whose result is this one's c; None for the c that was given, and for t = 0."""
    into_t = _is_t(trace, i)
    for j in range(i - 1, -1, -1):
        if _is_t(trace, j) == into_t:
            return trace.steps[j]
        if into_t:  # a d: the next t begins at 0
            return None
    return None


def _numbered(trace: Trace, first: int, last: int) -> str:
    if len(trace.steps) == 1:
        return ""
    if first == last:
        return f"Step {first + 1} of {len(trace.steps)}: "
    return f"Steps {first + 1}–{last + 1} of {len(trace.steps)}: "


def _heading(trace: Trace, i: int) -> str:
    title = trace.steps[i].title
    before = _numbered(trace, i, i)
    if not before:
        title = title[0].upper() + title[1:]
    return before + _dashes(term_name(title))


def _dashes(text: str) -> str:
    words = (
        word.replace("-", "–") if word.replace("-", "").rstrip(",").isdigit() else word
        for word in text.split(" ")
    )
    return " ".join(words)


def _panel(trace: Trace, i: int) -> Panel:
    step, heading = trace.steps[i], _heading(trace, i)
    if step.specials:
        return Panel(heading, (_special_block(trace, i),))
    words: tuple[str, ...] = step.notes
    blocks: tuple[Block, ...]
    if step.stages:
        blocks = tuple(_stage_blocks(trace, i))
        words = tuple(note for note in step.notes if "flushed" in note or "counts as 0" in note)
    else:
        blocks = (_block(trace, i),)
    if not blocks[-1].sums:
        code = code_text(step.format, step.result)
        words = (*words, f"{_result_name(trace, i)} = {code} = {_value(step.format, step.result)}")
    marks = () if step.e_max is None else (step.e_max, *sorted({t.unit for t in step.terms}))
    whole = None
    if step.e_max is not None:
        whole = max(min(t.unit for t in step.terms), step.e_max - _WHOLE_COLUMNS)
    table = tuple(_group_products(trace, step)) if isinstance(trace.model, GSTFDPA) else ()
    return Panel(heading, blocks, tuple(map(term_name, words)), table, marks, whole)


def _special_block(trace: Trace, i: int) -> Block:
    """What is no number, and the result."""
    step = trace.steps[i]
    rows = []
    for name, kind in step.specials:
        term = Aligned(name, 0, 0, 0, 0, 0)
        name, detail = _labels(trace, i, term)
        said = _SPECIAL[kind]
        rows.append(Row(name, detail, "", "", {}, None, f"= {said}", "mark", f"{name} = {said}"))
    said = _value(step.format, step.result)
    end = Row("d", "", "", "", {}, None, f"= {said}", "result", f"d = {said}")
    return Block("No numbers, which decide before anything is aligned", tuple(rows), (end,))


_SPECIAL = {"nan": "NaN", "+inf": "+∞", "-inf": "−∞"}


def _block(trace: Trace, i: int) -> Block:
    """A step of one sum."""
    step = trace.steps[i]
    unit_model = trace.model.unit if isinstance(trace.model, Lowered) else trace.model
    terms, pad_from, caption = step.terms, step.e_max, ""
    if step.e_max is None:  # a product of zero adds nothing
        terms = tuple(t for t in terms if t.n or t.name in ("c", "t"))
    else:
        unit, caption = terms[-1].unit, f"e_max = {_signed(step.e_max)}"
        if isinstance(unit_model, TFDPA | STFDPA | GSTFDPA):
            caption += (
                f": all cut toward zero below {power(unit)} = 2^(e_max − {step.e_max - unit})"
            )
    rows = tuple(_term_rows(trace, i, terms, pad_from, aligned=step.e_max is not None))
    if step.total is None:
        return Block(caption, rows, ())
    return Block(caption, rows, tuple(_end_rows(trace, i, unit_model, rows, pad_from, [])))


def _end_rows(
    trace: Trace,
    i: int,
    unit_model: Model,
    terms: Sequence[Row],
    pad_from: int | None,
    before: list[_Value],
) -> Iterator[Row]:
    """The step's sum and its result."""
    step = trace.steps[i]
    assert step.total is not None
    name = _result_name(trace, i)
    said = "sum, exact" if isinstance(trace.model, (*_CHAINS, Lowered)) else "sum"
    values = before or [_Value("Σ", said, step.total, _decimal(*step.total))]
    result = result_number(step, unit_model)
    said = _value(step.format, step.result)
    if result is None:
        yield from _value_rows(values, terms, pad_from, ends_in_result=False)
        yield Row(name, step.rounding, "", "", {}, None, f"beyond the largest number: {said}",
                   "mark", f"{name} = {said}")  # fmt: skip
        return
    values = [*values, _Value(name, step.rounding, result, said)]
    yield from _value_rows(values, terms, pad_from, ends_in_result=True)


def _term_rows(
    trace: Trace, i: int, terms: Sequence[Aligned], pad_from: int | None, *, aligned: bool
) -> Iterator[Row]:
    for term, count, last, _ in runs(terms, [""] * len(terms)):
        members = terms[terms.index(term) : terms.index(last) + 1]
        if count <= 3:
            for member in members:
                row = _term_row(member, *_labels(trace, i, member), pad_from, aligned=aligned)
                flushed = _flushed(trace, i, member)
                yield row._replace(note=flushed, note_style="mark") if flushed else row
            continue
        details = {_labels(trace, i, member)[1] for member in members}
        name = "…".join(_labels(trace, i, end)[0] for end in (term, last))
        what = details.pop() if len(details) == 1 else "equal products"
        yield _term_row(term, name, f"{count} times {what}", pad_from, aligned=aligned)


def _labels(trace: Trace, i: int, term: Aligned) -> tuple[str, str]:
    """A summand's name, and what it is made of."""
    name = term_name(term.name)
    if name == "c":
        if not isinstance(trace.model, (*_CHAINS, Lowered)):
            return "c", _decimal(term.n, term.q)
        before = _incoming(trace, i)
        if _is_t(trace, i):
            return "t", "so far" if before else "0"
        if before is None:
            return "c", _value(trace.c_format, trace.c, 5)
        return "c", _equals("d", _value(before.format, before.result, 5))
    if name == "t":
        return "t", _decimal(term.n, term.q)
    if name.startswith("group "):
        return _dashes(name), _group_text(trace, term, int(name.split()[1].split("-")[0]))
    if name.startswith("scales of a"):
        pair = _scales(trace, int(name[11 : name.index("·")])) or ()
        return name, " × ".join(_value(trace.scale_format or "ue8m0", s, 5) for s in pair)
    if not name.startswith("a") or "·" not in name:
        return name.replace("T_", "T "), _decimal(term.n, term.q)
    k = int(name[1 : name.index("·")])
    if k >= len(trace.a):
        return name, "0 × 0"
    x, y = _value(trace.a_format, trace.a[k], 5), _value(trace.b_format, trace.b[k], 5)
    detail = f"{x} × {y}"
    if "≈" in detail:
        detail = f"≈ {detail.replace('≈ ', '')}"
    scales = _scales(trace, k)
    if scales:
        fmt = formats.get(trace.scale_format or "ue8m0")
        detail += f" × {power(sum(fmt.decode(scale).exponent for scale in scales))}"
    return name, detail


def _flushed(trace: Trace, i: int, term: Aligned) -> str:
    """FTZ-MulAdd: a word where something that is not 0 counts as 0."""
    if not isinstance(trace.model, FTZMulAdd) or term.n:
        return ""
    if term.name == "c":
        given = _incoming(trace, i) is None and trace.c & ~formats.get(trace.c_format).sign_bit
        return "flushed to 0" if given else ""
    k = int(term.name[1:].partition("*")[0]) if "*" in term.name else len(trace.a)
    product = trace.products[k] if k < len(trace.a) else None
    return "flushed to 0" if isinstance(product, Term) and product.n else ""


def _scales(trace: Trace, k: int) -> tuple[int, int] | None:
    if not trace.scale_a:
        return None
    block = len(trace.a) // len(trace.scale_a)
    at = min(k // block, len(trace.scale_a) - 1)
    return trace.scale_a[at], trace.scale_b[at]


def _group_text(trace: Trace, term: Aligned, start: int) -> str:
    """GST-FDPA: the sum of a group's products and its scales."""
    assert isinstance(trace.model, GSTFDPA)
    products = [p for p in trace.products[start : start + trace.model.G] if not isinstance(p, str)]
    q = min((p.q for p in products), default=0)
    text = _decimal(sum(p.n << (p.q - q) for p in products), q)
    scales = _scales(trace, start)
    if scales:
        fmt = trace.scale_format or "ue8m0"
        text += "".join(f" × {_value(fmt, s, 5)}" for s in scales)
    return text


def _group_products(trace: Trace, step: Step) -> Iterator[tuple[str, ...]]:
    """The products of each group as numbers, where they are short."""
    assert isinstance(trace.model, GSTFDPA)
    for term in step.terms:
        if term.name == "c":
            continue
        start = int(term.name.split()[1].split("-")[0])
        products = trace.products[start : start + trace.model.G]
        yield (
            f"Σ {start}–{start + trace.model.G - 1}",
            *(p if isinstance(p, str) else _decimal(p.n, p.q, 2) for p in products),
        )


def _stage_blocks(trace: Trace, i: int) -> Iterator[Block]:
    """A step of several sums: TR-FDPA, GTR-FDPA and FTZ-MulAdd."""
    step = trace.steps[i]
    exact = {}
    for stage in step.stages:
        if stage.total is None:  # FTZ-MulAdd's products, which are drawn where they are added
            exact = {t.name: t for t in stage.terms}
            continue
        last = stage is step.stages[-1]
        pad_from = stage.e_max
        terms = [exact.get(t.name, t) for t in stage.terms]
        rows = tuple(_term_rows(trace, i, terms, pad_from, aligned=stage.e_max is not None))
        total = stage.total
        name = term_name(total.name).replace("T_", "T ")
        before, after = (total.n, total.q), (total.kept, total.unit)
        values = [_Value(name, "sum, exact", before, _decimal(*before))]
        if total.cut[0]:
            mode = "RD" if isinstance(trace.model, TRFDPA | GTRFDPA) else step.rounding
            values = [
                _Value("Σ", "sum, exact", before, _decimal(*before)),
                _Value(name, mode, after, _decimal(*after)),
            ]
        caption = _stage_caption(trace.model, stage)
        if not last:
            yield Block(
                caption, rows, tuple(_value_rows(values, rows, pad_from, ends_in_result=False))
            )
        elif isinstance(trace.model, FTZMulAdd):
            values[-1] = values[-1]._replace(said=_value(step.format, step.result))
            yield Block(
                caption, rows, tuple(_value_rows(values, rows, pad_from, ends_in_result=True))
            )
        else:
            yield Block(
                caption, rows, tuple(_end_rows(trace, i, trace.model, rows, pad_from, values))
            )


def _stage_caption(model: Model, stage: Stage) -> str:
    if isinstance(model, FTZMulAdd):
        return f"{term_name(stage.title)}, RNE-FP32"
    title = stage.title.replace("T_", "T ")
    title = title[0].upper() + title[1:]
    assert stage.total is not None
    if stage.e_max is None:
        return f"{title}: none but 0" if not stage.terms else title
    units = [f"{term_name(t.name).replace('T_', 'T ')} to {power(t.unit)}" for t in stage.terms]
    if stage.title == "T and c":
        text = f"{title}, E = {_signed(stage.e_max)}: rounded down, {' and '.join(units)}"
        return f"{text}; their sum to {power(stage.total.unit)}"
    if stage.title == "T_even and T_odd":
        return f"{title}: rounded down to {power(stage.terms[0].unit)}"
    return (
        f"{title}, e_max = {_signed(stage.e_max)}: cut toward zero below "
        f"{power(stage.terms[0].unit)} = 2^(e_max − {stage.e_max - stage.terms[0].unit})"
    )


# --- words ----------------------------------------------------------------------------------------

_SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def power(exponent: int) -> str:
    return "2" + str(exponent).translate(_SUPERSCRIPTS)


def _signed(number: int) -> str:
    return str(number).replace("-", "−")


def _equals(name: str, said: str) -> str:
    return f"{name} {said}" if said.startswith("≈") else f"{name} = {said}"


def _decimal(n: int, q: int, digits: int = 9) -> str:
    """A number in decimal: exact where that is short, else "≈" and so many digits of it."""
    if n == 0:
        return "0"
    zeros = (n & -n).bit_length() - 1
    magnitude, q = abs(n) >> zeros, q + zeros
    text = exact_text(magnitude, q, digits + 5)
    if "p" in text:
        drop = max(magnitude.bit_length() - 60, 0)
        try:
            text = f"≈ {math.ldexp(magnitude >> drop, q + drop):.{digits}g}"
        except OverflowError:
            text = f"≈ {hex_float(magnitude >> drop, q + drop)}"
    return f"−{text}".replace("−≈ ", "≈ −") if n < 0 else text


def _value(fmt: str, code: int, digits: int = 9) -> str:
    """The value of a code in decimal, "≈" and so many digits where it would be longer than that."""
    value = value_of(fmt, code)
    if not math.isfinite(value) or not value:
        text = value_text(fmt, code).replace("-", "−")
        return text.replace("inf", "∞").replace("nan", "NaN")
    text = repr(value).removesuffix(".0")
    exact = len(text) <= digits + 2 and Fraction(text) == Fraction(value)
    text = text if exact else f"{value:.{digits}g}"
    return f"{'' if exact else '≈ '}{text.replace('-', '−', 1 if value < 0 else 0)}"


def about(model: Model) -> str:
    """How the family computes, in a sentence or two."""
    cut = "cut toward zero (RZ) below 2^(e_max − {F}), e_max being their largest exponent"
    once = "what is left is summed exactly and rounded once ({rho})"
    text = {
        FMA: "A chain of fused multiply-adds: each product and the running d are added exactly and "
        "rounded once ({rho}).",
        FTZMulAdd: "Plain FP32 arithmetic: every product and every sum is rounded (RNE-FP32); a "
        "subnormal operand or result counts as 0.",
        EFDPA: "{L} products and c are summed exactly and rounded once ({rho}).",
        TFDPA: "Products are exact. They and c are " + cut + "; " + once + ".",
        STFDPA: "Products are exact, and the block scales move their exponents. They and c are "
        + cut + "; " + once + ".",
        GSTFDPA: "{G} products at a time are summed exactly and multiplied by their block's two "
        "scales. These sums and c are " + cut + "; " + once + ".",
        TRFDPA: "Products are exact; they are cut toward zero {F} bits below their own largest "
        "exponent and summed to T. Then T and c are rounded down (RD, toward −∞) under their joint "
        "exponent E, and so is their sum, which is rounded once more ({rho}).",
        GTRFDPA: "Products of even and of odd index are cut toward zero {F} bits below their own "
        "largest exponents and summed apart; both sums, then T and c, are rounded down (RD, toward "
        "−∞) as they meet, and the last sum is rounded once more ({rho}).",
        Lowered: "The compiler makes two instructions of the f16 unit and one addition of this: t "
        "takes the products of each part in turn, and d = t + c is rounded once.",
        FDPA: "A general fused sum: products and c are exact, cut as the parameters say, summed "
        "and rounded ({rho}).",
        SumTree: "A sum in the order of its tree: each node is the exact sum of its children, "
        "rounded ({rho}).",
    }.get(type(model), "")  # fmt: skip
    values = {name: getattr(model, name, "") for name in ("L", "G", "F", "rho")}
    for name, value in values.items():
        text = text.replace("{" + name + "}", str(value))
    return text


def outcome(trace: Trace) -> tuple[str, str]:
    """The result, and how far it lies from the exact dot product."""
    said = _equals("d", _value(trace.d_format, trace.result))
    exact = _exact(trace)
    kind, sign, significand, e = formats.get(trace.d_format).decode(trace.result)
    if exact is None or kind in (Kind.NAN, Kind.INF):
        return said, ""
    n, q = -significand if sign else significand, e - formats.get(trace.d_format).mantissa_bits
    low = min(q, exact[1])
    error = (n << (q - low)) - (exact[0] << (exact[1] - low))
    if error == 0:
        return said, "exactly a·b + c"
    parts = (_equals("exact a·b + c", _decimal(*exact)), _equals("d − exact", _decimal(error, low)))
    return said, ", ".join(parts)


def _exact(trace: Trace) -> tuple[int, int] | None:
    """a·b + c with the scales, exactly; None where something is no number."""
    c = formats.get(trace.c_format).decode(trace.c)
    if c.kind in (Kind.NAN, Kind.INF):
        return None
    bits = formats.get(trace.c_format).mantissa_bits
    numbers = [(-c.significand if c.sign else c.significand, c.exponent - bits)]
    for k, product in enumerate(trace.products):
        if isinstance(product, str):
            return None
        n, q = product.n, product.q
        fmt = formats.get(trace.scale_format or "ue8m0")
        for code in _scales(trace, k) or ():
            scale = fmt.decode(code)
            if scale.kind is Kind.NAN:
                return None
            n, q = n * scale.significand, q + scale.exponent - fmt.mantissa_bits
        numbers.append((n, q))
    low = min(q for _, q in numbers)
    return sum(n << (q - low) for n, q in numbers), low
