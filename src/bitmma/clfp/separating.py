"""Inputs on which models can differ, made of the parameters in which they do.

Random inputs seldom have a bit just where a cut falls. Here a dot product has a few terms, most of
them powers of two, whose distances are drawn from the parameters of the models in question, and one
of which lies where something ends: at the smallest normal output, the exponent of a zero, the
largest number. The models are run on many such inputs, and where they differ the box is asked.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from bitmma import formats
from bitmma.cases import Draw, clip, select
from bitmma.clfp.box import Box, Codes, Dots
from bitmma.clfp.numbers import Range
from bitmma.formats import Format
from bitmma.models import Conversion, Model

__all__ = ["AIMS", "Aim", "separating"]

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
_ONE, _HALVES, _MOST, _ODD, _BIT, _RUN, _ANY, _SMALL, _LEAST = range(9)
#: The most below two; one and the last place of an output, or the one after; (1 + u)^2 and 1 + 2 u,
#: u being a's last place.
_TWO, _UNIT, _SQUARE, _NEXT = range(9, 13)
#: (1 + u)(1 + 3 u), whose b is the second, and (1 + 2 u)^2, which is u^2 more.
_THIRD, _THREE, _FOURTH = range(13, 16)
#: From here on: so many eighths more than one in a, times 8, and in b.
_EIGHTHS = 16
_SHAPES = range(_EIGHTHS + 64)
#: What b is where a is one of them.
_OF_B = np.array(_SHAPES)
_OF_B[[_ODD, _RUN, _UNIT, _NEXT]] = _ONE
_OF_B[[_TWO, _THIRD]] = _ODD, _THREE
_OF_B[_EIGHTHS:] = _EIGHTHS + np.arange(64) % 8 * 8

#: How large products of some of them are.
_SIZES = {_HALVES: 2.25, _MOST: 3.99, _RUN: 1.6, _TWO: 1.97}


def _sizes(shape: Ints, others: float) -> npt.NDArray[np.float64]:
    """How large products of these shapes are, ``others`` if they are not in `_SIZES`."""
    return np.select([shape == i for i in _SIZES], list(_SIZES.values()), others)


@dataclass
class _Terms:
    """Rows of terms. Lane -1: there is no such term; lane k: c.

    Attributes:
        lane, e, shape, negative: (N, T): where, floor(log2) of the operands' product, significand.
        rest: (N,): the exponent of a power of two in every other lane; ``rest_used``, where.
        minus_c: (N,): a c of no term is -0. minus_zero: so are products of no term.
        solved: (N, 4): c is to bring the sum so many bits below its first, to a multiple of that
            and so many times 2 to minus the second more; the last: how far c's first bit is above
            that unit.
        exact: (N, 3): the second term, a product, is to bring the sum to a multiple of 2 to so many
            less than its exponent, and so many times 2 to minus the second more.
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
    exact: Ints | None = None


class _Setting:
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

    def empty(self, n: int, terms: int, *, placed: bool = True) -> _Terms:
        """Rows of powers of two of random sign and exponent 0 in random lanes, zeros elsewhere.

        Not ``placed``: in no lane yet.
        """
        lane = self.lanes(n, terms) if placed else np.full((n, terms), -1, np.int64)
        return _Terms(
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

    def ends(self, x: _Terms) -> Ints:
        """By how much to move a row so that one of its terms lies at one of the places."""
        n, terms = x.e.shape
        which = self.choose(range(min(terms, 5)), n)
        return self.choose(self.places, n) - x.e[np.arange(n), which]

    def within(self, x: _Terms) -> None:
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
        _move(x, at)

    def somewhere(self, x: _Terms) -> None:
        """Move rows, half of them to the middle and half to the ends."""
        n = len(x.e)
        _move(x, np.where(self.one_in(2, n), self.middle(n), self.ends(x)))


def _move(x: _Terms, by: Ints) -> None:
    x.e = x.e + by[:, None]
    x.rest = x.rest + by


def _kept(model: Model) -> Iterable[int]:
    for name in _BITS:
        bits = getattr(model, name, None)
        if bits is not None:
            yield int(bits)
    for name in _CONVERSIONS:
        rho = getattr(model, name, None)
        if isinstance(rho, Conversion):
            yield _bits(rho)


def _bits(rho: Conversion) -> int:
    bits = rho.mantissa_bits
    return formats.get(rho.format).mantissa_bits if bits is None else bits


# --- what is fed ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Aim:
    """One kind of input.

    Attributes:
        name, fed: in words.
        draw: so many rows of it.
    """

    name: str
    fed: str
    draw: Callable[[_Setting, int], _Terms]


AIMS: list[Aim] = []
_Draw = Callable[[_Setting, int], _Terms]


def _aim(name: str, fed: str) -> Callable[[_Draw], _Draw]:
    def register(draw: _Draw) -> _Draw:
        AIMS.append(Aim(name, fed, draw))
        return draw

    return register


def _few(s: _Setting, n: int) -> _Terms:
    """U, perhaps -U, and three smaller terms at distances that the models' parameters give."""
    x = s.empty(n, 5)
    gap = s.choose(s.gaps, n, 5)
    gap[:, 4] = np.where(s.one_in(2, n), gap[:, 4], s.choose(range(70), n))
    gap[:, :2] = np.where(s.one_in(8, n, 2), gap[:, :2] % 3, 0)
    chained = s.one_in(2, n)  # the last two as far below the third as they are below U
    gap[:, 3] = np.where(chained, gap[:, 2] + s.choose([0, 1, 2, 3], n), gap[:, 3])
    x.e = -gap
    x.lane[:, 1] = np.where(s.one_in(2, n), -1, x.lane[:, 1])
    x.lane[:, 3:] = np.where(s.one_in(3, n, 2), -1, x.lane[:, 3:])
    cancels = ~s.one_in(4, n)
    x.negative[:, 1] = np.where(cancels, ~x.negative[:, 0], x.negative[:, 1])
    x.shape = np.where(s.one_in(5, n, 5), s.choose(range(9), n, 5), _ONE)
    x.shape[:, 1] = np.where(cancels & ~s.one_in(5, n), x.shape[:, 0], x.shape[:, 1])
    return x


@_aim("a bit where something is cut", "U, perhaps -U, and bits where the cuts fall, or just beside")
def _at_cuts(s: _Setting, n: int) -> _Terms:
    x = _few(s, n)
    _move(x, s.middle(n))
    return x


@_aim("what is left of U - U", "U and -U, as large as they can be, and small numbers beside them")
def _left(s: _Setting, n: int) -> _Terms:
    x = s.empty(n, 5)
    high = s.range.high - s.choose(range(12), n)
    at = np.where(s.one_in(2, n), high, s.choose(s.places, n))
    at = np.where(s.one_in(4, n), s.range.high, at)
    x.negative[:, 1] = ~x.negative[:, 0]
    x.shape = s.choose([_ONE] * 7 + [_BIT, _RUN, _ANY, _ODD, _LEAST], n, 5)
    x.shape[:, :2] = s.choose([_ONE, _ONE, _HALVES, _MOST], n, 1)
    gap = s.choose(s.gaps, n)
    low = s.choose(s.places, n)
    inside = at - (s.rng.random(n) * gap).astype(np.int64)
    first = np.where(
        s.one_in(2, n), inside, np.where(s.one_in(2, n), low, at - s.choose(s.gaps, n))
    )
    second = np.where(s.one_in(2, n), first - s.choose(s.halves, n), s.choose(s.places, n))
    second = np.where(s.one_in(4, n), s.range.lowest + s.choose(range(3), n), second)
    x.e = np.stack([at, at, first, second, at - gap], axis=1)
    x.e[:, 2:] = np.minimum(x.e[:, 2:], at[:, None])
    x.lane[:, 2:] = np.where(s.one_in(3, n, 3), -1, x.lane[:, 2:])
    free = ~(x.lane == s.k).any(axis=1) & s.one_in(2, n)
    x.lane[free, 2] = s.k
    return x


@_aim("c = 0 decides", "c = 0, products just below its exponent, one where half a unit is")
def _zero_decides(s: _Setting, n: int) -> _Terms:
    x = s.empty(n, min(s.k, 33))
    terms = x.e.shape[1]
    x.lane = np.where(x.lane == s.k, -1, x.lane)
    top = s.choose(s.zeros, n) - s.choose([1, 1, 1, 2, 3, 0, -1], n)
    few = np.minimum(s.choose(range(1, terms + 1), n), s.choose(s.steps, n))
    few = np.where(
        s.one_in(2, n), few, np.maximum(s.choose(s.steps, n) - s.choose([0, 1, 2], n), 1)
    )
    x.e = np.repeat(top[:, None], terms, axis=1)
    shape = s.choose([_MOST, _MOST, _HALVES, _ONE, _RUN, _ANY], n, 1)
    x.shape = np.where(s.one_in(6, n, 1), s.choose(range(7), n, terms), shape)
    x.negative = np.where(s.one_in(6, n, 1), x.negative, x.negative[:, :1])
    # Its sum has about so many bits above the products' exponent.
    carry = np.ceil(np.log2(few * np.where(shape[:, 0] == _MOST, 4, 2))).astype(np.int64)
    x.lane = np.where(np.arange(terms) >= few[:, None], -1, x.lane)
    down = s.choose(s.halves, n) - carry + s.choose([0, 0, 1, 2, -1], n)
    x.e[:, 0] = top - np.where(s.one_in(4, n), s.choose(s.gaps, n), down)
    x.shape[:, 0] = s.choose([_ONE, _MOST, _RUN, _RUN, _ODD, _ANY], n)
    x.negative[:, 0] = s.one_in(2, n)
    x.rest, x.rest_used = top - s.choose(s.gaps, n), s.one_in(3, n)
    return x


@_aim("c = 0 decides a tie", "c = 0, terms alike below its exponent, half a unit together; a hair")
def _zero_decides_ties(s: _Setting, n: int) -> _Terms:
    terms = max(4, min(s.k, 33) + 1)
    x = s.empty(n, terms, placed=False)
    zero, step = s.choose(s.zeros, n), np.minimum(s.choose(s.steps, n), terms - 1)
    top = zero - s.choose([1, 1, 1, 1, 2, 3], n)
    few = np.maximum(step - s.choose([1, 2, 2, 3], n), 1)
    shape = s.choose([_ONE, _ONE, _RUN, _RUN, _MOST, _TWO], n)
    size = _sizes(shape, 1.0)
    carry = np.log2(few * size).astype(np.int64)
    tie = np.maximum(s.box.formats[3].min_exponent, top + carry) - s.choose(s.halves, n)
    # Where that is above them, so many of them make it; or of 9/4, and a power of two.
    whole, above = 1 << np.clip(tie - top, 0, 6), tie >= top
    nines = above & s.one_in(2, n)
    few = np.where(above & (whole <= step), whole, few)
    few = np.where(nines, whole * 4 // 9 + 1, few)
    shape = np.where(nines, _HALVES, np.where(above, _ONE, shape))
    rest = np.log2(np.maximum(whole - (few - 1) * 2.25, 0.25)).astype(np.int64)
    lane = np.arange(terms) - 1
    few = np.minimum(few + 2, step)  # a hair, or two
    x.lane = np.where(lane >= few[:, None], -1, np.maximum(lane, 0))
    x.lane[:, 0] = -1
    x.e[:], x.shape[:] = top[:, None], shape[:, None]
    x.negative[:] = x.negative[:, :1] ^ (s.one_in(16, n, terms) & s.one_in(2, n, 1))
    x.e[:, 1] = zero - s.choose(s.gaps, n) + s.choose([-2, -1, -1, 0, 0, 1], n)
    x.e[:, 3] = np.where(above, np.where(nines, top + rest, top), tie)
    x.shape[:, [1, 3]] = np.where(s.one_in(4, n, 2), s.choose(range(7), n, 2), _ONE)
    x.negative[:, 1] = s.one_in(2, n)
    squares = s.one_in(3, n)  # the hair is what two products leave
    x.e[squares, 1] = (s.range.low + s.choose(range(4), n))[squares]
    x.lane[:, 2] = np.where(squares, x.lane[:, 2], -1)
    x.e[:, 2], x.negative[:, 2] = x.e[:, 1], ~x.negative[:, 1]
    x.shape[squares, 1], x.shape[:, 2] = _SQUARE, _NEXT
    return x


@_aim("c beside a boundary", "products, and the c that brings their sum to half a unit, or just by")
def _solved(s: _Setting, n: int) -> _Terms:
    x = _carries(s, n)
    x.lane = np.where(x.lane == s.k, -1, x.lane)
    gap, half = s.choose(s.gaps, n), s.choose(s.halves, n)
    far = np.where(s.one_in(2, n), 2, half + 2) * s.rng.random(n)  # c is small, or of any size
    more = s.choose([0, 0, 1, 1, 2, 3, -1], n)
    x.solved = np.stack([half, gap, more, far.astype(np.int64)], axis=1)
    return x


@_aim("the longest sums", "all products of a step at their largest, c's last bit where it is cut")
def _longest(s: _Setting, n: int) -> _Terms:
    x = s.empty(n, min(s.k, 64), placed=False)
    terms = x.e.shape[1]
    step = s.choose(s.steps, n)
    first = s.first_lanes(step)
    lane = first[:, None] + np.arange(terms)
    x.lane = np.where(np.arange(terms) < step[:, None], lane, -1)
    x.shape[:] = s.choose([_MOST, _MOST, _TWO], n, 1)
    x.negative[:] = x.negative[:, :1]
    x.minus_zero[:] = False
    half, gap = s.choose(s.halves, n), s.choose(s.gaps, n)
    # A product of two such is nearly 4 times 2 to its exponent.
    # Where c has more bits than are kept of it, it is as large as a product.
    far = half - np.log2(step).astype(np.int64)
    far += np.minimum(s.box.formats[2].mantissa_bits - gap, 0)
    more = s.choose([1, 1, 1, 2, 3], n)
    x.solved = np.stack([half, gap, more, far - s.choose([0, 0, 1, 2], n)], axis=1)
    s.somewhere(x)
    return x


@_aim("a bit where something ends", "the same at the smallest outputs, at e_zero, at overflow")
def _at_ends(s: _Setting, n: int) -> _Terms:
    x = _few(s, n)
    _move(x, s.ends(x))
    return x


@_aim("long and few", "terms alike in all lanes of a step but two: half a unit of the sum, a hair")
def _alike(s: _Setting, n: int) -> _Terms:
    terms = max(4, min(s.k, 64) + 1)
    x = s.empty(n, terms, placed=False)
    step = s.choose(s.steps, n)
    first = s.first_lanes(step)
    lane = first[:, None] + np.arange(terms) - 1
    few = np.where(s.one_in(3, n), 1 << s.choose(range(terms.bit_length()), n), step)
    few = np.minimum(few + 2 - s.choose([-1, 0, 0, 0, 1, 2], n), step)
    x.lane = np.where(np.arange(terms) > few[:, None], -1, lane)
    shape = s.choose([_ONE, _ONE, _HALVES, _RUN, _RUN, _MOST, _TWO], n)
    x.shape[:] = shape[:, None]
    x.negative[:] = x.negative[:, :1]
    size = _sizes(shape, 1.0)
    # What is alike makes a sum with its first bit here, or one below.
    carry = np.log2(np.maximum(few - s.choose([0, 1, 2, 3], n), 1) * size)
    carry = carry.astype(np.int64) - s.one_in(4, n)
    half = carry - s.choose(s.halves, n)
    hair = np.where(s.one_in(2, n), carry, 0) - s.choose(s.gaps, n) + s.choose([0, 0, 1, -1], n)
    # c is half a unit, a whole one or a hair; or alike; or what they are a unit of; or nothing.
    role, above = s.choose(range(7), n), carry + s.choose(s.halves, n) - s.choose([0, 1], n)
    x.e[:, 0] = np.choose(role, [half, half + 1, hair, carry * 0, carry, above, half])
    x.lane[:, 0] = np.where(role == 6, -1, s.k)
    x.e[:, 1], x.e[:, 2] = half, np.where(role == 5, above - s.choose(s.gaps, n), hair)
    x.lane[:, 1] = np.where((role == 5) & s.one_in(1.3, n), -1, x.lane[:, 1])
    x.shape[:, :3] = np.where(s.one_in(4, n, 3), s.choose(range(7), n, 3), _ONE)
    for i in range(3):
        x.negative[:, i] ^= s.one_in(2, n)
    squares = s.one_in(4, n)  # the hair is what two of the smallest leave
    x.e[squares, 2] = (s.range.low - s.range.high + s.choose(range(4), n))[squares]
    x.shape[squares, 2], x.shape[squares, 3] = _SQUARE, _NEXT
    x.e[squares, 3], x.negative[squares, 3] = x.e[squares, 2], ~x.negative[squares, 2]
    s.within(x)
    return x


@_aim("what two neighbours leave", "U and -U or none, a sum, half its unit, and p - p (1 + an ulp)")
def _neighbours(s: _Setting, n: int) -> _Terms:
    x = s.empty(n, 6)
    M = s.box.formats[0].mantissa_bits
    gap = s.choose(s.gaps, n)
    span = s.range.high - s.range.low + 1
    above = np.where(s.one_in(3, n), 0, (s.rng.random(n) * span).astype(np.int64))
    above = np.where(s.one_in(3, n), s.range.high - s.choose(s.places, n), above)
    hair = -gap + s.choose(range(-1, 2 * M + 2), n)
    lowest = s.one_in(3, n)
    hair = np.where(lowest, 1 - span + s.choose(range(4), n), hair)
    x.e[:, 2] = -above
    x.e[:, 3] = -above - s.choose(s.halves, n) + s.choose([0, 0, 1], n)
    x.e[:, 4:] = hair[:, None]
    x.negative[:, 1] = ~x.negative[:, 0]
    x.shape[:] = _ONE
    x.shape[:, :2] = s.choose([_ONE, _HALVES, _MOST], n, 1)
    x.shape[:, 2] = s.choose([_ONE, _ODD, _UNIT, _UNIT], n)
    x.shape[:, 4] = s.choose([_ONE, _ONE, _ODD, _SQUARE], n)
    other = s.choose([_ODD, _ODD, _BIT, _ANY], n)
    x.shape[:, 5] = np.where(x.shape[:, 4] == _SQUARE, _NEXT, other)
    x.negative[:, 5] = ~x.negative[:, 4]
    alone = s.one_in(2, n)  # the sum is the largest
    x.lane[alone, :2] = -1
    x.e[alone & ~lowest, 2:4] += above[alone & ~lowest, None]
    ties = s.one_in(3, n) & ~alone  # no sum: half of what is kept of U - U, and the smallest number
    role = np.where(ties, 5, s.choose(range(6), n))
    role = np.where((x.lane == s.k).any(axis=1), 5, role)
    x.lane[:, 2] = np.where(role < 3, s.k, np.where(role == 3, -1, x.lane[:, 2]))
    wide = (role < 3) & lowest & s.one_in(2, n)  # c is far above: products are half its unit
    x.e[wide, 3] = -s.choose(range(6), n)[wide]
    x.e[wide, 2] = x.e[wide, 3] + s.choose(s.halves, n)[wide]
    x.lane[ties, 4:], x.shape[ties, 2] = -1, _ONE
    x.e[ties, 3] = (s.choose([0, 0, 1], n) - s.choose(s.gaps, n))[ties]
    x.e[ties, 2] = (s.range.lowest - s.range.high + s.choose(range(3), n))[ties]
    x.lane[:, 3] = np.where(s.one_in(4, n) & ~ties, -1, x.lane[:, 3])
    s.within(x)
    _move(x, np.where(ties, s.range.high - np.maximum(x.e[:, 0], x.e[:, 1]), 0))
    return x


@_aim("a power of two of many", "c or none, half its unit made of all products of a step; a hair")
def _made(s: _Setting, n: int) -> _Terms:
    """Products as large as they can be seldom make a tie: here they are chosen to make 2^power.

    It is half a unit of c, or the sum itself. Beside it there are a unit of what is cut from
    sums, and a hair: one product, or two of many bits that leave one bit.
    """
    most = min(s.k, _MADE_MOST)
    x = s.empty(n, 4 + most, placed=False)
    step = np.minimum(s.choose(s.steps, n), most)
    M_a, M_b = (f.mantissa_bits for f in s.box.formats[:2])
    count, shape, e = _makings(M_a, M_b, most)
    hairs = np.minimum(s.choose([0, 1, 1, 2, 2], n), step)
    unit = s.one_in(2, n) & (hairs < step)
    limit, room = s.choose(range(len(count)), n), step - hairs - unit
    power = (count[limit] <= room[:, None]).sum(axis=1) - 1
    power = np.maximum(power - s.choose([0, 0, 0, 1, 2], n), 0)
    none = (room < 1) | s.one_in(5, n)
    x.e[:, 4:], x.shape[:, 4:] = e[limit, power], shape[limit, power]
    x.negative[:, 4:] = x.negative[:, 4:5]
    used = np.zeros((n, 4 + most), bool)
    used[:, 4:] = (np.arange(most) < count[limit, power][:, None]) & ~none[:, None]
    with_c, half = s.one_in(1.5, n) | none, s.choose(s.halves, n)
    top = np.where(with_c, power + half, power)
    x.e[:, 0], x.negative[:, 0] = top, x.negative[:, 4] ^ ~s.one_in(4, n)
    x.shape[:, 0] = s.choose([_ONE] * 5 + [_ODD, _MOST, _ANY], n)
    tie = ~with_c & ~s.one_in(4, n)
    x.e[:, 3] = top - np.where(tie, half, s.choose(s.sums, n))
    hair = top - s.choose(s.gaps, n) - s.choose([0, 0, 1], n)
    x.e[:, 1:3] = (hair + np.where(hairs == 2, M_a + M_b, 0))[:, None]
    square = s.one_in(2, n, 1) | (min(M_a, M_b) < 2)
    x.shape[:, 1:3] = np.where(square, [_SQUARE, _NEXT], [_THIRD, _FOURTH])
    x.shape[:, 1:3] = np.where(hairs[:, None] == 2, x.shape[:, 1:3], _ONE)
    x.negative[:, 2] = ~x.negative[:, 1]
    used[:, 1:4] = np.stack([hairs > 0, hairs > 1, unit], axis=1)
    rank = np.cumsum(used, axis=1) - 1 + s.choose(range(64), n, 1)
    lane = s.first_lanes(step)[:, None] + rank % step[:, None]
    x.lane = np.where(used, lane, -1)
    x.lane[:, 0] = np.where(with_c, s.k, -1)
    s.within(x)
    least = s.range.lowest + s.choose(range(3), n) - x.e[:, 1]
    _move(x, np.where((hairs == 1) & s.one_in(2, n), least, 0))
    return x


@_aim("exact sums", "products of all bits, the last such that the sum is one output, or half-way")
def _exact(s: _Setting, n: int) -> _Terms:
    """What a cut takes from products of many bits shows where their sum is at a boundary.

    There it is without any cut, or a last bit beside.
    """
    most = max(3, min(s.k, _MADE_MOST) + 1)
    x = s.empty(n, most, placed=False)
    step = np.minimum(s.choose(s.steps, n), most - 1)
    few = np.where(s.one_in(3, n), 1 + (s.rng.random(n) * step).astype(np.int64), step)
    lane = s.first_lanes(step)[:, None] + np.arange(most) - 1
    x.lane = np.where(np.arange(most) > few[:, None], -1, lane)
    deepest = s.choose([0, 1, 1, 2, 8], n, 1)
    x.e = -(s.rng.random((n, most)) * (deepest + 1)).astype(np.int64)
    x.shape = np.where(s.one_in(3, n, most), s.choose([_MOST, _ODD, _ONE], n, most), _ANY)
    x.negative = x.negative ^ ((x.negative ^ x.negative[:, :1]) & s.one_in(1.5, n, 1))
    half = s.choose(s.halves, n) - s.choose([0, 0, 1], n)
    role, near = s.choose(range(4), n), s.choose(range(-3, 3), n)  # c: like them, large, or none
    x.e[:, 0] = np.where(role == 0, near, half + s.choose(range(5), n))
    x.shape[:, 0] = np.where((role == 0) | s.one_in(3, n), _ANY, _ONE)
    x.lane[:, 0] = np.where(role < 2, s.k, -1)
    x.exact = np.stack([half, s.choose(s.gaps, n), s.choose([0, 0, 0, 1, -1], n)], axis=1)
    s.within(x)
    top = np.where(s.one_in(2, n), s.choose(s.zeros, n) - s.choose([1, 1, 2, 3], n), s.middle(n))
    _move(x, np.where(s.one_in(2, n), top - x.e[:, 1:].max(axis=1), 0))
    return x


#: Products of the longest sums that are made so.
_MADE_MOST = 64


@functools.cache
def _makings(M_a: int, M_b: int, most: int) -> tuple[Ints, Ints, Ints]:
    """Of products limited in four ways, for powers 0, 1, ...: how many make 2^power; which; their
    exponents. A power that more than ``most`` are needed for counts more than that.
    """
    powers = (4 * most).bit_length()
    shape, e = np.zeros((2, len(_LIMITS), powers, most), np.int64)
    count = np.full((len(_LIMITS), powers), most + 1)
    for limit, power in np.ndindex(count.shape):
        a, b = (range(8, _LIMITS[limit] + 1, max(1, 8 >> M)) for M in (M_a, M_b))
        sizes = {i * j: (i - 8) * 8 + j - 8 for i in a for j in b}
        rest, terms = Fraction(64 << power), list[tuple[int, int]]()  # in 64ths
        while rest and len(terms) <= most:
            down = 0
            while rest < Fraction(64, 1 << down):
                down += 1
            size = max(x for x in sizes if x <= rest * 2**down)
            terms.append((_EIGHTHS + sizes[size], -down))
            rest -= Fraction(size, 1 << down)
        if len(terms) <= most:
            count[limit, power] = len(terms)
            shape[limit, power, : len(terms)] = [x for x, _ in terms]
            e[limit, power, : len(terms)] = [x for _, x in terms]
    return count, shape, e


#: The largest significands of products that make a power of two, in eighths.
_LIMITS = (8, 12, 14, 15)


@_aim("last bits", "numbers whose last bits fall where something is cut, beside a few bits")
def _last_bits(s: _Setting, n: int) -> _Terms:
    x = s.empty(n, 4)
    M, M_c = s.box.formats[0].mantissa_bits, s.box.formats[2].mantissa_bits
    is_c = x.lane == s.k
    own = np.where(is_c, M_c, s.choose([M, 2 * M, 2 * M + 1], n, 4))
    down = s.choose(s.gaps, n, 4) - own + s.choose([0, 0, 1, -1], n, 4)
    down = np.where(s.one_in(3, n, 4), s.choose(s.halves, n, 4) + s.choose([0, 1, -1], n, 4), down)
    x.e = -np.maximum(down, 0)
    x.e[:, 0] = 0
    x.shape = s.choose([_MOST, _TWO, _TWO, _ODD, _SQUARE, _ANY, _ONE], n, 4)
    x.shape[:, 0] = s.choose([_ONE, _ONE, _UNIT, _ODD, _ANY], n)
    x.lane[:, 2:] = np.where(s.one_in(1.5, n, 2), -1, x.lane[:, 2:])
    s.within(x)
    return x


@_aim("c against the longest sums", "all products of a step, and the power of two that takes most")
def _cancelled(s: _Setting, n: int) -> _Terms:
    terms = max(2, min(s.k, 64) + 1)
    x = s.empty(n, terms, placed=False)
    step = s.choose(s.steps, n)
    first = s.first_lanes(step)
    lane = first[:, None] + np.arange(terms) - 1
    x.lane = np.where(np.arange(terms) > step[:, None], -1, lane)
    x.lane[:, 0] = s.k
    shape = s.choose([_MOST, _MOST, _TWO, _RUN, _ANY], n, 1)
    other = s.choose([_ANY, _ODD, _MOST, _SQUARE], n, terms)
    x.shape = np.where(s.one_in(4, n, terms), other, shape)
    x.negative[:] = x.negative[:, :1]
    x.negative[:, 0] ^= ~s.one_in(4, n)
    size = _sizes(shape[:, 0], 2.0)
    x.e[:, 0] = np.log2(step * size).astype(np.int64) + s.choose([0, 1, 1, 2], n)
    x.e[:, 1] -= np.where(s.one_in(2, n), 0, s.choose(s.gaps, n))
    x.shape[:, 0] = s.choose([_ONE, _ONE, _ONE, _ODD, _ANY], n)
    s.within(x)
    return x


@_aim("over a power of two", "c or a product just below it, what leads beyond it, and a hair")
def _beyond(s: _Setting, n: int) -> _Terms:
    x = s.empty(n, 5)
    with_c = s.one_in(1.5, n)
    x.lane[with_c] = np.where(x.lane[with_c] == s.k, -1, x.lane[with_c])
    x.lane[with_c, 0] = s.k
    x.shape = np.where(s.one_in(4, n, 5), s.choose(range(7), n, 5), _ONE)
    x.shape[:, 0] = s.choose([_MOST, _MOST, _TWO, _RUN, _UNIT], n)
    x.negative[:, 1] = x.negative[:, 0]
    x.e[:, 1] = -(s.rng.random(n) * 26).astype(np.int64)
    x.e[:, 2] = -s.choose(s.halves, n) + s.choose([0, 1, 1, 2], n)
    x.e[:, 3:] = -s.choose(s.gaps, n, 2) + s.choose([0, 0, 0, -1, -2, 1], n, 2)
    x.shape[:, 3] = s.choose([_ONE, _HALVES, _RUN], n)
    three = s.one_in(3, n)  # three quarters
    x.e[three, 4], x.shape[three, 3:] = x.e[three, 3] + 1, _ONE
    x.negative[three, 4] = x.negative[three, 3]
    x.lane[:, 2] = np.where(s.one_in(2, n), -1, x.lane[:, 2])
    x.lane[:, 4] = np.where(s.one_in(2, n), -1, x.lane[:, 4])
    s.within(x)
    return x


@_aim("many hairs", "U, half a unit, less a little, and in all other lanes what is cut from it")
def _hairs(s: _Setting, n: int) -> _Terms:
    x = s.empty(n, 3)
    x.e[:, 1] = -np.where(s.one_in(3, n), s.choose(s.gaps, n), s.choose(s.halves, n))
    hair = s.choose(s.gaps, n)
    x.e[:, 2] = np.where(s.one_in(4, n), -s.choose(s.gaps, n), s.choose(range(6), n) - hair)
    x.negative[:, 2] = np.where(s.one_in(4, n), x.negative[:, 2], ~x.rest_negative)
    x.rest = -hair - s.choose(range(3), n)
    x.rest_used[:] = True
    x.shape[:, 0] = s.choose([_ONE, _UNIT, _ODD], n)
    x.lane[:, 1:] = np.where(s.one_in(3, n, 2), -1, x.lane[:, 1:])
    s.somewhere(x)
    return x


@_aim("carries", "the largest significands in all lanes but a few, and bits where the cuts fall")
def _carries(s: _Setting, n: int) -> _Terms:
    terms = min(s.k + 1, 65)
    x = s.empty(n, terms)
    small = s.rng.random((n, terms)) < s.choose([0, 1, 2, 6], n, 1) / terms
    count = max(terms.bit_length(), 1)
    gap = s.choose(s.gaps, n, terms)
    gap = np.where(
        s.one_in(2, n, terms), gap, s.choose(s.halves, n, 1) - s.choose(range(count + 1), n, 1)
    )
    x.e = np.where(small, -gap, 0)
    large = s.choose([_MOST, _MOST, _MOST, _HALVES, _BIT, _ANY], n, 1)
    large = np.where(s.one_in(8, n, terms), s.choose([_MOST, _HALVES, _BIT, _ANY], n, terms), large)
    x.shape = np.where(small, s.choose([_ONE, _ONE, _MOST, _ODD, _ANY], n, terms), large)
    x.negative = np.where(small | s.one_in(8, n, 1), x.negative, x.negative[:, :1])
    with_c = s.one_in(2, n)
    x.lane[with_c] = np.where(x.lane[with_c] == s.k, -1, x.lane[with_c])
    x.lane[with_c, 1:] = x.lane[with_c, :-1]  # beside all of a step
    x.lane[with_c, 0] = s.k
    step = s.choose([0, 0, 1, 2], n) + s.choose(s.steps, n) - 1
    few = np.where(s.one_in(2, n), step, s.choose(range(terms), n))
    x.lane = np.where((np.arange(terms) > few[:, None]) & ~s.one_in(4, n, 1), -1, x.lane)
    s.somewhere(x)
    return x


@_aim("zeros", "zeros of all signs, and the smallest numbers of either sign beside them")
def _zeros(s: _Setting, n: int) -> _Terms:
    x = s.empty(n, 3)
    x.lane = np.where(s.one_in(2, n, 3), -1, x.lane)
    x.shape = np.where(s.one_in(3, n, 3), _SMALL, _ONE)
    fd = s.box.formats[3]
    last = fd.min_exponent - fd.mantissa_bits
    low = s.choose([s.range.lowest, last, last - 1, fd.min_exponent, *s.places.tolist()], n)
    x.e = low[:, None] + s.choose([0, 0, 1, 2, 3], n, 3)
    x.negative[:, 1] = np.where(s.one_in(2, n), ~x.negative[:, 0], x.negative[:, 1])
    x.minus_zero = s.one_in(2, n)
    return x


@_aim("c alone", "c beside zeros or U - U, at the ends of the outputs' range and between outputs")
def _c_alone(s: _Setting, n: int) -> _Terms:
    x = s.empty(n, 3)
    fd = s.box.formats[3]
    x.lane = np.where(x.lane == s.k, -1, x.lane)
    x.lane[:, 0] = s.k
    last = fd.min_exponent - fd.mantissa_bits
    ends = [fd.min_exponent - 1, fd.min_exponent, last, last + 1, fd.max_exponent]
    x.e[:, 0] = np.where(s.one_in(2, n), s.choose(ends, n), s.choose(s.places, n))
    x.shape[:, 0] = s.choose([_ONE, _HALVES, _MOST, _MOST, _RUN, _RUN, _BIT, _ODD, _ANY], n)
    x.e[:, 1:] = s.middle(n)[:, None]
    x.negative[:, 2] = ~x.negative[:, 1]
    alone: Mask = np.logical_or(s.one_in(2, n), np.any(x.lane < 0, axis=1))
    x.lane[alone, 1:] = -1
    x.minus_zero = s.one_in(2, n)
    return x


@_aim("a far c", "products, and c as far from them as the models' parameters say")
def _far_c(s: _Setting, n: int) -> _Terms:
    x = s.empty(n, 4)
    x.lane = np.where(x.lane == s.k, -1, x.lane)
    x.lane[:, 0] = s.k
    x.lane[:, 2:] = np.where(s.one_in(2, n, 2), -1, x.lane[:, 2:])
    x.e[:, 1:] = s.choose(s.gaps, n, 1) * np.where(s.one_in(3, n, 1), -1, 1)
    x.e[:, 2:] -= np.where(s.one_in(2, n, 2), 0, s.choose(s.gaps, n, 2))
    x.shape = np.where(s.one_in(2, n, 4), s.choose(range(9), n, 4), _ONE)
    s.somewhere(x)
    return x


def separating(box: Box, models: Sequence[Model], count: int, seed: int) -> Dots:
    """About so many dot products, of every aim, made for telling these models apart."""
    s = _Setting(box, models, seed)
    whole = []
    if box.scale_format is not None:
        whole = [_scaled(s, count // 2)]
        whole += [_scaled_ties(s, count // 4)] if s.steps[0] > 2 else []
    each = -(-count // len(AIMS) // (1 + len(whole)))
    return Dots.join([*whole, *(_written(s, aim.draw(s, each)) for aim in AIMS)])


def _scaled(s: _Setting, n: int) -> Dots:
    """With block scales: whole rows, scaled to where something ends, some blocks far below others.

    Operands are of the largest, or any, or zeros; a block's products have one sign or any; c is 0
    more often than not.
    """
    box, k = s.box, s.k
    fs, block = box.scale_format, box.spec.block
    assert fs is not None and block
    fc = box.formats[2]
    shape = (n, k // block)
    operands = []
    zero, most = s.choose([0, 0, 4, 12], n, 1) / 16, s.choose([0, 4, 12, 15], n, 1) / 16
    group = np.repeat(s.one_in(2, *shape), block, axis=1) & s.one_in(2, n, 1)
    signs = (group, s.one_in(2, n, k) & s.one_in(2, n, 1))
    for fmt, sign in zip(box.formats[:2], signs, strict=True):
        code = s.choose(range((fmt.max_code >> fmt.dropped_bits) + 1), n, k) << fmt.dropped_bits
        draw = s.rng.random((n, k))
        code = np.where(draw < most, fmt.max_code, np.where(draw > 1 - zero / 2, 0, code))
        code |= np.where(sign & ((code != 0) | (fmt.specials != "fnuz")), fmt.sign_bit, 0)
        operands.append(code.astype(fmt.code_dtype))
    sums = np.array([fs.max_exponent, *range(-14, 3)], np.int64) + box.formats[3].min_exponent
    sums[1:] -= box.formats[3].mantissa_bits
    at = np.where(s.one_in(2, n, 1), s.choose(s.zeros, n, 1), s.choose(s.places, n, 1))
    at = np.where(s.one_in(3, n, 1), s.choose(sums, n, 1), at) - s.choose(range(6), n, 1)
    # And sums that are, just so, not below the smallest output, or a few times as large.
    values = (formats.decode(x, fmt) for x, fmt in zip(operands, box.formats, strict=False))
    total = np.abs(np.prod(list(values), axis=0).sum(axis=1, keepdims=True))
    first = sums[-3] - (np.frexp(total)[1] - 1) + s.choose([0, 0, 1, 2], n, 1)
    just = s.one_in(3, n, 1) & (total > 0)
    at = np.where(just, first, at)
    lower = np.where(s.one_in(2, n, 1) | just, at, s.choose(s.zeros, n, 1)) - s.choose(
        s.gaps, *shape
    )
    e = np.where(s.one_in(2, *shape) | just, at, lower)
    e_c = at[:, 0] - s.choose(s.gaps, n)
    c, held = _numbers(s, fc, e_c, s.choose(range(7), n), s.one_in(2, n))
    none = s.one_in(1.5, n) | ~held
    c = np.where(none, np.where(s.one_in(2, n), fc.sign_bit, 0), c).astype(fc.code_dtype)
    return Dots(operands[0], operands[1], c, *_scales(fs, e))


def _scaled_ties(s: _Setting, n: int) -> Dots:
    """With block scales, c = 0: products that make the smallest output, or half of it; a hair."""
    box, k = s.box, s.k
    fs, block = box.scale_format, box.spec.block
    assert fs is not None and block
    step = min(s.choose(s.steps, 1).item(), k)
    found = _powers_of_two(box.formats[0], box.formats[1], step - 1)
    powers = np.array(sorted(found), np.int64)
    which = s.choose(range(len(powers)), n)
    first = s.first_lanes(np.full(n, step))
    lane = first[:, None] + s.rng.permuted(np.tile(np.arange(step), (n, 1)), axis=1)
    negative, hair = s.one_in(2, n), s.one_in(2, n)
    operands = []
    for i, fmt in enumerate(box.formats[:2]):
        rows = np.array([found[p, h][i] for p, h in powers.tolist()])[which]
        code = np.zeros((n, k), np.int64)
        code[np.arange(n)[:, None], lane] = rows << fmt.dropped_bits
        if i == 0:
            at = np.arange(n), lane[:, 0]
            sign = np.repeat(negative[:, None], k, axis=1)
            sign[at] ^= hair
            code = np.where(sign & (code != 0), code | fmt.sign_bit, code)
        operands.append(code.astype(fmt.code_dtype))
    tie = box.formats[3].min_exponent - s.choose(s.halves, n) + s.choose([0, 0, 1], n)
    up = tie - powers[which, 0] - s.plain.lowest
    up = np.clip(up, 2 * fs.min_exponent, 2 * fs.max_exponent)
    scales = _scales(fs, np.repeat(up[:, None], k // block, axis=1))
    return Dots(operands[0], operands[1], np.zeros(n, box.formats[2].code_dtype), *scales)


@functools.cache
def _powers_of_two(
    fa: Format, fb: Format, most: int
) -> dict[tuple[int, int], tuple[list[int], list[int]]]:
    """By two exponents, in units of the smallest product: the codes of up to so many products whose
    sum is 2 to the first, after one that is 2 to the second and much smaller.
    """
    numbers = []
    for fmt in (fa, fb):
        codes = range(1, min(fmt.max_code >> fmt.dropped_bits, 255) + 1)
        values = [fmt.decode(x << fmt.dropped_bits) for x in codes]
        numbers.append([x.significand << x.exponent - fmt.min_exponent for x in values])
    a_and_b = itertools.product(*(enumerate(x, 1) for x in numbers))
    product = {x * y: (a, b) for (a, x), (b, y) in a_and_b}
    sizes, found = sorted(product, reverse=True), {}
    for power in range(2, (most * sizes[0]).bit_length()):
        rest, terms = 1 << power, list[tuple[int, int]]()
        while rest and len(terms) < most:
            n = next(x for x in sizes if x <= rest)
            rest, terms = rest - n, [*terms, product[n]]
        if rest:
            continue
        terms += [(0, 0)] * (most - len(terms))
        for hair in (i for i in range(8) if i + 4 < power and 1 << i in product):
            both = [product[1 << hair], *terms]
            found[power, hair] = [x for x, _ in both], [x for _, x in both]
    return found


def _scales(fs: Format, e: Ints) -> tuple[Codes, Codes]:
    """Two scales, powers of two, whose product is 2^e, or the nearest that there is."""
    low, high = fs.min_exponent, fs.max_exponent
    half = clip(e >> 1, low, high)
    halves = half, clip(e - half, low, high)
    first = int(fs.specials != "ue8m0")  # the field of normal numbers
    scale_a, scale_b = (
        ((x - low + first) << fs.mantissa_bits).astype(fs.code_dtype) for x in halves
    )
    return scale_a, scale_b


# --- into codes -----------------------------------------------------------------------------------


def _written(s: _Setting, x: _Terms) -> Dots:
    """The rows whose terms all exist in the box's formats; scales, of all blocks alike, help."""
    fc, fs = s.box.formats[2], s.box.scale_format
    n, k = len(x.e), s.k
    a, b = _beside(s, x, k + 2)
    rows = np.arange(n)[:, None]
    is_c, none = x.lane == k, x.lane < 0
    with_c, at = is_c.any(axis=1), (rows[:, 0], is_c.argmax(axis=1))
    c, c_held = _numbers(s, fc, x.e[at], x.shape[at], x.negative[at])
    up = np.zeros(n, np.int64)
    if fs is not None:
        products = np.where((x.lane >= 0) & (x.lane < k), x.e, s.range.lowest)
        top = np.maximum(products.max(axis=1), np.where(x.rest_used, x.rest, s.range.lowest))
        up = top - s.plain.high + s.choose(range(s.plain.high - s.plain.low + 1), n) // 2
        up = clip(up, 2 * fs.min_exponent, 2 * fs.max_exponent)
    pa, pb, held = _products(s, x.e - up[:, None], x.shape, x.negative)
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
    if x.exact is not None:
        good &= _product_beside(s, a[:, :k], b[:, :k], addend.astype(fc.code_dtype), x, up)
    found = a[good, :k], b[good, :k], addend.astype(fc.code_dtype)[good]
    if fs is None or s.box.spec.block is None:
        return Dots(*found)
    blocks = np.repeat(up[good, None], k // s.box.spec.block, axis=1)
    return Dots(*found, *_scales(fs, blocks))


def _product_beside(s: _Setting, a: Codes, b: Codes, c: Codes, x: _Terms, up: Ints) -> Mask:
    """Write the products that bring rows' sums to where ``exact`` says; the rows that have one."""
    fa, fb, fc, fd = s.box.formats
    n, bits = len(c), fa.mantissa_bits + fb.mantissa_bits
    if bits > _FACTORED or x.exact is None:
        return np.zeros(n, bool)
    rows, lane = np.arange(n), np.maximum(x.lane[:, 1], 0)
    a[rows, lane] = 0
    half, gap, more = x.exact.T
    with np.errstate(all="ignore"):
        terms = formats.decode(a, fa).astype(np.longdouble) * formats.decode(b, fb)
        total = np.ldexp(terms, up[:, None]).sum(axis=1) + formats.decode(c, fc)
        way = np.where(x.negative[:, 1], -1, 1) * (1 + 3 * s.rng.random(n))
        rough = total + np.ldexp(way.astype(np.longdouble), x.e[:, 1])
        own = np.maximum(np.frexp(rough)[1].astype(np.int64) - 1, fd.min_exponent)
        one = np.longdouble(1)
        grid = np.ldexp(one, own - half)
        rest = np.rint(rough / grid) * grid + more * np.ldexp(one, own - gap) - total
        size, e = np.frexp(np.abs(rest))
        whole = np.nan_to_num(np.ldexp(size, bits + 2)).astype(np.int64)
        held = np.isfinite(rest) & (rest != 0) & (whole == np.ldexp(size, bits + 2))
    factors = _factors(fa.mantissa_bits, fb.mantissa_bits)
    large = factors[whole] > 0  # 2 or more, in units of 2 to its operands' exponents
    whole, e = np.where(large, whole, whole >> 1), e.astype(np.int64) - np.where(large, 2, 1) - up
    first = factors[whole].astype(np.int64)
    held &= (first > 0) & (large | (np.ldexp(size, bits + 1) == whole))
    e_a = clip(e >> 1, np.maximum(fa.min_exponent, e - fb.max_exponent), fa.max_exponent)
    second, negative = whole // np.maximum(first, 1), np.signbit(rest)
    for fmt, codes, m, exponent in ((fa, a, first, e_a), (fb, b, second, e - e_a)):
        code = (exponent - fmt.min_exponent << fmt.mantissa_bits) + m
        held &= (exponent >= fmt.min_exponent) & (code <= fmt.max_code >> fmt.dropped_bits)
        code = np.where(held, code, 0) << fmt.dropped_bits
        sign = np.where(negative & held & (codes is a), fmt.sign_bit, 0)
        codes[rows, lane] = (code | sign).astype(fmt.code_dtype)
    found: Mask = held
    return found


#: Products of so many mantissa bits, of both operands, are looked up.
_FACTORED = 20


@functools.cache
def _factors(M_a: int, M_b: int) -> npt.NDArray[np.int32]:
    """Of integers that are significands' products, M_a and M_b mantissa bits, the first; else 0."""
    a, b = (np.arange(1 << M, 2 << M, dtype=np.int32) for M in (M_a, M_b))
    found = np.zeros(4 << M_a + M_b, np.int32)
    found[np.multiply.outer(a, b)] = a[:, None]
    return found


def _c_beside(s: _Setting, a: Codes, b: Codes, x: _Terms, up: Ints) -> Codes:
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


def _beside(s: _Setting, x: _Terms, lanes: int) -> tuple[Codes, Codes]:
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
    found[[_HALVES, _MOST, _ODD]] = 1 << M >> 1, (1 << M) - 1, min(1, M)
    found[[_TWO, _SQUARE, _THIRD]] = max(0, (1 << M) - 2), min(1, M), min(1, M)
    found[[_NEXT, _FOURTH, _THREE]] = min(2, M), min(2, M), min(3, (1 << M) - 1)
    found[_EIGHTHS:] = np.arange(64) // 8 << M >> 3
    return found


def _numbers(s: _Setting, fmt: Format, e: Ints, shape: Ints, negative: Mask) -> tuple[Codes, Mask]:
    """Codes of one number each, and where the format has it."""
    M, low, word = fmt.mantissa_bits, fmt.min_exponent, fmt.code_dtype
    whole = np.dtype(np.int64 if fmt.width == 64 else np.int32)
    drawn: dict[int, Callable[[int], Any]] = {
        _BIT: lambda n: 1 << np.maximum(M - s.choose(s.gaps, n), 0) & (1 << M) - 1,
        _RUN: lambda n: (1 << M) - (1 << np.maximum(M - s.choose(range(1, 6), n), 0)),
        _ANY: lambda n: s.draw.bits(M, (n,)),
        _UNIT: lambda n: 1 << np.maximum(M + 1 - s.choose(s.halves, n), 0) & (1 << M) - 1,
    }
    fraction = _fractions(M).astype(whole).take(shape)
    flat, shapes = fraction.reshape(-1), shape.reshape(-1)
    for one, draw in drawn.items():
        (at,) = (shapes == one).nonzero()
        if len(at):
            flat[at] = draw(len(at))
    e = e.astype(whole)  # no code overflows: beyond the format all exponents are its next
    down = clip(low - e, 0, M + 1)
    binade = clip(e - low, 0, fmt.max_exponent + 1 - low)
    code = (binade << M) + ((fraction | 1 << M) >> down)
    held: Mask = (down <= M) & (code <= fmt.max_code >> fmt.dropped_bits)
    words = (code * held).astype(word) << fmt.dropped_bits
    words |= (negative & held) * word.type(fmt.sign_bit)
    return words, held


def _products(s: _Setting, e: Ints, shape: Ints, negative: Mask) -> tuple[Codes, Codes, Mask]:
    """Codes of a and b: normal numbers, with exponents as even as can be, where there are such."""
    fa, fb = s.box.formats[:2]
    lowest = np.maximum(fa.min_exponent, e - fb.max_exponent)
    half = clip(e >> 1, lowest, np.minimum(fa.max_exponent, e - fb.min_exponent))
    # Below all of those a stays normal down to its lowest exponent, and then b.
    half = np.maximum(half, fa.min_exponent)
    below = e < fa.min_exponent + fb.min_exponent - fb.mantissa_bits
    half = select(below, e - fb.min_exponent + fb.mantissa_bits, half)
    half = select(shape == _SMALL, fa.min_exponent - min(1, fa.mantissa_bits), half)
    half = select(shape == _LEAST, fa.min_exponent - fa.mantissa_bits, half)
    b_shape = _OF_B.take(shape)
    a, a_held = _numbers(s, fa, half, shape, negative)
    b, b_held = _numbers(s, fb, e - half, b_shape, s.one_in(2, *e.shape) & (shape == _ANY))
    return a, b, a_held & b_held
