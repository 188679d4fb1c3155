"""Chosen numbers in the box's formats: what the probes are made of."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import TypeVar

import numpy as np

from bitmma import formats
from bitmma.clfp.box import Box, Codes, Dots
from bitmma.formats import Format

__all__ = ["Range", "blank", "blank_calls", "code", "factor", "put", "spread", "values"]

_T = TypeVar("_T")


def code(fmt: Format, x: Fraction | int) -> int | None:
    """The code worth exactly x, subnormals included; None where there is none."""
    x = Fraction(x)
    if x.denominator & (x.denominator - 1):
        return None
    return _code(fmt, x.numerator, 1 - x.denominator.bit_length())


def _code(fmt: Format, n: int, q: int) -> int | None:
    """The code worth exactly n * 2**q; None where there is none."""
    if n < 0 and not fmt.signed:
        return None
    if n == 0:
        return 0 if fmt.specials != "ue8m0" else None
    magnitude = abs(n)
    exponent = magnitude.bit_length() - 1 + q
    last = max(exponent, fmt.min_exponent) - fmt.mantissa_bits
    if exponent > fmt.max_exponent or (q < last and magnitude & ((1 << (last - q)) - 1)):
        return None
    if fmt.specials == "ue8m0":
        return exponent + fmt.bias if exponent >= fmt.min_exponent else None
    significand = magnitude << (q - last) if q >= last else magnitude >> (last - q)
    binade = max(exponent, fmt.min_exponent) - fmt.min_exponent
    found = ((binade << fmt.mantissa_bits) + significand) << fmt.dropped_bits
    return None if found > fmt.max_code else found | (fmt.sign_bit if n < 0 else 0)


@functools.lru_cache(1 << 16)
def factor(fa: Format, fb: Format, x: Fraction, subnormal: bool = True) -> tuple[int, int] | None:
    """Codes of a and b with a * b = x exactly; None where there are none.

    Exponents are split evenly, so that neither is subnormal if it can be helped; ``subnormal``
    says whether one may be.
    """
    if x == 0:
        return 0, 0
    n, q = abs(x.numerator), 1 - x.denominator.bit_length()
    q += (n & -n).bit_length() - 1
    n >>= (n & -n).bit_length() - 1
    total = n.bit_length() - 1 + q
    if q < _last(fa) + _last(fb) or total > fa.max_exponent + fb.max_exponent + 1:
        return None
    # What is left to b, up to the carry of a product of two significands.
    room = range(total - fb.max_exponent - 1, total - _last(fb) + 1)
    for small in _splits(n, fa.mantissa_bits + 1, fb.mantissa_bits + 1):
        for e in _outwards(fa, total // 2, room, subnormal):
            q_a = e - (small.bit_length() - 1)
            a = _code(fa, small, q_a)
            b = _code(fb, n // small, q - q_a) if a is not None else None
            if a is None or b is None:
                continue
            if not subnormal and not (_normal(fa, a) and _normal(fb, b)):
                continue
            return a | (fa.sign_bit if x < 0 else 0), b
    return None


def _last(fmt: Format) -> int:
    """The exponent of the smallest number's last place."""
    return fmt.min_exponent - fmt.mantissa_bits


def _outwards(fmt: Format, middle: int, room: range, subnormal: bool) -> Iterator[int]:
    """Exponents of the format in a range, the nearest to a middle first; subnormal ones last."""
    low, high = max(room.start, _last(fmt)), min(room.stop, fmt.max_exponent + 1)
    normal = range(max(low, fmt.min_exponent), high)
    below = range(low, min(high, fmt.min_exponent)) if subnormal else range(0)
    for exponents in (normal, below):
        yield from sorted(exponents, key=lambda e: abs(e - middle))


def _splits(n: int, bits_a: int, bits_b: int) -> Iterable[int]:
    """Divisors of n that fit a, whose cofactors fit b."""
    if n.bit_length() <= bits_b:
        yield 1
    if n.bit_length() <= bits_a and n != 1:
        yield n
    for d in range(3, min(1 << bits_a, 1 << 12), 2):
        if n % d == 0 and d != n and (n // d).bit_length() <= bits_b:
            yield d


def _normal(fmt: Format, found: int) -> bool:
    return fmt.decode(found).significand >> fmt.mantissa_bits != 0


class Range:
    """Exponents that a product (with both operands normal, or not) and a term c can have."""

    def __init__(self, box: Box) -> None:
        fa, fb, fc, fd = box.formats
        self.low = fa.min_exponent + fb.min_exponent
        self.lowest = self.low - fa.mantissa_bits - fb.mantissa_bits
        self.high = fa.max_exponent + fb.max_exponent
        self.c_low, self.c_high = fc.min_exponent, fc.max_exponent
        self.d_low, self.d_high = fd.min_exponent, fd.max_exponent


def put(box: Box, x: Dots, row: int, leaf: int, value: Fraction | int) -> bool:
    """Write one term: a product of lane ``leaf``, or c where ``leaf`` is k. False: it cannot be."""
    fa, fb, fc, _ = box.formats
    value = Fraction(value)
    if leaf == box.k:
        found = code(fc, value)
        if found is None:
            return False
        x.c[row] = found
        return True
    pair = factor(fa, fb, value)
    if pair is None:
        return False
    x.a[row, leaf], x.b[row, leaf] = pair
    return True


def blank(box: Box, count: int) -> Dots:
    """Dot products of +0 and c = +0, scales 1: to be written into."""
    fa, fb, fc, _ = box.formats
    blocks = (count, box.k // (box.spec.block or box.k))
    return Dots(
        np.zeros((count, box.k), fa.code_dtype),
        np.zeros((count, box.k), fb.code_dtype),
        np.zeros(count, fc.code_dtype),
        *_ones(box, blocks, blocks),
    )


def blank_calls(box: Box, count: int, codes: tuple[int, int, int] = (0, 0, 0)) -> Dots:
    """Whole calls of the same code of a, b and c everywhere, scales 1: to be written into."""
    s, (fa, fb, fc, _) = box.spec, box.formats
    blocks = s.k // (s.block or s.k)
    return Dots(
        np.full((count, s.m, s.k), codes[0], fa.code_dtype),
        np.full((count, s.k, s.n), codes[1], fb.code_dtype),
        np.full((count, s.m, s.n), codes[2], fc.code_dtype),
        *_ones(box, (count, s.m, blocks), (count, blocks, s.n)),
    )


def _ones(box: Box, *shapes: tuple[int, ...]) -> list[Codes | None]:
    """Scales of 1, of these shapes; None for a box without scales."""
    fs = box.scale_format
    return [None if fs is None else np.full(x, fs.encode(1, 0), fs.code_dtype) for x in shapes]


def spread(items: Sequence[_T], most: int) -> list[_T]:
    """At most so many of them, evenly spread from the first to the last."""
    if not items:
        return []
    places = np.linspace(0, len(items) - 1, most).astype(int)
    return [items[i] for i in dict.fromkeys(places.tolist())]


def values(box: Box, codes: Codes) -> Codes:
    """What codes of d are worth, in float64."""
    return formats.decode(codes, box.formats[3])
