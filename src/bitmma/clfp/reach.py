"""What the numbers in a fused sum can be: bounds that follow from formats and cuts.

See `fused` for the words.
"""

from __future__ import annotations

import functools
from fractions import Fraction

import numpy as np

from bitmma import formats
from bitmma.clfp.box import Box
from bitmma.clfp.numbers import Range
from bitmma.clfp.two_roundings import Sums
from bitmma.formats import Format
from bitmma.models import FDPA

__all__ = ["Reach", "most", "up"]

_TWO = Fraction(2)
#: More than the exponents of any sum are below 0.
_SHIFT = 1000
#: Products of so many bits are all looked at.
_ALL_PRODUCTS = 20


class Reach:
    """What the numbers in a fused sum can be.

    Attributes:
        n: products of a step that are not filled up. steps: how many steps, chained or added.
        chained: whether c, or the result before, takes part in every step.
        low, high: exponents of products that are not zero. last: their grid.
        bits: a product has the grid 2^(its exponent - bits).
        size: a product is at most so large, in units of 2 to its exponent.
        c_low, c_high, c_last, c_bits: the same of c, whether an operand or the step before.
        kept, e_min, e_max: of the output; step: its grid.
        top: the highest exponent that a cut can be counted from.
        grid: that of what a step adds, once it is cut. cut_c: that of a c cut beside a product.
    """

    def __init__(self, box: Box, model: FDPA) -> None:
        fa, fb, fc, fd = box.formats
        r = Range(box)
        self._bits: dict[FDPA, int] = {}
        self.box, self.n = box, min(model.L, box.k)
        self.steps = -(-box.k // model.L)
        self.chained = model.order == "chain"
        self.last = r.lowest
        self.bits = fa.mantissa_bits + fb.mantissa_bits
        # A subnormal operand has the lowest exponent but may be smaller.
        self.low, self.high = r.low, r.high
        self.size = most(fa) * most(fb)
        if model.renormalise:
            self.low = r.low if model.flush_in != "no" else self.last
            self.high, self.bits = r.high + 1, self.bits + 1
            self.size = below_two(fa, fb)
        rho = model.rho
        self.kept = fd.mantissa_bits if rho.mantissa_bits is None else rho.mantissa_bits
        self.e_min, self.e_max = fd.min_exponent, fd.max_exponent
        self.step = fd.min_exponent - self.kept
        self.c_low, self.c_high = fc.min_exponent, fc.max_exponent
        self.c_last, self.c_bits = fc.min_exponent - fc.mantissa_bits, fc.mantissa_bits
        if self.steps > 1 and self.chained:
            self.c_low = min(self.c_low, self.e_min)
            self.c_high = max(self.c_high, self.e_max)
            self.c_last, self.c_bits = min(self.c_last, self.step), max(self.c_bits, self.kept)
        e_zero = self.high if model.e_zero is None else model.e_zero
        self.top = max(self.high, e_zero, self.c_high if self.chained else self.high)
        # What is cut below e, which is at least its own exponent, is on that grid.
        cut_c = -(1 << 30) if model.F_c is None else self.c_low - model.F_c
        self.cut_c = cut_c if model.F_c is None else self.low - model.F_c
        self.grid = self._grid_of_products(model)
        if self.chained:
            self.grid = min(self.grid, max(self.c_last, cut_c))
        T = model.rho_products
        if T is not None:
            self.top = max(self.top, formats.get(T.format).max_exponent)

    def is_output(self, bits: int) -> bool:
        """Whether a c of so many bits is an output as it is."""
        return self.kept >= bits and self.c_last >= self.step

    def _grid_of_products(self, model: FDPA) -> int:
        """That of what they come to: of their own, and of all cuts on the way.

        Their own e is ``low`` at least; with c it is c's, or that of its zero, if this is more.
        """
        low = with_c = self.low
        if model.e_zero is not None:
            with_c = max(low, min(model.e_zero, self.c_low) if self.chained else model.e_zero)
        early, grouped = model.c == "early", model.groups > 1
        joint = None if model.rho_products is not None else model.F2
        cuts = [
            (with_c if early and not grouped else low, model.F),
            (with_c if early else low, model.F_groups if grouped else None), (with_c, joint),
        ]  # fmt: skip
        return max([self.last, *(e - F for e, F in cuts if F is not None)])

    def sums(self, model: FDPA) -> Sums:
        """What is known of a step's sums as they are cut and converted.

        Where subnormal results become zeros of one sign, or of their own and so do those that are
        rounded to 0, no sum below 2^(e_min - 1) need be looked at: no rounding leads beyond that.
        """
        e_sum = None if model.F_sum is None else model.e_sum
        signs: tuple[int, ...] = (-1,) if model.zero == "signed" else (-1, 1)
        if model.zero == "plus" or model.flush_out == "zero":
            signs = ()
        flushed = model.flush_out == "zero" or (model.flush_out == "sign" and model.zero != "plus")
        low = self.e_min - 1 if flushed and (e_sum is None or e_sum <= self.e_min) else self.grid
        bits, tiny = self.sum_bits(model), model.tiny if model.flush_out != "no" else "stored"
        under = self.under(model) if low == self.e_min - 1 else None
        return Sums(bits, self.grid, self.kept, self.e_min, e_sum, signs, low, tiny, under)

    def under(self, model: FDPA) -> int:
        """A grid of a step's sums of 2^e_min (1 - 2^-kept) and more, below 2^e_min.

        They have no bits but ``sum_bits`` below their first. And what is cut below an early c is on
        the grid 2^(c_low - F), or finer by F_c; without c, n products of at most ``size`` 2^e have
        to come so far, which says of their e how low it can be.
        """
        grid = max(self.grid, self.e_min - 1 - self.sum_bits(model))
        F, F_c = model.F, model.F_c
        if model.c == "late" or model.groups > 1 or F is None or F_c is None:
            return grid
        whole = self.n * up(self.size, F) / (1 - _TWO**-self.kept)
        return max(grid, min(self.c_low - max(F, F_c), self.e_min - _log2(whole) - F))

    def sum_bits(self, model: FDPA) -> int:
        """How many bits below its first a step's sum has at the most."""
        if model not in self._bits:
            self._bits[model] = self._sum_bits(model)
        return self._bits[model]

    def _sum_bits(self, model: FDPA) -> int:
        """A step's sum has no more bits than so many below its first.

        Products come in multiples of 2^(e - U), U being where they are cut last, c in multiples of
        2^(e - F_c). The sum has a bit at 2^(e - g) only if a product has one there or below, and
        then it is small, at most ``size`` 2^(e - g + bits), or c has, and is below
        2^(e - g + c_bits + 1). All others are at most what the largest numbers are cut to. Beside a
        late c, T is on the grid 2^(e_p - F) of its products: so it has a bit at e - g, g > F, only
        if e_p <= e - (g - F), and is so much smaller. So the
        first bit of a sum that has one at e - g is at most floor(log2) of the whole, for every g.
        Where something is not cut, the grid is that of the operands, and e the highest; a sum
        beyond the outputs' highest exponent is none of them, whatever its bits.
        """
        U = model.F2 if model.c == "late" else model.F if model.groups == 1 else model.F_groups
        if model.rho_products is not None:
            return 1 << 20
        if U is None or (model.F_c is None and self.chained):
            whole = self.n * self.size * _TWO**self.high
            whole += _TWO ** (self.c_high + 1) if self.chained else 0
            if (model.F, model.F_groups, model.F2, model.F_c) != (None, None, None, None):
                whole = (4 * self.n + 2) * _TWO**self.top
            return min(_log2(whole * _TWO**_SHIFT) - _SHIFT, self.e_max) - self.grid
        if self.n == 1 and not self.chained:  # a product alone
            return self.bits + (not model.renormalise)
        grouped = model.groups > 1
        one, c = _cut(self.size, model.F, model.cut), Fraction(0)
        products = self.n * one
        if grouped and model.F_groups is not None:  # each of their sums may be raised
            products += model.groups * _TWO**-model.F_groups
        products = _cut(products, model.F2, model.cut2)
        bits = 0
        if self.chained:
            c = _cut(2 - Fraction(1, 1 << self.c_bits), model.F_c, model.cut_c)
        first = _log2(products + c)
        for g in range((model.F_c or 0) if self.chained else 0, 0, -1):
            if g + first <= bits:  # no sum reaches further
                break
            bits = max(bits, g + _first(products + min(c, _TWO ** (1 + self.c_bits - g)), g))
        T = model.F_groups if grouped else model.F
        for g in range(U, 0, -1):
            if g + first <= bits:
                break
            down = _TWO ** min(0, T - g) if model.c == "late" and T is not None else Fraction(1)
            lone = up(self.size * _TWO ** (self.bits - g), max(g, 1))
            whole = products * down
            if not grouped:
                whole = (self.n - 1) * one * down + min(one * down, lone)
            whole = _cut(whole, model.F2, model.cut2)
            bits = max(bits, g + _first(whole + c, g))
        return bits


def most(fmt: Format) -> Fraction:
    """The largest significand of a format."""
    return 2 - Fraction(1, 1 << fmt.mantissa_bits)


@functools.cache
def below_two(fa: Format, fb: Format) -> Fraction:
    """The largest significand of a product whose exponent is its own."""
    bits = fa.mantissa_bits + fb.mantissa_bits
    if bits > _ALL_PRODUCTS:
        return 2 - Fraction(1, 2 << bits)
    a, b = (1 << x.mantissa_bits for x in (fa, fb))
    n = np.multiply.outer(np.arange(a, 2 * a), np.arange(b, 2 * b)).ravel()
    below, above = n[n < 2 << bits].max(), n.max()
    return max(Fraction(int(below), 1 << bits), Fraction(int(above), 2 << bits))


def _cut(x: Fraction, F: int | None, rounding: str) -> Fraction:
    """The most that numbers up to x are after such a cut, at F bits or more below 2^0."""
    if F is None:
        return x
    return Fraction(x * 2**F // 1, 2**F) if rounding == "RZ" else up(x, F)


def up(x: Fraction, bits: int) -> Fraction:
    """The next multiple of 2^-bits."""
    return Fraction(-(-x.numerator * (1 << bits) // x.denominator), 1 << bits)


def _first(x: Fraction, g: int) -> int:
    """The first bit of numbers up to x whose last is 2^-g, which x may be too large for."""
    return _log2(x - _TWO**-g if (x * 2 ** (g - 1)).denominator == 1 else x)


def _log2(x: Fraction) -> int:
    """floor(log2 x); 0 below 1."""
    return max(0, (x.numerator // x.denominator).bit_length() - 1)
