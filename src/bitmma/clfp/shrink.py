"""Step 5: counterexamples made small.

A dot product on which box and model differ is simplified as long as they still differ: terms
become zero, significands lose bits, exponents come closer to 0. Many simpler ones are tried a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from bitmma.clfp.box import Box, Codes, Dots
from bitmma.formats import Format, Kind

__all__ = ["shrink"]

_ROUNDS = 60


def shrink(box: Box, x: Dots, differ: Callable[[Dots], Codes]) -> Dots:
    """The simplest dot product found, from ``x`` (one), for which ``differ`` still holds."""
    for _ in range(_ROUNDS):
        simpler = _simpler(box, x)
        if simpler is None:
            return x
        good = np.flatnonzero(differ(simpler))
        if not len(good):
            return x
        x = simpler[good[:1]]
    return x


def _simpler(box: Box, x: Dots) -> Dots | None:
    """All that are a little simpler than ``x``, the simplest first."""
    found: list[Dots] = []

    def variant(operand: str, lanes: list[int], code: int) -> None:
        codes = np.array(getattr(x, operand))
        codes.reshape(-1)[lanes] = code
        if (codes != getattr(x, operand)).any():
            found.append(replace(x, **{operand: codes}))

    k = box.k
    size = k // 2
    while size:  # halves, quarters, … of the products
        for start in range(0, k, size):
            part = list(range(start, min(start + size, k)))
            both = replace(x, a=np.array(x.a), b=np.array(x.b))
            both.a[0, part] = both.b[0, part] = 0
            if (both.a != x.a).any() or (both.b != x.b).any():
                found.append(both)
        size //= 2
    variant("c", [0], 0)
    for operand, fmt in zip("abc", box.formats[:3], strict=True):
        for lane, code in enumerate(getattr(x, operand).reshape(-1).tolist()):
            for simpler in _simpler_codes(fmt, code):
                variant(operand, [lane], simpler)
    return Dots.join(found) if found else None


def _simpler_codes(fmt: Format, code: int) -> Iterator[int]:
    """Codes with less to explain: one, no sign, fewer mantissa bits, an exponent nearer to 0."""
    kind, sign, significand, exponent = fmt.decode(code)
    if kind is not Kind.FINITE:
        return
    signed = fmt.sign_bit if sign else 0
    one = fmt.encode(1, 0)
    if code & ~fmt.sign_bit == one:
        return
    yield one | signed
    low = significand & -significand
    if significand != low and significand - low:
        q = exponent - fmt.mantissa_bits
        yield fmt.encode(significand - low, q) | signed
    if significand >> fmt.mantissa_bits and exponent:
        nearer = (exponent - 1 if exponent > 0 else exponent + 1) - fmt.mantissa_bits
        yield fmt.encode(significand, nearer) | signed
