"""Promotion: parts of K in chains of their own, added outside the unit.

The judge is a plain loop: `reference.chain` for every part, exact fractions rounded to f32 here.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import bitmma
from bitmma import _native, cases, engine, formats, reference
from bitmma.engine import cpu
from bitmma.models import (
    EFDPA,
    FMA,
    GSTFDPA,
    GTRFDPA,
    RNE_FP16,
    RNE_FP64,
    RZ_E8M13,
    STFDPA,
    TFDPA,
    TRFDPA,
    Conversion,
    Lowered,
    Model,
)

INF, NAN = float("inf"), float("nan")


# --- the judge ------------------------------------------------------------------------------------


class Sum:
    """IEEE numbers of f32 or f64 as codes, exactly; NaN is the one of ``nan``."""

    def __init__(self, bits: int, nan: int) -> None:
        self.width, self.mantissa, self.lowest = (32, 23, -149) if bits == 32 else (64, 52, -1074)
        self.sign, self.nan = 1 << (bits - 1), nan
        self.inf = (self.sign >> self.mantissa) - 1 << self.mantissa

    def value(self, code: int) -> Fraction | float:
        magnitude = code & ~self.sign
        if magnitude >= self.inf:
            return NAN if magnitude > self.inf else -INF if code & self.sign else INF
        field, m = magnitude >> self.mantissa, magnitude & ((1 << self.mantissa) - 1)
        n = m + (1 << self.mantissa if field else 0)
        x = Fraction(n) * Fraction(2) ** (max(field, 1) - 1 + self.lowest)
        return -x if code & self.sign else x

    def round(self, x: Fraction, negative_zero: bool) -> int:
        if not x:
            return self.sign if negative_zero else 0
        e = max(int(abs(x).numerator).bit_length() - abs(x).denominator.bit_length() - 1, -5000)
        while abs(x) >= Fraction(2) ** (e + 1):
            e += 1
        q = max(e - self.mantissa, self.lowest)
        steps = round(abs(x) / Fraction(2) ** q)  # ties to even
        code = steps + ((q - self.lowest) << self.mantissa)  # a carry is the next binade's first
        return min(code, self.inf) | (self.sign if x < 0 else 0)

    def fma(self, x: int, y: int, z: int) -> int:
        a, b, c = (self.value(code) for code in (x, y, z))
        negative = bool((x ^ y) & self.sign)
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            if isinstance(c, Fraction):
                zeros = a * b == 0 and c == 0
                return self.round(a * b + c, zeros and negative and bool(z & self.sign))
            return self.nan if c != c else z
        if a != a or b != b or c != c or 0 in (a, b):
            return self.nan
        if not isinstance(c, Fraction) and (c < 0) != negative:
            return self.nan
        return self.inf | (self.sign if negative else 0)

    def multiply(self, x: int, y: int) -> int:
        return self.fma(x, y, (x ^ y) & self.sign)

    @property
    def one(self) -> int:
        return (self.sign >> self.mantissa) // 2 - 1 << self.mantissa


def numbers(d: str, nan: str) -> Sum:
    width = 64 if d == "f64" else 32
    quiet = {32: 0x7FC00000, 64: 0x7FF8000000000000}[width]
    return Sum(width, (1 << (width - 1)) - 1 if nan == "ones" else quiet)


def to_sum(code: int, d: str, s: Sum) -> int:
    """A result as the sum's type: exact."""
    if formats.get(d).width == s.width:
        return code
    value = float(formats.decode(np.array([code], formats.get(d).code_dtype), d)[0])
    if value != value:
        return s.nan
    return int(np.float32(value).view(np.uint32))


def one_output(
    model: Model, a: Sequence[int], b: Sequence[int], c: int, every: int, *,
    scale_a: Sequence[int] = (), scale_b: Sequence[int] = (), block: int | None = None,
    promote_scale_a: Sequence[int] = (), promote_scale_b: Sequence[int] = (), fused: bool = True,
    **options: Any,
) -> int:  # fmt: skip
    s = numbers(model.d, model.nan)
    for part in range(max(1, -(-len(a) // every))):
        ks = slice(part * every, (part + 1) * every)
        blocks = slice(ks.start // block, ks.stop // block) if block else slice(0)
        r = reference.chain(
            model, a[ks], b[ks], 0, scale_a=scale_a[blocks], scale_b=scale_b[blocks], block=block,
            c_format=model.d, **options,
        )  # fmt: skip
        r, scale = to_sum(r, model.d, s), s.one
        for codes in (promote_scale_a, promote_scale_b):
            if len(codes):
                scale = codes[part] if scale == s.one else s.multiply(scale, codes[part])
        c = s.fma(scale, r, c) if fused else s.fma(s.one, s.multiply(scale, r), c)
    return s.nan if s.value(c) != s.value(c) else c


def judge(model: Model, A: Any, B: Any, C: Any, every: int, options: dict[str, Any]) -> np.ndarray:
    """(M, N) of all outputs; ``options`` as for `engine.mma`."""
    by_row, by_column = ("scale_a", "promote_scale_a"), ("scale_b", "promote_scale_b")
    fixed = {x: y for x, y in options.items() if x not in by_row + by_column + ("promote_fused",)}
    fixed["fused"] = options.get("promote_fused", True)
    D = np.empty((A.shape[0], B.shape[1]), "u8" if model.d == "f64" else "u4")

    def codes(x: np.ndarray) -> list[int]:
        return (x.view("u4") if x.dtype == np.float32 else x).tolist()

    for i, j in np.ndindex(*D.shape):
        lines = {x: codes(options[x][i]) for x in by_row if options.get(x) is not None}
        lines |= {x: codes(options[x][:, j]) for x in by_column if options.get(x) is not None}
        c = int(C[i, j]) if C is not None else 0
        D[i, j] = one_output(model, codes(A[i]), codes(B[:, j]), c, every, **lines, **fixed)
    return D


def test_the_judge_rounds_as_ieee_does() -> None:
    """Against NumPy's own additions and products."""
    rng, s = np.random.default_rng(3), numbers("f32", "quiet")
    x, y = rng.integers(0, 1 << 32, (2, 3000), dtype=np.uint64).astype(np.uint32)
    y[::2] = x[::2] ^ rng.integers(0, 1 << 26, 1500).astype(np.uint32)
    x[:50] >>= 8  # subnormal
    with np.errstate(all="ignore"):
        for got, exact in ((lambda i, j: s.fma(s.one, i, j), np.add), (s.multiply, np.multiply)):
            want = exact(x.view("f4"), y.view("f4"))
            codes = np.array([got(int(i), int(j)) for i, j in zip(x, y, strict=True)], "u4")
            assert ((codes == want.view("u4")) | (np.isnan(want) & (codes == s.nan))).all()
    assert s.fma(s.sign | s.one, 0, s.sign) == s.sign and s.fma(0, s.one, s.sign) == 0


# --- operands -------------------------------------------------------------------------------------


class Unit:
    """A model, its formats and its k."""

    def __init__(
        self, model: Model, a: str, k: int, b: str | None = None, scale: str | None = None,
        block: int | None = None,
    ) -> None:  # fmt: skip
        self.model, self.a, self.b, self.k = model, a, b or a, k
        self.scale, self.block = scale, block

    def __str__(self) -> str:
        return f"{self.model}-{self.a}-k{self.k}"[:60]

    @classmethod
    def named(cls, gpu: str, name: str) -> "Unit":
        i = bitmma.instruction(gpu, name)
        return cls(i.model, i.a, i.k, i.b, i.scale, i.block)

    @property
    def options(self) -> dict[str, Any]:
        return {
            "a_format": self.a, "b_format": self.b, "k": self.k, "scale_format": self.scale,
            "block": self.block,
        }  # fmt: skip

    def draw(self, shape: tuple[int, int, int], every: int, seed: int) -> dict[str, Any]:
        """A, B, C and what `engine.mma` wants beside them: plain lines and adversarial ones."""
        M, N, K = shape
        rng, wide = np.random.default_rng(seed), "f64" if self.model.d == "f64" else "f32"
        x = cases.generate(
            self.model, self.a, self.b, self.model.d, max(self.k, 1), 4 * (M + N) * (K + 1), seed,
            scale_format=self.scale, block=self.block,
        )  # fmt: skip
        A = rng.permutation(x.a.reshape(-1, self.k))[: -(-M * K // self.k) + 1].reshape(-1)
        B = rng.permutation(x.b.reshape(-1, self.k))[: -(-N * K // self.k) + 1].reshape(-1)
        A, B = A[: M * K].reshape(M, K), B[: N * K].reshape(N, K).T
        plain_rows, plain_columns = rng.random((M, 1)) < 0.7, rng.random((1, N)) < 0.7
        A = np.where(plain_rows, normal(rng, self.a, (M, K)), A)
        B = np.where(plain_columns, normal(rng, self.b, (K, N)), B)
        C = random_sums(rng, (M, N), wide)
        C[0, 0], C[-1, -1] = formats.get(wide).nan_code, formats.get(wide).inf_code
        parts = -(-K // every)
        operands = {"A": A, "B": B, "C": C, **self.options}
        if self.block:
            blocks = -(-K // self.block)
            for name, size in (("scale_a", (M, blocks)), ("scale_b", (blocks, N))):
                odd = rng.choice(getattr(x, name).reshape(-1), size)
                plain = normal(rng, self.scale or "", size)
                operands[name] = np.where(rng.random(size) < 0.9, plain, odd)
        if wide == "f32":
            for name, size in (("a", (M, parts)), ("b", (parts, N))):
                codes = random_sums(rng, size, "f32").astype("u4")
                operands[f"promote_scale_{name}"] = codes.view("f4")
        return operands


def random_sums(rng: np.random.Generator, shape: tuple[int, ...], wide: str) -> np.ndarray:
    """Moderate numbers, some from the ends of the range and the specials."""
    kind = "f8" if wide == "f64" else "f4"
    x = (rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 7, shape)).astype(kind)
    top, tiny = np.finfo(kind).max, np.finfo(kind).smallest_subnormal
    odd = np.array([0, -0.0, INF, -INF, NAN, top, -top, tiny, -tiny, 1, 1e-30, 1e30], kind)
    x = np.where(rng.random(shape) < 0.12, rng.choice(odd, shape), x)
    return x.view("u8" if wide == "f64" else "u4")


def run(unit: Unit, operands: dict[str, Any], every: int, **more: Any) -> np.ndarray:
    options = operands | more
    A, B, C = (options.pop(x) for x in "ABC")
    return engine.mma(unit.model, A, B, C, promote=every, **options)


def want(unit: Unit, operands: dict[str, Any], every: int, **more: Any) -> np.ndarray:
    options = operands | more
    A, B, C = (options.pop(x) for x in "ABC")
    return judge(unit.model, A, B, C, every, options)


# --- every family, every build --------------------------------------------------------------------

UNITS = [
    Unit.named("Hopper", "m64n8k32.f32.e4m3.e4m3"),
    Unit.named("Hopper", "m64n8k16.f32.f16.f16"),
    Unit.named("Hopper", "m64n8k16.f16.f16.f16"),
    Unit.named("Ampere", "m16n8k8.f32.bf16.bf16.f32"),
    Unit.named("Ampere", "m16n8k4.f32.tf32.tf32.f32"),
    Unit.named("Hopper", "m16n8k32.f32.e4m3.e4m3.f32"),
    Unit.named("Hopper", "m16n8k16.f16.e5m2.e5m2.f16"),
    Unit.named("RTX Blackwell", "m16n8k32.kind::mxf8f6f4.block32.f32.e4m3.e4m3.f32.ue8m0"),
    Unit.named("RTX Blackwell", "m16n8k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.f32.ue4m3"),
    Unit.named("CDNA1", "f32_16x16x16f16"),
    Unit.named("CDNA1", "f32_16x16x8bf16"),
    Unit.named("CDNA2", "f32_16x16x16f16"),
    Unit.named("CDNA2", "f32_16x16x8bf16"),
    Unit.named("CDNA2", "f64_16x16x4f64"),
    Unit.named("CDNA3", "f32_16x16x4_f32"),
    Unit.named("CDNA3", "f32_16x16x16_f16"),
    Unit.named("CDNA3", "f32_16x16x8_xf32"),
    Unit.named("CDNA3", "f32_16x16x32_fp8_bf8"),
    # Only the exact evaluator: a wide F, results in bf16 and f64, a directed rounding of few bits.
    Unit(TFDPA(8, 60, RZ_E8M13), "f16", 8),
    Unit(TFDPA(5, 20, Conversion("RNE", "bf16")), "bf16", 10, "f16"),
    Unit(TRFDPA(4, 30, 40, RNE_FP64), "f32", 4),
    Unit(EFDPA(3, Conversion("RU", "f32", 9)), "e5m2", 3),
    Unit(GTRFDPA(6, 10, 12, RNE_FP16), "e4m3", 12),
    Unit(STFDPA(8, 13), "f16", 16, None, "ue8m0", 8),
    # Only the reference: see cpu._native_can.
    Unit(GSTFDPA(4, 2, 20), "f16", 4, None, "ue8m0", 2),
    Unit(Lowered(66, TFDPA(16), tuple((i,) for i in range(66))), "e4m3", 66),
]


@pytest.fixture(params=_native.isas())
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(cpu, "_ISA", request.param)
    yield request.param


@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_bits(unit: Unit) -> None:
    """Three shapes: one part and a bit, exact parts, parts of one instruction; all builds."""
    met = dict.fromkeys(("nan", "inf", "finite"), 0)
    k = unit.k
    native = cpu._plan(unit.model, unit.a, unit.b, unit.model.d, k, unit.scale, unit.block)
    shapes = [((4, 4, 3 * k), k), ((2, 6, 5 * k), 2 * k), ((4, 4, max(1, 3 * k - 1)), 2 * k)]
    for seed, (shape, every) in enumerate(shapes if k < 64 else shapes[:2]):
        x = unit.draw(shape, every, seed)
        scaled = "promote_scale_a" in x
        for more in (
            [
                {},
                {"promote_fused": False},
                {"promote_scale_a": None},
                {"promote_scale_b": None, "C": None, "promote_fused": False},
                {"promote_scale_a": None, "promote_scale_b": None},
            ]
            if scaled
            else [{}, {"C": None}]
        ):
            expected = want(unit, x, every, **more)
            for name in _native.isas() if native else [""]:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(cpu, "_ISA", name)
                    got = run(unit, x, every, **more)
                assert got.dtype == expected.dtype
                assert np.array_equal(got, expected), (name, more, got, expected)
            value = formats.decode(expected, "f64" if unit.model.d == "f64" else "f32")
            met["nan"] += np.isnan(value).sum()
            met["inf"] += np.isinf(value).sum()
            met["finite"] += (np.isfinite(value) & (value != 0)).sum()
    assert all(met.values()) and met["finite"] > met["nan"], met


def test_the_schedule_matters() -> None:
    """The parts, their scales and the fusing: each changes bits of plain numbers."""
    rng = np.random.default_rng(5)
    A, B = normal(rng, "f16", (8, 160)), normal(rng, "f16", (160, 8))
    scales = {"promote_scale_a": rng.random((8, 5)).astype("f4")}
    results = [
        engine.mma(F16.model, A, B, **F16.options, **more)
        for more in (
            {}, {"promote": 16}, {"promote": 32}, {"promote": 32, **scales},
            {"promote": 32, "promote_fused": False, **scales},
        )
    ]  # fmt: skip
    for n, x in enumerate(results):
        assert all((x != y).sum() > 8 for y in results[:n])


@pytest.mark.parametrize("unit", [u for u in UNITS if u.k < 64][:18], ids=str)
@pytest.mark.parametrize("layout", ["C", "transposed", "reversed"])
def test_kernels_blocks(unit: Unit, layout: str, isa: str) -> None:
    """Blocks, panels, parts of many chunks: the kernels against a chain a part and f32 sums.

    The parts' chains are tested elsewhere; the sums here are NumPy's, of finite numbers.
    """
    M, N, K, every = (70, 150, 21 * unit.k + 1, 8 * unit.k)
    if layout == "transposed":
        M, N = 300, 5
    rng = np.random.default_rng(7)
    A, B = (normal(rng, f, s) for f, s in ((unit.a, (M, K)), (unit.b, (K, N))))
    if layout == "transposed":
        A, B = np.asfortranarray(A), np.ascontiguousarray(B.T).T
    if layout == "reversed":
        A, B = A[::-1].copy()[::-1], B[:, ::-1].copy()[:, ::-1]
    options = dict(unit.options)
    if unit.block:
        blocks = -(-K // unit.block)
        options |= {
            "scale_a": normal(rng, unit.scale or "", (M, blocks)),
            "scale_b": normal(rng, unit.scale or "", (blocks, N)),
        }
    kind = "f8" if unit.model.d == "f64" else "f4"
    acc = rng.standard_normal((M, N)).astype(kind)
    got = engine.mma(
        unit.model, A, B, acc.view(kind.replace("f", "u")), promote=every, threads=1, **options
    )
    for start in range(0, K, every):
        part = dict(options)
        if unit.block:
            at = slice(start // unit.block, (start + every) // unit.block)
            part |= {"scale_a": options["scale_a"][:, at], "scale_b": options["scale_b"][at]}
        r = engine.mma(
            unit.model, A[:, start : start + every], B[start : start + every], threads=1, **part
        )
        acc = acc + r.view(formats.get(unit.model.d).dtype).astype(kind)
    assert np.array_equal(got, acc.view(got.dtype))


def normal(rng: np.random.Generator, fmt: str, shape: tuple[int, ...]) -> np.ndarray:
    x = rng.standard_normal(shape)
    x = x if formats.get(fmt).signed else abs(x)
    return bitmma.quantize(x, fmt).view(formats.get(fmt).code_dtype)


# --- chosen sums ----------------------------------------------------------------------------------

F16 = Unit.named("Hopper", "m64n8k16.f32.f16.f16")
HALF = Unit.named("Hopper", "m64n8k16.f16.f16.f16")
CDNA1 = Unit.named("CDNA1", "f32_16x16x16f16")


def sums(
    unit: Unit, parts: Sequence[float], c: float | None = None, scales: Any = None, **more: Any
) -> float:
    """One output whose parts come to the numbers of ``parts``: of f16."""
    A = np.zeros((1, unit.k * len(parts)), np.float16)
    A[0, :: unit.k] = parts
    B = np.ones((A.shape[1], 1), np.float16)
    if scales is not None:
        more["promote_scale_a"] = np.float32([scales])
    C = None if c is None else np.float32([[c]]).view("u4")
    D = engine.mma(
        unit.model, A.view("u2"), B.view("u2"), C, promote=unit.k, **unit.options, **more
    )
    return D.view("f4")[0, 0]


@pytest.mark.parametrize("unit", [F16, HALF], ids=str)
def test_nan_of_the_sum_is_the_model_s(unit: Unit, isa: str) -> None:
    for parts, c in [([INF, -INF], None), ([1, 2], NAN), ([NAN, 1], 0), ([-INF, 1], INF)]:
        assert sums(unit, parts, c).view("u4") == 0x7FFFFFFF
    assert sums(unit, [1, INF], 5) == INF and sums(unit, [1, -INF, -INF]) == -INF
    other = np.uint32([[0xFFC12345]]).view("f4")[0, 0]  # a NaN with a payload, a signalling one
    assert sums(unit, [1], other).view("u4") == 0x7FFFFFFF
    assert sums(unit, [INF, 1], scales=[0, 1]).view("u4") == 0x7FFFFFFF


def test_nan_is_canonical_where_the_payload_is_unknown(isa: str) -> None:
    assert sums(CDNA1, [INF, -INF]).view("u4") == 0x7FC00000
    assert sums(CDNA1, [1], np.uint32([0x7F812345]).view("f4")[0]).view("u4") == 0x7FC00000


def test_zeros_overflow_and_subnormals(isa: str) -> None:
    top, tiny = np.float32(3.4028235e38), np.uint32([1]).view("f4")[0]
    assert sums(F16, [0], -0.0).view("u4") == 0  # -0 + +0
    assert sums(F16, [1, -1]).view("u4") == 0
    assert sums(F16, [0], -0.0, [-1]).view("u4") == 0x80000000  # -0 + (-1 * +0)
    assert sums(F16, [1024] * 2, top, [1e28, 1e28]) == INF
    assert sums(F16, [1, 1], tiny, [tiny, tiny]).view("u4") == 3
    assert sums(F16, [-1, 1], tiny, [tiny, tiny]).view("u4") == 1
    # A product that overflows and a fused sum that does not.
    assert sums(F16, [1024], -top, [2.0**118]) == np.float32(2.0**128 - float(top))
    assert sums(F16, [1024], -top, [2.0**118], promote_fused=False) == INF


def test_fused_and_rounded_apart() -> None:
    s = np.float32(1 + 2**-23)
    assert sums(F16, [1.5], -1.5, [s]) == np.float32(2**-23 * 1.5)
    assert sums(F16, [1.5], -1.5, [s], promote_fused=False) == np.float32(2**-22)


def test_half_results_are_added_in_single(isa: str) -> None:
    """No sum of halves: 2048 + 1 + 1 is not 2048."""
    assert sums(HALF, [2048, 1, 1]) == 2050


def test_one_instruction_of_nothing() -> None:
    """K = 0: c + (+0), and scales that have no part are not there."""
    for unit in (F16, CDNA1):
        A, B = np.zeros((1, 0), "u2"), np.zeros((0, 2), "u2")
        C = np.uint32([[0x80000000, 0x3F800001]])
        none = {
            "promote_scale_a": np.zeros((1, 0), "f4"),
            "promote_scale_b": np.zeros((0, 2), "f4"),
        }
        for more in ({}, none):
            got = engine.mma(unit.model, A, B, C, promote=16, **unit.options, **more)
            assert got.tolist() == [[0, 0x3F800001]]


def test_a_unit_whose_c_is_not_its_d() -> None:
    """Every chain starts from +0, whatever the instruction's c."""
    i = bitmma.instruction("Volta", "m8n8k4.f32.f16.f16.f16")
    unit = Unit(i.model, "f16", 4)
    x = unit.draw((4, 5, 14), 4, 0)
    assert np.array_equal(run(unit, x, 4, c_format="f16"), want(unit, x, 4))


# --- the call -------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 3])
def test_batches_broadcast(threads: int) -> None:
    unit, rng = F16, np.random.default_rng(1)
    A, B = normal(rng, "f16", (2, 1, 9, 40)), normal(rng, "f16", (3, 40, 70))
    C = rng.standard_normal((9, 70)).astype("f4").view("u4")
    sa, sb = rng.random((3, 9, 3)).astype("f4"), rng.random((2, 1, 3, 70)).astype("f4")

    def product(*operands: Any, **more: Any) -> np.ndarray:
        a, b, c, s, t = operands
        scales = {"promote_scale_a": s, "promote_scale_b": t}
        return engine.mma(unit.model, a, b, c, promote=16, **scales, **unit.options, **more)

    D = product(A, B, C, sa, sb, threads=threads)
    assert D.shape == (2, 3, 9, 70) and D.dtype == np.uint32
    for i, j in np.ndindex(2, 3):
        assert np.array_equal(D[i, j], product(A[i, 0], B[j], C, sa[j], sb[i, 0]))


def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_PRODUCTS_PER_THREAD", 16)
    rng = np.random.default_rng(2)
    for M, N in ((40, 7), (7, 90)):
        A, B = normal(rng, "f16", (M, 50)), normal(rng, "f16", (50, N))
        scales = {
            "promote_scale_a": rng.random((M, 4)).astype("f4"),
            "promote_scale_b": rng.random((4, N)).astype("f4"),
        }
        one, *others = (
            engine.mma(F16.model, A, B, promote=16, threads=n, **scales, **F16.options)
            for n in (1, 2, 5, 64)
        )
        assert all(np.array_equal(one, x) for x in others)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"promote": 24}, "promote must be a positive multiple of k = 16, not 24"),
        ({"promote": 0}, "promote must be a positive multiple of k = 16, not 0"),
        ({"promote": -16}, "promote must be a positive multiple"),
        ({"promote": 16.0}, "promote must be a positive integer, not 16.0"),
        ({"promote": True}, "promote must be a positive integer, not True"),
        ({"promote": 16, "k": None}, "promote needs k"),
        ({"promote_scale_a": np.ones((2, 2), "f4")}, "need promote"),
        ({"promote": 16, "promote_scale_a": np.ones((2, 2))}, "float32 array, not float64"),
        ({"promote": 16, "promote_scale_b": [[1.0]]}, "float32 array, not list"),
        ({"promote": 16, "promote_scale_b": np.ones((3, 3), "f4")}, "promote_scale_b has another"),
    ],
)  # fmt: skip
def test_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        engine.mma(
            F16.model, np.zeros((2, 32), "u2"), np.zeros((32, 3), "u2"), **F16.options | options
        )


def test_no_scales_of_f64_sums() -> None:
    with pytest.raises(ValueError, match="are f64"):
        engine.mma(
            FMA(RNE_FP64), np.zeros((2, 4), "u8"), np.zeros((4, 3), "u8"), a_format="f64",
            b_format="f64", k=4, promote=4, promote_scale_a=np.ones((2, 1), "f4"),
        )  # fmt: skip


# --- long products --------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("promote", [None, 16])
def test_progress(threads: int, promote: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_TICK", 1e-4)
    told: list[tuple[int, int]] = []
    A, B = np.zeros((512, 2050), "u2"), np.zeros((2050, 600), "u2")
    engine.mma(
        F16.model, A, B, progress=lambda *x: told.append(x), promote=promote, threads=threads,
        **F16.options,
    )  # fmt: skip
    done, total = zip(*told, strict=True)
    assert set(total) == {512 * 2050 * 600} and done[-1] == total[-1]
    assert list(done) == sorted(done) and len(set(done)) > 2, done


def test_progress_of_a_short_product() -> None:
    told: list[tuple[int, int]] = []
    A, B = np.zeros((2, 8), "u2"), np.zeros((8, 3), "u2")
    engine.mma(F16.model, A, B, progress=lambda *x: told.append(x), **F16.options)
    unit = UNITS[-1]  # by the reference
    engine.mma(
        unit.model, A.astype("u1"), B.astype("u1"), progress=lambda *x: told.append(x),
        **unit.options,
    )  # fmt: skip
    assert told == [(48, 48), *((8 * n, 48) for n in range(7))]


def test_what_progress_raises_ends_the_product() -> None:
    def stop(done: int, total: int) -> None:
        raise RuntimeError("enough")

    A = np.lib.stride_tricks.as_strided(np.zeros(1, "u2"), (1000, 1 << 40), (0, 0))
    for threads in (1, 2):
        with pytest.raises(RuntimeError, match="enough"):
            engine.mma(F16.model, A, A.T, progress=stop, threads=threads, **F16.options)


@pytest.mark.skipif(sys.platform == "win32", reason="signals to a process are POSIX's")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("unit", "shape", "promote"),
    [
        (F16, (1000, 1 << 30), None), (F16, (1, 1 << 40), 16), (UNITS[18], (1, 1 << 40), None),
        (UNITS[18], (300, 1 << 30), 8), (UNITS[-1], (200, 10_000), None),
    ],
    ids=str,
)  # fmt: skip
def test_ctrl_c_is_heard(
    unit: Unit, shape: tuple[int, int], promote: int | None, threads: int
) -> None:
    """Hours of work at least; with kernels, by the exact evaluator, by the reference."""
    M, K = shape
    program = f"""
import signal
import numpy as np
from bitmma import engine
from bitmma.models import *
A = np.lib.stride_tricks.as_strided(np.zeros(1, "u{1 + (unit.a == "f16")}"), ({M}, {K}), (0, 0))
signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent may have had it ignored
try:
    print("go", flush=True)
    engine.mma({unit.model!r}, A, A.T, promote={promote}, threads={threads}, **{unit.options!r})
except KeyboardInterrupt:
    print("heard")
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "go\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        try:
            out, _ = process.communicate(timeout=60)
        finally:
            process.kill()
        assert out == "heard\n"
