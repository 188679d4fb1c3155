"""Parameters of fused sums that cannot matter: every rule against the engine, and its edges."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any, TypeVar

import numpy as np
import pytest

from bitmma.clfp import BlackBox
from bitmma.clfp.box import Box, Dots
from bitmma.clfp.equivalence import canonical, kind
from bitmma.clfp.evidence import predict
from bitmma.clfp.fused import RULES, plainest
from bitmma.clfp.inputs import aimed, same
from bitmma.clfp.reach import Reach
from bitmma.clfp.separating import AIMS, separating
from bitmma.formats import ROUNDINGS
from bitmma.models import (
    FDPA,
    FLUSHES,
    GSTFDPA,
    OVERFLOWS,
    RNE_FP32,
    RZ_FP32,
    STFDPA,
    TINY_RULES,
    ZERO_RULES,
    Conversion,
    FTZMulAdd,
    Model,
)

_M = TypeVar("_M", FDPA, GSTFDPA)

FORMATS = [
    ("f16", "f32"), ("bf16", "f32"), ("f16", "f16"), ("e5m2", "f32"), ("e4m3", "f32"),
    ("e2m1", "f32"), ("f32", "f32"),
]  # fmt: skip


def box_of(a: str, c: str, k: int, **scaled: Any) -> Box:
    """A box that is not asked."""
    return Box(BlackBox(lambda *x: x[2], 8, 8, k, a, c=c, **scaled))


def differ(box: Box, x: Model, y: Model, rows: int, seed: int) -> int:
    """On how many inputs made for it, and random ones, two models differ."""
    dots = Dots.join([
        separating(box, [x, y], rows, seed), aimed(box, x, rows // 4, seed),
        aimed(box, y, rows // 4, seed + 1),
    ])  # fmt: skip
    got = [predict(box, m, dots) for m in (x, y)]
    return int((~same(box.formats[3], *got, nan="quiet" in (x.nan, y.nan))).sum())


def random_model(rng: np.random.Generator, c: str, L: int) -> FDPA:
    """Any parameters, each of them often at an end of its range."""

    def one(*choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    def bits() -> int | None:
        low, high = one((1, 30), (8, 41), (1, 66))
        return one(None, int(rng.integers(low, high)))

    modes, kept = tuple(ROUNDINGS), {"f32": 23, "f16": 10}[c]
    late = one(False, True)
    rounded = Conversion(one(*modes), one("f32", "f16")) if late and one(0, 0, 0, 1) else None
    return FDPA(
        L, bits(), one("RZ", *modes), "late" if late else "early", bits(), one("RZ", *modes),
        one(None, int(rng.integers(-200, 20)), {"f32": -133, "f16": -21}[c]),
        one(None, None, int(rng.integers(0, 65))), one(False, True), one(1, 1, 1, 2, 4), bits(),
        one(*modes), bits() if late else None, one("RZ", *modes), rounded, one(None, bits()),
        one("RZ", *modes), one(None, None, -126, int(rng.integers(-160, 10))),
        one(None, None, None, 128, 16),
        Conversion(one(*modes), c, one(None, None, int(rng.integers(2, kept + 1))),
                   one("inf", *OVERFLOWS)),
        one(*FLUSHES), one(*FLUSHES), one(*FLUSHES), one("chain", "chain", "pairwise"),
        one(*ZERO_RULES), nan="quiet", tiny=one(*TINY_RULES),
    )  # fmt: skip


def random_stages(rng: np.random.Generator, c: str, L: int) -> FDPA:
    """A late c, and cuts so near each other that one may do what another does."""

    def one(*choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    modes, F = tuple(ROUNDINGS), int(rng.integers(8, 30))
    down = one("RD", "RU")
    F2, F_sum = F + int(rng.integers(0, 34)), one(None, F + int(rng.integers(-2, 8)))
    return FDPA(
        L, F, one("RZ", *modes), "late", F, one("RD", *modes),
        one(None, None, int(rng.integers(-150, -5))), F2=F2, cut2=one(down, *modes), F_sum=F_sum,
        cut_sum=one(down, *modes), e_sum=one(None, {"f32": -126, "f16": -14}[c]),
        groups=one(1, 1, 2), F_groups=F, cut_groups=one("RZ", *modes),
        rho=Conversion(one(down, *modes), c, None, one("inf", *OVERFLOWS)),
        flush_out=one("no", *FLUSHES), zero=one(*ZERO_RULES), nan="quiet", tiny=one(*TINY_RULES),
    )  # fmt: skip


#: How often each rule is tried. `plainest` applies the first that finds anything, over and over.
_TIMES = 4


def test_what_a_rule_calls_equal_is_equal() -> None:
    """Random models, each rule's change tested alone, the rarer rules as often as the others."""
    met: Counter[str] = Counter()
    for seed in range(420):
        rng = np.random.default_rng([seed, 1])
        a, c = FORMATS[seed % len(FORMATS)]
        L = int(rng.choice([1, 1, 2, 4, 8]))
        box = box_of(a, c, min(16, L * int(rng.choice([1, 2, 4]))))
        model = (random_model if seed < 320 else random_stages)(rng, c, L)
        for _ in range(30):
            found = next(
                ((rule.__name__, x[0]) for rule in RULES if (x := rule(model, Reach(box, model)))),
                None,
            )
            if found is None:
                break
            name, changes = found
            changed = dataclasses.replace(model, **changes)
            met[name] += 1
            if met[name] <= _TIMES:
                assert not differ(box, model, changed, 2500, seed), (name, model, changes, box.spec)
            model = changed
        assert plainest(model, box)[0] == plainest(plainest(model, box)[0], box)[0]
    rare = {  # see the edges
        "_hair_of_a_product", "_hair_of_c", "_pairs_of_products", "_whole_c",
        "_hairs_of_two_products", "_cut_once_more", "_zero_is_a_conversion", "_cut_without_end",
    }  # fmt: skip
    assert set(met) >= {rule.__name__ for rule in RULES} - rare, met


# --- the edges ------------------------------------------------------------------------------------

EXACT = FDPA(16, None, F_c=None, e_zero=None, rho=RNE_FP32, nan="quiet")
PAIRS = dataclasses.replace(EXACT, L=4, order="pairwise")
CUT = FDPA(4, 20, F_c=20, e_zero=None, rho=RNE_FP32, nan="quiet")
FLUSHED = dataclasses.replace(CUT, L=2, flush_c="zero", flush_out="sign", zero="ieee")


def changed(model: _M, **changes: Any) -> _M:
    return dataclasses.replace(model, **changes)


RD16, RNE16 = Conversion("RD", "f16"), Conversion("RNE", "f16")

#: Formats of a and c, K, a model, a parameter, its value just inside of a rule and just outside.
EDGES: list[tuple[str, str, int, FDPA, str, Any, Any]] = [
    ("e4m3", "f32", 8, PAIRS, "F", 34, 33),
    ("e4m3", "f32", 8, changed(PAIRS, c="late"), "F2", 34, 33),
    ("f16", "f16", 16, changed(EXACT, rho=RD16), "F_c", 54, 53),
    ("f16", "f16", 16, changed(EXACT, rho=RD16), "drop_c", 44, 43),
    ("f16", "f32", 4, changed(CUT, F=10), "e_zero", -28, -27),
    ("bf16", "f32", 2, changed(CUT, L=1, F=28, cut="RA", flush_out="zero"), "e_zero", -113, -112),
    ("bf16", "f32", 8, changed(CUT, F=23, flush_out="zero", cut="RA"), "e_zero", -130, -127),
    ("e5m2", "f32", 2, changed(CUT, L=1, F=19, F_c=19, rho=Conversion("RU", "f32", 13)),
     "F_sum", 21, 20),
    ("e5m2", "f32", 4, changed(CUT, rho=RZ_FP32), "F_sum", 23, 22),
    ("e5m2", "f32", 4, changed(CUT, rho=Conversion("RNA", "f32", 12)), "F_sum", 13, 12),
    ("e5m2", "f32", 4, changed(CUT, F=10, F_c=15), "rho",
     Conversion("RZ", "f32", 18), Conversion("RZ", "f32", 17)),
    ("e5m2", "f32", 4, changed(CUT, rho=Conversion("RD", "f32")), "zero", "signed", "ieee"),
    ("e5m2", "f32", 4, changed(CUT, flush_c="zero"), "flush_out", "zero", None),
    ("e5m2", "f32", 8, changed(CUT, flush_out="zero", cut_c="RU"), "flush_out", "sign", "no"),
    ("f16", "f32", 4, CUT, "rho", Conversion("RNE", "f32", overflow="ieee"),
     Conversion("RU", "f32", overflow="saturate")),
    ("f16", "f32", 4, CUT, "product_overflow", 32, 31),
    ("f16", "f32", 4, changed(CUT, F_c=None, flush_c="zero"), "flush_c", "sign", "no"),
    ("f16", "f32", 2, changed(CUT, L=1, c="late", F=None, F2=20), "F", 20, 19),
    ("e5m2", "f32", 2,
     changed(CUT, L=1, F=None, F_c=None, cut="RA", rho=Conversion("RU", "f32")), "F", 31, 20),
    ("bf16", "f32", 4,
     changed(CUT, F=None, cut="RU", c="late", groups=2, F_groups=17, cut_groups="RU"),
     "F", 17, 16),
    ("bf16", "f32", 4, changed(CUT, L=2, F=None, cut="RD", c="late", F2=17, cut2="RD"),
     "F", 17, 16),
    ("f16", "f32", 4, changed(CUT, F_sum=20), "e_sum", -126, -125),
    ("bf16", "f32", 4, changed(CUT, F_sum=23, e_sum=-126), "zero", "signed", "ieee"),
    ("f16", "f32", 8, changed(CUT, L=2, F=27, F_c=27), "F_sum", 30, 29),
    ("f16", "f32", 4, changed(CUT, c="late", cut2="RD", rho=Conversion("RD", "f32")), "F2", 24, 23),
    ("f16", "f32", 4,
     changed(CUT, c="late", cut2="RU", F_sum=26, cut_sum="RU"), "F2", 27, 24),
    ("e4m3", "f32", 4, changed(CUT, c="late", F=12), "F2", 40, 30),
    ("e4m3", "f32", 4, changed(CUT, c="late", F=12, cut2="RA", rho=Conversion("RD", "f32")),
     "F2", 39, 30),
    ("e4m3", "f32", 4, changed(EXACT, L=4), "F", 64, 50),
    ("bf16", "f32", 1,
     changed(EXACT, L=1, cut_c="RA", rho=Conversion("RU", "f32"), flush_in="zero"), "F_c", 48, 40),
    ("bf16", "f32", 1,
     changed(EXACT, L=1, cut_c="RU", rho=Conversion("RU", "f32"), flush_in="zero"), "F_c", 24, 23),
    ("bf16", "f32", 4,
     changed(CUT, F=None, cut="RA", c="late", groups=2, F_groups=17, cut_groups="RU"), "F", 33, 24),
    ("f16", "f16", 2, changed(CUT, L=1, F=9, cut="RD", F_c=9, rho=RD16), "e_zero", -15, -13),
    ("bf16", "f32", 4,
     changed(CUT, c="late", F=11, F2=11, cut2="RNA", rho=Conversion("RNA", "f32")),
     "e_zero", -138, -137),
    ("bf16", "f32", 1, changed(CUT, L=1, F=31, e_zero=-133, order="pairwise"),
     "product_overflow", 128, 127),
    ("bf16", "f32", 1, changed(CUT, L=1, F=31, e_zero=-133, order="pairwise"), "F", 31, 22),
    ("f16", "f32", 4, changed(CUT, F=30, F_c=30, F_sum=26, cut_sum="RNE", rho=RZ_FP32),
     "cut_sum", "RNA", "RA"),
    ("f16", "f32", 4, changed(CUT, F=30, F_c=30, rho=Conversion("RA", "f32")), "rho",
     Conversion("RA", "f32", 23), Conversion("RA", "f32", 22)),
    ("f16", "f32", 4,
     changed(CUT, F=27, cut="RU", F_c=27, rho=Conversion("RD", "f32")), "rho",
     Conversion("RD", "f32", overflow="saturate"), None),
    ("f16", "f32", 4,
     changed(CUT, F=28, F_c=28, c="late", F2=31, cut2="RA", F_sum=30, rho=Conversion("RA", "f32")),
     "rho", Conversion("RA", "f32", overflow="saturate"), None),
    ("f16", "f32", 4,
     changed(CUT, F=28, F_c=28, c="late", F2=31, cut2="RA", F_sum=32, rho=Conversion("RA", "f32")),
     "rho", Conversion("RA", "f32"), Conversion("RA", "f32", overflow="saturate")),
    ("e5m2", "f32", 4,
     changed(CUT, c="late", F2=22, flush_c="zero", rho=Conversion("RZ", "f32", 13)),
     "zero", "signed", None),
    ("bf16", "f32", 4, changed(CUT, F=13, F_c=13, flush_out="zero"), "rho",
     Conversion("RZ", "f32", 18), Conversion("RZ", "f32", 15)),
    ("bf16", "f32", 4, changed(FLUSHED, F=21, F_c=21, tiny="before"), "tiny", "stored", None),
    ("f32", "f32", 4, changed(FLUSHED, L=1, F=22, cut="RU", F_c=22, tiny="before"), "tiny",
     "after", "stored"),
    ("f32", "f32", 4, changed(FLUSHED, F=23, F_c=23, tiny="before"), "tiny", "before", "after"),
    ("bf16", "f32", 4, changed(FLUSHED, F=30, rho=RZ_FP32, tiny="before"), "tiny", "stored", None),
    ("bf16", "f32", 4,
     changed(FLUSHED, F=30, F_c=30, F_sum=24, rho=Conversion("RA", "f32"), tiny="after"),
     "cut_sum", "RZ", "RA"),
    ("f32", "f32", 4,
     changed(FLUSHED, F=30, F_c=30, F_sum=23, cut_sum="RNE", rho=RZ_FP32), "tiny", "before", None),
    ("f32", "f32", 4,
     changed(FLUSHED, F=30, F_c=30, F_sum=23, cut_sum="RNE", tiny="after"), "tiny", "before",
     "stored"),
    ("bf16", "f32", 4, changed(CUT, F=13, F_c=13, flush_c="sign", flush_out="sign", zero="ieee"),
     "rho", Conversion("RNE", "f32", 17), Conversion("RNE", "f32", 16)),
    ("e5m2", "f32", 2, changed(CUT, L=1, rho=Conversion("RU", "f32", 13)), "zero", "signed", None),
    ("f16", "f32", 32, changed(CUT, L=32, F=9, F_c=9, F_sum=15, cut_sum="RNA"), "rho",
     Conversion("RNE", "f32", overflow="saturate"), Conversion("RNE", "f32", 14)),
    ("f16", "f32", 16,
     changed(CUT, L=8, F=25, c="late", F_c=25, cut_c="RNE", F_sum=34, cut_sum="RD"), "F2", 54, 53),
    ("fp8", "f32", 32,
     changed(CUT, L=16, F=19, c="late", F_c=19, cut_c="RU", groups=2, F_groups=19,
             cut_groups="RNE", F2=24, cut2="RNE", cut_sum="RD", rho=Conversion("RNA", "f32")),
     "F_sum", 25, 24),
    ("e5m2", "f32", 8, changed(EXACT, L=2, cut="RA", rho=Conversion("RNA", "f32")), "F", 65, 25),
    ("f16", "f16", 32, changed(EXACT, L=32, c="late", cut2="RU", rho=Conversion("RU", "f16", 8)),
     "F2", 54, 50),
    ("bf16", "f32", 4,
     changed(CUT, F=23, cut="RA", F_c=13, cut_c="RU", e_zero=-126,
             rho=Conversion("RNA", "f32", 22)),
     "zero", "signed", None),
    ("f16", "f32", 8,
     changed(CUT, L=2, F_c=None, flush_c="zero", order="pairwise",
             rho=Conversion("RNA", "f32", 22)),
     "zero", "signed", None),
    ("bf16", "f32", 16,
     changed(CUT, L=8, F=24, cut="RU", c="late", F_c=24, cut_c="RD", F2=33, F_sum=32,
             cut_sum="RNA", e_sum=-126, zero="signed"),
     "e_zero", -126, -122),
    ("f16", "f32", 16,
     changed(CUT, L=8, F=23, cut="RA", c="late", F_c=23, F2=32, cut2="RU", F_sum=31,
             cut_sum="RNE", rho=Conversion("RU", "f32")),
     "rho", Conversion("RU", "f32", overflow="saturate"), RZ_FP32),
]  # fmt: skip


@pytest.mark.parametrize("edge", EDGES, ids=lambda x: f"{x[0]}-{x[1]}-{x[4]}-{x[5]}")
def test_edges(edge: tuple[str, str, int, FDPA, str, Any, Any]) -> None:
    """Just inside of a rule two models are one, just outside an input tells them apart."""
    a, c, k, model, field, inside, outside = edge
    if c == "f16" and model.d != "f16":
        model = changed(model, rho=RNE16)
    box = box_of(a, c, k)
    one = changed(model, **{field: inside})
    assert kind(one, box) == kind(model, box)
    for seed in range(3):
        assert not differ(box, model, one, 4000, seed)
    if outside is None:
        return
    two = changed(model, **{field: outside})
    assert kind(two, box) != kind(model, box)
    found = (differ(box, model, two, 8000 << i, i) for i in range(6))
    assert any(found), (model, two)


RU32 = Conversion("RU", "f32")

#: Formats of a and c, K, a model, fields with which it is the same function, and another one.
ALIKE: dict[str, tuple[str, str, int, FDPA, dict[str, Any], dict[str, Any]]] = {
    "a cut to as few bits as a conversion leaves": (
        "f16", "f32", 32, changed(CUT, L=32, F=9, F_c=9, rho=Conversion("RNA", "f32", 15)),
        {"F_sum": 15, "cut_sum": "RNA", "rho": RNE_FP32},
        {"F_sum": 15, "cut_sum": "RNE", "rho": RNE_FP32}),
    "a conversion to the grid at which c's zero cuts": (
        "bf16", "f32", 2,
        changed(CUT, L=1, F=14, cut="RU", F_c=14, e_zero=-133, renormalise=True, flush_in="zero"),
        {"e_zero": None, "rho": Conversion("RU", "f32", 21)},
        {"e_zero": None, "rho": Conversion("RU", "f32", 22)}),
}  # fmt: skip


@pytest.mark.parametrize("case", ALIKE)
def test_what_is_alike(case: str) -> None:
    """Models that differ in several fields."""
    a, c, k, model, alike, not_alike = ALIKE[case]
    box = box_of(a, c, k)
    one, two = changed(model, **alike), changed(model, **not_alike)
    assert kind(one, box) == kind(model, box) != kind(two, box)
    assert not any(differ(box, model, one, 4000, i) for i in range(3))
    assert any(differ(box, model, two, 8000 << i, i) for i in range(6))


#: Formats of a and c, d being f32, K, a model and fields in which it is another, though nearly not.
NOT_ALIKE: dict[str, tuple[str, str, int, FDPA, dict[str, Any]]] = {
    "half the smallest output is converted to -0 by RNE": (
        "bf16", "f32", 4,
        changed(CUT, F=23, cut="RA", F_c=13, cut_c="RU", e_zero=-126,
                rho=Conversion("RNE", "f32", 22)),
        {"zero": "signed"}),
    "in a single step c is no output, and a negative one becomes -0": (
        "e5m2", "f32", 1, changed(CUT, L=1, rho=Conversion("RU", "f32", 13)), {"zero": "signed"}),
    "c of 16 bits is cut to 15, and beyond the largest number": (
        "f16", "f32", 4, changed(CUT, F=9, F_c=16, F_sum=15, cut_sum="RNA"),
        {"rho": Conversion("RNE", "f32", overflow="saturate")}),
    "a subnormal sum is cut below its first bit, or below 2^e_min": (
        "bf16", "f32", 4, changed(CUT, F_sum=15, cut_sum="RNA"),
        {"F_sum": None, "cut_sum": "RZ", "rho": Conversion("RNA", "f32", 15)}),
    "a negative sum beside no c is cut to 0 by F_sum, or only once it was cut before": (
        "bf16", "f32", 8,
        FDPA(4, None, "RZ", "late", 20, "RA", -126, renormalise=True, F2=47, F_sum=44,
             cut_sum="RNE", e_sum=-126, rho=Conversion("RNA", "f32"), flush_c="zero",
             zero="signed", nan="quiet"),
        {"e_zero": None}),
    "a unit of T is half of one of F_sum, and c is odd in these": (
        "f16", "f32", 16,
        changed(CUT, L=8, F=23, cut="RA", c="late", F_c=23, F2=24, cut2="RU", F_sum=23,
                cut_sum="RNE", rho=Conversion("RU", "f32")),
        {"rho": Conversion("RU", "f32", overflow="saturate")}),
    "all products of a step together are half a unit, and one of them is cut": (
        "e4m3", "f32", 32,
        changed(EXACT, rho=Conversion("RNA", "f32"), flush_in="zero"), {"F": 61}),
    "the longest sum has as many bits, and is a tie with its last bit": (
        "f16", "f16", 32, changed(EXACT, L=32, rho=Conversion("RU", "f16", 8), flush_in="zero"),
        {"F_sum": 61}),
    "products of all bits are the smallest output, together and uncut": (
        "bf16", "f32", 32, changed(EXACT, L=8, F=15, order="pairwise", rho=RZ_FP32),
        {"e_zero": -151}),
    "a negative sum is cut to 0 or converted to it": (
        "f16", "f16", 32,
        changed(EXACT, L=32, c="late", cut2="RU", rho=Conversion("RU", "f16", 8), zero="signed"),
        {"F2": 54}),
    "a tiny sum is cut to 0, and that is -0": (
        "bf16", "f32", 4,
        FDPA(4, 16, "RU", "late", 16, "RD", -126, F2=26, cut2="RD", F_sum=24, cut_sum="RD",
             e_sum=-126, rho=Conversion("RD", "f32"), zero="ieee", nan="quiet"),
        {"F_sum": None, "cut_sum": "RZ", "e_sum": None}),
    "a negative sum is cut to 0 beside a subnormal c": (
        "f32", "f32", 8,
        FDPA(8, 8, "RA", "late", 8, "RNE", None, F2=25, cut2="RU", rho=RU32, zero="signed",
             nan="quiet"),
        {"F2": None}),
    "c is cut to 0, and the sign of a hair is all": (
        "bf16", "f32", 8,
        FDPA(8, 16, "RNA", "late", 16, "RU", None, F2=47, cut2="RU", rho=RNE_FP32, zero="signed",
             nan="quiet"),
        {"F2": None}),
    "outputs beside a subnormal c of fewer bits are finer": (
        "f16", "f16", 1,
        FDPA(1, 34, "RA", "early", 20, "RZ", None, rho=RU32, nan="quiet"), {"F": None}),
    "a product of 2 or more lies between outputs, beside a hair of c": (
        "e5m2", "f32", 1,
        FDPA(1, 49, "RU", "early", 45, "RU", None, rho=Conversion("RNA", "f32", 4), zero="ieee",
             nan="quiet"),
        {"F_c": None}),
    "a negative product becomes -0 for being subnormal, or +0 for being cut": (
        "bf16", "f32", 1,
        FDPA(1, 48, "RZ", "early", 21, "RNE", -119, F_sum=21, rho=Conversion("RA", "f32"),
             flush_out="sign", zero="signed", nan="quiet"),
        {"e_zero": None}),
}  # fmt: skip


@pytest.mark.parametrize("case", NOT_ALIKE)
def test_what_nearly_is_alike(case: str) -> None:
    """What rules once took for the same, or would without one of their conditions."""
    a, c, k, model, fields = NOT_ALIKE[case]
    box, other = Box(BlackBox(lambda *x: x[2], 8, 8, k, a, c=c, d="f32")), changed(model, **fields)
    assert kind(model, box) != kind(other, box)
    assert any(differ(box, model, other, 8000 << min(i, 3), i) for i in range(12))


def test_the_least_e_zero_that_scaled_sums_show() -> None:
    box = box_of("e2m1", "f32", 32, scale="ue8m0", block=32)
    model = STFDPA(32, 25, RZ_FP32, -136)
    never = canonical(dataclasses.replace(model, e_zero=-300), box)[0]
    assert never == canonical(model, box)[0] == model
    for e_zero in (-137, -150, -300):
        assert not differ(box, model, dataclasses.replace(model, e_zero=e_zero), 5000, 1)
    higher = dataclasses.replace(model, e_zero=-133)
    assert any(differ(box, model, higher, 10_000, i) for i in range(12))


def test_the_least_e_zero_that_c_alone_shows() -> None:
    """A c in empty groups is cut toward zero, and then again."""
    box = box_of("e2m1", "f32", 64, scale="ue4m3", block=32)
    model = GSTFDPA(32, 8, 31, Conversion("RZ", "f32", 18), -139)
    for e_zero in (-118, -113):
        other = changed(model, e_zero=e_zero)
        assert kind(other, box) == kind(model, box)
        assert not differ(box, model, other, 5000, 1)
    higher = changed(model, e_zero=-112)
    assert kind(higher, box) != kind(model, box)
    assert any(differ(box, model, higher, 10_000, i) for i in range(12))


def test_two_products_do_not_show_how_four_are_added() -> None:
    two, four = FTZMulAdd(2), FTZMulAdd(4)
    assert kind(two, box_of("bf16", "f32", 2)) == kind(four, box_of("bf16", "f32", 2)) == two
    assert not differ(box_of("bf16", "f32", 2), two, four, 20_000, 1)
    assert kind(two, box_of("bf16", "f32", 4)) != kind(four, box_of("bf16", "f32", 4))
    assert differ(box_of("bf16", "f32", 4), two, four, 20_000, 1)


def test_every_aim_draws_rows_that_the_formats_hold() -> None:
    for a, c in FORMATS:
        box = box_of(a, c, 4)
        model = changed(CUT, rho=Conversion("RNE", c), e_zero=-20)
        x = separating(box, [model, changed(model, F=12)], 100 * len(AIMS), 1)
        assert 5 * len(AIMS) < x.count <= 100 * len(AIMS)
        assert len({aim.name for aim in AIMS}) == len(AIMS) and all(aim.fed for aim in AIMS)
        again = separating(box, [model, changed(model, F=12)], 100 * len(AIMS), 1)
        assert (x.a == again.a).all() and (x.c == again.c).all()


def test_a_cut_to_as_many_bits_finds_what_is_tiny_after_rounding() -> None:
    """Cut to 24 bits and converted toward zero, or converted at once: one function, if flushed."""
    box = box_of("f32", "f32", 4)
    cut = changed(FLUSHED, F=30, F_c=30, F_sum=23, cut_sum="RNE", rho=RZ_FP32)
    at_once = changed(FLUSHED, F=30, F_c=30, tiny="after")
    assert kind(cut, box) == kind(at_once, box)
    assert not any(differ(box, cut, at_once, 8000, seed) for seed in range(4))
    stored = changed(at_once, tiny="stored")
    assert kind(stored, box) != kind(cut, box)
    assert any(differ(box, cut, stored, 8000, seed) for seed in range(4))
