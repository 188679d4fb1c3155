"""SumTrees that count as one function are, and those just outside a rule are not."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest

from bitmma import models
from bitmma.clfp import BlackBox
from bitmma.clfp.box import Box, Dots
from bitmma.clfp.equivalence import canonical, reasons
from bitmma.clfp.evidence import predict
from bitmma.clfp.inputs import aimed, same, sparse
from bitmma.clfp.separating import separating
from bitmma.models import RNE_FP16, RNE_FP32, RNE_FP64, Conversion, SumTree

RNE_BF16 = Conversion("RNE", "bf16")


def box_of(k: int, a: str, c: str = "f32", d: str = "f32", b: str | None = None) -> Box:
    """A box that is not asked: its formats are what counts."""
    return Box(BlackBox(lambda *x: x[2], 8, 8, k, a, b, c, d))


def differing(box: Box, x: SumTree, y: SumTree, count: int, seed: int) -> int:
    dots = [draw(box, m, count, seed) for draw in (sparse, aimed) for m in (x, y)]
    dots.append(separating(box, (x, y), 4 * count, seed))
    joined = Dots.join(dots)
    got = [predict(box, m, joined) for m in (x, y)]
    return int((~same(box.formats[3], *got)).sum())


def plain(model: SumTree, box: Box) -> SumTree:
    found, _ = canonical(model, box)
    assert isinstance(found, SumTree)
    assert canonical(found, box)[0] == found
    return found


# --- random models --------------------------------------------------------------------------------


def one(rng: np.random.Generator, *choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def random_tree(rng: np.random.Generator, k: int) -> str:
    """Nodes of one to three, products rounded alone, starts of sums, brackets."""
    rounded = one(rng, 0.0, 0.4, 1.0)
    parts = [f"({i})" if rng.random() < rounded else f"{i}" for i in rng.permutation(k)]
    parts += ["c"] * int(rng.random() < 0.7)
    brackets = 0.4 * (rng.random() < 0.3)

    def node(inside: str) -> str:
        return f"[{inside}]" if rng.random() < brackets else f"({inside})"

    while len(parts) > 1 or parts[0][0] not in "([":
        n = min(len(parts), int(rng.integers(1 if len(parts) == 1 else 2, 4)))
        at = int(rng.integers(len(parts) - n + 1))
        joined = node(" ".join(parts[at : at + n]))
        parts[at : at + n] = [node(joined) if rng.random() < 0.15 else joined]
    return parts[0]


def random_rho(rng: np.random.Generator) -> Conversion:
    mode = one(rng, *["RNE"] * 4, *models.formats.ROUNDINGS)
    name = one(rng, "f32", "f32", "f64", "f16", "bf16")
    return Conversion(mode, name, one(rng, None, None, None, 6), one(rng, *models.OVERFLOWS))


def random_sum(rng: np.random.Generator, k: int) -> SumTree:
    rho, tree, out = random_rho(rng), random_tree(rng, k), one(rng, None, None, random_rho(rng))
    flushes = [one(rng, "no", "no", *models.FLUSHES) for _ in range(3)]
    return SumTree(
        tree, rho, one(rng, None, None, rho, random_rho(rng)), out, *flushes,
        one(rng, *models.TREE_ZERO_RULES), one(rng, rho, random_rho(rng)) if "[" in tree else None,
        one(rng, None, *models.FLUSHES) if out else None, tiny=one(rng, *models.TINY_RULES),
    )  # fmt: skip


@pytest.mark.parametrize("part", range(4))
def test_random_sums_that_count_as_equal_are(part: int) -> None:
    changed: Counter[str] = Counter()
    for seed in range(60):
        rng = np.random.default_rng([seed, part])
        k = int(rng.integers(1, 6))
        a = one(rng, "f32", "f16", "bf16", "e4m3", "e5m2", "e2m1", "bf8", "tf32")
        model = random_sum(rng, k)
        box = box_of(k, a, one(rng, "f32", "f16", "f64", "bf16"), model.d, one(rng, a, a, "e3m2"))
        found = plain(model, box)
        assert not differing(box, model, found, 120, seed), (box.spec, model, found)
        for field in dataclasses.fields(model):
            changed[field.name] += getattr(model, field.name) != getattr(found, field.name)
    fields = {f.name for f in dataclasses.fields(SumTree)} - {"nan"}
    assert {name for name in fields if changed[name] > 1} == fields, changed


# --- every rule, and what lies just outside -------------------------------------------------------

F32 = SumTree("((0 1) c)")
PLUS = SumTree("((0 1) c)", zero="plus")
RA, RD = Conversion("RA", "f32"), Conversion("RD", "f16")
#: Products of bf16 have a bit more than it keeps of numbers below its normal ones.
SUB = Conversion("RNE", "f32", 15)
COARSE = Conversion("RNE", "f32", 12)
SATURATE = {x: Conversion("RNE", x, overflow="saturate") for x in ("f32", "f16", "bf16")}

#: Formats of a and c, and a pair of models that is one function.
ALIKE: dict[str, tuple[str, str, SumTree, SumTree]] = {
    "exact products": ("f16", "f32", SumTree("((0 1) c)", rho_product=RNE_FP32), F32),
    "exact in any mode": (
        "e5m2", "f32", SumTree("((0 1) c)", rho_product=Conversion("RU", "f32")), F32),
    "exact, flushed": (
        "f16", "f32", SumTree("((0 1) c)", rho_product=RNE_FP32, flush_out="zero"),
        SumTree("((0 1) c)", flush_out="zero")),
    "a first product": ("f16", "f32", SumTree("(((0) 1) c)", zero="start"), PLUS),
    "all rounded alone": (
        "f32", "f32", SumTree("(((0) (1)) c)"), SumTree("((0 1) c)", rho_product=RNE_FP32)),
    "rounded twice": (
        "f32", "f32", SumTree("(((0) 1) (c))", rho_product=RNE_FP32),
        SumTree("((0 1) c)", rho_product=RNE_FP32)),
    "overflow": ("f16", "f32", SumTree("((0 1) c)", SATURATE["f32"]), F32),
    "overflow of out": (
        "e2m1", "f16", SumTree("(0 1)", out=SATURATE["f16"]), SumTree("(0 1)", out=RNE_FP16)),
    "no subnormal": (
        "f16", "f32", SumTree("(0 1)", flush_out="sign"), SumTree("(0 1)")),
    "no subnormal, +0": (
        "f16", "f32", SumTree("(0 1)", flush_out="zero"), SumTree("(0 1)", zero="plus")),
    "signs of zero": (
        "f16", "f32", SumTree("(((0) 1) 2)", out=RNE_FP16, zero="start"),
        SumTree("((0 1) 2)", out=RNE_FP16, zero="signed")),
    "another first product": (
        "bf16", "f32", SumTree("((1 (0)) 2)", RNE_FP32, RNE_FP32, flush_out="sign", zero="start"),
        SumTree("(((0) (1)) 2)", RNE_FP32, RNE_FP32, flush_out="sign", zero="start")),
    "products flushed, in any mode": (
        "bf16", "f32", SumTree("((0 1) c)", RNE_FP32, RNE_FP32, flush_out="sign"),
        SumTree("((0 1) c)", RNE_FP32, Conversion("RA", "f32"), flush_out="sign")),
    "twice the bits": (
        "f16", "f32", SumTree("([([(0 1)] [(2 c)])] 3)", rho2=RNE_FP16),
        SumTree("([[(0 1)] [(2 c)]] 3)", rho2=RNE_FP16)),
    "no first product": (
        "f32", "f32", SumTree("((0 1) c)", zero="start"), SumTree("((0 1) c)", zero="ieee")),
    "flushed signs": (
        "f16", "f32", SumTree("((0 1) c)", zero="plus", flush_in="sign", flush_c="sign"),
        SumTree("((0 1) c)", zero="plus", flush_in="zero", flush_c="zero")),
    "flushed signs before out": (
        "bf16", "f32",
        SumTree("((0) 1)", out=RNE_BF16, zero="plus", flush_out="sign", flush_last="no"),
        SumTree("((0) 1)", out=RNE_BF16, zero="plus", flush_out="zero")),
    "an exact sum": (
        "e4m3", "f32", SumTree("((0 1) (2 c))", RNE_FP64, out=RNE_FP32),
        SumTree("(0 1 (2 c))", RNE_FP64, out=RNE_FP32)),
    "one exact sum": (
        "e4m3", "f32", SumTree("(0 (1 2))", Conversion("RA", "f64"), out=RNE_FP16),
        SumTree("(0 1 2)", RNE_FP16)),
    "brackets are out": (
        "f16", "f32", SumTree("[(0 1)]", rho2=RNE_FP16), SumTree("(0 1)", out=RNE_FP16)),
    "results flushed as c is": (
        "f16", "f32", SumTree("((0 c) 1)", flush_out="sign", zero="plus"),
        SumTree("((0 c) 1)", flush_c="zero", zero="plus")),
    "flushed signs of a first sum": (
        "f16", "f32", SumTree("((0 c) 1)", RA, flush_out="sign", zero="plus"),
        SumTree("((0 c) 1)", RA, flush_out="zero", zero="plus")),
    "no negative sum rounded to zero": (
        "f16", "f16", SumTree("(0 c)", RD, zero="signed"), SumTree("(0 c)", RD, zero="plus")),
    "products that are not rounded from below": (
        "f16", "f32", SumTree("((0) c)", flush_out="sign", tiny="before"),
        SumTree("((0) c)", flush_out="sign")),
    "half a last place is all there is": (
        "bf16", "bf16", SumTree("((0) 1)", SUB, SUB, flush_out="sign", tiny="before"),
        SumTree("((0) 1)", SUB, SUB, flush_out="sign", tiny="after")),
    "nothing rounded up to normal": (
        "f32", "f32", SumTree("(0 c)", Conversion("RZ", "f32"), flush_out="sign", tiny="before"),
        SumTree("(0 c)", Conversion("RZ", "f32"), flush_out="sign")),
    "brackets alike": ("f32", "f32", SumTree("[(0 1) c]", rho2=RNE_FP32), SumTree("((0 1) c)")),
}  # fmt: skip

#: The same with one thing changed that is seen: what is changed in both, or in the first.
UNLIKE: dict[str, tuple[str, str, SumTree, SumTree]] = {
    "products that underflow": ("bf16", "f32", SumTree("((0 1) c)", rho_product=RNE_FP32), F32),
    "products of more bits": (
        "f16", "f32", SumTree("((0 1) c)", rho_product=Conversion("RNE", "f32", 20)), F32),
    "products that overflow": ("f16", "f32", SumTree("((0 1) c)", rho_product=RNE_FP16), F32),
    "products of fewer bits": (
        "f16", "f32", SumTree("((0 1) c)", rho_product=RNE_BF16, zero="plus"), PLUS),
    "a first product": (
        "f16", "f32", SumTree("((0) 1)", zero="start"), SumTree("(0 1)", zero="ieee")),
    "a first product, rounded": ("bf16", "f32", SumTree("(((0) 1) c)"), SumTree("((0 1) c)")),
    "no first product left": (
        "bf16", "f32", SumTree("((0 1) 2)", RNE_FP32, RNE_FP32, flush_out="sign", zero="start"),
        SumTree("((0 (1)) 2)", RNE_FP32, RNE_FP32, flush_out="sign", zero="start")),
    "products flushed, of more bits": (
        "f32", "f32", SumTree("((0 1) c)", RNE_FP32, RNE_FP32, flush_out="sign"),
        SumTree("((0 1) c)", RNE_FP32, Conversion("RA", "f32"), flush_out="sign")),
    "less than twice the bits": (
        "f16", "f32", SumTree("([([(0 1)] [(2 c)])] 3)", COARSE, rho2=RNE_FP16),
        SumTree("([[(0 1)] [(2 c)]] 3)", COARSE, rho2=RNE_FP16)),
    "not all rounded alone": (
        "f32", "f32", SumTree("(((0) 1) c)"), SumTree("((0 1) c)", rho_product=RNE_FP32)),
    "rounded alone from +0": (
        "f32", "f32", SumTree("((0) (1))", zero="start"), SumTree("(0 1)", rho_product=RNE_FP32)),
    "overflow": ("bf16", "f32", SumTree("((0 1) c)", SATURATE["f32"]), SumTree("((0 1) c)")),
    "overflow of out": (
        "f16", "f16", SumTree("(0 1)", out=SATURATE["f16"]), SumTree("(0 1)", out=RNE_FP16)),
    "subnormal": ("bf16", "f32", SumTree("(0 1)", flush_out="sign"), SumTree("(0 1)")),
    "no subnormal, -0": ("f16", "f32", SumTree("(0 1)", flush_out="zero"), SumTree("(0 1)")),
    "signs of zero": (
        "f16", "f32", SumTree("(((0) 1) 2)", out=RNE_FP16, zero="start"),
        SumTree("((0 1) 2)", out=RNE_FP16, zero="plus")),
    "signs of zero, ieee": (
        "f16", "f32", SumTree("((0 1) 2)", zero="ieee"), SumTree("((0 1) 2)", zero="signed")),
    "results flushed, as c is not": (
        "bf16", "f32", SumTree("((0 c) 1)", flush_out="zero", zero="plus"),
        SumTree("((0 c) 1)", flush_c="zero", zero="plus")),
    "results flushed, c seen beside a product": (
        "f16", "f32", SumTree("((0 c) 1)", RA, flush_out="zero", zero="plus"),
        SumTree("((0 c) 1)", RA, flush_c="zero", zero="plus")),
    "negative sums rounded to zero": (
        "f16", "f16", SumTree("(0 c)", RNE_FP16, zero="signed"),
        SumTree("(0 c)", RNE_FP16, zero="plus")),
    "flushed signs": (
        "f16", "f32", SumTree("((0 1) c)", flush_c="sign"), SumTree("((0 1) c)", flush_c="zero")),
    "flushed signs of the result": (
        "bf16", "f32", SumTree("(0 1)", zero="plus", flush_out="sign"),
        SumTree("(0 1)", zero="plus", flush_out="zero")),
    "a sum that is cut": (
        "e4m3", "f32", SumTree("((0 1) (2 c))"), SumTree("(0 1 (2 c))")),
    "a sum first": (
        "bf16", "f32", SumTree("(((0 1)) (2 3))", zero="start", rho_product=RNE_FP32),
        SumTree("((0 1) (2 3))", zero="start", rho_product=RNE_FP32)),
    "two roundings": (
        "f16", "f32", SumTree("([(0 1)] c)", COARSE, rho2=RNE_FP16),
        SumTree("([0 1] c)", COARSE, rho2=RNE_FP16)),
    "products rounded up to normal": (
        "f32", "f32", SumTree("((0) c)", flush_out="sign", tiny="after"),
        SumTree("((0) c)", flush_out="sign")),
    "a quarter of a last place": (
        "f32", "f32", SumTree("((0) c)", flush_out="sign", tiny="after"),
        SumTree("((0) c)", flush_out="sign", tiny="before")),
    "only the result": (
        "bf16", "f32", SumTree("(0 c)", RNE_FP64, out=RNE_FP32, flush_last="zero", tiny="after"),
        SumTree("(0 c)", RNE_FP64, out=RNE_FP32, flush_last="zero")),
    "brackets from +0": (
        "f16", "f32", SumTree("[(0 1)]", zero="start", rho2=RNE_FP16),
        SumTree("(0 1)", zero="start", out=RNE_FP16)),
}  # fmt: skip


def test_cases_are_as_many_as_rules() -> None:
    from bitmma.clfp import plain_sums

    assert len(ALIKE) > len(plain_sums._RULES) < len(UNLIKE)


@pytest.mark.parametrize("name", ALIKE)
def test_alike(name: str) -> None:
    a, c, x, y = ALIKE[name]
    box = box_of(x.K, a, c, x.d)
    assert x != y
    assert plain(x, box) == plain(y, box)
    assert not differing(box, x, y, 2500, 1)


@pytest.mark.parametrize("name", UNLIKE)
def test_unlike(name: str) -> None:
    a, c, x, y = UNLIKE[name]
    box = box_of(x.K, a, c, x.d)
    assert plain(x, box) != plain(y, box)
    assert differing(box, x, y, 2500, 1)


@pytest.mark.parametrize("a", ["f64", "f32", "tf32", "f16", "bf16", "e5m2", "bf8", "e2m1"])
def test_sparse_inputs_are_what_they_say(a: str) -> None:
    """Zeros of both signs, rows of nothing but -0, products below and around 2**-126."""
    c = "f64" if a == "f64" else "f32"
    box = box_of(8, a, c, c)
    x = sparse(box, SumTree("(((((((0 1) 2) 3) 4) 5) 6) 7)", Conversion("RNE", c)), 600, 3)
    fa, fb, fc, _ = box.formats
    with np.errstate(all="ignore"):
        p = models.formats.decode(x.a, fa) * models.formats.decode(x.b, fb)
    minus = (p == 0) & np.signbit(p)
    assert (minus.any(), (minus.sum(1) >= 7).any()) == (True, True)
    assert ((p == 0) & ~minus).any() and (x.c == fc.sign_bit).any()
    least = 2.0 ** (fa.min_exponent + fb.min_exponent - fa.mantissa_bits - fb.mantissa_bits)
    if a != "f64":  # whose products float64 does not hold
        assert abs(p[np.isfinite(p) & (p != 0)]).min() == least
    if a in ("f32", "tf32", "bf16"):
        with np.errstate(all="ignore"):
            sums = abs(p.sum(1))
        assert ((sums > 0) & (sums < 2.0**-126)).any()


def test_reasons_say_what_is_alike() -> None:
    box = box_of(4, "f16")
    model = plain(SumTree("((((0) 1) 2) 3)", zero="start"), box)
    assert model == SumTree("(((0 1) 2) 3)", zero="plus")
    fields = [line.split(":")[0] for line in reasons(model, box)]
    assert fields == ["rho_product", "zero", "flush_out", "rho"]
    assert reasons(model, box)[0].startswith("rho_product: f32 holds every product (22 bits)")
    wide = box_of(4, "f32")
    assert reasons(plain(model, wide), wide) == []
