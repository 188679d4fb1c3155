"""Errors, their causes and bounds, discrepancies: against Python's fractions, and by hand."""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import bitmma
from bitmma import analysis, formats, models, reference
from bitmma.analysis import accuracy, bounds, exact, products, stages
from bitmma.analysis.steps import Steps
from bitmma.models import EFDPA, RNE_FP64, RZ_FP32, TFDPA, Conversion, Lowered
from bitmma.unit import Instruction

# One instruction for each model, both outputs of T-FDPA, and every format that is special.
UNITS = (
    ("V100", "m8n8k4.f32.f16.f16.f32"),
    ("A100", "m16n8k8.f32.tf32.tf32.f32"),
    ("A100", "m8n8k4.f64.f64.f64.f64"),
    ("H100", "m16n8k16.f16.f16.f16.f16"),
    ("H100", "m64n8k32.f32.e4m3.e4m3"),
    ("H100", "m16n8k32.f32.e5m2.e5m2.f32"),
    ("H100", "m16n8k32.f16.e4m3.e4m3.f16"),
    ("RTX 5090", "m16n8k32.kind::mxf8f6f4.block32.f32.e4m3.e5m2.f32.ue8m0"),
    ("RTX 5090", "m16n8k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.f32.ue4m3"),
    ("MI100", "f32_16x16x16f16"),
    ("MI250X", "f32_16x16x16f16"),
    ("MI250X", "f32_16x16x8bf16"),
    ("MI300X", "f32_16x16x4_f32"),
    ("MI300X", "f32_16x16x8_xf32"),
    ("MI300X", "f32_16x16x16_bf16"),
    ("MI300X", "f32_16x16x32_fp8_bf8"),
)  # fmt: skip


def unit(which: tuple[str, str]) -> Instruction:
    return bitmma.instruction(*which)


def draw(instr: Instruction, M: int, K: int, N: int, spread: int = 0, seed: int = 1) -> Any:
    """Operands of normal numbers times random powers of two, and scales where there are some."""

    def matrix(shape: tuple[int, ...], fmt: str, stream: int) -> Any:
        x = analysis.sample("normal", shape, seed=(seed, stream))
        power = analysis.sample("uniform", shape, seed=(seed, stream, 1)) * spread
        x = np.ldexp(x, power.astype(int))
        if formats.get(fmt).dropped_bits:
            return x.astype(np.float32)  # with bits that the unit drops
        return formats.quantize(np.abs(x) if fmt.startswith("u") else x, fmt, saturate=True)

    A, B, C = matrix((M, K), instr.a, 1), matrix((K, N), instr.b, 2), matrix((M, N), instr.c, 3)
    scales: dict[str, Any] = {}
    if instr.scale and instr.block:
        blocks = -(-K // instr.block)
        scales = {
            "scale_a": matrix((M, blocks), instr.scale, 4),
            "scale_b": matrix((blocks, N), instr.scale, 5),
        }
    return A, B, C, scales


def fractions(x: Any) -> Any:
    """The elements as fractions, in an object array; of float32 words all bits."""
    return np.frompyfunc(Fraction, 1, 1)(np.asarray(x).astype(np.float64))


def exact_by_fractions(instr: Instruction, A: Any, B: Any, C: Any, scales: Any) -> Any:
    a, b = fractions(A), fractions(B)
    if scales:
        a = a * np.repeat(fractions(scales["scale_a"]), instr.block, 1)[:, : a.shape[1]]
        b = b * np.repeat(fractions(scales["scale_b"]), instr.block, 0)[: b.shape[0]]
    return a.dot(b) + fractions(C)


def expansion(x: exact.Exact) -> Any:
    return sum(fractions(part) for part in x.parts)


# --- exact products -------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [0, 3, 20, 120])
def test_exact_products(spread: int) -> None:
    rng = np.random.default_rng(spread)
    for K in (0, 1, 7, 65):
        a = np.ldexp(rng.standard_normal((5, K)), rng.integers(-spread, spread + 1, (5, K)))
        b = np.ldexp(rng.standard_normal((K, 4)), rng.integers(-spread, spread + 1, (K, 4)))
        c = rng.standard_normal((5, 4))
        if K > 1:
            a[0], a[1, 0], b[:, 0] = 0, -a[1, 1], np.ldexp(1.0, -5)  # zeros and cancellation
        got = analysis.exact_product(a, b, c)
        want = fractions(a).dot(fractions(b)) + fractions(c)
        assert (expansion(got) == want).all()
        assert (got.value == np.vectorize(float, otypes=[float])(want)).all()
        d = np.nextafter(got.value, np.inf)
        wrong = fractions(d) - want
        assert (got.error_of(d) == np.vectorize(float, otypes=[float])(wrong)).all()


def test_exact_products_of_any_exponents() -> None:
    """Float64 operands whose products leave float64's range at both ends: Python integers."""
    a = np.array([[2.0**-600, 1.5, 2.0**700, 3.0]])
    b = np.array([[2.0**-400], [2.0**-1000], [2.0**300], [2.0**-1074]])
    got = analysis.exact_product(a, b)
    assert (expansion(got) == fractions(a).dot(fractions(b))).all()
    assert len(got.parts) == 3  # 2^1000, 1.5 * 2^-1000 with 2^-1000, 3 * 2^-1074
    below = analysis.exact_product(np.array([[2.0**-600]]), np.array([[2.0**-600]]))
    assert below.parts[0].item() == 0 and below.parts[1].item() == 2.0**-1074
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(s) for s in ((6, 30), (30, 7)))
    integers = exact._by_integers(x, y, [])
    assert (expansion(integers) == expansion(analysis.exact_product(x, y))).all()


def test_exact_products_broadcast_and_complain() -> None:
    a, b = np.ones((3, 1, 2, 4)), np.ones((5, 4, 6))
    assert analysis.exact_product(a, b).value.shape == (3, 5, 2, 6)
    with pytest.raises(ValueError, match=r"A must be \(\.\.\., M, K\)"):
        analysis.exact_product(np.ones((2, 3)), np.ones((2, 3)))
    with pytest.raises(ValueError, match="B must be finite"):
        analysis.exact_product(np.ones((1, 1)), np.full((1, 1), np.inf))


@pytest.mark.parametrize("mode", formats.ROUNDINGS)
@pytest.mark.parametrize("target", [("f32", None), ("f32", 13), ("f16", None), ("bf16", 3)])
def test_one_rounding_of_an_exact_result(mode: str, target: tuple[str, int | None]) -> None:
    """Against Format.encode, at and around ties, overflow and subnormals."""
    rho = Conversion(mode, *target)
    fmt = formats.get(target[0])
    bits = rho.mantissa_bits or fmt.mantissa_bits
    tiny, q = 2.0**-120, fmt.min_exponent - bits
    values, small = [], []
    for base in (1.0, 1.0 + 2.0**-bits, 2.0 - 2.0**-bits, 2.0**fmt.max_exponent * (2 - 2.0**-bits)):
        step = 2.0 ** (math.frexp(base)[1] - 1 - bits)
        values += [base + step * x for x in (0, 0.25, 0.5, 0.75)] * 3
        small += [0.0] * 4 + [tiny] * 4 + [-tiny] * 4
    values += [math.ldexp(x, q) for x in (0.25, 0.5, 0.75, 1.5, 2.5)]
    small += [0.0] * 5
    x = np.array(values + [-v for v in values])
    y = np.array(small + [-v for v in small])
    got = exact.Exact((x, y)).rounded(rho)
    for value, rest, found in zip(x, y, got, strict=True):
        number = Fraction(value) + Fraction(rest)
        n, power = number.numerator, 1 - number.denominator.bit_length()
        code = fmt.encode(n, power, mode, mantissa_bits=rho.mantissa_bits)
        want = formats.decode(np.array([code], fmt.code_dtype), fmt)[0]
        assert found == want, (value, rest, mode)


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", UNITS, ids=lambda x: "-".join(x))
@pytest.mark.parametrize("spread", [0, 6])
def test_errors_against_fractions(which: tuple[str, str], spread: int) -> None:
    instr = unit(which)
    K = 2 * instr.k + 3 if not instr.scale else 2 * instr.k
    A, B, C, scales = draw(instr, 5, K, 4, spread)
    e = analysis.errors(instr, A, B, C, **scales)
    x = exact_by_fractions(instr, A, B, C, scales)
    d = fractions(bitmma.matmul(A, B, C, instruction=instr, **scales))
    wrong = d - x
    assert e.outputs == 20 and e.special == e.overflowed == 0
    assert (fractions(e.d) == d).all()
    assert (e.exact == x.astype(float)).all()
    assert (e.error == wrong.astype(float)).all()
    fmt = formats.get(instr.d)
    unit_at = np.vectorize(
        lambda v: Fraction(2) ** (_floor_log2(v, fmt) - fmt.mantissa_bits), otypes=[object]
    )(x)
    total = e.total
    assert total.bias == pytest.approx(float(wrong.sum() / 20), rel=1e-14)
    assert total.mse == pytest.approx(float((wrong**2).sum() / 20), rel=1e-13)
    assert total.max_abs == float(abs(wrong).max())
    assert total.max_ulps == pytest.approx(float((abs(wrong) / unit_at).max()), rel=1e-13)
    assert total.mean_relative == pytest.approx(float((abs(wrong) / abs(x)).sum() / 20), rel=1e-13)
    assert total.equal == (wrong == 0).sum() / 20
    assert e.bound is not None and e.bound.held and 0 <= e.bound.tightest <= 1
    assert (abs(wrong) <= fractions(e.bound.values)).all()


def _floor_log2(x: Fraction, fmt: formats.Format) -> int:
    e = fmt.min_exponent
    while x and abs(x) >= Fraction(2) ** (e + 1):
        e += 1
    return e


@pytest.mark.parametrize("which", UNITS, ids=lambda x: "-".join(x))
def test_causes_add_up(which: tuple[str, str]) -> None:
    """The parts, as exact numbers, are the error: nothing left over."""
    instr = unit(which)
    A, B, C, scales = draw(instr, 6, 2 * instr.k, 5, 4)
    p = products.product(instr, A, B, C, scales)
    peeled = stages.peel(p)
    x = exact_by_fractions(instr, A, B, C, scales)
    results = [fractions(p.d), *(expansion(s.d) for s in peeled)]
    assert (results[-1] == x).all()
    parts = [a - b for a, b in itertools.pairwise(results)]
    assert (sum(parts) == fractions(p.d) - x).all()
    e = analysis.errors(instr, A, B, C, **scales)
    assert [c.name for c in e.causes] == [s.cause for s in peeled]
    for cause, part, left in zip(e.causes, parts, results[1:], strict=True):
        assert cause.part.max_abs == pytest.approx(float(abs(part).max()), rel=1e-13)
        assert cause.left.max_abs == float(abs(left - x).max())
    assert e.causes[-1].left.max_abs == 0


FAMILY_CAUSES = {
    "FMA": ["accumulation", "rounding"],
    "FTZ-MulAdd": ["input", "accumulation", "rounding"],
    "E-FDPA": ["accumulation", "rounding"],
}


@pytest.mark.parametrize("which", UNITS, ids=lambda x: "-".join(x))
def test_the_switched_off_units(which: tuple[str, str]) -> None:
    """Each is what `stages` says, computed here by the reference in a plain loop."""
    instr = unit(which)
    A, B, C, scales = draw(instr, 3, 2 * instr.k, 2, 3)
    p = products.product(instr, A, B, C, scales)
    peeled = {s.cause: s for s in stages.peel(p)}
    drops = bool(formats.get(instr.a).dropped_bits)
    expected = FAMILY_CAUSES.get(instr.model.family, ["accumulation", "alignment", "rounding"])
    assert list(peeled) == (["input"] * drops + expected if drops else expected)

    x = exact_by_fractions(instr, A, B, C, scales)
    rho = p.last_rounding
    one_sum = peeled["alignment" if "alignment" in peeled else "accumulation"].d.value
    for index in np.ndindex(3, 2):
        assert one_sum[index] == rounded(x[index], rho)
        if "alignment" in peeled:
            found = peeled["accumulation"].d.value
            assert found[index] == rounded(_wide_accumulators(p, *index), rho)


def rounded(number: Fraction, rho: Conversion) -> float:
    fmt = formats.get(rho.format)
    n, q = number.numerator, 1 - number.denominator.bit_length()
    code = fmt.encode(n, q, rho.mode, mantissa_bits=rho.mantissa_bits)
    return float(formats.decode(np.array([code], fmt.code_dtype), fmt)[0])


def _wide_accumulators(p: products.Product, i: int, j: int) -> Fraction:
    """One chain with f64 accumulators, by the reference."""
    instr, model = p.instr, p.instr.model
    if isinstance(model, Lowered):
        wide: Any = Lowered(model.K, dataclasses.replace(model.unit, rho=RNE_FP64), model.parts)
    else:
        wide = dataclasses.replace(model, rho=RNE_FP64)  # type: ignore[call-arg]
    drops = bool(formats.get(instr.a).dropped_bits)
    a_format, b_format = ("f32", "f32") if drops else (instr.a, instr.b)
    a, b = p.plan.arrays["a"], p.plan.arrays["b"]
    assert p.C is not None
    scaling = {}
    if instr.scale:
        scale_a, scale_b = p.plan.arrays["scale_a"], p.plan.arrays["scale_b"]
        scaling = {
            "scale_format": instr.scale, "block": instr.block,
            "scale_a": scale_a[i].tolist(), "scale_b": scale_b[:, j].tolist(),
        }  # fmt: skip
    code = reference.chain(
        wide, a[i].tolist(), b[:, j].tolist(), int(p.C.view(np.uint64)[i, j]), k=instr.k,
        a_format=a_format, b_format=b_format, c_format="f64", **scaling,
    )  # fmt: skip
    return Fraction(float(formats.decode(np.array([code], np.uint64), "f64")[0]))


def test_the_unflushed_unit() -> None:
    """CDNA2 with subnormals in A, B and C: without the flush nothing is lost."""
    instr = unit(("MI250X", "f32_16x16x16f16"))
    A, B = np.zeros((16, 16), np.float16), np.zeros((16, 16), np.float16)
    A[0, 0], B[0, 0] = 2.0**-15, 1  # A flushed
    A[1, 1], B[1, 1] = 1, 2.0**-24  # B flushed
    A[3, 3], B[3, 3] = 1.5, 1.25  # nothing flushed
    e = analysis.errors(instr, A, B)
    assert [c.name for c in e.causes] == ["input", "accumulation", "rounding"]
    assert e.error[0, 0] == -(2.0**-15) and e.error[1, 1] == -(2.0**-24)
    assert e.error[3, 3] == 0 and e.causes[0].left.max_abs == 0
    assert e.bound is not None and e.bound.held and e.bound.tightest > 0.9

    instr = unit(("MI250X", "f32_16x16x16bf16_1k"))
    A, B, C = np.zeros((16, 16)), np.zeros((16, 16)), np.zeros((16, 16), np.float32)
    A[0, 0], B[0, 0], C[0, 0] = 2.0**-63, 2.0**-63, 2.0**-127  # C flushed, the sum normal
    A[1, 1], B[1, 1] = 2.0**-127, 2.0**10  # A flushed
    e = analysis.errors(instr, *(formats.quantize(x, "bf16") for x in (A, B)), C)
    assert e.error[0, 0] == -(2.0**-127) and e.error[1, 1] == -(2.0**-117)
    assert e.causes[0].left.max_abs == 0 and e.bound is not None and e.bound.held


def test_dropped_bits_are_an_error_of_the_input() -> None:
    A, B = np.full((16, 8), 1 + 2.0**-20, np.float32), np.ones((8, 8), np.float32)
    e = analysis.errors(("A100", "m16n8k8.f32.tf32.tf32.f32"), A, B)
    assert (e.error == -8 * 2.0**-20).all()
    assert e.causes[0].name == "input" and e.causes[0].part == e.total
    assert e.bound is not None and e.bound.held


def test_specials_and_overflow_are_left_out() -> None:
    instr = unit(("H100", "m16n8k16.f32.f16.f16.f32"))
    A, B, C, _ = draw(instr, 16, 16, 8)
    C = C.copy()
    A[0, 3], B[2, 1], C[5, 5] = np.inf, np.nan, np.nan
    e = analysis.errors(instr, A, B, C)
    assert (e.special, e.overflowed, e.total.count) == (8 + 15 + 1, 0, 104)
    assert not e.counted[0].any() and not e.counted[:, 1].any() and not e.counted[5, 5]
    half = unit(("H100", "m16n8k16.f16.f16.f16.f16"))
    big = np.full((16, 16), 200.0, np.float16)
    big[0] = 1
    e = analysis.errors(half, big, np.full((16, 8), 100.0, np.float16))
    assert (e.special, e.overflowed, e.total.count) == (0, 120, 8)
    with pytest.raises(ValueError, match="none of 128 outputs is finite"):
        analysis.errors(half, big * 2 + 300, np.full((16, 8), 100.0, np.float16))


def test_batches_and_kinds_of_operands() -> None:
    instr = unit(("MI300X", "f32_16x16x16_f16"))
    A = formats.quantize(analysis.sample("normal", (3, 1, 4, 32), seed=1), "f16")
    B = formats.quantize(analysis.sample("normal", (2, 32, 5), seed=2), "f16")
    e = analysis.errors(instr, A, B, causes=False)
    assert e.error.shape == (3, 2, 4, 5) and e.causes == ()
    one = analysis.errors(("gfx942", instr.name), A[1, 0].view(np.uint16), B[1].view(np.uint16))
    assert (e.error[1, 1] == one.error).all()


def test_any_function_can_be_measured() -> None:
    A, B = (analysis.sample("normal", s, seed=i).astype(np.float32) for i, s in
            enumerate(((5, 40), (40, 6))))  # fmt: skip
    e = analysis.errors(np.matmul, A, B)
    wrong = fractions(A @ B) - fractions(A).dot(fractions(B))
    assert (e.error == wrong.astype(float)).all() and e.total.max_abs > 0
    assert (e.causes, e.bound, e.model, e.title) == ((), None, None, "matmul")
    instr = unit(("H100", "m64n8k32.f32.e4m3.e4m3"))

    def fp8(A: Any, B: Any, C: Any) -> Any:
        A, B = formats.quantize(A, "e4m3"), formats.quantize(B, "e4m3")
        return bitmma.matmul(A, B, C, instruction=instr)

    C = np.ones((5, 6), np.float32)
    e = analysis.errors(fp8, A, B, C)
    assert (e.exact == (fractions(A).dot(fractions(B)) + 1).astype(float)).all()
    with pytest.raises(TypeError, match="schedule is for instructions and recipes"):
        analysis.errors(np.matmul, A, B, schedule=1)
    with pytest.raises(TypeError, match="B is of uint32"):
        analysis.errors(np.matmul, A, B.view(np.uint32))
    with pytest.raises(ValueError, match=r"gave \(6, 5\); A B is \(5, 6\)"):
        analysis.errors(lambda A, B: (A @ B).T, A, B)


def test_statistics_by_hand() -> None:
    error = np.array([[1.0, -3.0], [0.0, 4.0]])
    x = np.array([[2.0, 0.0], [4.0, -8.0]])
    ulps = np.array([[0.5, 1.0], [1.0, 2.0]])
    s = accuracy.statistics_of(error, x, ulps)
    assert (s.count, s.bias, s.mean_abs, s.max_abs, s.mse) == (4, 0.5, 2.0, 4.0, 6.5)
    assert (s.mean_ulps, s.max_ulps) == ((2 - 3 + 0 + 2) / 4, 3.0)
    assert (s.mean_relative, s.max_relative, s.equal) == ((0.5 + 0 + 0.5) / 3, 0.5, 0.25)
    # Independent: sqrt(sum of (e - 0.5)^2) / 4.
    assert s.high - s.bias == pytest.approx(1.959963984540054 * math.sqrt(25.0) / 4)
    assert s.low == pytest.approx(1.0 - s.high)
    # e - 0.5 sums to -3 and 3 in rows, 0 and 0 in columns: 18 + 0 - 25, but at least 25.
    s = accuracy.statistics_of(error, x, ulps, clusters=[(1,), (0,)])
    assert s.high - s.bias == pytest.approx(1.959963984540054 * 5 / 4)
    # All of a row alike: the interval is that of the rows.
    rows = np.repeat(np.array([[1.0], [-1.0], [1.0], [-1.0]]), 50, 1)
    s = accuracy.statistics_of(rows, rows, np.ones(rows.shape), clusters=[(1,), (0,)])
    assert s.high - s.bias == pytest.approx(1.959963984540054 * math.sqrt(4 * 50**2) / 200)
    some = accuracy.statistics_of(error, x, ulps, counted=error >= 0, confidence=0.5)
    assert (some.count, some.bias, some.max_abs) == (3, 5 / 3, 4.0)


def test_an_interval_covers_the_truth_as_often_as_it_says() -> None:
    """FP16 output of random sums: unbiased by symmetry; about 90% of intervals should hold 0."""
    instr, held = unit(("A100", "m16n8k16.f16.f16.f16.f16")), 0
    for seed in range(60):
        A, B, _, _ = draw(instr, 24, 32, 24, seed=seed)
        e = analysis.errors(instr, A, B, causes=False, confidence=0.9)
        held += e.total.low <= 0 <= e.total.high
    assert 46 <= held <= 60  # binomial(60, 0.9): below 46 once in 10^3


# --- bounds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", UNITS, ids=lambda x: "-".join(x))
def test_bounds_hold_on_cancelling_and_wide_inputs(which: tuple[str, str]) -> None:
    instr = unit(which)
    for spread in (2, 12, 30):
        A, B, C, scales = draw(instr, 12, 3 * instr.k, 10, spread, seed=spread)
        if not scales:
            A[:, ::2], B[::2] = A[:, 1::2][:, : A[:, ::2].shape[1]], -B[1::2]
        with np.errstate(over="ignore"):
            e = analysis.errors(instr, A, B, C, causes=False, **scales)
        assert e.bound is not None and e.bound.held, spread


def test_a_bound_can_be_broken() -> None:
    """The check is no formality: a unit that is worse than its model says is found out."""
    instr = unit(("H100", "m64n8k32.f32.e4m3.e4m3"))
    A, B, C, _ = draw(instr, 8, 64, 8)
    p = products.product(instr, A, B, C, {})
    finer = dataclasses.replace(instr, model=TFDPA(L=32, F=25, rho=RZ_FP32))
    plan = dataclasses.replace(p.plan, instruction=finer)
    limit = bounds.error_bound(dataclasses.replace(p, plan=plan))
    broken = bounds.check(limit, p.exact.error_of(p.d), np.ones(p.d.shape, bool))
    assert not broken.held and broken.violations > 0 and broken.tightest > 1


def test_the_bound_by_hand() -> None:
    """T-FDPA, one group. Ones have their last bit above 2^-25 and lose nothing; 16 loses up to
    2^-19 when it is cut to 24 bits. A product below 2^-25 beside them may be lost whole.
    """
    instr = unit(("H100", "m16n8k16.f32.f16.f16.f32"))
    A, B = np.ones((16, 16), np.float16), np.ones((16, 8), np.float16)
    e = analysis.errors(instr, A, B)
    assert e.bound is not None
    assert e.bound.values == pytest.approx(np.full((16, 8), 2.0**-19), rel=2e-6)
    assert (e.bound.values >= 2.0**-19).all() and e.bound.tightest == 0
    A[0, 0], B[0, 0] = 1.5 * 2.0**-11, 2.0**-15
    e = analysis.errors(instr, A, B)
    assert e.bound is not None
    # 15 + 1.5 * 2^-26, of which all but 15 is less than the unit 2^-25: lost whole, and rho's cut.
    want = 1.5 * 2.0**-26 + 2.0**-20
    assert e.bound.values[0, 0] == pytest.approx(want, rel=2e-6) and e.bound.values[0, 0] >= want
    assert e.error[0, 0] == -1.5 * 2.0**-26


# --- discrepancy, symmetry, monotonicity ----------------------------------------------------------


def test_discrepancy_by_hand() -> None:
    """One output that F decides, 15 alike."""
    first, second = ("H100", "m16n8k16.f32.f16.f16.f32"), ("A100", "m16n8k16.f32.f16.f16.f32")
    A, B = np.zeros((4, 16), np.float16), np.zeros((16, 4), np.float16)
    C = np.zeros((4, 4), np.float32)
    A[0, :2], B[:2, 0] = (2.0**12, 2.0**-13), (2.0**12, 1)  # 2^24 + 2^-13: cut by both
    C[0, 0] = -(2.0**24)  # what is left: 0
    A[1, :2], B[:2, 1] = (2.0**6, 2.0**-13), (2.0**6, 1)  # 2^12 - 2^12 + 2^-13: F decides
    C[1, 1] = -(2.0**12)
    A[2, 0], A[2, 8], B[0, 2], B[8, 2] = 1, -(2.0**-14), 1, 2.0**-11
    C[2, 2] = -1 + 2.0**-24  # first group 2^-24 in both; then the rest
    d = analysis.discrepancy(first, second, A, B, C)
    assert d.outputs == 16 and d.share == d.differing / 16 and d.differing == 1
    grouping, alignment = d.steps
    assert (grouping.name, grouping.first, grouping.second) == ("grouping", "L=16", "L=8")
    assert (grouping.changes, grouping.suffices, grouping.share) == (0, 0, 0)
    assert grouping.mean == -(2.0**-26) / 16
    assert alignment.name == "alignment" and d.together == 0
    assert alignment.first == "F=25, F_c=25, e_zero=-133"
    # In one group of 16, F = 24 would cut output (2, 2) too: two groups of 8 spare it that.
    assert (alignment.changes, alignment.suffices, alignment.share) == (2, 1, 1)
    assert alignment.mean == (-(2.0**-13) + 2.0**-26) / 16
    assert d.worst == ((1, 1), 2.0**-13, 0.0) and d.parts_at == 16
    assert d.max_abs == 2.0**-13 and d.mean_abs == 2.0**-17
    assert d.max_ulps == 2.0**23  # of an exact result of 2^-13


def test_steps_that_need_each_other() -> None:
    """F = 13 and E8M13 against F = 25 and FP32: a bit that either of the first two takes away."""
    first, second = ("H100", "m64n8k32.f32.e4m3.e4m3"), (
        "B200", "m64n8k32.kind::f8f6f4.f32.e4m3.e4m3")  # fmt: skip
    A, B = np.zeros((1, 32)), np.zeros((32, 3))
    A[0, :3] = 1, 2.0**-6, 2.0**-6
    B[:3, 0] = 1, 2.0**-8, 0  # 1 + 2^-14: cut at F = 13, and by RZ-E8M13 if it was not
    B[:3, 1] = 1, 2.0**-7, 2.0**-7  # 1 + 2 * 2^-13: both keep it
    B[:3, 2] = (
        2,
        2.0**-7,
        2.0**-7,
    )  # 2 + 2 * 2^-13: at 2^-12 cut each; their sum, 2^-12, E8M13 holds
    d = analysis.discrepancy(first, second, *(formats.quantize(x, "e4m3") for x in (A, B)))
    assert d.d[0].tolist() == [[1, 1 + 2.0**-12, 2]]
    assert d.d[1].tolist() == [[1 + 2.0**-14, 1 + 2.0**-12, 2 + 2.0**-12]]
    alignment, rounding = d.steps
    assert (alignment.first, alignment.second) == ("F=13, F_c=13", "F=25, F_c=25")
    assert (rounding.first, rounding.second) == ("rho=RZ-E8M13", "rho=RZ-FP32")
    # Output 2 is alignment's alone; output 0 changes only if both steps do, and is shared.
    assert (d.differing, d.together) == (2, 1)
    assert (alignment.changes, alignment.suffices, alignment.share) == (1, 1, 1.5)
    assert (rounding.changes, rounding.suffices, rounding.share) == (0, 0, 0.5)
    assert alignment.mean == (2.0**-12 + 2.0**-15) / 3 and rounding.mean == 2.0**-15 / 3
    assert [r["step"] for r in d.rows()] == ["alignment", "rounding"]
    assert "1 by several steps together only" in str(d)


def test_discrepancy_says_which_step() -> None:
    cdna2, cdna1 = ("MI250X", "f32_16x16x16f16"), ("MI100", "f32_16x16x16f16")
    A, B = np.zeros((16, 16), np.float16), np.zeros((16, 16), np.float16)
    A[0, 0], B[0, 0] = 2.0**-20, 1.0  # CDNA2 flushes it
    A[1, 4:7], B[4:7, 1] = (1, 2.0**-12, 2.0**-12), (1, 2.0**-12, 2.0**-12)  # 1 + 2 * 2^-24
    d = analysis.discrepancy(cdna2, cdna1, A, B)
    steps = {s.name: s for s in d.steps}
    assert list(steps) == ["input", "grouping", "rounding"] and d.differing == 2
    assert (steps["input"].suffices, steps["grouping"].suffices) == (1, 1)
    assert steps["grouping"].second.startswith("tree ((((c 0 1 2 3) 4 5 6 7)")
    wide, half = ("H100", "m16n8k16.f32.f16.f16.f32"), ("H100", "m16n8k16.f16.f16.f16.f16")
    A[:], B[:] = 0, 0
    A[0, :2], B[:2, 0] = (1, 2.0**-12), 1
    d = analysis.discrepancy(wide, half, A, B)
    assert {s.name: s.suffices for s in d.steps} == {"alignment": 0, "rounding": 1}
    A[0, 0] = np.inf
    A[0, 1] = 6e4
    assert analysis.discrepancy(wide, half, A, B).differing == 0
    same = analysis.discrepancy(wide, wide, A, B)
    assert (same.differing, same.worst, same.parts_at, same.steps) == (0, None, None, ())


F16_UNITS = [*(u for u in UNITS if unit(u).a == "f16"), ("H100", "m16n8k16.f32.f16.f16.f32"),
             ("MI300X", "f32_16x16x16_f16")]  # fmt: skip
PAIRS = list(itertools.combinations(F16_UNITS, 2))


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=lambda x: "-".join(x))
def test_steps_lead_from_one_unit_to_the_other(first: Any, second: Any) -> None:
    """None of them exchanged is the first unit, all the second, bit for bit; shares add up."""
    one, two = unit(first), unit(second)
    A, B, _, _ = draw(one, 9, 64, 8, spread=4)
    A[0, 0] = 2.0**-20
    between = Steps(one, two)
    for which, target in (((), one), (between.names, two)):
        d = bitmma.matmul(A, B, instruction=between.instruction(frozenset(which)))
        assert d.tolist() == bitmma.matmul(A, B, instruction=target).tolist()
    d = analysis.discrepancy(one, two, A, B)
    assert sum(s.share for s in d.steps) == pytest.approx(d.differing, rel=1e-12)
    gaps = (d.d[1] - d.d[0]).reshape(-1).tolist()
    assert sum(s.mean for s in d.steps) == pytest.approx(math.fsum(gaps) / len(gaps), rel=1e-12)


def test_steps_of_units_with_scales_and_of_made_up_ones() -> None:
    """MXFP4 on the k64 unit against the f8f6f4 one, Lowered against the real unit, trees."""
    pairs = [
        (("RTX 5090", "m16n8k64.kind::mxf4.block32.f32.e2m1.e2m1.f32.ue8m0"),
         ("RTX 5090", "m16n8k32.kind::mxf8f6f4.block32.f32.e2m1.e2m1.f32.ue8m0")),
        (("H100", "m16n8k32.f32.e4m3.e4m3.f32"), ("H100", "m64n8k32.f32.e4m3.e4m3")),
    ]  # fmt: skip
    for first, second in pairs:
        A, B, _, scales = draw(unit(first), 16, 128, 16, spread=8)
        d = analysis.discrepancy(first, second, A, B, **scales)
        assert "summation" in [s.name for s in d.steps]
        assert sum(s.share for s in d.steps) == pytest.approx(d.differing) and d.differing
    one = unit(("MI100", "f32_16x16x16f16"))
    pairwise = dataclasses.replace(one, model=models.FDPA(4, order="pairwise"))
    long = dataclasses.replace(pairwise, k=32)
    A, B, _, _ = draw(one, 16, 64, 16)
    (step,) = analysis.discrepancy(pairwise, long, A, B).steps
    assert (step.name, step.first, step.second) == ("grouping", "k=16", "k=32")
    assert step.suffices == step.share > 0


def test_schedules() -> None:
    """The whole error and its parts, outside sums too, against fractions."""
    instr = unit(("H100", "m64n8k32.f32.e4m3.e4m3"))
    A, B, _, _ = draw(instr, 6, 256, 5)
    C = analysis.sample("normal", (6, 5), seed=3).astype(np.float32)
    schedule = bitmma.Schedule(promote_every=64)
    e = analysis.errors(instr, A, B, C, schedule=schedule)
    d = bitmma.matmul(A, B, C, instruction=instr, schedule=schedule)
    x = exact_by_fractions(instr, A, B, C, {})
    assert (e.error == (fractions(d) - x).astype(float)).all()
    assert e.bound is not None and e.bound.held
    assert [c.name for c in e.causes] == ["accumulation", "alignment", "rounding"]
    assert e.causes[1].left.max_ulps <= 0.5 and e.causes[2].left.max_abs == 0
    total = sum(c.part.bias for c in e.causes)
    assert total == pytest.approx(e.total.bias, rel=1e-9, abs=1e-15)
    half = unit(("H100", "m16n8k16.f16.f16.f16.f16"))  # whose C and D are f32 then
    a, b = (analysis.sample("normal", s, seed=9).astype(np.float16) for s in ((4, 64), (64, 4)))
    e = analysis.errors(half, a, b, C[:4, :4], schedule=schedule)
    assert (
        e.d.astype(np.float32).tolist()
        == bitmma.matmul(a, b, C[:4, :4], instruction=half, schedule=schedule).tolist()
    )


def test_where_two_chains_part() -> None:
    first, second = ("H100", "m16n8k16.f32.f16.f16.f32"), ("A100", "m16n8k16.f32.f16.f16.f32")
    A, B = np.zeros((2, 64), np.float16), np.ones((64, 3), np.float16)
    A[1, 32:34] = 2.0**12, 2.0**-13
    B[32] = 2.0**0
    A[1, 40] = -(2.0**12)
    d = analysis.discrepancy(first, second, A, B)
    assert d.differing == 3 and d.parts_at == 48


def test_discrepancy_of_other_operands() -> None:
    with pytest.raises(ValueError, match="first takes a of e4m3 and second of fp8"):
        analysis.discrepancy(
            ("H100", "m64n8k32.f32.e4m3.e4m3"), ("MI300X", "f32_16x16x32_fp8_fp8"),
            np.zeros((1, 32), np.uint8), np.zeros((32, 1), np.uint8),
        )  # fmt: skip
    with pytest.raises(TypeError, match="second must be an Instruction"):
        analysis.discrepancy(("H100", "m64n8k32.f32.e4m3.e4m3"), 3, None, None)


@pytest.mark.parametrize("which", UNITS, ids=lambda x: "-".join(x))
def test_symmetry(which: tuple[str, str]) -> None:
    """Only the units that round down are lopsided: CDNA3's."""
    instr = unit(which)
    A, B, C, scales = draw(instr, 16, 2 * instr.k, 16)
    s = analysis.symmetry(instr, A, B, C, **scales)
    rounds_down = isinstance(instr.model, models.TRFDPA | models.GTRFDPA)
    assert (s.violations > 0) == rounds_down
    assert s.outputs == 256 and s.share == s.violations / 256
    assert (s.mean < 0) == rounds_down and (s.example is not None) == rounds_down


def test_symmetry_of_the_published_example() -> None:
    A, B = np.zeros((16, 16), np.float16), np.zeros((16, 16), np.float16)
    A[0, :2], B[:2, 0] = (2048, 2048), (2048, -2048)
    C = np.zeros((16, 16), np.float32)
    C[0, 0] = -1e-6
    s = analysis.symmetry(("MI300X", "f32_16x16x16_f16"), A, B, C)
    assert (s.violations, s.max_abs, s.example) == (1, 0.25, ((0, 0), -0.25, 0.0))


def test_monotonicity_by_hand() -> None:
    """c from below 1 to 1: e_max rises, and fifteen products lose their last bits."""
    instr = unit(("V100", "m8n8k4.f32.f16.f16.f32"))
    A, B = np.zeros((8, 4), np.float16), np.zeros((4, 8), np.float16)
    A[0], B[:, 0] = 2.0**-12, 2.0**-12  # four products of 2^-24, F = 23
    C = np.zeros((8, 8), np.float32)
    C[0, 0] = 1 - 2.0**-24  # before: 1 + 3 * 2^-24 -> cut to 1 + 2^-23; after: 1
    m = analysis.monotonicity(instr, A, B, C)
    assert (m.by_c, m.by_product, m.violations) == (1, 0, 1)
    assert m.example == ((0, 0), -1, 1 + 2.0**-23, 1.0) and m.largest == 1.0
    assert m.comparisons == (64, 256)
    exact_unit = dataclasses.replace(instr, model=EFDPA(4, RZ_FP32))
    assert analysis.monotonicity(exact_unit, A, B, C).violations == 0


def test_monotonicity_in_a_product() -> None:
    """The same by a product, where F is small; and with a negative b, where the product sinks."""
    instr = unit(("H100", "m16n8k16.f32.f16.f16.f32"))
    coarse = dataclasses.replace(instr, model=TFDPA(L=16, F=8))
    A, B = np.full((1, 16), 2.0**-8, np.float16), np.ones((16, 2), np.float16)
    A[0, 0] = 2 - 2.0**-10
    B[:, 1] = -1
    m = analysis.monotonicity(coarse, A, B)
    assert (m.by_c, m.by_product, m.comparisons) == (0, 2, (2, 32))
    before = 2 - 2.0**-8 + 15 * 2.0**-8  # cut at 2^-8; raised, at 2^-7: nothing of the others left
    assert m.example == ((0, 0), 0, before, 2.0) and m.largest == 14 * 2.0**-8 / 2.0**-22
    assert analysis.monotonicity(instr, A, B).violations == 0


def test_the_next_number_up() -> None:
    for fmt in formats.FORMATS.values():
        if fmt.width > 16 or not fmt.signed:
            continue
        codes = np.arange(1 << fmt.width).astype(fmt.code_dtype)
        values, up = formats.decode(codes, fmt), formats.decode(
            analysis.differences._next_up(codes, fmt), fmt
        )  # fmt: skip
        numbers = np.unique(values[np.isfinite(values)])
        for before, after in zip(values, up, strict=True):
            if not math.isfinite(before):
                assert after == before or (math.isnan(before) and math.isnan(after))
            else:
                at = min(int(np.searchsorted(numbers, before)) + 1, len(numbers) - 1)
                assert after == numbers[at]
    one = np.array([0x3FF0000000000000, 0xBFF0000000000000, 1 << 63], np.uint64)
    up64 = analysis.differences._next_up(one, formats.get("f64")).view(np.float64)
    assert up64.tolist() == [math.nextafter(1, 2), math.nextafter(-1, 0), 5e-324]
    tf32 = analysis.differences._next_up(np.array([0x3F800001], np.uint32), formats.get("tf32"))
    assert tf32.tolist() == [0x3F802000]


# --- inputs ---------------------------------------------------------------------------------------


def test_streams_are_the_same_everywhere() -> None:
    """Their bits, as computed once; every operation in them is exactly specified."""
    found = {
        name: [float(x).hex() for x in analysis.sample(name, 3, seed=(7, 1))]
        for name in analysis.DISTRIBUTIONS
    }
    assert found == STREAMS
    raw = np.random.PCG64(np.random.SeedSequence([7, 1])).random_raw(2).tolist()
    assert raw == RAW


STREAMS = {
    "normal": ["0x1.99bd34311fd53p-1", "-0x1.7fde72999d6f7p-1", "-0x1.3caea9b4910a1p-1"],
    "uniform": ["0x1.149fd4577b256p-1", "-0x1.8d62f1c87f1fap-1", "-0x1.3e5d29eef6e4cp-1"],
    "outliers": ["0x1.99bd34311fd53p-1", "-0x1.7fde72999d6f7p-1", "-0x1.3caea9b4910a1p-1"],
    "heavy": ["0x1.d0e66132084f7p-1", "-0x1.bda1adca44a85p+0", "-0x1.1f715b4232dadp+0"],
}
RAW = [14206593023844375757, 2064693230803885548]


@pytest.mark.parametrize(
    ("name", "deviation", "within_one"),
    [("normal", 1.0, 0.6827), ("uniform", 1 / math.sqrt(3), 1.0), ("outliers", 1.0488, 0.682),
     ("heavy", None, 0.5774)],
)  # fmt: skip
def test_distributions(name: str, deviation: float | None, within_one: float) -> None:
    x = analysis.sample(name, (1000, 200), seed=5)
    assert x.shape == (1000, 200) and np.isfinite(x).all()
    assert abs(float((np.abs(x) < 1).mean()) - within_one) < 0.005
    assert abs(float((x < 0).mean()) - 0.5) < 0.005
    if deviation:
        assert abs(float(x.std()) - deviation) < 0.02
    assert (
        analysis.sample(name, 4, seed=5, scale=8.0) == 8 * analysis.sample(name, 4, seed=5)
    ).all()
    assert (analysis.sample(name, 4, seed=6) != analysis.sample(name, 4, seed=5)).any()


def test_the_logarithm() -> None:
    from bitmma.analysis import inputs

    x = np.concatenate([np.linspace(1e-6, 1, 5001), 2.0 ** -np.arange(1.0, 100.0)])
    got, want = inputs._log(x), np.log(x)
    assert (np.abs(got - want) <= 2e-15 * np.maximum(1, np.abs(want))).all()


def test_drawing_from_one_s_own_array() -> None:
    own = np.array([[1.5, -2.0], [3.0, 0.25]], np.float16)
    drawn = analysis.sample(own, 4000, seed=1)
    counts = Counter(drawn.tolist())
    assert set(counts) == {1.5, -2.0, 3.0, 0.25} and min(counts.values()) > 850


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("cauchy", 3), ValueError, "one of normal, uniform, outliers, heavy, not 'cauchy'"),
        (([1, np.nan], 3), ValueError, "finite numbers"),
        (([], 3), ValueError, "finite numbers"),
        ((object(), 3), TypeError, "a name or an array of numbers, not object"),
        (("normal", -1), ValueError, "shape must be"),
        (("normal", (2, 1.5)), ValueError, "shape must be"),
        (("normal", 3, -1), ValueError, "seed must be"),
        (("normal", 3, ()), ValueError, "seed must be"),
    ],
)  # fmt: skip
def test_bad_distributions(arguments: tuple[Any, ...], error: type, message: str) -> None:
    more = {"seed": arguments[2]} if len(arguments) > 2 else {}
    with pytest.raises(error, match=message):
        analysis.sample(*arguments[:2], **more)


# --- bad input, tables ----------------------------------------------------------------------------


def test_bad_input() -> None:
    A, B = np.ones((2, 4), np.float16), np.ones((4, 2), np.float16)
    which = ("H100", "m16n8k16.f32.f16.f16.f32")
    with pytest.raises(TypeError, match=r"instruction must be an Instruction or a \(gpu, name\)"):
        analysis.errors("H100", A, B)
    with pytest.raises(TypeError, match="A must be float16 values"):
        analysis.errors(which, A.astype(np.float64), B)
    with pytest.raises(ValueError, match="inner dimensions differ"):
        analysis.errors(which, A, A)
    with pytest.raises(ValueError, match="confidence must be between 0 and 1, not 95"):
        analysis.errors(which, A, B, confidence=95)
    empty = np.ones((0, 4), np.float16)
    for f in (analysis.errors, analysis.symmetry, analysis.monotonicity):
        with pytest.raises(ValueError, match=r"nothing to analyse: the product is \(0, 2\)"):
            f(which, empty, B)
    assert analysis.errors(which, A[:, :0], B[:0]).total.max_abs == 0  # K = 0: sums of nothing
    with pytest.raises(ValueError, match="no block scales"):
        analysis.symmetry(which, A, B, scale_a=A)


def results() -> list[Any]:
    which = ("MI300X", "f32_16x16x16_f16")
    A, B, C, _ = draw(unit(which), 4, 16, 4)
    return [
        analysis.errors(which, A, B, C),
        analysis.discrepancy(which, ("MI250X", "f32_16x16x16f16"), A, B, C),
        analysis.symmetry(which, A, B, C),
        analysis.monotonicity(which, A, B, C),
    ]


def test_results_are_tables() -> None:
    for result in results():
        assert len(result.rows()) >= 1
        text = str(result)
        assert "CDNA3" in text and len(text.splitlines()) >= 3
        assert all(len(line) <= 140 for line in text.splitlines())
    causes = [row["cause"] for row in results()[0].rows()]
    assert causes == ["error", "accumulation", "alignment", "rounding"]


def test_pandas_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r'pip install "bitmma\[pandas\]"'):
        results()[0].to_pandas()


def test_exact_products_of_zeros_and_of_any_exponents() -> None:
    wide = np.array([[1.0, 1e-31]])
    assert analysis.exact_product(wide, np.zeros((2, 1))).value == 0
    assert analysis.exact_product(np.zeros((1, 2)), wide.T).value == 0
    # More slices than NumPy's ufuncs take operands.
    a = np.exp2(np.linspace(-300, 300, 40))[None] * 1.1
    b = np.exp2(np.linspace(-300, 300, 40))[:, None] * 1.3
    value = analysis.exact_product(a, b).value[0, 0]
    exact = sum(Fraction(x) * Fraction(y) for x, y in zip(a[0], b[:, 0], strict=True))
    assert Fraction(value) == Fraction(float(exact))


def test_arguments_of_the_wrong_kind() -> None:
    hopper = ("H100", "m64n8k32.f32.e4m3.e4m3")
    A, B = (bitmma.quantize(np.ones(shape), "e4m3") for shape in ((4, 32), (32, 4)))
    with pytest.raises(TypeError, match=r"schedule must be a bitmma\.Schedule or None, not 3"):
        analysis.errors(hopper, A, B, schedule=3)
    with pytest.raises(TypeError, match="A must be a NumPy array or a PyTorch tensor"):
        analysis.errors(hopper, None, B)
    for wrong in ({"shape": 2.5}, {"shape": None}, {"shape": 3, "seed": 1.5}):
        with pytest.raises(TypeError, match="must be non-negative integers, not"):
            analysis.sample("normal", **wrong)
    with pytest.raises(TypeError, match="scale must be a number, not 'x'"):
        analysis.sample("normal", 3, scale="x")
    with pytest.raises(TypeError, match="real numbers, not complex"):
        analysis.sample(np.array([1 + 1j]), 3)
