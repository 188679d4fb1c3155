"""Whole products in analysis: schedules, scales, epilogues, recipes, models of any kind; bounds.

Exact results are computed here in Python's fractions, from the definitions.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import bitmma
from bitmma import Epilogue, Schedule, analysis, cases, formats, models, recipes
from bitmma.analysis import bounds, products, stages
from bitmma.models import (
    FDPA,
    RNE_FP32,
    RZ_FP32,
    TFDPA,
    Conversion,
    SumTree,
    as_fdpa,
)
from fuzzer import fuzzer


def fractions(x: Any) -> Any:
    return np.frompyfunc(Fraction, 1, 1)(np.asarray(x).astype(np.float64))


def floats(x: Any) -> Any:
    return np.asarray(x).astype(float)


def normal(shape: tuple[int, ...], fmt: str, seed: int, scale: float = 1.0) -> Any:
    x = analysis.sample("normal", shape, seed=seed, scale=scale)
    return formats.quantize(np.abs(x) if fmt.startswith("u") else x, fmt)


M, N = 5, 4
H100 = bitmma.instruction("H100", "m64n8k32.f32.e4m3.e4m3")
HALF = bitmma.instruction("H100", "m16n8k16.f16.f16.f16.f16")
SCALED = bitmma.instruction("RTX 5090", "m16n8k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.f32.ue4m3")
ROW, COLUMN = normal((M, 1), "f32", 11), normal((1, N), "f32", 12)
BIAS = normal((N,), "f32", 13)

WHOLE: dict[str, tuple[Any, int, bool, dict[str, Any]]] = {
    "promoted": (H100, 320, True, {"schedule": Schedule(promote_every=128)}),
    "promoted f16": (HALF, 80, True, {"schedule": Schedule(promote_every=32)}),
    "split": (H100, 512, True, {"schedule": Schedule(split_k=3, split_tile=64)}),
    "split in pairs, promoted": (H100, 640, False, {"schedule": Schedule(
        64, split_k=5, split_order="interleaved", split_tile=64, reduce="pairwise")}),
    "promotion's scales": (H100, 384, True, {
        "schedule": Schedule(promote_every=128),
        "promote_scale_a": normal((M, 3), "f32", 3), "promote_scale_b": normal((3, 1), "f32", 4)}),
    "one scale, unfused": (H100, 256, False, {
        "schedule": Schedule(promote_every=64, promote_fused=False),
        "promote_scale_b": normal((2, 1), "f32", 4)}),
    "block scales, promoted": (SCALED, 192, True, {
        "schedule": Schedule(promote_every=64),
        "scale_a": normal((M, 12), "ue4m3", 5), "scale_b": normal((12, N), "ue4m3", 6)}),
    "tensor-wise to bf16": (H100, 96, False, {
        "epilogue": Epilogue(scale_a=0.3, scale_b=1.7, out_format="bf16")}),
    "alpha, beta, bias, f16": (H100, 96, True, {"epilogue": Epilogue(
        alpha=1.1, beta=-0.7, bias=BIAS, scale_result=0.9, out_format="f16")}),
    "beta in FP32": (H100, 96, True, {"epilogue": Epilogue(beta=2.5)}),
    "row-wise to e4m3": (H100, 96, True, {"epilogue": Epilogue(
        scale_a=ROW, scale_b=COLUMN, bias=BIAS, scale_result=3.3, out_format="e4m3")}),
    "all of it": (H100, 384, True, {
        "schedule": Schedule(promote_every=128),
        "promote_scale_a": normal((M, 3), "f32", 3), "promote_scale_b": normal((3, 1), "f32", 4),
        "epilogue": Epilogue(alpha=0.1, beta=0.3, scale_b=7.0, bias=BIAS, out_format="bf16")}),
}  # fmt: skip


def exactly(instr: Any, A: Any, B: Any, C: Any, options: dict[str, Any]) -> Any:
    """The definition, in fractions."""
    K = A.shape[1]
    a, b, k = fractions(A), fractions(B), np.arange(K)
    for x in ("scale", "promote_scale"):
        block = instr.block if x == "scale" else 128
        if f"{x}_a" in options:
            a = a * fractions(options[f"{x}_a"])[:, k // block]
        if f"{x}_b" in options:
            b = b * fractions(options[f"{x}_b"])[k // block]
    total = a.dot(b)
    e = options.get("epilogue") or Epilogue()
    c = Fraction(0) if C is None else fractions(C)
    total = total if e.beta is not None else total + c
    for factor in (e.scale_a, e.scale_b, e.alpha):
        total = total if factor is None else total * fractions(factor)
    total = total if e.beta is None else total + fractions(e.beta) * c
    total = total if e.bias is None else total + fractions(e.bias)
    return total if e.scale_result is None else total * fractions(e.scale_result)


@pytest.mark.parametrize("name", WHOLE)
def test_whole_products(name: str) -> None:
    instr, K, with_c, options = WHOLE[name]
    A, B = normal((M, K), instr.a, 1), normal((K, N), instr.b, 2)
    C = normal((M, N), "f32", 3) if with_c else None
    if C is not None and instr.c == "f16" and "schedule" not in options:
        C = C.astype(np.float16)
    if C is not None and "schedule" not in options and options["epilogue"].beta is None:
        C = formats.quantize(C, instr.c)
    e = analysis.errors(instr, A, B, C, **options)
    x = exactly(instr, A, B, C, options)
    d = bitmma.matmul(A, B, C, instruction=instr, **options)
    wrong = fractions(d) - x
    assert e.total.count == M * N
    assert (e.d == d.astype(float)).all() and (e.exact == floats(x)).all()
    assert (e.error == floats(wrong)).all()
    assert e.bound is not None and e.bound.held and (abs(wrong) <= fractions(e.bound.values)).all()
    assert e.bound.tightest > 1e-3

    out = options["epilogue"].out_format if "epilogue" in options else "f32"
    expected = ["accumulation", "alignment", "rounding"] + ["output"] * (out != "f32")
    assert [c.name for c in e.causes] == expected
    p = products.product(instr, A, B, C, options)
    values = [fractions(p.d)]
    values += [sum(fractions(part) for part in s.d.parts) for s in stages.peel(p)]
    assert (values[-1] == x).all()
    for cause, before, after in zip(e.causes, values[:-1], values[1:], strict=True):
        assert cause.part.max_abs == pytest.approx(float(abs(before - after).max()), rel=1e-13)
    if out != "f32":  # what is left before the end is one rounding of the exact result
        saturate = out == "e4m3"
        once = formats.quantize(floats(x), out, saturate=saturate).astype(float)  # no ties here
        assert (floats(values[-2]) == once).all()


def test_accumulators_that_lose_nothing_outside_the_unit() -> None:
    """Two chains of one product each: 2^24 and 1.5, by FP32 2^24 + 2; wide and exact, then RNE."""
    A, B = np.zeros((1, 64)), np.ones((64, 1))
    A[0, 0], A[0, 1:17] = 448, 448
    A[0, 32] = 1.5
    B[0], B[1:17] = 448, 448
    a, b = formats.quantize(A, "e4m3"), formats.quantize(B, "e4m3")
    scale = np.array([[2.0**3, 1.0]], np.float32)
    options = {"promote_scale_a": scale, "promote_block_a": (1, 32),
               "schedule": Schedule(promote_every=32)}  # fmt: skip
    e = analysis.errors(H100, a, b, **options)
    exact = 17 * 448**2 * 8 + 1.5  # 27295744 + 1.5: needs 25 bits and more
    assert e.exact.item() == exact
    parts = {c.name: c.part.bias for c in e.causes}
    assert sum(parts.values()) == e.total.bias == e.d.item() - exact
    assert parts["rounding"] == float(np.float32(exact)) - exact == 0.5


# --- recipes --------------------------------------------------------------------------------------


def test_recipes_whole() -> None:
    A, B = normal((M, 256), "e4m3", 1), normal((256, N), "e4m3", 2)
    mm = recipes.scaled_mm("H100")
    e = analysis.errors(mm, A, B, scale_a=0.3, scale_b=0.25, bias=BIAS)
    factor = Fraction(float(np.float32(0.3))) / 4
    x = fractions(A).dot(fractions(B)) * factor + fractions(BIAS)
    assert (e.exact == floats(x)).all() and e.title == str(mm)
    assert (e.d == mm(A, B, scale_a=0.3, scale_b=0.25, bias=BIAS).astype(float)).all()
    assert [c.name for c in e.causes][-1] == "output" and e.bound is not None and e.bound.held

    sa, sb = normal((M, 2), "f32", 3), normal((2, 1), "f32", 4)
    e = analysis.errors(recipes.deepgemm_fp8(), A, B, scale_a=sa, scale_b=sb)
    options = {"promote_scale_a": sa, "promote_scale_b": sb}
    assert (e.exact == floats(exactly(H100, A, B, None, options))).all()
    assert e.causes and e.bound is not None and e.bound.held

    e = analysis.errors(recipes.zero_accumulate(("MI300X", "f32_16x16x16_f16")),
                        normal((M, 64), "f16", 5), normal((64, N), "f16", 6))  # fmt: skip
    assert e.causes and e.bound is not None and e.bound.held
    with pytest.raises(TypeError, match="threads is no option of a product to be analysed"):
        analysis.errors(mm, A, B, threads=1)
    with pytest.raises(TypeError, match="colour is no option"):
        analysis.errors(H100, A, B, colour=1)
    with pytest.raises(TypeError, match="schedule"):
        analysis.errors(mm, A, B, schedule=Schedule())


@pytest.mark.parametrize("name", ["mxfp8", "mxfp4", "nvfp4"])
def test_recipes_that_quantise(name: str) -> None:
    """The exact result is that of the numbers before; what quantisation costs is a part."""
    X, W = analysis.sample("normal", (M, 128), seed=1), analysis.sample("normal", (128, N), seed=2)
    C = normal((M, N), "f32", 3)
    recipe = getattr(recipes, name)("B200", out_format="bf16")
    e = analysis.errors(recipe, X, W, C)
    x = fractions(X).dot(fractions(W)) + fractions(C)
    assert (e.exact == floats(x)).all()
    assert (e.d == recipe(X, W, C).astype(float)).all()
    assert e.causes[-1].name == "quantisation" and e.causes[-1].left.max_abs == 0
    assert e.causes[-1].part.mse > 10 * e.causes[0].part.mse
    assert sum(c.part.bias for c in e.causes) == pytest.approx(e.total.bias, rel=1e-12)
    assert e.bound is not None and e.bound.held
    with pytest.raises(TypeError, match="B holds integers"):
        analysis.errors(recipe, X, W.astype(int))


def test_scaled_operands() -> None:
    """CDNA2 loses a subnormal of A, the recipe does not; what it scales back, errors too."""
    A, B = np.zeros((M, 16), np.float16), normal((16, N), "f16", 2)
    A[:, 0] = 2.0**-20
    A[:, 1] = 3 * 2.0**-12
    plain = analysis.errors(("CDNA2", "f32_32x32x8f16"), A, B)
    e = analysis.errors(recipes.scaled_operands(10), A, B)
    x = fractions(A).dot(fractions(B))
    assert (e.exact == floats(x)).all() and (plain.exact == e.exact).all()
    assert plain.causes[0].name == "input" and plain.causes[0].part.max_abs > 0
    assert e.causes[0].name == "input" and e.causes[0].part.max_abs == 0
    assert e.causes[-1].name == "quantisation" and e.causes[-1].part.max_abs == 0
    assert (e.d == recipes.scaled_operands(10)(A, B).astype(float)).all()
    assert e.bound is not None and e.bound.held
    tiny = analysis.errors(recipes.scaled_operands(10), A * np.float16(2.0**-4), B)
    assert tiny.causes[-1].part.max_abs == 0 and tiny.bound is not None and tiny.bound.held


# --- models of any kind ---------------------------------------------------------------------------


def made_up(unit: Any) -> bitmma.Instruction:
    base = bitmma.instruction("H100", "m16n8k16.f32.f16.f16.f32")
    u = unit
    return dataclasses.replace(
        base, model=u.model, k=u.k, a=u.a, b=u.b, c=u.c, d=u.model.d, scale=u.scale, block=u.block
    )


@pytest.mark.parametrize("part", range(4))
def test_random_units(part: int) -> None:
    """Every field of FDPA and SumTree drawn, and the families: parts add up, bounds hold."""
    rng = np.random.default_rng(part)
    tightest: dict[str, float] = defaultdict(float)
    counted = 0
    for number in range(60):
        L = int(fuzzer.pick(rng, (1, 2, 3, 4, 5, 8, 16)))
        u = fuzzer.draw_general(rng, L) if number % 3 else fuzzer._hypothetical(rng)
        if u.block and u.k % u.block:
            continue
        x = cases.generate(
            u.model, u.a, u.b, u.c, u.k, 39, number, scale_format=u.scale, block=u.block
        )
        scales = {}
        if u.scale:
            scales = {"scale_a": x.scale_a[:, None, :], "scale_b": x.scale_b[:, :, None]}
        A, B, C = x.a[:, None, :], x.b[:, :, None], x.c[:, None, None]
        if u.c == u.model.d and not u.scale:  # two instructions
            A, B = np.concatenate([A, A[::-1]], -1), np.concatenate([B, B[::-1]], -2)
        try:
            e = analysis.errors(made_up(u), A, B, C, **scales)
        except ValueError as error:
            assert "is finite" in str(error), u
            continue
        assert e.bound is not None and e.bound.held, (number, u)
        assert e.causes[-1].left.max_abs == 0, (number, u)
        p = products.product(made_up(u), A, B, C, scales)
        values = [fractions(np.where(e.counted, p.d, 0.0))]
        for stage in stages.peel(p):
            values.append(sum(fractions(np.where(e.counted, y, 0.0)) for y in stage.d.parts))
        for cause, before, after in zip(e.causes, values[:-1], values[1:], strict=True):
            largest = max((abs(v) for v in (before - after).ravel()), default=0)
            assert cause.part.max_abs == pytest.approx(float(largest), rel=1e-12), (number, u)
        counted += e.total.count
        family = u.model.family
        tightest[family] = max(tightest[family], e.bound.tightest)
    assert counted > 1000
    assert tightest["FDPA"] > 0.5 and tightest["SumTree"] > 0.5


def test_causes_of_fdpas_are_those_of_the_families() -> None:
    """The same unit by its family and as an FDPA: the same causes, bit for bit, and bounds."""
    for gpu, name in (("H100", "m16n8k16.f32.f16.f16.f32"), ("MI300X", "f32_16x16x16_f16"),
                      ("MI300X", "f32_16x16x32_fp8_bf8"),
                      ("MI100", "f32_16x16x16f16")):  # fmt: skip
        family = bitmma.instruction(gpu, name)
        model = as_fdpa(family.model)
        assert model is not None
        fdpa = dataclasses.replace(family, model=model)
        A, B = normal((9, 64), family.a, 1), normal((64, 8), family.b, 2)
        C = normal((9, 8), "f32", 3)
        one, two = (analysis.errors(x, A, B, C) for x in (family, fdpa))
        assert [(c.name, c.part, c.left) for c in one.causes] == [
            (c.name, c.part, c.left) for c in two.causes
        ]
        assert one.bound is not None and two.bound is not None
        assert (one.bound.values == two.bound.values).all()


def test_a_blas_like_tree_by_hand() -> None:
    """Products rounded to FP32, added in pairs: (c + (p0 + p1)) + (p2 + p3), all in FP32."""
    tree = SumTree("((c ((0) (1))) ((2) (3)))", RNE_FP32)
    base = bitmma.instruction("H100", "m16n8k16.f32.f16.f16.f32")
    unit = dataclasses.replace(base, model=tree, k=4)
    A, B = np.array([[1, 2.0**-12, 1, 2.0**-12]], np.float16), np.ones((4, 1), np.float16)
    B[1], B[3] = 2.0**-12, 2.0**-13  # 1 + 2^-24 is a tie: 1; 1 + 2^-25 is 1
    e = analysis.errors(unit, A, B)
    assert e.error.item() == -(2.0**-24) - 2.0**-25
    assert [(c.name, c.part.bias) for c in e.causes] == [
        ("accumulation", 0.0), ("rounding", -(2.0**-24) - 2.0**-25)
    ]  # fmt: skip
    # Roundings at 2^-24 of [1 + 2^-24], [1 + 2^-25], [2 + ...]; of the leaves, exact or not, 2^-24
    # of [1] each and of the small ones.
    assert e.bound is not None and e.bound.held and e.bound.tightest > 0.15


def test_a_unit_that_ignores_c() -> None:
    """What it leaves out is an error, and the bound knows it."""
    base = bitmma.instruction("H100", "m16n8k16.f32.f16.f16.f32")
    unit = dataclasses.replace(base, model=SumTree("(0 1)", RNE_FP32), k=2)
    e = analysis.errors(
        unit, np.ones((1, 4), np.float16), np.ones((4, 1), np.float16), np.ones((1, 1), np.float32)
    )
    assert e.error.item() == -3 and e.bound is not None and e.bound.held
    assert e.bound.tightest > 0.99


# --- how tight bounds are -------------------------------------------------------------------------

#: One unit a family.
FAMILIES = {
    "T-FDPA": ("H100", "m64n8k32.f32.e4m3.e4m3"),
    "ST-FDPA": ("RTX 5090", "m16n8k32.kind::mxf8f6f4.block32.f32.e4m3.e5m2.f32.ue8m0"),
    "GST-FDPA": ("RTX 5090", "m16n8k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.f32.ue4m3"),
    "TR-FDPA": ("MI300X", "f32_16x16x16_f16"),
    "GTR-FDPA": ("MI300X", "f32_16x16x32_bf8_bf8"),
    "E-FDPA": ("MI100", "f32_16x16x16f16"),
    "FMA": ("MI300X", "f32_16x16x4_f32"),
    "FTZ-MulAdd": ("MI250X", "f32_16x16x16f16"),
    "Lowered": ("H100", "m16n8k32.f32.e5m2.e5m2.f32"),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_bounds_hold_on_every_category_and_some_input_comes_near(family: str) -> None:
    instr = bitmma.instruction(*FAMILIES[family])
    assert instr.model.family == family
    worst = 0.0
    for seed in range(12):
        x = cases.generate(
            instr.model, instr.a, instr.b, instr.c, instr.k, 520, seed,
            scale_format=instr.scale, block=instr.block,
        )  # fmt: skip
        scales = {}
        if instr.scale:
            scales = {"scale_a": x.scale_a[:, None, :], "scale_b": x.scale_b[:, :, None]}
        e = analysis.errors(
            instr, x.a[:, None, :], x.b[:, :, None], x.c[:, None, None], causes=False, **scales
        )
        assert e.bound is not None and e.bound.held
        worst = max(worst, e.bound.tightest)
    assert worst > 0.5


def test_the_alignment_bound_is_reached() -> None:
    """Hopper FP8: c = 1 and 31 products just below the unit 2^-13, all lost, group after group."""
    groups = 4
    A, B = np.zeros((1, 32 * groups)), np.zeros((32 * groups, 1))
    A[0], B[:, 0] = 1.75 * 2.0**-6, 1.125 * 2.0**-8  # 1.97 * 2^-14: a unit, all but 1.6%
    a, b = formats.quantize(A, "e4m3"), formats.quantize(B, "e4m3")
    C = np.ones((1, 1), np.float32)
    e = analysis.errors(H100, a, b, C)
    product = float(a[0, 0]) * float(b[0, 0])
    assert e.error.item() == -32 * groups * product
    assert e.bound is not None and e.bound.held and e.bound.tightest > 0.9


def test_no_bound_where_results_saturate() -> None:
    A, B = np.full((1, 32), 448.0), np.full((32, 1), 448.0)
    a, b = formats.quantize(A, "e4m3"), formats.quantize(B, "e4m3")
    e = analysis.errors(H100, a, b, epilogue=Epilogue(out_format="e4m3"))
    assert e.d.item() == 448 and e.bound is not None
    assert np.isinf(e.bound.values).all() and e.bound.held and e.bound.tightest == 0
    saturating = FDPA(16, rho=Conversion("RZ", "f16", overflow="saturate"))
    unit = dataclasses.replace(HALF, model=saturating)
    big = np.full((1, 16), 200.0, np.float16)
    e = analysis.errors(unit, big, np.full((16, 1), 100.0, np.float16))
    assert e.d.item() == 65504 and e.bound is not None and np.isinf(e.bound.values).all()


def test_bounds_of_sums_by_hand() -> None:
    """1 + 1 rounded to 24 bits RNE: at most half of the last place of 2."""
    x = bounds._Sum(np.array([2.0]), np.array([0.0])).rounded(RNE_FP32)
    assert x.E == 2.0**-23
    assert bounds._Sum(np.array([3.0]), np.array([1.5])).rounded(RZ_FP32).E == 1.5 + 2.0**-21
    assert bounds._power(np.array([0.0, 1.0, 1.999, 2.0, 2 - 2.0**-45])).tolist() == [0, 1, 1, 2, 2]


# --- an instruction that K does not fill; numbers at float64's end ------------------------------


@pytest.mark.parametrize("K", [1, 2, 3, 8, 9, 17])
@pytest.mark.parametrize(
    "model",
    [
        TFDPA(L=1, F=10, rho=RNE_FP32),
        TFDPA(L=8, F=12, rho=RNE_FP32),
        FDPA(L=8, F=25, F_c=7),
        FDPA(L=4, F=12, F_c=9, order="pairwise", e_zero=None),
    ],
)
def test_groups_without_products_cut_and_round_too(model: bitmma.models.Model, K: int) -> None:
    """Where K ends within an instruction, its last groups still cut c: the bound knows it."""
    ampere = bitmma.instruction("A100", "m16n8k16.f32.f16.f16.f32")
    unit = dataclasses.replace(ampere, model=model)
    rng = np.random.default_rng(K)
    A, B = (bitmma.quantize(rng.standard_normal(shape), "f16") for shape in ((60, K), (K, 60)))
    e = analysis.errors(unit, A, B, causes=False)
    assert e.bound is not None and e.bound.held
    assert (e.error != 0).any()


def test_sums_of_errors_beyond_float64() -> None:
    """The mean of numbers is one of them, though their sum is none."""
    fma = next(i for i in bitmma.instructions(gpu="A100") if i.a == "f64")
    down = FDPA(L=2, F=3, F_c=3, cut="RD", e_zero=None, rho=bitmma.models.RNE_FP64)
    unit = dataclasses.replace(fma, model=down)
    A, B = np.full((20, 2), 1.2345e154), np.full((2, 20), 6e153)
    e = analysis.errors(unit, A, B, causes=False)
    assert e.error.min() == e.error.max() == e.total.bias == -e.total.mean_abs < -1e306
    d = analysis.discrepancy(fma, unit, A, B)
    assert d.differing == 400
    assert -1e308 < sum(s.mean for s in d.steps) < -1e306


def test_special_operands_beside_others_that_differ() -> None:
    """No arithmetic on Inf or NaN: warnings are errors here."""
    a100, h100 = (bitmma.instruction(x, "m16n8k16.f32.f16.f16.f32") for x in ("A100", "H100"))
    A = np.float16([[np.inf, 0, 0], [-8192, -0.5, -0.25]])
    C = np.float32([[0], [8388608]])
    with np.errstate(all="raise"):
        d = analysis.discrepancy(h100, a100, A, np.float16([[1024], [1], [1]]), C)
    assert d.differing == 1


def test_recipes_that_differ_in_unit_and_schedule() -> None:
    """Every unit between the two is one that can be had directly; what is heard on the way."""
    slow, b200 = bitmma.recipes.scaled_mm("H100"), bitmma.recipes.scaled_mm("B200")
    assert slow.schedule != b200.schedule == bitmma.Schedule()
    A = bitmma.quantize(analysis.sample("normal", (24, 384), seed=1), "e4m3")
    B = bitmma.quantize(analysis.sample("normal", (384, 20), seed=2), "e4m3")
    heard: list[tuple[int, int]] = []
    d = analysis.discrepancy(
        slow, b200, A, B, scale_a=0.5, progress=lambda done, total: heard.append((done, total))
    )
    assert heard == sorted(heard) and heard[-1] == (7 * A.size * 20, 7 * A.size * 20)

    def on(F: int, rho: str, every: int | None) -> list[float]:
        model = dataclasses.replace(slow.instruction.model, F=F, rho=getattr(models, rho))
        instr = dataclasses.replace(slow.instruction, model=model)
        epilogue = bitmma.Epilogue(scale_a=0.5, scale_b=1.0, out_format="bf16")
        schedule = bitmma.Schedule(promote_every=every)
        result = bitmma.matmul(A, B, instruction=instr, schedule=schedule, epilogue=epilogue)
        return list(result.astype(float).reshape(-1).tolist())

    first, second = on(13, "RZ_E8M13", 128), on(25, "RZ_FP32", None)
    assert [x.reshape(-1).tolist() for x in d.d] == [first, second]
    assert d.differing == sum(x != y for x, y in zip(first, second, strict=True)) > 0
    alone = {
        "alignment": on(25, "RZ_E8M13", 128), "rounding": on(13, "RZ_FP32", 128),
        "schedule": on(13, "RZ_E8M13", None),
    }  # fmt: skip
    assert [s.name for s in d.steps] == list(alone)
    for step in d.steps:
        changed = sum(x != y for x, y in zip(first, alone[step.name], strict=True))
        assert step.changes == changed
    assert d.steps[2].changes > 0 and d.steps[2].second == "chain"
    assert sum(s.share for s in d.steps) == pytest.approx(d.differing, rel=1e-12)
    assert d.parts_at is None


def test_recipes_that_cannot_be_compared() -> None:
    slow = bitmma.recipes.scaled_mm("H100")
    A = bitmma.quantize(np.ones((4, 64)), "e4m3")
    B = bitmma.quantize(np.ones((64, 4)), "e4m3")
    with pytest.raises(ValueError, match=r"differ in epilogue\.out_format"):
        analysis.discrepancy(slow, bitmma.recipes.scaled_mm("H100", out_format="f32"), A, B)
    twice = bitmma.recipes.scaled_operands(1), bitmma.recipes.scaled_operands(2)
    half = A.astype(np.float16), B.astype(np.float16)
    with pytest.raises(ValueError, match="differ in a: "):
        analysis.discrepancy(*twice, *half)
    k16, k8 = (
        bitmma.recipes.zero_accumulate(x)
        for x in (("MI300X", "f32_16x16x16_f16"), ("A100", "m16n8k8.f32.f16.f16.f32"))
    )
    with pytest.raises(ValueError, match=r"promote_every=8 .* no whole number of steps of k = 16"):
        analysis.discrepancy(k16, k8, *half)


def test_the_progress_of_errors() -> None:
    A = bitmma.quantize(analysis.sample("normal", (8, 256), seed=1), "f16")
    B = bitmma.quantize(analysis.sample("normal", (256, 8), seed=2), "f16")
    for gpu, name, units in (
        ("MI250X", "f32_16x16x16f16", 1), ("H100", "m16n8k16.f32.f16.f16.f32", 1),
        ("H100", "m16n8k8.f32.tf32.tf32.f32", 2),
    ):  # fmt: skip
        a, b = (x.astype(np.float32) if "tf32" in name else x for x in (A, B))
        for schedule in (bitmma.Schedule(), bitmma.Schedule(promote_every=128)):
            heard: list[tuple[int, int]] = []
            analysis.errors(
                (gpu, name), a, b, schedule=schedule,
                progress=lambda done, total, to=heard: to.append((done, total)),
            )  # fmt: skip
            total = units * 8 * 256 * 8
            assert heard == sorted(heard) and heard[-1] == (total, total)
