"""The reference against golden vectors, published known answers and the rules for zeros."""

import itertools
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitmma import formats, isa, reference
from bitmma.models import (
    EFDPA,
    FMA,
    GSTFDPA,
    GTRFDPA,
    RNE_FP16,
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
)

VECTORS = json.loads((Path(__file__).parent / "vectors" / "index.json").read_text())["instructions"]


def f32(x: float) -> int:
    return int.from_bytes(struct.pack("<f", x), "little")


def codes(values: Any, format: str) -> list[int]:
    """Codes of values that the format holds exactly."""
    out = formats.quantize(np.atleast_1d(np.asarray(values, np.float64)), format)
    fmt = formats.get(format)
    assert (formats.decode(out.view(fmt.code_dtype), fmt) == values).all(), (values, format)
    return [int(x) for x in out.view(fmt.code_dtype)]


def entry(gpu: str, name: str, op: str | None = None) -> isa.Entry:
    return isa.find(gpu, name, op)


def run(e: isa.Entry, a: Any, b: Any, c: int = 0, **scales: Any) -> int:
    """One instruction on codes, k products (missing ones are +0), c a code."""
    a, b = ([*x, *[0] * (e.k - len(x))] for x in (a, b))
    return reference.dpa(
        e.model, a, b, c, a_format=e.a, b_format=e.b, c_format=e.c, scale_format=e.scale, **scales
    )


def run_values(e: isa.Entry, a: Any, b: Any, c: float = 0.0, **scales: Any) -> int:
    return run(e, codes(a, e.a), codes(b, e.b), codes(c, e.c)[0], **scales)


# --- golden vectors -----------------------------------------------------------------------------


@pytest.mark.parametrize("row", VECTORS, ids=lambda row: row["file"].removesuffix(".npz"))
def test_sample_of_golden_vectors(row: dict[str, Any], vectors: Path) -> None:
    """64 outputs a file, at a stride that visits every category; the engine does them all."""
    e = isa.find(row["arch"], row["qualifier"])
    with np.load(vectors / row["file"]) as z:
        a, b, c, d = (z[x] for x in "abcd")
        sa, sb = z.get("sa"), z.get("sb")
    sample = [i * (d.size // 64) + i % 7 for i in range(64)] if d.size > 600 else range(d.size)
    quiet = e.model.nan == "quiet"
    seen = set()
    for flat in sample:
        t, i, j = np.unravel_index(flat % d.size, d.shape)
        seen.add(int(t))
        got = reference.dpa(
            e.model, a[t, i].tolist(), b[t, :, j].tolist(), int(c[t, i, j]),
            a_format=e.a, b_format=e.b, c_format=e.c, scale_format=e.scale,
            scale_a=() if sa is None else sa[t, i].tolist(),
            scale_b=() if sb is None else sb[t, :, j].tolist(),
        )  # fmt: skip
        want = int(d[t, i, j])
        if quiet and formats.get(e.d).decode(want).kind is formats.Kind.NAN:
            assert formats.get(e.d).decode(got).kind is formats.Kind.NAN, (t, i, j)
        else:
            assert got == want, (int(t), int(i), int(j), hex(got), hex(want))
    assert seen == set(range(len(d)))


# --- spec/cases.md ------------------------------------------------------------------------------

WGMMA = "m64n8k32.f32.e4m3.e4m3"


def test_case_1_hopper_wgmma_e4m3() -> None:
    a, b = (16, 0.125, 0.375, 1.5), (16, 0.125, 0.1875, 0.75)
    assert run_values(entry("Hopper", WGMMA), a, b) == 0x43809800 == f32(257.1875)


def test_case_2_hopper_wgmma_e4m3() -> None:
    assert run_values(entry("Hopper", WGMMA), (15, 0.125), (15, 0.0625)) == 0x43610000 == f32(225.0)


CASE_3_A = (
    0x9B94, 0x19F3, 0x9A2E, 0x1A67, 0x9A25, 0x9B4E, 0x9B29, 0x9A33,
    0x99E0, 0x1A14, 0x9914, 0x99D1, 0x9AE9, 0x1B1A, 0x9A9C, 0x1B3A,
)  # fmt: skip
CASE_3_B = (
    0x9AAF, 0x99F3, 0x9ACC, 0x1B7C, 0x19ED, 0x1B25, 0x9A1B, 0x9A20,
    0x9AF7, 0x9A48, 0x1AE1, 0x1B32, 0x1B12, 0x1B0E, 0x9A68, 0x1735,
)  # fmt: skip


def test_case_3_e_zero_of_hopper_is_minus_133_and_nothing_else() -> None:
    e = entry("Hopper", "m16n8k16.f32.bf16.bf16.f32")
    want = f32(float.fromhex("0x1.6p-146"))
    assert run(e, CASE_3_A, CASE_3_B) == want
    for e_zero in (-131, -132, -134, -135):
        other = TFDPA(e.model.L, e.model.F, e.model.rho, e_zero)  # type: ignore[attr-defined]
        got = reference.dpa(
            other, CASE_3_A, CASE_3_B, 0, a_format="bf16", b_format="bf16", c_format="f32"
        )
        assert got != want, e_zero


def test_case_4_wgmma_e4m3_cuts_a_lone_c_to_e8m13() -> None:
    assert run(entry("Hopper", WGMMA), [], [], 0x40403017) == 0x40403000


def test_case_5_lowered_e4m3_leaves_a_lone_c_alone() -> None:
    assert run(entry("Hopper", "m16n8k32.f32.e4m3.e4m3.f32"), [], [], 0x40403017) == 0x40403017


def test_case_6_cdna2_f16_flushes_subnormal_operands() -> None:
    e = entry("CDNA2", "f32_16x16x16f16")
    assert run_values(e, [2.0**-15] * 16, [1.0] * 16) == 0


@pytest.mark.parametrize(("c", "want"), [(-1e-6, -0.25), (1e-6, 0.0)])
def test_case_7_cdna3_f16_rounds_down(c: float, want: float) -> None:
    e = entry("CDNA3", "f32_16x16x16_f16")
    a, b = codes((2048, 2048), "f16"), codes((2048, -2048), "f16")
    assert run(e, a, b, f32(c)) == f32(want)


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ("CDNA3", "f32_16x16x8_xf32"),
        ("Ampere", "m16n8k8.f32.tf32.tf32.f32"),
        ("Ada", "m16n8k4.f32.tf32.tf32.f32"),
        ("Hopper", "m64n8k8.f32.tf32.tf32"),
        ("Blackwell", "m64n8k8.kind::tf32.f32.tf32.tf32"),
        ("RTX Blackwell", "m16n8k8.f32.tf32.tf32.f32"),
    ],
)
def test_case_8_a_nan_below_the_cut_is_inf(gpu: str, name: str) -> None:
    assert run(entry(gpu, name), [0x7F800001], [f32(1.0)]) == 0x7F800000


def test_case_9_volta_products_are_not_renormalised() -> None:
    e = entry("Volta", "m8n8k4.f32.f16.f16.f32")
    b = (2.0**-11, 2.0**-11)
    assert run_values(e, (1.5, 2.0**-12, 2.0**-12), (1.5, *b)) == f32(2.25 + 2.0**-22)
    assert run_values(e, (1, 2.0**-12, 2.0**-12), (2.25, *b)) == f32(2.25)


@pytest.mark.parametrize("gpu", ["Ada", "L40S"])
def test_case_10_ada_e4m3(gpu: str) -> None:
    e = entry(gpu, "m16n8k32.f32.e4m3.e4m3.f32")
    tiny = 2.0**-6
    thirteen = run_values(e, (1, tiny, tiny), (1, 2 * tiny / 4, 2 * tiny / 4))
    assert thirteen == f32(1 + 2.0**-12)  # products 1, 2^-13, 2^-13
    fourteen = run_values(e, (tiny, tiny), (tiny / 4, tiny / 4), 1.0)
    assert fourteen == f32(1.0)  # c = 1, products 2^-14, 2^-14


#: One entry for each model and type pair: N changes no arithmetic.
DISTINCT = list(
    {(e.gpu, e.op, e.k, e.a, e.b, e.c, e.d, e.scale, e.block): e for e in isa.catalogue()}.values()
)


F16_OUT = [e for e in DISTINCT if e.d == "f16" and e.a in ("f16", "e5m2")]


@pytest.mark.parametrize("e", F16_OUT, ids=lambda e: f"{e.gpu}-{e.op}-{e.name}")
def test_case_11_f16_output_overflows_to_inf(e: isa.Entry) -> None:
    b = 2.0 if e.b in ("e2m1", "e2m3") else 4.0
    assert run_values(e, [2.0**15 / b], [b], 2.0**15) == 0x7C00


@pytest.mark.parametrize("e", [e for e in DISTINCT if e.scale == "ue8m0"], ids=lambda e: e.name)
def test_case_12_scales_of_zero_and_of_all_ones(e: isa.Entry) -> None:
    assert e.block is not None
    blocks = e.k // e.block
    ones, small = [127] * blocks, [0] * blocks
    got = run_values(e, [1.0], [1.0], scale_a=small, scale_b=ones)
    assert got == f32(2.0**-127)  # not zero
    for nan_a, nan_b in (([0xFF, *ones[1:]], ones), (ones, [*ones[1:], 0xFF])):
        assert run_values(e, [1.0], [1.0], scale_a=nan_a, scale_b=nan_b) == 0x7FFFFFFF


# --- one input, six answers (arithmetic.md; case 13) --------------------------------------------

SIX_A, SIX_B, SIX_C = (-(2.0**13), -0.5, -0.25, -0.125), (2.0**10, 1.0, 1.0, 1.0), 2.0**23


def six_answer(e: isa.Entry) -> float:
    """arithmetic.md's table, row by row."""
    half = e.a in ("f16", "bf16", "tf32", "xf32")
    if e.a in ("f64", "f32") or e.gpu == "CDNA1":
        return -0.875
    if e.gpu == "Volta" or (e.gpu == "Turing" and e.name.startswith("m8n8k4")):
        return 0.0
    if e.gpu == "CDNA2":
        return -0.375 if e.a == "bf16" and not e.name.endswith("_1k") else 0.0
    if e.gpu == "CDNA3":
        return -0.5 if half else -1.0
    if half:
        return -0.5 if e.gpu in ("Turing", "Ampere", "Ada Lovelace") else -0.75
    if e.gpu in ("Ada Lovelace", "Hopper") or (e.gpu == "Blackwell" and e.op == "mma"):
        return 0.0
    return -0.75


def can_hold(e: isa.Entry) -> bool:
    def held(values: tuple[float, ...], format: str) -> bool:
        rounded = formats.quantize(values, format, saturate=True)
        return bool((rounded.astype(np.float64) == values).all())

    return held(SIX_A, e.a) and held(SIX_B, e.b) and held((SIX_C,), e.c)


SIX = [e for e in DISTINCT if can_hold(e)]


def test_six_answers_is_asked_of_every_gpu_and_gets_six() -> None:
    assert {e.gpu for e in SIX} == set(isa.GPUS)
    assert len({six_answer(e) for e in SIX}) == 6


@pytest.mark.parametrize("e", SIX, ids=lambda e: f"{e.gpu}-{e.op}-{e.name}")
def test_case_13_six_answers(e: isa.Entry) -> None:
    k = max(e.k, 4)  # an instruction with k < 4 is chained
    a, b = ([*codes(x, f), *[0] * (k - 4)] for x, f in ((SIX_A, e.a), (SIX_B, e.b)))
    unit = [127] * (k // e.block) if e.block else []
    got = reference.chain(
        e.model, a, b, codes(SIX_C, e.c)[0], k=e.k, a_format=e.a, b_format=e.b, c_format=e.c,
        scale_format=e.scale, scale_a=unit, scale_b=unit, block=e.block,
    )  # fmt: skip
    assert got == codes(six_answer(e), e.d)[0]


# --- signs of zero ------------------------------------------------------------------------------

NEG = {"f16": 0x8000, "bf16": 0x8000, "f32": 1 << 31, "f64": 1 << 63, "tf32": 1 << 31, "e5m2": 0x80}


def dpa(
    model: Model, a: Any, b: Any, c: int, af: str, bf: str | None = None, cf: str = "f32"
) -> int:
    return reference.dpa(model, a, b, c, a_format=af, b_format=bf or af, c_format=cf)


@pytest.mark.parametrize(
    ("model", "format", "c_format"),
    [
        (TFDPA(4), "f16", "f32"),
        (TFDPA(4, 25, RNE_FP16, -21), "f16", "f16"),
        (TFDPA(2), "e5m2", "f32"),
        (STFDPA(4), "e5m2", "f32"),
        (GSTFDPA(4, 4), "e5m2", "f32"),
    ],
)
def test_nvidia_never_returns_minus_zero(model: Model, format: str, c_format: str) -> None:
    zeros = (0, NEG[format])
    for a, b, c in itertools.product(zeros, zeros, (0, NEG[c_format])):
        assert dpa(model, [a] * 4, [b] * 4, c, format, cf=c_format) == 0
    one, minus = codes((1, -1), format)
    assert dpa(model, [one, minus], [one, one], NEG[c_format], format, cf=c_format) == 0


def test_nvidia_negative_results_that_round_to_zero_are_plus_zero() -> None:
    tiny = 2.0**-100
    a, b = codes((-tiny,), "bf16"), codes((tiny,), "bf16")
    assert dpa(TFDPA(4), a, b, 0, "bf16") == 0  # cut by alignment
    model = TFDPA(4, 64, RZ_FP32, -200)
    assert dpa(model, a, b, 0, "bf16") == 0  # cut by the conversion
    f16 = TFDPA(4, 25, RNE_FP16, -21)
    small = codes((-(2.0**-13),), "f16"), codes((2.0**-13,), "f16")
    assert dpa(f16, *small, 0, "f16", cf="f16") == 0
    away = TFDPA(4, 64, Conversion("RD", "f32"), -200)
    assert dpa(away, a, b, 0, "bf16") == 0x80000001  # not zero at all: keeps its sign


@pytest.mark.parametrize("model", [EFDPA(4), TRFDPA(4), GTRFDPA(4)])
def test_amd_fdpa_sums_of_zero_are_plus_zero(model: Model) -> None:
    zeros = (0, 0x8000)
    for a, b, c in itertools.product(zeros, zeros, (0, NEG["f32"])):
        assert dpa(model, [a] * 4, [b] * 4, c, "bf16") == 0
    one, minus = codes((1, -1), "bf16")
    assert dpa(model, [one, minus], [one, one], NEG["f32"], "bf16") == 0


@pytest.mark.parametrize("model", [EFDPA(4), TRFDPA(4), GTRFDPA(4)])
def test_amd_fdpa_negative_sums_that_round_to_zero_are_minus_zero(model: Model) -> None:
    tiny = 2.0**-100
    assert dpa(model, codes((-tiny,), "bf16"), codes((tiny,), "bf16"), 0, "bf16") == NEG["f32"]
    assert dpa(model, codes((tiny,), "bf16"), codes((tiny,), "bf16"), 0, "bf16") == 0


@pytest.mark.parametrize(("model", "f"), [(FMA(), "f32"), (FMA(RNE_FP64), "f64")])
def test_fma_signs_of_zero_are_ieee(model: Model, f: str) -> None:
    zero, neg = 0, NEG[f]
    one, minus = codes((1, -1), f)
    tiny = codes(2.0 ** (formats.get(f).min_exponent), f)[0]
    for a, b, c, want in (
        (zero, one, zero, zero),
        (neg, one, neg, neg),  # -0 + -0
        (neg, one, zero, zero),
        (zero, one, neg, zero),
        (zero, minus, neg, neg),
        (one, minus, one, zero),  # an exact cancellation is +0
        (tiny | neg, tiny, zero, neg),  # rounds to zero, keeps its sign
    ):
        assert dpa(model, [a], [b], c, f, cf=f) == want, tuple(map(hex, (a, b, c)))


# --- FTZ-MulAdd ---------------------------------------------------------------------------------

LEAST = 0x00800000  # 2^-126, the least normal FP32


def test_ftz_flushes_operands_of_their_own_format() -> None:
    one = 0x3C00
    for subnormal in (0x0001, 0x03FF, 0x8001, 0x83FF):
        assert dpa(FTZMulAdd(4), [subnormal], [one], 0, "f16") == 0
        assert dpa(FTZMulAdd(4), [one], [subnormal], 0, "f16") == 0
    assert dpa(FTZMulAdd(4), [0x0400], [one], 0, "f16") == f32(2.0**-14)  # normal in f16
    assert dpa(FTZMulAdd(2), [0x007F], [0x3F80], 0, "bf16") == 0
    assert dpa(FTZMulAdd(4), [0x7C00], [0x0001], 0, "f16") == 0x7FC00000  # Inf * flushed: NaN


@pytest.mark.parametrize("c", [0x00000001, 0x007FFFFF, 0x80000001, 0x807FFFFF, 0x80000000])
def test_ftz_flushes_c_to_plus_zero(c: int) -> None:
    # -0 times one is flushed to +0 * 1 = +0; +0 times -1 is -0, and +0 + -0 is +0.
    assert dpa(FTZMulAdd(4), [0x8000] * 4, [0x3C00] * 4, c, "f16") == 0
    assert dpa(FTZMulAdd(4), [0] * 4, [0xBC00] * 4, c, "f16") == 0


def test_ftz_flushed_results_keep_their_sign() -> None:
    # c + product = -1.5 * 2^-126 + 2^-126 = -2^-127: subnormal, flushed to -0 ...
    a, b = codes((2.0**-63,), "bf16"), codes((2.0**-63,), "bf16")
    c = f32(-1.5 * 2.0**-126)
    for P in (2, 4):
        assert dpa(FTZMulAdd(P), a, b, c, "bf16") == NEG["f32"]
        # ... and stays -0 through a group of products -0: inside, d is not flushed again ...
        minus = [0xBF80] * P
        padded = ([*a, *[0] * (P - 1), *[0] * P], [*b, *[0] * (P - 1), *minus])
        assert dpa(FTZMulAdd(P), *padded, c, "bf16") == NEG["f32"]
        # ... but becomes +0 where a product is +0.
        plus = (padded[0], [*b, *[0] * (2 * P - 1)])
        assert dpa(FTZMulAdd(P), *plus, c, "bf16") == 0


def test_ftz_rounds_before_it_flushes() -> None:
    # 2^-126 - 2^-150 rounds to 2^-126, which is normal; SSE's flush-to-zero would give 0.
    almost = f32(1 - 2.0**-24)
    assert dpa(FTZMulAdd(2), [almost], [LEAST], 0, "f32") == LEAST
    assert dpa(FTZMulAdd(2), [f32(1 - 2.0**-23)], [LEAST], 0, "f32") == 0
    assert dpa(FTZMulAdd(2), [f32(1 - 2.0**-23) | NEG["f32"]], [LEAST], 0, "f32") == 0


def test_ftz_orders_its_additions() -> None:
    big, one = 2.0**24, 1.0  # 2^24 + 1 and 2^24 + 3 are ties: to 2^24 and to 2^24 + 4
    terms = codes((big, one, one, one), "bf16"), codes((one,) * 4, "bf16")
    c = f32(one)
    assert dpa(FTZMulAdd(4), *terms, c, "bf16") == f32(big + 4)  # 1 + ((big + 1) + (1 + 1))
    assert dpa(FTZMulAdd(2), *terms, c, "bf16") == f32(big + 2)  # (1 + (big + 1)) + (1 + 1)
    terms = codes((one, big, one, one), "bf16"), codes((one, one, -one, one), "bf16")
    assert dpa(FTZMulAdd(4), *terms, c, "bf16") == f32(big)  # 1 + ((1 + big) + (-1 + 1))
    assert dpa(EFDPA(4), *terms, c, "bf16") == f32(big + 2)


# --- Lowered ------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", ["f32", "f16"])
@pytest.mark.parametrize("gpu", ["Hopper", "Blackwell"])
@pytest.mark.parametrize("k", [16, 32])
def test_lowered_is_two_f16_instructions_and_an_addition(gpu: str, d: str, k: int) -> None:
    e = entry(gpu, f"m16n8k{k}.{d}.e4m3.e5m2.{d}", "mma")
    half = entry(gpu, f"m16n8k{k // 2}.{d}.f16.f16.{d}", "mma")
    rng = np.random.default_rng(k)
    for _ in range(200):
        a = rng.integers(0, 0x7F, k) | rng.integers(0, 2, k) << 7  # no NaN
        b = rng.integers(0, 0x7C, k) | rng.integers(0, 2, k) << 7
        c_value = np.float32(rng.normal() * 2.0 ** rng.integers(-8, 12))
        c = int(formats.quantize(c_value, d).view(formats.get(d).code_dtype))
        wide_a, wide_b = (
            formats.quantize(formats.decode(x.astype(np.uint8), f), "f16").view(np.uint16)
            for x, f in ((a, "e4m3"), (b, "e5m2"))
        )
        first = np.flatnonzero(np.arange(k) % 4 < 2)
        t = 0
        for lanes in (first, np.setdiff1d(np.arange(k), first)):
            t = run(half, wide_a[lanes].tolist(), wide_b[lanes].tolist(), t)
        float_of = np.float32 if d == "f32" else np.float16
        code = formats.get(d).code_dtype
        with np.errstate(over="ignore"):
            total = np.array(t, code).view(float_of) + np.array(c, code).view(float_of)
        assert run(e, a.tolist(), b.tolist(), c) == int(total.view(code))


def test_lowered_specials() -> None:
    e = entry("Hopper", "m16n8k32.f32.e5m2.e5m2.f32")
    inf, minus_inf, one, nan = 0x7C, 0xFC, 0x3C, 0x7F
    assert run(e, [inf], [one]) == 0x7F800000
    assert run(e, [one, nan], [one, one]) == 0x7FFFFFFF
    assert run(e, [one], [one], 0x7FC12345) == 0x7FFFFFFF
    assert run(e, [inf], [one], 0xFF800000) == 0x7FFFFFFF
    assert run(e, [inf, 0, minus_inf], [one, 0, one]) == 0x7FFFFFFF  # Inf in the two halves
    assert run(e, [0] * 32, [0] * 32, NEG["f32"]) == 0  # t is +0


# --- parameters and short sums ------------------------------------------------------------------


def test_k_is_filled_up_with_zeros() -> None:
    a, b = codes((1.5, -3, 0.25), "f16"), codes((2, 1, 7), "f16")
    for model in (TFDPA(16), EFDPA(8), TRFDPA(8), GTRFDPA(16), FTZMulAdd(4), Lowered(K=16)):
        full = dpa(model, [*a, *[0] * 13], [*b, *[0] * 13], f32(5.0), "f16")
        assert dpa(model, a, b, f32(5.0), "f16") == full == f32(6.75)
    assert dpa(TFDPA(16), [], [], 0x40403017, "f16") == 0x40403017
    assert dpa(TFDPA(32, 13, RZ_E8M13), [], [], 0x40403017, "e4m3") == 0x40403000


def test_groups_are_chained() -> None:
    a, b = codes([1.0] * 4, "f16"), codes([1.0] * 4, "f16")
    c = f32(2.0**24)  # each group rounds toward zero on its own
    model = TFDPA(1, 30, RZ_FP32, -133)
    assert dpa(model, a, b, c, "f16") == c
    assert dpa(TFDPA(4, 30, RZ_FP32, -133), a, b, c, "f16") == f32(2.0**24 + 4)


def test_blocks_keep_their_scales_where_the_group_is_filled_up() -> None:
    ones = codes([1.0] * 32, "e2m1")
    got = reference.dpa(
        GSTFDPA(), ones, ones, 0, a_format="e2m1", b_format="e2m1", c_format="f32",
        scale_format="ue8m0", scale_a=[127, 130], scale_b=[127, 127],
    )  # fmt: skip
    assert got == f32(16.0 * (1 + 8))


def test_chain_fills_scales_up() -> None:
    """K = 96 with blocks of 16 is a k64 instruction and half of one; scales are its own."""
    e = entry("RTX Blackwell", "m16n8k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.f32.ue8m0")
    ones = codes([1.0] * 96, "e2m1")
    scale_a = [127, 128, 129, 130, 131, 132]
    got = reference.chain(
        e.model, ones, ones, 0, k=64, a_format="e2m1", b_format="e2m1", c_format="f32",
        scale_format="ue8m0", scale_a=scale_a, scale_b=[127] * 6, block=16,
    )  # fmt: skip
    assert got == f32(16.0 * (1 + 2 + 4 + 8 + 16 + 32))
