"""Rows of few terms, drawn around the parameters of models and written into a box's codes.

A term is a power of two or a number of some chosen shape: one, three halves, the most, any. What is
drawn says in which lanes terms are, how far apart, of which sign; `written` finds operands whose
products these are, as far as the formats have them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bitmma import formats
from bitmma.cases import Draw, clip, select
from bitmma.clfp.box import Box, Codes, Dots
from bitmma.clfp.numbers import Range
from bitmma.formats import Format
from bitmma.models import Conversion, Model

__all__ = [
    "ANY", "BIT", "EIGHTHS", "FOURTH", "HALVES", "LEAST", "MOST", "NEXT", "ODD", "ONE", "ONES",
    "RUN", "SMALL", "SQUARE", "THIRD", "TWO", "UNIT", "Ints", "Mask", "Setting", "Terms", "coded",
    "move", "sizes", "two_scales", "written",
]  # fmt: skip

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: Fields that say how many bits are kept below some exponent.
_BITS = ("F", "F_c", "F2", "F_sum", "F_groups", "drop_c")
#: The rounding of each.
_CUTS = {
    "F": "cut", "F_c": "cut_c", "F2": "cut2", "F_sum": "cut_sum", "F_groups": "cut_groups",
}  # fmt: skip
#: Fields that are a conversion.
_CONVERSIONS = ("rho", "rho_products", "rho_product", "rho2", "out")
#: Fields that are an exponent.
_PLACES = ("e_zero", "e_sum", "product_overflow")

#: Significands of terms: one, three halves, the most, one and a last place, one and another bit, a
#: run of ones, any; one where a is half the smallest normal number, or the smallest number.
ONE, HALVES, MOST, ODD, BIT, RUN, ANY, SMALL, LEAST = range(9)
#: The most below two; one and the last place of an output, or the one after; (1 + u)^2 and 1 + 2 u,
#: u being a's last place; ones down to about half of an output's last place.
TWO, UNIT, SQUARE, NEXT, ONES = range(9, 14)
#: (1 + u)(1 + 3 u), whose b is the second, and (1 + 2 u)^2, which is u^2 more.
THIRD, _THREE, FOURTH = range(14, 17)
#: From here on: so many eighths more than one in a, times 8, and in b.
EIGHTHS = 17
_SHAPES = range(EIGHTHS + 64)
#: What b is where a is one of them.
_OF_B = np.array(_SHAPES)
_OF_B[[ODD, RUN, UNIT, NEXT, ONES]] = ONE
_OF_B[[TWO, THIRD]] = ODD, _THREE
_OF_B[EIGHTHS:] = EIGHTHS + np.arange(64) % 8 * 8

#: How large products of some of them are.
_SIZES = {HALVES: 2.25, MOST: 3.99, RUN: 1.6, TWO: 1.97}


def sizes(shape: Ints, others: float) -> npt.NDArray[np.float64]:
    """How large products of these shapes are, ``others`` if they are not in `_SIZES`."""
    return np.select([shape == i for i in _SIZES], list(_SIZES.values()), others)


@dataclass
class Terms:
    """Rows of terms. Lane -1: there is no such term; lane k: c.

    Attributes:
        lane, e, shape, negative: (N, T): where, floor(log2) of the operands' product, significand.
        rest: (N,): the exponent of a power of two in every other lane; ``rest_used``, where.
        minus_c: (N,): a c of no term is -0. minus_zero: so are products of no term.
        solved: (N, 4): c is to bring the sum so many bits below its first, to a multiple of that
            and so many times 2 to minus the second more; the last: how far c's first bit is above
            that unit.
        mantissas: (N, T, 2): of a and b, in place of their shapes.
    """

    lane: Ints
    e: Ints
    shape: Ints
    negative: Mask
    rest: Ints
    rest_used: Mask
    rest_negative: Mask
    minus_c: Mask
    minus_zero: Mask
    solved: Ints | None = None
    mantissas: Ints | None = None


class Setting:
    """What is drawn from: lanes, distances and places, by the models in question."""

    def __init__(self, box: Box, models: Iterable[Model], seed: int) -> None:
        self.box, self.k = box, box.k
        self.rng, self.draw = np.random.default_rng([seed, 11]), Draw(seed, 12)
        self.plain = Range(box)  # of products without scales
        self.range = r = Range(box)
        _, _, fc, fd = box.formats
        if (fs := box.scale_format) is not None:
            r.low, r.lowest = r.low + 2 * fs.min_exponent, r.lowest + 2 * fs.min_exponent
            r.high += 2 * fs.max_exponent
        units = [getattr(m, "unit", m) for m in models]
        kept = {bits for m in units for bits in _kept(m)}
        self.steps = sorted({min(max(1, m.group), box.k) for m in units})
        near = {v + i for v in kept for i in (-1, 0, 1, 2)} | {0, 1, 2}
        # Half of them of what the models differ in.
        open_bits = {v for v in kept if not all(v in _kept(m) for m in units)}
        for bits, cut in _CUTS.items():
            if len({getattr(m, cut, None) for m in units}) > 1:
                open_bits |= {v for m in units if (v := getattr(m, bits, None)) is not None}
        sharp = {v + i for v in open_bits for i in (-1, 0, 1)}
        self.gaps = np.array(sorted(v for v in near if v >= 0), np.int64)
        sharp &= set(self.gaps.tolist())
        if sharp:
            more = sorted(sharp) * max(1, len(self.gaps) // len(sharp))
            self.gaps = np.concatenate([self.gaps, np.array(more, np.int64)])
        ends = {fd.min_exponent, fc.min_exponent, fd.max_exponent, r.low, r.lowest, r.high}
        ends |= {fd.min_exponent - v for v in kept}
        ends |= {v for m in units for name in _PLACES if (v := getattr(m, name, None)) is not None}
        conversions = [m for m in units if hasattr(m, "rho")]
        self.halves = np.array(
            sorted({_bits(m.rho) + i for m in conversions for i in (1, 2)} or {1})
        )
        formats_of = {x.format for m in units for x in _conversions(m)} | {fd.name}
        self.normals = np.array(sorted({formats.get(x).min_exponent for x in formats_of}))
        sums = {v + i for m in units if (v := getattr(m, "F_sum", None)) for i in (0, 1)}
        self.sums = np.array(sorted(sums)) if sums else self.gaps
        zeros = {e for m in units if (e := getattr(m, "e_zero", None)) is not None}
        self.zeros = np.array(sorted(zeros or {fd.min_exponent}), np.int64)
        self.places = np.array(sorted({v + i for v in ends for i in (-2, -1, 0, 1)}), np.int64)

    def choose(self, values: Sequence[int] | Ints, *shape: int) -> Ints:
        if isinstance(values, range) and values.step == 1:
            return self.draw.integers(values.start, values.stop - 1, shape)
        found: Ints = np.asarray(values, np.int64)[self.draw.integers(0, len(values) - 1, shape)]
        return found

    def one_in(self, n: float, *shape: int) -> Mask:
        return np.less(self.draw.bits(32, shape), np.uint64(2**32 / n))

    def first_lanes(self, step: Ints) -> Ints:
        """Of rows that take so many lanes a step, the first one of some step."""
        found: Ints = (self.rng.random(len(step)) * (self.k // step)).astype(np.int64) * step
        return found

    def lanes(self, n: int, terms: int) -> Ints:
        """Lanes (n, terms) of each row, all different, often of one step; c at times one of them.

        There are -1 among them where there are fewer lanes than terms.
        """
        k = self.k
        step = self.choose(self.steps, n)
        step = np.where(self.one_in(3, n), k, step)
        start = self.first_lanes(step)
        lane = np.arange(k)
        outside = (lane < start[:, None]) | (lane >= (start + step)[:, None])
        order = self.rng.random((n, k)) + 2.0 * outside
        order = np.where(self.one_in(2, n, 1), order, np.abs(lane - start[:, None]) + 0.0)
        picked = np.argsort(order, axis=1)[:, :terms]
        found = np.full((n, terms), -1, np.int64)
        found[:, : picked.shape[1]] = picked
        if k < terms:  # any of the terms may be the one that is left out
            found = self.rng.permuted(found, axis=1)
        at = self.choose(np.arange(-terms, terms), n)
        rows = np.flatnonzero(at >= 0)
        found[rows, at[rows]] = k
        return found

    def empty(self, n: int, terms: int, *, placed: bool = True) -> Terms:
        """Rows of powers of two of random sign and exponent 0 in random lanes, zeros elsewhere.

        Not ``placed``: in no lane yet.
        """
        lane = self.lanes(n, terms) if placed else np.full((n, terms), -1, np.int64)
        return Terms(
            lane, np.zeros((n, terms), np.int64), np.zeros((n, terms), np.int64),
            self.one_in(2, n, terms), np.zeros(n, np.int64), np.zeros(n, bool), self.one_in(2, n),
            self.one_in(2, n), self.one_in(4, n),
        )  # fmt: skip

    def middle(self, n: int) -> Ints:
        """Exponents for the largest term of a row, half of them among the largest."""
        high, low = self.range.high, max(self.range.low, self.box.formats[3].min_exponent)
        seen = min(high, self.box.formats[3].max_exponent - 2)
        top = np.where(self.one_in(4, n), high, seen) - self.choose(range(6), n)
        return np.where(self.one_in(2, n), top, self.choose(range(low, seen + 1), n))

    def ends(self, x: Terms) -> Ints:
        """By how much to move a row so that one of its terms lies at one of the places."""
        n, terms = x.e.shape
        which = self.choose(range(min(terms, 5)), n)
        return self.choose(self.places, n) - x.e[np.arange(n), which]

    def within(self, x: Terms) -> None:
        """Move rows to where all of their products are normal, if there is such a place.

        Half of them to an end of these places.
        """
        product = (x.lane >= 0) & (x.lane < self.k)
        low = self.range.low - np.where(product, x.e, 1 << 20).min(axis=1)
        high = self.range.high - np.where(product, x.e, -(1 << 20)).max(axis=1)
        at = low + (self.rng.random(len(low)) * (high - low + 1)).astype(np.int64)
        end = np.where(self.one_in(2, len(low)), low, high) + self.choose([-1, 0, 0, 1], len(low))
        somewhere = np.abs(high) + np.abs(low) > 1 << 19  # there are no products
        at = np.where(somewhere, 0, np.where(self.one_in(2, len(low)), at, end))
        move(x, at)

    def somewhere(self, x: Terms) -> None:
        """Move rows, half of them to the middle and half to the ends."""
        n = len(x.e)
        move(x, np.where(self.one_in(2, n), self.middle(n), self.ends(x)))


def move(x: Terms, by: Ints) -> None:
    x.e = x.e + by[:, None]
    x.rest = x.rest + by


def _kept(model: Model) -> Iterable[int]:
    for name in _BITS:
        bits = getattr(model, name, None)
        if bits is not None:
            yield int(bits)
    yield from map(_bits, _conversions(model))


def _conversions(model: Model) -> Iterable[Conversion]:
    found = (getattr(model, name, None) for name in _CONVERSIONS)
    return (rho for rho in found if isinstance(rho, Conversion))


def _bits(rho: Conversion) -> int:
    bits = rho.mantissa_bits
    return formats.get(rho.format).mantissa_bits if bits is None else bits


# --- into codes -----------------------------------------------------------------------------------


def two_scales(fs: Format, e: Ints) -> tuple[Codes, Codes]:
    """Two scales, powers of two, whose product is 2^e, or the nearest that there is."""
    low, high = fs.min_exponent, fs.max_exponent
    half = clip(e >> 1, low, high)
    halves = half, clip(e - half, low, high)
    first = int(fs.specials != "ue8m0")  # the field of normal numbers
    scale_a, scale_b = (
        ((x - low + first) << fs.mantissa_bits).astype(fs.code_dtype) for x in halves
    )
    return scale_a, scale_b


def written(s: Setting, x: Terms) -> Dots:
    """The rows whose terms all exist in the box's formats; scales, of all blocks alike, help."""
    fc, fs = s.box.formats[2], s.box.scale_format
    n, k = len(x.e), s.k
    a, b = _beside(s, x, k + 2)
    rows = np.arange(n)[:, None]
    is_c, none = x.lane == k, x.lane < 0
    with_c, at = is_c.any(axis=1), (rows[:, 0], is_c.argmax(axis=1))
    c, c_held = coded(s, fc, x.e[at], x.shape[at], x.negative[at])
    up = np.zeros(n, np.int64)
    if fs is not None:
        products = np.where((x.lane >= 0) & (x.lane < k), x.e, s.range.lowest)
        top = np.maximum(products.max(axis=1), np.where(x.rest_used, x.rest, s.range.lowest))
        up = top - s.plain.high + s.choose(range(s.plain.high - s.plain.low + 1), n) // 2
        up = clip(up, 2 * fs.min_exponent, 2 * fs.max_exponent)
    pa, pb, held = _products(s, x.e - up[:, None], x.shape, x.negative, x.mantissas)
    r_held = np.ones(n, bool)
    if x.rest_used.any():
        ra, rb, r_held = _products(s, x.rest - up, np.zeros(n, np.int64), x.rest_negative)
        r_held |= ~x.rest_used
        a[x.rest_used], b[x.rest_used] = ra[x.rest_used, None], rb[x.rest_used, None]
    lane = select(is_c | none, k + 1, x.lane)  # a lane for nothing
    a[rows, lane], b[rows, lane] = pa, pb
    zero = np.where(x.minus_c & (fc.specials != "fnuz"), fc.sign_bit, 0).astype(fc.code_dtype)
    addend = np.where(with_c, c, zero)
    if x.solved is not None:
        solved = _c_beside(s, a[:, :k], b[:, :k], x, up)
        addend = np.where(with_c, addend, solved)
    good = (select(is_c, c_held[:, None], held) | none).all(axis=1) & r_held
    found = a[good, :k], b[good, :k], addend.astype(fc.code_dtype)[good]
    if fs is None or s.box.spec.block is None:
        return Dots(*found)
    blocks = np.repeat(up[good, None], k // s.box.spec.block, axis=1)
    return Dots(*found, *two_scales(fs, blocks))


def _c_beside(s: Setting, a: Codes, b: Codes, x: Terms, up: Ints) -> Codes:
    """The c that moves the products' sum to where the rows' ``solved`` say."""
    fa, fb, fc, _ = s.box.formats
    assert x.solved is not None
    half, gap, more, far = x.solved.T
    with np.errstate(all="ignore"):
        terms = formats.decode(a, fa).astype(np.longdouble) * formats.decode(b, fb)
        terms = np.ldexp(terms, up[:, None])
        total = terms.sum(axis=1)
        largest = np.frexp(np.abs(terms).max(axis=1))[1].astype(np.int64) - 1
        way = np.where(s.one_in(2, len(total)), 1, -1) * (1 - s.rng.random(len(total)) / 2)
        rough = total + way * np.ldexp(total, far - half)
        own = np.frexp(rough)[1].astype(np.int64) - 1
        grid = np.ldexp(np.longdouble(1), own - half)
        near = np.rint(rough / grid)
        sign = np.where(s.one_in(2, len(total)), 1, -1)
        c = near * grid + sign * more * np.ldexp(np.longdouble(1), largest - gap) - total
        c = np.nan_to_num(c.astype(np.float64))
    out: Codes = formats.quantize(c, fc, saturate=True).view(fc.code_dtype)
    return out


def _beside(s: Setting, x: Terms, lanes: int) -> tuple[Codes, Codes]:
    """Operands of the products that are no terms: one or both of them zero, of all signs."""
    n = len(x.e)
    negative = s.one_in(2, n, 1) ^ (s.one_in(2, n, lanes) & s.one_in(4, n, 1))
    other = select(s.one_in(2, n, 1), negative ^ x.minus_zero[:, None], s.one_in(2, n, lanes))
    which = s.choose([0, 0, 1, 2], n, 1)
    found = []
    for fmt, sign, is_one in zip(
        s.box.formats[:2], (negative, other), (which == 1, which == 2), strict=True
    ):
        signed = is_one if fmt.specials == "fnuz" else np.ones((n, 1), bool)
        word = fmt.code_dtype.type
        found.append(is_one * word(fmt.encode(1, 0)) | (sign & signed) * word(fmt.sign_bit))
    return found[0], found[1]


@functools.cache
def _fractions(M: int) -> Ints:
    """The mantissas, of M bits, of shapes that are always the same."""
    found = np.zeros(len(_SHAPES), np.int64)
    found[[HALVES, MOST, ODD]] = 1 << M >> 1, (1 << M) - 1, min(1, M)
    found[[TWO, SQUARE, THIRD]] = max(0, (1 << M) - 2), min(1, M), min(1, M)
    found[[NEXT, FOURTH, _THREE]] = min(2, M), min(2, M), min(3, (1 << M) - 1)
    found[EIGHTHS:] = np.arange(64) // 8 << M >> 3
    return found


def coded(
    s: Setting, fmt: Format, e: Ints, shape: Ints, negative: Mask, mantissa: Ints | None = None
) -> tuple[Codes, Mask]:
    """Codes of one number each, and where the format has it."""
    M, low, word = fmt.mantissa_bits, fmt.min_exponent, fmt.code_dtype
    whole = np.dtype(np.int64 if fmt.width == 64 else np.int32)
    drawn: dict[int, Callable[[int], Any]] = {
        BIT: lambda n: 1 << np.maximum(M - s.choose(s.gaps, n), 0) & (1 << M) - 1,
        RUN: lambda n: (1 << M) - (1 << np.maximum(M - s.choose(range(1, 6), n), 0)),
        ANY: lambda n: s.draw.bits(M, (n,)),
        ONES: lambda n: (
            (1 << M) - (1 << np.maximum(M - s.choose(s.halves, n) + s.choose([0, 1, 1, 2], n), 0))
        ),
        UNIT: lambda n: 1 << np.maximum(M + 1 - s.choose(s.halves, n), 0) & (1 << M) - 1,
    }
    fraction = _fractions(M).astype(whole).take(shape)
    flat, shapes = fraction.reshape(-1), shape.reshape(-1)
    for one, draw in drawn.items():
        (at,) = (shapes == one).nonzero()
        if len(at):
            flat[at] = draw(len(at))
    if mantissa is not None:
        fraction = mantissa.astype(whole)
    e = e.astype(whole)  # no code overflows: beyond the format all exponents are its next
    down = clip(low - e, 0, M + 1)
    binade = clip(e - low, 0, fmt.max_exponent + 1 - low)
    code = (binade << M) + ((fraction | 1 << M) >> down)
    held: Mask = (down <= M) & (code <= fmt.max_code >> fmt.dropped_bits)
    words = (code * held).astype(word) << fmt.dropped_bits
    words |= (negative & held) * word.type(fmt.sign_bit)
    return words, held


def _products(
    s: Setting, e: Ints, shape: Ints, negative: Mask, mantissas: Ints | None = None
) -> tuple[Codes, Codes, Mask]:
    """Codes of a and b: normal numbers, with exponents as even as can be, where there are such."""
    of_a, of_b = (None, None) if mantissas is None else np.moveaxis(mantissas, 2, 0)
    fa, fb = s.box.formats[:2]
    lowest = np.maximum(fa.min_exponent, e - fb.max_exponent)
    half = clip(e >> 1, lowest, np.minimum(fa.max_exponent, e - fb.min_exponent))
    # Below all of those a stays normal down to its lowest exponent, and then b.
    half = np.maximum(half, fa.min_exponent)
    below = e < fa.min_exponent + fb.min_exponent - fb.mantissa_bits
    half = select(below, e - fb.min_exponent + fb.mantissa_bits, half)
    half = select(shape == SMALL, fa.min_exponent - min(1, fa.mantissa_bits), half)
    half = select(shape == LEAST, fa.min_exponent - fa.mantissa_bits, half)
    b_shape = _OF_B.take(shape)
    a, a_held = coded(s, fa, half, shape, negative, of_a)
    b_minus = s.one_in(2, *e.shape) & (shape == ANY)
    b, b_held = coded(s, fb, e - half, b_shape, b_minus, of_b)
    return a, b, a_held & b_held
