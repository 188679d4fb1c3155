"""Step 3 for sums of two terms at a time: what a numerical analyst asks of them.

How many bits each addition keeps and how it rounds, whether products are rounded before or fused
with the addition, where c comes in, how deep the sum is, what becomes of subnormal sums. The terms
of an addition are x and y, and z joins later: x = U, z = -U leave what the addition made of y.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

from bitmma import formats
from bitmma.clfp.features import (
    NO_NUMBERS,
    PARTS,
    TWO,
    Bench,
    Probe,
    Reading,
    modes_of,
    not_fed,
    number,
)
from bitmma.clfp.numbers import blank, code, put, spread
from bitmma.clfp.tree import Node, Tree, fold, leaves, runs
from bitmma.clfp.tree import text as tree_text
from bitmma.formats import ROUNDINGS

__all__ = ["SUM_PROBES"]

#: Formats by the bits of their significands.
_NAMES = {8: "bf16", 11: "f16", 24: "f32", 53: "f64"}

#: The exponent of a U that every format of sums holds.
_SMALL = 12

#: Additions that are asked, and products.
_NODES, _PRODUCTS = 32, 64

SUM_PROBES: list[Probe] = []


def _probe(name: str, fed: str) -> Callable[[Callable[[Bench], Reading]], Callable[..., Reading]]:
    def register(run: Callable[[Bench], Reading]) -> Callable[[Bench], Reading]:
        SUM_PROBES.append(Probe(name, fed, run))
        return run

    return register


class _Addition(NamedTuple):
    """Leaves of its two terms, products if there are any, and one that joins later, or None."""

    x: int
    y: int
    z: int | None


def _additions(tree: Tree, k: int) -> list[_Addition]:
    """All of them, the last one at the end."""
    found: list[_Addition] = []

    def join(node: Node, parts: list[tuple[int, int | None]]) -> tuple[int, int | None]:
        (x, first), (y, second) = parts
        for at, other in ((first, y), (second, x)):
            if at is not None:
                found[at] = found[at]._replace(z=other)
        found.append(_Addition(x, y, None))
        return (y if x == k else x), len(found) - 1

    fold(tree, lambda leaf: (leaf, None), join)
    return found


def _inner(bench: Bench) -> list[_Addition]:
    """Some additions whose sum is added to something: it shows beside -U, whatever is returned."""
    assert bench.tree is not None
    every = [x for x in _additions(bench.tree, bench.k) if x.z is not None]
    return spread(every, _NODES)


def _beside(
    bench: Bench, where: _Addition, parts: list[Fraction], sign: int = 1
) -> list[float | None]:
    """What is left of y = each part, added to x = ±1.5 U, when the negative of x has joined."""
    assert where.z is not None
    x = sign * Fraction(3, 2) * TWO ** _exponent(bench)
    return bench.sums([{where.x: x, where.y: y, where.z: -x} for y in parts])


def _exponent(bench: Bench) -> int:
    """Of U."""
    return int(bench.facts.get("sum_e", bench.e))


def _kept(bench: Bench, where: _Addition) -> int | None:
    """Bits after the first that the addition keeps; None where all that could be fed came out."""
    U, kept = TWO ** _exponent(bench), 0
    for h, d in enumerate(_beside(bench, where, [U / 2**h for h in range(1, 81)]), 1):
        if d is None or d != float(U / 2**h):
            return kept if d is not None else None
        kept = h
    return None


@_probe(
    "precision of additions",
    "1.5·U in one term of an addition, U/2, U/4, … in the other, -1.5·U later",
)
def _precision(bench: Bench) -> Reading:
    inner = _inner(bench)
    if not inner:
        bench.facts["sum_bits"] = bench.box.formats[3].mantissa_bits
        return not_fed("the only addition's sum is the output, whose bits are below")
    kept = _kept(bench, inner[0])
    if not kept and kept is not None:  # U may be too large for the format of the sums
        bench.facts["sum_e"] = min(bench.e, _SMALL)
        kept = _kept(bench, inner[0])
    if kept is None:
        return "all bits", "nothing that could be fed was lost in an addition"
    bench.facts["sum_bits"] = kept
    U = TWO ** _exponent(bench)
    others = [
        x
        for x in inner[1:]
        if not _same_precision(_beside(bench, x, [U / 2**kept, U / 2 ** (kept + 2)]), U, kept)
    ]
    name = _NAMES.get(kept + 1)
    reading = f"{kept + 1} bits" + (f", {name}" if name else "")
    if others:
        more = sorted({str((_kept(bench, x) or 79) + 1) for x in others[:4]})
        return (
            f"{reading}; others {', '.join(more)}",
            f"{len(others)} of {len(inner)} additions keep another number of bits",
        )
    return reading, f"each of the {len(inner)} additions asked keeps {kept} bits after its first"


def _same_precision(found: list[float | None], U: Fraction, kept: int) -> bool:
    held, lost = found
    return held in (None, float(U / 2**kept)) and lost != float(U / 2 ** (kept + 2))


@_probe("rounding of additions", "1.5·U, ±1/4, ±1/2, … ±5/2 units of its last place, -1.5·U later")
def _rounding(bench: Bench) -> Reading:
    kept = bench.facts.get("sum_bits")
    if kept is None:
        return not_fed("how many bits an addition keeps was not found")
    unit = TWO ** _exponent(bench) / 2**kept
    inner = _inner(bench)
    asked = inner[:: max(1, len(inner) // 4)][:4]
    found: set[str] | None = None
    for where in asked:
        for sign in (1, -1):
            whole = sign * Fraction(3, 2) * 2**kept  # ties go to even by the whole sum
            units = [
                (whole + x, None if d is None else float(whole * unit + Fraction(d)))
                for x, d in zip(
                    PARTS, _beside(bench, where, [x * unit for x in PARTS], sign), strict=True
                )
                if d is None or abs(d) < float("inf")
            ]
            here = modes_of(units, unit)
            if here is not None:
                found = set(here) if found is None else found & set(here)
    if found is None:
        return not_fed(NO_NUMBERS)
    listed = [mode for mode in ROUNDINGS if mode in found]
    if not listed:
        return "none of the six", "additions round in more than one way, or in none that is known"
    return " or ".join(
        listed
    ), f"{'; '.join(ROUNDINGS[x] for x in listed)}, in all {len(asked)} additions asked"


@_probe(
    "products", "(1 + 2^-s)² and -(1 + 2^(1-s)) in the two terms of an addition: is 2^-2s left?"
)
def _products(bench: Bench) -> Reading:
    fa, fb = bench.box.formats[:2]
    kept, bits = bench.facts.get("sum_bits"), fa.mantissa_bits + fb.mantissa_bits + 2
    if kept is None:
        return not_fed("how many bits an addition keeps was not found")
    fits = bits <= kept + 1
    s = min(kept // 2 + 1, fa.mantissa_bits, fb.mantissa_bits)
    if not s or (not fits and 2 * s <= kept):
        return not_fed(NO_NUMBERS)
    assert bench.tree is not None
    first: dict[int, int] = {}  # a product, and a leaf of what it is first added to
    for where in _additions(bench.tree, bench.k):
        first.setdefault(where.x, where.y)
        first.setdefault(where.y, where.x)
    lanes = spread(sorted(set(first) - {bench.k}), _PRODUCTS)
    x = blank(bench.box, len(lanes))
    other = -(1 + TWO ** (1 - s))
    for row, lane in enumerate(lanes):
        x.a[row, lane], x.b[row, lane] = (code(f, 1 + TWO**-s) or 0 for f in (fa, fb))
        if not put(bench.box, x, row, first[lane], other):
            return not_fed(NO_NUMBERS)
    d = formats.decode(bench.ask(x), bench.box.formats[3])
    shown = f"(1 + 2^-{s})², {number(other)}"
    bench.evidence += [
        (f"p{lane}: {shown}", repr(float(y))) for lane, y in zip(lanes, d, strict=True)
    ]
    whole = [lane for lane, y in zip(lanes, d, strict=True) if y == float(TWO ** (-2 * s))]
    rounded = [lane for lane in lanes if lane not in whole]
    if not rounded and fits:
        return "exact", f"a product has {bits} bits or fewer, a sum keeps {kept + 1}, none is lost"
    if not rounded:
        return "fused (FMA)", "no product is rounded before it is added"
    if not whole:
        return "rounded first", "every product is rounded, and then added"
    how = "exact" if fits else "fused (FMA)"
    few = ", ".join(runs(rounded, bench.k)[:6]) + (", …" if len(runs(rounded, bench.k)) > 6 else "")
    return (
        f"{how}, rounded first in {few}",
        "a product that starts an accumulator is rounded, others are not",
    )


@_probe("place of c", "the counts of the tree")
def _place_of_c(bench: Bench) -> Reading:
    tree, k = bench.tree, bench.k
    assert tree is not None
    short = tree_text(tree, k)
    bench.evidence.append(
        ("U, -U, v", short if len(short) < 120 else f"{short[:60]} … {short[-50:]}")
    )
    if k not in leaves(tree):
        return "ignored", "c changes nothing"
    beside: tuple[int, ...] = ()

    def join(node: Node, parts: list[tuple[int, ...]]) -> tuple[int, ...]:
        nonlocal beside
        for lane, other in (parts, parts[::-1]):
            if lane == (k,):
                beside = other
        return tuple(sorted(parts[0] + parts[1]))

    fold(tree, lambda leaf: (leaf,), join)
    if len(beside) == k:
        return "last", "c is added to the finished sum of all products"
    with_what = ", ".join(runs(list(beside), k)[:6])
    if len(beside) == 1:
        return "first", f"the sum starts with c and {with_what}"
    return "in between", f"c is added to the sum of {with_what}"


@_probe("depth", "the counts of the tree")
def _depth(bench: Bench) -> Reading:
    assert bench.tree is not None
    deep = fold(bench.tree, lambda leaf: 0, lambda node, parts: 1 + max(parts))
    terms = len(leaves(bench.tree))
    bench.evidence.append(("U, -U, v", f"{terms} terms, {terms - 1} additions"))
    how = "one after the other" if deep == terms - 1 else "in branches"
    return (
        f"{deep} addition{'s' * (deep > 1)}",
        f"the longest way of a term to the result; {terms} terms are added {how}",
    )


@_probe("subnormal sums", "1.5 and -1 of the smallest normal number in one addition, 1 of it later")
def _subnormal_sums(bench: Bench) -> Reading:
    kept = bench.facts.get("sum_bits")
    name = _NAMES.get((kept or 0) + 1)
    inner = _inner(bench)
    if name is None or not inner:
        return not_fed("the format of an addition was not found")
    least = TWO ** formats.get(name).min_exponent
    rows = [
        {x: s * least * Fraction(3, 2), y: -s * least, z: s * least}
        for x, y, z in inner[:4] if z is not None
        for s in (1, -1)
    ]  # fmt: skip
    fed = [d for d in bench.sums(rows) if d is not None]
    if not fed:
        return not_fed(f"no product or no output is as small as subnormal numbers of {name}")
    if all(abs(d) == float(least * Fraction(3, 2)) for d in fed):
        return "kept", "gradual underflow: a subnormal sum goes on as it is"
    if all(abs(d) == float(least) for d in fed):
        return "flushed", "a subnormal sum becomes zero before it is added to the next term"
    return "unclear", "subnormal sums are neither kept nor flushed alike everywhere"


@_probe("output", "1.5·U and parts of a unit of the output's last place in the last addition")
def _output(bench: Bench) -> Reading:
    kept, fd = bench.facts.get("sum_bits"), bench.box.formats[3]
    if kept is None:
        return not_fed("how many bits an addition keeps was not found")
    assert isinstance(bench.tree, Node)
    last = _additions(bench.tree, bench.k)[-1]
    if fd.mantissa_bits >= kept:
        bench.sums([{last.x: TWO ** _exponent(bench), last.y: TWO ** (_exponent(bench) - kept)}])
        return "the last sum", f"{fd} holds {kept + 1} bits: it is not rounded again"
    unit = TWO ** (min(_exponent(bench), 20) - fd.mantissa_bits)
    fed, rows = [], []
    for sign in (1, -1):
        whole = sign * Fraction(3, 2) * 2**fd.mantissa_bits
        for x in PARTS:
            fed.append(whole + x)
            rows.append({last.x: whole * unit, last.y: x * unit})
    modes = modes_of(zip(fed, bench.sums(rows), strict=True), unit)
    if modes is None:
        return not_fed(NO_NUMBERS)
    if not modes:
        return "none of the six", f"how the last sum becomes {fd} is not known"
    how = [ROUNDINGS[mode] for mode in modes]
    several, one = sorted((leaves(child) for child in bench.tree.children), key=len, reverse=True)
    if len(several) > 1 and modes[0] in ("RNE", "RNA"):
        U = TWO ** min(_exponent(bench), 20)
        tie, hair = {several[0]: U, several[1]: unit / 2}, U * TWO ** (-kept - 2)
        up, down = bench.sums([{**tie, one[0]: hair}, {**tie, one[0]: -hair}])
        how.append("twice: a hair beside a tie is lost before" if up == down else "once")
    return f"{' or '.join(modes)} to {fd}", "; ".join(how)
