"""The adapter: every format in, every kind, every layout; and Python numbers, exactly."""

import math
from decimal import Decimal
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitmma import formats
from bitmma.engine.operands import CODES, VALUES, VOID, common_kind, from_list, to_codes, wrap
from bitmma.formats import FORMATS


def all_codes(fmt: formats.Format) -> np.ndarray:
    """Every code of small formats, many of the others; NaNs with payloads among them."""
    if fmt.width <= 16:
        return np.arange(1 << fmt.width, dtype=fmt.code_dtype)
    rng = np.random.default_rng(0)
    return rng.integers(0, 1 << fmt.width, 999, fmt.code_dtype, endpoint=False) | np.array(
        fmt.inf_code, fmt.code_dtype
    ) * (np.arange(999) % 2 == 0).astype(fmt.code_dtype)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=str)
def test_values_codes_signed_and_void_are_the_same_bits(fmt: formats.Format) -> None:
    codes = all_codes(fmt)
    size = codes.dtype.itemsize
    same = {
        "values": (codes.view(fmt.dtype), VALUES),
        "codes": (codes, CODES),
        "signed": (codes.view(f"i{size}"), CODES),
        "void": (codes.view(f"V{size}"), VOID),
        "swapped values": (codes.view(fmt.dtype), VALUES),
        "strided": (np.repeat(codes, 3)[::3].view(fmt.dtype), VALUES),
        "reversed": (codes[::-1].copy()[::-1].view(fmt.dtype), VALUES),
    }
    unaligned = np.frombuffer(b"?" + codes.tobytes(), np.uint8)[1:].view(fmt.dtype)
    same["unaligned, read-only"] = unaligned, VALUES
    if size > 1:
        same["swapped codes"] = codes.astype(codes.dtype.newbyteorder()), CODES
    if fmt.dtype.kind == "f" and size > 1:
        swapped = codes.byteswap().view(fmt.dtype.newbyteorder())
        same["swapped values"] = swapped, VALUES
    for label, (x, kind) in same.items():
        got, got_kind = to_codes(x, fmt.name, "A")
        assert got.dtype == fmt.code_dtype, label
        assert np.array_equal(got, codes), label
        assert got_kind is kind, label


def test_arrays_are_viewed_not_copied() -> None:
    x = np.ones((4, 6), ml_dtypes.bfloat16)[::2, ::3]
    assert np.shares_memory(to_codes(x, "bf16", "A")[0], x)
    assert np.shares_memory(to_codes(x.view(np.int16), "bf16", "A")[0], x)


@pytest.mark.parametrize("name", ["f64", "f32", "f16", "bf16"])
def test_results_have_the_dtype_of_d(name: str) -> None:
    fmt = formats.get(name)
    codes = all_codes(fmt)[:6].reshape(2, 3)
    for kind in (VALUES, CODES, VOID):
        out = wrap(codes, name, kind)
        assert out.dtype == fmt.dtype
        assert np.array_equal(out.view(codes.dtype), codes)


@pytest.mark.parametrize("name", ["e3m2", "e2m3", "e2m1"])
def test_high_bits_of_narrow_codes(name: str) -> None:
    fmt = formats.get(name)
    bad = np.array([0, 1 << fmt.width], np.uint8)
    for x in (bad, bad.view(np.int8), bad.view("V1"), bad.view(fmt.dtype)):
        with pytest.raises(ValueError, match=rf"B has a code with bits above .* of {name}: 0x"):
            to_codes(x, name, "B")
    assert to_codes(bad[:0], name, "B")[0].size == 0


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ({"A": VALUES, "B": VALUES}, VALUES),
        ({"A": VOID, "B": VALUES}, VALUES),  # .npy gives bf16 back as void, float32 as float32
        ({"A": VALUES, "B": VOID, "C": VALUES}, VALUES),
        ({"A": CODES, "B": VOID}, CODES),
        ({"A": VOID, "B": VOID}, VOID),
    ],
)
def test_common_kind(kinds: dict[str, str], expected: str) -> None:
    assert common_kind(kinds) is expected


def test_mixed_kinds() -> None:
    with pytest.raises(TypeError, match=r"A is NumPy values and C is NumPy integer codes; .*view"):
        common_kind({"A": VALUES, "B": VOID, "C": CODES})


# --- Python numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", [f for f in FORMATS.values() if f.width <= 16], ids=str)
def test_every_value_finds_its_code(fmt: formats.Format) -> None:
    for code in range(0, 1 << fmt.width, 1 if fmt.width < 16 else 37):
        value = float(formats.decode(np.array([code], fmt.code_dtype), fmt)[0])
        if math.isnan(value):
            assert from_list(["nan"], fmt.name, 1, "a") == [fmt.nan_code]
            continue
        want = code & 0x7F if fmt.name == "ue4m3" else code
        texts = [repr(value), value.hex(), f"{code:#x}"] if want == code else [repr(value)]
        for x in (value, *texts):
            assert from_list([x], fmt.name, 1, "a") == [want], x
        if math.isfinite(value) and value:
            assert from_list([Fraction(value), Decimal(value)], fmt.name, 2, "a") == [want] * 2


@given(st.floats(width=32))
def test_float32_values_find_their_codes(x: float) -> None:
    code = int(np.float32(x).view(np.uint32))
    want = 0x7FC00000 if math.isnan(x) else code
    assert from_list([x, np.float32(x), x.hex()], "f32", 3, "a") == [want] * 3


@given(st.floats())
def test_only_representable_numbers_are_taken(x: float) -> None:
    with np.errstate(over="ignore"):
        narrow = np.float16(x)
    if math.isnan(x) or float(narrow) == x:
        assert len(from_list([x], "f16", 1, "a")) == 1
    else:
        with pytest.raises(ValueError, match="not representable in f16"):
            from_list([x], "f16", 1, "a")


def test_decimals_mean_what_python_means() -> None:
    assert from_list(["0.1", "1e-7", "5e-324"], "f64", 3, "a") == [
        int(np.float64(x).view(np.uint64)) for x in (0.1, 1e-7, 5e-324)
    ]


def test_kinds_of_numbers() -> None:
    given_ = [1, -2, 0.5, "-0", -0.0, "0x1.8p-3", "0x3c00", "1e3", " inf ", "-INF", ".5", "0x.8p0"]
    want = [0x3C00, 0xC000, 0x3800, 0x8000, 0x8000, 0x3200, 0x3C00, 0x63D0, 0x7C00, 0xFC00]
    assert from_list(given_, "f16", 14, "a") == [*want, 0x3800, 0x3800, 0, 0]
    assert from_list(np.float16(2), "f16", 1, "c") == [0x4000]
    assert from_list(ml_dtypes.bfloat16(2), "bf16", 1, "c") == [0x4000]
    assert from_list("0x7F800001", "tf32", 1, "c") == [0x7F800001]


@pytest.mark.parametrize(
    ("value", "fmt", "words"),
    [
        (
            0.1,
            "f16",
            "a[0] = 0.1 is not representable in f16; nearest are 0.0999755859375 (0x2e66)",
        ),
        ("0.1", "f32", "a[0] = 0.1 is not representable in f32; nearest are"),
        (449, "e4m3", "nearest is 448.0 (0x7e)"),
        (-7, "e2m1", "nearest is -6.0 (0xf)"),
        ("1.00000000000000000000001", "f64", "not representable in f64; nearest are 1.0"),
        (1024.5, "tf32", "nearest are 1024.0 (0x44800000) and 1025.0 (0x44802000)"),
        (1e-300, "f16", "nearest are 0.0 (0x0000) and 5.960464477539063e-08 (0x0001)"),
        (-0.0, "fp8", "not representable in fp8"),
        ("1e999999999", "f64", "not representable in f64"),
        ("0x1p999999999", "f64", "not representable in f64"),
        ("1e5000", "f64", "not representable in f64"),
        ("1e-5000", "f64", "nearest are 0.0"),
        ("inf", "e4m3", "e4m3, which has no infinity"),
        ("nan", "e2m1", "e2m1, which has no NaN"),
        (0, "ue8m0", "not representable in ue8m0"),
        (-1, "ue4m3", "not representable in ue4m3"),
        ("0x12345", "f16", "is no code of f16, which has 16 bits"),
        ("0x10", "e2m1", "is no code of e2m1, which has 4 bits"),
        ("-0x10", "f16", "neither a decimal"),
        ("one", "f16", "neither a decimal"),
        ("", "f16", "neither a decimal"),
        ("1/3", "f16", "neither a decimal"),
        ("1" * 5000, "f64", "a[0] has 5000 digits"),
    ],
)
def test_unrepresentable(value: object, fmt: str, words: str) -> None:
    with pytest.raises(ValueError) as error:
        from_list([value], fmt, 2, "a")
    assert words in str(error.value)
    assert str(error.value).startswith("a[0]")


@pytest.mark.parametrize("value", [None, True, 1j, [1.0], np.bool_(True), object()])
def test_no_numbers(value: object) -> None:
    with pytest.raises(TypeError, match=r"a\[0\] must be a number or a string, not"):
        from_list([value], "f16", 2, "a")


def test_too_many() -> None:
    with pytest.raises(ValueError, match="a has 3 elements; at most 2"):
        from_list([1, 2, 3], "f16", 2, "a")
