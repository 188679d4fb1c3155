"""`canonical` joins models that are one function, and no others; what "start" means."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from bitmma import engine, formats, reference
from bitmma.clfp import BlackBox
from bitmma.clfp.box import Box, Dots
from bitmma.clfp.equivalence import canonical, kind
from bitmma.clfp.evidence import predict
from bitmma.clfp.inputs import aimed, same
from bitmma.models import (
    FDPA,
    FLUSHES,
    GSTFDPA,
    RNE_FP16,
    RNE_FP32,
    RNE_FP64,
    STFDPA,
    TFDPA,
    TREE_ZERO_RULES,
    Conversion,
    Lowered,
    Model,
    SumTree,
)


def box_of(k: int, a: str = "f32", c: str = "f32", d: str = "f32", **scaled: Any) -> Box:
    """A box that is not asked: `canonical` looks at its formats only."""
    return Box(BlackBox(lambda *x: x[2], 8, 8, k, a, c=c, d=d, **scaled))


def with_zeros(box: Box, x: Dots, seed: int) -> Dots:
    """Half of the rows with most of their numbers zeros of either sign."""
    rng = np.random.default_rng(seed)
    codes = []
    for operand, fmt in zip((x.a, x.b, x.c), box.formats, strict=False):
        zero = rng.choice(np.array([0, fmt.sign_bit], fmt.code_dtype), operand.shape)
        gone = rng.random(operand.shape) < 0.85
        gone[::2] = False
        codes.append(np.where(gone, zero, operand))
    return Dots(*codes, x.scale_a, x.scale_b)


def equal(box: Box, x: Model, y: Model, count: int, seed: int) -> bool:
    dots = with_zeros(box, aimed(box, x, count, seed), seed)
    got = [predict(box, m, dots) for m in (x, y)]
    return bool(same(box.formats[3], *got, nan=x.nan == "quiet").all())


# --- "start" --------------------------------------------------------------------------------------

#: Trees of two products and c whose nodes of one child are accumulators' first products, or c.
STARTS = {
    "(((0) 1) c)": lambda p, q, c: ((0 + p) + q) + c,
    "(((0) (1)) c)": lambda p, q, c: ((0 + p) + (0 + q)) + c,
    "(((c) 0) 1)": lambda p, q, c: ((0 + c) + p) + q,
    "(((0 1)) c)": lambda p, q, c: (0 + (p + q)) + c,
    "((0 1) c)": lambda p, q, c: (p + q) + c,
}


@pytest.mark.parametrize("tree", STARTS)
def test_start_adds_a_first_product_to_plus_zero(tree: str) -> None:
    """As a program with accumulators set to 0 does, all in float32; IEEE's rule keeps -0."""
    numbers = np.array([0, 1, 2.0**-100], np.float32)  # whose square underflows
    numbers = np.concatenate([numbers, -numbers])
    rows = np.array(list(itertools.product(numbers, repeat=5)), np.float32)
    a, b, c = rows[:, :2], rows[:, 2:4], rows[:, 4]
    p, q = (a * b).T
    zero = np.float32(0)
    assert (0 + np.array(-zero)).dtype == np.float32
    want = STARTS[tree](p, q, c)
    assert want.dtype == np.float32
    model = SumTree(tree, rho_product=RNE_FP32, zero="start")
    codes = [np.ascontiguousarray(x).view("u4") for x in (a, b, c)]
    names = {f"{x}_format": "f32" for x in "abc"}
    got = engine.dpa(model, *codes, **names)
    assert (got == want.view("u4")).all()
    for i in range(0, len(rows), 41):
        slow = reference.dpa(
            model, codes[0][i].tolist(), codes[1][i].tolist(), int(codes[2][i]), **names
        )
        assert slow == got[i], rows[i]
    ieee = engine.dpa(dataclasses.replace(model, zero="ieee"), *codes, **names)
    assert (ieee == got).all() == (tree == "((0 1) c)")
    assert (ieee == 1 << 31).any()


def test_start_and_products_that_are_not_rounded() -> None:
    """An exact product of -0 starts as +0; one that is no zero and underflows keeps its sign."""
    names = {f"{x}_format": "f32" for x in "abc"}
    tiny = formats.get("f32").encode(1, -100)
    for a, b, want in ((1 << 31, 0x3F800000, 0), (tiny | 1 << 31, tiny, 1 << 31)):
        model = SumTree("(0)", zero="start")
        assert reference.dpa(model, [a], [b], 0, **names) == want
        x = np.array([[a]], "u4"), np.array([[b]], "u4"), np.array([0], "u4")
        assert engine.dpa(model, *x, **names).tolist() == [want]


# --- FDPA -----------------------------------------------------------------------------------------

EXACT = FDPA(4, None, F_c=None, e_zero=None)


@pytest.mark.parametrize(
    ("model", "same_as"),
    [
        (dataclasses.replace(EXACT, renormalise=True, groups=2, e_zero=-100), EXACT),
        (dataclasses.replace(EXACT, c="late", renormalise=True), EXACT),
        (FDPA(1, 20, cut="RA", F_c=None, e_zero=None, order="pairwise"),
         FDPA(1, None, F_c=None, e_zero=None, order="pairwise")),
        (FDPA(1, 21, cut="RU", F_c=9, c="late", renormalise=True, F2=12, e_zero=None),
         FDPA(1, None, F_c=9, c="late", renormalise=True, F2=12, e_zero=None)),
    ],
)  # fmt: skip
def test_exponents_and_cuts_that_nothing_sees(model: FDPA, same_as: FDPA) -> None:
    box = box_of(4, "f16")
    joined = canonical(model, box)[0]
    assert joined == canonical(same_as, box)[0] == canonical(joined, box)[0]
    assert equal(box, model, same_as, 3000, 1)


def test_sums_that_cannot_round_to_zero() -> None:
    """c's last place is the output's, products of f16 lie far above it."""
    model = FDPA(4, 24, zero="signed")
    plus = dataclasses.replace(model, zero="plus")
    box = box_of(4, "f16")
    assert canonical(model, box)[0] == canonical(plus, box)[0]
    assert equal(box, model, plus, 3000, 1)
    coarse = {"rho": Conversion("RZ", "f32", 12)}
    for a, change in (("bf16", {}), ("f16", coarse)):
        box = box_of(4, a)
        x, y = (dataclasses.replace(m, **change) for m in (model, plus))
        assert canonical(x, box)[0] != canonical(y, box)[0]
        assert not equal(box, x, y, 6000, 1), change


@pytest.mark.parametrize(("field", "seen"), [("flush_in", False), ("flush_out", True)])
def test_signs_of_flushed_numbers(field: str, seen: bool) -> None:
    """A result that is flushed keeps its sign even where sums are never -0."""
    model = FDPA(4, 24, **{field: "sign"})  # type: ignore[arg-type]
    other = dataclasses.replace(model, **{field: "zero"})
    box = box_of(4, "bf16")
    assert equal(box, model, other, 3000, 1) != seen
    assert (canonical(model, box)[0] == canonical(other, box)[0]) != seen


@pytest.mark.parametrize(
    ("field", "value"),
    [("F", 19), ("e_zero", -30), ("L", 2), ("renormalise", True)],
)
def test_and_those_that_something_sees(field: str, value: Any) -> None:
    """One bit less than a product of f16 has, or something beside it."""
    model = FDPA(1, 20, cut="RA", F_c=20, c="late", F2=40, e_zero=None)
    other = dataclasses.replace(model, **{field: value})
    exact = dataclasses.replace(other, F=None, cut="RZ")
    box = box_of(4, "f16")
    alike = canonical(other, box)[0] == canonical(exact, box)[0]
    assert alike == (field == "e_zero")
    assert equal(box, other, exact, 6000, 1) == (field == "e_zero")


# --- SumTree --------------------------------------------------------------------------------------


def random_tree(rng: np.random.Generator, k: int) -> str:
    """Nodes of two or three, some of one, products in any order, c somewhere or nowhere."""
    parts = [f"({i})" if rng.random() < 0.4 else f"{i}" for i in rng.permutation(k)]
    parts += ["c"] * int(rng.random() < 0.7)
    while len(parts) > 1:
        n = min(len(parts), int(rng.integers(2, 4)))
        at = int(rng.integers(len(parts) - n + 1))
        node = f"({' '.join(parts[at : at + n])})"
        parts[at : at + n] = [f"({node})" if rng.random() < 0.1 else node]
    return parts[0]


def random_sum(rng: np.random.Generator) -> SumTree:
    def one(*choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    rho = one(RNE_FP32, RNE_FP32, RNE_FP64, Conversion("RZ", "f32"), Conversion("RNE", "f32", 12))
    out = RNE_FP32 if rho == RNE_FP64 else one(None, None, RNE_FP16)
    return SumTree(
        random_tree(rng, 4), rho, one(rho, rho, None, RNE_FP32, RNE_FP16), out,
        one("no", *FLUSHES), one("no", *FLUSHES), one("no", "no", *FLUSHES), one(*TREE_ZERO_RULES),
    )  # fmt: skip


@pytest.mark.parametrize("part", range(4))
def test_trees_that_count_as_equal_are(part: int) -> None:
    changed = 0
    boxes = {"f32": box_of(4), "f16": box_of(4, d="f16")}
    for seed in range(25):
        model = random_sum(np.random.default_rng([seed, part]))
        box = boxes[model.d]
        joined, _ = canonical(model, box)
        changed += joined.zero != model.zero or joined.tree != model.tree  # type: ignore[union-attr]
        assert equal(box, model, joined, 400, seed), (model, joined)
        assert canonical(joined, box)[0] == joined
    assert changed > 4


def test_rounding_a_product_twice_alike_is_rounding_it_once() -> None:
    box = box_of(2)
    once = SumTree("((0 1) c)", rho_product=RNE_FP32)
    for zero, kept in (("ieee", "ieee"), ("start", "plus"), ("signed", "plus"), ("plus", "plus")):
        twice = dataclasses.replace(once, tree="(((0) (1)) c)", zero=zero)
        assert canonical(twice, box)[0] == dataclasses.replace(once, zero=kept)
    assert canonical(dataclasses.replace(once, zero="start"), box)[0] == once
    alone = SumTree("(((0) (1)) c)")  # nothing is rounded before: these are the products' roundings
    assert canonical(alone, box)[0] == once
    coarse = dataclasses.replace(once, tree="(((0) (1)) c)", rho=RNE_FP16)
    assert canonical(coarse, box_of(2, d="f16"))[0] == coarse


def test_one_child_that_is_a_sum_still_starts_at_plus_zero() -> None:
    model = SumTree("((0 1))", rho_product=RNE_FP32, zero="start")
    assert not equal(box_of(2), model, dataclasses.replace(model, zero="ieee"), 1000, 1)
    assert equal(box_of(2), model, canonical(model, box_of(2))[0], 1000, 1)


def test_a_second_rounding_can_underflow() -> None:
    """Sums of rounded products never do, so only ``out`` can tell the rules of zero apart."""
    model = SumTree("((0 1) c)", rho_product=RNE_FP32, out=RNE_FP16, zero="signed")
    box = box_of(2, d="f16")
    assert not equal(box, model, dataclasses.replace(model, zero="plus"), 2000, 1)
    assert equal(box, model, canonical(model, box)[0], 2000, 1)


# --- groups with scales ---------------------------------------------------------------------------

SCALED = [("ue8m0", "e2m1", 16), ("ue4m3", "e2m1", 16), ("ue8m0", "e4m3", 32)]


@pytest.mark.parametrize(("scale", "a", "block"), SCALED)
def test_e_zero_of_groups_that_count_as_equal(scale: str, a: str, block: int) -> None:
    box = box_of(2 * block, a, scale=scale, block=block)
    for F in (12, 25, 35):
        model = GSTFDPA(2 * block, block, F)
        never = canonical(dataclasses.replace(model, e_zero=-400), box)[0]
        assert isinstance(never, GSTFDPA)
        assert canonical(never, box)[0] == never and never.e_zero > -400
        lower = (dataclasses.replace(never, e_zero=never.e_zero - n) for n in (1, 5, 60))
        for i, other in enumerate(lower):
            joined, why = canonical(other, box)
            assert joined == never and why and why[0].startswith("e_zero")
            assert equal(box, other, never, 1500, i), (other, never)
        higher = dataclasses.replace(never, e_zero=never.e_zero + 1)
        assert canonical(higher, box) == (higher, [])
        if F == 12:  # an exponent that does matter: the test would see it
            high = dataclasses.replace(never, e_zero=20)
            assert not equal(box, high, never, 3000, 1)


FEW_BITS = [
    (STFDPA(8, 17, Conversion("RD", "f32", 22), -126), "ue8m0", 32),
    (STFDPA(16, 5, Conversion("RA", "f32", 11), -126), "ue8m0", 16),
    (GSTFDPA(32, 16, 9, Conversion("RU", "f32", 22), -126), "ue4m3", 16),
]


@pytest.mark.parametrize(("model", "scale", "block"), FEW_BITS)
def test_a_sum_of_few_bits_is_never_rounded(model: Any, scale: str, block: int) -> None:
    """But by an output of fewer."""
    box = box_of(32, "e2m1", scale=scale, block=block)
    joined, why = canonical(model, box)
    assert joined == dataclasses.replace(model, rho=RNE_FP32) and "none is rounded" in why[-1]
    assert equal(box, model, joined, 20_000, 1)
    rounded = dataclasses.replace(model, rho=Conversion(model.rho.mode, "f32", model.F))
    assert canonical(rounded, box)[0].rho == rounded.rho  # type: ignore[attr-defined]
    assert not equal(box, rounded, joined, 20_000, 1)


@pytest.mark.parametrize(("F", "bits", "alike"), [(12, 18, True), (12, 9, False), (21, 21, False)])
def test_few_bits_of_instructions_made_of_others(F: int, bits: int, alike: bool) -> None:
    """A unit's sum of 8 products and of what came before has F + 6 bits at the most."""
    box = box_of(32, "e4m3")
    rho = Conversion("RNA", "f32", bits)
    model = Lowered(32, TFDPA(8, F, rho), ((0, 1), (2, 3)))
    plain = dataclasses.replace(model, unit=TFDPA(8, F, RNE_FP32))
    assert (kind(model, box) == kind(plain, box)) == alike
    assert equal(box, model, plain, 4000, 1) == alike


def random_exact_sum(rng: np.random.Generator, k: int) -> FDPA:
    """A fused sum in which nothing is cut, any steps and rules."""
    rho = Conversion(str(rng.choice([*formats.ROUNDINGS])), "f32", int(rng.integers(6, 24)))
    flushes = dict(zip(("flush_in", "flush_c", "flush_out"), rng.choice(FLUSHES, 3), strict=True))
    order, zero = (
        str(rng.choice(["chain", "pairwise"])),
        str(rng.choice(["plus", "signed", "ieee"])),
    )
    L = int(rng.choice([1, 2, 3, k]))
    rest: dict[str, Any] = {"rho": rho, "order": order, "zero": zero, "nan": "quiet"}
    return FDPA(L, None, F_c=None, e_zero=None, **rest, **{n: str(x) for n, x in flushes.items()})


def test_exact_fused_sums_are_trees() -> None:
    """Of one kind with the tree that they are, where it is one; which gives the same bits."""
    met = 0
    for seed in range(80):
        rng = np.random.default_rng(seed)
        box = box_of(6, str(rng.choice(["f16", "bf16", "e5m2"])))
        model = random_exact_sum(rng, 6)
        tree = kind(model, box)
        later = model.flush_c != "no" and model.L < 6 and model.order == "chain"
        if not isinstance(tree, SumTree):
            assert later
            continue
        met += 1
        assert kind(tree, box) == tree
        for run in range(2):
            assert equal(box, model, tree, 500, 2 * seed + run), (box.spec, model, tree)
    assert met > 50


def test_all_bits_of_a_format_are_no_number_of_their_own() -> None:
    box = box_of(4, "bf16")
    rho = Conversion("RU", "f32", 23)
    assert canonical(SumTree("((0 1) (2 3))", rho), box) == canonical(
        SumTree("((0 1) (2 3))", Conversion("RU", "f32")), box
    )
    assert kind(TFDPA(4, 20, rho), box) == kind(TFDPA(4, 20, Conversion("RU", "f32")), box)
