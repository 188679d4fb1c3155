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
from bitmma.clfp.reach import Reach, up
from bitmma.clfp.two_roundings import Pair, keeps_steps, keeps_zeros, plainest_pair
from bitmma.formats import ROUNDINGS
from bitmma.models import FDPA, Conversion

__all__ = ["RULES", "full", "plain_rho", "plainest"]

#: Fields to change, and why.
Found = tuple[dict[str, Any], str]

_TWO = Fraction(2)


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


def full(rho: Conversion) -> Conversion:
    """The same conversion, all bits of its format kept by no number of its own."""
    if rho.mantissa_bits != formats.get(rho.format).mantissa_bits:
        return rho
    return dataclasses.replace(rho, mantissa_bits=None)


def plain_rho(model: FDPA, box: Box) -> Conversion:
    """The plainest conversion with which the model is the same, all else as it is."""
    for rule in (_nothing_rounded, _two_roundings):
        found = rule(model, Reach(box, model))
        changed = None if found is None else dataclasses.replace(model, **found[0])
        if changed is not None and changed == dataclasses.replace(model, rho=changed.rho):
            model = changed
    return model.rho


def _unused(model: FDPA) -> FDPA:
    """Fields that their neighbours leave without meaning, at their defaults."""
    changes: dict[str, Any] = {"rho": full(model.rho)}
    if model.rho_products is not None:
        changes["rho_products"] = full(model.rho_products)
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
    if model.flush_out == "no":
        changes["tiny"] = "stored"
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

    It has no bits below 2^(e_p - bits), so it is cut only if e_p < e_c - F + bits, and is then at
    most ``size`` 2^(e_c - F + bits - 1), or that cut upwards. c is on the grid 2^(e_c - c_bits), or
    2^(e_c - F_c), and the outputs around it and half-way between are on 2^(e_c - 1 - kept) and half
    of that: so they are c itself, or as far from it as the finer of these grids says. If P is below
    that, the result depends on nothing but P's sign, and to nearest not even on that if c is an
    output. RA keeps that sign, and RU (RD) keeps it where it makes a difference to RU (RD). Those,
    moreover, are lost in a coarser rounding of their own direction: the sum, at least 2^(e_c - 1)
    if F >= bits + 2, is rounded to a multiple of 2^(e_c - F), which c is as well.

    All that holds of a subnormal c too, where outputs are no finer; but c may be cut to 0, or the
    sum be 0 if P is: then the sign of zero must not be seen, or P's be kept.
    """
    F, mode = model.F, model.rho.mode
    alone = x.n == 1 and model.groups == 1 and x.chained and model.c == "early"
    if F is None or not alone or model.e_zero is not None or model.F_sum is not None:
        return
    if model.tiny == "before":  # a hair below the smallest normal number counts
        return
    of_c = x.c_bits if model.F_c is None else min(x.c_bits, model.F_c)
    normal = x.low > x.c_low - F + x.bits - 1  # a c that P is cut beside
    if not normal and x.c_low > x.e_min:
        return
    plus = normal or model.zero == "plus"
    why = "and more are alike, what is cut is a hair"
    near = mode in ("RNE", "RNA")
    hair = up(x.size * _TWO ** (x.bits - 1 - F), F) < _TWO ** -max(x.kept + 1 + near, of_c)
    hair &= plus or model.cut == "RA" or of_c == x.c_bits
    signs = model.cut == "RA" or (model.cut == mode and mode in ("RU", "RD"))
    if hair and (signs or (near and x.is_output(of_c))):
        yield {"F": None}, f"F: {F} {why}"
    same = max(x.bits + 2, x.kept + 1, of_c)
    plus |= model.zero == "signed" and mode == "RD"
    if plus and model.cut == mode and mode in ("RU", "RD") and same <= F:
        yield {"F": None}, f"F: {same} and more are alike, the sum is rounded in the same direction"


@_rule
def _hair_of_c(model: FDPA, x: Reach) -> Iterator[Found]:
    """Beside a step's only product P, c is cut only where it is a hair: as P beside c, see above.

    It is at most 2^(e_p - F_c + c_bits - 1) times its significand. P has no bits below
    2^(e_p - bits), or 2^(e_p - F), but if an operand may be subnormal it may be as small as that:
    as many bits less are then between it and the grid of the outputs around it.
    """
    F_c, mode = model.F_c, model.rho.mode
    if F_c is None or x.n > 1 or model.groups > 1 or not x.chained or model.rho_products:
        return
    if model.F_sum is not None or model.drop_c is not None or model.tiny == "before":
        return
    bits = min(F for F in (x.bits, model.F, model.F2) if F is not None)
    small = 0 if model.renormalise or model.flush_in != "no" else x.bits
    if small and bits < x.bits:  # it may be cut to 0
        return
    near = mode in ("RNE", "RNA")
    c = up((2 - Fraction(1, 1 << x.c_bits)) * _TWO ** (x.c_bits - 1 - F_c), F_c)
    hair = c < _TWO ** -max(x.kept + 1 + near + small, bits)
    signs = model.cut_c == "RA" or (model.cut_c == mode and mode in ("RU", "RD"))
    own = bits + (not model.renormalise)  # P may be 2 or more
    if hair and (signs or (near and own <= x.kept and x.last >= x.step)):
        yield {"F_c": None}, f"F_c: {F_c} and more are alike, what is cut is a hair"
    same = max(x.c_bits + 1 + small, x.kept + 1 + small, bits)
    if model.cut_c == mode and mode in ("RU", "RD") and same <= F_c:
        why = "and more are alike, the sum is rounded in the same direction"
        yield {"F_c": None}, f"F_c: {same} {why}"


@_rule
def _pairs_of_products(model: FDPA, x: Reach) -> Iterator[Found]:
    """Of two products that are cut below their own e, the one that has it has no bits so low.

    The cut of the other, and then that of their sum to a coarser grid in the same direction, are
    the latter alone: RD and RU of a sum do not depend on those terms that are on the grid.

    And what is cut, at most ``size`` 2^(e - F + bits - 1), may be a hair: the larger one is a
    multiple of 2^(e - bits), what the sum is cut to, or half of it, of 2^(e - coarser), or one bit
    less. Below both, the other one shows nothing but its sign, which RA keeps.
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
    grid = _TWO ** -max(x.bits, coarser + (cut in ("RNE", "RNA")))
    if model.cut == "RA" and up(x.size * _TWO ** (x.bits - 1 - model.F), model.F) < grid:
        yield {"F": None}, f"F: {model.F} and more are alike, what is cut is a hair"


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
def _joint_cut_again(model: FDPA, x: Reach) -> Iterator[Found]:
    """Beside a large c, T is cut at E - F2; a cut of the sum of the same direction may follow.

    T is on the grid 2^(e - F) of its products (or groups), and on 2^last, so it is cut only if E,
    which is then e_c, is so much larger: e + D at least. T is at most ``whole`` 2^e. Let c be on
    the grid 2^(E - F2), and normal: then the sum is 2^E (1 - whole / 2^D) at least, T cut or not,
    and that 2^(E - h). What is kept of such sums next, by F_sum or rho, lies on that grid if these
    are no more bits than F2 - h: and RD (RU) to a grid, then to what is on it, is the latter alone.
    A subnormal c is none that T is cut beside; or what is kept of its sums is on the grid, too, and
    a negative sum that is cut to 0, by RU, is not seen to be no other zero.
    """
    F2, chained = model.F2, x.chained and model.rho_products is None
    if F2 is None or not chained or model.e_zero is not None or model.c != "late":
        return
    if model.tiny == "before" and model.F_sum is None:
        return
    D, whole = _beside_c(model, x)
    following, bits = (model.cut_sum, model.F_sum) if model.F_sum else (model.rho.mode, x.kept)
    bottom = x.step
    if model.F_sum is not None:
        bottom = x.c_low - F2 - 1 if model.e_sum is None else model.e_sum - model.F_sum
    on_grid = x.c_bits <= F2 or (model.F_c is not None and model.F_c <= F2)
    plus = model.zero == "plus" or (model.zero == "signed" and model.cut2 == "RD")
    subnormal = x.low + D > x.c_low or (plus and bottom >= x.c_low - F2)
    least = 1 - up(whole / _TWO**D, F2) if D > 0 else Fraction(0)
    if (
        least > 0 and on_grid and subnormal and model.cut2 == following in ("RD", "RU")
        and least * _TWO ** (F2 - bits) >= 1
    ):  # fmt: skip
        yield {"F2": None}, f"F2: {F2} and more are alike, the sum is cut again in that direction"


@_rule
def _hair_of_a_sum(model: FDPA, x: Reach) -> Iterator[Found]:
    """T, or all products of an early c, is cut only beside a c so large that it is a hair.

    c and the outputs, and what is half-way between them, are on a grid as in `_hair_of_a_product`.
    A sum that stays, cut or not, below this grid shows nothing but its sign, to nearest and beside
    an output not even that: then it may be cut by F_sum as well; and it may be a unit of the grid,
    for that is a tie only below a power of two, c, which is what ties lead to. T's sign is kept by
    RA, and by RU (RD) where it makes a difference to RU (RD).

    For T, D and ``whole`` see `_joint_cut_again`; products have 2^last alone, and each is cut.
    """
    mode, late = model.rho.mode, model.c == "late"
    F, cut, count = (model.F2, model.cut2, 1) if late else (model.F, model.cut, x.n)
    if F is None or not x.chained or model.rho_products or model.e_zero is not None:
        return
    if (not late and model.groups > 1) or model.tiny == "before":
        return
    D, whole = _beside_c(model, x) if late else (x.last + F + 1 - x.high, x.size)
    if D < 1:
        return
    of_c = x.c_bits if model.F_c is None else min(x.c_bits, model.F_c)
    sums, near = count * up(whole / _TWO**D, F), mode in ("RNE", "RNA")
    grid, F_sum = _TWO ** -max(x.kept + 1 + near, of_c), model.F_sum
    signs = late and F_sum is None and (cut == "RA" or (cut == mode and mode in ("RU", "RD")))
    lost = near and x.is_output(of_c)
    normal = (x.low if late else x.high) + D > x.c_low  # a c that something is cut beside
    if not normal and x.c_low > x.e_min:
        return
    if not (normal or model.zero == "plus" or cut == "RA" or of_c == x.c_bits):
        return
    if F_sum is not None:  # c is on its grid, which is finest just below a power of two
        sums = up(sums, F_sum + 1)
        lost &= F_sum >= x.kept + 2 and (model.e_sum is None or model.e_sum <= x.c_low)
    if (signs and sums < grid) or (lost and sums <= grid):
        name = "F2" if late else "F"
        yield {name: None}, f"{name}: {F} and more are alike, what is cut is a hair"


@_rule
def _hairs_of_two_products(model: FDPA, x: Reach) -> Iterator[Found]:
    """Two products, of few bits, that RA cuts beside a large c: their sum passes no boundary.

    They are cut to multiples of u = 2^(e_c - F), and come to half of c at most. So what is half-way
    between two outputs, and c, if it is an output, are multiples of Y = 2^(e_c - kept - 2). A
    product has m = bits + 2 bits, so it is cut only if it is below 2^m u. If both are, they come to
    less than 2^(m + 1) u, and to nearest there is no boundary so near c. If one is, the other may
    be a multiple of Y, and RA keeps the sign of what the first adds to that; or it is 2^-m Y away
    from any, and that is more than what the first can be if 2 m < F - kept - 2.
    """
    F, near = model.F, model.rho.mode in ("RNE", "RNA")
    alone = x.n == 2 and model.groups == 1 and x.chained and model.c == "early"
    if F is None or not alone or model.cut != "RA" or model.e_zero is not None:
        return
    if model.tiny == "before":  # c itself may be a boundary
        return
    of_c = x.c_bits if model.F_c is None else min(x.c_bits, model.F_c)
    D = x.last + F + 1 - x.high
    if D < 1 or x.high + D <= x.c_low or model.F_sum is not None or not x.is_output(of_c):
        return
    if near and 4 * up(x.size / _TWO**D, F) <= 1 and 2 * (x.bits + 2) < F - x.kept - 2:
        yield {"F": None}, f"F: {F} and more are alike, what is cut is a hair"


@_rule
def _cut_once_more(model: FDPA, x: Reach) -> Iterator[Found]:
    """One number is cut, T or a product alone, in the direction of a coarser conversion.

    It is cut to multiples of 2^(top - F) or of less. If c has that grid, and the outputs have, RD
    (RU) of the whole sum is what it would be without. RU cuts negative numbers to 0 that it would
    convert to it: zeros must have one sign.
    """
    late, mode = model.c == "late", model.rho.mode
    F, cut = _cut_of_one(model)
    if F is None or cut != mode or mode not in ("RD", "RU") or model.rho_products is not None:
        return
    if model.F_sum is not None or model.flush_out != "no":
        return
    if not late and (x.n > 1 or model.groups > 1):
        return
    signs = model.zero == "plus" or (model.zero == "signed" and mode == "RD")
    if signs and x.top - F <= min(x.step, x.c_last if x.chained else x.step):
        name = "F2" if late else "F"
        yield {name: None}, f"{name}: {F} and more are alike, the sum is rounded in that direction"


def _beside_c(model: FDPA, x: Reach) -> tuple[int, Fraction]:
    """D and ``whole`` of T, see `_joint_cut_again`."""
    assert model.F2 is not None
    U = model.F if model.groups == 1 else model.F_groups
    D = x.last + model.F2 + 1 - x.high
    if U is not None:
        D = max(D, model.F2 - U + 1)
    if model.groups > 1:  # their sums are raised once more
        return D, Fraction(4 * x.n + model.groups)
    return D, x.n * (x.size if model.F is None else up(x.size, model.F))


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
def _product_and_zero(model: FDPA, x: Reach) -> Iterator[Found]:
    """A step's only product, c in none, has no bits to cut below its own e if F >= bits.

    What is cut is cut at e_zero - F, wherever that is below e, and so it is with F = bits and as
    much less of e_zero. A product that counts as Inf would have overflowed by itself.
    """
    if x.chained or x.n > 1 or model.groups > 1 or model.c == "late":
        return
    F, e_zero, limit = model.F, model.e_zero, model.product_overflow
    if F is not None and e_zero is not None and x.bits < F:
        changes = {"F": x.bits, "e_zero": e_zero - F + x.bits}
        yield changes, f"F: with e_zero as much higher {x.bits} and more are alike"
    if F is not None and e_zero is not None and x.bits == F and model.renormalise:
        changes = {"F": F - 1, "e_zero": e_zero - 1, "renormalise": False}
        yield changes, "renormalise: a product alone has no bits that it would keep"
    if limit is not None and limit > x.e_max and model.rho.overflow == "inf":
        yield {"product_overflow": None}, "product_overflow: such a product alone overflows"


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
    cut = _last_cut(model)
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
    cut = _last_cut(model)
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
    others only rounded to it; or else one number is cut, and negative ones not to 0.
    """
    e_zero = model.e_zero
    if e_zero is None or model.rho_products is not None or model.e_sum is not None:
        return
    whole, alone = 4 * Fraction(x.n), False
    if model.groups == 1 and model.c == "late":
        one = x.size if model.F is None else up(x.size, model.F)
        whole = x.n * one if model.F2 is None else up(x.n * one, max(model.F2 - 1, 0))
        alone = model.cut2 in ("RD", "RA")
    elif model.groups == 1 and model.F is not None:
        size, lone = (
            up(part, max(model.F - 1, 0))
            for part in (x.size, x.size * _TWO ** min(0, x.bits - model.F))
        )
        whole = (x.n - 1) * size + lone
        alone = x.n == 1 and model.cut in ("RD", "RA")
    whole *= _TWO ** (e_zero - 1)
    if model.F_sum is not None or model.F_groups is not None:
        whole = _power_above(whole)
    mode, least = model.rho.mode, _TWO**x.step
    signs = model.zero == "plus" or (model.zero == "signed" and alone and model.F_sum is None)
    gone = signs and model.flush_out == "no" and (
        (mode in ("RNE", "RNA") and whole < least / 2) or (mode == "RZ" and whole < least)
    )  # fmt: skip
    gone |= model.flush_out == "zero" and whole <= _TWO**x.e_min - least
    if gone:
        yield {"e_zero": None}, f"e_zero: {e_zero} and less are alike, no sum it decides is seen"


@_rule
def _zero_cuts_in_vain(model: FDPA, x: Reach) -> Iterator[Found]:
    """c's zero decides where one number is cut: T, or a product alone. Then that is the sum.

    It is below 2^e_zero times what n products can be. If its cut moves no step of the cut and the
    conversion that follow, neither does the finer one, at e - F below its own e, that it has
    without; where that rounds to nearest, it must cut nothing. A negative number that is cut to 0
    gives +0: either zeros have one sign, or none is converted to 0 (nor becomes one of its sign for
    being subnormal), or it is not cut to 0, neither then nor by F_sum, or by that all the same.
    """
    e_zero, late = model.e_zero, model.c == "late"
    F, cut = _cut_of_one(model)
    if e_zero is None or F is None or model.rho_products is not None or model.zero == "ieee":
        return
    if not late and (x.n > 1 or model.groups > 1):
        return
    whole = late and model.groups == 1 and model.F is not None and model.F <= F
    if cut in ("RNE", "RNA") and not (whole if late else x.bits <= F):
        return
    top, sums = e_zero + (4 * x.n).bit_length(), x.sums(model)
    pair = Pair(model.F_sum, model.cut_sum, model.rho.mode)
    signs = model.zero == "plus" or keeps_zeros(e_zero - F, cut, pair, sums)
    signs |= model.flush_out != "sign" and model.rho.mode in ("RD", "RA")
    if signs and keeps_steps(e_zero - F, cut, top, pair, sums):
        yield {"e_zero": None}, f"e_zero: {e_zero} and less are alike, what it cuts is cut again"


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
    if (alike or halves) and not seen and model.tiny == "stored":  # else see two_roundings
        n = x.kept + halves
        yield {"F_sum": None}, f"F_sum: {n} and more are alike, the output keeps {x.kept}"


@_rule
def _nothing_rounded(model: FDPA, x: Reach) -> Iterator[Found]:
    """A sum of no more bits than are kept, on the grid of the outputs, is an output.

    Or beyond the largest, where it is at least the next power of two, Inf in all modes. By IEEE's
    rule of zeros RD is another one still. F_sum leaves so many bits of a sum below its first, or
    below e_sum, and what is on a grid on it. Where results below 2^e_min become zeros, only sums
    of 2^(e_min - 1) and more count, and the last bit of these is one above the grid of the outputs.
    With c flushed as well, those below 2^e_min are of products alone, which may have fewer bits.
    """
    if why := _exact(model, x):
        yield {"rho": Conversion("RNE", model.rho.format)}, f"rho: {why}, none is rounded"


def _exact(model: FDPA, x: Reach) -> str:
    """Why no sum is rounded, or nothing: see `_nothing_rounded`."""
    rho = model.rho
    if not x.chained or rho.overflow != "inf" or (model.zero == "ieee" and rho.mode == "RD"):
        return ""
    F_sum, e_sum = model.F_sum, model.e_sum
    last = x.grid if F_sum is None or e_sum is None else max(x.grid, e_sum - F_sum)
    if F_sum is not None and F_sum <= x.kept and last >= x.step:
        return f"sums were cut to {F_sum} bits"
    bits = small = x.sum_bits(model)
    if model.flush_c != "no" and x.c_low >= x.e_min and None not in (model.F_c, _last_cut(model)):
        products = dataclasses.replace(model, order="pairwise")
        small = Reach(x.box, products).sum_bits(products)
    fits = small < x.kept and x.sums(model).low == x.e_min - 1 and F_sum is None
    return f"sums have {bits} bits" if bits <= x.kept and (fits or x.grid >= x.step) else ""


def _cut_of_one(model: FDPA) -> tuple[int | None, str]:
    """The cut beside c of a step's one number: T, or a product alone."""
    return (model.F2, model.cut2) if model.c == "late" else (model.F, model.cut)


def _last_cut(model: FDPA) -> int | None:
    """How many bits of products are kept beside c."""
    return model.F2 if model.c == "late" else model.F if model.groups == 1 else model.F_groups


@_rule
def _cut_is_a_conversion(model: FDPA, x: Reach) -> Iterator[Found]:
    """A conversion that finds all sums cut to as few bits as it keeps: it may be the cut.

    Sums below 2^e_min are cut below their own first bit, or below 2^e_min as conversions do. The
    former must cut nothing there, and the latter to no zero whose sign is seen.
    """
    F_sum, e_sum, rho, modes = model.F_sum, model.e_sum, model.rho, (model.cut_sum, model.rho.mode)
    if F_sum is None or F_sum > x.kept or not _exact(model, x):
        return
    zeros = model.zero == "plus" and model.flush_out == "no"
    fine = x.grid >= x.e_min - F_sum or (e_sum == x.e_min and zeros)
    if fine and (e_sum is None or e_sum <= x.e_min) and (model.zero != "ieee" or "RD" not in modes):
        rho = dataclasses.replace(rho, mode=model.cut_sum, mantissa_bits=F_sum)
        changes = {"F_sum": None, "e_sum": None, "rho": rho}
        yield changes, f"F_sum: sums cut to {F_sum} bits and converted are alike"


@_rule
def _zero_is_a_conversion(model: FDPA, x: Reach) -> Iterator[Found]:
    """Where nothing is rounded but what c's zero cuts, a conversion can do that.

    Sums that are no multiples of 2^(e_zero - F) would be, if the outputs' grid were that one, in
    the direction of the cut. So this conversion may take the place of one that rounds nothing, if
    it rounds nothing either; and then c's zero is looked at again.
    """
    F, cut = _cut_of_one(model)
    if model.e_zero is None or F is None or cut in ("RNE", "RNA"):
        return
    kept = x.e_min - (model.e_zero - F)
    if not 1 <= kept < x.kept or not _exact(model, x):
        return
    other = dataclasses.replace(
        model, rho=dataclasses.replace(model.rho, mode=cut, mantissa_bits=kept)
    )
    reach = Reach(x.box, other)
    if _exact(other, reach) and (found := _zero_cuts_in_vain(other, reach)):
        why = f"e_zero: a conversion to {kept} bits rounds where {model.e_zero} cuts"
        yield {**found[0], "rho": other.rho}, why


@_rule
def _two_roundings(model: FDPA, x: Reach) -> Iterator[Found]:
    """The cut of the sum and its conversion may have their steps where others have: two_roundings.

    Sums of steps that are added in pairs are converted again, by the same mode. IEEE's overflow
    depends on it, and so does its rule of zeros if that is RD.
    """
    rho = model.rho
    pair = Pair(model.F_sum, model.cut_sum, rho.mode)
    modes = tuple(x for x in ROUNDINGS if not (model.zero == "ieee" and "RD" in (x, rho.mode)))
    if not x.chained or rho.overflow == "ieee":
        modes = (rho.mode,)
    bits, cut, mode = plainest_pair(pair, x.sums(model), modes)
    changes = {"F_sum": bits, "cut_sum": cut, "rho": dataclasses.replace(rho, mode=mode)}
    yield changes, "F_sum, cut_sum, rho: other cuts and conversions have the same steps"


@_rule
def _overflow(model: FDPA, x: Reach) -> Iterator[Found]:
    """Sums that stay below the next power of two overflow only by being rounded away from zero.

    Then IEEE's rule gives Inf as well: where the mode rounds toward zero, for a cut in the same
    direction does not raise that side. And if products, raised by a cut beside so large a c or not,
    stay below half a step of the largest number, or a quarter where the sum is cut two bits below
    that, nothing but RD, RU and RA, or a c of more bits than are kept, brings it there at all. Nor
    do those if beside so large a c all products are cut to 0, on the side that the mode raises; or
    if what they add to it is cut from the sum.
    """
    rho = model.rho
    if rho.overflow == "inf":
        return
    if rho.overflow == "ieee" and rho.mode in ("RNE", "RNA", "RA"):
        yield {"rho": dataclasses.replace(rho, overflow="inf")}, ""
    fd, late = formats.get(rho.format), model.c == "late"
    F, cut, count = model.F, model.cut, x.n
    if model.groups > 1:
        F, cut, count = model.F_groups, model.cut_groups, model.groups
    if late:
        F, cut, count = model.F2, model.cut2, 1
    products = 8 * x.n * x.steps * _TWO**x.high
    beside = _TWO**x.e_max if F is None else _TWO ** (x.e_max - F)  # where products are cut
    hairs = F is not None and x.chained and products * 2 < beside
    raised = products
    if F is not None and cut in ("RD", "RU", "RA") and x.chained:
        raised = count * beside + (0 if hairs else products)
    if not x.chained:  # no product is beside c; a zero c may raise them
        raised *= 2 * _TWO ** max(0, (x.high if model.e_zero is None else model.e_zero) - x.high)
    c_whole = model.F_c is None or model.cut_c == "RZ" or model.F_c >= x.c_bits
    of_c = x.c_bits if model.F_c is None else min(x.c_bits, model.F_c)
    if not c_whole or x.c_high > x.e_max or x.c_bits > fd.mantissa_bits or model.rho_products:
        return
    # What the cut of the sum leaves of it, and how it may raise it.
    F_sum, room = model.F_sum, _TWO ** (x.e_max - fd.mantissa_bits - 1)
    keeps_c = F_sum is None or F_sum >= of_c
    fine = F_sum is None or model.cut_sum == "RZ"
    if F_sum is not None and F_sum >= fd.mantissa_bits + 2:
        fine, room = True, room / 2
    c_held, mode = x.kept >= of_c, rho.mode
    why = "overflow: no sum reaches beyond the largest number"
    inf = {"rho": dataclasses.replace(rho, overflow="inf")}
    inward = products if cut == mode else raised
    if rho.overflow == "ieee" and fine and inward < room:
        yield inf, why
    nearest = mode in ("RNE", "RNA") and c_held
    if fine and raised < room and (mode == "RZ" or nearest):
        yield inf, why
    if not c_held or not keeps_c or not x.chained:
        return
    if hairs and cut in ("RZ", "RNE", "RNA"):
        yield inf, why
    if hairs and {cut, mode} == {"RD", "RU"} and fine and raised < room:
        yield inf, why
    cut_away = {"RZ": raised, "RNE": 2 * raised, "RNA": 2 * raised}.get(model.cut_sum)
    if F_sum is None or cut_away is None:
        return
    tie = model.cut_sum == "RNE" and F_sum > of_c  # c is even in such units
    if cut_away < _TWO ** (x.e_max - F_sum) or (tie and cut_away == _TWO ** (x.e_max - F_sum)):
        yield inf, why


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
    the grid of the outputs, or by RNA on one of half its unit, or its sum is cut to it, if it
    rounds RD or RA, or if all zeros become +0 afterwards. Nor are there if all sums are as large as
    the smallest output. That of products, P, is a multiple of 2^last: if it is not 0, the sum with
    c is 2^(last - 1) at least if e_c < last - 1; else c is on the grid 2^(last - 1 - c_bits), and
    on 2^(low - F_c), and so is the sum. And c alone is not cut below its first bit. Where a step
    comes before, this c is an output. A sum that is cut to 0 is +0 by either rule. IEEE's rule is
    "signed" but for sums of nothing but -0 (and RD): not where c is part of the last sum and never
    -0.
    """
    if model.flush_out == "zero":
        yield {"zero": "plus"}, ""
    finer, later = x.grid if x.chained else min(x.step, x.c_last), x.chained and x.steps > 1
    rounded = model.rho_products is not None and x.chained
    least = x.step - (model.rho.mode == "RNA")
    whole = (finer >= least and not rounded) or model.rho.mode in ("RD", "RA")
    if model.F_sum is not None and model.e_sum is not None and x.chained:
        whole |= model.e_sum - model.F_sum >= x.step
    c_bits, c_last = (x.kept, x.step) if later else (x.c_bits, x.c_last)
    if not rounded and min(x.last - 1, max(x.last - 1 - c_bits, x.cut_c)) >= x.step:
        whole |= (x.c_low if model.flush_c != "no" else c_last) >= x.step
    if model.zero == "signed" and whole:
        yield {"zero": "plus"}, "zero: no negative sum is rounded to zero"
    plus_c = model.flush_c == "zero" and model.rho.mode != "RD"
    if model.zero == "ieee" and plus_c:
        yield {"zero": "signed"}, "zero: c is never -0"


@_rule
def _tiny_results(model: FDPA, x: Reach) -> Iterator[Found]:
    """The rules for what is tiny differ just below 2^e_min, where such a sum is rounded to that.

    RZ does not. Sums that near have a grid, see `Reach.under`, and that of F_sum's cut; sums of
    outputs, and of these and c, that of outputs and of c. If it is the grid of the outputs there,
    no sum is rounded; if it has one bit more, none is by exponents without end, and "after" is
    "before".
    """
    if model.tiny == "stored" or model.rho_products is not None:
        return
    e, F_sum, grid = x.e_min - 1, model.F_sum, x.under(model)
    if F_sum is not None:
        grid = max(grid, (e if model.e_sum is None else max(e, model.e_sum)) - F_sum)
    if not x.chained:
        grid = min(grid, x.c_last)
    if model.rho.mode == "RZ" or grid >= x.step:
        yield {"tiny": "stored"}, "tiny: no sum is rounded to the smallest normal number from below"
    elif grid >= x.step - 1:
        yield {"tiny": "after"}, 'tiny: "after" and "before" are alike, sums have too few bits'


@_rule
def _cut_without_end(model: FDPA, x: Reach) -> Iterator[Found]:
    """A cut of the sum to as many bits as are kept rounds as exponents without end would.

    What is left is converted as it is, or below 2^e_min, and flushed, unless it is rounded to that
    once more: not where tiny sums are found by what is left, nor by RZ. So "after" says the same.
    """
    rho, modes = model.rho, (model.cut_sum, model.rho.mode)
    if model.F_sum != x.kept or model.e_sum is not None or not x.chained:
        return
    signs = model.flush_out == "zero" or (model.flush_out == "sign" and model.zero != "plus")
    plain = rho.overflow == "inf" and (model.zero != "ieee" or "RD" not in modes)
    if signs and plain and (model.tiny != "stored" or rho.mode == "RZ"):
        rho = dataclasses.replace(rho, mode=model.cut_sum)
        yield {"F_sum": None, "rho": rho, "tiny": "after"}, 'F_sum: tiny "after" says the same'


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
