"""Formats: every code against ml_dtypes and NumPy, every rounding against exact integers."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitmma import formats
from bitmma.formats import FORMATS, ROUNDINGS, Kind

SMALL = [f for f in FORMATS.values() if f.width <= 16]
WIDE = [f for f in FORMATS.values() if f.width > 16]
#: Formats whose values are those of their dtype; tf32 and ue4m3 only borrow one.
SAME_AS_DTYPE = [f for f in FORMATS.values() if f.name not in ("tf32", "xf32", "ue4m3")]


def codes_of(fmt: formats.Format) -> np.ndarray:
    """Every code, or for 32 and 64 bits those round every power of two and some between."""
    if fmt.width <= 16:
        return np.arange(1 << fmt.width, dtype=fmt.code_dtype)
    shift = fmt.mantissa_bits + fmt.dropped_bits
    binades = [field << shift for field in range(1 << fmt.exponent_bits)]
    inside = [0, 1, 2, 3, (1 << shift) - 1, (1 << shift) - 2, 1 << (shift - 1), 1 << (shift // 2)]
    magnitudes = {b + i for b in binades for i in inside}
    both = sorted(magnitudes | {m | fmt.sign_bit for m in magnitudes})
    return np.array(both, fmt.code_dtype)


def value(fmt: formats.Format, code: int) -> Fraction:
    """The exact value of a finite code."""
    kind, sign, significand, exponent = fmt.decode(code)
    assert kind in (Kind.ZERO, Kind.FINITE)
    magnitude = significand * Fraction(2) ** (exponent - fmt.mantissa_bits)
    return -magnitude if sign else magnitude


def same_floats(x: np.ndarray, y: np.ndarray) -> bool:
    """Equal as float64 bits, all NaNs alike."""
    x, y = (np.where(np.isnan(v), np.nan, v).astype(np.float64) for v in (x, y))
    return bool(np.array_equal(x.view(np.uint64), y.view(np.uint64)))


# --- decoding -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", SAME_AS_DTYPE, ids=str)
def test_decode_agrees_with_the_dtype(fmt: formats.Format) -> None:
    codes = codes_of(fmt)
    with np.errstate(invalid="ignore"):
        theirs = codes.view(fmt.dtype).astype(np.float64)
    assert same_floats(formats.decode(codes, fmt), theirs)


@pytest.mark.parametrize("name", ["tf32", "xf32"])
def test_tf32_drops_thirteen_bits_before_anything_else(name: str) -> None:
    fmt = FORMATS[name]
    codes = codes_of(FORMATS["f32"])
    kept = codes & np.uint32(0xFFFFE000)
    assert same_floats(formats.decode(codes, fmt), formats.decode(kept, "f32"))
    assert fmt.decode(0x7F800001).kind is Kind.INF  # a NaN only below the cut
    assert fmt.decode(0x7F802000).kind is Kind.NAN
    assert fmt.decode(0x00001FFF).kind is Kind.ZERO


def test_ue4m3_ignores_the_sign() -> None:
    codes = codes_of(FORMATS["ue4m3"])
    low = (codes & 0x7F).astype(np.uint8)
    assert same_floats(formats.decode(codes, "ue4m3"), formats.decode(low, "e4m3"))
    assert FORMATS["ue4m3"].decode(0xFF).kind is Kind.NAN


def test_ue8m0() -> None:
    fmt = FORMATS["ue8m0"]
    assert value(fmt, 0) == Fraction(2) ** -127  # not zero
    assert value(fmt, 0xFE) == Fraction(2) ** 127
    assert fmt.decode(0xFF).kind is Kind.NAN


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=str)
def test_scalar_and_array_decode_agree(fmt: formats.Format) -> None:
    codes = codes_of(fmt)
    values = formats.decode(codes, fmt)
    for code, x in zip(codes.tolist(), values.tolist(), strict=True):
        kind, sign, significand, exponent = fmt.decode(code)
        assert (kind is Kind.NAN) == math.isnan(x), hex(code)
        assert (kind is Kind.INF) == math.isinf(x), hex(code)
        if kind in (Kind.ZERO, Kind.FINITE):
            assert Fraction(x) == value(fmt, code), hex(code)
            assert math.copysign(1, x) == (-1 if sign else 1), hex(code)
        if kind is Kind.FINITE:
            normal = significand >> fmt.mantissa_bits
            assert normal == 1 or (normal == 0 and exponent == fmt.min_exponent), hex(code)


@pytest.mark.parametrize(
    ("name", "largest", "inf", "nan", "min_exponent", "max_exponent"),
    [
        ("f64", 0x7FEFFFFFFFFFFFFF, 0x7FF0000000000000, 0x7FF8000000000000, -1022, 1023),
        ("f32", 0x7F7FFFFF, 0x7F800000, 0x7FC00000, -126, 127),
        ("tf32", 0x7F7FE000, 0x7F800000, 0x7FC00000, -126, 127),
        ("xf32", 0x7F7FE000, 0x7F800000, 0x7FC00000, -126, 127),
        ("f16", 0x7BFF, 0x7C00, 0x7E00, -14, 15),
        ("bf16", 0x7F7F, 0x7F80, 0x7FC0, -126, 127),
        ("e5m2", 0x7B, 0x7C, 0x7E, -14, 15),
        ("e4m3", 0x7E, None, 0x7F, -6, 8),
        ("bf8", 0x7F, None, 0x80, -15, 15),
        ("fp8", 0x7F, None, 0x80, -7, 7),
        ("e3m2", 0x1F, None, None, -2, 4),
        ("e2m3", 0x1F, None, None, 0, 2),
        ("e2m1", 0x7, None, None, 0, 2),
        ("ue8m0", 0xFE, None, 0xFF, -127, 127),
        ("ue4m3", 0x7E, None, 0x7F, -6, 8),
    ],
)
def test_landmarks(
    name: str, largest: int, inf: int | None, nan: int | None, min_exponent: int, max_exponent: int
) -> None:
    fmt = FORMATS[name]
    assert fmt.max_code == largest
    assert (fmt.min_exponent, fmt.max_exponent) == (min_exponent, max_exponent)
    assert (fmt.has_inf, fmt.has_nan) == (inf is not None, nan is not None)
    for code, kind, get in ((inf, Kind.INF, "inf_code"), (nan, Kind.NAN, "nan_code")):
        if code is None:
            with pytest.raises(ValueError, match=f"{name} has no"):
                getattr(fmt, get)
        else:
            assert getattr(fmt, get) == code
            assert fmt.decode(code).kind is kind


# --- encoding -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=str)
def test_encode_gives_every_code_back(fmt: formats.Format, rounding: str) -> None:
    unseen = (1 << fmt.dropped_bits) - 1 | ((fmt.width == 8 and not fmt.signed) << 7)
    for code in codes_of(fmt).tolist():
        kind, sign, significand, exponent = fmt.decode(code)
        if kind in (Kind.ZERO, Kind.FINITE):
            n = -significand if sign else significand
            again = fmt.encode(n, exponent - fmt.mantissa_bits, rounding, negative_zero=bool(sign))
            if fmt.specials == "ue8m0":
                unseen = 0
            assert again == code & ~unseen, (hex(code), hex(again))


def nearby(fmt: formats.Format) -> list[Fraction]:
    """Numbers round the code boundaries: on them, between them, at and beyond both ends."""
    step = max(1, (1 << min(fmt.width, 16)) // 512)
    magnitudes = sorted(
        {abs(value(fmt, c)) for c in codes_of(fmt).tolist()[::step]
         if fmt.decode(c).kind in (Kind.ZERO, Kind.FINITE)}
        | {value(fmt, fmt.max_code)}
    )  # fmt: skip
    tiny = value(fmt, 1 << fmt.dropped_bits) if fmt.name != "ue8m0" else Fraction(2) ** -126
    top = value(fmt, fmt.max_code)
    ulp = Fraction(2) ** (fmt.max_exponent - fmt.mantissa_bits)
    hair = Fraction(1, 1 << 40)
    numbers = set()
    for low, high in itertools.pairwise(magnitudes):
        middle, gap = (low + high) / 2, high - low
        numbers |= {low, low + gap * hair, middle - gap * hair, middle, middle + gap * hair}
    numbers |= {tiny * x for x in (hair, Fraction(1, 2), Fraction(1, 2) + hair, 1 - hair)}
    numbers |= {top + ulp * x for x in (hair, Fraction(1, 2) - hair, Fraction(1, 2), 1, 3, 1 << 20)}
    return sorted(numbers)


def exact_rounding(fmt: formats.Format, x: Fraction, rounding: str) -> Fraction | None:
    """x rounded as if exponents had no upper bound; None beyond the largest number."""
    magnitude = abs(x)
    exponent = fmt.min_exponent
    while magnitude >= Fraction(2) ** (exponent + 1):
        exponent += 1
    step = Fraction(2) ** (exponent - fmt.mantissa_bits)
    low = magnitude // step
    rest = magnitude / step - low
    negative = x < 0
    up = {
        "RNE": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and low % 2 == 1),
        "RNA": rest >= Fraction(1, 2),
        "RZ": False,
        "RD": rest > 0 and negative,
        "RU": rest > 0 and not negative,
        "RA": rest > 0,
    }[rounding]
    rounded = (low + up) * step
    return None if rounded > value(fmt, fmt.max_code) else rounded


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("fmt", [f for f in SMALL if f.name != "ue8m0"], ids=str)
def test_encode_against_fractions(fmt: formats.Format, rounding: str) -> None:
    for magnitude, negative in itertools.product(nearby(fmt), (False, True)):
        if negative and not fmt.signed:
            continue
        x = -magnitude if negative else magnitude
        q = -(x.denominator.bit_length() - 1)
        code = fmt.encode(x.numerator, q, rounding)
        want = exact_rounding(fmt, x, rounding)
        if want is None:
            if fmt.specials == "none":
                assert code & ~fmt.sign_bit == fmt.max_code
            else:
                assert fmt.decode(code).kind is (Kind.INF if fmt.has_inf else Kind.NAN)
            assert fmt.encode(x.numerator, q, rounding, saturate=True) & ~fmt.sign_bit == (
                fmt.max_code
            )
        else:
            assert abs(value(fmt, code)) == want, (x, hex(code))
        if fmt.specials != "fnuz" and fmt.signed and x:
            assert bool(code & fmt.sign_bit) == negative, (x, hex(code))


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("bits", [1, 7, 13, 22])
def test_encode_keeps_fewer_mantissa_bits(bits: int, rounding: str) -> None:
    fmt = FORMATS["f32"]
    narrow = formats.Format("narrow", 9 + bits, 8, bits, 127, "ieee", "float32")
    for n, q in itertools.product((0x9C3F5A7D, -0x800001, 0xFFFFFFFF, -3, 1), (-160, -150, -9, 96)):
        wide = fmt.encode(n, q, rounding, mantissa_bits=bits)
        assert wide == narrow.encode(n, q, rounding) << (23 - bits), (n, q)


@pytest.mark.parametrize(
    ("n", "q", "rounding", "code"),
    [
        (1, 128, "RZ", 0x7F800000),  # beyond the largest number: Inf, also toward zero
        (0xFFFFFF, 104, "RZ", 0x7F7FFFFF),
        (0x1FFFFFF, 103, "RZ", 0x7F7FFFFF),
        (0x1FFFFFF, 103, "RNE", 0x7F800000),
        (1, -150, "RNE", 0x00000000),
        (3, -151, "RNE", 0x00000001),
        (-1, -150, "RZ", 0x80000000),
        (-1, -150, "RD", 0x80000001),
    ],
)
def test_encode_f32_edges(n: int, q: int, rounding: str, code: int) -> None:
    assert FORMATS["f32"].encode(n, q, rounding) == code


def test_ue8m0_encode() -> None:
    fmt = FORMATS["ue8m0"]
    assert [fmt.encode(x, -1) for x in (2, 3, 4, 5, 6, 7)] == [127, 128, 128, 128, 129, 129]
    assert [fmt.encode(x, -1, "RZ") for x in (2, 3, 4, 5, 6, 7)] == [127, 127, 128, 128, 128, 128]
    assert [fmt.encode(x, -1, "RU") for x in (2, 3, 4, 5, 6, 7)] == [127, 128, 128, 129, 129, 129]
    assert fmt.encode(1, -200) == 0
    assert (fmt.encode(1, 128), fmt.encode(1, 128, saturate=True)) == (0xFF, 0xFE)
    for n in (0, -1):
        with pytest.raises(ValueError, match="ue8m0 holds positive powers of two only"):
            fmt.encode(n, 0)


# --- quantize -----------------------------------------------------------------------------------


def adversarial(fmt: formats.Format) -> np.ndarray:
    """float64 numbers on, next to and halfway between neighbours of the format, and beyond."""
    grid = np.unique(np.abs(formats.decode(codes_of(fmt), fmt)))
    grid = grid[np.isfinite(grid)]
    with np.errstate(over="ignore"):
        middle = grid[:-1] + (grid[1:] - grid[:-1]) / 2
        top = np.array([grid[-1] * x for x in (1, 1.0625, 1.25, 1.5, 2, 4, 1e9)])
        numbers = np.concatenate([grid, middle, top, [5e-324, 2.0**-1050, 1e308, np.inf, 0.0]])
        beside = [np.nextafter(numbers, to) for to in (-np.inf, np.inf)]
    magnitudes = np.abs(np.concatenate([numbers, *beside]))
    return np.concatenate([magnitudes, -magnitudes])


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=str)
def test_quantize_agrees_with_encode(fmt: formats.Format, rounding: str, saturate: bool) -> None:
    x = adversarial(fmt)
    if len(x) > 6_000:  # a stride coprime with the pattern above keeps every kind of number
        x = x[:: len(x) // 6_000 * 2 + 1]
    if not fmt.signed:
        x = x[x > 0] if fmt.name == "ue8m0" else x[~np.signbit(x)]
    got = formats.quantize(x, fmt, rounding=rounding, saturate=saturate)
    assert got.dtype == fmt.dtype and got.shape == x.shape
    for number, code in zip(x.tolist(), got.view(fmt.code_dtype).tolist(), strict=True):
        if math.isinf(number):
            clamp = saturate or fmt.specials == "none"
            lost = fmt.inf_code if fmt.has_inf else fmt.nan_code if fmt.has_nan else 0
            want = fmt.max_code if clamp else lost
            if number < 0 and (clamp or fmt.specials != "fnuz"):
                want |= fmt.sign_bit
        else:
            numerator, denominator = number.as_integer_ratio()
            want = fmt.encode(
                numerator, 1 - denominator.bit_length(), rounding, saturate=saturate, clip=True,
                negative_zero=math.copysign(1, number) < 0,
            )  # fmt: skip
        assert code == want, (number.hex(), hex(code), hex(want))


@pytest.mark.parametrize("fmt", SAME_AS_DTYPE, ids=str)
def test_quantize_rne_is_the_cast_of_the_dtype(fmt: formats.Format) -> None:
    x = adversarial(fmt)
    if fmt.width < 32 and fmt.name != "f16":
        # ml_dtypes casts float64 through float32, which rounds twice: start from float32.
        x = x[np.abs(x) < 2.0**127].astype(np.float32)
        x = np.concatenate(
            [x, np.nextafter(x, np.float32(0)), np.nextafter(x, np.copysign(np.float32(np.inf), x))]
        )
    if fmt.name == "ue8m0":
        # Below, ml_dtypes gives NaN (2**-127 here) and rounds float32's subnormals up.
        x = x[(x >= 2.0**-126) & (x <= 2.0**127)]
        fraction = np.frexp(x)[0]
        x = x[fraction != 0.75]  # the tie has no even neighbour: both choices are in use
    elif fmt.specials == "none":
        x = x[np.isfinite(x)]
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        theirs = x.astype(fmt.dtype).view(fmt.code_dtype)
        nan = np.isnan(x.astype(fmt.dtype).astype(np.float64))
    ours = formats.quantize(x, fmt).view(fmt.code_dtype)
    differ = (ours != theirs) & ~(nan & np.isnan(formats.decode(ours, fmt)))
    assert not differ.any(), [(float(v).hex(), hex(o), hex(t)) for v, o, t in zip(
        x[differ][:5], ours[differ][:5], theirs[differ][:5], strict=True)]  # fmt: skip


@given(
    st.floats(allow_nan=False, width=64),
    st.sampled_from([f for f in FORMATS.values() if f.signed]),
    st.sampled_from(sorted(ROUNDINGS)),
)
def test_quantize_any_float(x: float, fmt: formats.Format, rounding: str) -> None:
    if math.isinf(x):
        return
    numerator, denominator = x.as_integer_ratio()
    want = fmt.encode(
        numerator, 1 - denominator.bit_length(), rounding, clip=True,
        negative_zero=math.copysign(1, x) < 0,
    )  # fmt: skip
    assert formats.quantize(x, fmt, rounding=rounding).view(fmt.code_dtype) == want


def test_quantize_nan_and_kinds_of_input() -> None:
    assert formats.quantize(np.nan, "e4m3").view(np.uint8) == 0x7F
    assert formats.quantize([1, 2, 3], "e2m1").view(np.uint8).tolist() == [2, 4, 5]
    narrow = formats.quantize(np.float32([1.5, -2.5]), "bf16")
    assert formats.quantize(narrow, "e5m2").view(np.uint8).tolist() == [0x3E, 0xC1]
    assert formats.quantize(np.zeros((2, 0, 3)), "f16").shape == (2, 0, 3)
    assert formats.quantize(-0.0, "fp8").view(np.uint8) == 0  # there is no -0


@pytest.mark.parametrize(
    ("x", "format", "options", "error", "message"),
    [
        (1.0, "e9m9", {}, ValueError, "unknown format 'e9m9'; formats are f64, f32"),
        (1.0, 8, {}, TypeError, "a format is named by a string, not int"),
        (1.0, "f16", {"rounding": "up"}, ValueError, "rounding is one of RNE, .*, not 'up'"),
        (np.nan, "e2m1", {}, ValueError, "x has a NaN and e2m1 has none"),
        (-1.0, "ue4m3", {}, ValueError, "x has negative numbers and ue4m3 holds none"),
        (0.0, "ue8m0", {}, ValueError, "x has numbers that are not positive"),
        ("one", "f16", {}, TypeError, "x must be real numbers"),
        (1j, "f16", {}, TypeError, "x must be real numbers, not complex128"),
        (True, "f16", {}, TypeError, "x must be real numbers, not bool"),
        (np.array([None]), "f16", {}, TypeError, "x must be real numbers, not object"),
        (2**53 + 1, "f64", {}, ValueError, "integers beyond 2\\*\\*53"),
    ],
)
def test_quantize_errors(x, format, options, error, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=message):
        formats.quantize(x, format, **options)


# --- codes and names ----------------------------------------------------------------------------


def test_codes_are_checked() -> None:
    assert formats.decode(np.array([-1], np.int8), "e5m2").shape == (1,)  # a signed view is bits
    assert formats.decode([0x3C00], "f16") == 1.0
    with pytest.raises(TypeError, match="codes of f16 are uint16 integers, not uint8"):
        formats.decode(np.zeros(3, np.uint8), "f16")
    with pytest.raises(TypeError, match="codes of f16 are uint16 integers, not float16"):
        formats.decode(np.zeros(3, np.float16), "f16")
    with pytest.raises(ValueError, match="e2m1 has bits above its 4: 0x10"):
        formats.decode(np.array([0x10], np.uint8), "e2m1")
    with pytest.raises(ValueError, match="codes of f16 are 0 to 0xffff"):
        formats.decode([0x10000], "f16")
    for code in (-1, 1 << 16):
        with pytest.raises(ValueError, match="is not one of the 16 bits of f16"):
            FORMATS["f16"].decode(code)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("float16", "f16"), ("torch.float8_e4m3fn", "e4m3"), ("float8_e5m2fnuz", "bf8"),
        ("E4M3", "e4m3"), ("float4_e2m1fn_x2", "e2m1"), ("torch.bfloat16", "bf16"),
        ("float8_e8m0fnu", "ue8m0"), ("float8_e4m3fnuz", "fp8"),
    ],
)  # fmt: skip
def test_aliases(alias: str, name: str) -> None:
    assert formats.get(alias) is FORMATS[name]
    assert formats.get(FORMATS[name]) is FORMATS[name]


@given(st.integers(-(1 << 80), 1 << 80), st.integers(-4, 90), st.sampled_from(sorted(ROUNDINGS)))
def test_round_shift(n: int, shift: int, rounding: str) -> None:
    exact = Fraction(n) / Fraction(2) ** shift
    got = formats.round_shift(n, shift, rounding)
    towards = {"RD": math.floor, "RU": math.ceil, "RZ": math.trunc, "RNE": round}
    if rounding in towards:
        assert got == towards[rounding](exact)
    elif rounding == "RA":
        assert got == (math.ceil(exact) if exact > 0 else math.floor(exact))
    else:
        half = Fraction(1, 2)
        assert got == (math.floor(exact + half) if exact > 0 else math.ceil(exact - half))
