"""Operands by kind, as raw codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from bitmma import formats
from bitmma.formats import Format

Codes = npt.NDArray[Any]
Shape = tuple[int, ...]


def normal(rng: np.random.Generator, fmt: Format, shape: Shape) -> Codes:
    """Standard normal numbers, rounded."""
    values = rng.standard_normal(shape)
    return formats.quantize(values, fmt.name, saturate=True).view(fmt.code_dtype)


def wide(rng: np.random.Generator, fmt: Format, shape: Shape) -> Codes:
    """Uniform exponents, over as much of the format as keeps a product finite in f32."""
    reach = min(fmt.max_exponent - 1, 62)
    values = np.ldexp(rng.uniform(1, 2, shape), rng.integers(-reach, reach + 1, shape))
    values *= rng.choice((-1.0, 1.0), shape)
    return formats.quantize(values, fmt.name, saturate=True).view(fmt.code_dtype)


def subnormal(rng: np.random.Generator, fmt: Format, shape: Shape) -> Codes:
    """Normal numbers, half of them replaced by subnormal ones."""
    codes = normal(rng, fmt, shape)
    low = rng.integers(1, 1 << fmt.mantissa_bits, shape).astype(fmt.code_dtype)
    sign = codes & fmt.code_dtype.type(fmt.sign_bit)
    return np.where(rng.random(shape) < 0.5, sign | low << fmt.dropped_bits, codes)


def special(rng: np.random.Generator, fmt: Format, shape: Shape) -> Codes:
    """Normal numbers, one element in a hundred replaced by an Inf (if there is one) or a NaN."""
    codes = normal(rng, fmt, shape)
    kinds = [fmt.inf_code, fmt.nan_code] if fmt.has_inf else [fmt.nan_code]
    chosen = rng.choice(np.array(kinds, fmt.code_dtype), shape)
    return np.where(rng.random(shape) < 0.01, chosen, codes)


def any_finite(rng: np.random.Generator, fmt: Format, shape: Shape) -> Codes:
    """Every finite code alike, subnormal and huge ones too."""
    codes = rng.integers(0, 1 << fmt.width, shape, dtype=np.uint64).astype(fmt.code_dtype)
    return np.where(np.isfinite(formats.decode(codes, fmt.name)), codes, codes.dtype.type(0))


Kind = Callable[[np.random.Generator, Format, Shape], Codes]


def scales(rng: np.random.Generator, fmt: Format, shape: Shape) -> Codes:
    """Block scales within a factor of eight of 1."""
    values = np.ldexp(1.0, rng.integers(-3, 4, shape))
    return formats.quantize(values, fmt.name).view(fmt.code_dtype)
