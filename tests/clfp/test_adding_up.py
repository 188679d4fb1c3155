"""Products chosen for their sum: added up in Python's integers."""

from __future__ import annotations

import numpy as np
import pytest

from bitmma.clfp.adding_up import PLACES, adding_up


@pytest.mark.parametrize(
    ("M_a", "M_b", "share"),
    [(7, 7, 0.3), (10, 10, 0.6), (23, 23, 0.6), (3, 2, 0.05), (1, 1, 0.02), (10, 3, 0.2)],
)
def test_products_add_up_to_what_was_asked(M_a: int, M_b: int, share: float) -> None:
    """Just below powers of two, with a bit far below, by one to six products."""
    rng = np.random.default_rng(M_a)
    counts = rng.integers(1, 7, 1500)
    power = PLACES + np.log2(counts).astype(int) + rng.integers(0, 2, 1500)
    below = rng.integers(0, 3, 1500) << (power - 25)
    sums = (1 << power) - below + (rng.integers(-1, 2, 1500) << PLACES - rng.integers(10, 34, 1500))
    e, a, b, found = adding_up(sums, counts, M_a, M_b, rng)
    assert found.mean() > share
    assert {int(x) for x in counts[found]} == {1, 2, 3, 4, 5, 6}
    assert e.max() <= 0 and a.max() < 1 << M_a and b.max() < 1 << M_b
    for i in np.flatnonzero(found):
        products = (
            ((1 << M_a) + int(a[i, j])) * ((1 << M_b) + int(b[i, j])) << 200 + int(e[i, j])
            for j in range(counts[i])
        )
        assert sum(products) == int(sums[i]) << 200 + M_a + M_b - PLACES
