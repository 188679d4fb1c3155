"""Block quantisation against exact fractions, element by element."""

import itertools
import math
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import bitmma
from bitmma import formats, quantize_blocks

ELEMENTS = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "fp8")
ROUNDINGS = ("RNE", "RZ", "RU", "RA")


def value(code: int, fmt: str) -> Fraction:
    f = formats.get(fmt)
    _, sign, significand, exponent = f.decode(int(code))
    return (-1) ** sign * significand * Fraction(2) ** (exponent - f.mantissa_bits)


def nearest(x: Fraction, fmt: str, rounding: str = "RNE") -> int:
    q = -1200
    scaled = abs(x) / Fraction(2) ** q
    n = math.floor(scaled) * 2 + (scaled.denominator != 1)
    negative = x < 0
    return formats.get(fmt).encode(-n if negative else n, q - 1, rounding, saturate=True)


def floor_log2(x: Fraction) -> int:
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if Fraction(2) ** e <= x else e - 1


def scale_of(block: list[Fraction], fmt: str, rule: str, second: Fraction) -> int:
    """The scale's code, as OCP MX and NVFP4 say it."""
    f = formats.get(fmt)
    largest = value(f.max_code, fmt)
    amax = max(map(abs, block))
    if rule == "max":
        return nearest(amax / (largest * second), "ue4m3")
    if not amax:
        return 0
    if rule == "even":
        amax = value(formats.get("f64").encode(1, 0), "f64") * amax
        e = floor_log2(amax)
        steps = round(amax / Fraction(2) ** (e - f.mantissa_bits))  # halves to even
        amax = steps * Fraction(2) ** (e - f.mantissa_bits)
    if rule == "ceil":
        e = floor_log2(amax / largest)
        e += Fraction(2) ** e < amax / largest
    else:
        e = floor_log2(amax) - floor_log2(largest)
    return min(max(e, -127), 127) + 127


def numbers(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-12, 12, shape[:-1])[..., None]
    if kind == "ties":  # between codes of any of the formats, and just beside
        x = rng.integers(-64, 65, shape) * 2.0 ** rng.integers(-8, 3, shape)
        x = x * (1 + rng.integers(-1, 2, shape) * 2.0**-50)
    if kind == "extreme":
        x = x * 10.0 ** rng.integers(-300, 290, shape[:-1])[..., None]
    x[0] = 0
    return x


@pytest.mark.parametrize("kind", ["normal", "ties", "extreme"])
@pytest.mark.parametrize("rule", ["floor", "ceil", "even", "max"])
@pytest.mark.parametrize("fmt", ELEMENTS)
def test_every_element(fmt: str, rule: str, kind: str) -> None:
    rng = np.random.default_rng(7)
    scale_format = "ue4m3" if rule == "max" else "ue8m0"
    size = 16 if rule == "max" else 32
    seen: Counter[str] = Counter()
    for rounding, second in itertools.product(ROUNDINGS, (None, 0.3) if rule == "max" else (None,)):
        x = numbers(rng, (3, 2 * size - 5), kind)
        got = quantize_blocks(
            x, fmt, block=size, scale_format=scale_format, rounding=rounding, scale_rule=rule,
            tensor_scale=second,
        )  # fmt: skip
        assert got.values.dtype == formats.get(fmt).dtype and got.values.shape == x.shape
        assert got.scales.dtype == formats.get(scale_format).dtype and got.scales.shape == (3, 2)
        assert got.tensor_scale == np.float32(second or 1)
        for i, b in np.ndindex(3, 2):
            block = [Fraction(v) for v in x[i, b * size : (b + 1) * size].tolist()]
            code = scale_of(block, fmt, rule, Fraction(float(got.tensor_scale)))
            assert int(got.scales.view("u1")[i, b]) == code
            s = value(code, scale_format) * Fraction(float(got.tensor_scale))
            for v, element in zip(block, got.values.view("u1")[i, b * size :], strict=False):
                want = nearest(v / s, fmt, rounding) if s else 0
                if v == 0 or not s:
                    assert int(element) & 0x7F & formats.get(fmt).max_code == 0
                    continue
                assert int(element) == want, (v, s)
                seen["saturated"] += abs(v / s) > value(formats.get(fmt).max_code, fmt)
                seen["inexact"] += value(want, fmt) != v / s
    assert seen["inexact"] > 50
    if rule == "ceil" and kind == "normal":
        assert seen["saturated"] == 0
    if rule == "floor" and kind == "normal" and fmt in ("e4m3", "e2m1"):
        assert seen["saturated"] > 0


def test_known_answers() -> None:
    """OCP MX v1.0: 2^(floor(log2 amax) - e_max); NVFP4: amax / 6."""
    x = np.zeros((1, 32))
    x[0, :3] = [448, 500, -1]
    assert quantize_blocks(x, "e4m3").scales.view("u1").tolist() == [[127]]
    assert quantize_blocks(x, "e4m3").values[0, :3].tolist() == [448, 448, -1]
    assert quantize_blocks(x, "e4m3", scale_rule="ceil").scales.view("u1").tolist() == [[128]]
    fp4 = quantize_blocks(np.float32([[6, -3, 1, 12] * 4]), "e2m1", block=16, scale_format="ue4m3")
    assert fp4.scales.astype(float).tolist() == [[2.0]]
    assert fp4.values.astype(float)[0, :4].tolist() == [3, -1.5, 0.5, 6]
    zero = quantize_blocks(np.zeros(16), "e2m1", block=16, scale_format="ue4m3")
    assert zero.scales.tolist() == [0] and not zero.values.astype(float).any()
    assert quantize_blocks(np.zeros(32), "e2m1").scales.view("u1").tolist() == [0]


def test_tensor_scale() -> None:
    x = np.random.default_rng(0).standard_normal((8, 64)).astype("f4") * 1000
    got = quantize_blocks(x, "e2m1", block=16, scale_format="ue4m3", tensor_scale="amax")
    exact = Fraction(float(np.abs(x).max())) / (448 * 6)
    low = np.nextafter(got.tensor_scale, np.float32(0))
    high = np.nextafter(got.tensor_scale, np.float32(np.inf))
    error = abs(exact - Fraction(float(got.tensor_scale)))
    assert error <= abs(exact - Fraction(float(low))) and error <= abs(
        exact - Fraction(float(high))
    )
    assert got.scales.astype(float).max() == 448
    back = got.values.astype(float) * np.repeat(got.scales.astype(float), 16, 1) * got.tensor_scale
    assert np.abs(back - x).max() <= np.abs(x).max() / 6  # half of e2m1's widest step


def test_not_numbers() -> None:
    x = np.ones((2, 64))
    x[0, 5], x[1, 40] = np.nan, -np.inf
    got = quantize_blocks(x, "e2m1")
    assert (got.scales.view("u1") == 0xFF).tolist() == [[True, False], [False, True]]
    assert not got.values[0, :32].astype(float).any() and got.values[0, 32:].astype(float).all()
    nv = quantize_blocks(x, "e2m1", block=16, scale_format="ue4m3", tensor_scale="amax")
    assert np.isnan(nv.scales.astype(float)).sum() == 2 and np.isfinite(nv.tensor_scale)


def test_axes() -> None:
    x = np.random.default_rng(1).standard_normal((2, 70, 3))
    along = quantize_blocks(x, "e4m3", axis=-2)
    turned = quantize_blocks(np.swapaxes(x, 1, 2), "e4m3")
    assert along.scales.shape == (2, 3, 3)
    for got, want in zip(along[:2], turned[:2], strict=True):
        assert np.array_equal(got.view("u1"), np.swapaxes(want, 1, 2).view("u1"))


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "format": ({"format": "f16"}, ValueError, "format must be one of at most 8 bits with a sign"),
    "unsigned": ({"format": "ue4m3"}, ValueError, "with a sign, not ue4m3"),
    "scale format": ({"scale_format": "e4m3"}, ValueError, "scale_format is ue8m0 or ue4m3"),
    "rule": ({"scale_rule": "max"}, ValueError, "for ue8m0 is floor or ceil or even, not 'max'"),
    "rounding": ({"rounding": "up"}, ValueError, "rounding is one of RNE"),
    "block": ({"block": 0}, ValueError, "block must be a positive integer, not 0"),
    "block type": ({"block": 16.0}, TypeError, "block must be a positive integer, not 16.0"),
    "axis": ({"axis": 2}, ValueError, "x has no axis 2"),
    "axis type": ({"axis": None}, TypeError, "axis must be an integer"),
    "second level": ({"tensor_scale": 2.0}, ValueError, "goes with scales of ue4m3, not ue8m0"),
    "second level's value": (
        {"scale_format": "ue4m3", "tensor_scale": -1.0}, ValueError, "positive and finite",
    ),
    "second level's type": (
        {"scale_format": "ue4m3", "tensor_scale": "max"}, TypeError, "'amax' or None, not 'max'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str) -> None:
    changes, error, words = BAD[case]
    with pytest.raises(error, match=words):
        quantize_blocks(np.ones((2, 32)), **{"format": "e4m3", **changes})
    with pytest.raises(TypeError, match="x must be real numbers"):
        bitmma.quantize_blocks(np.array(["a"]), "e4m3")
