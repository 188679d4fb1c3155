"""A cut and a conversion after it, as one function of a sum: where its steps are.

Of sums x > 0 that are multiples of a power of two, the fine grid, let a cut make multiples of 2^g,
and a conversion multiples of 2^G: together of 2^max(g, G), for a rounding leaves alone what is on
its grid. Both are monotone, so the result is at least the multiple y exactly where x is at least
some number t(y) of the fine grid: the least z on the cut's grid that is converted to y or more, and
then the least x that is cut to z or more. One rounding to a grid 2^q reaches y, for x >= y (RZ),
x > y - 2^q (RA), x >= y - 2^q / 2 (RNA), and the same or, where y / 2^q is odd, x > y - 2^q / 2
(RNE); RD and RU are RZ and RA of one sign and RA and RZ of the other. So y - t(y) depends on
nothing but grids, modes, the sign and whether y is even, and two pairs for which these numbers are
the same are the same function; if one of them is not, they differ in the result for that t(y).

Where the sum's own exponent says where it is cut and converted, that holds between two powers of
two, which are on both grids: rounding does not lead beyond them.

If results that are tiny are flushed, the function is that of the pair from some number on, and zero
below. By the rules "after" and "before" (see `models.FDPA`) this is a step of its own: the least x
that is cut, and then rounded below 2^e_min as above it, or not at all, to 2^e_min or more.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Pair", "Sums", "keeps_steps", "keeps_zeros", "plainest_pair"]

#: In which order pairs are chosen among those that are alike.
_CONVERSIONS = ("RNE", "RZ", "RNA", "RD", "RU", "RA")
_CUTS = ("RZ", "RNE", "RNA", "RD", "RU", "RA")
#: Bits of a cut are looked for so near to what there is.
_NEAR = 2
_BITS_MOST = 65
#: A grid so many bits below all others tells x >= t from x > t for any t that there is.
_FINER = 2
#: Where more exponents than this are to be looked at, nothing is claimed.
_EXPONENTS_MOST = 400


class Pair(NamedTuple):
    """A cut to ``bits`` (None: there is none) by ``cut``, and the mode of the conversion."""

    bits: int | None
    cut: str
    mode: str


class Sums(NamedTuple):
    """What is known of the sums, and of what is the same for all pairs.

    Attributes:
        bits: a sum is a multiple of 2^(its exponent - bits). grid: and of 2^grid.
        kept, e_min: the output's mantissa bits and lowest exponent.
        e_sum: the cut is counted from this exponent where the sum's own is lower, or None.
        signs: of which sums it is seen that they were cut to 0, and not converted to it.
        low: lower exponents of sums need not be looked at: their results are zeros.
        tiny: which of them are flushed; "stored" also where none is.
        under: if all below 2^e_min are: a grid of sums of 2^e_min (1 - 2^-kept) and more.
    """

    bits: int
    grid: int
    kept: int
    e_min: int
    e_sum: int | None
    signs: tuple[int, ...]
    low: int
    tiny: str = "stored"
    under: int | None = None


@functools.lru_cache(1 << 14)
def plainest_pair(pair: Pair, sums: Sums, modes: tuple[str, ...] = _CONVERSIONS) -> Pair:
    """The plainest of the pairs near this one, with one of these modes, that are the same."""
    finest = min(sums.bits, max((pair.bits or 0) + _NEAR, sums.kept) + _FINER)
    limits = [x for x in (sums.e_min, sums.e_sum, sums.grid + finest) if x is not None]
    # From the last on all is counted from the sum's own exponent, and the grid is no limit.
    exponents = range(max(limits) + 1, max(sums.grid, sums.low) - 1, -1)
    if len(exponents) > _EXPONENTS_MOST:
        return pair
    for other in _candidates(pair, modes):
        if other == pair:
            break
        last = max(x.bits or 0 for x in (pair, other))
        alike = (_steps(pair, sums, e, last) == _steps(other, sums, e, last) for e in exponents)
        if all(alike) and _to_zero(pair, sums) == _to_zero(other, sums):
            return other
    return pair


def keeps_steps(first: int, cut: str, top: int, pair: Pair, sums: Sums) -> bool:
    """Whether the pair's function is the same of x and of x cut to multiples of 2^first.

    With that cut a result is at least y where x is at least the least number that is cut to t(y) or
    more. If that is t(y) itself, for all y, nothing is changed; x is any number below 2^top. Where
    the cut is RZ or RA, of this sign, t(y) is then on its grid or just beyond it, and so it is on
    every finer one.
    """
    lowest = max(min(sums.e_min - sums.kept, first) - _FINER, sums.low)
    if not 0 < top - lowest < _EXPONENTS_MOST:
        return False
    for e in range(lowest, top):
        G, g = max(e, sums.e_min) - sums.kept, _cut_grid(pair, sums, e)
        fine = min(G - 1, first, G if g is None else g) - _FINER
        G, g, q = G - fine, 0 if g is None else max(0, g - fine), first - fine
        if q > max(g, G):
            return False
        steps = [
            (_least(y, g, pair.cut, G, pair.mode, sign), sign)
            for y, sign in itertools.product((4 << max(g, G), 5 << max(g, G)), (1, -1))
        ]
        steps += zip(_not_tiny(pair, sums, e, fine), (1, -1), strict=False)
        if any(_reached(-(-t >> q) << q, q, cut, sign) != t for t, sign in steps):
            return False
    return True


def keeps_zeros(first: int, cut: str, pair: Pair, sums: Sums) -> bool:
    """Whether the pair's cut makes 0 of x < 0 where it does of x cut to multiples of 2^first.

    That is 0 at once by all cuts but RA and RD.
    """
    if pair.bits is None or sums.e_sum is None:  # the pair's cut makes none
        return cut in ("RA", "RD")
    g = sums.e_sum - pair.bits
    fine = min(first, g) - _FINER
    g, q = g - fine, first - fine
    least = _reached(1 << g, g, pair.cut, -1)
    return _reached(-(-least >> q) << q, q, cut, -1) == least


def _candidates(pair: Pair, modes: tuple[str, ...]) -> Iterator[Pair]:
    allowed = [x for x in _CONVERSIONS if x in modes or x == pair.mode]
    yield from (Pair(None, "RZ", mode) for mode in allowed)
    if pair.bits is None:
        return
    for bits in range(max(1, pair.bits - _NEAR), min(pair.bits + _NEAR, _BITS_MOST) + 1):
        yield from (Pair(bits, cut, mode) for mode in allowed for cut in _CUTS)


def _steps(pair: Pair, sums: Sums, e: int, last: int) -> tuple[int | str, ...]:
    """max(g, G) and y - t(y) of both signs, odd and even, for sums of this exponent.

    And from where on they are not tiny, if that is below 2^e_min. If all else is flushed there,
    that is all; it is no further below than the outputs' last place, where the cut is not coarser.
    Numbers are in units of the fine grid.
    """
    G = max(e, sums.e_min) - sums.kept
    g = _cut_grid(pair, sums, e)
    coarse = min(G - 1, e - last)
    if sums.e_sum is not None:
        coarse = min(coarse, max(e, sums.e_sum) - last)
    fine = max(e - sums.bits, sums.grid, coarse - _FINER)
    if sums.under is not None and e == sums.e_min - 1 and (g is None or g <= G):
        fine = min(max(fine, sums.under), e)
        return ("ends", *((1 << e + 1 - fine) - t for t in _not_tiny(pair, sums, e, fine)))
    ends = _not_tiny(pair, sums, e, fine)
    G, g = G - fine, 0 if g is None else max(0, g - fine)
    step = max(g, G)
    if step <= 0:
        return (0,)  # nothing is rounded
    y = [i << step for i in (4, 5)]
    starts = (i - _least(i, g, pair.cut, G, pair.mode, s) for i in y for s in (1, -1))
    return (step, *starts, *ends)


def _not_tiny(pair: Pair, sums: Sums, e: int, fine: int) -> list[int]:
    """From where on sums just below 2^e_min are not tiny, of both signs, in units of 2^fine."""
    if e != sums.e_min - 1 or (sums.tiny == "stored" and sums.under is None):
        return []
    g, G = _cut_grid(pair, sums, e), e - sums.kept - fine + (sums.tiny == "stored")
    g = 0 if g is None else max(0, g - fine)
    y = -(-(1 << e + 1 - fine) >> g) << g
    if sums.tiny == "before":
        return [_reached(y, g, pair.cut, sign) for sign in (1, -1)]
    return [_least(y, g, pair.cut, G, pair.mode, sign) for sign in (1, -1)]


def _to_zero(pair: Pair, sums: Sums) -> list[int]:
    """From where on a sum is not cut to 0, or is converted to no zero, where that is seen."""
    if pair.bits is None or sums.e_sum is None:
        return [1 for _ in sums.signs]
    g, G = (max(0, x - sums.grid) for x in (sums.e_sum - pair.bits, sums.e_min - sums.kept))
    return [
        min(
            _reached(1 << g, g, pair.cut, sign),
            _least(1 << max(g, G), g, pair.cut, G, pair.mode, sign),
        )
        for sign in sums.signs
    ]


def _cut_grid(pair: Pair, sums: Sums, e: int) -> int | None:
    if pair.bits is None:
        return None
    return (e if sums.e_sum is None else max(e, sums.e_sum)) - pair.bits


def _least(y: int, g: int, cut: str, G: int, mode: str, sign: int) -> int:
    """t(y), in units of the fine grid."""
    if g < G:
        y = -(-_reached(y, G, mode, sign) >> g) << g
    return _reached(y, g, cut, sign)


def _reached(y: int, q: int, mode: str, sign: int) -> int:
    """The least x that is rounded to y, a multiple of 2^q, or more; magnitudes of that sign."""
    if q <= 0:
        return y
    mode = {("RD", 1): "RZ", ("RU", -1): "RZ", ("RD", -1): "RA", ("RU", 1): "RA"}.get(
        (mode, sign), mode
    )
    if mode == "RZ":
        return y
    if mode == "RA":
        return y - (1 << q) + 1
    return y - (1 << q >> 1) + (mode == "RNE" and (y >> q) % 2)
