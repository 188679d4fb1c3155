"""Numbers to narrow formats with one scale a block: MXFP8, MXFP6, MXFP4 and NVFP4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bitmma import formats
from bitmma.formats import Format

__all__ = ["Blocks", "quantize_blocks"]

F64 = npt.NDArray[np.float64]

#: Which rules a scale format has, its default first.
_RULES: Mapping[str, tuple[str, ...]] = {"ue8m0": ("floor", "ceil", "even"), "ue4m3": ("max",)}


class Blocks(NamedTuple):
    """What `quantize_blocks` gives: x is about values * scales * tensor_scale.

    Attributes:
        values: of x's shape and the element format's dtype.
        scales: one a block, of the scale format's dtype.
        tensor_scale: float32; 1 where none was asked for.
    """

    values: npt.NDArray[Any]
    scales: npt.NDArray[Any]
    tensor_scale: np.float32


@formats.in_default_environment
def quantize_blocks(
    x: npt.ArrayLike,
    format: str | Format,
    *,
    block: int = 32,
    scale_format: str | Format = "ue8m0",
    rounding: str = "RNE",
    scale_rule: str | None = None,
    axis: int = -1,
    tensor_scale: float | str | None = None,
) -> Blocks:
    """Round numbers to a format of at most 8 bits, neighbours along an axis sharing a scale.

    Every element is the exact quotient x / (scale * tensor_scale), rounded once and saturated to
    the format's largest number. With amax a block's largest magnitude and max, e_max the largest
    number of the format and its exponent, the scale is

    - ue8m0 "floor": 2^(floor(log2 amax) - e_max); elements may saturate. OCP MX v1.0, section 6.3.
    - ue8m0 "ceil": the smallest power of two that is at least amax / max; nothing saturates. What
      NVIDIA recommends for MXFP8 (Mishra et al., arXiv 2506.08027).
    - ue8m0 "even": as floor, amax first rounded (RNE) to the element format's mantissa bits.
    - ue4m3 "max": amax / (max * tensor_scale), for NVFP4 amax / 6, rounded once (RNE) and
      saturated to 448.

    ue8m0 scales stay within 2^-127 and 2^127; a block of zeros has the smallest scale there is. A
    block that holds a NaN or an Inf has a NaN for its scale and zeros for elements (OCP MX leaves
    such blocks to the implementation).

    Args:
        x: real numbers, as for `bitmma.quantize`.
        format: of the elements: e4m3, e5m2, e3m2, e2m3, e2m1, fp8 or bf8.
        block: how many elements share a scale, counted from the axis' start; the last block may be
            shorter. 32 in MX, 16 in NVFP4.
        scale_format: ue8m0 (MX) or ue4m3 (NVFP4).
        rounding: of the elements, as for `bitmma.quantize`.
        scale_rule: see above; None: floor for ue8m0, max for ue4m3.
        axis: along which blocks lie: k, so -1 for A (..., M, K) and -2 for B (..., K, N).
        tensor_scale: NVFP4's second level, for ue4m3: a number (rounded to float32), or "amax":
            amax of all of x over 448 * max, rounded to float32 (NVIDIA, arXiv 2509.25149). None: 1.

    Returns:
        `Blocks`: values, scales (x's shape, the axis divided by ``block``) and tensor_scale: what
        ``scale_a`` and ``scale_b`` of a block-scaled product want, and its epilogue.

    Raises:
        TypeError, ValueError: x is no array of real numbers with that axis; an unknown format,
            rounding or rule; a block that is no positive integer; a tensor_scale that is not
            positive and finite, or for ue8m0.
    """
    fmt, scale_fmt = formats.get(format), formats.get(scale_format)
    rule = _checked_rule(fmt, scale_fmt, scale_rule)
    if isinstance(block, bool) or not isinstance(block, int):
        raise TypeError(f"block must be a positive integer, not {block!r}")
    if block < 1:
        raise ValueError(f"block must be a positive integer, not {block}")
    values = formats.as_float64(x)
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise TypeError(f"axis must be an integer, not {axis!r}")
    if not -values.ndim <= axis < values.ndim:
        raise ValueError(f"x has no axis {axis}, its shape is {values.shape}")
    second = _tensor_scale(tensor_scale, values, fmt, scale_fmt)
    last = np.moveaxis(values, axis, -1)
    K = last.shape[-1]
    block = min(block, max(K, 1))  # nothing is filled up beyond the only block
    count = -(-K // block)
    padded = np.zeros((*last.shape[:-1], count * block))
    padded[..., :K] = last
    split = padded.reshape(*last.shape[:-1], count, block)
    amax = np.abs(split).max(axis=-1)
    with np.errstate(all="ignore"):
        scales = _scales(amax, fmt, scale_fmt, rule, second)
        divisor = formats.decode(scales, scale_fmt)[..., None] * float(second)
        usable = np.isfinite(divisor) & (divisor > 0)
        quotient = _quotient(np.where(usable, split, 0.0), np.where(usable, divisor, 1.0))
    codes = formats.quantize(quotient, fmt, rounding=rounding, saturate=True)
    flat = codes.reshape(padded.shape)[..., :K]
    return Blocks(
        np.ascontiguousarray(np.moveaxis(flat, -1, axis)),
        np.ascontiguousarray(np.moveaxis(scales, -1, axis)).view(scale_fmt.dtype),
        second,
    )


def _checked_rule(fmt: Format, scale_fmt: Format, rule: str | None) -> str:
    if fmt.width > 8 or not fmt.signed:
        raise ValueError(f"format must be one of at most 8 bits with a sign, not {fmt}")
    if scale_fmt.name not in _RULES:
        raise ValueError(f"scale_format is {' or '.join(_RULES)}, not {scale_fmt}")
    rules = _RULES[scale_fmt.name]
    if rule is not None and rule not in rules:
        raise ValueError(f"scale_rule for {scale_fmt} is {' or '.join(rules)}, not {rule!r}")
    return rule or rules[0]


def _largest(fmt: Format) -> float:
    return float(formats.decode(np.array(fmt.max_code, fmt.code_dtype), fmt))


def _tensor_scale(wanted: Any, x: F64, fmt: Format, scale_fmt: Format) -> np.float32:
    if wanted is None:
        return np.float32(1)
    if scale_fmt.name != "ue4m3":
        raise ValueError(f"tensor_scale goes with scales of ue4m3, not {scale_fmt}")
    if wanted == "amax":
        finite = np.abs(x[np.isfinite(x)])
        amax = float(finite.max()) if finite.size else 0.0
        scale = np.float32(_quotient(amax, _largest(scale_fmt) * _largest(fmt), bits=40))
        return scale if 0 < scale < np.inf else np.float32(1)
    if isinstance(wanted, bool | str) or not isinstance(wanted, int | float | np.floating):
        raise TypeError(f"tensor_scale must be a number, 'amax' or None, not {wanted!r}")
    scale = np.float32(wanted)
    if not 0 < scale < np.inf:
        raise ValueError(f"tensor_scale must be positive and finite, not {wanted!r}")
    return scale


def _scales(
    amax: F64, fmt: Format, scale_fmt: Format, rule: str, second: np.float32
) -> npt.NDArray[np.uint8]:
    """The codes of the blocks' scales."""
    finite = np.isfinite(amax)
    amax = np.where(finite, amax, 0.0)
    if rule == "max":
        ideal = _quotient(amax, _largest(fmt) * float(second))
        codes = formats.quantize(ideal, scale_fmt, saturate=True).view(np.uint8)
    else:
        # amax = fraction * 2^exponent with a fraction in [1/2, 1), all of it exact.
        fraction, exponent = np.frexp(amax)
        top, top_exponent = np.frexp(_largest(fmt))
        up = {
            "floor": np.zeros(amax.shape, bool),
            "ceil": fraction > top,
            "even": np.rint(np.ldexp(fraction, fmt.mantissa_bits + 1)) == 2 << fmt.mantissa_bits,
        }[rule]
        power = np.where(amax > 0, exponent - top_exponent + up, -scale_fmt.bias)
        codes = (np.clip(power, -scale_fmt.bias, scale_fmt.bias) + scale_fmt.bias).astype(np.uint8)
    return np.where(finite, codes, np.uint8(scale_fmt.nan_code))


def _quotient(x: Any, s: Any, bits: int = 24) -> F64:
    """Numbers that round to any format of at most ``bits - 2`` bits as the exact x / s would.

    The quotient is cut to ``bits`` bits, and half a step added where something was cut. ``s`` is
    positive and has at most ``53 - bits`` bits, so that ``cut * s`` is exact; and x, which is a
    float64 too, either is that or differs from it by so much that the division did not round to it.
    """
    x, s = np.asarray(x, np.float64), np.asarray(s, np.float64)
    q = np.abs(x) / s
    exponent = np.frexp(q)[1] - bits
    cut = np.ldexp(np.trunc(np.ldexp(q, -exponent)), exponent)
    cut = cut + np.where(cut * s == np.abs(x), 0.0, np.ldexp(0.5, exponent))
    # Beyond these every format saturates, or rounds as it would anything as small.
    small, large = 2.0**-300, 2.0**300
    cut = np.where(q > large, large, np.where(q < small, small, cut))
    signed: F64 = np.copysign(np.where(x == 0, 0.0, cut), x)
    return signed
