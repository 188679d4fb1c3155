"""Parameters that cannot matter: which of them, and why.

Models that differ only there are one function on these formats. `canonical` gives all of them one
representative; it claims only what is proved here, and what it does not know stays two models.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from bitmma import formats
from bitmma.clfp.box import Box
from bitmma.clfp.numbers import Range
from bitmma.models import GSTFDPA, STFDPA, TFDPA, Lowered, Model

__all__ = ["canonical"]


def canonical(model: Model, box: Box) -> tuple[Model, list[str]]:
    """The representative of all models equal to this one, and the reasons in words."""
    if isinstance(model, Lowered):
        unit, why = canonical(model.unit, box)
        return dataclasses.replace(model, unit=unit), why
    if not isinstance(model, TFDPA | STFDPA | GSTFDPA) or box.scale_format is not None:
        return model, []
    why: list[str] = []
    low, last, high, c_last = _span(box, model)
    changes: dict[str, Any] = {}
    # Everything that can be kept is kept: a larger F is no other function.
    everything = high - min(last, c_last)
    if model.F >= everything:
        changes["F"] = everything
        why.append(
            f"F: {everything} and more are alike, no term reaches further below the largest"
        )
    F = changes.get("F", model.F)
    # A zero c matters if it has the largest exponent and something is cut because of that.
    never = max(low, last + F)
    if model.e_zero <= never:
        changes["e_zero"] = never
        reason = (
            f"every product has an exponent of {low} or more" if never == low
            else f"the last bit of every product, 2^{last}, is kept all the same"
        )  # fmt: skip
        why.append(f"e_zero: {never} and less are alike, {reason}")
    return dataclasses.replace(model, **changes), why


def _span(box: Box, model: Model) -> tuple[int, int, int, int]:
    """Lowest exponent and last bit of a product, highest exponent of a term, last bit of c."""
    r = Range(box)
    fc, fd = box.formats[2], formats.get(model.d)
    high = max(r.high, fc.max_exponent, fd.max_exponent)
    c_last = min(f.min_exponent - f.mantissa_bits for f in (fc, fd))
    return r.low, r.lowest, high, c_last
