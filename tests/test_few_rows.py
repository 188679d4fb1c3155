"""Products with few rows, which kernels compute straight from B's codes (src/native/codes.hpp).

Exponents come from the upper bytes of codes there, which say what is to be known only where the
largest is a whole field above 0, counted from the row's largest; bf16 and tf32 need numbers near
each other and not too far from 1, sums that one float64 is to hold, nearer ones still; specials,
and whatever else, go the general way. Operands are drawn around all of that, and what they meet is
counted. The judge is the exact evaluator.
"""

import collections
import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from bitmma import _native, formats
from bitmma.engine import cpu
from bitmma.models import (
    EFDPA,
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
    FTZMulAdd,
    Lowered,
    Model,
)

Rng = np.random.Generator
Codes = np.ndarray[Any, Any]

#: Whole tiles of every build and ragged ones.
COLUMNS = (1, 15, 32, 64, 67, 130)
#: As kernels take them together (8, 4, 2, 1), and one more than any takes so.
ROWS = (1, 2, 3, 4, 5, 6, 7, 15, 33)
LAYOUTS = ("rows", "columns", "spaced", "backward", "unaligned")
UNITS: tuple[tuple[Model, str], ...] = (
    *((TFDPA(), f) for f in ("f16", "bf16", "e5m2", "e2m3", "tf32")),
    *((TFDPA(32, 13, RZ_E8M13), f) for f in ("e4m3", "e5m2", "e3m2", "e2m1", "fp8", "bf8")),
    (TFDPA(4, 9, RNE_FP16), "e5m2"),
    (TFDPA(8, 24, RNE_FP16, -20), "f16"),
    (TFDPA(4, 23), "bf16"),
    (STFDPA(32, 25), "e4m3"),
    (STFDPA(32, 12), "e4m3"),
    (TRFDPA(8, 24, 31), "f16"),
    (TRFDPA(8, 24, 31), "bf16"),
    *((TRFDPA(4, 24, 31), f) for f in ("tf32", "e4m3")),
    *((GTRFDPA(16, 24, 31), f) for f in ("fp8", "bf8")),
    (GTRFDPA(4, 24, 31), "tf32"),
    (EFDPA(4), "f16"),
    *((EFDPA(2), f) for f in ("f16", "bf16")),
    (GSTFDPA(), "e2m1"),
    (GSTFDPA(128, 32, 35), "e2m1"),
    *((Lowered(32, TFDPA(16, F), ((0, 1), (2, 3))), "e4m3") for F in (13, 25)),
    (FTZMulAdd(4), "f16"),
    (FTZMulAdd(2), "bf16"),
    (FMA(), "f32"),
    (FMA(), "f16"),
    (FMA(RNE_FP64), "f64"),
)


def pick(rng: Rng, choices: Any) -> Any:
    return choices[rng.integers(len(choices))]


def draw(rng: Rng, format: str, shape: tuple[int, int], low: int, high: int, odd: float) -> Codes:
    """Codes with exponent fields from low to high (0: subnormal), and a part of zeros."""
    fmt = formats.get(format)
    top = (1 << fmt.exponent_bits) - 1
    field = np.clip(rng.integers(low, high + 1, shape), 0, top)
    word = field << fmt.mantissa_bits | rng.integers(0, 1 << fmt.mantissa_bits, shape)
    word |= rng.integers(0, 2, shape) << (fmt.width - fmt.dropped_bits - 1)
    codes = (word << fmt.dropped_bits).astype(fmt.code_dtype)
    codes[~np.isfinite(formats.decode(codes, fmt))] = 0
    codes[rng.random(shape) < odd] = 0
    codes[:, rng.random(shape[1]) < odd / 2] = 0  # whole columns
    if fmt.dropped_bits:  # these say nothing
        codes |= rng.integers(0, 1 << fmt.dropped_bits, shape).astype(fmt.code_dtype)
    return codes


def special_codes(format: str) -> Codes:
    fmt = formats.get(format)
    if fmt.width >= 32:
        return np.array([np.nan, np.inf, -np.inf], f"f{fmt.width // 8}").view(fmt.code_dtype)
    every = np.arange(1 << fmt.width).astype(fmt.code_dtype)
    return every[~np.isfinite(formats.decode(every, fmt))]


#: Exponent fields of C.
C_FIELDS = {"f16": (1, 20), "f32": (100, 140), "f64": (1000, 1040)}


def draw_scales(rng: Rng, M: int, K: int, N: int, ue4m3: bool) -> tuple[Codes, Codes]:
    """Near each other or not, a column's sometimes NaN or 0, in either layout."""
    blocks, nan = (-(-K // 16), 127) if ue4m3 else (-(-K // 32), 255)
    low, high = (40, 70) if ue4m3 else (110, 140)
    if rng.random() < 0.3:
        low, high = (0, 120) if ue4m3 else (60, 190)
    rows, columns = (rng.integers(low, high, s, np.uint8) for s in ((M, blocks), (blocks, N)))
    columns[-1, -1] = pick(rng, (low, low, nan, 0))
    rows[0, 0] = pick(rng, (high, high, high, nan, 0))
    return rows, laid(columns, pick(rng, LAYOUTS))


def laid(x: Codes, layout: str) -> Codes:
    match layout:
        case "columns":
            return np.asfortranarray(x)
        case "spaced":
            return np.repeat(np.repeat(x, 2, 0), 3, 1)[::2, ::3]
        case "backward":
            return np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1]
        case "unaligned":  # to a vector, not to an element
            return np.pad(x, ((0, 0), (1, 2)))[:, 1:-2]
    return x


def compare(model: Model, format: str, k: int, *operands: Codes | None) -> Codes:
    """What every build gives, after comparing."""
    A, B, C, scale_a, scale_b = operands
    assert A is not None and B is not None
    scale, block = None, None
    if scale_a is not None:
        block = 32 if scale_a.shape[1] == -(-A.shape[1] // 32) else 16
        scale = "ue4m3" if block == 16 else "ue8m0"
    spec = cpu._spec(model, format, format, model.d, k, scale, block)
    shape, dtype = (len(A), B.shape[1]), formats.get(model.d).code_dtype
    want = np.zeros(shape, dtype)
    _native.mma(spec, A, B, C, want, scale_a, scale_b, isa="", exact=True)
    for isa in _native.isas():
        assert _native.has_kernel(spec, isa)
        got = np.zeros(shape, dtype)
        _native.mma(spec, A, B, C, got, scale_a, scale_b, isa=isa)
        wrong = np.argwhere(got != want)
        assert not len(wrong), f"{isa}: {len(wrong)} differ, first at {wrong[0]}; {model} {format}"
    return want


@pytest.mark.parametrize(("model", "format"), UNITS, ids=lambda x: getattr(x, "family", x))
def test_bits(model: Model, format: str) -> None:
    rng = np.random.default_rng(7)
    fmt = formats.get(format)
    top = (1 << fmt.exponent_bits) - 1
    met: collections.Counter[str] = collections.Counter()
    for layout in LAYOUTS * 3:
        M, N = int(pick(rng, ROWS)), pick(rng, COLUMNS)
        k = model.group * int(pick(rng, (1, 2)))
        K = int(pick(rng, (k, 3 * k, 3 * k - 1, 70)))
        if isinstance(model, GSTFDPA):
            k = 64 * max(1, model.L // 64)
        bias = min(fmt.bias, top)
        middle = int(pick(rng, (bias, bias, 2, 1, 0)))
        reach = int(pick(rng, (0, 1, 2, 6)))
        A = draw(rng, format, (M, K), bias - 3 * reach, bias + reach, 0.1)
        B = draw(rng, format, (K, N), middle - reach, middle + reach, pick(rng, (0, 0.05, 0.5)))
        what = pick(rng, ("numbers", "numbers", "special in B", "special in A", "wide B"))
        special = special_codes(format)
        if what.startswith("special") and len(special):
            x = B if what.endswith("B") else A
            x[rng.integers(x.shape[0]), rng.integers(x.shape[1])] = pick(rng, special)
        if what == "wide B":
            B[rng.integers(K), rng.integers(N)] = 1 << fmt.dropped_bits
        C = None
        if rng.random() < 0.7:
            C = draw(rng, model.d, (M, N), *C_FIELDS[model.d], 0.2)
        scales: list[Codes | None] = [None, None]
        if isinstance(model, STFDPA | GSTFDPA):
            scales = [*draw_scales(rng, M, K, N, isinstance(model, GSTFDPA) and model.G == 16)]
        D = compare(model, format, k, A, laid(B, layout), C, *scales)
        met[what] += 1
        met["finite"] += int(np.isfinite(formats.decode(D, formats.get(model.d))).sum())
    assert min(met[x] for x in ("numbers", "wide B", "finite")) > 0, met


# --- on both sides of what the upper bytes tell ---------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Edge:
    """Fields of one group: how far the row's numbers lie below its largest, and B's fields."""

    below: tuple[int, ...]  # -1: a zero
    fields: tuple[int, ...]  # -1: a zero, 0: a subnormal

    @property
    def margin(self) -> int:
        """Of the largest product's field, by upper bytes, over 1: it is told from 0 and more on."""
        told = [f - d for d, f in zip(self.below, self.fields, strict=True) if d >= 0 and f >= 0]
        return max(told, default=-1) - 1


@pytest.mark.parametrize(("format", "model"), [
    ("f16", TFDPA()), ("bf16", TFDPA()), ("e4m3", TFDPA(16, 13, RZ_E8M13)), ("e5m2", TFDPA()),
    ("f16", TRFDPA(16, 24, 31)), ("f16", Lowered(32, TFDPA(16), ((0, 1), (2, 3)))),
    ("tf32", TFDPA(8, 24)), ("fp8", GTRFDPA(16, 24, 31)), ("e3m2", TFDPA(16, 13, RZ_E8M13)),
])  # fmt: skip
def test_exponents_just_told_and_not(format: str, model: Model) -> None:
    fmt = formats.get(format)
    rng = np.random.default_rng(3)
    margins: collections.Counter[int] = collections.Counter()
    N, k = 64, 16
    single = fmt.exponent_bits == 8
    base = 140 if single else (1 << fmt.exponent_bits) - 3
    for _ in range(60):
        A, B = np.zeros((1, 2 * k), np.int64), np.zeros((2 * k, N), np.int64)
        above = 70 if single else 0  # such numbers near 1 have no fields near 0
        for column in range(N):
            for g in range(2):
                most = int(pick(rng, (0, 1, 2, 3, 5)))
                fields = rng.integers(-1, most + 1, k)
                if column % 9 == 0:
                    fields[:] = rng.integers(-1, 1, k)
                far = rng.integers(0, 4, k) if column == 0 else None
                if far is not None:
                    far[rng.random(k) < 0.3] = -1
                    A[0, g * k : (g + 1) * k] = far
                B[g * k : (g + 1) * k, column] = fields
        for column in range(N):
            for g in range(2):
                part = slice(g * k, (g + 1) * k)
                # The largest number of the row's chunk is what distances count from.
                nearest = min((d for d in A[0] if d >= 0), default=0)
                below = tuple(int(d - nearest) if d >= 0 else -1 for d in A[0, part])
                margins[Edge(below, tuple(B[part, column].tolist())).margin] += 1
        a = np.where(A >= 0, (base - A) << fmt.mantissa_bits, 0)
        a = np.where(A >= 0, a | rng.integers(0, 1 << fmt.mantissa_bits, A.shape), 0)
        b = np.where(B >= 0, np.where(B > 0, B + above, 0) << fmt.mantissa_bits, 0)
        b = np.where(B >= 0, b | rng.integers(1, 1 << fmt.mantissa_bits, B.shape), 0)
        if above:
            b[B <= 0] = 0
        sign = rng.integers(0, 2, B.shape) << (fmt.width - fmt.dropped_bits - 1)
        codes = ((x << fmt.dropped_bits).astype(fmt.code_dtype) for x in (a, b | sign))
        compare(model, format, 2 * k, *codes, None, None, None)
    assert all(margins[m] > 50 for m in (-2, -1, 0, 1)), margins


@pytest.mark.parametrize("top", [-61, -60, -59, 0, 59, 60, 61])
@pytest.mark.parametrize("span", [49, 50, 51])
@pytest.mark.parametrize("format", ["bf16", "tf32"])
def test_how_far_bf16_and_tf32_may_reach(format: str, top: int, span: int) -> None:
    """Both conditions on a block, just kept and just not; a row as far the other way."""
    rng = np.random.default_rng(top + 100 * span)
    fmt = formats.get(format)
    lowest = fmt.mantissa_bits + fmt.dropped_bits
    for layout in ("rows", "columns"):
        B = draw(rng, format, (32, 64), top + 127 - span, top + 127, 0)
        B[3, 5] = (top + 128 << lowest) - 1
        B[4, 5] = (top + 127 - span) << lowest
        A = draw(rng, format, (2, 32), 127 - top - 50, 127 - top, 0.1)
        compare(TFDPA(), format, 16, A, laid(B, layout), None, None, None)
        compare(TFDPA(16, 25, RNE_FP32), format, 16, A, laid(B, layout), None, None, None)


#: How far beyond all others a code of one tile lies.
BEYOND = (0, 1, 2, 3, 4, 60)


@pytest.mark.parametrize("M", [1, 3])
@pytest.mark.parametrize("format", ["bf16", "tf32"])
def test_tiles_are_supposed_to_be_like_those_before(format: str, M: int) -> None:
    """A code of a tile above or below all others, a little, far, special, subnormal or 0."""
    rng = np.random.default_rng(M)
    fmt = formats.get(format)
    fraction = fmt.mantissa_bits + fmt.dropped_bits
    others = [fmt.bias - 6 - f << fraction for f in BEYOND]
    others += [fmt.bias + 2 + f << fraction for f in BEYOND]
    others += [0, 1 << fmt.dropped_bits, 1 << fraction, *special_codes(format)]
    for other in others:
        A = draw(rng, format, (M, 64), fmt.bias - 4, fmt.bias + 2, 0.1)
        B = draw(rng, format, (64, 64 * 5), fmt.bias - 6, fmt.bias + 2, 0)
        B[0, ::16], B[1, ::16] = (fmt.bias - 6) << fraction, (fmt.bias + 2) << fraction
        sign = int(pick(rng, (0, fmt.sign_bit)))
        B[rng.integers(64), rng.integers(64, 4 * 64)] = other | sign
        B[:, rng.integers(64 * 4, 64 * 5)] = other  # whose results may be subnormal
        for model in (TFDPA(), TRFDPA(8, 24, 31)):
            compare(model, format, model.L, A, B, None, None, None)


@pytest.mark.parametrize("step", [-3, -1, 1, 3])
@pytest.mark.parametrize("format", ["bf16", "tf32"])
def test_tiles_that_are_less_and_less_alike(format: str, step: int) -> None:
    """Beyond what all are supposed to span, and what one may."""
    rng = np.random.default_rng(step + 3)
    fmt = formats.get(format)
    B = np.hstack([
        draw(rng, format, (32, 32), fmt.bias + step * j - 4, fmt.bias + step * j, 0)
        for j in range(24)
    ])  # fmt: skip
    for below in (0, 20):
        A = draw(rng, format, (2, 32), fmt.bias - below, fmt.bias, 0.1)
        compare(TFDPA(), format, 16, A, B, None, None, None)


@pytest.mark.parametrize(("model", "format"), [(EFDPA(4), "f16"), (EFDPA(2), "bf16")])
def test_how_far_exact_sums_may_reach(model: EFDPA, format: str) -> None:
    """Exponents of rows and columns as far apart as a float64 holds sums, one less, one more."""
    rng = np.random.default_rng(23)
    fmt = formats.get(format)
    # Of 52 bits, what L products of 2 (mantissa + 1) bits leave for both spreads.
    left = 52 - 2 * fmt.mantissa_bits - 2 - (model.L - 1).bit_length()
    for more, wider in itertools.product((-1, 0, 1), (0, 1)):
        for row in (0, 5, left // 2):
            A = draw(rng, format, (3, 64), fmt.bias - row, fmt.bias, 0)
            reach = min(left + more - row, fmt.bias + 12)
            B = draw(rng, format, (64, 64), fmt.bias + 12 - reach, fmt.bias + 12, 0)
            A[:, 0], A[:, 1] = fmt.bias << fmt.mantissa_bits, (fmt.bias - row) << fmt.mantissa_bits
            A[1, 1] -= wider << fmt.mantissa_bits  # perhaps the first row too far
            B[0] = (fmt.bias + 12) << fmt.mantissa_bits | 1
            B[1] = (fmt.bias + 12 - reach) << fmt.mantissa_bits | 1
            C = draw(rng, "f32", (3, 64), 60, 150, 0.1)
            C[1, 3] = pick(rng, special_codes("f32"))
            for layout in ("rows", "columns"):
                compare(model, format, model.L, A, laid(B, layout), C, None, None)
                compare(model, format, model.L, A[1:2], laid(B, layout), C[1:2], None, None)
                compare(model, format, model.L, A, laid(B, layout), None, None, None)


@pytest.mark.parametrize("F", [13, 14])
@pytest.mark.parametrize("format", ["e4m3", "e5m2", "fp8", "bf8", "e3m2", "e2m3", "e2m1"])
def test_every_pair_of_bytes(format: str, F: int) -> None:
    """Beside a product, and a c, as far above as any; up to 13 bits terms are 16-bit integers."""
    rng = np.random.default_rng(F)
    fmt = formats.get(format)
    every = np.arange(1 << fmt.width).astype(np.uint8)
    every = every[np.isfinite(formats.decode(every, fmt))]
    cut = 0
    for i in range(0, len(every), 3):
        rows = every[i : i + 3]
        bits = (F, 1, 6, 12)[i // 3 % 4]
        A, B = np.zeros((len(rows), 8), np.uint8), np.zeros((8, len(every)), np.uint8)
        place, other = rng.permutation(8)[:2]
        A[:, place], B[place] = rows, every
        A[:, other], B[other] = pick(rng, every), rng.choice(every, len(every))
        C = draw(rng, "f32", (len(rows), len(every)), *pick(rng, ((110, 140), (1, 254))), 0.5)
        for c in (None, C):
            D = compare(TFDPA(8, bits, RZ_FP32), format, 8, A, B, c, None, None).view(np.float32)
            if c is None:
                a, b = (formats.decode(x, fmt).astype(np.float64) for x in (A, B))
                cut += int((a @ b != D).sum())
    assert cut > 20


@pytest.mark.parametrize("sign", [0, 1])
@pytest.mark.parametrize("format", ["e4m3", "e5m2", "e2m3"])
def test_largest_sums_of_short_integers(format: str, sign: int) -> None:
    """Nothing but the largest products, of one sign, and of both by turns."""
    fmt = formats.get(format)
    every = np.arange(1 << (fmt.width - 1)).astype(np.uint8)
    values = formats.decode(every, fmt)
    largest = every[np.nanargmax(np.where(np.isfinite(values), values, 0))]
    for L in (4, 32, 128):
        A = np.full((3, 2 * L), largest, np.uint8)
        A[1, ::2] |= fmt.sign_bit
        B = np.full((2 * L, 70), largest | sign * fmt.sign_bit, np.uint8)
        for rho in (RZ_FP32, RNE_FP16, RZ_E8M13):
            compare(TFDPA(L, 13, rho), format, L, A, B, None, None, None)


@pytest.mark.parametrize("F", [13, 25])
@pytest.mark.parametrize("format", ["f16", "bf16", "e4m3", "e5m2", "fp8"])
def test_every_special_code_in_every_column(format: str, F: int) -> None:
    """One special code in B: its column is special, and no other is touched."""
    fmt = formats.get(format)
    special = special_codes(format)
    rng = np.random.default_rng(1)
    model = GTRFDPA(16, 24, 31) if format == "fp8" and F > 13 else TFDPA(16, F)
    for column in range(64):
        A = draw(rng, format, (1, 32), fmt.bias, fmt.bias + 2, 0)
        B = draw(rng, format, (32, 64), fmt.bias - 3, fmt.bias + 2, 0)
        B[int(rng.integers(32)), column] = pick(rng, special)
        for layout in ("rows", "columns"):
            D = compare(model, format, 16, A, laid(B, layout), None, None, None)
            finite = np.isfinite(D.view(np.float32))[0]
            assert finite.sum() == 63 and not finite[column]


def test_many_positions() -> None:
    """K in several chunks, as rows (32) and as columns (1024), with filled-up instructions too."""
    rng = np.random.default_rng(9)
    for format, model, k in (
        ("f16", TFDPA(), 16), ("e4m3", TFDPA(32, 13, RZ_E8M13), 32), ("bf16", TFDPA(), 15),
        ("f16", FTZMulAdd(4), 8), ("e4m3", Lowered(32, TFDPA(16), ((0, 1), (2, 3))), 32),
        ("tf32", TFDPA(4, 24), 8), ("f16", EFDPA(4), 8), ("f64", FMA(RNE_FP64), 4),
    ):  # fmt: skip
        bias = formats.get(format).bias
        A = draw(rng, format, (1, 2101), bias - 3, bias + 2, 0.05)
        B = draw(rng, format, (2101, 66), bias - 3, bias + 2, 0.05)
        for layout in LAYOUTS:
            compare(model, format, k, A, laid(B, layout), None, None, None)


@pytest.mark.parametrize("model", [TFDPA(), TRFDPA(8, 24, 31), TFDPA(8, 24, RNE_FP16, -20)])
def test_few_columns(model: Model) -> None:
    """These are computed as their transpose, C and D a tile at a time; its rows may be redone."""
    rng = np.random.default_rng(17)
    met: collections.Counter[str] = collections.Counter()
    for M in (9, 16, 64, 67, 130):
        for N in (1, 7, 8, 12, 16):
            K = int(pick(rng, (16, 40, 300)))
            A = draw(rng, "bf16", (M, K), 120, 135, 0.1)
            B = draw(rng, "bf16", (K, N), 120, 135, 0.1)
            if rng.random() < 0.5:  # products of 2^128 and more, and a special value
                A[rng.integers(M), 3], B[3, rng.integers(N)] = 250 << 7, 140 << 7
                B[rng.integers(K), rng.integers(N)] = pick(rng, special_codes("bf16"))
            C = draw(rng, model.d, (M, N), *((100, 140) if model.d == "f32" else (1, 20)), 0.2)
            if rng.random() < 0.5:
                C[rng.integers(M), rng.integers(N)] = pick(rng, special_codes(model.d))
            for addend in (None, C, laid(C, "columns"), laid(C, "spaced")):
                D = compare(model, "bf16", 8, A, B, addend, None, None)
                values = formats.decode(D, formats.get(model.d))
                met["finite"] += int(np.isfinite(values).sum())
                met["special"] += int((~np.isfinite(values)).sum())
    assert min(met["finite"], met["special"]) > 100, met


#: One of each walk over B, and of each width of a code.
WALKS: tuple[tuple[Model, str, int], ...] = (
    (TFDPA(32, 13, RZ_E8M13), "e4m3", 32),
    (TFDPA(), "e2m3", 16),
    (TFDPA(), "bf16", 16),
    (TFDPA(8, 25), "tf32", 8),
    (EFDPA(4), "f16", 16),
    (GSTFDPA(), "e2m1", 64),
    (FTZMulAdd(4), "f16", 8),
    (FMA(), "f32", 4),
    (FMA(RNE_FP64), "f64", 4),
)


@pytest.mark.parametrize(("model", "format", "k"), WALKS)
def test_rows_that_begin_anywhere_in_a_line_of_memory(model: Model, format: str, k: int) -> None:
    """Many columns, as far apart as lines are: the first tile is as wide as leads to one."""
    rng = np.random.default_rng(21)
    bias = formats.get(format).bias
    A, B = (draw(rng, format, shape, bias - 3, bias + 2, 0.1) for shape in ((2, 70), (70, 1090)))
    C = draw(rng, model.d, (2, 1090), *C_FIELDS[model.d], 0.1)
    scales = draw_scales(rng, 2, 70, 1090, True) if format == "e2m1" else (None, None)
    for column, code in zip((3, 500), special_codes(format), strict=False):
        B[40, column] = code  # these tiles go the general way
    size, row = B.itemsize, 1090 * B.itemsize // 64 * 64 + 64
    met = set()
    for offset in (0, size, 16, 32, 64 - size):
        memory = np.empty(70 * row + 128, np.uint8)
        start = -memory.ctypes.data % 64 + offset
        here = np.ndarray(B.shape, B.dtype, memory.data, start, (row, size))
        here[...] = B
        met.add(compare(model, format, k, A, here, C, *scales).tobytes())
    assert len(met) == 1


@pytest.mark.parametrize(("model", "format", "k"), WALKS)
def test_one_product_after_another(model: Model, format: str, k: int) -> None:
    """Where codes lie is found once for a product's tiles; the next product's lie elsewhere."""
    rng = np.random.default_rng(22)
    fmt, batch, N = formats.get(format), 3, 200
    block, scale = (16, "ue4m3") if format == "e2m1" else (None, None)
    spec = cpu._spec(model, format, format, model.d, k, scale, block)
    for K in (k, 2 * k - 1, 130):  # whole chunks and positions that are filled up
        low, high = fmt.bias - 3, fmt.bias + 2
        A, B = (
            draw(rng, format, (batch * x, y), low, high, 0.1).reshape(batch, x, y)
            for x, y in ((2, K), (K, N))
        )
        scales: tuple[Codes | None, Codes | None] = (None, None)
        if block:
            shapes = ((batch, 2, -(-K // block)), (batch, -(-K // block), N))
            scales = tuple(rng.integers(40, 70, s, np.uint8) for s in shapes)  # type: ignore[assignment]
        for b in (B, B[::-1], np.broadcast_to(B[0], B.shape), B[:, :, ::-1]):
            want = np.zeros((batch, 2, N), formats.get(model.d).code_dtype)
            _native.mma(spec, A, b, None, want, *scales, isa="", exact=True)
            for isa in _native.isas():
                got = np.zeros_like(want)
                _native.mma(spec, A, b, None, got, *scales, isa=isa)
                np.testing.assert_array_equal(got, want, f"{isa}, K = {K}")


@pytest.mark.parametrize(("model", "format", "k"), WALKS)
def test_chunks_without_any_of_k(model: Model, format: str, k: int) -> None:
    """An instruction longer than K by chunks of nothing but +0, and no K at all."""
    rng = np.random.default_rng(23)
    bias, N = formats.get(format).bias, 130
    for K in (0, 3, 40):
        A, B = (draw(rng, format, s, bias - 3, bias + 2, 0.1) for s in ((2, K), (K, N)))
        C = draw(rng, model.d, (2, N), *C_FIELDS[model.d], 0.1)
        scales: tuple[Codes | None, Codes | None] = (None, None)
        if format == "e2m1":
            blocks = -(-K // 16)
            scales = (np.full((2, blocks), 56, np.uint8), np.full((blocks, N), 56, np.uint8))
        for layout in LAYOUTS:
            compare(model, format, 66 * k, A, laid(B, layout), C, *scales)
