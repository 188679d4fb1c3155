"""Step 3: the features, one small probe each.

A probe feeds a few chosen dot products, reads the answers, and says what they mean. Most have a
large U and -U in two lanes, so that what is left is what became of a small third term. What a
reading means is put into ``facts``, where the search for a model starts; it need not be right in
every case, for whatever model comes of it has to reproduce every answer.

Sources: Xie et al., arXiv 2511.10909v2, section 3.2; Khattak and Mikaitis, arXiv 2512.07004,
section 3. Products renormalised are told by 1.5 · 1.5: products below 2 show nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from bitmma import formats
from bitmma.clfp.box import Box, Codes, Dots
from bitmma.clfp.numbers import Range, blank, code, put
from bitmma.clfp.report import Feature
from bitmma.clfp.tree import Node, Tree, fold
from bitmma.formats import ROUNDINGS, Kind, round_shift

__all__ = [
    "ALIGNMENT",
    "NO_NUMBERS",
    "PARTS",
    "PROBES",
    "TWO",
    "Bench",
    "Probe",
    "Reading",
    "modes_of",
    "not_fed",
    "number",
]

#: A dot product by its terms: lane (k is c) and value.
Terms = Mapping[int, Fraction]

TWO = Fraction(2)
#: Parts of a unit that tell all roundings apart, ties in both directions.
PARTS = [Fraction(n, 4) * s for n in (1, 2, 3, 5, 6, 7, 10) for s in (1, -1)]


@dataclass
class Bench:
    """Where probes are run: the box, a place in its tree, and what is known so far.

    Attributes:
        big, minus, small: lanes of one node, for U, -U and what is measured.
        facts: what readings meant, by name; see the probes.
        asked, answers: all dot products so far and their codes: evidence for any model.
    """

    box: Box
    tree: Tree | None
    facts: dict[str, Any] = field(default_factory=dict)
    asked: list[Dots] = field(default_factory=list)
    answers: list[Codes] = field(default_factory=list)
    evidence: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.range = Range(self.box)
        self.k = self.box.k
        self.lanes = _site(self.tree, self.k)
        fd = self.box.formats[3]
        self.e = min(self.range.high - 2, self.range.c_high - 2, fd.max_exponent - 3, 100)

    def ask(self, x: Dots) -> Codes:
        d = self.box.dot(x)
        self.asked.append(x)
        self.answers.append(d)
        return d

    def sums(self, rows: Sequence[Terms]) -> list[float | None]:
        """What the box makes of each row; None where a term is no product of these formats."""
        x = blank(self.box, len(rows))
        held = [
            all([put(self.box, x, i, lane, value) for lane, value in row.items()])
            for i, row in enumerate(rows)
        ]
        found: list[float | None] = [None] * len(rows)
        if any(held):
            where = np.flatnonzero(held)
            d = formats.decode(self.ask(x[where]), self.box.formats[3])
            for i, value in zip(where.tolist(), d.tolist(), strict=True):
                found[i] = value
                self.evidence.append((_shown(rows[i], self.k), repr(value)))
        return found


def _shown(row: Terms, k: int) -> str:
    return ", ".join(
        f"{'c' if lane == k else f'p{lane}'} = {number(x)}" for lane, x in sorted(row.items())
    )


def number(x: Fraction) -> str:
    if x == 0:
        return "0"
    odd, q = abs(x.numerator), 1 - x.denominator.bit_length()
    zeros = (odd & -odd).bit_length() - 1
    odd, q = odd >> zeros, q + zeros
    sign = "-" if x < 0 else ""
    return f"{sign}{f'{odd}·' if odd > 1 else ''}2^{q}"


def _site(tree: Tree | None, k: int) -> tuple[int, int, int]:
    """Lanes for U, -U and the probe: products of the first node that has three leaves below it.

    Where that is made of pairs, U and the probe are one of them: they meet first.
    """
    best: tuple[int, ...] = (*range(k), k)
    pair: tuple[int, ...] = ()

    def join(node: Node, parts: list[tuple[int, ...]]) -> tuple[int, ...]:
        nonlocal best, pair
        below = tuple(sorted(i for part in parts for i in part))
        if 3 <= len(below) < len(best):
            best = below
        if len(below) == 2 and not pair and k not in below:
            pair = below
        return below

    if tree is not None:
        fold(tree, lambda leaf: (leaf,), join)
    products = [i for i in best if i != k]
    chosen = [*products, *[k] * (k in best), k, 0, 0][:3]
    if len(products) < 3:  # two products and c: the probe is a product
        chosen = [products[0], k, products[-1]]
    elif pair and set(pair) < set(best):
        other = next(i for i in products if i not in pair)
        chosen = [pair[0], other, pair[1]]
    return chosen[0], chosen[1], chosen[2]


Reading = tuple[str, str]


@dataclass(frozen=True)
class Probe:
    """One feature. ``run`` returns a reading and its meaning."""

    name: str
    fed: str
    run: Callable[[Bench], Reading]

    def __call__(self, bench: Bench) -> Feature:
        bench.evidence.clear()
        with bench.box.during(f"feature: {self.name}"):
            reading, meaning = self.run(bench)
        return Feature(self.name, self.fed, reading, meaning, tuple(bench.evidence[:24]))


PROBES: list[Probe] = []

#: What is asked of terms that are aligned with each other, and of results beside them: in a sum of
#: two at a time there are none, and what these say of it is said better by `sum_features`.
ALIGNMENT = (
    "bits kept of products", "bits kept of c", "rounding of products", "rounding of c",
    "products renormalised", "even and odd lanes", "exponent of a zero c",
    "rounding of the output", "one rounding or two",
)  # fmt: skip


def _probe(name: str, fed: str) -> Callable[[Callable[[Bench], Reading]], Any]:
    def register(run: Callable[[Bench], Reading]) -> Callable[[Bench], Reading]:
        PROBES.append(Probe(name, fed, run))
        return run

    return register


def not_fed(why: str) -> Reading:
    """The reading where there is nothing to feed, or nothing to read."""
    return "not fed", why


NO_NUMBERS = "these formats hold no such numbers"
_ONE_PRODUCT = "U and -U need two products, and there is one"


def _no_cut(bench: Bench, fact: str) -> Reading:
    """Not fed, for there is no last unit kept."""
    if fact in bench.facts:
        return not_fed("nothing that could be fed was cut")
    return not_fed("how many bits are kept was not found")


# --- alignment ------------------------------------------------------------------------------------


def _halvings(bench: Bench, big: int, minus: int, small: int) -> tuple[int | None, bool]:
    """How many bits below U the smallest 2^-h that comes out whole lies; whether none was lost."""
    U = TWO**bench.e
    steps = list(range(1, 81))
    found = bench.sums([{big: U, minus: -U, small: U / 2**h} for h in steps])
    kept, lost = 0, False
    for h, d in zip(steps, found, strict=True):
        if d is None:
            continue
        if d == float(U / 2**h):
            kept = h
        else:
            lost = True
            break
    return (kept if kept or lost else None), not lost


def _bits(bench: Bench, fact: str, lanes: tuple[int, int, int], what: str) -> Reading:
    kept, exact = _halvings(bench, *lanes)
    if kept is None:
        return not_fed(NO_NUMBERS)
    if not kept:
        return "none", f"{what} half as large as U does not show beside U and -U"
    bench.facts[fact] = None if exact else kept
    bench.facts[fact + "_least"] = kept
    if exact:
        return f"{kept} or more", f"nothing of {what} is cut within {kept} binades"
    return str(kept), f"{what} is cut to multiples of U · 2^-{kept}"


@_probe("bits kept of products", "U and -U in two lanes, U/2, U/4, … in a third")
def _bits_of_products(bench: Bench) -> Reading:
    return _bits(bench, "F", bench.lanes, "a product")


@_probe("bits kept of c", "U and -U in two lanes, U/2, U/4, … as c")
def _bits_of_c(bench: Bench) -> Reading:
    big, minus, small = bench.lanes
    products = sorted({big, minus, small} - {bench.k})
    if len(products) < 2:
        return not_fed(_ONE_PRODUCT)
    return _bits(bench, "F_c", (products[0], products[1], bench.k), "c")


def modes_of(units: Iterable[tuple[Fraction, float | None]], unit: Fraction) -> list[str] | None:
    """The roundings that turn every x · unit into what came out; None if nothing was fed."""
    fed = [(x, Fraction(d) / unit) for x, d in units if d is not None and abs(d) < float("inf")]
    if not fed:
        return None
    return [
        mode for mode in ROUNDINGS
        if all(round_shift(int(x * 64), 6, mode) == d for x, d in fed)
    ]  # fmt: skip


def _rounding(bench: Bench, fact: str, F: str, lanes: tuple[int, int, int]) -> Reading:
    kept = bench.facts.get(F)
    if kept is None:
        return _no_cut(bench, F)
    U = TWO**bench.e
    unit = U / 2**kept
    big, minus, small = lanes
    found = bench.sums([{big: U, minus: -U, small: x * unit} for x in PARTS])
    modes = modes_of(zip(PARTS, found, strict=True), unit)
    if modes is None:
        return not_fed(NO_NUMBERS)
    bench.facts[fact] = modes
    if not modes:
        return "none of the six", "more than one rounding, or none that is known"
    return " or ".join(modes), "; ".join(ROUNDINGS[mode] for mode in modes)


@_probe("rounding of products", "U, -U and ±1/4, ±1/2, … ±5/2 units of what is kept of products")
def _rounding_of_products(bench: Bench) -> Reading:
    return _rounding(bench, "cut", "F", bench.lanes)


@_probe("rounding of c", "U, -U and ±1/4, ±1/2, … ±5/2 units of what is kept of c")
def _rounding_of_c(bench: Bench) -> Reading:
    products = sorted({*bench.lanes} - {bench.k})
    if len(products) < 2:
        return not_fed(_ONE_PRODUCT)
    return _rounding(bench, "cut_c", "F_c", (products[0], products[1], bench.k))


@_probe("products renormalised", "1.5·1.5·U and its negative; a third lane just inside and outside")
def _renormalised(bench: Bench) -> Reading:
    F = bench.facts.get("F")
    big, minus, small = bench.lanes
    if F is None:
        return _no_cut(bench, "F")
    if bench.k in (big, minus):
        return not_fed("U and -U and a third lane need three products")
    e = min(bench.e, bench.range.high) - 1
    last = TWO ** (e - F)
    fa, fb = bench.box.formats[:2]
    pair = [code(fmt, Fraction(3, 2) * TWO**x) for fmt, x in ((fa, e // 2), (fb, e - e // 2))]
    x = blank(bench.box, 2)
    if None in pair or not all(put(bench.box, x, i, small, last * (2 - i)) for i in range(2)):
        return not_fed(NO_NUMBERS)
    x.a[:, [big, minus]], x.b[:, [big, minus]] = pair
    x.a[:, minus] |= fa.sign_bit
    d = formats.decode(bench.ask(x), bench.box.formats[3])
    bench.evidence += [
        (f"1.5·1.5·2^{e}, its negative, {number(last * (2 - i))}", repr(float(d[i])))
        for i in range(2)
    ]
    if d[0] != float(last * 2):
        return "unclear", "what lies just inside is not kept as it is beside U and -U"
    bench.facts["renormalise"] = bool(d[1] != float(last))
    if d[1] == float(last):
        return "no", "1.5·1.5 counts with exponent 0"
    return "yes", "1.5·1.5 counts with exponent 1"


@_probe("even and odd lanes", "U and -U in lanes 0 and 2, less than a last unit in each other lane")
def _parity(bench: Bench) -> Reading:
    F, k = bench.facts.get("F"), bench.k
    if F is None:
        return _no_cut(bench, "F")
    if k < 4:
        return not_fed(f"it needs four products, and there are {k}")
    U = TWO**bench.e
    lanes = [i for i in range(k) if i not in (0, 2)]
    found = bench.sums([{0: U, 2: -U, i: -U / 2 ** (F + 1)} for i in lanes])
    by_value: dict[float, list[str]] = {}
    for lane, d in zip(lanes, found, strict=True):
        if d is not None:
            by_value.setdefault(d, []).append(str(lane))
    if len(by_value) < 2:
        if not by_value:
            return not_fed(NO_NUMBERS)
        return "alike", "a small term counts the same in every lane"
    groups = "; ".join(f"{', '.join(where)}: {d!r}" for d, where in by_value.items())
    return "differ", f"a small term depends on its lane ({groups})"


@_probe("bits kept of groups", "U and -U in lanes 0 and 2, U/2, U/4, … in lane 1")
def _bits_of_groups(bench: Bench) -> Reading:
    if bench.k < 4:
        return not_fed(f"it needs four products, and there are {bench.k}")
    return _bits(bench, "F_groups", (0, 2, 1), "a product beside lanes 0 and 2")


@_probe("rounding of groups", "U and -U in lanes 0 and 2, ±1/4, ±1/2, … ±5/2 units in lane 1")
def _rounding_of_groups(bench: Bench) -> Reading:
    return _rounding(bench, "cut_groups", "F_groups", (0, 2, 1))


# --- scales ---------------------------------------------------------------------------------------


@_probe("scales", "scales 2, 1.5, 0 and NaN for one block, all products 1")
def _scales(bench: Bench) -> Reading:
    box, fs = bench.box, bench.box.scale_format
    if fs is None or box.spec.block is None:
        return not_fed("the box has no scales")
    names: list[tuple[str, int | None]] = [
        ("2", code(fs, 2)),
        ("1.5", code(fs, Fraction(3, 2))),
        ("0", code(fs, 0)),
        ("NaN", fs.nan_code),
    ]
    fed = [(name, found) for name, found in names if found is not None]
    x = blank(box, len(fed) + 1)
    x.a[:], x.b[:] = box.formats[0].encode(1, 0), box.formats[1].encode(1, 0)
    assert x.scale_a is not None
    for row, (_, found) in enumerate(fed):
        x.scale_a[row, 0] = found
    d = formats.decode(bench.ask(x), box.formats[3])
    bench.evidence += [(f"scale {n}", repr(float(v))) for (n, _), v in zip(fed, d, strict=False)]
    plain, block = float(d[-1]), box.spec.block
    by_name = {name: float(v) for (name, _), v in zip(fed, d, strict=False)}
    if by_name["2"] != plain + block:
        return f"{by_name['2']!r} of {plain!r}", "a scale does not simply multiply its block"
    if "1.5" not in by_name:
        return "multiply", f"a scale multiplies {block} products by its power of two"
    whole = by_name["1.5"] == plain + block / 2
    what = "with its significand" if whole else "with its exponent only"
    return "multiply", f"a scale multiplies {block} products {what}"


# --- the output -----------------------------------------------------------------------------------


@_probe("bits of the output", "U and U/2, U/4, … in two lanes")
def _output_bits(bench: Bench) -> Reading:
    U = TWO ** min(bench.e, 20)
    big, _, small = bench.lanes
    steps = range(1, 60)
    found = bench.sums([{big: U, small: U / 2**h} for h in steps])
    kept = 0
    for h, d in zip(steps, found, strict=True):
        if d is None:
            continue
        if d != float(U + U / 2**h):
            break
        kept = h
    if not kept:
        return "none", "no sum U + U/2^h that could be fed came out exactly"
    bench.facts["mantissa_bits"] = kept
    return str(kept), f"a result has {kept} bits after its first"


@_probe("rounding of the output", "U and ±1/4, ±1/2, … ±5/2 units of its last place")
def _output_rounding(bench: Bench) -> Reading:
    kept = bench.facts.get("mantissa_bits")
    if kept is None:
        return not_fed("how many bits the output has was not found")
    big, _, small = bench.lanes
    e = min(bench.e, 20)
    unit = TWO ** (e - kept)
    F = bench.facts.get("F")
    grain = Fraction(1, 4) if F is None else TWO ** (kept - F)
    parts = [x for x in PARTS if (x / grain).denominator == 1]
    if grain >= 1:
        return "hidden", "terms are cut before the result is rounded, and no finer"
    fed, rows = [], []
    for sign in (1, -1):
        for x in parts:  # 1.5 U: the neighbours below are as far apart as those above
            fed.append(sign * Fraction(3, 2) * 2**kept + x)
            rows.append({big: sign * Fraction(3, 2) * TWO**e, small: x * unit})
    modes = modes_of(zip(fed, bench.sums(rows), strict=True), unit)
    if modes is None:
        return not_fed(NO_NUMBERS)
    bench.facts["rho"] = modes
    if not modes:
        return "none of the six", "it is rounded more than once"
    return " or ".join(modes), "; ".join(ROUNDINGS[mode] for mode in modes)


@_probe("one rounding or two", "U, half a unit of its last place, and less and less beside it")
def _sticky(bench: Bench) -> Reading:
    kept, k = bench.facts.get("mantissa_bits"), bench.k
    if kept is None:
        return not_fed("how many bits the output has was not found")
    if k < 3:
        return not_fed(f"it needs three products, and there are {k}")
    U = TWO ** min(bench.e, 20)
    big, minus, small = bench.lanes
    half = U / 2 ** (kept + 1)
    steps = range(1, 40)
    found = bench.sums([{big: U, minus: half, small: half / 2**h} for h in steps])
    tips = [h for h, d in zip(steps, found, strict=True) if d is not None and d > float(U)]
    bench.facts["sticky"] = max(tips, default=0)
    if not tips:
        return "never", "nothing below half a unit tips the rounding"
    return f"{max(tips)} binades", f"the last that tips it is U · 2^-{kept + 1 + max(tips)}"


@_probe("overflow", "the largest numbers, added and multiplied, of both signs")
def _overflow(bench: Bench) -> Reading:
    box, k = bench.box, bench.k
    fa, fb, fc, fd = box.formats
    x = blank(box, 4)
    for row, sign in enumerate((0, 1, 0, 1)):
        x.c[row] = fc.max_code | (fc.sign_bit if sign else 0)
        if row < 2:
            x.a[row, :], x.b[row, :] = fa.max_code | (fa.sign_bit if sign else 0), fb.max_code
        else:
            for lane in (0, min(1, k - 1)):
                put(box, x, row, lane, (-1) ** sign * TWO ** min(bench.range.high, fd.max_exponent))
    d = bench.ask(x)
    kinds = [fd.decode(int(code)).kind for code in d]
    bench.evidence += [(f"row {i}", f"{int(code):#x}") for i, code in enumerate(d)]
    bench.facts["overflow"] = kinds[0].name
    if Kind.INF in kinds:
        return "Inf", "beyond the largest number comes Inf"
    if Kind.NAN in kinds:
        return "NaN", "beyond the largest number comes NaN"
    if 2**bench.range.high * k >= 2 ** (fd.max_exponent + 1):
        return "saturates", "the largest number is returned instead of Inf"
    return "not reached", "the formats' largest numbers stay within the output's range"


# --- small and special ----------------------------------------------------------------------------


def _tiny(bench: Bench, operand: str) -> tuple[Dots, Codes]:
    """Half the smallest normal number in one operand, as large as it can be made visible."""
    box = bench.box
    fa, fb, fc, _ = box.formats
    x = blank(box, 2)
    lane = bench.lanes[0] if bench.lanes[0] != bench.k else 0
    subnormal = {"a": fa, "b": fb, "c": fc}[operand]
    half = 1 << max(subnormal.mantissa_bits - 1, 0) << subnormal.dropped_bits
    for row in range(2):
        code = half | (subnormal.sign_bit if row else 0)
        match operand:
            case "a":
                x.a[row, lane], x.b[row, lane] = code, fb.max_code
            case "b":
                x.a[row, lane], x.b[row, lane] = fa.max_code, code
            case "c":
                x.c[row] = code
    return x, bench.ask(x)


@_probe("subnormals in", "half the smallest normal number as a, as b (times the largest), as c")
def _subnormals_in(bench: Bench) -> Reading:
    fd = bench.box.formats[3]
    flushed = []
    for name, fmt in zip("abc", bench.box.formats[:3], strict=True):
        if fmt.mantissa_bits == 0:
            continue
        _, d = _tiny(bench, name)
        bench.evidence.append((f"subnormal {name}", ", ".join(f"{int(x):#x}" for x in d)))
        if all(int(x) & (fd.sign_bit - 1) == 0 for x in d):
            flushed.append(name)
    bench.facts["flush_in"] = flushed
    if not flushed:
        return "kept", "subnormal operands count"
    return f"flushed in {', '.join(flushed)}", "subnormal operands count as zero, or nothing shows"


@_probe("subnormals out", "two products whose sum is below the output's smallest normal number")
def _subnormals_out(bench: Bench) -> Reading:
    fd, k = bench.box.formats[3], bench.k
    low = TWO ** (fd.min_exponent - 1)
    if bench.range.lowest > fd.min_exponent - 1:
        big = TWO**fd.min_exponent
        rows: list[Terms] = [{k: s * big * Fraction(3, 2), 0: -s * big} for s in (1, -1)]
        rows += [{k: s * low} for s in (1, -1)]
    else:
        rows = [{0: s * low} for s in (1, -1)]
    found = bench.sums(rows)
    fed = [d for d in found if d is not None]
    if not fed:
        return not_fed(NO_NUMBERS)
    bench.facts["flush_out"] = all(d == 0 for d in fed)
    if all(d == 0 for d in fed):
        return "flushed", "subnormal results become zero"
    return "kept", "results go down to the smallest subnormal"


@_probe("tiny results", "the smallest normal number less a half and a quarter of its unit")
def _tiny_results(bench: Bench) -> Reading:
    """Where results are flushed; which of these are says whether that is asked after rounding."""
    if not bench.facts.get("flush_out"):
        return not_fed("no result is flushed")
    fd, (big, _, small) = bench.box.formats[3], bench.lanes
    kept, top = bench.facts.get("mantissa_bits") or fd.mantissa_bits, TWO**fd.min_exponent
    rows = [{big: top, small: -top * TWO ** -(kept + i)} for i in (1, 2)]
    half, quarter = bench.sums(rows)
    if half is None or quarter is None:
        return not_fed(NO_NUMBERS)
    tiny = "stored" if half != 0 else "after" if quarter != 0 else "before"
    bench.facts["tiny"] = tiny
    return tiny, {
        "stored": "what rounds to the smallest normal number is kept",
        "after": "what would not, with exponents without end, is flushed",
        "before": "all below the smallest normal number is flushed, or was cut to it",
    }[tiny]


@_probe(
    "exponent of a zero c", "c = 0; a last bit of the output and ever smaller products beside it"
)
def _e_zero(bench: Bench) -> Reading:
    fd = bench.box.formats[3]
    F = bench.facts.get("F")
    big, _, small = bench.lanes
    if F is None:
        return _no_cut(bench, "F")
    if bench.k in (big, small):
        return not_fed("it needs two products of one node")
    last = fd.min_exponent - fd.mantissa_bits
    seen = []
    for top, sign in ((TWO**last, -1), (TWO ** (last - 1), 1), (TWO ** (last - 1), -1)):
        steps = range(last - 1, last - 70, -1)
        plain = bench.sums([{big: top}])[0]
        found = bench.sums([{big: top, small: sign * TWO**q} for q in steps])
        seen += [q for q, d in zip(steps, found, strict=True) if d is not None and d != plain]
    if not seen:
        return "not seen", "no small product that could be fed changes the sum"
    e_zero = min(seen) + F
    bench.facts["e_zero"] = e_zero
    return f"2^{min(seen)}", f"the last that counts; with {F} bits kept, zero has exponent {e_zero}"


@_probe("signed zeros", "all products and c -0; products that cancel; a negative sum too small")
def _zeros(bench: Bench) -> Reading:
    box = bench.box
    fa, _, fc, fd = box.formats
    x = blank(box, 3)
    if fa.specials != "fnuz":
        x.a[0] = fa.sign_bit
    x.b[0] = box.formats[1].encode(1, 0)
    x.c[0] = fc.sign_bit
    x.c[1] = fc.sign_bit
    put(box, x, 2, 0, Fraction(1))
    put(box, x, 2, box.k, Fraction(-1))
    d = bench.ask(x)
    names = ("all -0", "c = -0, products +0", "1 - 1")
    bench.evidence += [(n, f"{int(v):#x}") for n, v in zip(names, d, strict=True)]
    signs = [int(v) == fd.sign_bit for v in d]
    bench.facts["negative_zero"] = signs[0]
    if signs[0]:
        return "-0", "only zeros of sign -0 give -0" if not signs[1] else "c = -0 gives -0"
    return "+0", "-0 is never returned for zeros"


@_probe("NaN and Inf", "NaN, Inf · 0, Inf - Inf, Inf and a number")
def _specials(bench: Bench) -> Reading:
    box = bench.box
    fa, fb, fc, fd = box.formats
    rows: list[tuple[str, int, int, int]] = []
    one = fb.encode(1, 0)
    if fa.has_nan:
        rows.append(("NaN in a", fa.nan_code, one, 0))
    rows.append(("NaN in c", 0, 0, fc.nan_code))
    if fa.has_inf:
        rows += [("Inf · 0", fa.inf_code, 0, 0), ("Inf · 1", fa.inf_code, one, 0)]
        rows.append(("Inf - Inf", fa.inf_code, one, fc.inf_code | fc.sign_bit))
    rows.append(("c = Inf", 0, 0, fc.inf_code))
    x = blank(box, len(rows))
    for i, (_, a, b, c) in enumerate(rows):
        x.a[i, 0], x.b[i, 0], x.c[i] = a, b, c
    d = bench.ask(x)
    bench.evidence += [(name, f"{int(v):#x}") for (name, *_), v in zip(rows, d, strict=True)]
    nans = {int(v) for v in d if fd.decode(int(v)).kind is Kind.NAN}
    bench.facts["nan"] = nans
    shown = ", ".join(f"{v:#x}" for v in sorted(nans)) or "none"
    return f"NaN: {shown}", "as IEEE 754" if nans else "no NaN was returned"


@_probe("sign symmetry", "200 dot products and the same with a and c negated")
def _symmetry(bench: Bench) -> Reading:
    from bitmma.clfp.inputs import aimed, neutral

    box = bench.box
    fa, _, fc, fd = box.formats
    x = aimed(box, neutral(box), 200, 5, ("narrow", "cancel"))
    y = replace(x, a=x.a ^ fa.code_dtype.type(fa.sign_bit), c=x.c ^ fc.code_dtype.type(fc.sign_bit))
    if fa.specials == "fnuz":
        y = replace(y, a=np.where(x.a == 0, x.a, y.a))
    d, e = bench.ask(x), bench.ask(y)
    magnitude = fd.code_dtype.type(fd.sign_bit - 1)
    differ = ((d ^ e) != fd.sign_bit) & ((d & magnitude) != 0) & ((d & magnitude) <= fd.inf_code)
    bench.facts["asymmetric"] = bool(differ.any())
    for i in np.flatnonzero(differ)[:3]:
        bench.evidence.append((f"dot product {i}", f"{int(d[i]):#x} and {int(e[i]):#x}"))
    if differ.any():
        return f"{int(differ.sum())} of {x.count} differ", "some rounding is RD or RU"
    return "symmetric", "no rounding depends on the sign"
