"""A cut and a conversion as one function: against both, one after the other, of every number."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from bitmma.clfp.two_roundings import Pair, Sums, keeps_steps, plainest_pair
from bitmma.formats import ROUNDINGS, round_shift

#: The lowest bit of all sums here, and how many bits above it they reach.
GRID, BITS = -8, 10


def magnitudes(sums: Sums) -> list[int]:
    """All sums, in units of 2^grid, with no more bits than they have."""
    found = range(1, 1 << BITS)
    if sums.under is not None:
        last, end = 1 << sums.under - GRID, 1 << sums.e_min - GRID
        found = [n for n in found if n % last == 0 or not end - (end >> sums.kept) <= n < end]
    return [n for n in found if n.bit_length() - (n & -n).bit_length() <= sums.bits]


def rounded(n: int, pair: Pair, sums: Sums) -> tuple[int, bool]:
    """The result in units of 2^grid, and whether the cut made it 0."""
    if pair.bits is not None:
        e = abs(n).bit_length() - 1 + sums.grid
        n = shifted(n, (e if sums.e_sum is None else max(e, sums.e_sum)) - pair.bits, pair.cut)
    if n == 0:
        return 0, True
    e = abs(n).bit_length() - 1 + sums.grid
    whole = shifted(n, e - sums.kept, pair.mode) if sums.tiny == "after" else n
    if sums.tiny != "stored" and abs(whole) < 1 << sums.e_min - sums.grid:
        return 0, False
    e = max(e, sums.e_min)
    result = shifted(n, e - sums.kept, pair.mode)
    if sums.under is not None and abs(result) < 1 << sums.e_min - GRID:
        return 0, False
    return result, False


def shifted(n: int, q: int, mode: str) -> int:
    """n in units of 2^GRID, rounded to a multiple of 2^q."""
    shift = q - GRID
    return n if shift <= 0 else round_shift(n, shift, mode) << shift


def table(pair: Pair, sums: Sums) -> tuple[object, ...]:
    """All results from the lowest exponent on that counts; of zeros, where the cut's are seen."""
    low = 1 << max(0, sums.low - sums.grid)
    found: list[object] = []
    for n, sign in itertools.product(magnitudes(sums), (1, -1)):
        result, cut = rounded(sign * n, pair, sums)
        if n >= low:
            found.append(result)
        if result == 0 and sign in sums.signs:
            found.append(cut)
    return tuple(found)


def random_sums(rng: np.random.Generator) -> Sums:
    e_min = int(rng.integers(-6, 0))
    e_sum = [None, None, e_min, e_min - 1, e_min + 1][int(rng.integers(5))]
    signs: tuple[int, ...] = [(), (-1,), (-1, 1)][int(rng.integers(3))]
    bits = int(rng.choice([3, 4, 5, 6, 7, 30]))
    tiny = ["stored", "after", "before"][int(rng.integers(3))]
    kept = int(rng.integers(1, 5))
    if rng.random() < 0.5:
        return Sums(bits, GRID, kept, e_min, e_sum, signs, GRID, tiny)
    under = max(GRID, e_min - kept - int(rng.integers(-1, 5)))
    return Sums(bits, GRID, kept, e_min, e_sum, signs, e_min - 1, tiny, under)


@pytest.mark.parametrize("seed", range(12))
def test_pairs_are_one_exactly_where_all_results_are(seed: int) -> None:
    """All cuts to some bits, and none, with all modes: classes by tables are classes by rule."""
    sums = random_sums(np.random.default_rng(seed))
    if every := seed % 2 == 0:  # sums reach far enough above their grid to show all differences
        sums = Sums(3 + seed // 2, GRID, sums.kept, sums.e_min, None, (), GRID)
    for bits in (2, 4) if seed % 4 < 2 else (1, 5):
        pairs = [Pair(bits, *x) for x in itertools.product(ROUNDINGS, repeat=2)]
        pairs += [Pair(None, "RZ", mode) for mode in ROUNDINGS]
        by_rule = {pair: plainest_pair(pair, sums) for pair in pairs}
        tables = {pair: table(pair, sums) for pair in {*pairs, *by_rule.values()}}
        for pair, plain in by_rule.items():
            assert tables[pair] == tables[plain], (pair, plain, sums)
            assert plainest_pair(plain, sums) == plain
        for x, y in itertools.combinations(pairs if every else (), 2):
            if by_rule[x] != by_rule[y]:
                assert tables[x] != tables[y], (x, y, sums)


def test_results_that_become_zeros_are_left_out() -> None:
    """Below ``low`` two pairs may differ."""
    sums = Sums(30, GRID, 3, -2, None, (), GRID)
    flushed = sums._replace(low=-3)
    pairs = [Pair(4, cut, mode) for cut, mode in itertools.product(ROUNDINGS, repeat=2)]
    for pair in pairs:
        plain = plainest_pair(pair, flushed)
        assert table(pair, flushed) == table(plain, flushed)


def test_modes_may_be_kept() -> None:
    sums = Sums(30, GRID, 3, -2, None, (), GRID)
    for mode in ROUNDINGS:
        assert plainest_pair(Pair(4, "RNE", mode), sums, (mode,)).mode == mode


def test_a_cut_before_them_that_changes_nothing() -> None:
    met: Counter[bool] = Counter()
    for seed in range(300):
        rng = np.random.default_rng([seed, 1])
        sums = random_sums(rng)._replace(bits=30, under=None, low=GRID)
        cut, cut_sum, mode = rng.choice(list(ROUNDINGS), 3).tolist()
        pair = Pair(None if rng.random() < 0.5 else int(rng.integers(2, 7)), cut_sum, mode)
        first, top = sums.e_min - sums.kept + int(rng.integers(-4, 2)), sums.e_min + 1
        kept = keeps_steps(first, cut, top, pair, sums)
        met[kept] += 1
        # A finer one, too, if it is no rounding to nearest.
        firsts = [first] if cut in ("RNE", "RNA") else range(first, first - 3, -1)
        for n, sign in itertools.product(range(1, 1 << top - GRID), (1, -1)):
            want = rounded(sign * n, pair, sums)[0]
            for q in firsts if kept else ():
                got = rounded(m, pair, sums)[0] if (m := shifted(sign * n, q, cut)) else 0
                assert got == want, (seed, first, cut, pair, sums, sign * n)
    assert min(met.values()) > 20, met
