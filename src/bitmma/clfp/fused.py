"""Parameters of a fused sum that cannot matter: each rule with its proof.

A rule looks at one `FDPA` on a box's formats and returns fields that can be changed without any
change of any output, towards the plainest value, with the reason; or nothing. Rules are applied
until none finds anything, so that models that differ only in what does not matter become one.

Words of the proofs: a step adds n products and c. e is the largest exponent of a step, "grid 2^q"
says that a number is a multiple of 2^q. A number on a grid stays on it when it is cut, for a cut
rounds to a multiple of another power of two. A cut of a number of magnitude up to 2^m, F >= 1 bits
below an exponent of at most m, gives at most 2^m, whatever the rounding. M is mantissa bits, kept
how many of them the conversion keeps; outputs have the grid 2^(e_min - kept).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from bitmma import formats
from bitmma.clfp.box import Box
from bitmma.clfp.numbers import Range
from bitmma.formats import Format
from bitmma.models import FDPA, Conversion

__all__ = ["RULES", "Reach", "most", "plainest"]

#: Fields to change, and why.
Found = tuple[dict[str, Any], str]

_TWO = Fraction(2)


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
        grid: that of what a step adds, once it is cut.
    """

    def __init__(self, box: Box, model: FDPA) -> None:
        fa, fb, fc, fd = box.formats
        r = Range(box)
        self.n = min(model.L, box.k)
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
            self.size = 2 - Fraction(1, 1 << self.bits)
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
        cut = -(1 << 30) if model.F is None else self.low - model.F
        cut_c = -(1 << 30) if model.F_c is None else self.c_low - model.F_c
        self.grid = max(self.last, cut)
        if self.chained:
            self.grid = min(self.grid, max(self.c_last, cut_c))
        T = model.rho_products
        if T is not None:
            self.top = max(self.top, formats.get(T.format).max_exponent)

    def sum_bits(self, model: FDPA) -> int:
        """A step's sum has no more bits than so many below its first.

        Products come in multiples of 2^(e - U), U being where they are cut last, c in multiples of
        2^(e - F_c). The sum has a bit at 2^(e - g) only if a product has one there or below, and
        then it is small, at most ``size`` 2^(e - g + bits), or c has, and is below
        2^(e - g + c_bits + 1). All others are at most what the largest numbers are cut to. So the
        first bit of a sum that has one at e - g is at most floor(log2) of the whole, for every g.
        Where something is not cut, the grid is that of the operands, and e the highest; a sum
        beyond the outputs' highest exponent is none of them, whatever its bits.
        """
        U = model.F2 if model.c == "late" else model.F if model.groups == 1 else model.F_groups
        if model.rho_products is not None:
            return 1 << 20
        if U is None or (model.F_c is None and self.chained):
            return min(_log2(Fraction(4 * self.n + 2)) + self.top, self.e_max) - self.grid
        one = _cut(self.size, model.F, model.cut) if model.groups == 1 else Fraction(4)
        products, c = _cut(self.n * one, model.F2, model.cut2), Fraction(0)
        others = products if model.c == "late" else (self.n - 1) * one
        bits = 0
        if self.chained:
            c = _cut(2 - Fraction(1, 1 << self.c_bits), model.F_c, model.cut_c)
            for g in range(model.F_c or 0, 0, -1):
                bits = max(bits, g + _first(products + min(c, _TWO ** (1 + self.c_bits - g)), g))
        for g in range(U, 0, -1):
            lone = min(one, 4 * _TWO ** (self.bits - g)) if model.c == "early" else 0
            bits = max(bits, g + _first(others + lone + c, g))
        return bits


def most(fmt: Format) -> Fraction:
    """The largest significand of a format."""
    return 2 - Fraction(1, 1 << fmt.mantissa_bits)


def _cut(x: Fraction, F: int | None, rounding: str) -> Fraction:
    """The most that numbers up to x are after such a cut, at F bits or more below 2^0."""
    if F is None:
        return x
    return Fraction(x * 2**F // 1, 2**F) if rounding == "RZ" else _up(x, F)


def _up(x: Fraction, bits: int) -> Fraction:
    """The next multiple of 2^-bits."""
    return Fraction(-(-x.numerator * (1 << bits) // x.denominator), 1 << bits)


def _first(x: Fraction, g: int) -> int:
    """The first bit of numbers up to x whose last is 2^-g, which x may be too large for."""
    return _log2(x - _TWO**-g if (x * 2 ** (g - 1)).denominator == 1 else x)


def _log2(x: Fraction) -> int:
    """floor(log2 x); 0 below 1."""
    return max(0, (x.numerator // x.denominator).bit_length() - 1)


Rule = Callable[[FDPA, Reach], Found | None]
RULES: list[Rule] = []


def _rule(check: Callable[[FDPA, Reach], Iterator[Found]]) -> Rule:
    """The first of what is found that changes something."""

    def rule(model: FDPA, reach: Reach) -> Found | None:
        for changes, why in check(model, reach):
            if any(getattr(model, name) != value for name, value in changes.items()):
                return changes, why
        return None

    rule.__name__, rule.__doc__ = check.__name__, check.__doc__
    RULES.append(rule)
    return rule


def plainest(model: FDPA, box: Box) -> tuple[FDPA, list[str]]:
    """The plainest model that is the same function on the box's formats, and the reasons."""
    why: dict[str, None] = {}
    if box.scale_format is not None:
        return _unused(model), []
    model = _unused(model)
    for _ in range(40):
        reach = Reach(box, model)
        for rule in RULES:
            found = rule(model, reach)
            if found is not None:
                model = _unused(dataclasses.replace(model, **found[0]))
                why[found[1]] = None
                break
        else:
            break
    return model, [reason for reason in why if reason]


def _unused(model: FDPA) -> FDPA:
    """Fields that their neighbours leave without meaning, at their defaults."""
    changes: dict[str, Any] = {}
    for F, cut in (("F", "cut"), ("F_c", "cut_c"), ("F2", "cut2"), ("F_sum", "cut_sum")):
        if getattr(model, F) is None:
            changes[cut] = "RZ"
    if model.groups == 1:
        changes["F_groups"] = None
    if model.groups == 1 or model.F_groups is None:
        changes["cut_groups"] = "RZ"
    if model.F_sum is None:
        changes["e_sum"] = None
    if model.order == "pairwise":  # c joins at the end, by rho alone
        changes |= {"F_c": None, "cut_c": "RZ", "drop_c": None}
    changes = {name: x for name, x in changes.items() if getattr(model, name) != x}
    return dataclasses.replace(model, **changes) if changes else model


# --- cuts that cut nothing ------------------------------------------------------------------------


@_rule
def _whole_products(model: FDPA, x: Reach) -> Iterator[Found]:
    """Products are on the grid 2^last, and cut to multiples of 2^(e - F) with e <= top.

    A product that no other term is aligned with (alone in its group, c late or joined at the end)
    is cut below its own exponent, where it has no more than ``bits``.
    """
    if model.F is None:
        return
    apart = model.groups > 1 or model.c == "late" or (not x.chained and model.e_zero is None)
    top = x.high if apart else x.top
    if top - x.last <= model.F:
        yield {"F": None}, f"F: {top - x.last} and more are alike, nothing is cut"
    if apart and model.groups >= x.n and x.bits <= model.F:
        why = f"F: {x.bits} and more are alike, a product with none beside it has no more bits"
        yield {"F": None}, why


@_rule
def _hair_of_a_product(model: FDPA, x: Reach) -> Iterator[Found]:
    """A step's only product P is cut only where c is so large that it is a hair beside it.

    It has no bits below 2^(e_p - bits), so it is cut only if e_p < e_c - F + bits, and is then, cut
    or not, below 2^(e_c - F + bits + 1). If that is the outputs' spacing below c, 2^(e_c - 1 -
    kept), or half of it, and c is an output, then c + P rounds to c or to its neighbour by the sign
    of P alone, or, to nearest, to c. RA keeps that sign, and RU (RD) keeps it where it makes a
    difference to RU (RD). Those, moreover, are lost in a coarser rounding of their own direction:
    the sum, at least 2^(e_c - 1) if F >= bits + 2, is rounded to a multiple of 2^(e_c - F), which c
    is as well.
    """
    F, mode = model.F, model.rho.mode
    alone = x.n == 1 and model.groups == 1 and x.chained and model.c == "early"
    if F is None or not alone or model.e_zero is not None or model.F_sum is not None:
        return
    F_c = model.F_c
    c_whole = x.kept >= x.c_bits and (F_c is None or F_c >= x.c_bits) and x.c_last >= x.step
    if not c_whole:
        return
    why = "and more are alike, what is cut is a hair"
    least = x.kept + x.bits + 2
    if (model.cut == "RA" or model.cut == mode != "RZ") and least <= F:
        yield {"F": None}, f"F: {least} {why}"
    if mode in ("RNE", "RNA") and least < F:
        yield {"F": None}, f"F: {least + 1} {why}"
    same = max(x.bits + 2, x.kept + 1)
    if model.cut == mode and mode in ("RU", "RD") and same <= F:
        yield {"F": None}, f"F: {same} and more are alike, the sum is rounded in the same direction"


@_rule
def _pairs_of_products(model: FDPA, x: Reach) -> Iterator[Found]:
    """Of two products that are cut below their own e, the one that has it has no bits so low.

    The cut of the other, and then that of their sum to a coarser grid in the same direction, are
    the latter alone: RD and RU of a sum do not depend on those terms that are on the grid.
    """
    coarser, cut = model.F2, model.cut2
    if model.groups > 1:
        coarser, cut = model.F_groups, model.cut_groups
    apart = model.groups > 1 or (model.c == "late" and model.rho_products is None)
    if model.F is None or coarser is None or not apart or -(-x.n // model.groups) > 2:
        return
    least = max(x.bits, coarser)
    if model.cut == cut and cut in ("RD", "RU") and least <= model.F:
        yield {"F": None}, f"F: {least} and more are alike, sums of two are cut so afterwards"


@_rule
def _whole_groups(model: FDPA, x: Reach) -> Iterator[Found]:
    """As products: sums of them are on their grid."""
    if model.F_groups is not None and model.F_groups >= x.top - x.last:
        yield {"F_groups": None}, "F_groups: nothing is cut"
    if model.groups > 1 and model.F is None and model.F_groups is None:
        yield {"groups": 1}, "groups: nothing is cut in them"


@_rule
def _whole_c(model: FDPA, x: Reach) -> Iterator[Found]:
    """c is on the grid 2^c_last and cut to multiples of 2^(e - F_c), e <= top."""
    if model.F_c is not None and model.F_c >= x.top - x.c_last:
        yield {"F_c": None}, f"F_c: {x.top - x.c_last} and more are alike, no bit of c is cut"


@_rule
def _whole_sum_of_products(model: FDPA, x: Reach) -> Iterator[Found]:
    """T is on its products' grid 2^last, and E <= top.

    Without c and e_zero, E is the products' own e, and T is on the grid 2^(e - F) already.
    """
    F2, T = model.F2, model.rho_products
    if F2 is None:
        return
    if T is not None:
        fmt = formats.get(T.format)
        kept = fmt.mantissa_bits if T.mantissa_bits is None else T.mantissa_bits
        if x.top - (fmt.min_exponent - kept) <= F2:
            yield {"F2": None}, "F2: nothing is cut"
        return
    if x.top - x.last <= F2:
        yield {"F2": None}, f"F2: {x.top - x.last} and more are alike, nothing is cut"
    alone = not x.chained and model.e_zero is None and model.groups == 1
    if alone and model.F is not None and F2 >= model.F:
        yield {"F2": None}, f"F2: {model.F} and more are alike, the products were cut there"


@_rule
def _single_products(model: FDPA, x: Reach) -> Iterator[Found]:
    """A step's only product is its own group and sum: it is cut below its own e, then below E.

    The first cut is lost in the second if that is no finer (E >= e) and of the same direction.
    """
    if x.n > 1 or model.rho_products is not None:
        return
    if model.c == "late" and model.F2 is not None:
        nested = model.cut == model.cut2 and model.cut in ("RZ", "RD", "RU", "RA")
        if model.groups == 1 and model.F is not None and nested and model.F >= model.F2:
            yield {"F": None}, "F: a product alone is cut to fewer bits afterwards"
        if model.groups == 1 and model.F is None:
            changes = {"F": model.F2, "cut": model.cut2, "F2": None, "c": "early"}
            yield changes, "c: early and late are alike beside a product alone"
    if model.groups > 1 and model.F_groups is None and (model.c == "late" or model.F is None):
        yield {"groups": 1}, "groups: a product is alone"
    if model.groups > 1 and model.F is None and model.c == "early":
        changes = {"groups": 1, "F": model.F_groups, "cut": model.cut_groups}
        yield changes, "groups: a product is alone"


@_rule
def _late_is_early(model: FDPA, x: Reach) -> Iterator[Found]:
    """If products are not cut, c's place shows in nothing: E is the largest exponent of all.

    Nor does it show if c is in no step and e_zero is none of the exponents.
    """
    if model.c == "early" or model.F2 is not None or model.rho_products is not None:
        return
    uncut = model.F is None and model.F_groups is None
    if uncut or (not x.chained and model.e_zero is None):
        yield {"c": "early"}, "c: early and late are alike"


@_rule
def _exponents(model: FDPA, x: Reach) -> Iterator[Found]:
    """Exponents serve cuts alone; that of a zero c serves those of the products."""
    cuts = (model.F, model.F_c, model.F2, model.F_groups, model.drop_c)
    if model.renormalise and all(F is None for F in cuts) and model.rho_products is None:
        yield {"renormalise": False}, ""
    cut = model.F2 if model.c == "late" else model.F if model.groups == 1 else model.F_groups
    if cut is None:
        yield {"e_zero": None}, ""


@_rule
def _single_steps(model: FDPA, x: Reach) -> Iterator[Found]:
    """Pairs of steps of one product, none of them rounded, are steps of two.

    A product that is exact in the output's format and in its normal range comes out of a step as
    it is; the addition of two of them is the exact sum, converted.
    """
    rounded = (model.F, model.F2, model.F_sum, model.rho_products, model.product_overflow)
    exact = all(x is None for x in rounded)
    inside = x.e_min <= x.last and x.high + 1 <= x.e_max and x.bits + 1 <= x.kept
    plain = model.groups == 1 and model.zero != "ieee"
    if not x.chained and model.L == 2 and exact and inside and plain:
        yield {"L": 1}, "L: pairs of exact products are alike"


# --- the exponent of a zero -----------------------------------------------------------------------


@_rule
def _low_zero(model: FDPA, x: Reach) -> Iterator[Found]:
    """A zero c matters where it has the largest exponent, and something is cut because of that.

    It never has, beside a product that is not zero, if e_zero <= low (or, where T is rounded, the
    lowest exponent of its format); and nothing is cut if 2^(e_zero - F) is on the products' grid.
    """
    if model.e_zero is None:
        return
    T = model.rho_products
    low = x.low if T is None else min(x.low, formats.get(T.format).min_exponent)
    cut = model.F2 if model.c == "late" else model.F if model.groups == 1 else model.F_groups
    if model.e_zero <= low:
        yield {"e_zero": None}, f"e_zero: {low} and less are alike, every product has at least this"
    if T is None and cut is not None and model.e_zero <= x.last + cut:
        why = f"the last bit of every product, 2^{x.last}, is kept all the same"
        yield {"e_zero": None}, f"e_zero: {x.last + cut} and less are alike, {why}"


@_rule
def _invisible_zero(model: FDPA, x: Reach) -> Iterator[Found]:
    """If c's zero decides, products have e < e_zero, and their sum may be too small to be seen.

    Each is at most ``size`` 2^(e_zero - 1) or the next multiple of the cut above it, whether cut
    below e_zero or below its own e; n of them make the sum, which F_sum makes 2^m at most from 2^m
    or less. Zero comes out of all these if that is less than half the smallest output (rounded to
    nearest), less than it (toward zero), or if it stays below the smallest normal one, and results
    there are flushed to +0. Zeros must come out with one sign, for some sums are exactly zero, and
    others only rounded to it.
    """
    e_zero = model.e_zero
    if e_zero is None or model.rho_products is not None or model.e_sum is not None:
        return
    whole = 4 * Fraction(x.n)
    if model.c == "early" and model.groups == 1 and model.F is not None:
        size, lone = (
            _up(part, max(model.F - 1, 0))
            for part in (x.size, x.size * _TWO ** min(0, x.bits - model.F))
        )
        whole = (x.n - 1) * size + lone
    whole *= _TWO ** (e_zero - 1)
    if model.F_sum is not None or model.F2 is not None or model.F_groups is not None:
        whole = _power_above(whole)
    mode, least = model.rho.mode, _TWO**x.step
    gone = model.zero == "plus" and model.flush_out == "no" and (
        (mode in ("RNE", "RNA") and whole < least / 2) or (mode == "RZ" and whole < least)
    )  # fmt: skip
    gone |= model.flush_out == "zero" and whole <= _TWO**x.e_min - least
    if gone:
        yield {"e_zero": None}, f"e_zero: {e_zero} and less are alike, no sum it decides is seen"


def _power_above(x: Fraction) -> Fraction:
    q = 0
    while _TWO**q < x:
        q += 1
    while _TWO ** (q - 1) >= x:
        q -= 1
    return _TWO**q


# --- c far below ----------------------------------------------------------------------------------


@_rule
def _far_c(model: FDPA, x: Reach) -> Iterator[Found]:
    """c counts as 0 if e_c < e - drop_c, so below 2^(e - drop_c).

    That is cut to 0 all the same where F_c bits or fewer below e are kept; and e cannot be so far
    above c's lowest exponent, for it is a product's.
    """
    if model.drop_c is None:
        return
    F_c = model.F_c
    below = None if F_c is None else {"RZ": F_c, "RNE": F_c + 1, "RNA": F_c + 1}.get(model.cut_c)
    if below is not None and model.drop_c >= below:
        yield {"drop_c": None}, "drop_c: a c so small is cut to 0 all the same"
    T = model.rho_products
    high = x.high if T is None else max(x.high, formats.get(T.format).max_exponent)
    if model.drop_c >= high - x.c_low:
        yield {"drop_c": None}, f"drop_c: no c lies more than {high - x.c_low} below a product"


# --- the sum and its conversion -------------------------------------------------------------------


@_rule
def _whole_sums(model: FDPA, x: Reach) -> Iterator[Found]:
    """The sum has so many bits below its first and no more, or is cut again in the same direction.

    RZ, RD, RU and RA to a grid and then to one inside of it are those to the latter alone; RZ to a
    grid that holds half steps leaves what RNA asks for.
    """
    F_sum, mode = model.F_sum, model.rho.mode
    if F_sum is None:
        return
    bits = x.sum_bits(model)
    fine = model.e_sum is None or model.e_sum - F_sum <= x.grid
    if fine and model.e_sum is not None:
        yield (
            {"e_sum": None},
            f"e_sum: what is kept below it reaches down to 2^{x.grid}, as sums do",
        )
    if F_sum >= bits and fine:
        yield {"F_sum": None}, f"F_sum: {bits} and more are alike, sums have no more bits"
    if model.e_sum is not None and model.e_sum > x.e_min:
        return
    alike = model.cut_sum == mode and mode in ("RZ", "RD", "RU", "RA") and F_sum >= x.kept
    halves = model.cut_sum == "RZ" and mode == "RNA" and F_sum > x.kept
    seen = model.e_sum is not None and model.zero != "plus"  # a sum cut to exactly 0 loses its sign
    if (alike or halves) and not seen:
        n = x.kept + halves
        yield {"F_sum": None}, f"F_sum: {n} and more are alike, the output keeps {x.kept}"


@_rule
def _nothing_rounded(model: FDPA, x: Reach) -> Iterator[Found]:
    """A sum of no more bits than are kept, on the grid of the outputs, is an output.

    Or beyond the largest, where it is at least the next power of two, Inf in all modes. By IEEE's
    rule of zeros RD is another one still. F_sum leaves so many bits of a sum below its first, or
    below e_sum.
    """
    rho, plain = model.rho, Conversion("RNE", model.rho.format)
    if not x.chained or rho.overflow != "inf" or (model.zero == "ieee" and rho.mode == "RD"):
        return
    F_sum, e_sum = model.F_sum, model.e_sum
    if F_sum is not None and F_sum <= x.kept and e_sum is not None and e_sum - F_sum >= x.step:
        yield {"rho": plain}, f"rho: sums were cut to {F_sum} bits, none is rounded"
    if x.sum_bits(model) <= x.kept and x.grid >= x.step:
        yield {"rho": plain}, f"rho: sums have {x.sum_bits(model)} bits, none is rounded"


@_rule
def _overflow(model: FDPA, x: Reach) -> Iterator[Found]:
    """Sums that stay below the next power of two overflow only by being rounded away from zero.

    Then IEEE's rule gives Inf as well. And if products, raised by a cut beside so large a c or
    not, stay below half a step of the largest number, nothing but RD, RU and RA, or a c of more
    bits than are kept, brings it there at all; nor do those if all products are cut to 0.
    """
    rho = model.rho
    if rho.overflow == "inf":
        return
    if rho.overflow == "ieee" and rho.mode in ("RNE", "RNA", "RA"):
        yield {"rho": dataclasses.replace(rho, overflow="inf")}, ""
    c_whole = model.F_c is None or model.cut_c == "RZ" or model.F_c >= x.c_bits
    sum_whole = model.F_sum is None or model.cut_sum == "RZ"
    fd = formats.get(rho.format)
    room = _TWO ** (x.e_max - fd.mantissa_bits - 1)
    products = 8 * x.n * x.steps * _TWO**x.high
    cut, F = (model.cut, model.F) if model.groups == 1 else (model.cut_groups, model.F_groups)
    if model.c == "late":
        cut, F = model.cut2, model.F2
    raised = F is not None and cut in ("RD", "RU", "RA")
    gone = F is not None and not raised and products * 2 < _TWO ** (x.e_max - F)
    if F is not None and raised and x.chained:
        products += x.n * _TWO ** (x.e_max - F)
    if not x.chained:  # no product is beside c; a zero c may raise them
        products *= 2 * _TWO ** max(0, (x.high if model.e_zero is None else model.e_zero) - x.high)
        gone = False
    small = c_whole and sum_whole and products < room and x.c_high <= x.e_max
    if not small or x.c_bits > fd.mantissa_bits or model.rho_products is not None:
        return
    why = "overflow: no sum reaches beyond the largest number"
    if rho.overflow == "ieee":
        yield {"rho": dataclasses.replace(rho, overflow="inf")}, why
    nearest = rho.mode in ("RNE", "RNA") or (gone and model.groups == 1)
    if rho.mode == "RZ" or (nearest and x.kept >= x.c_bits):
        yield {"rho": dataclasses.replace(rho, overflow="inf")}, why


@_rule
def _large_products(model: FDPA, x: Reach) -> Iterator[Found]:
    """Products are below 4 · 2^high."""
    limit, high = model.product_overflow, x.high + (not model.renormalise)
    if limit is not None and limit > high:
        yield {"product_overflow": None}, f"product_overflow: every product is below 2^{high + 1}"


# --- signs of zeros, subnormals -------------------------------------------------------------------


@_rule
def _signs_of_operands(model: FDPA, x: Reach) -> Iterator[Found]:
    """Only IEEE's rule asks for the signs of zeros that are added."""
    if model.zero != "ieee":
        for name in ("flush_in", "flush_c"):
            if getattr(model, name) == "sign":
                yield {name: "zero"}, f"{name}: the sign of a zero operand is not seen"


@_rule
def _signs_of_sums(model: FDPA, x: Reach) -> Iterator[Found]:
    """ "signed" is "plus" but for negative sums that are rounded to zero.

    There are none if the last addition's terms (of a chain: products, and c or an output) are on
    the grid of the outputs, or its sum is cut to it, if it rounds RD or RA, or if all zeros become
    +0 afterwards. A sum that is cut to 0 is +0 by either rule. IEEE's
    rule is "signed" but for sums of nothing but -0 (and RD): not where c is part of the last sum
    and never -0.
    """
    if model.flush_out == "zero":
        yield {"zero": "plus"}, ""
    finer = x.grid if x.steps == 1 else min(x.last, x.step)
    finer = finer if x.chained else min(x.step, x.c_last)
    rounded = model.rho_products is not None and x.chained
    whole = (finer >= x.step and not rounded) or model.rho.mode in ("RD", "RA")
    if model.F_sum is not None and model.e_sum is not None and x.chained:
        whole |= model.e_sum - model.F_sum >= x.step
    if model.zero == "signed" and whole:
        yield {"zero": "plus"}, "zero: no negative sum is rounded to zero"
    plus_c = model.flush_c == "zero" and model.rho.mode != "RD"
    if model.zero == "ieee" and plus_c:
        yield {"zero": "signed"}, "zero: c is never -0"


@_rule
def _subnormal_results(model: FDPA, x: Reach) -> Iterator[Found]:
    """Where products are coarse, only a c that is subnormal gives a subnormal result.

    Let P, what the products have come to, not be 0: it is at least 2^last. c as it is added has
    been cut, to the grid 2^(low - F_c), or has its own bits. If e_c < last - 1, it is below half of
    P; else it has the grid 2^(last - 1 - c_bits). So the sum is 0 or at least as large as the
    smallest of these three; if that is 2^e_min, it is not subnormal, nor becomes so by rounding.

    So a step whose c is not subnormal gives no subnormal result: c flushed, or, in later steps, a
    result that was; and so does the addition of c to sums of steps, which are on the products' grid
    too. With c flushed nothing is left for ``flush_out``. Without, it acts on the first
    step, whose zero's sign a later one does not see. And if a subnormal c is cut to 0 beside any
    product, then flushing it is the same as flushing the result that it is alone.
    """
    if model.flush_out == "no" or model.rho_products is not None or model.e_sum is not None:
        return
    lows = [x.last - 1 - x.c_bits]
    lows += [x.low - model.F_c] if model.F_c is not None else []
    if min(lows) < x.e_min or x.c_low != x.e_min:
        return
    if model.flush_c != "no":
        yield {"flush_out": "no"}, "flush_out: with c flushed no result is subnormal"
    if not x.chained:
        return
    later = x.steps > 1 and model.zero != "ieee"
    if model.flush_out == "sign" and later:
        yield {"flush_out": "zero"}, "flush_out: the sign of a step's zero is not seen in the next"
    F_c = model.F_c
    half = {"RZ": 0, "RNE": 1, "RNA": 1}.get(model.cut_c)
    gone = F_c is not None and half is not None and x.e_min <= x.low - F_c - half
    c_whole = F_c is None or F_c >= x.c_bits or model.cut_c == "RZ"
    stays = c_whole and (model.rho.mode == "RZ" or x.kept >= x.c_bits)
    if (
        gone
        and stays
        and model.flush_out == "zero"
        and model.e_zero is None
        and model.F_sum is None
    ):
        why = "flush_out: only a c that is subnormal, and alone, gives a subnormal result"
        yield {"flush_out": "no", "flush_c": "zero"}, why
