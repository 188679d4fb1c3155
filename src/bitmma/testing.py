"""Comparing bits, never tolerances: for tests of kernels, compilers and simulators.

bitmma.testing.assert_bits_equal(from_gpu, bitmma.matmul(A, B, instruction=instr))
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from bitmma import formats
from bitmma.engine import operands
from bitmma.formats import Format

__all__ = ["BitsReport", "Difference", "assert_bits_equal", "compare_bits"]

#: Every class of difference, in the order reports give them.
CLASSES = (
    "sign of zero",
    "NaN code",
    "NaN against number",
    "sign of Inf",
    "Inf against number",
    "value",
    "code",
)
_SHOWN = 3  # examples of each class


@dataclass(frozen=True)
class Difference:
    """One element that differs.

    ``ulps`` counts the codes from one number to the other (both zeros are one), for class "value".
    """

    kind: str
    index: tuple[int, ...]
    x: int
    y: int
    ulps: int | None


@dataclass(frozen=True)
class BitsReport:
    """What `compare_bits` found. True if nothing differs; its text is the whole story.

    Attributes:
        size: elements compared. differing: how many differ.
        classes: how many of each class, for the classes that occur.
        max_ulps: the largest distance in class "value", in units in the last place: how many
            numbers of the format one has to step from the one to the other, so that neighbours are
            1 apart; None if there is none.
        examples: the first few of each class.
        format: the format that codes were read in; None for integers without one.
    """

    size: int
    differing: int
    classes: dict[str, int] = field(hash=False)
    max_ulps: int | None
    examples: tuple[Difference, ...]
    format: str | None

    def __bool__(self) -> bool:
        return self.differing == 0

    def __str__(self) -> str:
        if not self.differing:
            return f"all {self.size} equal"
        lines = [f"{self.differing} of {self.size} differ ({self.differing / self.size:.3%})"]
        for kind, count in self.classes.items():
            most = f", at most {_ulps(self.max_ulps)}" if kind == "value" else ""
            lines.append(f"{kind}: {count}{most}")
            lines += [self._line(e) for e in self.examples if e.kind == kind]
            if count > _SHOWN:
                lines.append("  ...")
        return "\n".join(lines)

    def _line(self, e: Difference) -> str:
        distance = f", {_ulps(e.ulps)}" if e.ulps is not None else ""
        place = ", ".join(map(str, e.index))
        return f"  [{place}] {self._word(e.x)} against {self._word(e.y)}{distance}"

    def _word(self, code: int) -> str:
        if self.format is None:
            return f"{code:#x}"
        fmt = formats.get(self.format)
        digits = -(-fmt.width // 4)
        if fmt.width == 64:
            value = np.uint64(code).view(np.float64)
        else:
            value = formats.decode(np.array([code], fmt.code_dtype), fmt)[0]
        return f"{code:#0{digits + 2}x} ({float(value)!r})"


def _ulps(n: int | None) -> str:
    return f"{n} ulp" if n == 1 else f"{n} ulps"


def assert_bits_equal(
    x: Any, y: Any, *, nan: Literal["bits", "any"] = "bits", format: str | None = None
) -> None:
    """Raise AssertionError unless every element has the same bits; say where and how they differ.

    Args:
        x, y: NumPy arrays (ml_dtypes too), PyTorch tensors or integer codes, of one shape and
            format. Values may be compared with codes of the same width.
        nan: "bits": NaNs must have the same code; "any": any NaN equals any other, as is right for
            bitmma's FMA and AMD results, where the payload is not known.
        format: the format of integer codes, where neither side's dtype says it.

    Raises:
        AssertionError: they differ, in shape, format or bits.
        TypeError, ValueError: arguments that are none of the above.
    """
    report = compare_bits(x, y, nan=nan, format=format)
    if not report:
        raise AssertionError(f"bits differ: {report}")


@formats.in_default_environment
def compare_bits(
    x: Any, y: Any, *, nan: Literal["bits", "any"] = "bits", format: str | None = None
) -> BitsReport:
    """`assert_bits_equal` that returns what it found; only shapes or formats that differ raise."""
    if nan not in ("bits", "any"):
        raise ValueError(f'nan is "bits" or "any", not {nan!r}')
    x_format, x_codes = _codes(x, "x", format)
    y_format, y_codes = _codes(y, "y", format)
    if x_codes.shape != y_codes.shape:
        raise AssertionError(f"shapes differ: x is {x_codes.shape} and y is {y_codes.shape}")
    named = {f for f in (x_format, y_format) if f}
    if len(named) > 1 or x_codes.dtype != y_codes.dtype:
        shown = [f or str(c.dtype) for f, c in ((x_format, x_codes), (y_format, y_codes))]
        raise AssertionError(f"formats differ: x is {shown[0]} and y is {shown[1]}")
    name = named.pop() if named else None
    if nan == "any" and name is None:
        raise ValueError('nan="any" on integer codes needs their format')
    return _report(x_codes, y_codes, formats.get(name) if name else None, nan == "any")


_BY_DTYPE = {
    f.dtype: f.name for f in formats.FORMATS.values() if f.name not in ("tf32", "xf32", "ue4m3")
}


def _codes(x: Any, name: str, format: str | None) -> tuple[str | None, npt.NDArray[Any]]:
    """The format that an array's dtype means (else the one given), and its codes."""
    if isinstance(x, np.generic):
        x = np.asarray(x)
    if not operands.is_array(x):
        raise TypeError(f"{name} must be a NumPy array or a PyTorch tensor, not {type(x).__name__}")
    given = formats.get(format).name if format is not None else None
    if isinstance(x, np.ndarray):
        own = _BY_DTYPE.get(x.dtype.newbyteorder("="))
    else:
        torch = sys.modules["torch"]
        values = x.dtype.is_floating_point or "float" in str(x.dtype)
        own = formats.get(str(x.dtype)).name if values else None
        if own is None and given is None:
            x = x.detach().cpu().numpy() if x.dtype is not torch.bool else np.empty(0, bool)
    fmt = given or own
    if fmt is None:
        if x.dtype.kind not in "ui":
            raise TypeError(f"{name} must be floats or integer codes, not {x.dtype}")
        return None, x.view(f"u{x.dtype.itemsize}")
    return fmt, operands.to_codes(x, fmt, name)[0]


def _report(x: Any, y: Any, fmt: Format | None, any_nan: bool) -> BitsReport:
    differ = np.asarray(x != y)
    if any_nan and fmt is not None:
        differ &= ~(_is_nan(x, fmt) & _is_nan(y, fmt))
    where = np.unravel_index(np.flatnonzero(differ), x.shape) if x.ndim else ()
    left, right = x[differ], y[differ]
    kinds, ulps = _classify(left, right, fmt)
    classes, examples = {}, []
    for i, kind in enumerate(CLASSES):
        found = np.flatnonzero(kinds == i)
        if not found.size:
            continue
        classes[kind] = int(found.size)
        for j in found[:_SHOWN].tolist():
            index = tuple(int(axis[j]) for axis in where)
            distance = int(ulps[j]) if kind == "value" else None
            examples.append(Difference(kind, index, int(left[j]), int(right[j]), distance))
    values = ulps[kinds == CLASSES.index("value")]
    return BitsReport(
        int(x.size), int(left.size), classes, int(values.max()) if values.size else None,
        tuple(examples), fmt.name if fmt else None,
    )  # fmt: skip


def _magnitude(codes: Any, fmt: Format) -> Any:
    """Codes without their sign, as uint64; they lie in the order of the magnitudes."""
    return codes.astype(np.uint64) & np.uint64((1 << fmt.width) - 1 & ~fmt.sign_bit)


def _is_nan(codes: Any, fmt: Format) -> Any:
    match fmt.specials:
        case "ieee":
            return _magnitude(codes, fmt) > np.uint64(fmt.inf_code)
        case "none":
            return np.zeros(codes.shape, bool)
        case "fnuz":
            return codes == fmt.nan_code
        case _:
            return _magnitude(codes, fmt) == np.uint64(fmt.nan_code)


def _classify(x: Any, y: Any, fmt: Format | None) -> tuple[Any, Any]:
    """Class numbers and distances of pairs of different codes."""
    if fmt is None:
        return np.full(x.shape, CLASSES.index("code")), np.zeros(x.shape, np.uint64)
    mx, my = _magnitude(x, fmt), _magnitude(y, fmt)
    same_sign = ((x ^ y) & np.array(fmt.sign_bit, x.dtype)) == 0
    nan_x, nan_y = _is_nan(x, fmt), _is_nan(y, fmt)
    inf = np.uint64(fmt.inf_code if fmt.has_inf else 1 << 63)
    conditions = [
        (mx == 0) & (my == 0) & ~nan_x & ~nan_y & (fmt.specials != "ue8m0"),
        nan_x & nan_y,
        nan_x | nan_y,
        (mx == inf) & (my == inf),
        (mx == inf) | (my == inf),
    ]
    kinds = np.select(conditions, range(len(conditions)), CLASSES.index("value"))
    return kinds, np.where(same_sign, np.maximum(mx, my) - np.minimum(mx, my), mx + my)
