"""Products of few bits whose exact sum is a given number.

Where a sum is rounded, and by which rule, often shows in a sum that is one certain number, and in
no other near it: half-way between two outputs, or one bit of what is cut beside that. A product of
two numbers of M + 1 bits cannot be any number, but about a third of those of its length: so all of
them but one are chosen as one likes, the last but one near what is left, and the last is that, if
there is such a product.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["PLACES", "Products", "adding_up"]

Ints = npt.NDArray[np.int64]

#: Sums are in units of 2^-PLACES, and below 2^(PLACES + 6): float64 holds them.
PLACES = 44
#: Significands of more bits are not tabled; shorter ones are among them.
_TABLED = 10


class Products(NamedTuple):
    """Products of numbers in [1, 2): one of each size, in units of the last place, ascending."""

    size: Ints
    a: Ints
    b: Ints


@functools.cache
def _products(M_a: int, M_b: int) -> Products:
    """``a`` and ``b`` are mantissas of so many bits."""
    a, b = (np.arange(1 << M) for M in (M_a, M_b))
    every = np.multiply.outer(a + (1 << M_a), b + (1 << M_b))
    size, first = np.unique(every.ravel(), return_index=True)
    return Products(size, a[first >> M_b], b[first & (1 << M_b) - 1])


def adding_up(
    sums: Ints, counts: Ints, M_a: int, M_b: int, rng: np.random.Generator
) -> tuple[Ints, Ints, Ints, npt.NDArray[np.bool_]]:
    """Of each sum (N,): so many products, exponents of at most 0 and mantissas of a and of b, (N,
    T); and where they are found.
    """
    bits_a, bits_b = min(M_a, _TABLED), min(M_b, _TABLED)
    table, M = _products(bits_a, bits_b), bits_a + bits_b
    n, most = len(sums), int(counts.max(initial=1))
    e, which = np.zeros((2, n, most), np.int64)
    rest = sums.copy()
    for i in range(most - 1):
        left = counts - i
        share = np.where(left > 2, rng.uniform(0.4, 1.3, n) / np.maximum(left, 1), 1.0)
        want = np.maximum(rest * share, 1.0)
        e_i = np.clip(np.frexp(want)[1] - 1 - PLACES, M - PLACES, 0)
        at = np.searchsorted(table.size, np.ldexp(want, M - PLACES - e_i), "right") - 1
        at = np.maximum(at - np.where(left == 2, rng.integers(0, 4, n), 0), 0)
        taken = table.size[at] << (PLACES - M + e_i)
        rest -= np.where(left > 1, taken, 0)
        e[:, i], which[:, i] = e_i, at
    # The rest is a product if it is one of [1, 2) or of [2, 4), and has no lower bits.
    found = np.zeros(n, bool)
    last = np.arange(n), counts - 1
    for down in (0, 1):
        e_i = np.minimum(np.frexp(np.maximum(rest, 1).astype(float))[1] - 1 - PLACES - down, 0)
        size = np.ldexp(rest.astype(float), M - PLACES - e_i)
        at = np.minimum(np.searchsorted(table.size, size), len(table.size) - 1)
        this = ~found & (table.size[at] == size)
        e[last] = np.where(this, e_i, e[last])
        which[last] = np.where(this, at, which[last])
        found |= this
    return e, table.a[which] << M_a - bits_a, table.b[which] << M_b - bits_b, found
