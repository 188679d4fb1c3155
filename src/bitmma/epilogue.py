"""What a kernel does with its accumulators before it stores them: scales, bias, output format."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bitmma import formats

__all__ = ["Epilogue", "canonical_nan", "float32", "fma"]

F32 = npt.NDArray[np.float32]

_OUT = ("f32", "f16", "bf16", "e4m3", "e5m2", "fp8", "bf8")


@dataclass(frozen=True, eq=False)
class Epilogue:
    """From FP32 accumulators to the stored result, each step rounded to FP32 to nearest even.

    1. Tensor-wise: alpha' = (scale_a scale_b) alpha, and y = fma(alpha', acc, RN32(beta C)), one
       rounding; without beta the addend is +0, so that an exact zero is +0.
       Row-wise: y = scale_b[j] (scale_a[i] acc), two roundings; + 0 where there is no bias.
       With none of the four, y = acc.
    2. y = y + bias[j], where there is one.
    3. y = y scale_result, where there is one.
    4. y is rounded to ``out_format`` to nearest even, fp8 with saturation (Inf too). NaN is
       canonical: all ones on NVIDIA's matrix units (0x7FFFFFFF, 0x7FFF, 0x7F), elsewhere the
       format's quiet NaN.

    Attributes:
        alpha: a number; None: 1.
        beta: a number: C joins here, as float32. None: C, if any, starts or joins the accumulators.
        scale_a, scale_b: two numbers, or (M, 1) and (1, N), then without alpha and beta.
        bias: (N,).
        scale_result: a number.
        out_format: f32, f16, bf16, e4m3, e5m2, fp8 or bf8; the result's.

    Arrays (NumPy or PyTorch) must hold float32 values; Python numbers are rounded to float32, as a
    kernel's float parameters are.

    Sources: the tensor-wise order without beta, bias and scale_result is that of
    ``torch._scaled_mm`` as recorded by mmaemu's author; beta as in CUTLASS's linear combination;
    row-wise and the bias as in PyTorch's own kernel (RowwiseScaledMM.cu; where that kernel computes
    the transposed product, for some shapes, scale_b comes first). No recording of those was at
    hand.

    Raises:
        TypeError, ValueError: a number or array of a wrong kind or shape, an unknown format.
    """

    alpha: Any = None
    beta: Any = None
    scale_a: Any = None
    scale_b: Any = None
    bias: Any = None
    scale_result: Any = None
    out_format: str = "f32"

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "scale_result", "scale_a", "scale_b", "bias"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, float32(getattr(self, name), name))
        for name in ("alpha", "beta", "scale_result"):
            number = getattr(self, name)
            if number is not None:
                if number.size != 1:
                    raise ValueError(f"{name} must be one number, got shape {number.shape}")
                object.__setattr__(self, name, number.reshape(()))
        object.__setattr__(self, "out_format", formats.get(self.out_format).name)
        if self.out_format not in _OUT:
            raise ValueError(f"out_format is one of {', '.join(_OUT)}, not {self.out_format!r}")
        scales = {n: s for n in ("scale_a", "scale_b") if (s := getattr(self, n)) is not None}
        if all(s.size == 1 for s in scales.values()):
            for name, scale in scales.items():
                object.__setattr__(self, name, scale.reshape(()))
        elif self.alpha is not None or self.beta is not None:
            raise ValueError("row-wise scale_a and scale_b come without alpha and beta")

    @property
    def is_row_wise(self) -> bool:
        return any(s is not None and s.ndim > 0 for s in (self.scale_a, self.scale_b))

    def check(self, M: int, N: int, has_c: bool) -> None:
        """ValueError unless the arrays fit an M by N result."""
        if self.is_row_wise:
            got = tuple(None if s is None else s.shape for s in (self.scale_a, self.scale_b))
            if got != ((M, 1), (1, N)):
                raise ValueError(
                    f"the epilogue's scale_a and scale_b must be two numbers or of shapes ({M}, 1) "
                    f"and (1, {N}), got {got[0]} and {got[1]}"
                )
        if self.bias is not None and self.bias.shape != (N,):
            raise ValueError(f"the epilogue's bias must be ({N},), got {self.bias.shape}")
        if self.beta is not None and not has_c:
            raise ValueError("the epilogue has a beta, but there is no C")

    def cut(self, rows: slice, columns: slice) -> Epilogue:
        """The epilogue of a block of the result."""
        changes: dict[str, Any] = {}
        if self.is_row_wise:
            changes = {"scale_a": self.scale_a[rows], "scale_b": self.scale_b[:, columns]}
        if self.bias is not None:
            changes["bias"] = self.bias[columns]
        return dataclasses.replace(self, **changes) if changes else self

    @formats.in_default_environment
    def apply(self, accumulators: F32, C: F32 | None, ones: bool) -> npt.NDArray[Any]:
        """Accumulators (..., M, N) to codes of ``out_format``; ``ones``: which NaN, see above."""
        with np.errstate(all="ignore"):
            if self.is_row_wise:
                y = accumulators * self.scale_a * self.scale_b
                y = y + (np.float32(0) if self.bias is None else self.bias)
            else:
                y = accumulators
                factors = [s for s in (self.scale_a, self.scale_b, self.alpha) if s is not None]
                if factors or self.beta is not None:
                    alpha = functools.reduce(np.multiply, factors, np.float32(1))
                    has_c = self.beta is not None and C is not None
                    y = fma(alpha, y, self.beta * C) if has_c else _fma_zero(alpha, y)
                if self.bias is not None:
                    y = y + self.bias
            if self.scale_result is not None:
                y = y * self.scale_result
            fmt = formats.get(self.out_format)
            nan = np.isnan(y)
            if fmt.width == 8:
                largest = formats.decode(np.array(fmt.max_code, np.uint8), fmt).astype(np.float32)
                y = np.clip(y, -largest, largest)
            codes: npt.NDArray[Any] = y.astype(fmt.dtype, order="C").view(
                fmt.code_dtype
            )  # casts round to even
        if nan.any():
            codes = np.where(nan, fmt.code_dtype.type(canonical_nan(fmt.name, ones)), codes)
        return codes


def canonical_nan(fmt: str, ones: bool) -> int:
    """The code of a NaN: all ones but the sign, or the format's quiet NaN; fnuz has but one."""
    f = formats.get(fmt)
    return f.sign_bit - 1 if ones and f.specials != "fnuz" else f.nan_code


def fma(a: Any, b: Any, c: Any) -> F32:
    """RN32(a b + c) of float32 arrays, rounded once, in the default floating-point environment."""
    product = np.multiply(a, b, dtype=np.float64)  # exact
    c = np.asarray(c, np.float64)
    total = np.atleast_1d(product + c)
    shape = np.broadcast_shapes(product.shape, c.shape)
    # What the float64 sum lost (Knuth's TwoSum). Where it lost something, an odd last bit stands
    # for it: then rounding 53 bits to 24 gives what rounding the exact sum would have given.
    part = total - product
    lost = (product - (total - part)) + (c - part)
    word = total.view(np.int64)
    even = (lost != 0) & (word & 1 == 0) & np.isfinite(total)
    word += np.where(even, np.where((lost > 0) == (total > 0), 1, -1), 0)
    return total.astype(np.float32).reshape(shape)


def _fma_zero(a: Any, b: F32) -> F32:
    """RN32(a b + 0): the product, where an exact zero is +0."""
    y: F32 = np.multiply(a, b)
    exact_zero = (y == 0) & ((b == 0) | (a == 0))
    return np.where(exact_zero, np.float32(0), y)


@formats.in_default_environment
def float32(x: Any, name: str) -> F32:
    """Numbers as float32: Python's are rounded, arrays must hold what float32 holds.

    Raises:
        TypeError: not real numbers.
        ValueError: an array (or tensor) with a value that is no float32.
    """
    if isinstance(x, bool | np.bool_ | str) or x is None:
        raise TypeError(f"{name} must be numbers, not {x!r}")
    try:
        exact = formats.as_float64(x)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32)
        if not isinstance(x, int | float) or isinstance(x, np.generic):
            same = (rounded == exact) | np.isnan(exact)
            if not same.all():
                raise ValueError(f"{name} must hold float32 values; {exact[~same][0]} is none")
    return rounded
