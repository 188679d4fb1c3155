"""Number formats as values: what a code means, and which code a number gets.

A finite code is ``(-1)**sign * significand * 2**(exponent - mantissa_bits)`` with an integer
significand. Normal numbers carry their hidden bit; subnormal numbers have none and the format's
lowest exponent, ``1 - bias``. That unnormalised reading is what matrix units work with, so it is
the one used everywhere in bitmma.

Sources: IEEE 754-2019; OCP OFP8 and OCP MX v1.0 (8-, 6- and 4-bit formats, ue8m0); AMD CDNA3 ISA
(the FNUZ formats); PTX ISA 8.x/9.x (tf32, ue4m3).
"""

from __future__ import annotations

import enum
import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar

import ml_dtypes
import numpy as np
import numpy.typing as npt

from bitmma import _native

__all__ = [
    "FORMATS",
    "ROUNDINGS",
    "Decoded",
    "Format",
    "Kind",
    "as_float64",
    "decode",
    "get",
    "quantize",
    "round_shift",
]

ROUNDINGS: Mapping[str, str] = {
    "RNE": "to nearest, ties to even",
    "RNA": "to nearest, ties away from zero",
    "RZ": "toward zero",
    "RD": "toward minus infinity",
    "RU": "toward plus infinity",
    "RA": "away from zero",
}


class Kind(enum.IntEnum):
    """The class of a code."""

    ZERO = 0
    FINITE = 1
    INF = 2
    NAN = 3


class Decoded(NamedTuple):
    """A code taken apart. ``significand`` is an integer, 0 unless ``kind`` is FINITE."""

    kind: Kind
    sign: int
    significand: int
    exponent: int


def round_shift(n: int, shift: int, rounding: str) -> int:
    """Round the exact number ``n * 2**-shift`` to an integer.

    Args:
        n: any integer.
        shift: any integer; zero or less multiplies, and is exact.
        rounding: a key of ``ROUNDINGS``.
    """
    if shift <= 0:
        return n << -shift
    floor = n >> shift
    rest = n - (floor << shift)
    if rest == 0:
        return floor
    half = 1 << (shift - 1)
    up = {
        "RNE": rest > half or (rest == half and floor & 1 == 1),
        "RNA": rest > half or (rest == half and n > 0),
        "RZ": n < 0,
        "RD": False,
        "RU": True,
        "RA": n > 0,
    }[rounding]
    return floor + up


@dataclass(frozen=True)
class Format:
    """One number format.

    Attributes:
        name: the name used throughout bitmma, e.g. ``"e4m3"``.
        width: bits of one code. Codes narrower than a byte sit in its low bits.
        exponent_bits, mantissa_bits, bias: the layout. Bits below the mantissa (tf32's low 13) are
            ignored.
        specials: which codes are not numbers. ``"ieee"``: the top exponent holds Inf and NaN;
            ``"fn"``: only all ones is NaN; ``"fnuz"``: only the code of -0 is NaN; ``"none"``;
            ``"ue8m0"``: all ones is NaN and there is no zero.
        dtype_name: the NumPy or ml_dtypes type that holds it.
        signed: whether the top bit is a sign. ue4m3 has the bit but ignores it.
    """

    name: str
    width: int
    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: Literal["ieee", "fn", "fnuz", "none", "ue8m0"]
    dtype_name: str
    signed: bool = True

    @functools.cached_property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of arrays of values in this format."""
        return np.dtype(getattr(ml_dtypes, self.dtype_name, self.dtype_name))

    @functools.cached_property
    def code_dtype(self) -> np.dtype[Any]:
        """The unsigned integer dtype of arrays of raw codes."""
        return np.dtype(f"u{max(self.width, 8) // 8}")

    @functools.cached_property
    def dropped_bits(self) -> int:
        """Low bits of the word that the unit never sees: 13 for tf32, else 0."""
        if not self.signed:
            return 0
        return self.width - 1 - self.exponent_bits - self.mantissa_bits

    @functools.cached_property
    def has_inf(self) -> bool:
        return self.specials == "ieee"

    @functools.cached_property
    def has_nan(self) -> bool:
        return self.specials != "none"

    @functools.cached_property
    def min_exponent(self) -> int:
        """The exponent of the lowest normal and of every subnormal number."""
        return -self.bias if self.specials == "ue8m0" else 1 - self.bias

    @functools.cached_property
    def max_exponent(self) -> int:
        """The exponent of the largest finite number."""
        return self.decode(self.max_code).exponent

    @functools.cached_property
    def max_code(self) -> int:
        """The code of the largest finite number."""
        top = (1 << (self.exponent_bits + self.mantissa_bits)) - 1
        match self.specials:
            case "ieee":
                code = top - (1 << self.mantissa_bits)
            case "fn" | "ue8m0":
                code = top - 1
            case _:
                code = top
        return code << self.dropped_bits

    @functools.cached_property
    def inf_code(self) -> int:
        """The code of +Inf; ValueError where there is none."""
        if not self.has_inf:
            raise ValueError(f"{self.name} has no infinity")
        ones = (1 << self.exponent_bits) - 1
        return ones << (self.mantissa_bits + self.dropped_bits)

    @functools.cached_property
    def nan_code(self) -> int:
        """The canonical NaN: quiet with an empty payload, or the format's only one."""
        match self.specials:
            case "ieee":
                return self.inf_code | 1 << (self.mantissa_bits + self.dropped_bits - 1)
            case "fnuz":
                return self.sign_bit
            case "fn" | "ue8m0":
                return (1 << (self.exponent_bits + self.mantissa_bits)) - 1
            case _:
                raise ValueError(f"{self.name} has no NaN")

    @functools.cached_property
    def sign_bit(self) -> int:
        return 1 << (self.width - 1) if self.signed else 0

    def decode(self, code: int) -> Decoded:
        """Take one code apart.

        Raises:
            ValueError: ``code`` is not an unsigned integer of the format's width.
        """
        if not 0 <= code < 1 << self.width:
            raise ValueError(f"code {code:#x} is not one of the {self.width} bits of {self.name}")
        sign = int(code & self.sign_bit != 0)
        word = code >> self.dropped_bits
        mantissa = word & ((1 << self.mantissa_bits) - 1)
        field = word >> self.mantissa_bits & ((1 << self.exponent_bits) - 1)
        top = field == (1 << self.exponent_bits) - 1
        all_ones = top and mantissa == (1 << self.mantissa_bits) - 1
        match self.specials:
            case "ieee" if top:
                return Decoded(Kind.NAN if mantissa else Kind.INF, sign, 0, 0)
            case "fn" if all_ones:
                return Decoded(Kind.NAN, sign, 0, 0)
            case "fnuz" if code == self.sign_bit:
                return Decoded(Kind.NAN, sign, 0, 0)
            case "ue8m0":
                if top:
                    return Decoded(Kind.NAN, 0, 0, 0)
                return Decoded(Kind.FINITE, 0, 1, field - self.bias)
        if field == 0:
            kind = Kind.FINITE if mantissa else Kind.ZERO
            return Decoded(kind, sign, mantissa, self.min_exponent)
        return Decoded(Kind.FINITE, sign, mantissa | 1 << self.mantissa_bits, field - self.bias)

    def encode(
        self,
        n: int,
        q: int,
        rounding: str = "RNE",
        *,
        mantissa_bits: int | None = None,
        negative_zero: bool = False,
        saturate: bool = False,
        clip: bool = False,
    ) -> int:
        """The code of the exact number ``n * 2**q``, rounded once.

        Args:
            n, q: integers.
            rounding: a key of ``ROUNDINGS``.
            mantissa_bits: keep only so many mantissa bits (13 for E8M13 results in an f32 word).
            negative_zero: the sign that a zero ``n`` gets; a non-zero number that rounds to zero
                keeps its own.
            saturate: beyond the largest number give that number instead of Inf (or NaN where the
                format has no Inf).
            clip: as IEEE 754 directed roundings do, let those that round toward zero stop at the
                largest number; by default they overflow to Inf like the others.
        """
        bits = self.mantissa_bits if mantissa_bits is None else mantissa_bits
        negative = n < 0 or (n == 0 and negative_zero)
        if self.specials == "ue8m0":
            return self._encode_power(n, q, rounding, saturate)
        if negative and not self.signed and n != 0:
            raise ValueError(f"{self.name} holds no negative numbers")
        sign = self.sign_bit if negative and self.specials != "fnuz" else 0
        if n == 0:
            return sign
        exponent = max(abs(n).bit_length() - 1 + q, self.min_exponent)
        steps = abs(round_shift(n, exponent - bits - q, rounding))
        if steps >> (bits + 1):  # rounded up into the next binade
            steps, exponent = steps >> 1, exponent + 1
        if steps == 0:
            return sign
        sign = self.sign_bit if negative else 0
        code = (steps << (self.mantissa_bits - bits)) + (
            (exponent - self.min_exponent) << self.mantissa_bits
        )
        code <<= self.dropped_bits
        if code <= self.max_code:
            return sign | code
        inward = rounding == "RZ" or rounding == ("RU" if negative else "RD")
        if saturate or (clip and inward) or self.specials == "none":
            return sign | self.max_code
        return (
            sign | self.inf_code
            if self.has_inf
            else self.nan_code | (sign if self.specials == "fn" else 0)
        )

    def _encode_power(self, n: int, q: int, rounding: str, saturate: bool) -> int:
        if n <= 0:
            raise ValueError("ue8m0 holds positive powers of two only")
        # Rounding to a power of two: one significant bit, the tie 1.5 * 2**e going to even e's
        # neighbour has no meaning in a format without mantissa, so ties go up (OCP MX leaves it).
        exponent = n.bit_length() - 1 + q
        rest = n - (1 << (n.bit_length() - 1))
        if rest and (
            rounding in ("RU", "RA") or (rounding[:2] == "RN" and 3 * (n - rest) <= 2 * n)
        ):
            exponent += 1
        if exponent > self.bias:
            return self.max_code if saturate else self.nan_code
        return max(exponent, -self.bias) + self.bias

    def __str__(self) -> str:
        return self.name

    def __hash__(self) -> int:
        return hash(self.name)  # as formats are looked up often


FORMATS: Mapping[str, Format] = {
    f.name: f
    for f in (
        Format("f64", 64, 11, 52, 1023, "ieee", "float64"),
        Format("f32", 32, 8, 23, 127, "ieee", "float32"),
        Format("tf32", 32, 8, 10, 127, "ieee", "float32"),
        Format("xf32", 32, 8, 10, 127, "ieee", "float32"),
        Format("f16", 16, 5, 10, 15, "ieee", "float16"),
        Format("bf16", 16, 8, 7, 127, "ieee", "bfloat16"),
        Format("e5m2", 8, 5, 2, 15, "ieee", "float8_e5m2"),
        Format("e4m3", 8, 4, 3, 7, "fn", "float8_e4m3fn"),
        Format("bf8", 8, 5, 2, 16, "fnuz", "float8_e5m2fnuz"),
        Format("fp8", 8, 4, 3, 8, "fnuz", "float8_e4m3fnuz"),
        Format("e3m2", 6, 3, 2, 3, "none", "float6_e3m2fn"),
        Format("e2m3", 6, 2, 3, 1, "none", "float6_e2m3fn"),
        Format("e2m1", 4, 2, 1, 1, "none", "float4_e2m1fn"),
        Format("ue8m0", 8, 8, 0, 127, "ue8m0", "float8_e8m0fnu", signed=False),
        Format("ue4m3", 8, 4, 3, 7, "fn", "float8_e4m3fn", signed=False),
    )
}

_ALIASES: Mapping[str, str] = {
    "float64": "f64", "fp64": "f64", "double": "f64",
    "float32": "f32", "fp32": "f32", "float": "f32",
    "float16": "f16", "fp16": "f16", "half": "f16",
    "bfloat16": "bf16",
    "float8_e5m2": "e5m2", "float8_e4m3fn": "e4m3", "e4m3fn": "e4m3",
    "float8_e5m2fnuz": "bf8", "e5m2fnuz": "bf8",
    "float8_e4m3fnuz": "fp8", "e4m3fnuz": "fp8",
    "float6_e3m2fn": "e3m2", "float6_e2m3fn": "e2m3",
    "float4_e2m1fn": "e2m1", "float4_e2m1fn_x2": "e2m1", "fp4": "e2m1",
    "float8_e8m0fnu": "ue8m0", "e8m0": "ue8m0",
}  # fmt: skip


def get(name: str | Format) -> Format:
    """The format of that name; NumPy, ml_dtypes and PyTorch names are accepted too.

    Raises:
        TypeError: ``name`` is neither a string nor a Format.
        ValueError: there is no such format; the message lists them all.
    """
    if isinstance(name, Format):
        return name
    if isinstance(name, str) and name in FORMATS:
        return FORMATS[name]
    if not isinstance(name, str):
        raise TypeError(f"a format is named by a string, not {type(name).__name__}")
    key = name.lower().removeprefix("torch.")
    key = _ALIASES.get(key, key)
    if key not in FORMATS:
        raise ValueError(f"unknown format {name!r}; formats are {', '.join(FORMATS)}")
    return FORMATS[key]


_P = ParamSpec("_P")
_T = TypeVar("_T")


def in_default_environment(f: Callable[_P, _T]) -> Callable[_P, _T]:
    """``f`` with subnormals kept and rounding to nearest, whatever its caller has set.

    NumPy's arithmetic obeys a thread's flush-to-zero mode, which PyTorch offers to switch on.
    """

    @functools.wraps(f)
    def inner(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        return _native.in_default_environment(lambda: f(*args, **kwargs))

    return inner


# --- arrays ------------------------------------------------------------------------------------


@in_default_environment
def decode(codes: npt.ArrayLike, format: str | Format) -> npt.NDArray[np.float64]:
    """The values of raw codes, exact in float64 (every format fits).

    Args:
        codes: integers of the format's width, any shape; signed views count as their bits.
        format: the format's name.

    Raises:
        TypeError: ``codes`` are not integers of that width.
        ValueError: a code has bits above the format's width.
    """
    fmt = get(format)
    array = as_codes(codes, fmt)
    if fmt.width <= 16:
        values: npt.NDArray[np.float64] = _value_table(fmt)[array]
        return values
    if fmt.width == 64:
        return array.view(np.float64).copy()
    keep = np.uint32(0xFFFFFFFF << fmt.dropped_bits & 0xFFFFFFFF)
    with np.errstate(invalid="ignore"):  # a signalling NaN is no error, only a NaN
        return (array & keep).view(np.float32).astype(np.float64)


def as_codes(codes: npt.ArrayLike, fmt: Format) -> npt.NDArray[Any]:
    """``codes`` as an array of the format's unsigned code dtype, checked."""
    array = np.asarray(codes)
    if array.dtype == np.int64 and fmt.width < 64 and not isinstance(codes, np.ndarray):
        # Plain Python integers: accept those that fit.
        if array.size and (array.min() < 0 or array.max() >= 1 << fmt.width):
            raise ValueError(f"codes of {fmt} are 0 to {(1 << fmt.width) - 1:#x}")
        array = array.astype(fmt.code_dtype)
    if array.dtype.kind not in "ui" or array.dtype.itemsize != fmt.code_dtype.itemsize:
        raise TypeError(f"codes of {fmt} are {fmt.code_dtype} integers, not {array.dtype}")
    array = array.view(fmt.code_dtype)
    if fmt.width < 8 and array.size and array.max() >> fmt.width:
        raise ValueError(f"a code of {fmt} has bits above its {fmt.width}: {array.max():#x}")
    return array


@functools.cache
def _value_table(fmt: Format) -> npt.NDArray[np.float64]:
    def value(code: int) -> float:
        kind, sign, significand, exponent = fmt.decode(code)
        if kind is Kind.NAN:
            return float("nan")
        magnitude = (
            float("inf")
            if kind is Kind.INF
            else significand * 2.0 ** (exponent - fmt.mantissa_bits)
        )
        return -magnitude if sign else magnitude

    if fmt.width == 16:  # at once: these are float16, or the upper half of float32
        words = np.arange(1 << 16, dtype=np.uint16)
        half = fmt.mantissa_bits == 10
        with np.errstate(invalid="ignore"):
            found = words.view(np.float16) if half else (words.astype(np.uint32) << 16).view("f4")
            table = found.astype(np.float64)
        table[np.isnan(table)] = np.nan
    else:
        table = np.array([value(code) for code in range(1 << fmt.width)])
    table.flags.writeable = False
    return table


@in_default_environment
def quantize(
    x: npt.ArrayLike,
    format: str | Format,
    *,
    rounding: str = "RNE",
    saturate: bool = False,
) -> npt.NDArray[Any]:
    """Round numbers to a format, explicitly; nothing else in bitmma rounds an operand.

    Args:
        x: real numbers of any shape: an array of floats (ml_dtypes too), of integers up to 2**53
            in magnitude, or nested lists. A PyTorch tensor is read without its gradient; the
            result is a NumPy array all the same.
        format: the target format's name.
        rounding: ``RNE`` (default), ``RNA`` (ties away), ``RZ``, ``RD``, ``RU`` or ``RA`` (away
            from zero). Overflow follows IEEE 754: nearest and outward modes give Inf (NaN where the
            format has none), inward modes the largest number.
        saturate: clamp what overflows, Inf included, to the largest number. Formats with neither
            Inf nor NaN (e3m2, e2m3, e2m1) always saturate.

    Returns:
        An array of the format's dtype. -0 becomes +0 in the FNUZ formats.

    Raises:
        ValueError: unknown format or rounding; a NaN where the format has none; a number that is
            negative (or zero, for ue8m0) where the format has no code for it.
        TypeError: ``x`` is not real numbers.
    """
    fmt = get(format)
    if not isinstance(rounding, str):
        raise TypeError(f"rounding must be a string, not {rounding!r}")
    if rounding not in ROUNDINGS:
        raise ValueError(f"rounding is one of {', '.join(ROUNDINGS)}, not {rounding!r}")
    values = as_float64(x)
    nan = np.isnan(values)
    if nan.any() and not fmt.has_nan:
        raise ValueError(f"x has a NaN and {fmt} has none")
    if not nan.any():
        codes = _round_codes(values, fmt, rounding, saturate)
    else:
        codes = _round_codes(np.where(nan, 1.0, values), fmt, rounding, saturate)
        codes = np.where(nan, fmt.code_dtype.type(fmt.nan_code), codes)
    return codes.view(fmt.dtype) if codes.dtype != fmt.dtype else codes


def as_float64(x: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Real numbers (NumPy, ml_dtypes, PyTorch, lists) as float64, exactly, or an error."""
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError("x is a masked array; a format knows no masks, fill it first")
    torch = sys.modules.get("torch")
    array = _from_torch(torch, x) if torch and isinstance(x, torch.Tensor) else np.asarray(x)
    if array.dtype.kind in "ui":
        if array.size and max(abs(int(array.min())), abs(int(array.max()))) > 2**53:
            raise ValueError("x has integers beyond 2**53, which float64 does not hold exactly")
    elif array.dtype == np.longdouble and array.dtype.itemsize > 8:
        raise TypeError("x is longdouble; give float64 or narrower")
    elif array.dtype.kind not in "fbV" or array.dtype.names or array.dtype.kind == "b":
        raise TypeError(f"x must be real numbers, not {array.dtype}")
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"x must be real numbers, not {array.dtype}") from None


def _from_torch(torch: Any, x: Any) -> npt.NDArray[Any]:
    """A tensor's numbers, by their bits where NumPy knows the type by ml_dtypes only."""
    try:
        if not x.dtype.is_floating_point:
            return np.asarray(x.numpy(force=True))
        dtype = get(str(x.dtype)).dtype
        bits = x.detach().resolve_neg().view(getattr(torch, f"int{8 * dtype.itemsize}"))
        if bits.shape == x.shape and x.dtype != getattr(torch, "float4_e2m1fn_x2", None):
            return np.asarray(bits.numpy(force=True).view(dtype))
    except (RuntimeError, TypeError, ValueError):
        pass
    what = f"{type(x).__name__} of {x.dtype}"
    raise TypeError(f"x must be real numbers in a dense tensor, not a {what}") from None


#: Numbers rounded at once: their intermediate results stay in a core's cache.
_PIECE = 1 << 13


def _round_codes(
    values: npt.NDArray[np.float64], fmt: Format, rounding: str, saturate: bool
) -> npt.NDArray[Any]:
    """Round finite and infinite float64 values to codes."""
    flat, codes = values.reshape(-1), np.empty(values.shape, fmt.code_dtype)
    found = codes.reshape(-1)
    for i in range(0, len(flat), _PIECE):
        piece = slice(i, i + _PIECE)
        found[piece] = _rounded(flat[piece], fmt, rounding, saturate)
    return codes


def _rounded(
    values: npt.NDArray[np.float64], fmt: Format, rounding: str, saturate: bool
) -> npt.NDArray[Any]:
    """The same of a few (N,), vectorised over exact float64 steps."""
    negative = np.signbit(values)
    if not fmt.signed and (negative & (values != 0)).any():
        raise ValueError(f"x has negative numbers and {fmt} holds none")
    if fmt.specials == "ue8m0":
        return _round_powers(values, fmt, rounding, saturate)
    magnitude = np.abs(values)
    infinite = np.isinf(magnitude)
    finite = np.where(infinite, 0.0, magnitude) if infinite.any() else magnitude
    exponent = np.maximum(np.frexp(finite)[1] - 1, fmt.min_exponent)
    exponent[finite == 0] = fmt.min_exponent
    # Exact: a float64 over one step of the target is below 2**53 and scaling is by a power of two.
    # (Scaled in two factors, so that f64's own subnormals neither overflow nor lose bits.)
    shift = fmt.mantissa_bits - exponent
    half = shift >> 1
    steps = np.ldexp(np.ldexp(finite, half), shift - half)
    code = (exponent - fmt.min_exponent).astype(np.int64) << fmt.mantissa_bits
    # A carry into the next binade is the next code: the layout is monotonic.
    code += _whole(steps, negative, rounding).astype(np.int64)
    word = code.astype(np.uint64) << np.uint64(fmt.dropped_bits)
    beyond = (code > fmt.max_code >> fmt.dropped_bits) | infinite
    if beyond.any():
        if saturate or fmt.specials == "none":
            ends: Any = np.uint64(fmt.max_code)
        else:
            inward = {"RZ": True, "RD": ~negative, "RU": negative}.get(rounding, False)
            lost = fmt.inf_code if fmt.has_inf else fmt.nan_code
            ends = np.where(inward & ~infinite, np.uint64(fmt.max_code), np.uint64(lost))
        word = np.where(beyond, ends, word)
    sign = negative & fmt.signed
    if fmt.specials == "fnuz":
        sign &= (word != 0) & (word != fmt.nan_code)
    codes: npt.NDArray[Any] = word.astype(fmt.code_dtype)
    codes |= sign * fmt.code_dtype.type(fmt.sign_bit)
    return codes


def _whole(
    steps: npt.NDArray[np.float64], negative: npt.NDArray[np.bool_], rounding: str
) -> npt.NDArray[np.float64]:
    """Magnitudes, ``negative`` or not, rounded to integers whatever the caller's rounding mode."""
    down: npt.NDArray[np.float64] = np.floor(steps)
    match rounding:
        case "RNE":
            rest, odd = steps - down, (down.astype(np.int64) & 1).astype(bool)
            down += (rest > 0.5) | ((rest == 0.5) & odd)
            return down
        case "RNA":
            return down + (steps - down >= 0.5)
        case "RZ":
            return down
        case "RA":
            return np.ceil(steps)
    return np.where(negative == (rounding == "RD"), np.ceil(steps), down)


def _round_powers(
    values: npt.NDArray[np.float64], fmt: Format, rounding: str, saturate: bool
) -> npt.NDArray[Any]:
    if (values <= 0).any():
        raise ValueError("x has numbers that are not positive and ue8m0 holds none")
    infinite = np.isinf(values)
    fraction, exponent = np.frexp(np.where(infinite, 1.0, values))
    up = {
        "RNE": fraction >= 0.75,
        "RNA": fraction >= 0.75,
        "RU": fraction > 0.5,
        "RA": fraction > 0.5,
    }.get(rounding, np.zeros(values.shape, bool))
    power = np.where(infinite, fmt.bias + 1, exponent - 1 + up)
    top = fmt.bias if saturate else fmt.bias + 1
    return (np.clip(power, -fmt.bias, top) + fmt.bias).astype(np.uint8)
