"""FDPA and SumTree on the engine against the reference: random models with every field drawn."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bitmma import _native, cases, engine, formats, reference
from bitmma.engine import cpu
from bitmma.models import (
    EFDPA,
    FDPA,
    FMA,
    GTRFDPA,
    RNE_FP16,
    RNE_FP32,
    RNE_FP64,
    RZ_E8M13,
    STFDPA,
    TFDPA,
    TINY_RULES,
    TRFDPA,
    Conversion,
    Lowered,
    Model,
    SumTree,
    as_fdpa,
)
from fuzzer import fuzzer

Check = Callable[..., None]


def compare(
    unit: Any, count: int, seed: int, check: Check, *, first: int = 0
) -> list[reference.Trace]:
    """Dot products ``first`` to ``first + count`` of a unit on both; the reference's traces."""
    u = unit
    x = cases.generate(
        u.model, u.a, u.b, u.c, u.k, first + count, seed, scale_format=u.scale, block=u.block
    )
    a, b, c, scale_a, scale_b = (
        None if v is None else v[first:] for v in (x.a, x.b, x.c, x.scale_a, x.scale_b)
    )
    keywords: dict[str, Any] = {
        "a_format": u.a, "b_format": u.b, "c_format": u.c, "scale_format": u.scale, "block": u.block
    }  # fmt: skip
    traces = [
        reference.trace(
            u.model, a[i].tolist(), b[i].tolist(), int(c[i]), **keywords,
            scale_a=() if scale_a is None else scale_a[i].tolist(),
            scale_b=() if scale_b is None else scale_b[i].tolist(),
        )
        for i in range(count)
    ]  # fmt: skip
    want = np.array([t.result for t in traces], formats.get(u.model.d).code_dtype)
    got = engine.dpa(u.model, a, b, c, scale_a=scale_a, scale_b=scale_b, **keywords)
    check(u.model, got, want, repr(u))
    if u.model.nan == "quiet":  # of these the payload is not claimed, but it is the canonical one
        assert (got == want).all(), u
    return traces


@pytest.mark.parametrize(("part", "units"), [(i, 60) for i in range(4)])
def test_random_models(part: int, units: int, assert_same_bits: Check) -> None:
    rng = np.random.default_rng([part, 4])
    seen: dict[str, set[Any]] = defaultdict(set)
    traces = []
    for number in range(units):
        L = int(fuzzer.pick(rng, (1, 2, 3, 4, 5, 8, 16)))
        unit = fuzzer.draw_general(rng, L)
        every = len(cases.CATEGORIES)  # one of each category, not always its first
        first = every * int(rng.integers(10))
        traces += compare(unit, every, number, assert_same_bits, first=first)
        for field in dataclasses.fields(unit.model):
            seen[field.name].add(getattr(unit.model, field.name))
    assert cases.coverage(traces).missing() == ()
    finite = [np.isfinite(formats.decode(np.array(t.result, formats.get(t.d_format).code_dtype),
                                         t.d_format)) for t in traces]  # fmt: skip
    assert np.mean(finite) > 0.6
    for field in ("cut", "cut_c", "cut_groups", "cut2", "cut_sum"):
        assert seen[field] == set(formats.ROUNDINGS), field
    for field, words in {
        "c": {"early", "late"}, "order": {"chain", "pairwise"}, "nan": {"ones", "quiet"},
        "zero": {"plus", "signed", "ieee"}, "renormalise": {False, True}, "groups": {1, 2, 3},
        **{x: {"no", "zero", "sign"} for x in ("flush_in", "flush_c", "flush_out")},
        "tiny": {"stored", "after", "before"},
    }.items():  # fmt: skip
        assert seen[field] == words, field
    for field in ("F", "F_c", "F_groups", "F2", "F_sum", "e_zero", "e_sum", "drop_c",
                  "product_overflow", "rho_products", "rho_product", "out"):  # fmt: skip
        assert None in seen[field] and len(seen[field]) > 2, field
    for field in ("rho2", "flush_last"):
        assert None in seen[field] and len(seen[field]) > 1, field
    assert len(seen["rho"]) > 10 and len(seen["tree"]) > 10
    assert {rho.overflow for rho in seen["rho"]} == {"inf", "saturate", "ieee"}


def unit(model: Model, a: str, b: str, c: str, k: int, **scales: Any) -> Any:
    return fuzzer.Unit(model, a, b, c, k, **scales)


WIDE = FDPA(8, None, F_c=None, e_zero=None, rho=RNE_FP64, zero="ieee", nan="quiet")


@pytest.mark.parametrize(
    "u",
    [
        # Sums far wider than any integer, with every cut that may follow.
        unit(WIDE, "f64", "f64", "f64", 8),
        unit(dataclasses.replace(WIDE, F_sum=65, cut_sum="RNE"), "f64", "f64", "f64", 8),
        unit(dataclasses.replace(WIDE, c="late", F2=65, cut2="RA"), "f64", "f32", "f64", 8),
        unit(dataclasses.replace(WIDE, groups=3, F_groups=65, cut_groups="RD"), "f64", "bf16",
             "f64", 8),
        unit(dataclasses.replace(WIDE, c="late", rho_products=RNE_FP16), "f64", "f64", "f64", 8),
        unit(FDPA(8, 65, "RNA", F_c=1, rho=RNE_FP64), "f64", "f64", "f64", 16),
        unit(FDPA(8, 1, "RZ", "late", 65, "RU", F2=65, rho=RNE_FP64), "bf16", "f64", "f64", 16),
        # Exponents of zero and of sums far from all others.
        unit(FDPA(4, 10, "RU", e_zero=1000, rho=RNE_FP64), "f16", "f16", "f64", 4),
        unit(FDPA(4, 10, "RD", e_zero=-100_000, F_sum=9, e_sum=1000), "f16", "f16", "f32", 4),
        # Long groups, long instructions, more lanes than products.
        unit(FDPA(4096, 25, "RNE"), "f16", "f16", "f32", 4096),
        unit(FDPA(1000, None, F_c=None, groups=7), "bf16", "e5m2", "f32", 2000),
        unit(FDPA(2, order="pairwise", rho=RZ_E8M13), "e4m3", "e5m2", "f16", 301),
        unit(FDPA(3, groups=64, F_groups=12, cut_groups="RA"), "f16", "f16", "f16", 7),
        # Blocks of scales within a step, across steps, and where K is filled up.
        unit(FDPA(16, 25), "e2m1", "e2m1", "f32", 40, scale="ue4m3", block=8),
        unit(FDPA(4, 25, order="pairwise"), "e5m2", "e4m3", "f32", 30, scale="ue8m0", block=3),
        unit(FDPA(8, 65, renormalise=True, rho=RNE_FP64), "f64", "f64", "f64", 8, scale="ue4m3",
             block=4),
        # Families that are routed to their kernels.
        *(unit(as_fdpa(m), a, a, c, k) for m, a, c, k in (
            (TFDPA(), "f16", "f32", 16), (TRFDPA(), "bf16", "f32", 16), (EFDPA(), "f16", "f32", 16),
            (GTRFDPA(), "fp8", "f32", 32), (FMA(), "f32", "f32", 4),
        )),
        unit(as_fdpa(STFDPA()), "e4m3", "e4m3", "f32", 64, scale="ue8m0", block=32),
        unit(as_fdpa(STFDPA()), "e4m3", "e4m3", "f32", 64, scale="ue8m0", block=16),
        unit(as_fdpa(STFDPA()), "e4m3", "e4m3", "f32", 64, scale="ue4m3", block=32),
    ],
    ids=str,
)  # fmt: skip
def test_fdpas_at_the_edges(u: Any, assert_same_bits: Check) -> None:
    compare(u, 4 if u.k > 100 else 6 * len(cases.CATEGORIES), 3, assert_same_bits)


RNE_BF16, RD_IEEE = Conversion("RNE", "bf16"), Conversion("RD", "f32", overflow="ieee")


def chain(K: int, start: Any = "c") -> Any:
    return functools.reduce(lambda t, i: (t, i), range(K), start)


def accumulators(K: int, n: int) -> Any:
    """n strided chains of FMAs, then added in pairs: what BLAS kernels do."""
    sums = [functools.reduce(lambda t, i: (t, i), range(j + n, K, n), (j,)) for j in range(n)]
    while len(sums) > 1:
        sums = [(sums[i], sums[i + 1]) for i in range(0, len(sums), 2)]
    return (sums[0], "c")


@pytest.mark.parametrize(
    "u",
    [
        unit(SumTree(chain(512)), "f32", "f32", "f32", 512),
        unit(SumTree(accumulators(512, 8)), "f32", "f32", "f32", 512),
        unit(SumTree(accumulators(512, 16), RNE_FP64), "f64", "f64", "f64", 512),
        unit(SumTree(accumulators(64, 8), rho_product=RNE_FP32), "f32", "f32", "f32", 64),
        unit(SumTree(accumulators(64, 4), out=RNE_BF16), "bf16", "bf16", "f32", 64),
        unit(SumTree(accumulators(64, 4), flush_out="sign"), "bf16", "bf16", "f32", 64),
        unit(SumTree((((0, 1), (2, 3)), "c")), "f16", "f16", "f32", 4),  # their products are exact
        unit(SumTree((((0, 1), (2, 3)), "c")), "bf16", "bf16", "f32", 4),  # these can underflow
        unit(SumTree((((0, 1), (2, 3)), "c"), RNE_FP64), "f32", "f32", "f64", 4),
        unit(SumTree(chain(4), RNE_FP32), "f32", "f32", "f64", 4),  # c is wider
        unit(SumTree(chain(3, 3), RNE_FP32), "f32", "f64", "f64", 4),
        unit(SumTree(chain(8), RNE_FP16, flush_c="zero", flush_in="sign"), "f16", "e5m2", "f16", 8),
        unit(SumTree((*range(100), "c"), RNE_FP64), "f64", "f64", "f64", 100),
        unit(SumTree(chain(4096), RNE_FP32), "e4m3", "e2m3", "f32", 4096),
        unit(SumTree(chain(3, ("c",)), RD_IEEE), "f32", "f32", "f32", 3),
        unit(SumTree("[([(((0 1) 2) 3)] (((4 5) 6) 7))]", rho2=RNE_FP16), "f16", "f16", "f16", 8),
        unit(SumTree("[[[(c 0) 1] (2)] 3]", RNE_FP16, rho2=RNE_FP32), "f16", "f16", "f16", 4),
        unit(SumTree("([0 1] [2 3])", RNE_FP32, out=RNE_FP16, rho2=Conversion("RZ", "f32", 12),
                     flush_out="sign", flush_last="no"), "bf16", "bf16", "f32", 4),
    ],
    ids=lambda u: f"{u.k}-{u.a}-{u.model.rho}-{u.model.tree[:20]}",
)  # fmt: skip
def test_sum_trees(u: Any, assert_same_bits: Check) -> None:
    compare(u, 4 if u.k > 100 else 6 * len(cases.CATEGORIES), 4, assert_same_bits)


@pytest.mark.parametrize("isa", _native.isas())
def test_every_build_has_the_same_trees(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines fuse multiply-adds; plain C++ must come to the same."""
    model, f32 = SumTree(accumulators(64, 8)), np.float32
    rng = np.random.default_rng(1)
    A, B, C = (rng.normal(size=s).astype(f32).view("u4") for s in ((9, 64), (64, 7), (9, 7)))
    monkeypatch.setattr(cpu, "_ISA", isa)
    got = engine.mma(model, A, B, C, a_format="f32", b_format="f32")
    for i, j in np.ndindex(9, 7):
        want = reference.dpa(
            model, A[i].tolist(), B[:, j].tolist(), int(C[i, j]),
            a_format="f32", b_format="f32", c_format="f32",
        )  # fmt: skip
        assert got[i, j] == want


@pytest.mark.parametrize("flush_out", ["no", "zero", "sign"])
@pytest.mark.parametrize("zero", ["plus", "signed", "ieee", "start"])
def test_sums_of_the_machine_that_flush(flush_out: str, zero: str, assert_same_bits: Check) -> None:
    """Trees of additions to nearest in f32: flushed or not, -0 or not, products rounded or not."""
    for tree, a, rho_product, out in itertools.product(
        ("((((0) 2) (1 3)) c)", "(((0 1)) (2 3))"), ("bf16", "f16", "f32"), (None, RNE_FP32),
        (None, Conversion("RNE", "bf16")),
    ):  # fmt: skip
        model = SumTree(
            tree, flush_in="zero", flush_out=flush_out, zero=zero, rho_product=rho_product, out=out
        )
        c = "f32" if out is None else "bf16"
        for category in ("subnormal", "zeros", "cancel", "special"):
            x = cases.generate(model, a, a, c, 4, 6, 1, category=category)
            got = engine.dpa(model, x.a, x.b, x.c, a_format=a, b_format=a, c_format=c)
            want = [
                reference.chain(
                    model, x.a[i].tolist(), x.b[i].tolist(), int(x.c[i]), k=4, a_format=a,
                    b_format=a, c_format=c,
                )
                for i in range(len(x.c))
            ]  # fmt: skip
            assert_same_bits(model, got, np.array(want, got.dtype))


@pytest.mark.parametrize("tiny", TINY_RULES)
@pytest.mark.parametrize("mode", formats.ROUNDINGS)
@pytest.mark.parametrize("a", ["f32", "f64"])
def test_sums_of_about_the_smallest_normal_number(
    a: str, mode: str, tiny: str, assert_same_bits: Check
) -> None:
    """Products of it and a hair, sums of a product and c that leave it and a hair."""
    fmt, rng, n = formats.get(a), np.random.default_rng(3), 120
    dtype, smallest = np.dtype(f"f{fmt.width // 8}"), 2.0**fmt.min_exponent
    wide = np.longdouble
    x = np.zeros((3, n, 2), dtype)  # a, b, and c in place of the second product
    x[0, :, 0] = rng.uniform(1, 2, n) * 2.0 ** (fmt.min_exponent // 2)
    far = np.where(rng.random(n) < 0.5, 0, wide(smallest) * rng.integers(-9, 9, n) * 2.0**20)
    x[1, :, 0] = (wide(smallest) - far) / x[0, :, 0]
    x[1, :, 0] = np.where(rng.random(n) < 0.3, np.nextafter(x[1, :, 0], dtype.type(0)), x[1, :, 0])
    x[2, :, 0] = wide(smallest) - x[0, :, 0].astype(wide) * x[1, :, 0]
    x[2, far == 0, 0] = np.ldexp(smallest, -fmt.mantissa_bits) * rng.integers(-2, 3, sum(far == 0))
    x[::2, ::3] = -x[::2, ::3]
    codes = x.view(fmt.code_dtype)
    rho, words = Conversion(mode, a), {"a_format": a, "b_format": a, "c_format": a}
    for tree, product, flush in (
        ("((0 c) 1)", None, "zero"), ("((0) (1 c))", None, "sign"), ("((0 c) 1)", rho, "sign"),
        (None, None, "sign"),
    ):  # fmt: skip
        model: Any = FDPA(2, None, F_c=None, rho=rho, flush_out=flush, tiny=tiny, zero="ieee")
        if tree is not None:
            model = SumTree(tree, rho, product, flush_out=flush, tiny=tiny)
        want = [
            reference.chain(
                model, codes[0, i].tolist(), codes[1, i].tolist(), int(codes[2, i, 0]), k=2, **words
            )
            for i in range(n)
        ]  # fmt: skip
        got = engine.dpa(model, codes[0], codes[1], codes[2, :, 0], **words)
        assert_same_bits(model, got, np.array(want, got.dtype))
        other = {}
        for rule in TINY_RULES:
            with_rule = dataclasses.replace(model, tiny=rule)
            other[rule] = engine.dpa(with_rule, codes[0], codes[1], codes[2, :, 0], **words)
        if mode == "RZ":
            assert (other["stored"] == other["before"]).all()
        else:
            assert (other["stored"] != other["after"]).any()
            assert (other["after"] != other["before"]).any()


@pytest.mark.parametrize(
    "model",
    [
        FDPA(4, 12, "RD", order="pairwise"), FDPA(4, 12, "RD", c="late", rho_products=RNE_FP32),
        FDPA(4, None, F_c=None, e_zero=None), SumTree(accumulators(8, 2)),
    ],
    ids=str,
)  # fmt: skip
def test_matrices_and_chains_of_instructions(model: Model, assert_same_bits: Check) -> None:
    """K = 22 as instructions of 8, the last one filled up; c of its own format in the first."""
    x = cases.matrices(model, "bf16", "bf16", "bf16", 21, 17, 22, 5)
    keywords: dict[str, Any] = {"a_format": "bf16", "b_format": "bf16", "c_format": "bf16", "k": 8}
    want = np.array([
        [reference.chain(model, x.a[i].tolist(), x.b[:, j].tolist(), int(x.c[i, j]), **keywords)
         for j in range(17)] for i in range(21)
    ], np.uint32)  # fmt: skip
    for threads in (1, 3):
        got = engine.mma(model, x.a, x.b, x.c, threads=threads, **keywords)
        assert_same_bits(model, got, want)
    turned = engine.mma(model, x.b.T, x.a.T, x.c.T, **keywords)
    assert_same_bits(model, turned, want.T)


def test_families_that_saturate_run_exactly(assert_same_bits: Check) -> None:
    for overflow in ("saturate", "ieee"):
        for mode in ("RNE", "RZ", "RD", "RU"):
            rho = Conversion(mode, "f16", 7, overflow)
            unit_of = TFDPA(4, 25, rho, -21)
            for model in (unit_of, TRFDPA(4, 24, 31, rho), EFDPA(4, rho), Lowered(8, unit_of)):
                traces = compare(unit(model, "f16", "f16", "f16", 8), 78, 6, assert_same_bits)
                assert sum(formats.get("f16").decode(t.result).exponent == 15 for t in traces) >= 3


def test_pairwise_instructions_have_a_longest() -> None:
    one = np.zeros((1, 1), np.uint16)
    A, B = (np.broadcast_to(one, shape) for shape in ((1, (1 << 20) + 1), ((1 << 20) + 1, 1)))
    with pytest.raises(ValueError, match="K must be at most 1048576 in pairwise order"):
        engine.mma(FDPA(order="pairwise"), A, B, a_format="f16", b_format="f16")
    got = engine.mma(FDPA(order="pairwise"), A, B, a_format="f16", b_format="f16", k=1 << 20)
    assert got[0, 0] == 0
