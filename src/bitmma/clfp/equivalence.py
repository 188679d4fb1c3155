"""Parameters that cannot matter: which of them, and why.

Models that differ only there are one function on these formats. `canonical` gives all of them one
representative; it claims only what is proved here, and what it does not know stays two models.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, TypeVar

from bitmma import formats
from bitmma.clfp import plain_sums
from bitmma.clfp.box import Box
from bitmma.clfp.fused import full, plain_rho, plainest
from bitmma.clfp.numbers import Range
from bitmma.clfp.plain_sums import plain_sum
from bitmma.clfp.reach import most
from bitmma.models import (
    FDPA,
    GSTFDPA,
    STFDPA,
    TFDPA,
    Conversion,
    FTZMulAdd,
    Lowered,
    Model,
    SumTree,
    as_fdpa,
)

__all__ = ["canonical", "kind", "reasons"]


def canonical(model: Model, box: Box) -> tuple[Model, list[str]]:
    """The representative of all models equal to this one, and the reasons in words."""
    match model:
        case _ if (whole := _full(model)) != model:
            return canonical(whole, box)
        case Lowered():
            unit, why = canonical(model.unit, box)
            parts = _shortest(model)
            longest = max(len(part) * model.K // sum(map(len, parts)) for part in parts)
            assert isinstance(unit, TFDPA)
            unit = dataclasses.replace(unit, L=min(unit.L, longest))
            general = as_fdpa(unit)
            if general is not None and box.formats[2] == box.formats[3]:  # its c is a result
                unit = dataclasses.replace(unit, rho=plain_rho(general, box))
            return dataclasses.replace(model, unit=unit, parts=parts), why
        case TFDPA() | STFDPA() | GSTFDPA() if box.scale_format is None:
            return _truncated(model, box)
        case GSTFDPA():
            return _in_turn(model, box, (_grouped, _unrounded))
        case TFDPA() | STFDPA():
            return _in_turn(model, box, (_unrounded, _scaled, _unrounded))
        case FDPA():
            return plainest(model, box)
        case FTZMulAdd() if box.k <= 2:  # what it is filled up with adds +0, and c is never -0
            return _changed(model, {"P": 2}), ["P: two products do not show it"]
        case SumTree():
            return plain_sum(_plain_overflow(model), box), []
    return model, []


def reasons(model: Model, box: Box) -> list[str]:
    """Why other parameters than those of a representative are the same model, in words."""
    return (
        plain_sums.reasons(model, box) if isinstance(model, SumTree) else canonical(model, box)[1]
    )


def kind(model: Model, box: Box) -> Model:
    """One value for all models that are known to be the same function, of whatever family."""
    general = as_fdpa(model) if box.scale_format is None else None
    found = canonical(model if general is None else general, box)[0]
    tree = _as_sum(found, box) if isinstance(found, FDPA) else None
    return found if tree is None else canonical(tree, box)[0]


def _as_sum(model: FDPA, box: Box) -> SumTree | None:
    """The sum tree that a fused sum is in which nothing is cut, or None.

    A result that is the next step's c is flushed there as c is: of trees only c itself is.
    """
    cuts = ("F", "F_c", "F_groups", "F2", "F_sum", "drop_c", "product_overflow", "rho_products")
    steps = range(0, box.k, model.L)
    later = len(steps) > 1 and model.order == "chain" and model.flush_c != "no"
    exact = model.groups == 1 and all(getattr(model, x) is None for x in cuts)
    if box.scale_format is not None or not exact or later or box.k % model.L or box.k > _SHOWN:
        return None
    parts: list[Any] = [tuple(range(i, i + model.L)) for i in steps]
    tree: Any = "c"
    if model.order == "chain":
        for part in parts:
            tree = (tree, *part)
    else:
        while len(parts) > 1:
            pairs = [tuple(parts[i : i + 2]) for i in range(0, len(parts), 2)]
            parts = [x if len(x) > 1 else x[0] for x in pairs]
        tree = (parts[0], "c")
    flushes = {x: getattr(model, x) for x in ("flush_in", "flush_c", "flush_out", "tiny")}
    return SumTree(tree, model.rho, zero=model.zero, nan=model.nan, **flushes)


#: Products of the longest sums that are looked at as trees.
_SHOWN = 64

_M = TypeVar("_M", bound=Model)
_Scaled = TypeVar("_Scaled", TFDPA, STFDPA, GSTFDPA)


def _in_turn(model: Any, box: Box, rules: Sequence[Callable[..., Any]]) -> tuple[Model, list[str]]:
    """What rules make of a model one after the other, and all their reasons."""
    why: list[str] = []
    for rule in rules:
        model, more = rule(model, box)
        why += more
    return model, why


def _changed(model: _M, changes: dict[str, Any]) -> _M:
    """The model with those fields, itself where they are what it has."""
    new = {name: value for name, value in changes.items() if getattr(model, name) != value}
    return dataclasses.replace(model, **new) if new else model


def _full(model: _M) -> _M:
    """A conversion that keeps all bits of its format has no number of its own."""
    found = {
        name: full(value) for name, value in vars(model).items() if isinstance(value, Conversion)
    }
    return _changed(model, found)


def _shortest(model: Lowered) -> tuple[tuple[int, ...], ...]:
    """The same parts with the shortest period."""
    period = sum(map(len, model.parts))
    of = {i: n for n, part in enumerate(model.parts) for i in part}
    for short in (n for n in range(1, period) if period % n == 0):
        if all(of[i] == of[i % short] for i in range(period)):
            return tuple(tuple(i for i in part if i < short) for part in model.parts)
    return model.parts


def _truncated(
    model: TFDPA | STFDPA | GSTFDPA, box: Box
) -> tuple[TFDPA | STFDPA | GSTFDPA, list[str]]:
    why: list[str] = []
    low, last, everything = _span(box, model)
    changes: dict[str, Any] = {}
    if everything <= model.F:
        changes["F"] = everything
        why.append(f"F: {everything} and more are alike, no term reaches further below the largest")
    never = max(low, last + changes.get("F", model.F))
    if model.e_zero <= never:
        changes["e_zero"] = never
        why.append(_why_zero(low, last, never))
    return _changed(model, changes), why


def _grouped(model: GSTFDPA, box: Box) -> tuple[GSTFDPA, list[str]]:
    """An empty group or zero c matters if it has the largest exponent and something is cut.

    If that is c alone, it is cut as outputs are by RZ, or finer; RNA needs one bit more.
    """
    fs, fc, fd, rho = box.scale_format, *box.formats[2:], model.rho
    assert fs is not None
    last = min(f.min_exponent - f.mantissa_bits for f in (fc, fd))
    kept = fd.mantissa_bits if rho.mantissa_bits is None else rho.mantissa_bits
    step = fd.min_exponent - kept
    last = max(last, {"RZ": step, "RNA": step - 1}.get(rho.mode, last))
    never = min(2 * fs.min_exponent, max(fc.min_exponent, last + model.F))
    if model.e_zero > never:
        return model, []
    why = f"e_zero: {never} and less are alike, groups lie above it and c loses nothing"
    return _changed(model, {"e_zero": never}), [why]


def _scaled(model: TFDPA | STFDPA, box: Box) -> tuple[TFDPA | STFDPA, list[str]]:
    """A zero c matters if a product is cut because of it, and the sum is large enough to be seen.

    Cut is a product with bits below 2^(e_zero - F), of which it has ``bits`` below its exponent e;
    if a step's products share one pair of scales, the others' exponents are at most as far above e
    as products without scales can be apart. All are below e_zero, or it would not matter. So their
    sum, of L products of at most ``size`` 2^e each, is below this, and rounds to +0 whatever is cut
    if that is less than the smallest output, or half of it.
    """
    fa, fb, _, fd = box.formats
    rho, block = model.rho, box.spec.block or box.k
    if rho.mode not in ("RZ", "RNE", "RNA"):
        return model, []
    one_scale = block % model.L == 0 or model.L >= box.k == block
    apart = Range(box).high - Range(box).low if one_scale else 1 << 20
    bits = fa.mantissa_bits + fb.mantissa_bits
    whole = (
        min(model.L, box.k)
        * most(fa)
        * most(fb)
        * Fraction(2) ** -max(1, model.F + 1 - bits - apart)
    )
    kept = fd.mantissa_bits if rho.mantissa_bits is None else rho.mantissa_bits
    # The largest e_zero with whole * 2^e_zero below that.
    never = fd.min_exponent - kept - (rho.mode != "RZ")
    while whole >= 1:
        whole, never = whole / 2, never - 1
    while whole * 2 < 1:
        whole, never = whole * 2, never + 1
    if model.e_zero >= never:
        return model, []
    why = f"e_zero: {never} and less are alike, no sum is seen that it cuts"
    return dataclasses.replace(model, e_zero=never), [why]


def _unrounded(model: _Scaled, box: Box) -> tuple[_Scaled, list[str]]:
    """A sum of L products and c is in multiples of 2^(e - F), and so large that it has few bits.

    A product is below ``most`` 2^e, c below 2^(e + 1); so the sum has no bits but F + log2(most L +
    2) ones. And e, at least e_zero or the lowest exponent of a c that is not zero, leaves nothing
    below the grid of the outputs. So no sum is rounded if the output keeps as many bits.
    """
    (fa, fb, fc, fd), fs, rho = box.formats, box.scale_format, model.rho
    assert fs is not None
    largest = most(fa) * most(fb) * most(fs) ** 2
    if isinstance(model, GSTFDPA):  # e is that of the scales
        largest *= Fraction(2) ** (fa.max_exponent + fb.max_exponent)
    kept = fd.mantissa_bits if rho.mantissa_bits is None else rho.mantissa_bits
    bits = model.F + (math.ceil(largest * min(model.L, box.k)) + 1).bit_length()
    lowest = min(model.e_zero, fc.min_exponent, fd.min_exponent) - model.F
    plain = Conversion("RNE", fd.name)
    exact = bits <= kept + 1 and lowest >= fd.min_exponent - kept and rho.overflow == "inf"
    if not exact or rho == plain:
        return model, []
    why = f"rho: sums have {bits} bits, none is rounded"
    return dataclasses.replace(model, rho=plain), [why]


def _why_zero(low: int, last: int, never: int) -> str:
    """A zero c matters if it has the largest exponent and something is cut because of that."""
    reason = (
        f"every product has an exponent of {low} or more" if never == low
        else f"the last bit of every product, 2^{last}, is kept all the same"
    )  # fmt: skip
    return f"e_zero: {never} and less are alike, {reason}"


def _plain_overflow(model: SumTree) -> SumTree:
    """IEEE's overflow is Inf where a mode rounds away from zero or to nearest."""
    changes = {
        name: dataclasses.replace(rho, overflow="inf")
        for name in ("rho", "rho_product", "rho2", "out")
        if (rho := getattr(model, name, None)) is not None
        and rho.overflow == "ieee"
        and rho.mode in ("RNE", "RNA", "RA")
    }
    return _changed(model, changes)


def _span(box: Box, model: Model) -> tuple[int, int, int]:
    """Lowest exponent and last bit of a product; bits that reach from any term down to any."""
    r = Range(box)
    fc, fd = box.formats[2], formats.get(model.d)
    high = max(r.high, fc.max_exponent, fd.max_exponent)
    c_last = min(f.min_exponent - f.mantissa_bits for f in (fc, fd))
    return r.low, r.lowest, high - min(r.lowest, c_last)
