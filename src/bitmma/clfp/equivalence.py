"""Parameters that cannot matter: which of them, and why.

Models that differ only there are one function on these formats. `canonical` gives all of them one
representative; it claims only what is proved here, and what it does not know stays two models.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from bitmma import formats
from bitmma.clfp import plain_sums
from bitmma.clfp.box import Box
from bitmma.clfp.numbers import Range
from bitmma.clfp.plain_sums import plain_sum
from bitmma.models import FDPA, GSTFDPA, STFDPA, TFDPA, Lowered, Model, SumTree

__all__ = ["canonical", "reasons"]


def canonical(model: Model, box: Box) -> tuple[Model, list[str]]:
    """The representative of all models equal to this one, and the reasons in words."""
    match model:
        case Lowered():
            unit, why = canonical(model.unit, box)
            parts = _shortest(model)
            longest = max(len(part) * model.K // sum(map(len, parts)) for part in parts)
            assert isinstance(unit, TFDPA)
            unit = dataclasses.replace(unit, L=min(unit.L, longest))
            return dataclasses.replace(model, unit=unit, parts=parts), why
        case TFDPA() | STFDPA() | GSTFDPA() if box.scale_format is None:
            return _truncated(model, box)
        case GSTFDPA():
            return _grouped(model, box)
        case FDPA():
            return _fused(_plain_overflow(model), box)
        case SumTree():
            return plain_sum(_plain_overflow(model), box), []
    return model, []


def reasons(model: Model, box: Box) -> list[str]:
    """Why other parameters than those of a representative are the same model, in words."""
    return (
        plain_sums.reasons(model, box) if isinstance(model, SumTree) else canonical(model, box)[1]
    )


_M = TypeVar("_M", bound=Model)


def _changed(model: _M, changes: dict[str, Any]) -> _M:
    """The model with those fields, itself where they are what it has."""
    new = {name: value for name, value in changes.items() if getattr(model, name) != value}
    return dataclasses.replace(model, **new) if new else model


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
    """An empty group or zero c matters if it has the largest exponent and something is cut."""
    fs, fc = box.scale_format, box.formats[2]
    assert fs is not None
    last = min(f.min_exponent - f.mantissa_bits for f in box.formats[2:])
    never = min(2 * fs.min_exponent, max(fc.min_exponent, last + model.F))
    if model.e_zero > never:
        return model, []
    why = f"e_zero: {never} and less are alike, groups lie above it and c loses nothing"
    return _changed(model, {"e_zero": never}), [why]


def _why_zero(low: int, last: int, never: int) -> str:
    """A zero c matters if it has the largest exponent and something is cut because of that."""
    reason = (
        f"every product has an exponent of {low} or more" if never == low
        else f"the last bit of every product, 2^{last}, is kept all the same"
    )  # fmt: skip
    return f"e_zero: {never} and less are alike, {reason}"


def _fused(model: FDPA, box: Box) -> tuple[FDPA, list[str]]:
    why: list[str] = []
    changes: dict[str, Any] = {}
    low, last, everything = _span(box, model)
    scaled = box.scale_format is not None
    for field, cut in (("F", "cut"), ("F_c", "cut_c"), ("F_groups", "cut_groups")):
        F = getattr(model, field)
        if F is not None and everything <= F and not scaled:
            changes[field] = None
            why.append(f"{field}: {everything} and more are alike, nothing is cut")
        if changes.get(field, F) is None:
            changes[cut] = "RZ"
    if model.order == "pairwise":  # c joins at the end, by rho alone
        changes |= {"F_c": None, "cut_c": "RZ", "drop_c": None}
        if model.c == "late" and model.F2 is None and model.rho_products is None:
            changes |= {"c": "early", "e_zero": None}
    if model.groups == 1:
        changes |= {"F_groups": None, "cut_groups": "RZ"}
    if model.F2 is None:
        changes["cut2"] = "RZ"
    if model.F_sum is None:
        changes |= {"cut_sum": "RZ", "e_sum": None}
    F = changes.get("F", model.F)
    F_c = changes.get("F_c", model.F_c)
    if model.drop_c is not None and F_c is not None:
        below = {"RZ": F_c, "RNE": F_c + 1, "RNA": F_c + 1}.get(model.cut_c)
        if below is not None and model.drop_c >= below:
            changes["drop_c"] = None
            why.append("drop_c: a c so small is cut to 0 all the same")
    elif model.drop_c is not None and model.drop_c >= everything and not scaled:
        changes["drop_c"] = None
    early = model.c == "early" and model.groups == 1
    if model.e_zero is not None and not scaled and model.e_zero < _visible(box, model):
        changes["e_zero"] = None
        why.append(f"e_zero: below {_visible(box, model)} no sum it decides is seen in the output")
    elif early and model.e_zero is not None and not scaled:
        if F is None:
            changes["e_zero"] = None
        elif model.e_zero <= max(low, last + F):
            changes["e_zero"] = None
            why.append(_why_zero(low, last, max(low, last + F)))
    if model.c == "late" and model.F2 is None:
        changes["e_zero"] = None
    rho, fd = model.rho, formats.get(model.d)
    room = fd.max_exponent - fd.mantissa_bits - 1
    if rho.mode in ("RZ", "RNE", "RNA") and rho.overflow != "inf" and not scaled:
        # c may be the largest number: products must reach half a unit of its last place.
        nearest = rho.mode != "RZ" and rho.mantissa_bits is not None
        if not nearest and box.k * 2 ** (Range(box).high + 2) < 2**room:
            changes["rho"] = dataclasses.replace(rho, overflow="inf")
            why.append("overflow: no sum reaches beyond the largest number")
    kept = fd.mantissa_bits if rho.mantissa_bits is None else rho.mantissa_bits
    within = model.e_sum is None or model.e_sum <= fd.min_exponent
    if model.F_sum is not None and within:
        # Cut to more bits than are kept, and in the same direction, or only below half a step.
        alike = model.cut_sum == rho.mode and rho.mode in ("RZ", "RD", "RU", "RA")
        halves = model.cut_sum == "RZ" and rho.mode == "RNA"
        if (alike and model.F_sum >= kept) or (halves and model.F_sum > kept):
            changes |= {"F_sum": None, "cut_sum": "RZ", "e_sum": None}
            why.append(f"F_sum: {kept + halves} and more are alike, the output keeps {kept}")
    units = [x for x in (F_c, model.F2 if model.c == "late" else F) if x is not None]
    F_sum = changes.get("F_sum", model.F_sum)
    if F_sum is not None and model.e_sum is None and len(units) == 2:
        # The sum has so many bits, all told: L products below 4 and c below 2.
        bits = max(units) + 3 + model.L.bit_length()
        if model.groups == 1 and model.order == "chain" and F_sum >= bits:
            changes |= {"F_sum": None, "cut_sum": "RZ", "e_sum": None}
            why.append(f"F_sum: {bits} and more are alike, sums have no more bits")
    overflow = model.product_overflow
    if overflow is not None and not scaled and overflow >= Range(box).high + 2:
        changes["product_overflow"] = None
        why.append("product_overflow: no product is so large")
    changes |= _alone(_changed(model, changes), box, why)
    if model.flush_out == "zero":  # which makes +0 of -0
        changes["zero"] = "plus"
    steps = formats.get(model.d).min_exponent - kept
    c_last = box.formats[2].min_exponent - box.formats[2].mantissa_bits
    whole = not scaled and steps <= min(Range(box).lowest, c_last)
    if model.zero == "signed" and whole and model.flush_out == "no" and not model.rho_products:
        changes["zero"] = "plus"
        why.append("zero: sums are multiples of the output's last place, none is rounded to zero")
    if changes.get("zero", model.zero) == "plus":  # nothing tells an operand's flushed sign
        for field in ("flush_in", "flush_c"):
            if getattr(model, field) == "sign":
                changes[field] = "zero"
    return _changed(model, changes), why


def _alone(model: FDPA, box: Box, why: list[str]) -> dict[str, Any]:
    """A product with nothing beside it has no bits below its last; exponents serve cuts alone."""
    changes: dict[str, Any] = {}
    apart = model.c == "late" or (model.order == "pairwise" and model.e_zero is None)
    single = min(model.L, box.k) == 1 == model.groups and box.scale_format is None
    fa, fb = box.formats[:2]
    bits = fa.mantissa_bits + fb.mantissa_bits + model.renormalise
    if model.F is not None and bits <= model.F and apart and single:
        changes |= {"F": None, "cut": "RZ"}
        why.append(f"F: {bits} and more are alike, a product with none beside it has no more bits")
    if changes.get("F", model.F) is model.F_c is model.F2 is model.F_groups is model.drop_c is None:
        changes |= {"renormalise": False, "groups": 1, "e_zero": None}
        if model.rho_products is None:
            changes["c"] = "early"
    return changes


def _visible(box: Box, model: FDPA) -> int:
    """Products below 2 to this power, however many and cut in any way, sum up to an output of 0."""
    fd, rho = formats.get(model.d), model.rho
    if rho.mode not in ("RZ", "RNE", "RNA"):
        return -(1 << 30)
    kept = fd.mantissa_bits if rho.mantissa_bits is None else rho.mantissa_bits
    least = fd.min_exponent if model.flush_out != "no" else fd.min_exponent - kept
    # A product is below 4 in its exponent's unit, and cutting at most doubles it; then half a step.
    return least - 4 - (box.k - 1).bit_length()


_General = TypeVar("_General", FDPA, SumTree)


def _plain_overflow(model: _General) -> _General:
    """IEEE's overflow is Inf where a mode rounds away from zero or to nearest."""
    changes = {
        name: dataclasses.replace(rho, overflow="inf")
        for name in ("rho", "rho_products", "rho_product", "out", "rho2")
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
