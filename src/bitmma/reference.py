"""What each model means, in exact Python integers: slow, short, to be read beside the papers.

This module decides what is right. Everything fast is tested against it, and `explain` shows its
steps. A number is a pair (n, q), worth exactly ``n * 2**q``; nothing is ever rounded but where a
model says so.

Sources: Xie et al., arXiv 2511.10909v2, section 4 (the models); Khattak and Mikaitis,
arXiv 2512.07004 (recordings that confirm T-FDPA on eight NVIDIA GPUs).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, NamedTuple

from bitmma import formats
from bitmma.formats import Decoded, Format, Kind, round_shift
from bitmma.models import (
    EFDPA,
    FDPA,
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
    SumTree,
    check_k,
)

__all__ = [
    "Aligned", "Stage", "Step", "Term", "Trace", "chain", "dpa", "promoted_chain", "trace",
]  # fmt: skip


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


class Stage(NamedTuple):
    """A sum within a step that has several.

    Attributes:
        title: what is summed, e.g. ``"even products"``.
        terms: the summands with what alignment kept of them.
        e_max: the exponent they were aligned to; None where nothing is aligned.
        total: the exact sum of what was kept and, as ``kept``, what goes on; later stages call it
            by its name. None where nothing is summed (FTZ-MulAdd's products).
    """

    title: str
    terms: tuple[Aligned, ...]
    e_max: int | None
    total: Aligned | None


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
        stages: the sums inside, in order, where there are several (TR-, GTR-FDPA, FTZ-MulAdd); the
            last one's is ``total``, or is rounded to ``result``. None of them if specials decide.
        specials: what decided where special values did, as (name, "nan", "+inf" or "-inf").
    """

    title: str
    terms: tuple[Aligned, ...]
    e_max: int | None
    total: tuple[int, int] | None
    notes: tuple[str, ...]
    rounding: str
    format: str
    result: int
    stages: tuple[Stage, ...] = ()
    specials: tuple[tuple[str, str], ...] = ()


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
    check_k(model, len(a), "the length of a")
    fill = [0] * (-len(a) % model.group)
    flush = getattr(model, "flush_in", "no")
    fa, fb = formats.get(a_format), formats.get(b_format)
    work = _Work(
        model,
        [_flushed(_operand(fa, x), flush) for x in [*a, *fill]],
        [_flushed(_operand(fb, x), flush) for x in [*b, *fill]],
        [_Operand(formats.get(scale_format), x) for x in scale_a] if scale_format else [],
        [_Operand(formats.get(scale_format), x) for x in scale_b] if scale_format else [],
        block=(block or len(a) // len(scale_a)) if scale_a else 0,
    )
    steps: list[Step] = []
    code, fmt = c, formats.get(c_format)
    together = isinstance(model, FDPA) and model.order == "pairwise"
    for start in range(0, len(work.a), len(work.a) if together else model.group):
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


_operand = functools.lru_cache(1 << 14)(_Operand)  # of narrow formats there are few


@dataclass
class _Work:
    """One dot product under evaluation."""

    model: Model
    a: list[_Operand]
    b: list[_Operand]
    scale_a: list[_Operand]
    scale_b: list[_Operand]
    block: int = 0  # products that share a scale
    _products: dict[int, Term] = field(default_factory=dict)

    def product(self, i: int) -> Term:
        """a[i]*b[i], exact and never renormalised: its exponent is e_a + e_b (section 2)."""
        found = self._products.get(i)
        if found is None:
            a, b = self.a[i], self.b[i]
            found = Term(f"a{i}*b{i}", a.n * b.n, a.q + b.q, a.e + b.e)
            self._products[i] = found
        return found

    def special_product(self, i: int) -> str | None:
        """ "nan", "+inf" or "-inf" where the product is no number."""
        a, b = self.a[i], self.b[i]
        if Kind.NAN in (a.kind, b.kind):
            return "nan"
        if Kind.INF in (a.kind, b.kind):
            return "nan" if Kind.ZERO in (a.kind, b.kind) else _inf_name(a.sign ^ b.sign)
        return None

    def special_products(self, lanes: Iterable[int]) -> dict[str, str | None]:
        return {f"a{i}*b{i}": self.special_product(i) for i in lanes}

    def summand(self, i: int) -> _Summand:
        """a[i]*b[i] times its scales, exact, its exponent the sum of all exponents."""
        factors = [self.a[i], self.b[i], *(self.scales(i) or ())]
        kinds = {x.kind for x in factors}
        sign = self.a[i].sign ^ self.b[i].sign
        special = None
        if Kind.NAN in kinds or {Kind.INF, Kind.ZERO} <= kinds:
            special = "nan"
        elif Kind.INF in kinds:
            special = _inf_name(sign)
        n = math.prod(x.n for x in factors)
        q, e = sum(x.q for x in factors), sum(x.e for x in factors)
        return _Summand(f"a{i}*b{i}", n, q, e, sign, special)

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


def _specials(found: Iterable[str | None], c: _Operand) -> str | None:
    """NaN in: NaN; Inf-Inf: NaN; otherwise any Inf is the result. Decided before alignment."""
    seen = {s for s in (*found, _as_special(c)) if s}
    if not seen:
        return None
    return seen.pop() if len(seen) == 1 else "nan"


def _special_code(model: Model, fmt: Format, special: str) -> int:
    if special == "nan":
        return fmt.nan_code if model.nan == "quiet" else (1 << (fmt.width - 1)) - 1
    return fmt.inf_code | (fmt.sign_bit if special == "-inf" else 0)


def _special_step(
    model: Model,
    title: str,
    special: str,
    format: str | None = None,
    *,
    named: Sequence[tuple[str, str]] = (),
) -> Step:
    """The step in which special values decide; ``named`` says which do."""
    fmt = formats.get(format or model.d)
    kinds = [kind for kind in ("nan", "+inf", "-inf") if kind in dict(named).values()]
    notes = [f"{kind}: {', '.join(name for name, its in named if its == kind)}" for kind in kinds]
    notes.append(f"special values decide: {special}")
    code = _special_code(model, fmt, special)
    return Step(title, (), None, None, tuple(notes), "none", fmt.name, code, specials=tuple(named))


def _named(found: Mapping[str, str | None], c: _Operand) -> list[tuple[str, str]]:
    """What is no number: (name, "nan", "+inf" or "-inf")."""
    return [(name, kind) for name, kind in (*found.items(), ("c", _as_special(c))) if kind]


# --- alignment, sums, conversion ------------------------------------------------------------------


def _align(term: Term, unit: int, rounding: str = "RZ") -> Aligned:
    """The term rounded to a multiple of 2**unit."""
    return Aligned(*term, round_shift(term.n, unit - term.q, rounding), unit)


def _convert(n: int, q: int, rho: Conversion, *, negative_zero: bool = False) -> int:
    fmt = formats.get(rho.format)
    code = fmt.encode(n, q, rho.mode, mantissa_bits=rho.mantissa_bits, negative_zero=negative_zero)
    if code & ~fmt.sign_bit != fmt.inf_code or rho.overflow == "inf":
        return code
    inward = rho.mode == "RZ" or rho.mode == ("RU" if n < 0 else "RD")
    if rho.overflow == "ieee" and not inward:
        return code
    dropped = fmt.mantissa_bits - (rho.mantissa_bits or fmt.mantissa_bits)
    return code & fmt.sign_bit | fmt.max_code >> dropped << dropped


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
    found = work.special_products([start])
    special = _specials(found.values(), c)
    if special:
        return [_special_step(model, title, special, named=_named(found, c))]
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

    def multiply(i: int) -> _Operand:
        a, b = flushed_operand(work.a[i], f"a{i}"), flushed_operand(work.b[i], f"b{i}")
        pair = _Work(model, [a], [b], [], [])
        bad = special(pair.special_product(0))
        p = pair.product(0)._replace(name=f"a{i}*b{i}")
        result = bad or flush(_convert(p.n, p.q, RNE_FP32, negative_zero=bool(a.sign ^ b.sign)))
        rounded.append(Aligned(*p, result.n, result.q))
        return result

    def add(x: _Operand, y: _Operand, names: tuple[str, str], name: str) -> _Operand:
        bad = special(_specials([_as_special(x)], y))
        if bad:
            return bad
        code, total = _ieee_add((x.n, x.q, x.sign), (y.n, y.q, y.sign), RNE_FP32)
        d = flush(code)
        terms = _whole(names[0], x), _whole(names[1], y)
        exact = Aligned(name, *total, _exponent(*total) if total[0] else d.e, d.n, d.q)
        stages.append(Stage(f"{name} = {' + '.join(names)}", terms, None, exact))
        return d

    if start == 0:
        c = flushed_operand(c, "c")
    stages: list[Stage] = []
    rounded: list[Aligned] = []
    names = [f"a{start + i}*b{start + i}" for i in range(model.P)]
    products = [multiply(start + i) for i in range(model.P)]
    if model.P == 2:
        s, order = add(products[0], products[1], (names[0], names[1]), "s"), "(p0 + p1)"
    else:
        s0 = add(products[0], products[1], (names[0], names[1]), "s0")
        s1 = add(products[2], products[3], (names[2], names[3]), "s1")
        s, order = add(s0, s1, ("s0", "s1"), "s"), "((p0 + p1) + (p2 + p3))"
    d = add(c, s, ("c", "s"), "d")
    if d.kind is Kind.NAN:
        d = _Operand(fp32, fp32.nan_code)
    ends = [*zip(names, products, strict=True), ("c", c)]
    notes.insert(0, f"d = c + {order}, each operation rounded to FP32")
    specials = tuple((name, kind) for name, x in ends if (kind := _as_special(x)))
    notes += [f"{name} is {kind}" for name, kind in specials]
    finite = d.kind not in (Kind.NAN, Kind.INF)
    return [
        Step(_range(start, model.P) + " and c", tuple(_whole(*end) for end in ends), None, None,
             tuple(notes), "RNE-FP32", "f32", d.code,
             (Stage("products", tuple(rounded), None, None), *stages) if finite else (), specials)
    ]  # fmt: skip


def _whole(name: str, x: _Operand) -> Aligned:
    """A number of which nothing is cut."""
    return Aligned(name, x.n, x.q, x.e, x.n, x.q)


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
    found = work.special_products(lanes)
    special = _specials(found.values(), c)
    if special:
        return [_special_step(model, title, special, named=_named(found, c))]
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
    found = work.special_products(lanes)
    scales = work.scales(lanes[0])
    scale_exponent = 0
    if scales:
        found |= _special_scales(*scales, lanes[0])
        scale_exponent = scales[0].e + scales[1].e
    special = _specials(found.values(), c)
    if special:
        return _special_step(model, title, special, named=_named(found, c))
    products = [work.product(i) for i in lanes]
    terms = [Term(p.name, p.n, p.q + scale_exponent, p.e + scale_exponent) for p in products if p.n]
    terms.append(_c_term(c, model.e_zero))
    return _fused(model, title, terms)


def _special_scales(alpha: _Operand, beta: _Operand, lane: int) -> dict[str, str | None]:
    is_nan = Kind.NAN in (alpha.kind, beta.kind)
    return {f"scales of a{lane}*b{lane}": "nan" if is_nan else None}


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
    found = work.special_products(lanes)
    groups: list[tuple[int, _Operand | None, _Operand | None]] = []
    for first in range(start, start + model.L, model.G):
        scales = work.scales(first)
        alpha, beta = scales if scales else (None, None)
        if scales:
            found |= _special_scales(*scales, first)
        groups.append((first, alpha, beta))
    special = _specials(found.values(), c)
    if special:
        return [_special_step(model, title, special, named=_named(found, c))]
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
    found = work.special_products(lanes)
    products = [work.product(i) for i in lanes]
    # Step 0: a finite product of 2**128 or more counts as Inf.
    huge = [p for p in products if p.n and _exponent(p.n, p.q) >= 128]
    found |= {p.name: _inf_name(p.n < 0) for p in huge}
    special = _specials(found.values(), c)
    if special:
        return [_special_step(model, title, special, named=_named(found, c))]
    alone = _products_alone([p for p in products if p.n], model.F, "products", "T")
    return [_join_c(model, title, alone.terms, [alone], c, drop_small_c=False)]


def _gtr_fdpa(work: _Work, start: int, c: _Operand) -> list[Step]:
    """As TR-FDPA, but even and odd products are cut and summed apart, then joined rounding down."""
    model = work.model
    assert isinstance(model, GTRFDPA)
    lanes = range(start, start + model.L)
    title = _range(start, model.L) + " and c"
    found = work.special_products(lanes)
    special = _specials(found.values(), c)
    if special:
        return [_special_step(model, title, special, named=_named(found, c))]
    halves = []
    for parity, name in enumerate(("even", "odd")):
        products = [work.product(i) for i in lanes if (i - start) % 2 == parity]
        nonzero = [p for p in products if p.n]
        halves.append(_products_alone(nonzero, model.F, f"{name} products", f"T_{name}"))
    sums = [half.total for half in halves if half.total and half.e_max is not None]
    exponents = [total.e for total in sums]
    e = max(exponents) if exponents else None
    unit = 0 if e is None else e - model.F
    terms = tuple(_align(Term(*total[:4]), unit, "RD") for total in sums)
    both = Aligned("T", sum(t.kept for t in terms), unit, e or 0, sum(t.kept for t in terms), unit)
    stages = [*halves, Stage("T_even and T_odd", terms, e, both)]
    aligned = (*halves[0].terms, *halves[1].terms)
    return [_join_c(model, title, aligned, stages, c, drop_small_c=True)]


def _products_alone(products: Sequence[Term], F: int, title: str, name: str) -> Stage:
    """Step 1: the sum of the products cut at their own e_max - F; 0 and no e_max without any."""
    if not products:
        return Stage(title, (), None, Aligned(name, 0, 0, 0, 0, 0))
    e = max(p.e for p in products)
    aligned = tuple(_align(p, e - F) for p in products)
    total = sum(t.kept for t in aligned)
    return Stage(title, aligned, e, Aligned(name, total, e - F, e, total, e - F))


def _join_c(
    model: TRFDPA | GTRFDPA,
    title: str,
    aligned: tuple[Aligned, ...],
    stages: Sequence[Stage],
    c: _Operand,
    *,
    drop_small_c: bool,
) -> Step:
    """Steps 2 to 4: align the products' sum and c to E rounding down, normalise, convert.

    The products' sum T is the last of the stages so far.
    """
    total, e_products = stages[-1].total, stages[-1].e_max
    assert total is not None
    e_c = c.e if c.n else _FP32_MIN_EXPONENT  # a subnormal FP32 c has -126 anyway
    E = e_c if e_products is None else max(e_products, e_c)
    own = "no product but 0" if e_products is None else f"products' own e_max {e_products}"
    notes = [f"{own}, joint exponent E = {E}"]
    e_total = E if e_products is None else e_products
    T = _align(Term("T", total.n, total.q, e_total), E - (model.F2 + 1), "RD")
    c_term = _align(Term("c", c.n, c.q, e_c), E - model.F, "RD")
    if drop_small_c and e_c < E - model.F - 1:
        c_term = c_term._replace(kept=0)
        notes.append("c lies below E - F - 1 and counts as 0")
    exact = v = _exact_sum([(T.kept, T.unit), (c_term.kept, c_term.unit)])
    notes.append(
        f"sum of products, rounded down to multiples of 2^{T.unit}: {_value_text(T.kept, T.unit)}"
    )
    if v[0]:
        unit = max(_exponent(*v), _FP32_MIN_EXPONENT) - model.F2
        v = round_shift(v[0], unit - v[1], "RD"), unit
        notes.append(f"joint sum, rounded down to multiples of 2^{unit}: {_value_text(*v)}")
    joint = Stage("T and c", (T, c_term), E, Aligned("v", *exact, E, *v))
    code = _convert(*v, model.rho)
    return Step(
        title, (*aligned, c_term), E, v, tuple(notes), str(model.rho), model.d, code,
        (*stages, joint),
    )  # fmt: skip


def _value_text(n: int, q: int) -> str:
    """``n * 2**q`` in a note: a decimal where a short one is exact."""
    zeros = (n & -n).bit_length() - 1 if n else 0
    n, q = n >> zeros, q + zeros if n else 0
    if abs(n) < 1 << 53 and -40 <= q <= 40:
        value = math.ldexp(n, q)
        text = repr(value).removesuffix(".0")
        if len(text) <= 16 and Decimal(text) == Decimal(value):
            return text
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
        found = {"t": _as_special(t)}
        return [*steps, _special_step(model, title, special, named=_named(found, c))]
    code, total = _ieee_add((t.n, t.q, t.sign), (c.n, c.q, c.sign), rounding)
    terms = tuple(Aligned(name, x.n, x.q, x.e, x.n, x.q) for name, x in (("t", t), ("c", c)))
    return [*steps, Step(title, terms, None, total, (), str(rounding), model.d, code)]


# --- 10. FDPA, every choice open ------------------------------------------------------------------


def _fdpa(work: _Work, start: int, c: _Operand) -> list[Step]:
    """A step of a chain; or all of an instruction's steps, added in pairs and then to c."""
    model = work.model
    assert isinstance(model, FDPA)
    if model.order == "chain":
        return [_open_step(work, model, range(start, start + model.L), c)]
    starts = range(start, len(work.a), model.L)
    steps = [_open_step(work, model, range(i, i + model.L), None) for i in starts]
    steps = [replace(step, title=f"s{i} = {step.title}") for i, step in enumerate(steps)]
    fmt = formats.get(model.d)
    sums = [_summand(f"s{i}", _Operand(fmt, step.result)) for i, step in enumerate(steps)]
    while len(sums) > 1:
        pairs = [sums[i : i + 2] for i in range(0, len(sums), 2)]
        sums = []
        for pair in pairs:
            if len(pair) == 2:
                name = f"s{len(steps)}"
                title = f"{name} = {pair[0].name} + {pair[1].name}"
                steps.append(_added(model, title, pair, model.rho))
                sums.append(_summand(name, _Operand(fmt, steps[-1].result)))
            else:
                sums += pair
    last = [sums[0], _summand("c", _flushed(c, model.flush_c))]
    return [*steps, _added(model, f"d = {sums[0].name} + c", last, model.rho)]


def _open_step(work: _Work, model: FDPA, lanes: Sequence[int], c: _Operand | None) -> Step:
    """One fused sum. Without c nothing is left of it but the exponent of a zero c."""
    title = _range(lanes[0], len(lanes)) + (" and c" if c else "")
    addend = _flushed(c or _Operand(formats.get(model.d), 0), model.flush_c)
    products = [work.summand(i) for i in lanes]
    found = [p.special or _too_large(p, model) for p in products]
    if model.rho_products is not None and any(found):  # c meets what they have come to
        found = [_specials(found, _Operand(addend.fmt, 0))]
    special = _specials(found, addend)
    if special and (model.rho_products is None or any(found)):
        return _special_step(model, title, special)
    e_c = addend.e if addend.n else model.e_zero
    notes: list[str] = []

    # 1. The products.
    terms = [Term(p.name, p.n, p.q, p.e) for p in products]
    if model.renormalise:
        terms = [t._replace(e=_exponent(t.n, t.q)) if t.n else t for t in terms]
    aligned, total, e = _open_products(model, terms, e_c if model.c == "early" else None)
    signs = [_zero_sign(p) for p in products]

    # 2. A late c meets what they have come to.
    if model.c == "late":
        if model.rho_products is not None:
            code = _rounded(model, total, model.rho_products, signs)
            notes += _flush_note(model, total, model.rho_products, code)
            t = _summand("T", _Operand(formats.get(model.rho_products.format), code))
            notes.append(f"sum of products, {model.rho_products}: {_text(t)}")
            special = _specials([t.special], addend)
            if special:
                return _special_step(model, title, special)
            total, e, signs = (t.n, t.q), t.e if t.n else None, [_zero_sign(t)]
        e = _largest(e, e_c)
        total = _cut_number(total, e, model.F2, model.cut2)
        if model.F2 is not None:
            notes.append(f"sum of products, cut by {model.cut2}: {_value_text(*total)}")

    # 3. c.
    if c is not None:
        term = Term("c", addend.n, addend.q, addend.e if e_c is None else e_c)
        c_term = _cut(term, e, model.F_c, model.cut_c)
        far = model.drop_c is not None and e is not None and term.e < e - model.drop_c
        if addend.n and far:
            c_term = c_term._replace(kept=0)
            notes.append(f"c lies more than {model.drop_c} below {e} and counts as 0")
        total = _exact_sum([total, (c_term.kept, c_term.unit)])
        aligned, signs = [*aligned, c_term], [*signs, _zero_sign(_summand("c", addend))]

    # 4. The sum.
    if model.F_sum is not None and total[0]:
        own = _largest(_exponent(*total), model.e_sum)
        total = _cut_number(total, own, model.F_sum, model.cut_sum)
        notes.append(f"sum, cut by {model.cut_sum}: {_value_text(*total)}")
    code = _rounded(model, total, model.rho, signs)
    notes += _flush_note(model, total, model.rho, code)
    exact = model.F is model.F_c is model.F2 is model.F_groups is None
    shown = None if exact or not aligned else e
    return Step(
        title, tuple(aligned), shown, total, tuple(notes), str(model.rho), model.d, code
    )  # fmt: skip


def _open_products(
    model: FDPA, terms: Sequence[Term], e_c: int | None
) -> tuple[list[Aligned], tuple[int, int], int | None]:
    """The products cut, their sum, and their largest exponent (with an early c's, ``e_c``)."""
    groups = [[t for t in terms[g :: model.groups] if t.n] for g in range(model.groups)]
    e_max = [_largest(*(t.e for t in group)) for group in groups]
    e = _largest(*e_max, e_c)
    if model.groups == 1:
        e_max = [e]
    kept = [
        [_cut(t, e_max[g], model.F, model.cut) for t in group] for g, group in enumerate(groups)
    ]
    sums = [_exact_sum([(t.kept, t.unit) for t in group]) for group in kept if group]
    if model.groups > 1:
        sums = [_cut_number(x, e, model.F_groups, model.cut_groups) for x in sums]
    return [t for group in kept for t in group], _exact_sum(sums or [(0, 0)]), e


def _too_large(product: _Summand, model: FDPA) -> str | None:
    """A finite product that counts as Inf."""
    limit = model.product_overflow
    if limit is None or not product.n or _exponent(product.n, product.q) < limit:
        return None
    return _inf_name(product.n < 0)


def _largest(*exponents: int | None) -> int | None:
    return max((e for e in exponents if e is not None), default=None)


def _cut(term: Term, e: int | None, F: int | None, rounding: str) -> Aligned:
    """The term cut F bits below e; as it is where there is no F (or no e: all is 0)."""
    if F is None or e is None:
        return Aligned(*term, term.n, term.q)
    return _align(term, e - F, rounding)


def _cut_number(x: tuple[int, int], e: int | None, F: int | None, rounding: str) -> tuple[int, int]:
    if F is None or e is None:
        return x
    return round_shift(x[0], e - F - x[1], rounding), e - F


# --- 11. SumTree ----------------------------------------------------------------------------------


def _sum_tree(work: _Work, start: int, c: _Operand) -> list[Step]:
    """Node after node, children first."""
    model = work.model
    assert isinstance(model, SumTree)
    children = [work.summand(i) for i in range(model.K)]
    if model.rho_product is not None:
        fmt = formats.get(model.rho_product.format)
        for i, p in enumerate(children):
            step = _added(model, p.name, [p], model.rho_product)
            children[i] = _summand(p.name, _Operand(fmt, step.result))
    children.append(_summand("c", _flushed(c, model.flush_c)))
    steps: list[Step] = []
    for j, (node, rho) in enumerate(zip(model.nodes, model.roundings, strict=True)):
        terms = [children[i] for i in node]
        names = [t.name for t in terms]
        text = " + ".join(names if len(names) <= 8 else [*names[:3], "…", *names[-3:]])
        if model.zero == "start" and len(terms) == 1 and not terms[0].n:
            terms = [terms[0]._replace(sign=0)]
        steps.append(_added(model, f"s{j} = {text}", terms, rho))
        children.append(_summand(f"s{j}", _Operand(formats.get(rho.format), steps[-1].result)))
    if model.out is not None:
        last = replace(model, flush_out=model.flush_last or model.flush_out)
        steps.append(_added(last, f"d = {children[-1].name}", children[-1:], model.out))
    return steps


# --- what both share ------------------------------------------------------------------------------


class _Summand(NamedTuple):
    """A term of a sum with all that decides about it; ``special``: "nan", "+inf", "-inf"."""

    name: str
    n: int
    q: int
    e: int
    sign: int
    special: str | None


def _summand(name: str, x: _Operand) -> _Summand:
    return _Summand(name, x.n, x.q, x.e, x.sign, _as_special(x))


def _added(model: FDPA | SumTree, title: str, terms: Sequence[_Summand], rho: Conversion) -> Step:
    """The exact sum of numbers, converted."""
    found = [t.special for t in terms]
    special = _specials(found, _Operand(formats.get(rho.format), 0))
    if special:
        return _special_step(model, title, special, rho.format)
    total = _exact_sum([(t.n, t.q) for t in terms])
    code = _rounded(model, total, rho, [_zero_sign(t) for t in terms])
    shown = tuple(Aligned(t.name, t.n, t.q, t.e, t.n, t.q) for t in terms)
    notes = _flush_note(model, total, rho, code)
    return Step(title, shown, None, total, tuple(notes), str(rho), rho.format, code)


def _flush_note(
    model: FDPA | SumTree, total: tuple[int, int], rho: Conversion, code: int
) -> list[str]:
    """What is to be said where a sum that is not zero became one for being tiny."""
    fmt = formats.get(rho.format)
    if model.flush_out == "no" or not total[0] or code & ~fmt.sign_bit:
        return []
    return [f"{_value_text(*total)} is below 2^{fmt.min_exponent}: flushed"]


def _rounded(
    model: FDPA | SumTree, total: tuple[int, int], rho: Conversion, signs: Sequence[int | None]
) -> int:
    """A sum converted, zeros by the model's rule; ``signs`` are its terms' `_zero_sign`."""
    only_minus, only_plus = (bool(signs) and all(s == x for s in signs) for x in (1, 0))
    negative_zero = only_minus or (rho.mode == "RD" and not only_plus)
    code = _convert(*total, rho, negative_zero=model.zero in ("ieee", "start") and negative_zero)
    fmt = formats.get(rho.format)
    if model.zero == "plus" and code == fmt.sign_bit:
        code = 0
    if model.flush_out != "no" and total[0] and _is_tiny(*total, rho, model.tiny):
        code &= fmt.sign_bit  # though it may have been rounded to the smallest normal number
    return _flushed(_Operand(fmt, code), model.flush_out).code


def _is_tiny(n: int, q: int, rho: Conversion, rule: str) -> bool:
    """Whether a number that is not zero counts as tiny, whatever it has been rounded to.

    IEEE 754-2019, section 7.5: "before": because it is; "after": because it is when rounded to as
    many bits as normal numbers have.
    """
    if rule == "stored":
        return False
    fmt = formats.get(rho.format)
    if rule == "after":
        unit = _exponent(n, q) - (rho.mantissa_bits or fmt.mantissa_bits)
        n, q = round_shift(n, unit - q, rho.mode), unit
    return _exponent(n, q) < fmt.min_exponent


def _zero_sign(term: _Summand) -> int | None:
    """The sign of a term that is zero, None of another."""
    return None if term.n else term.sign


def _flushed(x: _Operand, flush: str) -> _Operand:
    """A subnormal as a zero: "zero": +0 (and so is -0), "sign": of its sign, "no": as it is."""
    if flush == "no" or x.kind not in (Kind.ZERO, Kind.FINITE) or _is_normal(x):
        return x
    keep = flush == "sign" and x.fmt.specials != "fnuz"
    return _Operand(x.fmt, x.code & x.fmt.sign_bit if keep else 0)


def _text(x: _Summand) -> str:
    return x.special or _value_text(x.n, x.q)


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
    FDPA: _fdpa,
    SumTree: _sum_tree,
}
