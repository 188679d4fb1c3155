"""Inputs by category: for tests, probing, validation and golden files.

Uniform random words are nearly vacuous for narrow formats (13% finite outputs for e5m2), so each
category here aims at one thing that a matrix unit can get wrong, and `coverage` counts what was
really hit. Everything is drawn as integers and assembled bit by bit from the raw stream of PCG64,
which NumPy keeps the same in every version and on every machine.

The idea of categories with a floor is TestFloat's (Hauser).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bitmma import formats
from bitmma.formats import Format, Kind
from bitmma.models import FDPA, Conversion, Model, SumTree

__all__ = [
    "CATEGORIES",
    "Cases",
    "Coverage",
    "Draw",
    "Matrices",
    "clip",
    "coverage",
    "generate",
    "matrices",
    "select",
]

Codes = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Cases:
    """Dot products as raw codes.

    Attributes:
        a, b: (count, k). c: (count,).
        scale_a, scale_b: (count, k/block), None without block scaling.
        category: (count,) index into ``CATEGORIES``.
    """

    a: Codes
    b: Codes
    c: Codes
    scale_a: Codes | None
    scale_b: Codes | None
    category: Ints


@dataclass(frozen=True, eq=False)
class Matrices:
    """One matrix product as raw codes.

    Attributes:
        a: (m, k). b: (k, n). c: (m, n).
        scale_a: (m, k/block). scale_b: (k/block, n). None without block scaling.
    """

    a: Codes
    b: Codes
    c: Codes
    scale_a: Codes | None
    scale_b: Codes | None


# --- integers from the raw stream ---------------------------------------------------------------


class Draw:
    """Integer draws that depend on nothing but the seed."""

    def __init__(self, *seed: int) -> None:
        self._stream = np.random.PCG64(np.random.SeedSequence(seed))

    def bits(self, width: int, shape: tuple[int, ...]) -> npt.NDArray[np.uint64]:
        """Random words of ``width`` bits, 1 to 64."""
        raw: npt.NDArray[np.uint64] = self._stream.random_raw(shape)
        if width < 64:
            raw >>= np.uint64(64 - width)
        return raw

    def integers(self, low: Any, high: Any, shape: tuple[int, ...]) -> Ints:
        """From ``low`` to ``high`` inclusive (arrays broadcast); ``high`` where it is less."""
        words = self.bits(32, shape)
        if isinstance(low, int) and isinstance(high, int):
            span: Any = np.uint64(max(high - low, 0) + 1)
        else:
            span = np.maximum(np.asarray(high, np.int64) - low, 0).astype(np.uint64) + np.uint64(1)
            if np.broadcast_shapes(shape, span.shape) != shape:
                words = np.broadcast_to(words, np.broadcast_shapes(shape, span.shape)).copy()
        words *= span
        words >>= np.uint64(32)
        drawn: Ints = words.view(np.int64)
        drawn += low
        if span.ndim or high < low:
            np.minimum(drawn, high, out=drawn)
        return drawn

    def one_in(self, n: int, shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
        """Where ``integers(0, n - 1, shape)`` would be 0; n is 2 or more."""
        return np.less(self.bits(64, shape), np.uint64(-(-(1 << 32) // n) << 32))


# --- codes --------------------------------------------------------------------------------------


def select(where: Any, x: Any, y: Any) -> Any:
    """``np.where`` of integers without a branch: several times as fast on random conditions."""
    return y ^ (x ^ y) * where


def clip(x: Any, low: Any, high: Any) -> npt.NDArray[Any]:
    """As ``np.clip``, which for few numbers takes several times as long."""
    return np.asarray(np.minimum(np.maximum(x, low), high))


def _code(fmt: Format, exponent: Ints, fraction: Any, sign: Any = False) -> Codes:
    """The code of +-1.fraction * 2**exponent; what the format cannot hold moves to its nearest end.

    Below the lowest exponent the number becomes subnormal, at least the smallest one.
    """
    if fmt.specials == "ue8m0":
        return clip(exponent + fmt.bias, 0, fmt.max_code).astype(fmt.code_dtype)
    M = fmt.mantissa_bits
    word = np.dtype(np.int64 if fmt.width == 64 else np.int32)
    exponent, significand = exponent.astype(word), np.asarray(fraction).astype(word)
    significand = (significand | 1 << M) >> clip(fmt.min_exponent - exponent, 0, M)
    top = clip(exponent, fmt.min_exponent, fmt.max_exponent) - fmt.min_exponent
    magnitude = np.minimum((top << M) + significand, fmt.max_code >> fmt.dropped_bits)
    return _sign(fmt, magnitude.astype(fmt.code_dtype) << fmt.dropped_bits, sign)


def _sign(fmt: Format, codes: Any, sign: Any) -> Codes:
    """Codes without sign given one where ``sign`` is true; FNUZ zeros stay +0."""
    out: Codes = np.asarray(codes).astype(fmt.code_dtype)
    negative = np.asarray(sign, bool)
    if fmt.specials == "fnuz":
        negative = negative & (out != 0)
    out |= negative * fmt.code_dtype.type(fmt.sign_bit)
    return out


def _negate(fmt: Format, codes: Codes) -> Codes:
    magnitude = codes & fmt.code_dtype.type((1 << fmt.width) - 1 ^ fmt.sign_bit)
    return _sign(fmt, magnitude, (codes & fmt.code_dtype.type(fmt.sign_bit)) == 0)


def _finite(fmt: Format, codes: npt.NDArray[np.uint64]) -> Codes:
    """Words with those that are Inf or NaN moved to a neighbour that is a number."""
    ones = (1 << fmt.exponent_bits) - 1
    shift = np.uint64(fmt.mantissa_bits + fmt.dropped_bits)
    match fmt.specials:
        case "ieee":
            special = codes >> shift & np.uint64(ones) == ones
            codes = codes ^ special.astype(np.uint64) << shift
        case "fn" | "ue8m0":
            special = codes & np.uint64(fmt.nan_code) == fmt.nan_code
            codes = codes - special
        case "fnuz":
            codes = codes * (codes != fmt.sign_bit)
    return codes.astype(fmt.code_dtype)


def _sum_of_products(
    a: npt.NDArray[np.float64], b: npt.NDArray[np.float64], shape: tuple[int, ...]
) -> npt.NDArray[np.float64]:
    """a (..., k) . b (..., k) in float64, term after term so that every machine agrees."""
    total = np.zeros(shape)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for i in range(a.shape[-1]):
            total += a[..., i] * b[..., i]
    return np.nan_to_num(total)


# --- one set of drawers for every format and model ----------------------------------------------


@dataclass(frozen=True)
class _Setup:
    """What the drawers draw for. Exponent ranges are those of normal numbers, unscaled."""

    draw: Draw
    model: Model
    fa: Format
    fb: Format
    fc: Format
    k: int
    fs: Format | None
    block: int

    @property
    def fd(self) -> Format:
        return formats.get(self.model.d)

    @property
    def products(self) -> tuple[int, int]:
        """Lowest and highest exponent of an unscaled product."""
        return (
            self.fa.min_exponent + self.fb.min_exponent,
            self.fa.max_exponent + self.fb.max_exponent,
        )

    @property
    def scales(self) -> tuple[int, int]:
        """Lowest and highest exponent of a pair of scales."""
        return (2 * self.fs.min_exponent, 2 * self.fs.max_exponent) if self.fs else (0, 0)

    @property
    def terms(self) -> tuple[int, int]:
        """Lowest and highest exponent of a scaled product."""
        p, s = self.products, self.scales
        return s if self.scaled_groups else (p[0] + s[0], p[1] + s[1])

    @property
    def scaled_groups(self) -> bool:
        """GST-FDPA: a term is a whole group, its exponent that of its scales."""
        return hasattr(self.model, "G")

    @property
    def mantissa_bits(self) -> int:
        return _kept_bits(self.model)

    @property
    def cuts(self) -> tuple[int, ...]:
        """How far below the largest exponent something is cut off."""
        unit = getattr(self.model, "unit", self.model)
        if isinstance(unit, FDPA):
            kept = {unit.F, unit.F_c, unit.F2, unit.F_groups, unit.F_sum}
            near = {x + more for x in kept if x is not None for more in (0, 1)}
            return tuple(sorted(near)) or (self.mantissa_bits + 1,)
        F = getattr(unit, "F", self.mantissa_bits + 1)
        F2 = getattr(unit, "F2", None)
        return (F,) if F2 is None else (F, F + 1, F2, F2 + 1)

    @property
    def e_zero(self) -> int:
        """The exponent that a zero c takes part with."""
        e_zero = getattr(getattr(self.model, "unit", self.model), "e_zero", None)
        return self.fd.min_exponent if e_zero is None else int(e_zero)


def _kept_bits(model: Model) -> int:
    """Mantissa bits of the output that the last rounding keeps."""
    if isinstance(model, SumTree):
        return _bits_of(model.out or model.roundings[-1])
    rho: Conversion | None = getattr(getattr(model, "unit", model), "rho", None)
    return formats.get(model.d).mantissa_bits if rho is None else _bits_of(rho)


def _bits_of(rho: Conversion) -> int:
    return rho.mantissa_bits or formats.get(rho.format).mantissa_bits


@dataclass
class _Rows:
    """n dot products being made."""

    a: Codes
    b: Codes
    c: Codes
    scale_a: Codes | None
    scale_b: Codes | None


def _fractions(s: _Setup, fmt: Format, shape: tuple[int, ...], *, plain: Any = False) -> Codes:
    """Mantissas: half random, the rest zero (all, where ``plain``), all ones or a single bit."""
    M, word = fmt.mantissa_bits, fmt.code_dtype
    if M == 0:
        return np.zeros(shape, word)
    random = s.draw.bits(M, shape).astype(word)
    one_bit = word.type(1) << s.draw.integers(0, M - 1, shape).astype(word)
    which = s.draw.bits(3, shape).astype(np.uint8)  # of 4 and 5, zero
    random *= which < 4
    random |= (which == 6) * word.type((1 << M) - 1)
    random |= one_bit * (which == 7)
    return random if plain is False else random * ~np.asarray(plain)


def _split(s: _Setup, total: Ints, f: Format, g: Format) -> tuple[Ints, Ints]:
    """``total`` as the sum of an exponent of f and one of g, as near as their ranges allow."""
    total = clip(total, f.min_exponent + g.min_exponent, f.max_exponent + g.max_exponent)
    low = np.maximum(f.min_exponent, total - g.max_exponent)
    high = np.minimum(f.max_exponent, total - g.min_exponent)
    first = s.draw.integers(low, high, total.shape)
    return first, total - first


def _operands(
    s: _Setup, target: Ints, *, plain: Any = False, negative: Any = None
) -> tuple[Codes, Codes, Codes | None, Codes | None]:
    """a, b and scales whose products have the exponents ``target`` (n, k) after scaling."""
    n, k = target.shape
    scale_a = scale_b = None
    if s.fs is not None:
        blocks = target.reshape(n, -1, s.block).max(axis=2)
        if s.scaled_groups:
            total, inside = target[:, :: s.block], np.zeros((n, k), np.int64)
        else:  # the largest product of the block near the top leaves the most room below
            low, high = s.products
            spare = np.where(s.draw.one_in(2, blocks.shape), 2, (high - low) // 2)
            total = blocks - high + s.draw.integers(0, spare, blocks.shape)
            total = clip(total, *s.scales)
            inside = target - np.repeat(total, s.block, axis=1)
        first, second = _split(s, total, s.fs, s.fs)
        scale_a = _code(s.fs, first, _fractions(s, s.fs, first.shape, plain=plain))
        scale_b = _code(s.fs, second, _fractions(s, s.fs, first.shape, plain=plain))
        target = inside
    e_a, e_b = _split(s, target, s.fa, s.fb)
    sign_a = s.draw.one_in(2, (n, k))
    sign_b = s.draw.one_in(2, (n, k)) if negative is None else sign_a ^ negative
    a = _code(s.fa, e_a, _fractions(s, s.fa, (n, k), plain=plain), sign_a)
    b = _code(s.fb, e_b, _fractions(s, s.fb, (n, k), plain=plain), sign_b)
    return a, b, scale_a, scale_b


def _addend(s: _Setup, exponent: Ints, *, plain: bool = False) -> Codes:
    """c with those exponents (n,), random signs."""
    fraction = _fractions(s, s.fc, exponent.shape, plain=plain)
    return _code(s.fc, exponent, fraction, s.draw.one_in(2, exponent.shape))


def _signed_zeros(s: _Setup, fmt: Format, shape: tuple[int, ...]) -> Codes:
    return _sign(fmt, np.zeros(shape, fmt.code_dtype), s.draw.one_in(2, shape))


def _drop(s: _Setup, rows: _Rows, lanes: npt.NDArray[np.bool_]) -> None:
    """Make the products of ``lanes`` zero: a or b or both become a signed zero."""
    which = s.draw.integers(0, 2, lanes.shape)
    rows.a = select(lanes & (which != 1), _signed_zeros(s, s.fa, lanes.shape), rows.a)
    rows.b = select(lanes & (which != 0), _signed_zeros(s, s.fb, lanes.shape), rows.b)


def _middle(s: _Setup, low: int, high: int, n: int) -> Ints:
    """Exponents (n,) that a scaled product can have, kept from ``low`` to ``high`` if it can be."""
    lo, hi = s.terms
    return clip(s.draw.integers(max(lo, low), min(hi, high), (n,)), lo, hi)


def _lane(s: _Setup, n: int) -> npt.NDArray[np.bool_]:
    """(n, k): one lane of each row, the first of its group where a whole group is one term."""
    lane = s.draw.integers(0, s.k - 1, (n, 1))
    return np.equal(np.arange(s.k), lane // s.block * s.block if s.scaled_groups else lane)


def _quantized(fmt: Format, x: npt.NDArray[np.float64]) -> Codes:
    return formats.quantize(x, fmt, saturate=True).view(fmt.code_dtype)


def _bell(s: _Setup, fmt: Format, shape: tuple[int, ...]) -> Codes:
    """About N(0,1): the sum of four uniform draws, exact in float64 before it is rounded."""
    total = s.draw.bits(16, (4, *shape)).view(np.int64).sum(axis=0) - 2 * 65535
    return _quantized(fmt, np.asarray(total * (1.7320508 / 65536)))


def _unit_scales(s: _Setup, n: int, spread: int) -> tuple[Codes | None, Codes | None]:
    if s.fs is None:
        return None, None
    shape = (n, s.k // s.block)
    low, high = max(-spread, s.fs.min_exponent), min(spread, s.fs.max_exponent)
    one, two = (
        _code(s.fs, s.draw.integers(low, high, shape), _fractions(s, s.fs, shape)) for _ in "ab"
    )
    return one, two


# --- the categories -----------------------------------------------------------------------------


def _normal(s: _Setup, n: int) -> _Rows:
    """About N(0,1)."""
    a, b, c = (_bell(s, f, x) for f, x in ((s.fa, (n, s.k)), (s.fb, (n, s.k)), (s.fc, (n,))))
    return _Rows(a, b, c, *_unit_scales(s, n, 2))


def _bits(s: _Setup, n: int) -> _Rows:
    """Random words that are neither Inf nor NaN."""

    def words(fmt: Format, *shape: int) -> Codes:
        return _finite(fmt, s.draw.bits(fmt.width, shape))

    rows = _Rows(words(s.fa, n, s.k), words(s.fb, n, s.k), words(s.fc, n), None, None)
    if s.fs is not None:
        rows.scale_a, rows.scale_b = (words(s.fs, n, s.k // s.block) for _ in "ab")
    return rows


def _cancel(s: _Setup, n: int) -> _Rows:
    """c within a few steps of minus the dot product; in half of the rows pairs cancel besides."""
    exponent = _middle(s, s.fc.min_exponent + 4, s.fc.max_exponent - 8, n)
    rows = _Rows(*_shuffled_c(s, exponent, (n, s.k)))
    even = s.k // 2 * 2
    paired = np.repeat(s.draw.one_in(2, (n, even // 2)) & s.draw.one_in(2, (n, 1)), 2, axis=1)
    odd = paired & (np.arange(even) % 2 == 1)
    rows.a[:, :even] = select(odd, np.roll(rows.a[:, :even], 1, axis=1), rows.a[:, :even])
    mirrored = _negate(s.fb, np.roll(rows.b[:, :even], 1, axis=1))
    rows.b[:, :even] = select(odd, mirrored, rows.b[:, :even])
    rows.c = _minus_dot(s, rows)
    return rows


def _shuffled_c(
    s: _Setup, exponent: Ints, shape: tuple[int, int]
) -> tuple[Codes, Codes, Codes, Codes | None, Codes | None]:
    """Products and c within two binades of ``exponent`` (n,)."""
    target = exponent[:, None] + s.draw.integers(-2, 2, shape)
    a, b, scale_a, scale_b = _operands(s, target)
    c = _addend(s, exponent + s.draw.integers(-2, 3, exponent.shape))
    return a, b, c, scale_a, scale_b


def _scaled_values(fmt: Format, codes: Codes, fs: Format | None, scale: Codes | None) -> Any:
    values = formats.decode(codes, fmt)
    if fs is None or scale is None:
        return values
    with np.errstate(over="ignore"):
        scales = np.repeat(formats.decode(scale, fs), codes.shape[-1] // scale.shape[-1], -1)
        return values * scales


def _minus_dot(s: _Setup, rows: _Rows) -> Codes:
    values_a = _scaled_values(s.fa, rows.a, s.fs, rows.scale_a)
    values_b = _scaled_values(s.fb, rows.b, s.fs, rows.scale_b)
    return _steps_from(s, -_sum_of_products(values_a, values_b, rows.c.shape))


def _steps_from(s: _Setup, x: npt.NDArray[np.float64]) -> Codes:
    """Codes of c within three steps of x."""
    code = _quantized(s.fc, np.abs(x)).astype(np.uint64) >> np.uint64(s.fc.dropped_bits)
    steps = s.draw.integers(-3, 3, x.shape)
    steps = select(s.draw.one_in(2, x.shape), 0, steps)
    top = s.fc.max_code >> s.fc.dropped_bits
    code = clip(code.astype(np.int64) + steps, 0, top).astype(np.uint64)
    return _sign(s.fc, code << np.uint64(s.fc.dropped_bits), np.signbit(x))


def _narrow(s: _Setup, n: int) -> _Rows:
    """All exponents, c's too, within two or three of one another."""
    exponent = _middle(s, s.fc.min_exponent, s.fc.max_exponent, n)
    return _Rows(*_shuffled_c(s, exponent, (n, s.k)))


def _near_f(s: _Setup, n: int) -> _Rows:
    """Terms about F below e_max, partly cut off; c is the largest term, or one of the products."""
    F = np.asarray(s.cuts)[s.draw.integers(0, len(s.cuts) - 1, (n,))]
    lo, hi = s.terms
    c_leads = s.draw.one_in(2, (n,))
    small = s.draw.integers(
        np.where(c_leads, np.maximum(lo, s.fc.min_exponent - F), lo),
        np.where(c_leads, np.minimum(hi, s.fc.max_exponent - F), hi - F), (n,),
    )  # fmt: skip
    # Where the format is too narrow for F the products spread over all it has.
    small = clip(small, lo, hi)
    target = small[:, None] + s.draw.integers(-3, 4, (n, s.k))
    leader = _lane(s, n) & ~c_leads[:, None]
    target = np.where(leader, (small + F)[:, None], target)
    plain = s.draw.one_in(2, (n, 1))
    a, b, scale_a, scale_b = _operands(s, target, plain=plain)
    e_c = np.where(c_leads, small + F, small + s.draw.integers(-3, 4, (n,)))
    rows = _Rows(a, b, _addend(s, e_c), scale_a, scale_b)
    _drop(s, rows, s.draw.one_in(4, (n, s.k)) & ~leader)
    rows.c = np.where(~c_leads & s.draw.one_in(3, (n,)), _signed_zeros(s, s.fc, (n,)), rows.c)
    return rows


def _ties(s: _Setup, n: int) -> _Rows:
    """A number of the output's precision and half a step of it, at times a hair more or less.

    The number is c, or c is zero and the number is a product.
    """
    M = s.mantissa_bits
    lo, hi = s.terms
    from_c = ~s.draw.one_in(4, (n,))
    # Either may fall among the subnormals, whose step is that of the lowest exponent.
    floor = s.fd.min_exponent - M - 1
    half = s.draw.integers(
        max(lo, floor), np.minimum(hi, np.where(from_c, s.fc.max_exponent, hi) - M - 1), (n,)
    )
    half = np.where(s.draw.one_in(4, (n,)), floor, half)
    half = clip(half, lo, hi)
    big = half + M + 1
    main = _lane(s, n)
    other = np.roll(main, 1, axis=1) & ~main  # k = 1 has no other
    target = np.where(main, half[:, None], np.where(other, big[:, None], half[:, None] - 1))
    rows = _Rows(*_shuffled_c(s, half, (n, s.k)))
    rows.a, rows.b, rows.scale_a, rows.scale_b = _operands(s, target, plain=True)
    spoiled = s.draw.one_in(4, (n, 1)) & s.draw.one_in(4, (n, s.k))
    _drop(s, rows, ~main & ~(other & ~from_c[:, None]) & ~spoiled)
    # The mantissa of c within the output's precision, so that the tie stays exact.
    extra = max(s.fc.mantissa_bits - M, 0)
    fraction = _fractions(s, s.fc, (n,)) >> extra << extra
    c = _code(s.fc, big, fraction, s.draw.one_in(2, (n,)))
    rows.c = np.where(from_c, c, _signed_zeros(s, s.fc, (n,)))
    return rows


def _e_zero(s: _Setup, n: int) -> _Rows:
    """c is zero and the products are so small that its exponent e_zero is the largest."""
    cut = s.cuts[0]
    row = clip(s.draw.integers(s.e_zero - cut - 1, s.e_zero + 1, (n,)), *s.terms)
    target = row[:, None] - s.draw.integers(0, 3, (n, s.k))
    a, b, scale_a, scale_b = _operands(s, target)
    rows = _Rows(a, b, _signed_zeros(s, s.fc, (n,)), scale_a, scale_b)
    _drop(s, rows, s.draw.one_in(4, (n, s.k)))
    return rows


def _subnormal(s: _Setup, n: int) -> _Rows:
    """Subnormal operands and c; and products as small as the smallest outputs."""
    small = s.fd.min_exponent - s.draw.integers(-2, s.mantissa_bits + 2, (n, 1))
    target = small + s.draw.integers(-2, 2, (n, s.k))
    a, b, scale_a, scale_b = _operands(s, target)

    def tiny(fmt: Format, codes: Codes) -> Codes:
        below = s.draw.bits(max(fmt.mantissa_bits, 1), codes.shape) << np.uint64(fmt.dropped_bits)
        return _sign(fmt, below, s.draw.one_in(2, codes.shape))

    inputs = s.draw.one_in(2, (n, 1))
    pick_a, pick_b = (s.draw.one_in(2, (n, s.k)) & inputs for _ in "ab")
    a, b = select(pick_a, tiny(s.fa, a), a), select(pick_b, tiny(s.fb, b), b)
    c = _addend(s, s.fc.min_exponent + s.draw.integers(-3, 2, (n,)))
    which = s.draw.integers(0, 3, (n,))
    alone = (s.draw.one_in(4, (n,)) & (which != 0))[:, None]  # an output as small as c
    a = a * ~alone
    c = np.where(which == 0, _signed_zeros(s, s.fc, (n,)), np.where(which == 1, c, tiny(s.fc, c)))
    return _Rows(a, b, c, scale_a, scale_b)


def _overflow(s: _Setup, n: int) -> _Rows:
    """About the largest output: just inside, the largest itself, half a step more, far outside."""
    top = s.fd.max_exponent
    edge = top - s.mantissa_bits - 1  # half a step of the largest number
    way = s.draw.integers(0, 2, (n, 1))
    target = np.choose(way, [
        edge + s.draw.integers(-1, 1, (n, s.k)),
        top + s.draw.integers(-3, 1, (n, s.k)),
        top - s.draw.integers(0, s.mantissa_bits + 2, (n, s.k)),
    ])  # fmt: skip
    plain = _operands(s, target, plain=True, negative=s.draw.one_in(2, (n, 1)))
    rows = _Rows(plain[0], plain[1], _addend(s, np.full((n,), top)), plain[2], plain[3])
    lone = _lane(s, n)
    _drop(s, rows, ~lone & (way == 0) & ~s.draw.one_in(4, (n, 1)))
    largest = min(s.fc.max_code, _largest(s) if s.fc == s.fd else s.fc.max_code)
    step = 1 << s.fc.dropped_bits
    if s.fc == s.fd:
        step <<= s.fd.mantissa_bits - s.mantissa_bits
    near = largest - step * s.draw.integers(0, 2, (n,))
    # As a rule with the sign of the products.
    product = (rows.a[:, 0] >> (s.fa.width - 1)) ^ (rows.b[:, 0] >> (s.fb.width - 1))
    sign = (product.astype(np.int64) & 1 == 1) ^ s.draw.one_in(8, (n,))
    way = way[:, 0]
    rows.c = np.where(way == 0, _sign(s.fc, near, sign), rows.c)
    rows.c = np.where((way == 1) & s.draw.one_in(2, (n,)), s.fc.code_dtype.type(0), rows.c)
    return rows


def _largest(s: _Setup) -> int:
    """The largest output's code, with the mantissa bits that the conversion keeps."""
    unused = s.fd.mantissa_bits - s.mantissa_bits
    return s.fd.max_code >> unused << unused


def _special(s: _Setup, n: int) -> _Rows:
    """One or two of Inf, NaN (with payloads) and Inf times zero, in every position in turn."""
    exponent = _middle(s, s.fc.min_exponent, s.fc.max_exponent, n)
    rows = _Rows(*_shuffled_c(s, exponent, (n, s.k)))
    # The first special goes through all ways and lanes in turn, the second is at random.
    row, lanes = np.arange(n), np.arange(s.k)
    nan_a, nan_b, nan_c, inf_a, inf_b, inf_ab, inf_c, inf_0 = range(8)
    infinities = np.array([inf_a, inf_b, inf_ab, inf_c])
    way = row % 8
    lane = row[:, None] // 8 % s.k == lanes
    free_c = np.ones(n, bool)
    for _ in range(2):
        for bad, in_a, in_b, in_c in (
            (_nans, [nan_a], [nan_b], [nan_c]),
            (_infs, [inf_a, inf_ab, inf_0], [inf_b, inf_ab], [inf_c]),
            (_signed_zeros, [], [inf_0], []),
        ):
            here_a, here_b = (lane & _among(way, x)[:, None] for x in (in_a, in_b))
            rows.a = select(here_a, bad(s, s.fa, (n, s.k)), rows.a)
            rows.b = select(here_b, bad(s, s.fb, (n, s.k)), rows.b)
            rows.c = select(free_c & _among(way, in_c), bad(s, s.fc, (n,)), rows.c)
        free_c = ~_among(way, [nan_c, inf_c])  # the second special leaves the first alone
        second = s.draw.integers(0, 7, (n,))
        more = infinities[s.draw.integers(0, 3, (n,))]
        way = np.where(way > nan_c, np.where(s.draw.one_in(2, (n,)), second, more), second)
        way = np.where(s.draw.one_in(2, (n,)), way, -1)  # none
        lane = _lane(s, n) & ~lane
    if s.fs is not None and rows.scale_a is not None and rows.scale_b is not None:
        nan = s.fs.code_dtype.type(s.fs.nan_code if s.fs.has_nan else 0)
        blocks = rows.scale_a.shape
        rows.scale_a, rows.scale_b = (
            np.where(s.draw.one_in(8 * blocks[1], blocks), nan, x)
            for x in (rows.scale_a, rows.scale_b)
        )
    return rows


def _among(x: Ints, some: Sequence[int]) -> npt.NDArray[np.bool_]:
    return np.asarray(np.equal(x[:, None], some).any(axis=1))


def _infs(s: _Setup, fmt: Format, shape: tuple[int, ...]) -> Codes:
    """Inf of either sign, or the nearest thing that the format has: its largest number."""
    code = fmt.inf_code if fmt.has_inf else fmt.max_code
    return _sign(fmt, np.full(shape, code, fmt.code_dtype), s.draw.one_in(2, shape))


def _nans(s: _Setup, fmt: Format, shape: tuple[int, ...]) -> Codes:
    """NaNs of either sign and any payload; zeros where the format has none."""
    match fmt.specials:
        case "none":
            return _signed_zeros(s, fmt, shape)
        case "fnuz":
            return np.full(shape, fmt.nan_code, fmt.code_dtype)
        case "fn" | "ue8m0":
            return _sign(fmt, np.full(shape, fmt.nan_code), s.draw.one_in(2, shape))
    M = fmt.mantissa_bits
    payload = np.maximum(_fractions(s, fmt, shape), 1 << (M - 1))
    payload = select(s.draw.one_in(2, shape), payload, payload >> 1 | 1)
    code = payload << fmt.dropped_bits | fmt.inf_code
    return _sign(fmt, code, s.draw.one_in(2, shape))


def _zeros(s: _Setup, n: int) -> _Rows:
    """Zeros of both signs, in a quarter of the rows nothing else."""
    exponent = _middle(s, s.fc.min_exponent, s.fc.max_exponent, n)
    rows = _Rows(*_shuffled_c(s, exponent, (n, s.k)))
    alone = s.draw.one_in(4, (n, 1))
    _drop(s, rows, alone | ~s.draw.one_in(max(2, s.k // 2), (n, s.k)))
    negative = s.draw.one_in(4, (n, 1)) & alone  # all products and c are -0
    minus_a, minus_c = (_sign(fmt, 0, True) for fmt in (s.fa, s.fc))
    rows.a = select(negative, minus_a, rows.a)
    rows.b = select(negative, s.fb.encode(1, 0), rows.b)
    zero = np.where(negative[:, 0], minus_c, _signed_zeros(s, s.fc, (n,)))
    rows.c = np.where(alone[:, 0] | s.draw.one_in(2, (n,)), zero, rows.c)
    return rows


def _pow2(s: _Setup, n: int) -> _Rows:
    """Powers of two from a window of 32 binades, and zeros."""
    exponent = _middle(s, s.fc.min_exponent, s.fc.max_exponent, n)
    target = exponent[:, None] + s.draw.integers(-24, 8, (n, s.k))
    a, b, scale_a, scale_b = _operands(s, target, plain=True)
    c = _addend(s, exponent + s.draw.integers(-24, 8, (n,)), plain=True)
    rows = _Rows(a, b, c, scale_a, scale_b)
    _drop(s, rows, s.draw.one_in(4, (n, s.k)))
    rows.c = np.where(s.draw.one_in(4, (n,)), _signed_zeros(s, s.fc, (n,)), rows.c)
    return rows


def _huge(s: _Setup, n: int) -> _Rows:
    """Everything in the two topmost binades of its format."""

    def top(fmt: Format, *shape: int) -> Codes:
        exponent = fmt.max_exponent - s.draw.integers(0, 1, shape)
        return _code(fmt, exponent, _fractions(s, fmt, shape), s.draw.one_in(2, shape))

    rows = _Rows(top(s.fa, n, s.k), top(s.fb, n, s.k), top(s.fc, n), None, None)
    rows.scale_a, rows.scale_b = _unit_scales(s, n, 8)
    return rows


_DRAWERS: Mapping[str, Callable[[_Setup, int], _Rows]] = {
    "normal": _normal,
    "bits": _bits,
    "cancel": _cancel,
    "narrow": _narrow,
    "near_f": _near_f,
    "ties": _ties,
    "e_zero": _e_zero,
    "subnormal": _subnormal,
    "overflow": _overflow,
    "special": _special,
    "zeros": _zeros,
    "pow2": _pow2,
    "huge": _huge,
}
CATEGORIES: tuple[str, ...] = tuple(_DRAWERS)


# --- the public face ----------------------------------------------------------------------------


def generate(
    model: Model,
    a_format: str,
    b_format: str,
    c_format: str,
    k: int,
    count: int,
    seed: int,
    *,
    category: str | Sequence[str] | None = None,
    scale_format: str | None = None,
    block: int | None = None,
) -> Cases:
    """Dot products aimed at what ``model`` can get wrong, the same for a seed on every machine.

    Args:
        model: whose F, e_zero and output format the categories aim at; hypothetical ones too.
        a_format, b_format, c_format: format names. What a format cannot do (Inf in e4m3, a term F
            below another in e2m1) becomes the nearest thing that it can.
        k: products of one dot product, 1 or more.
        count: how many dot products. seed: 0 or more.
        category: one of ``CATEGORIES``, or some of them, or None for all, taken in turn.
        scale_format, block: block scaling: the scales' format and how many products share one.

    Raises:
        ValueError: an unknown format or category, an operand format without sign, a size out of
            range, ``block`` that does not divide ``k``, or only one of ``scale_format`` and
            ``block``.
    """
    names = (
        CATEGORIES if category is None else (category,) if isinstance(category, str) else category
    )
    for name in names:
        if name not in CATEGORIES:
            raise ValueError(f"category is one of {', '.join(CATEGORIES)}, not {name!r}")
    if not names:
        raise ValueError("category must name at least one")
    for label, value, low in (("k", k, 1), ("count", count, 0), ("seed", seed, 0)):
        if value < low:
            raise ValueError(f"{label} must be {low} or more, not {value}")
    if (scale_format is None) != (block is None):
        raise ValueError("scale_format and block go together: give both or neither")
    if block is not None and (block < 1 or k % block):
        raise ValueError(f"block must divide k={k}, not {block}")
    fa, fb, fc = formats.get(a_format), formats.get(b_format), formats.get(c_format)
    fs = formats.get(scale_format) if scale_format is not None else None
    for label, fmt in (("a_format", fa), ("b_format", fb), ("c_format", fc)):
        if not fmt.signed:
            raise ValueError(f"{label} cannot be {fmt}, a format of scales without sign")

    index = np.array([CATEGORIES.index(name) for name in names])
    chosen = index[np.arange(count) % len(names)]
    cases = Cases(
        np.empty((count, k), fa.code_dtype), np.empty((count, k), fb.code_dtype),
        np.empty(count, fc.code_dtype),
        np.empty((count, k // block), fs.code_dtype) if fs and block else None,
        np.empty((count, k // block), fs.code_dtype) if fs and block else None,
        chosen,
    )  # fmt: skip
    for number in sorted(set(chosen.tolist())):
        where = np.flatnonzero(chosen == number)
        setup = _Setup(Draw(seed, number), model, fa, fb, fc, k, fs, block or 1)
        rows = _DRAWERS[CATEGORIES[number]](setup, len(where))
        for fmt, codes, target in ((fa, rows.a, cases.a), (fb, rows.b, cases.b),
                                   (fc, rows.c, cases.c)):  # fmt: skip
            target[where] = _litter(setup, fmt, codes)
        for scales, kept in ((rows.scale_a, cases.scale_a), (rows.scale_b, cases.scale_b)):
            if kept is not None:
                kept[where] = scales
    return cases


def _litter(s: _Setup, fmt: Format, codes: Codes) -> Codes:
    """In half of the words, something in the low bits that the unit never sees (tf32)."""
    if not fmt.dropped_bits:
        return codes
    seen = s.draw.one_in(2, codes.shape)
    low = s.draw.bits(fmt.dropped_bits, codes.shape) * ~seen
    out: Codes = codes | low.astype(fmt.code_dtype)
    return out


def matrices(
    model: Model,
    a_format: str,
    b_format: str,
    c_format: str,
    m: int,
    n: int,
    k: int,
    seed: int,
    *,
    category: str | Sequence[str] | None = None,
    scale_format: str | None = None,
    block: int | None = None,
) -> Matrices:
    """A (m, k), B (k, n), C (m, n) whose rows and columns come from `generate`.

    Where i = j, row i, column j and c(i, j) are one of its dot products; elsewhere they mix. For
    "cancel" all of C lies near -A B. Arguments and errors are those of `generate`.
    """
    if m < 0 or n < 0:
        raise ValueError(f"m and n must be 0 or more, not {m} and {n}")
    count = max(m, n)
    cases = generate(
        model, a_format, b_format, c_format, k, count, seed,
        category=category, scale_format=scale_format, block=block,
    )  # fmt: skip
    i, j = np.indices((m, n))
    mixed = (i + 3 * (j - i)) % max(count, 1)
    c = cases.c[mixed]
    a, b = cases.a[:m], cases.b[:n]
    fs = formats.get(scale_format) if scale_format is not None else None
    scale_a = cases.scale_a[:m] if cases.scale_a is not None else None
    scale_b = cases.scale_b[:n] if cases.scale_b is not None else None
    fa, fb, fc = formats.get(a_format), formats.get(b_format), formats.get(c_format)
    cancelled = cases.category[mixed] == CATEGORIES.index("cancel")
    if cancelled.any():
        setup = _Setup(Draw(seed, len(CATEGORIES)), model, fa, fb, fc, k, fs, block or 1)
        dot = _sum_of_products(
            _scaled_values(fa, a, fs, scale_a)[:, None, :],
            _scaled_values(fb, b, fs, scale_b)[None, :, :], (m, n),
        )  # fmt: skip
        c = np.where(cancelled, _steps_from(setup, -dot), c)
    return Matrices(
        np.ascontiguousarray(a), np.ascontiguousarray(b.T), np.ascontiguousarray(c), scale_a,
        np.ascontiguousarray(scale_b.T) if scale_b is not None else None,
    )  # fmt: skip


# --- coverage -----------------------------------------------------------------------------------


class _TraceLike(Protocol):
    """What `coverage` reads of a `bitmma.reference.Trace`."""

    @property
    def model(self) -> Model: ...
    @property
    def a(self) -> Sequence[int]: ...
    @property
    def b(self) -> Sequence[int]: ...
    @property
    def c(self) -> int: ...
    @property
    def a_format(self) -> str: ...
    @property
    def b_format(self) -> str: ...
    @property
    def c_format(self) -> str: ...
    @property
    def products(self) -> Sequence[Any]: ...
    @property
    def steps(self) -> Sequence[Any]: ...
    @property
    def result(self) -> int: ...


@dataclass(frozen=True)
class Coverage:
    """How many dot products met each condition of the floor.

    Attributes:
        total: all of them.
        finite: the output is a number.
        two_terms: at least two terms survived alignment in one step.
        truncated: some term was cut and something of it was kept.
        e_zero: a zero c's exponent was the largest while there were products.
        subnormal: the output is subnormal.
        overflow: the output is Inf though no operand is.
        ties: a sum lay exactly between two neighbouring outputs.
        inf_minus_inf: infinities of both signs met, and no NaN.
        nan: NaN operands by position: ("a", lane), ("b", lane), ("c", 0).
        negative_zero: a -0 among the inputs.
    """

    total: int = 0
    finite: int = 0
    two_terms: int = 0
    truncated: int = 0
    e_zero: int = 0
    subnormal: int = 0
    overflow: int = 0
    ties: int = 0
    inf_minus_inf: int = 0
    negative_zero: int = 0
    nan: Mapping[tuple[str, int], int] = field(default_factory=dict)

    def missing(self, *, nan_positions: Iterable[tuple[str, int]] = ()) -> tuple[str, ...]:
        """The names of the conditions that nothing met, and of those positions without a NaN."""
        counts = {name: value for name, value in vars(self).items() if name != "nan"}
        absent = [name for name, value in counts.items() if value == 0]
        return (*absent, *(f"nan in {x}{i}" for x, i in nan_positions if not self.nan.get((x, i))))


def coverage(traces: Iterable[_TraceLike]) -> Coverage:
    """Count what the dot products behind these traces exercised."""
    counts: Counter[str] = Counter()
    nan: Counter[tuple[str, int]] = Counter()
    for t in traces:
        counts["total"] += 1
        operands = {
            "a": [_classified(t.a_format, x) for x in t.a],
            "b": [_classified(t.b_format, x) for x in t.b], "c": [_classified(t.c_format, t.c)],
        }  # fmt: skip
        seen = {x for kinds in operands.values() for x in kinds}
        specials = {kind for kind, _ in seen} & {Kind.NAN, Kind.INF}
        if Kind.NAN in specials:
            nan.update(
                (name, i) for name, kinds in operands.items()
                for i, (kind, _) in enumerate(kinds) if kind is Kind.NAN
            )  # fmt: skip
        output = formats.get(t.model.d).decode(t.result)
        fmt = formats.get(t.model.d)
        infinities = {p for p in t.products if isinstance(p, str)}
        ((kind_c, sign_c),) = operands["c"]
        if kind_c is Kind.INF:
            infinities.add("-inf" if sign_c else "+inf")
        steps = [step for step in t.steps if step.terms]
        counts.update(
            finite=output.kind in (Kind.ZERO, Kind.FINITE),
            two_terms=any(sum(x.kept != 0 for x in step.terms) >= 2 for step in steps),
            truncated=any(
                x.kept and x.unit > x.q and x.cut[0] for step in steps for x in step.terms
            ),
            e_zero=any(map(_e_zero_decides, steps)),
            subnormal=output.kind is Kind.FINITE and not output.significand >> fmt.mantissa_bits,
            overflow=output.kind is Kind.INF and not specials,
            ties=any(_is_tie(t.model, step) for step in steps),
            inf_minus_inf=infinities == {"+inf", "-inf"},
            negative_zero=(Kind.ZERO, 1) in seen,
        )
    return Coverage(nan=dict(nan), **counts)


def _roundings(model: SumTree) -> list[Conversion]:
    return [x for x in (model.rho, model.rho2, model.out) if x is not None]


@functools.lru_cache(maxsize=1 << 16)
def _classified(format: str, code: int) -> tuple[Kind, int]:
    return formats.get(format).decode(code)[:2]


def _e_zero_decides(step: Any) -> bool:
    """The zero c is what everything was aligned to, and there was something to align."""
    if step.e_max is None:
        return False
    others = [x.e for x in step.terms if x.n]
    zero_c = [x.e for x in step.terms if x.name == "c" and not x.n]
    return bool(others and zero_c) and max(others) < zero_c[0] == step.e_max


def _is_tie(model: Model, step: Any) -> bool:
    """The step's sum is an odd multiple of half a step of its output."""
    if step.total is None:  # FTZ-MulAdd rounds more than once: its terms' exact sum stands in
        q = min(x.unit for x in step.terms)
        n = sum(x.kept << (x.unit - q) for x in step.terms)
    else:
        n, q = step.total
    fmt = formats.get(step.format)
    exponent = max(abs(n).bit_length() - 1 + q, fmt.min_exponent)
    kept = _kept_bits(model)
    if isinstance(model, SumTree):
        kept = next(_bits_of(x) for x in _roundings(model) if str(x) == step.rounding)
    shift = exponent - kept - q
    return bool(shift > 0 and n & ((1 << shift) - 1) == 1 << (shift - 1))
