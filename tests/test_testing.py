"""assert_bits_equal finds every difference and calls it by its name."""

import ml_dtypes
import numpy as np
import pytest

from bitmma import formats
from bitmma.testing import assert_bits_equal, compare_bits


def test_equal() -> None:
    x = np.array([[0.0, -0.0, np.nan], [1, np.inf, 5e-324]])
    assert_bits_equal(x, x.copy())
    assert_bits_equal(x, x.view(np.int64))
    assert_bits_equal(x.view(np.uint64), x.view(np.int64))
    assert str(compare_bits(x, np.asfortranarray(x))) == "all 6 equal"
    assert compare_bits(x[:0], x[:0])
    assert_bits_equal(np.float32(1), np.array(1, np.float32))


def test_classes() -> None:
    x = np.array(
        [0x00000000, 0x7FC00000, 0x7FC00000, 0x7F800000, 0x7F800000, 0x3F800000, 0x80000001, 0x3],
        np.uint32,
    ).reshape(2, 4)
    y = np.array(
        [0x80000000, 0x7FFFFFFF, 0x00000000, 0xFF800000, 0x3F800000, 0x3F800007, 0x00000002, 0x3],
        np.uint32,
    ).reshape(2, 4)
    report = compare_bits(x.view(np.float32), y.view(np.float32))
    assert not report
    assert (report.size, report.differing, report.max_ulps) == (8, 7, 7)
    assert report.classes == {
        "sign of zero": 1,
        "NaN code": 1,
        "NaN against number": 1,
        "sign of Inf": 1,
        "Inf against number": 1,
        "value": 2,
    }
    assert [(e.kind, e.index, e.ulps) for e in report.examples] == [
        ("sign of zero", (0, 0), None),
        ("NaN code", (0, 1), None),
        ("NaN against number", (0, 2), None),
        ("sign of Inf", (0, 3), None),
        ("Inf against number", (1, 0), None),
        ("value", (1, 1), 7),
        ("value", (1, 2), 3),
    ]
    with pytest.raises(AssertionError) as error:
        assert_bits_equal(x.view(np.float32), y.view(np.float32))
    text = str(error.value)
    assert text.startswith("bits differ: 7 of 8 differ (87.500%)")
    assert "value: 2, at most 7 ulps" in text
    assert "  [0, 0] 0x00000000 (0.0) against 0x80000000 (-0.0)" in text
    assert "  [1, 1] 0x3f800000 (1.0) against 0x3f800007 (1.0000008344650269), 7 ulps" in text

    any_nan = compare_bits(x.view(np.float32), y, nan="any")
    assert any_nan.differing == 6 and "NaN code" not in any_nan.classes


def test_many_differences_show_the_first_few() -> None:
    x = np.zeros(1000, np.float16)
    y = x.copy()
    y[100:] = 1
    report = compare_bits(x, y)
    assert report.classes == {"value": 900}
    assert [e.index for e in report.examples] == [(100,), (101,), (102,)]
    assert str(report).endswith("...")


@pytest.mark.parametrize(
    ("name", "x", "y", "kind", "ulps"),
    [
        ("e4m3", 0x7F, 0xFF, "NaN code", None),
        ("e4m3", 0x7E, 0x7F, "NaN against number", None),
        ("e4m3", 0x00, 0x80, "sign of zero", None),
        ("fp8", 0x80, 0x00, "NaN against number", None),
        ("fp8", 0x81, 0x01, "value", 2),
        ("e2m1", 0x0, 0x8, "sign of zero", None),
        ("e2m1", 0x7, 0xF, "value", 14),
        ("e5m2", 0x7C, 0xFC, "sign of Inf", None),
        ("bf16", 0x7F7F, 0x7F80, "Inf against number", None),
        ("ue8m0", 0x00, 0xFF, "NaN against number", None),
        ("ue8m0", 0x00, 0x01, "value", 1),
        ("f64", 0x8000000000000001, 0x7FEFFFFFFFFFFFFF, "value", 0x7FF0000000000000),
        ("f64", 0x7FF8000000000000, 0x7FF8000000000001, "NaN code", None),
    ],
)
def test_formats(name: str, x: int, y: int, kind: str, ulps: int | None) -> None:
    fmt = formats.get(name)
    left, right = (np.array([c], fmt.code_dtype) for c in (x, y))
    for report in (
        compare_bits(left.view(fmt.dtype), right.view(fmt.dtype)),
        compare_bits(left, right, format=name),
    ):
        (only,) = report.examples
        assert (only.kind, only.index, only.x, only.y, only.ulps) == (kind, (0,), x, y, ulps)
        assert hex(x)[2:] in str(report)


def test_codes_without_a_format() -> None:
    report = compare_bits(np.array([1, 2], np.uint16), np.array([1, 3], np.int16))
    assert report.classes == {"code": 1} and "0x2 against 0x3" in str(report)
    with pytest.raises(ValueError, match="needs their format"):
        compare_bits(np.array([1], np.uint16), np.array([1], np.uint16), nan="any")


def test_what_cannot_be_compared() -> None:
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(AssertionError, match=r"shapes differ: x is \(2, 3\) and y is \(3,\)"):
        assert_bits_equal(x, x[0])
    with pytest.raises(AssertionError, match="formats differ: x is f32 and y is f16"):
        assert_bits_equal(x, x.astype(np.float16))
    with pytest.raises(AssertionError, match="formats differ: x is f16 and y is bf16"):
        assert_bits_equal(x.astype(np.float16), x.astype(ml_dtypes.bfloat16))
    with pytest.raises(AssertionError, match="formats differ: x is f32 and y is uint16"):
        assert_bits_equal(x, np.zeros((2, 3), np.uint16))
    with pytest.raises(TypeError, match="x must be a NumPy array or a PyTorch tensor, not list"):
        assert_bits_equal([1.0], x)
    with pytest.raises(TypeError, match="y must be floats or integer codes, not complex128"):
        assert_bits_equal(x, x.astype(complex))
    with pytest.raises(ValueError, match='nan is "bits" or "any"'):
        assert_bits_equal(x, x, nan="some")  # type: ignore[arg-type]


def test_reports_are_hashable() -> None:
    x, y = np.float32([1, -0.0]), np.float32([2, 0])
    assert len({compare_bits(x, y), compare_bits(x, y), compare_bits(x, x)}) == 2
