"""What each model means, in exact Python integers: slow, short, to be read beside the papers.

This module decides what is right. Everything fast is tested against it, and `explain` shows its
steps. A number is a pair (n, q), worth exactly ``n * 2**q``; nothing is ever rounded but where a
model says so.

Sources: Xie et al., arXiv 2511.10909v2, section 4 (the models); Khattak and Mikaitis,
arXiv 2512.07004 (recordings that confirm T-FDPA on eight NVIDIA GPUs).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

from bitmma import formats
from bitmma.formats import Decoded, Format, Kind, round_shift
from bitmma.models import (
    EFDPA,
    FMA,
    GSTFDPA,
    GTRFDPA,
    RNE_FP32,
    STFDPA,
    TFDPA,
    TRFDPA,
    Conversion,
    FTZMulAdd,
    Lowered,
    Model,
)

__all__ = ["Aligned", "Step", "Term", "Trace", "chain", "dpa", "promoted_chain", "trace"]


class Term(NamedTuple):
    """One summand: worth exactly ``n * 2**q``, aligned by exponent ``e``."""

    name: str
    n: int
    q: int
    e: int


class Aligned(NamedTuple):
    """A summand after alignment: ``kept * 2**unit`` of it entered the sum."""

    name: str
    n: int
    q: int
    e: int
    kept: int
    unit: int

    @property
    def cut(self) -> tuple[int, int]:
        """What alignment changed, ``value - kept``, as (n, q)."""
        q = min(self.q, self.unit)
        return (self.n << (self.q - q)) - (self.kept << (self.unit - q)), q


@dataclass(frozen=True)
class Step:
    """One fused step: terms in, one rounded number out.

    Attributes:
        title: what happens, e.g. ``"products 0-15 and c"``.
        terms: the summands with what alignment kept of them.
        e_max: the exponent they were aligned to; None where nothing is aligned.
        total: the exact sum after alignment, as (n, q).
        notes: further stages in words (TR-FDPA's second sum, specials, flushed operands).
        rounding: the conversion applied to ``total``.
        format: the format of ``result``.
        result: the code this step returns, the next step's c.
    """

    title: str
    terms: tuple[Aligned, ...]
    e_max: int | None
    total: tuple[int, int] | None
    notes: tuple[str, ...]
    rounding: str
    format: str
    result: int


@dataclass(frozen=True)
class Trace:
    """Everything that happened to one dot product: see `trace`."""

    model: Model
    a: tuple[int, ...]
    b: tuple[int, ...]
    c: int
    a_format: str
    b_format: str
    c_format: str
    scale_format: str | None
    scale_a: tuple[int, ...]
    scale_b: tuple[int, ...]
    products: tuple[Term | str, ...]
    steps: tuple[Step, ...]
    result: int = field(kw_only=True)

    @property
    def d_format(self) -> str:
        return self.model.d


# --- the public face ------------------------------------------------------------------------------


def dpa(
    model: Model,
    a: Sequence[int],
    b: Sequence[int],
    c: int,
    *,
    a_format: str,
    b_format: str,
    c_format: str,
    scale_format: str | None = None,
    scale_a: Sequence[int] = (),
    scale_b: Sequence[int] = (),
    block: int | None = None,
) -> int:
    """One dot product-add: codes in, the code of d out, as one instruction would give it.

    Args:
        a, b: k codes each. A k that does not fill the last group is filled up with +0.
        c: one code of ``c_format``.
        scale_format, scale_a, scale_b, block: block scaling; ceil(k/block) codes each. Without
            ``block``, k divided among them evenly.
    """
    return trace(
        model, a, b, c, a_format=a_format, b_format=b_format, c_format=c_format,
        scale_format=scale_format, scale_a=scale_a, scale_b=scale_b, block=block,
    ).result  # fmt: skip


def chain(
    model: Model,
    a: Sequence[int],
    b: Sequence[int],
    c: int,
    *,
    k: int,
    a_format: str,
    b_format: str,
    c_format: str,
    scale_format: str | None = None,
    scale_a: Sequence[int] = (),
    scale_b: Sequence[int] = (),
    block: int | None = None,
) -> int:
    """A dot product of any length as a kernel does it: instructions of ``k`` products in a chain.

    The last instruction's missing products are +0, whatever their scales; K = 0 is one instruction
    of zero products. With scales, ``block`` products share one.
    """
    one = formats.get(scale_format).encode(1, 0) if scale_format else 0

    def part(codes: Sequence[int], start: int, length: int, fill: int) -> list[int]:
        found = list(codes[start : start + length])
        return found + [fill] * (length - len(found))

    for start in range(0, max(1, len(a)), k):
        scales = {}
        if scale_format:
            assert block is not None, "scales need a block length"
            at, count = start // block, -(-k // block)
            scales = {
                "scale_a": part(scale_a, at, count, one), "scale_b": part(scale_b, at, count, one)
            }  # fmt: skip
        c = dpa(
            model, part(a, start, k, 0), part(b, start, k, 0), c, a_format=a_format,
            b_format=b_format, c_format=c_format, scale_format=scale_format, block=block, **scales,
        )  # fmt: skip
        c_format = model.d
    return c


def promoted_chain(
    model: Model,
    a: Sequence[int],
    b: Sequence[int],
    c: int,
    *,
    k: int,
    promote: int,
    promote_scale_a: Sequence[int] = (),
    promote_scale_b: Sequence[int] = (),
    promote_fused: bool = True,
    scale_a: Sequence[int] = (),
    scale_b: Sequence[int] = (),
    block: int | None = None,
    **formats_given: Any,
) -> int:
    """A chain of every ``promote`` products, from +0; their results added outside the unit.

    The sum is f32 (f64 where the model's d is), starts from c, a code of that format, and takes the
    results r in order: fma(s, r, acc), or acc + RN(s * r), where s = RN(scale_a * scale_b) or the
    scale that is there, and without scales acc + r; IEEE, to nearest. K = 0 is one chain of no
    products, without scales.

    Args:
        promote: a multiple of k and of ``block``. promote_scale_a, promote_scale_b: codes of f32,
            ceil(K/promote) of them or none. All else as for `chain`.
    """
    wide = formats.get("f64" if model.d == "f64" else "f32")
    rho = Conversion("RNE", wide.name)
    acc, one = _Operand(wide, c), _Operand(wide, wide.encode(1, 0))
    for n, start in enumerate(range(0, max(1, len(a)), promote)):
        of_part = slice(start, start + promote)
        blocks = slice(start // block, -(-(start + promote) // block)) if block else slice(0)
        r = chain(
            model, a[of_part], b[of_part], 0, k=k, block=block, scale_a=scale_a[blocks],
            scale_b=scale_b[blocks], **formats_given,
        )  # fmt: skip
        x, s = _Operand(formats.get(model.d), r), one
        for codes in (promote_scale_a, promote_scale_b):
            if codes:
                s = _multiply_add(model, s, _Operand(wide, codes[n]), None, rho)
        if not promote_fused:
            x, s = _multiply_add(model, s, x, None, rho), one
        acc = _multiply_add(model, s, x, acc, rho)
    return acc.code


def _multiply_add(
    model: Model, x: _Operand, y: _Operand, z: _Operand | None, rho: Conversion
) -> _Operand:
    """x*y + z, rounded once by IEEE rules; without z, the product alone."""
    fmt = formats.get(rho.format)
    work = _Work(model, [x], [y], [], [])
    sign = x.sign ^ y.sign
    if z is None:  # to which this zero is nothing
        z = _Operand(fmt, fmt.sign_bit if sign else 0)
    special = _specials([work.special_product(0)], z)
    if special:
        return _Operand(fmt, _special_code(model, fmt, special))
    product = work.product(0)
    code, _ = _ieee_add((product.n, product.q, sign), (z.n, z.q, z.sign), rho)
    return _Operand(fmt, code)


def trace(
    model: Model,
    a: Sequence[int],
    b: Sequence[int],
    c: int,
    *,
    a_format: str,
    b_format: str,
    c_format: str,
    scale_format: str | None = None,
    scale_a: Sequence[int] = (),
    scale_b: Sequence[int] = (),
    block: int | None = None,
) -> Trace:
    """The same with every step kept: what `explain` shows. Arguments as `dpa`."""
    if len(a) != len(b):
        raise ValueError(f"a has {len(a)} elements and b has {len(b)}")
    fill = [0] * (-len(a) % model.group)
    work = _Work(
        model,
        [_Operand(formats.get(a_format), x) for x in [*a, *fill]],
        [_Operand(formats.get(b_format), x) for x in [*b, *fill]],
        [_Operand(formats.get(scale_format), x) for x in scale_a] if scale_format else [],
        [_Operand(formats.get(scale_format), x) for x in scale_b] if scale_format else [],
        block=(block or len(a) // len(scale_a)) if scale_a else 0,
    )
    steps: list[Step] = []
    code, fmt = c, formats.get(c_format)
    for start in range(0, len(work.a), model.group):
        new = _GROUP[type(model)](work, start, _Operand(fmt, code))
        steps += new
        code, fmt = new[-1].result, formats.get(model.d)
    if not steps:  # k = 0
        zero = _Operand(formats.get(a_format), 0), _Operand(formats.get(b_format), 0)
        work.a, work.b = [zero[0]] * model.group, [zero[1]] * model.group
        steps = _GROUP[type(model)](work, 0, _Operand(fmt, code))
        code = steps[-1].result
    return Trace(
        model, tuple(a), tuple(b), c, a_format, b_format, c_format, scale_format,
        tuple(scale_a), tuple(scale_b), tuple(work.shown(i) for i in range(len(a))),
        tuple(steps), result=code,
    )  # fmt: skip


# --- operands and products ------------------------------------------------------------------------


class _Operand:
    """A code and what it decodes to."""

    __slots__ = ("code", "e", "fmt", "kind", "n", "q", "sign")

    def __init__(self, fmt: Format, code: int) -> None:
        decoded: Decoded = fmt.decode(code)
        self.fmt, self.code = fmt, code
        self.kind, self.sign, significand, self.e = decoded
        self.n = -significand if self.sign else significand
        self.q = self.e - fmt.mantissa_bits


@dataclass
class _Work:
    """One dot product under evaluation."""

    model: Model
    a: list[_Operand]
    b: list[_Operand]
    scale_a: list[_Operand]
    scale_b: list[_Operand]
    block: int = 0  # products that share a scale

    def product(self, i: int) -> Term:
        """a[i]*b[i], exact and never renormalised: its exponent is e_a + e_b (section 2)."""
        a, b = self.a[i], self.b[i]
        return Term(f"a{i}*b{i}", a.n * b.n, a.q + b.q, a.e + b.e)

    def special_product(self, i: int) -> str | None:
        """ "nan", "+inf" or "-inf" where the product is no number."""
        a, b = self.a[i], self.b[i]
        if Kind.NAN in (a.kind, b.kind):
            return "nan"
        if Kind.INF in (a.kind, b.kind):
            return "nan" if Kind.ZERO in (a.kind, b.kind) else _inf_name(a.sign ^ b.sign)
        return None

    def shown(self, i: int) -> Term | str:
        return self.special_product(i) or self.product(i)

    def scales(self, start: int) -> tuple[_Operand, _Operand] | None:
        """The scales of the block that holds element ``start``."""
        if not self.scale_a:
            return None
        i = min(start // self.block, len(self.scale_a) - 1)  # filled-up products are zero
        return self.scale_a[i], self.scale_b[i]


def _inf_name(sign: int) -> str:
    return "-inf" if sign else "+inf"


def _specials(found: Sequence[str | None], c: _Operand) -> str | None:
    """NaN in: NaN; Inf-Inf: NaN; otherwise any Inf is the result. Decided before alignment."""
    seen = {s for s in found if s}
    if c.kind is Kind.NAN:
        seen.add("nan")
    if c.kind is Kind.INF:
        seen.add(_inf_name(c.sign))
    if not seen:
        return None
    return seen.pop() if len(seen) == 1 else "nan"


def _special_code(model: Model, fmt: Format, special: str) -> int:
    if special == "nan":
        return fmt.nan_code if model.nan == "quiet" else (1 << (fmt.width - 1)) - 1
    return fmt.inf_code | (fmt.sign_bit if special == "-inf" else 0)


def _special_step(model: Model, title: str, special: str) -> Step:
    fmt = formats.get(model.d)
    code = _special_code(model, fmt, special)
    note = f"special values decide: {special}"
    return Step(title, (), None, None, (note,), "none", model.d, code)


# --- alignment, sums, conversion ------------------------------------------------------------------


def _align(term: Term, unit: int, rounding: str = "RZ") -> Aligned:
    """The term rounded to a multiple of 2**unit."""
    return Aligned(*term, round_shift(term.n, unit - term.q, rounding), unit)


def _convert(n: int, q: int, rho: Conversion, *, negative_zero: bool = False) -> int:
    return formats.get(rho.format).encode(
        n, q, rho.mode, mantissa_bits=rho.mantissa_bits, negative_zero=negative_zero
    )


def _exact_sum(numbers: Sequence[tuple[int, int]]) -> tuple[int, int]:
    q = min(q for _, q in numbers)
    return sum(n << (p - q) for n, p in numbers), q


def _exponent(n: int, q: int) -> int:
    """floor(log2 |n * 2**q|) of a non-zero number."""
    return abs(n).bit_length() - 1 + q


def _range(start: int, length: int) -> str:
    return f"products {start}-{start + length - 1}" if length > 1 else f"product {start}"


# --- 1. FMA ---------------------------------------------------------------------------------------


def _fma(work: _Work, start: int, c: _Operand) -> list[Step]:
    """d = fma(a, b, c): one rounding, subnormals kept, IEEE signs of zero."""
    model = work.model
    assert isinstance(model, FMA)
    title = f"fma of product {start} and c"
    special = _specials([work.special_product(start)], c)
    if special:
        return [_special_step(model, title, special)]
    p = work.product(start)
    p_sign = work.a[start].sign ^ work.b[start].sign
    result, total = _ieee_add((p.n, p.q, p_sign), (c.n, c.q, c.sign), model.rho)
    terms = (Aligned(*p, p.n, p.q), Aligned("c", c.n, c.q, c.e, c.n, c.q))
    return [Step(title, terms, None, total, (), str(model.rho), model.d, result)]


def _ieee_add(
    x: tuple[int, int, int], y: tuple[int, int, int], rho: Conversion
) -> tuple[int, tuple[int, int]]:
    """IEEE x + y of signed numbers (n, q, sign); a zero sum is -0 only if both are -0."""
    total = _exact_sum([x[:2], y[:2]])
    both_negative_zeros = x[0] == y[0] == 0 and x[2] == y[2] == 1
    return _convert(*total, rho, negative_zero=both_negative_zeros), total


# --- 2. FTZ-MulAdd --------------------------------------------------------------------------------


def _ftz_mul_add(work: _Work, start: int, c: _Operand) -> list[Step]:
    """FP32 multiplies and adds; subnormal operands become +0, subnormal results lose all but sign.

    c is flushed once an instruction: inside, d keeps the sign of its zeros.
    """
    model = work.model
    assert isinstance(model, FTZMulAdd)
    fp32 = formats.get("f32")
    notes: list[str] = []

    def flushed_operand(x: _Operand, name: str) -> _Operand:
        if x.kind is Kind.ZERO or (x.kind is Kind.FINITE and not _is_normal(x)):
            if x.code:
                notes.append(f"{name} flushed to +0")
            return _Operand(x.fmt, 0)
        return x

    def flush(code: int) -> _Operand:
        x = _Operand(fp32, code)
        if x.kind is Kind.FINITE and not _is_normal(x):
            notes.append(f"subnormal intermediate {code:#010x} flushed")
            return _Operand(fp32, code & fp32.sign_bit)
        return x

    def special(kind: str | None) -> _Operand | None:
        return _Operand(fp32, _special_code(model, fp32, kind)) if kind else None

    def add(x: _Operand, y: _Operand) -> _Operand:
        bad = special(_specials([_as_special(x)], y))
        return bad or flush(_ieee_add((x.n, x.q, x.sign), (y.n, y.q, y.sign), RNE_FP32)[0])

    def multiply(i: int) -> _Operand:
        pair = _Work(
            model,
            [flushed_operand(work.a[i], f"a{i}")],
            [flushed_operand(work.b[i], f"b{i}")],
            [],
            [],
        )
        bad = special(pair.special_product(0))
        p, sign = pair.product(0), pair.a[0].sign ^ pair.b[0].sign
        return bad or flush(_convert(p.n, p.q, RNE_FP32, negative_zero=bool(sign)))

    if start == 0:
        c = flushed_operand(c, "c")
    products = [multiply(start + i) for i in range(model.P)]
    names = [f"a{start + i}*b{start + i}" for i in range(model.P)]
    sums = list(products)
    while len(sums) > 1:
        sums = [add(sums[i], sums[i + 1]) for i in range(0, len(sums), 2)]
    d = add(c, sums[0])
    if d.kind is Kind.NAN:
        d = _Operand(fp32, fp32.nan_code)
    ends = [*zip(names, products, strict=True), ("c", c)]
    terms = tuple(Aligned(name, x.n, x.q, x.e, x.n, x.q) for name, x in ends)
    order = "(p0 + p1)" if model.P == 2 else "((p0 + p1) + (p2 + p3))"
    notes += [f"{name} is {_as_special(x)}" for name, x in ends if _as_special(x)]
    notes.insert(0, f"d = c + {order}, each operation rounded to FP32")
    return [
        Step(_range(start, model.P) + " and c", terms, None, None, tuple(notes), "RNE-FP32", "f32",
             d.code)
    ]  # fmt: skip


def _is_normal(x: _Operand) -> bool:
    return abs(x.n) >> x.fmt.mantissa_bits != 0


def _as_special(x: _Operand) -> str | None:
    if x.kind is Kind.NAN:
        return "nan"
    return _inf_name(x.sign) if x.kind is Kind.INF else None


# --- 3. E-FDPA ------------------------------------------------------------------------------------


def _e_fdpa(work: _Work, start: int, c: _Operand) -> list[Step]:
    """The exact sum of L products and c, rounded once; an exactly zero sum is +0."""
    model = work.model
    assert isinstance(model, EFDPA)
    lanes = range(start, start + model.L)
    title = _range(start, model.L) + " and c"
    special = _specials([work.special_product(i) for i in lanes], c)
    if special:
        return [_special_step(model, title, special)]
    terms = [*(work.product(i) for i in lanes), Term("c", c.n, c.q, c.e)]
    total = _exact_sum([(t.n, t.q) for t in terms])
    kept = tuple(Aligned(*t, t.n, t.q) for t in terms)
    return [
        Step(title, kept, None, total, (), str(model.rho), model.d, _convert(*total, model.rho))
    ]


# --- 4, 5. T-FDPA and ST-FDPA ---------------------------------------------------------------------


def _t_fdpa(work: _Work, start: int, c: _Operand) -> list[Step]:
    model = work.model
    assert isinstance(model, TFDPA | STFDPA)
    return [_truncated(work, model, range(start, start + model.L), c)]


def _truncated(
    work: _Work, model: TFDPA | STFDPA, lanes: Sequence[int], c: _Operand, title: str = ""
) -> Step:
    """All terms cut toward zero F bits below e_max, summed exactly, converted. Never -0."""
    title = title or _range(lanes[0], len(lanes)) + " and c"
    found = [work.special_product(i) for i in lanes]
    scales = work.scales(lanes[0])
    scale_exponent = 0
    if scales:
        if Kind.NAN in (scales[0].kind, scales[1].kind):
            found.append("nan")
        scale_exponent = scales[0].e + scales[1].e
    special = _specials(found, c)
    if special:
        return _special_step(model, title, special)
    products = [work.product(i) for i in lanes]
    terms = [Term(p.name, p.n, p.q + scale_exponent, p.e + scale_exponent) for p in products if p.n]
    terms.append(_c_term(c, model.e_zero))
    return _fused(model, title, terms)


def _c_term(c: _Operand, e_zero: int) -> Term:
    return Term("c", c.n, c.q, c.e if c.n else e_zero)


def _fused(model: TFDPA | STFDPA | GSTFDPA, title: str, terms: Sequence[Term]) -> Step:
    e_max = max(t.e for t in terms)
    aligned = tuple(_align(t, e_max - model.F) for t in terms)
    total = sum(t.kept for t in aligned), e_max - model.F
    code = _convert(*total, model.rho)
    fmt = formats.get(model.d)
    if code == fmt.sign_bit:
        code = 0  # a negative sum that rounds to zero gives +0 too
    return Step(title, aligned, e_max, total, (), str(model.rho), model.d, code)


# --- 6. GST-FDPA ----------------------------------------------------------------------------------


def _gst_fdpa(work: _Work, start: int, c: _Operand) -> list[Step]:
    """Exact sums of G products, times both scales with their significands, fused with c.

    A group's exponent is that of its scales alone; e_zero only if nothing in it is non-zero.
    """
    model = work.model
    assert isinstance(model, GSTFDPA)
    title = _range(start, model.L) + " and c"
    lanes = range(start, start + model.L)
    found = [work.special_product(i) for i in lanes]
    groups: list[tuple[int, _Operand | None, _Operand | None]] = []
    for first in range(start, start + model.L, model.G):
        scales = work.scales(first)
        alpha, beta = scales if scales else (None, None)
        if scales and Kind.NAN in (scales[0].kind, scales[1].kind):
            found.append("nan")
        groups.append((first, alpha, beta))
    special = _specials(found, c)
    if special:
        return [_special_step(model, title, special)]
    terms = []
    for first, alpha, beta in groups:
        products = [work.product(i) for i in range(first, first + model.G)]
        n, q = _exact_sum([(p.n, p.q) for p in products])
        exponent, empty = 0, all(p.n == 0 for p in products)
        for scale in (alpha, beta):
            if scale is not None:
                n, q, exponent = n * abs(scale.n), q + scale.q, exponent + scale.e
                empty = empty or scale.n == 0
        name = f"group {first}-{first + model.G - 1}"
        terms.append(Term(name, n, q, model.e_zero if empty else exponent))
    terms.append(_c_term(c, model.e_zero))
    return [_fused(model, title, terms)]


# --- 7, 8. TR-FDPA and GTR-FDPA -------------------------------------------------------------------

_FP32_MIN_EXPONENT = -126


def _tr_fdpa(work: _Work, start: int, c: _Operand) -> list[Step]:
    """Products cut (RZ) below their own e_max, no c; then joined with c, rounding down."""
    model = work.model
    assert isinstance(model, TRFDPA)
    lanes = range(start, start + model.L)
    title = _range(start, model.L) + " and c"
    found = [work.special_product(i) for i in lanes]
    products = [work.product(i) for i in lanes]
    # Step 0: a finite product of 2**128 or more counts as Inf.
    found += [_inf_name(p.n < 0) for p in products if p.n and _exponent(p.n, p.q) >= 128]
    special = _specials(found, c)
    if special:
        return [_special_step(model, title, special)]
    total, e, aligned = _products_alone([p for p in products if p.n], model.F)
    return [_join_c(model, title, aligned, total, e, c, drop_small_c=False)]


def _gtr_fdpa(work: _Work, start: int, c: _Operand) -> list[Step]:
    """As TR-FDPA, but even and odd products are cut and summed apart, then joined rounding down."""
    model = work.model
    assert isinstance(model, GTRFDPA)
    lanes = range(start, start + model.L)
    title = _range(start, model.L) + " and c"
    special = _specials([work.special_product(i) for i in lanes], c)
    if special:
        return [_special_step(model, title, special)]
    halves = []
    for parity in (0, 1):
        products = [work.product(i) for i in lanes if (i - start) % 2 == parity]
        halves.append(_products_alone([p for p in products if p.n], model.F))
    (even, e_even, terms_even), (odd, e_odd, terms_odd) = halves
    aligned = (*terms_even, *terms_odd)
    exponents = [e for e in (e_even, e_odd) if e is not None]
    e = max(exponents) if exponents else None
    total = (0, 0)
    if e is not None:
        unit = e - model.F
        joined = [round_shift(n, unit - q, "RD") for n, q in (even, odd)]
        total = joined[0] + joined[1], unit
    return [_join_c(model, title, aligned, total, e, c, drop_small_c=True)]


def _products_alone(
    products: Sequence[Term], F: int
) -> tuple[tuple[int, int], int | None, tuple[Aligned, ...]]:
    """Step 1: the sum of the products cut at their own e_max - F; (0, None) without any."""
    if not products:
        return (0, 0), None, ()
    e = max(p.e for p in products)
    aligned = tuple(_align(p, e - F) for p in products)
    return (sum(t.kept for t in aligned), e - F), e, aligned


def _join_c(
    model: TRFDPA | GTRFDPA,
    title: str,
    aligned: tuple[Aligned, ...],
    total: tuple[int, int],
    e_products: int | None,
    c: _Operand,
    *,
    drop_small_c: bool,
) -> Step:
    """Steps 2 to 4: align the products' sum and c to E rounding down, normalise, convert."""
    e_c = c.e if c.n else _FP32_MIN_EXPONENT  # a subnormal FP32 c has -126 anyway
    E = e_c if e_products is None else max(e_products, e_c)
    own = "no product but 0" if e_products is None else f"products' own e_max {e_products}"
    notes = [f"{own}, joint exponent E = {E}"]
    t = round_shift(total[0], E - (model.F2 + 1) - total[1], "RD")
    c_term = _align(Term("c", c.n, c.q, e_c), E - model.F, "RD")
    if drop_small_c and e_c < E - model.F - 1:
        c_term = c_term._replace(kept=0)
        notes.append("c lies below E - F - 1 and counts as 0")
    v = _exact_sum([(t, E - (model.F2 + 1)), (c_term.kept, E - model.F)])
    notes.append(
        f"sum of products, rounded down to multiples of 2^{E - model.F2 - 1}: "
        f"{_value_text(t, E - model.F2 - 1)}"
    )
    if v[0]:
        unit = max(_exponent(*v), _FP32_MIN_EXPONENT) - model.F2
        v = round_shift(v[0], unit - v[1], "RD"), unit
        notes.append(f"joint sum, rounded down to multiples of 2^{unit}: {_value_text(*v)}")
    code = _convert(*v, model.rho)
    return Step(title, (*aligned, c_term), E, v, tuple(notes), str(model.rho), model.d, code)


def _value_text(n: int, q: int) -> str:
    """``n * 2**q`` in a note: a decimal where a short one is exact."""
    zeros = (n & -n).bit_length() - 1 if n else 0
    n, q = n >> zeros, q + zeros if n else 0
    if abs(n) < 1 << 53 and -40 <= q <= 40:
        decimal = repr(math.ldexp(n, q)).removesuffix(".0")
        if len(decimal) <= 16 and Fraction(decimal) == Fraction(n) * Fraction(2) ** q:
            return decimal
    return f"{n}·2^{q}"


# --- 9. Lowered -----------------------------------------------------------------------------------


def _lowered(work: _Work, start: int, c: _Operand) -> list[Step]:
    """t = the f16 unit over each part in turn, from 0; then d = t + c, one IEEE addition."""
    model = work.model
    assert isinstance(model, Lowered)
    fmt = formats.get(model.d)
    period = sum(len(part) for part in model.parts)
    t, steps = _Operand(fmt, 0), []
    for part in model.parts:
        lanes = [start + i for i in range(model.K) if i % period in part]
        for j in range(0, len(lanes), model.unit.L):
            group = lanes[j : j + model.unit.L]
            title = f"t from products {', '.join(map(str, group))}"
            steps.append(_truncated(work, model.unit, group, t, title))
            t = _Operand(fmt, steps[-1].result)
    title, rounding = "d = t + c", Conversion("RNE", model.d)
    special = _specials([_as_special(t)], c)
    if special:
        return [*steps, _special_step(model, title, special)]
    code, total = _ieee_add((t.n, t.q, t.sign), (c.n, c.q, c.sign), rounding)
    terms = tuple(Aligned(name, x.n, x.q, x.e, x.n, x.q) for name, x in (("t", t), ("c", c)))
    return [*steps, Step(title, terms, None, total, (), str(rounding), model.d, code)]


_GROUP: dict[type[Model], Callable[[_Work, int, _Operand], list[Step]]] = {
    FMA: _fma,
    FTZMulAdd: _ftz_mul_add,
    EFDPA: _e_fdpa,
    TFDPA: _t_fdpa,
    STFDPA: _t_fdpa,
    GSTFDPA: _gst_fdpa,
    TRFDPA: _tr_fdpa,
    GTRFDPA: _gtr_fdpa,
    Lowered: _lowered,
}
