"""FDPA and SumTree: what each field means by known answers, and the families as values of them."""

from __future__ import annotations

import dataclasses
import functools
import pickle
from typing import Any

import numpy as np
import pytest

from bitmma import cases, formats, isa, mma, models, reference
from bitmma.models import (
    EFDPA,
    FDPA,
    FMA,
    GSTFDPA,
    GTRFDPA,
    RNE_FP16,
    RNE_FP32,
    RNE_FP64,
    RZ_E8M13,
    RZ_FP32,
    STFDPA,
    TFDPA,
    TRFDPA,
    Conversion,
    FTZMulAdd,
    Lowered,
    Model,
    SumTree,
    as_family,
    as_fdpa,
)

RNE_BF16 = Conversion("RNE", "bf16")
EXACT = FDPA(4, None, F_c=None, e_zero=None, rho=RNE_FP64, zero="signed")


def code(x: float, format: str) -> int:
    """The code of a number that the format holds exactly."""
    fmt = formats.get(format)
    found = formats.quantize(x, fmt).view(fmt.code_dtype)
    assert formats.decode(found, fmt) == x or np.isnan(x), (x, format)
    return int(found)


def run(
    model: Model, a: Any, b: Any, c: float = 0.0, f: str = "f64", cf: str = "f64", **scales: Any
) -> Any:
    """d of values, as a value; b is repeated where it is one number."""
    b = [b] * len(a) if isinstance(b, float | int) else b
    codes = [[code(x, f) for x in v] for v in (a, b)]
    d = formats.get(model.d)
    got = reference.dpa(model, *codes, code(c, cf), a_format=f, b_format=f, c_format=cf, **scales)
    return formats.decode(np.array(got, d.code_dtype), d)[()]


def sign(x: Any) -> float:
    return float(np.copysign(1.0, x))


# --- FDPA, field by field -------------------------------------------------------------------------

#: What each rounding makes of so many units: IEEE 754's definitions, written out.
UNITS = (-2.5, -1.5, -0.75, -0.5, -0.25, 0.25, 0.5, 0.75, 1.5, 2.5)
ROUNDED = {
    "RNE": (-2, -2, -1, 0, 0, 0, 0, 1, 2, 2),
    "RNA": (-3, -2, -1, -1, 0, 0, 1, 1, 2, 3),
    "RZ": (-2, -1, 0, 0, 0, 0, 0, 0, 1, 2),
    "RD": (-3, -2, -1, -1, -1, 0, 0, 0, 1, 2),
    "RU": (-2, -1, 0, 0, 0, 1, 1, 1, 2, 3),
    "RA": (-3, -2, -1, -1, -1, 1, 1, 1, 2, 3),
}


@pytest.mark.parametrize("rounding", ROUNDED)
def test_every_cut_by_every_rounding(rounding: str) -> None:
    """U and -U at exponent 0 set e_max; what is left of x units of 2^-10 beside them?"""
    products = dataclasses.replace(EXACT, F=10, cut=rounding)
    c = dataclasses.replace(EXACT, F_c=10, cut_c=rounding)
    late_c = dataclasses.replace(c, c="late")
    second = dataclasses.replace(EXACT, c="late", F2=10, cut2=rounding)
    final = dataclasses.replace(EXACT, F_sum=10, cut_sum=rounding, e_sum=0)
    grouped = dataclasses.replace(EXACT, groups=2, F_groups=10, cut_groups=rounding)
    for x, want in zip(UNITS, ROUNDED[rounding], strict=True):
        x, want = x * 2.0**-10, want * 2.0**-10
        assert run(products, (1, -1, x, 0), 1) == want
        assert run(c, (1, -1, 0, 0), 1, x) == want
        assert run(late_c, (1, -1, 0, 0), 1, x) == want
        assert run(second, (1, -1, x, 0), 1) == want
        assert run(second, (x, 0, 0, 0), 1, 1) == 1 + want  # c's exponent is the joint one
        assert run(final, (x, 0, 0, 0), 1) == want
        assert run(grouped, (1, x, -1, 0), 1) == want  # odd products: x alone
        for exact in (EXACT, dataclasses.replace(EXACT, c="late"), products):
            assert run(exact, (1, -1, 0, 0), 1, x) == x
        rho = dataclasses.replace(EXACT, rho=Conversion(rounding, "f32", 10))
        assert run(rho, (1, x, 0, 0), 1) == (1 + want if x > 0 else run(rho, (1,), 1 + x))


def test_c_early_takes_part_in_e_max_and_late_does_not() -> None:
    early = FDPA(4, 10, F_c=10, e_zero=None, rho=RNE_FP64)
    late = dataclasses.replace(early, c="late")
    tiny = (2.0**-15, 2.0**-15, 0, 0)
    assert run(early, tiny, 1, 1) == 1
    assert run(late, tiny, 1, 1) == 1 + 2.0**-14
    assert run(late, (1, -1, 0, 0), 1, 2.0**-15) == 0  # c is cut below the joint exponent
    whole = dataclasses.replace(late, F_c=None)
    assert run(whole, (1, -1, 0, 0), 1, 2.0**-15) == 2.0**-15


def test_e_zero_is_an_exponent_or_nothing() -> None:
    for c in ("early", "late"):
        model = FDPA(4, 10, c=c, F2=10 if c == "late" else None, F_c=10, e_zero=3, rho=RNE_FP64)
        assert run(model, (2.0**-8, 0, 0, 0), 1) == 0
        assert run(model, (2.0**-7, 0, 0, 0), 1) == 2.0**-7
        assert run(dataclasses.replace(model, e_zero=None), (2.0**-80, 0, 0, 0), 1) == 2.0**-80
        assert run(model, (2.0**-8, 0, 0, 0), 1, 2.0**-8) == 2.0**-7  # c is not zero


def test_drop_c() -> None:
    model = FDPA(4, None, F_c=10, cut_c="RU", e_zero=None, drop_c=12, rho=RNE_FP64)
    for m in (model, dataclasses.replace(model, c="late")):
        assert run(m, (1, 0, 0, 0), 1, 2.0**-12) == 1 + 2.0**-10
        assert run(m, (1, 0, 0, 0), 1, 2.0**-13) == 1


def test_renormalised_products() -> None:
    model = FDPA(4, 10, e_zero=None, rho=RNE_FP64)
    unlike = dataclasses.replace(model, renormalise=True)
    a, b = (1.5, -1.5, 2.0**-10, 0), (1.5, 1.5, 1, 0)
    assert run(model, a, b) == 2.0**-10  # 1.5 * 1.5 has exponent 0
    assert run(unlike, a, b) == 0  # or 1
    subnormal, big = 2.0**-16, 2.0**15
    a = (subnormal, -subnormal, 2.0**-10 * subnormal, 0)
    b = (big, big, 0, 0)
    for m, kept in ((model, 0.0), (unlike, 2.0**-10)):
        # f16's subnormals have the exponent -14: their products' exponent is 1, truly it is -1.
        assert run(m, (*a[:2], 2.0**-11, 0), (big, big, 1, 0), f="f16") == kept / 2


def test_groups_are_cut_apart() -> None:
    one = FDPA(4, 10, c="late", F_c=None, e_zero=None, rho=RNE_FP64)
    two = dataclasses.replace(one, groups=2)
    three = dataclasses.replace(one, groups=3)
    a = (1, 2.0**-20, -1, 0)
    assert run(one, a, 1) == 0
    assert run(two, a, 1) == 2.0**-20
    assert run(three, (1, 2.0**-20, 0, -1), 1) == 2.0**-20  # 0 and 3, 1, 2
    assert run(three, (1, 0, 0, 2.0**-20), 1) == 1
    assert run(dataclasses.replace(two, F_groups=15), a, 1) == 0
    early = dataclasses.replace(two, c="early", F_groups=15)
    assert run(early, (2.0**-20, 0, 0, 0), 1, 1) == 1  # c is met at F_groups
    assert run(early, (2.0**-15, 2.0**-20, 0, 0), 1) == 2.0**-15 + 2.0**-20


def test_rounded_sum_of_products() -> None:
    half = 2.0**-24
    model = FDPA(4, None, c="late", F_c=None, e_zero=None, rho=RNE_FP32, rho_products=RNE_FP32)
    once = dataclasses.replace(model, rho_products=None)
    a = (1, half, 0, 0)  # a tie, which c would tip
    assert run(model, a, 1, half / 4) == 1
    assert run(once, a, 1, half / 4) == 1 + 2 * half
    # The sum of products overflows by itself, and meets c as an infinity.
    big = (2.0**64, 0, 0, 0)
    assert run(once, big, 2.0**64, -(2.0**128)) == 0
    assert run(model, big, 2.0**64, -(2.0**128)) == np.inf
    assert np.isnan(run(model, big, 2.0**64, -np.inf))
    assert run(once, big, 2.0**64, -np.inf) == -np.inf
    assert np.isnan(run(model, (np.inf, 0, 0, 0), 1, -np.inf))
    assert run(model, (np.inf, 0, 0, 0), 1, 1) == np.inf
    assert np.isnan(run(model, (1, 0, 0, 0), 1, np.nan))
    # Its exponent is that of the number it has become: T = 2 cuts c by one bit more.
    cut = dataclasses.replace(model, rho_products=RNE_BF16, F_c=10)
    a = (1, 1 - 2.0**-10, 0, 0)
    assert run(cut, a, 1, 2.0**-10) == 2
    assert run(dataclasses.replace(cut, rho_products=RNE_FP32), a, 1, 2.0**-10) == 2


def test_second_precision_of_the_sum() -> None:
    model = FDPA(4, None, F_c=None, e_zero=None, rho=RNE_FP64, F_sum=8, e_sum=-20)
    assert run(model, (1, 2.0**-8, 2.0**-9, 0), 1) == 1 + 2.0**-8
    assert run(model, (2.0**-28, 2.0**-29, 0, 0), 1) == 2.0**-28
    free = dataclasses.replace(model, e_sum=None)
    assert run(free, (2.0**-28, 2.0**-29, 0, 0), 1) == 2.0**-28 + 2.0**-29
    twice = dataclasses.replace(EXACT, rho=RNE_FP16, F_sum=11, cut_sum="RNE")
    a = (1, 2.0**-11, -(2.0**-13), 0)  # just below a tie of f16; rounded to 12 bits it is one
    assert run(dataclasses.replace(twice, F_sum=None), a, 1) == 1
    assert run(twice, (1 + 2.0**-10, *a[1:]), 1) == 1 + 2.0**-9


def test_products_that_count_as_infinite() -> None:
    model = dataclasses.replace(EXACT, product_overflow=128)
    assert run(model, (2.0**64, 0, 0, 0), 2.0**64) == np.inf
    assert run(model, (-(2.0**64), 0, 0, 0), 2.0**64) == -np.inf
    assert np.isnan(run(model, (2.0**64, -(2.0**64), 0, 0), 2.0**64))
    largest = (2.0**64 - 2.0**40, 0, 0, 0)
    assert run(model, largest, 2.0**64) == largest[0] * 2.0**64
    assert run(EXACT, (2.0**64, -(2.0**64), 0, 0), 2.0**64) == 0


@pytest.mark.parametrize(
    ("flush", "of_minus"), [("no", -(2.0**-140)), ("zero", 0.0), ("sign", -0.0)]
)
def test_flushing(flush: Any, of_minus: float) -> None:
    """-2^-140, subnormal, as an operand, as c and as a result; only IEEE's zeros show the sign."""
    plain = FDPA(1, None, F_c=None, e_zero=None, rho=RNE_FP32, zero="ieee")
    tiny, minus_zero = 2.0**-140, (-0.0,)
    cases_of = {
        "flush_in": ((-tiny,), (1.0,), -0.0),
        "flush_c": (minus_zero, (1.0,), -tiny),
        "flush_out": ((-(2.0**-70),), (2.0**-70,), -0.0),
    }
    for field, (a, b, c) in cases_of.items():
        model = dataclasses.replace(plain, **{field: flush})
        got = run(model, a, b, c, f="f32", cf="f32")
        assert (got, sign(got)) == (of_minus, sign(of_minus)), field
        normal = run(model, (2.0**-63,), (-(2.0**-63),), 0.0, f="f32", cf="f32")
        assert normal == -(2.0**-126)
    zero_in = dataclasses.replace(plain, flush_in=flush)
    assert sign(run(zero_in, minus_zero, (1.0,), -0.0, f="f32", cf="f32")) == (
        1 if flush == "zero" else -1
    )
    assert np.isnan(run(zero_in, (np.inf,), (tiny,), f="f32")) == (flush != "no")
    # FNUZ has no -0 that a negative subnormal could become.
    assert run(zero_in, (-(2.0**-10),), (1.0,), f="fp8") == (-(2.0**-10) if flush == "no" else 0)


def test_a_result_that_rounds_up_to_normal_is_not_flushed() -> None:
    almost = 1 - 2.0**-24
    for flush in ("zero", "sign"):
        model = dataclasses.replace(EXACT, rho=RNE_FP32, flush_out=flush)
        assert run(model, (almost, 0, 0, 0), 2.0**-126) == 2.0**-126
        assert run(model, (1 - 2.0**-23, 0, 0, 0), 2.0**-126) == 0


#: The smallest normal number of f32, less so many of its last places, and which rules flush it.
TINY = {
    ("RNE", 1): "stored after before", ("RNE", 0.5): "after before", ("RNE", 0.25): "before",
    ("RNE", 0): "", ("RNE", 0.26): "after before", ("RNE", 0.24): "before",
    ("RNA", 0.5): "after before", ("RNA", 0.25): "before", ("RNA", 0.51): "stored after before",
    ("RZ", 0.01): "stored after before", ("RA", 0.5): "after before", ("RA", 0.49): "before",
    ("RU", 0.49): "before", ("RD", 0.01): "stored after before", ("RNE", -0.4): "",
}  # fmt: skip


@pytest.mark.parametrize(("mode", "less"), TINY)
def test_which_results_are_tiny(mode: str, less: float) -> None:
    """IEEE 754-2019, section 7.5, in every place where a result is rounded."""
    down, rho = 2.0**-149 * less, Conversion(mode, "f32")
    where: dict[str, Model] = {
        "rho": FDPA(2, None, F_c=None, e_zero=None, rho=rho, flush_out="zero"),
        "rho_products": dataclasses.replace(
            EXACT, L=2, c="late", rho_products=rho, flush_out="zero"),
        "a node": SumTree("((0 1) c)", rho, flush_out="zero"),
        "rho2": SumTree("([0 1] c)", RNE_FP32, rho2=rho, flush_out="zero"),
        "out": SumTree("(0 1)", RNE_FP64, out=rho, flush_last="zero"),
        "out, too": SumTree("(0 1)", RNE_FP64, out=rho, flush_out="zero"),
    }  # fmt: skip
    flushed = {
        name: [
            rule for rule in ("stored", "after", "before")
            if run(dataclasses.replace(model, tiny=rule), (2.0**-126, -down), 1.0) == 0
        ]
        for name, model in where.items()
    }  # fmt: skip
    assert flushed == dict.fromkeys(where, TINY[mode, less].split())
    if less == 0.5 and mode == "RNE":  # of a product alone, and of its sign
        product = SumTree("(0)", RNE_FP32, RNE_FP32, flush_out="sign", tiny="after")
        got = run(product, (-(1 - 2.0**-24),), 2.0**-126)
        assert (got, sign(got)) == (0, -1)
        assert run(dataclasses.replace(product, tiny="stored"), (-(1 - 2.0**-24),), 2.0**-126) != 0


def test_tiny_is_one_of_three() -> None:
    with pytest.raises(ValueError, match="FDPA: tiny is one of stored, after, before, not 'late'"):
        FDPA(tiny="late")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rule", "all_minus", "mixed", "cancelled", "underflow"),
    [("plus", 1, 1, 1, 1), ("signed", 1, 1, 1, -1), ("ieee", -1, 1, 1, -1)],
)
def test_signs_of_zero(
    rule: Any, all_minus: int, mixed: int, cancelled: int, underflow: int
) -> None:
    model = FDPA(2, None, F_c=None, e_zero=None, rho=RNE_FP32, zero=rule)
    late = dataclasses.replace(model, c="late", rho_products=RNE_FP32)
    for m in (model, late):
        assert sign(run(m, (-0.0, -0.0), 1, -0.0)) == all_minus
        assert sign(run(m, (-0.0, 0.0), 1, -0.0)) == mixed
        assert sign(run(m, (-0.0, -0.0), 1, 0.0)) == mixed
        assert sign(run(m, (1, -1), 1, -0.0)) == cancelled
        assert sign(run(m, (1, 0), 1, -1.0)) == cancelled
    assert sign(run(model, (-(2.0**-80), -0.0), 2.0**-80, 0.0)) == underflow
    down = dataclasses.replace(model, rho=Conversion("RD", "f32"))
    assert sign(run(down, (1, -1), 1, 0.0)) == (-1 if rule == "ieee" else 1)
    assert sign(run(down, (0.0, 0.0), 1, 0.0)) == 1


@pytest.mark.parametrize(
    ("mode", "overflow", "plus", "minus"),
    [
        ("RZ", "inf", np.inf, -np.inf), ("RNE", "inf", np.inf, -np.inf),
        ("RNE", "saturate", 65504, -65504), ("RU", "saturate", 65504, -65504),
        ("RNE", "ieee", np.inf, -np.inf), ("RA", "ieee", np.inf, -np.inf),
        ("RZ", "ieee", 65504, -65504), ("RD", "ieee", 65504, -np.inf),
        ("RU", "ieee", np.inf, -65504),
    ],
)  # fmt: skip
def test_overflow(mode: str, overflow: str, plus: float, minus: float) -> None:
    model = dataclasses.replace(EXACT, rho=Conversion(mode, "f16", overflow=overflow))
    assert run(model, (1, 0, 0, 0), 70000) == plus
    assert run(model, (-1, 0, 0, 0), 70000) == minus
    assert run(model, (np.inf, 0, 0, 0), 1) == np.inf  # an infinity stays one
    assert run(model, (1, 0, 0, 0), 65504) == 65504
    five = dataclasses.replace(EXACT, rho=Conversion("RNE", "f16", 5, overflow="saturate"))
    assert run(five, (1, 0, 0, 0), 70000) == 2.0**15 * (2 - 2.0**-5)


def test_other_families_take_the_same_conversions() -> None:
    model = TFDPA(4, 25, Conversion("RZ", "f16", overflow="saturate"), -21)
    assert run(model, (256, 0, 0, 0), 256, f="f16", cf="f16") == 65504
    assert run(EFDPA(4, RNE_FP16), (256, 0, 0, 0), 256, f="f16", cf="f16") == np.inf


def test_nan_codes() -> None:
    bad = dict(a_format="f16", b_format="f16", c_format="f16")
    for nan, want in (("ones", 0x7FFF), ("quiet", 0x7E00)):
        model = FDPA(2, rho=RNE_FP16, nan=nan)
        assert reference.dpa(model, [0x7E12, 0], [0, 0], 0, **bad) == want
        assert reference.dpa(model, [0x7C00, 0], [0, 0], 0, **bad) == want
        assert reference.dpa(model, [0x7C00, 0], [0xBC00, 0], 0x7C00, **bad) == want
        assert reference.dpa(model, [0x7C00, 0], [0xBC00, 0], 0xFC00, **bad) == 0xFC00
        assert model.nan == nan


@pytest.mark.parametrize(
    ("steps", "order"),
    [(1, "0"), (2, "(0 1)"), (3, "((0 1) 2)"), (4, "((0 1) (2 3))"), (5, "(((0 1) (2 3)) 4)"),
     (6, "(((0 1) (2 3)) (4 5))"), (7, "(((0 1) (2 3)) ((4 5) 6))")],
)  # fmt: skip
def test_pairwise_order_is_the_tree_that_the_docs_say(steps: int, order: str) -> None:
    """As a SumTree of rounded products, over numbers that every other order sums otherwise."""
    fdpa = FDPA(
        1, None, F_c=None, e_zero=None, rho=RNE_FP16, zero="ieee", order="pairwise", nan="quiet"
    )
    tree = SumTree(f"({order} c)", RNE_FP16, rho_product=RNE_FP16)
    x = cases.generate(fdpa, "f16", "f16", "f16", steps, 300, steps, category=("normal", "bits"))
    for i in range(300):
        both = (
            reference.dpa(
                m, x.a[i].tolist(), x.b[i].tolist(), int(x.c[i]),
                a_format="f16", b_format="f16", c_format="f16",
            )
            for m in (fdpa, tree)
        )  # fmt: skip
        assert len(set(both)) == 1


def test_pairwise_steps_keep_the_exponent_of_a_zero_c() -> None:
    model = FDPA(2, 10, F_c=None, e_zero=3, rho=RNE_FP64, order="pairwise")
    assert run(model, (2.0**-8, 0, 2.0**-7, 0), 1, 1.0) == 1 + 2.0**-7
    one = dataclasses.replace(model, order="chain")
    assert run(one, (2.0**-8, 0, 2.0**-7, 0), 1, 1.0) == 1 + 2.0**-8 + 2.0**-7


def test_scales_multiply_products_one_by_one() -> None:
    model = FDPA(4, None, F_c=None, e_zero=None, rho=RNE_FP32)
    two, three, nan = code(2, "ue4m3"), code(1.5, "ue4m3"), 0x7F
    scales = {"scale_format": "ue4m3", "block": 2}  # two blocks in one step
    got = run(model, (1, 2, 4, 8), 1, 100.0, f="e4m3", scale_a=[two, 0], scale_b=[three, nan - 1],
              **scales)  # fmt: skip
    assert got == 100 + 3 * 2 * 1.5
    for bad in ([nan, two], [two, nan]):
        assert np.isnan(run(model, (0, 0, 0, 0), 1, f="e4m3", scale_a=bad, scale_b=[two] * 2,
                            **scales))  # fmt: skip
    assert np.isnan(run(model, (np.inf, 0, 0, 0), 1, f="e5m2", scale_a=[0, 0], scale_b=[two] * 2,
                        **scales))  # fmt: skip
    cut = dataclasses.replace(model, F=3)
    got = run(cut, (1, 0, 1, 0), 1, f="e4m3", scale_a=[two, two], scale_b=[two, 0x08], **scales)
    assert got == 4  # 2 * 2^-6 * 1 lies below 2^(2 - 3)


# --- SumTree --------------------------------------------------------------------------------------


def numpy_loop(dtype: Any, a: np.ndarray, b: np.ndarray, c: np.ndarray, tree: Any) -> np.ndarray:
    """The tree's rounded products and additions in NumPy's own arithmetic, n outputs at once."""
    match tree:
        case int():
            return np.multiply(a[:, tree], b[:, tree], dtype=dtype)
        case "c":
            return c
        case (first, *rest):
            total = numpy_loop(dtype, a, b, c, first)
            for x in rest:
                assert len(tree) == 2
                total = total + numpy_loop(dtype, a, b, c, x)
            return total
    raise AssertionError(tree)


EIGHT = ((((0, 1), (2, 3)), ((4, 5), (6, 7))), "c")  # how NumPy ends a sum of eight accumulators
TREES = [
    functools.reduce(lambda t, i: (t, i), range(1, 8), 0),
    functools.reduce(lambda t, i: (t, i), range(8), "c"),
    functools.reduce(lambda t, i: (i, t), range(8), "c"),
    EIGHT,
    ((((0, 4), (1, 5)), ((2, 6), (3, 7))), "c"),
]


@pytest.mark.parametrize("tree", TREES, ids=str)
@pytest.mark.parametrize(
    ("name", "dtype"), [("f32", np.float32), ("f16", np.float16), ("f64", np.float64)]
)
def test_rounded_products_and_additions_are_numpy_s(name: str, dtype: Any, tree: Any) -> None:
    rho = Conversion("RNE", name)
    model = SumTree(tree, rho, rho_product=rho)
    x = cases.generate(model, name, name, name, 8, 600, 5)
    values = [v.view(dtype) for v in (x.a, x.b, x.c)]
    with np.errstate(all="ignore"):
        want = numpy_loop(dtype, *values, tree).view(x.c.dtype)  # type: ignore[arg-type]
    got = np.array([
        reference.dpa(
            model, x.a[i].tolist(), x.b[i].tolist(), int(x.c[i]),
            a_format=name, b_format=name, c_format=name,
        )
        for i in range(600)
    ], x.c.dtype)  # fmt: skip
    nan = np.isnan(want.view(dtype))
    assert (np.isnan(got.view(dtype)) == nan).all()
    assert (got[~nan] == want[~nan]).all()
    assert (~nan).mean() > 0.7


def test_what_enters_a_node_unrounded() -> None:
    half = 2.0**-24
    fused, apart = SumTree((("c", 0), 1)), SumTree(("c", (0,), (1,)))
    a, b = (1, half), (1, 1 + half)  # half a step and a hair, which a rounded product has not
    assert run(fused, a, b) == 1 + 2 * half
    assert run(SumTree(fused.tree, rho_product=RNE_FP32), a, b) == 1
    assert run(SumTree((0, 1)), (1 + half, half), (1, 1)) == 1 + 2 * half
    x = 1 + 2.0**-12  # x * x = 1 + 2^-11 + 2^-24: its last bit is rounded away, if it is rounded
    assert run(SumTree((0, "c")), (x,), (x,), -1 - 2.0**-11) == half
    assert run(SumTree(((0,), "c")), (x,), (x,), -1 - 2.0**-11) == 0
    assert run(SumTree((0, "c"), rho_product=RNE_FP32), (x,), (x,), -1 - 2.0**-11) == 0
    assert run(apart, (half, half), 1, 1.0) == 1 + 2 * half  # three at once


def test_out_rounds_a_second_time() -> None:
    a = (1 + 2.0**-8, 2.0**-8 * 2.0**-20)  # just above a tie of bf16, which f32 makes exact
    assert run(SumTree((0, 1), RNE_BF16), a, 1) == 1 + 2.0**-7
    twice = SumTree((0, 1), RNE_FP32, out=RNE_BF16)
    assert (run(twice, a, 1), twice.d) == (1, "bf16")
    assert run(twice, (1, 2.0**-7), 2.0**127, 0.0) == 2.0**127 * (1 + 2.0**-7)
    assert run(twice, (np.inf, 0), 1) == np.inf
    saturating = SumTree((0, 1), out=Conversion("RNE", "f16", overflow="saturate"))
    assert run(saturating, (70000, 0), 1) == 65504


def test_nodes_in_brackets_are_rounded_by_rho2() -> None:
    """A float16 accumulator over float32 sums of two; once rounded from them, or twice."""
    ulp = 2.0**-10
    model = SumTree("[[(0 1)] (2 3)]", rho2=RNE_FP16)
    assert (model.d, model.roundings) == ("f16", (RNE_FP32, RNE_FP16, RNE_FP32, RNE_FP16))
    assert run(model, (1, ulp / 4, ulp / 4, ulp / 4), 1) == 1  # both blocks are too small for f16
    assert (
        run(SumTree("[(0 1) (2 3)]", rho2=RNE_FP16), (1, ulp / 4, ulp / 4, ulp / 4), 1) == 1 + ulp
    )
    tie = (1, ulp / 2, ulp * 2.0**-16, 0)  # just above a tie of f16, which f32 makes exact
    assert run(SumTree("[(0 1) (2 3)]", rho2=RNE_FP16), tie, 1) == 1 + ulp
    assert run(SumTree("[((0 1) (2 3))]", rho2=RNE_FP16), tie, 1) == 1
    widths = SumTree("([0 1] (2 3))", rho2=RNE_FP16)
    assert (widths.d, run(widths, (1, ulp / 4, 0, ulp / 4), 1)) == ("f32", 1 + ulp / 4)
    start = SumTree("([(0)] 1)", zero="start", rho2=RNE_FP16)
    assert sign(run(start, (-0.0, -0.0), 1)) == 1


def test_brackets_and_rho2_go_together() -> None:
    for tree, rho2 in (("(0 1)", RNE_FP16), ("[0 1]", None), ("([0] 1)", None)):
        with pytest.raises(ValueError, match=r"rho2 rounds the nodes in \[ \], and the tree has"):
            SumTree(tree, rho2=rho2)
    for tree in ("(0 1]", "[0 1)", "([0) 1]", "]0[", "[]"):
        with pytest.raises(ValueError, match="SumTree: tree"):
            SumTree(tree, rho2=RNE_FP16)
    model = SumTree(" [ (0   c)1 ] ", rho2="RNE_FP16")
    assert (model.tree, model.rho2) == ("[(0 c) 1]", RNE_FP16)
    assert eval(repr(model), vars(models)) == model == pickle.loads(pickle.dumps(model))


@pytest.mark.parametrize(("last", "want"), [("no", -(2.0**-24)), ("zero", 0.0), ("sign", -0.0)])
def test_the_last_rounding_may_flush_otherwise(last: Any, want: float) -> None:
    """Sums flush to zeros of their sign; -2^-24, normal there, is subnormal in the output."""
    model = SumTree("(0 1)", out=RNE_FP16, flush_out="sign", flush_last=last)
    got = run(model, (-(2.0**-24), 0), 1)
    assert (got, sign(got)) == (want, sign(want))
    got = run(model, (-(2.0**-140), -0.0), 1)  # whatever the output does, -0 comes of the sum
    assert (got, sign(got)) == (0, 1 if last == "zero" else -1)
    assert run(dataclasses.replace(model, flush_last=None), (-(2.0**-24), 0), 1) == 0
    with pytest.raises(ValueError, match="flush_last is for the results of out"):
        SumTree("(0 1)", flush_last="no")
    with pytest.raises(ValueError, match="flush_last is one of"):
        SumTree("(0 1)", out=RNE_FP16, flush_last="yes")  # type: ignore[arg-type]


def test_a_sum_without_c_ignores_it() -> None:
    assert run(SumTree((0, 1)), (1, 2), 1, np.nan) == 3


def test_deep_trees() -> None:
    """4096 additions in a row: no recursion anywhere."""
    deep = functools.reduce(lambda t, i: (t, i), range(4096), "c")
    model = SumTree(deep, RNE_FP32)
    same = pickle.loads(pickle.dumps(SumTree(model.tree)))
    assert (same, hash(same), model.K, model.nodes[-1]) == (model, hash(model), 4096, (8191, 4095))
    assert run(model, [1.0] * 4096, 1, 2.0**24, f="f16") == 2.0**24
    assert run(model, [1.0] * 4096, 2, 2.0**24, f="f16") == 2.0**24 + 8192


def test_text_and_tuples_are_the_same_tree() -> None:
    model = SumTree(((("c", 0), [1]), 2))
    assert model == SumTree("(((c 0) (1)) 2)") == SumTree(" ( ((c 0)(1) ) 2)")
    assert model.nodes == ((3, 0), (1,), (4, 5), (6, 2))
    assert eval(repr(model), vars(models)) == model
    assert dataclasses.replace(model, rho=RNE_FP64).tree == model.tree


def itself() -> list[Any]:
    x: list[Any] = []
    x.append(x)
    return x


@pytest.mark.parametrize(
    ("tree", "error"),
    [
        (itself(), "more than 16384"), ((), "node of nothing"), (((0,), ()), "node of nothing"),
        ((0, 1, 1), "each of 0..K-1 once"), ((0, 2), "each of 0..K-1 once"),
        (("c",), "each of 0..K-1 once"), ((0, "c", ("c",)), "c 2 times"),
        ("(0 1", "parentheses matched"), ("0", "parentheses matched"),
        ("(0) (1)", "parentheses matched"), ("(0)) (", "parentheses matched"),
        ("", "parentheses matched"), ("(01)", "'01'"), ("(-1 0)", "'-1'"), ("(0 d)", "'d'"),
        ((0, -1), "'-1'"), (tuple(range(4097)), "4097 products"),
    ],
    ids=lambda x: str(x)[:20],
)  # fmt: skip
def test_trees_that_are_none(tree: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error.replace("(", r"\(")):
        SumTree(tree)


@pytest.mark.parametrize("tree", [3, None, "c"[:0] or 0.5, (0, 1.5), (True,), ({0},), (0, "d")])
def test_trees_of_other_things(tree: Any) -> None:
    with pytest.raises(TypeError, match="SumTree: tree"):
        SumTree(tree)


# --- families as FDPA and SumTree -----------------------------------------------------------------


def same_bits(
    model: Model, other: Model, a: str, b: str, c: str, k: int, *, scale: str | None = None,
    block: int | None = None, count: int = 15 * len(cases.CATEGORIES),
) -> None:  # fmt: skip
    """Both by the reference, over all categories, aimed at either model."""
    for aim in (model, other):
        x = cases.generate(aim, a, b, c, k, count, 7, scale_format=scale, block=block)
        for i in range(count):
            operands = x.a[i].tolist(), x.b[i].tolist(), int(x.c[i])
            keywords: dict[str, Any] = {"a_format": a, "b_format": b, "c_format": c}
            if x.scale_a is not None and x.scale_b is not None:
                keywords |= {"scale_a": x.scale_a[i].tolist(), "scale_b": x.scale_b[i].tolist(),
                             "scale_format": scale, "block": block}  # fmt: skip
            one, two = (reference.dpa(m, *operands, **keywords) for m in (model, other))
            assert one == two, (model, other, operands, hex(one), hex(two))


FAMILIES: list[tuple[Model, str, str, str, int]] = [
    (TFDPA(), "f16", "f16", "f32", 16),
    (TFDPA(8, 24, RZ_FP32, -132), "bf16", "bf16", "f32", 16),
    (TFDPA(16, 25, RNE_FP16, -21), "f16", "f16", "f16", 16),
    (TFDPA(32, 13, RZ_E8M13), "e4m3", "e5m2", "f32", 32),
    (TFDPA(3, 7, Conversion("RU", "bf16", 5), -3), "f32", "e2m3", "f64", 8),
    (TRFDPA(8), "bf16", "bf16", "f32", 16),
    (TRFDPA(4), "xf32", "xf32", "f32", 8),
    (TRFDPA(4, 10, 64, RNE_FP16), "f32", "bf16", "f64", 8),
    (GTRFDPA(16), "fp8", "bf8", "f32", 32),
    (GTRFDPA(16), "bf16", "bf16", "f32", 16),
    (GTRFDPA(1, 10, 12), "bf16", "f16", "f16", 3),
    (EFDPA(4), "f16", "f16", "f32", 16),
    (EFDPA(2, Conversion("RD", "f32")), "bf16", "bf16", "f64", 8),
    (FMA(RNE_FP32), "f32", "f32", "f32", 4),
    (FMA(RNE_FP64), "f64", "f64", "f64", 4),
]


@pytest.mark.parametrize(("model", "a", "b", "c", "k"), FAMILIES, ids=lambda x: str(x))
def test_families_are_fdpas(model: Model, a: str, b: str, c: str, k: int) -> None:
    other = as_fdpa(model)
    assert other is not None
    assert (as_family(other), as_fdpa(other)) == (model, other)
    same_bits(model, other, a, b, c, k)


def test_st_fdpa_is_an_fdpa() -> None:
    model, other = STFDPA(), as_fdpa(STFDPA())
    assert other is not None
    same_bits(model, other, "e5m2", "e4m3", "f32", 64, scale="ue8m0", block=32, count=130)


def test_every_model_of_the_catalogue_that_is_an_fdpa() -> None:
    kinds = {(e.model, e.a, e.b, e.c, e.k) for e in isa.catalogue() if e.scale is None}
    for model, a, b, c, k in sorted(kinds, key=str):
        other = as_fdpa(model)
        assert (other is None) == isinstance(model, FTZMulAdd | Lowered)
        if other is not None:
            same_bits(model, other, a, b, c, k, count=len(cases.CATEGORIES))


def test_what_is_no_fdpa() -> None:
    for model in (FTZMulAdd(), Lowered(), GSTFDPA(), SumTree((0, "c"))):
        assert as_fdpa(model) is None
    for field, value in {
        "cut": "RD", "F_c": 24, "cut_c": "RNE", "c": "late", "e_zero": None, "drop_c": 30,
        "renormalise": True, "groups": 2, "F_sum": 40, "product_overflow": 128, "flush_in": "zero",
        "flush_c": "sign", "flush_out": "sign", "order": "pairwise", "zero": "ieee", "nan": "quiet",
    }.items():  # fmt: skip
        assert as_family(dataclasses.replace(FDPA(), **{field: value})) is None, field
    assert as_family(FDPA(F=65, F_c=65)) is None
    # What does not matter beside the other fields makes no difference.
    assert as_family(FDPA(cut_sum="RD", cut2="RA", F_groups=3, e_sum=5)) == TFDPA()


def ftz_tree(P: int, k: int) -> SumTree:
    """FTZ-MulAdd is no FDPA but, for a fixed k, a tree."""
    tree: Any = "c"
    for g in range(0, k, P):
        tree = (tree, (g, g + 1) if P == 2 else ((g, g + 1), (g + 2, g + 3)))
    return SumTree(
        tree, RNE_FP32, RNE_FP32, flush_in="zero", flush_c="zero", flush_out="sign"
    )  # fmt: skip


@pytest.mark.parametrize("P", [2, 4])
@pytest.mark.parametrize(("a", "c"), [("bf16", "f32"), ("f16", "f32"), ("f32", "f64")])
def test_ftz_mul_add_is_a_tree(P: int, a: str, c: str) -> None:
    same_bits(FTZMulAdd(P), ftz_tree(P, 8), a, a, c, 8)


def test_chains_of_fma_and_of_exact_sums_are_trees() -> None:
    fma = SumTree(functools.reduce(lambda t, i: (t, i), range(6), "c"), RNE_FP32)
    same_bits(FMA(RNE_FP32), fma, "f32", "f32", "f32", 6)
    exact = SumTree((("c", *range(4)), *range(4, 8)), RNE_FP32, zero="signed")
    same_bits(EFDPA(4), exact, "bf16", "bf16", "f32", 8)


# --- as values ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [FDPA(), FDPA(4, None, c="late", rho_products="RNE-FP32", nan="quiet"), SumTree((0, 1, "c"))],
)
def test_models_are_values(model: Model) -> None:
    models.check_model(model)
    assert pickle.loads(pickle.dumps(model)) == model
    assert eval(repr(model), vars(models)) == model
    assert {model: 1}[dataclasses.replace(model)] == 1


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"L": 0}, "L must be 1 to 4096"), ({"F": 66}, "F must be 1 to 65"),
        ({"F": 2.5}, "F must be an int"), ({"cut": "RX"}, "cut is one of RNE"),
        ({"c": "middle"}, "c is one of early, late"), ({"F2": 3}, "F2 is for a late c"),
        ({"rho_products": RNE_FP32}, "rho_products is for a late c"),
        ({"rho_products": "FP32", "c": "late"}, "rho_products must be a Conversion"),
        ({"flush_in": True}, "flush_in is one of no, zero, sign"),
        ({"zero": "minus"}, "zero is one of plus"), ({"nan": "x"}, "nan is one of ones"),
        ({"order": "tree"}, "order is one of chain"), ({"renormalise": 1}, "renormalise must be"),
        ({"groups": 0}, "groups must be 1"), ({"drop_c": -1}, "drop_c must be 0"),
        ({"e_zero": 5000}, "e_zero must be"),
    ],
)  # fmt: skip
def test_fdpa_says_what_is_wrong(fields: dict[str, Any], error: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"FDPA: {error}"):
        FDPA(**fields)


def test_conversions_say_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="overflow is one of inf, saturate, ieee, not 'clip'"):
        Conversion("RZ", "f32", overflow="clip")
    saturating = Conversion("RNE", "f16", overflow="saturate")
    assert eval(repr(saturating), vars(models)) == saturating


def test_k_must_be_the_tree_s() -> None:
    model = SumTree((0, 1, "c"))
    A, B = np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)
    with pytest.raises(ValueError, match="K must be 2, the products of the SumTree, not 3"):
        mma(model, A, B, a="f32")
    with pytest.raises(ValueError, match="the length of a must be 2"):
        reference.dpa(model, [0], [0], 0, a_format="f32", b_format="f32", c_format="f32")
    assert (mma(model, A[:, :2], B[:2], a="f32") == 2).all()
