"""What a caller may hand over as an operand, and the way back: the one adapter of bitmma.

An operand of format ``fmt`` is one of

- a NumPy array of the format's dtype (``float16``, ``ml_dtypes.bfloat16``, ...; tf32 and xf32 are
  float32);
- a NumPy array of raw codes: integers of the format's width, signed or not, or a void dtype of
  that size, which is what ``.npy`` files of ml_dtypes arrays come back as. Formats narrower than a
  byte (fp6, fp4) sit in its low bits;
- a PyTorch tensor of the format's dtype or of raw codes. ``torch.float4_e2m1fn_x2`` holds two fp4
  a byte along k, the first in the low nibble.

The engine sees unsigned code arrays only, views of the caller's memory wherever a view will do.
PyTorch is never imported here: a caller who has a tensor has imported it.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Set
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from bitmma import formats
from bitmma.formats import Format

__all__ = [
    "BeyondFormat",
    "Kind",
    "Prepared",
    "ToCodes",
    "as_codes",
    "as_list",
    "check",
    "common_kind",
    "computed",
    "from_list",
    "is_array",
    "prepared",
    "to_codes",
    "unpack_bytes",
    "unpack_pairs",
    "wrap",
]

Codes = npt.NDArray[Any]
_T = TypeVar("_T")

#: What a call's operands have in common: VALUES, CODES, VOID (raw bytes, at home with either) or,
#: for tensors, their torch.device.
Kind = Any
VALUES = "NumPy values"
CODES = "NumPy integer codes"
VOID = "NumPy void bytes"


class _Types(NamedTuple):
    dtype: np.dtype[Any]
    code_dtype: np.dtype[Any]
    signed_dtype: np.dtype[Any]
    width: int


_TYPES: Mapping[str, _Types] = {
    name: _Types(f.dtype, f.code_dtype, np.dtype(f"i{f.code_dtype.itemsize}"), f.width)
    for name, f in formats.FORMATS.items()
}

# PyTorch has no fp6. Names, because old versions lack some of them.
_TORCH_NAMES: Mapping[str, str] = {
    **{name: f.dtype_name for name, f in formats.FORMATS.items() if f.width >= 8},
    "e2m1": "float4_e2m1fn_x2",
}


def to_codes(x: Any, fmt: str, name: str, k_axis: int = -1) -> tuple[Codes, Kind]:
    """An operand as unsigned codes, and its kind.

    Args:
        x: the operand, see the module's text; or, as a B, a `Prepared` one of this format.
        fmt: the name of its format.
        name: what messages call it.
        k_axis: the axis along k, where packed fp4 pairs are taken apart.

    Returns:
        The codes (a view of ``x`` unless bytes had to be swapped, unpacked or fetched from another
        device) and what `wrap` and `common_kind` want to know.

    Raises:
        TypeError: not an array or tensor, or its dtype is neither the format's nor a code's.
        ValueError: a code with bits above the format's width.
    """
    codes, kind = as_codes(x, fmt, name, k_axis)
    if type(x) is not Prepared:
        check(codes, fmt, name)
    return codes, kind


def as_codes(x: Any, fmt: str, name: str, k_axis: int = -1) -> tuple[Codes, Kind]:
    """As `to_codes`, but for bits above the format's width: codes for the engine, which sees these
    itself as it reads, and says so by `BeyondFormat`; see `computed`."""
    types = _TYPES[fmt]
    # One instruction takes microseconds and so must this: no look at anything but the dtype.
    if type(x) is np.ndarray and x.dtype is types.dtype:
        return x.view(types.code_dtype), VALUES
    if type(x) is Prepared:
        return x.operand(fmt, name, k_axis)
    return _convert(x, fmt, types, name, k_axis)


#: `to_codes` or `as_codes`.
ToCodes = Callable[..., tuple[Codes, Kind]]


class BeyondFormat(ValueError):
    """The engine met a code with bits above its format's; all that it computed is void."""


def computed(compute: Callable[[], _T], check_all: Callable[[], object]) -> _T:
    """What the engine computes of `as_codes`. ``check_all`` reads the same operands by `to_codes`:
    should the engine meet a bad code, it raises what it would have raised before."""
    error: ValueError
    try:
        return compute()
    except BeyondFormat as unnamed:
        error = unnamed
        try:
            check_all()
        except ValueError as named:
            error = named
    raise error from None


def check(codes: Codes, fmt: str, name: str, error: type[ValueError] = ValueError) -> None:
    """Raises ``error`` where a code has bits above the format's width."""
    width = _TYPES[fmt].width
    if width < 8 and codes.size:
        top = int(codes.max())
        if top >> width:
            raise error(
                f"{name} has a code with bits above the {width} of {fmt}: {top:#x}; "
                f"{fmt} codes are one a byte, in the low bits"
            )


class Prepared:
    """A B that was read, checked and laid out once: see `bitmma.prepare`.

    Attributes:
        format: the name of its format. shape: (..., K, N), fp4 pairs taken apart.
        nbytes: the memory it takes.
    """

    def __init__(self, codes: Codes, format: str, kind: Kind) -> None:
        self.format, self._codes, self._kind = format, _laid_out(codes), kind
        self._codes.flags.writeable = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self._codes.shape

    @property
    def nbytes(self) -> int:
        return self._codes.nbytes

    def operand(self, fmt: str, name: str, k_axis: int) -> tuple[Codes, Kind]:
        """As `to_codes` gives it; raises where it is not what that call needs."""
        if k_axis != -2:
            raise TypeError(f"{name} is a prepared B; only B can be given as one")
        if fmt != self.format:
            raise ValueError(f"{name} was prepared as {self.format}, the instruction takes {fmt}")
        return self._codes, self._kind

    def __repr__(self) -> str:
        return f"<Prepared B of {self.format}, {self.shape}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._codes, self.format, self._kind)


def prepared(x: Any, fmt: str, name: str) -> Prepared:
    """A copy of a B as the kernels read it best: row after row. Errors as `to_codes`."""
    codes, kind = to_codes(x, fmt, name, -2)
    return Prepared(codes, fmt, kind)


def _laid_out(codes: Codes) -> Codes:
    """A copy, row after row, that begins at a line of memory: a vector across two costs twice."""
    line = 64
    memory = np.empty(codes.nbytes + line, np.uint8)
    start = -memory.ctypes.data % line
    copy = memory[start : start + codes.nbytes].view(codes.dtype).reshape(codes.shape)
    copy[...] = codes
    return copy


def is_array(x: object) -> bool:
    """Whether ``x`` is a NumPy array or a PyTorch tensor, of whatever dtype."""
    torch = sys.modules.get("torch")
    return isinstance(x, np.ndarray) or (torch is not None and isinstance(x, torch.Tensor))


def _convert(x: Any, fmt: str, types: _Types, name: str, k_axis: int) -> tuple[Codes, Kind]:
    if isinstance(x, np.ndarray | np.generic):
        return _from_numpy(x, fmt, types, name)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _from_torch(torch, x, fmt, types, name, k_axis)
    hint = (
        f"; np.array({name}) and bitmma.quantize make one of a list"
        if isinstance(x, list | tuple | int | float)
        else ""
    )
    raise TypeError(
        f"{name} must be a NumPy array or a PyTorch tensor, not {type(x).__name__}{hint}"
    )


def _from_numpy(x: Any, fmt: str, types: _Types, name: str) -> tuple[Codes, Kind]:
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array; a matrix unit knows no masks, fill it first")
    array = np.asarray(x)
    if not array.dtype.isnative:
        array = array.byteswap().view(array.dtype.newbyteorder("="))
    dtype = array.dtype
    if dtype == types.dtype:
        return array.view(types.code_dtype), VALUES
    if dtype.itemsize == types.code_dtype.itemsize:
        if dtype.kind in "ui":
            return array.view(types.code_dtype), CODES
        if dtype.type is np.void and dtype.names is None and dtype.subdtype is None:
            return array.view(types.code_dtype), VOID
    raise TypeError(
        f"{name} must be {types.dtype} values or {types.code_dtype} codes of {fmt}, "
        f"not {dtype}{_quantize_hint(dtype, fmt, name)}"
    )


def _is_number(dtype: object) -> bool:
    """Numbers of another type can be rounded, but only when the caller says so."""
    return any(word in str(dtype) for word in ("float", "int"))


def _quantize_hint(dtype: object, fmt: str, name: str) -> str:
    if not _is_number(dtype):
        return ""
    return f"; bitmma.quantize({name}, {fmt!r}) rounds numbers to {fmt}"


def _tensor_hint(dtype: object, fmt: str, name: str, wanted: object) -> str:
    if not _is_number(dtype):
        return ""
    if wanted is not None and formats.get(fmt).width >= 8:
        return f"; {name}.to({wanted}) converts numbers"
    codes = f"bitmma.quantize({name}.detach().cpu().double(), {fmt!r}).view('u1')"
    return f"; torch.from_numpy({codes}) rounds numbers to codes of {fmt}"


# --- PyTorch --------------------------------------------------------------------------------------


def _from_torch(
    torch: Any, x: Any, fmt: str, types: _Types, name: str, k_axis: int
) -> tuple[Codes, Kind]:
    if x.layout is not torch.strided or x.device.type == "meta" or x.is_nested:
        what = "meta" if x.device.type == "meta" else "nested" if x.is_nested else x.layout
        raise TypeError(f"{name} must be a dense tensor with data, not a {what} one")
    size = types.code_dtype.itemsize
    wanted = getattr(torch, _TORCH_NAMES.get(fmt, ""), None)
    is_code = not (x.dtype.is_floating_point or x.dtype.is_complex or x.dtype is torch.bool)
    if x.dtype is not wanted and not (is_code and x.dtype.itemsize == size):
        values = f"{wanted} values or " if wanted is not None else ""
        raise TypeError(
            f"{name} must be {values}{size * 8}-bit integer codes of {fmt}, "
            f"not {x.dtype}{_tensor_hint(x.dtype, fmt, name, wanted)}"
        )
    if x.requires_grad:
        x = x.detach()
    try:
        bits = x.resolve_neg().view(getattr(torch, types.signed_dtype.name))
        codes = bits.numpy(force=True).view(types.code_dtype)
    except (RuntimeError, TypeError):
        if type(x) is torch.Tensor:
            raise
        raise TypeError(
            f"{name} must be a dense tensor with data, not a {type(x).__name__}"
        ) from None
    if fmt == "e2m1" and x.dtype is wanted:
        codes = unpack_pairs(codes, k_axis)
    return codes, x.device


def unpack_pairs(pairs: Codes, k_axis: int) -> Codes:
    """Two fp4 a byte along ``k_axis``, the first in the low nibble, to one a byte."""
    last = np.moveaxis(pairs, k_axis, -1)
    codes = np.stack((last & 0xF, last >> 4), axis=-1).reshape(*last.shape[:-1], -1)
    return np.moveaxis(codes, -1, k_axis)


def unpack_bytes(x: Any, k_axis: int) -> Any:
    """fp4 packed in plain bytes (uint8, int8) to codes of the same kind; other dtypes stay."""
    if isinstance(x, np.ndarray):
        return unpack_pairs(x.view(np.uint8), k_axis) if x.dtype in (np.uint8, np.int8) else x
    torch = sys.modules["torch"]
    if x.dtype not in (torch.uint8, torch.int8):
        return x
    codes = unpack_pairs(x.view(torch.uint8).cpu().numpy(), k_axis)
    return torch.from_numpy(codes).to(x.device)


# --- kinds and results ----------------------------------------------------------------------------


def common_kind(kinds: Mapping[str, Kind]) -> Kind:
    """The kind of a whole call: the operands' names and kinds, which must agree.

    Raises:
        TypeError: they do not.
    """
    pairs = list(kinds.items())
    first_name, first = next((p for p in pairs if p[1] != VOID), pairs[0])
    for name, kind in pairs:
        if kind == first or (kind == VOID and isinstance(first, str)):
            continue
        if not isinstance(kind, str) and not isinstance(first, str):
            raise TypeError(
                f"{first_name} is on {first} and {name} on {kind}; all operands must be on one"
            )
        hint = ""
        if isinstance(kind, str) and isinstance(first, str):
            hint = "; .view(dtype) makes one of the other without touching a bit"
        raise TypeError(
            f"{first_name} is {_describe(first)} and {name} is {_describe(kind)}; "
            f"all operands of a call must be of one kind{hint}"
        )
    return first


def _describe(kind: Kind) -> str:
    return kind if isinstance(kind, str) else "a PyTorch tensor"


def wrap(codes: Codes, fmt: str, kind: Kind) -> Any:
    """Result codes as what the caller's operands were: an array or tensor of the format's dtype."""
    types = _TYPES[fmt]
    if isinstance(kind, str):
        return codes.view(types.dtype)
    torch = sys.modules["torch"]
    bits = torch.from_numpy(codes.view(types.signed_dtype))
    return bits.view(getattr(torch, _TORCH_NAMES[fmt])).to(kind)


# --- Python numbers: explain and compare ----------------------------------------------------------

_HEX = re.compile(r"([+-]?)0x([0-9a-f]*)\.?([0-9a-f]*)(?:p([+-]?\d{1,9}))?", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e([+-]?\d{1,9}))?", re.ASCII)
_SPECIAL = re.compile(r"([+-]?)(inf|infinity|nan)")
# Beyond any format, yet quick to compute with.
_EXPONENT_LIMIT = 5000
_DIGIT_LIMIT = 4000
_BIT_LIMIT = 10_000


@formats.in_default_environment
def from_list(values: Any, fmt: str, k: int, name: str) -> list[int]:
    """Python numbers as ``k`` codes, exactly; short lists are filled up with +0.

    Args:
        values: a sequence of (or one of): an int, float, Fraction or Decimal; a string, which is a
            decimal ("-0.125"; what Python writes for a float64 means that float64), a C hexadecimal
            float ("0x1.8p-3"), "inf", "nan" (the canonical one) or, as "0x" and hexadecimal digits
            alone, a raw code.
        fmt: the format's name.
        k: how many codes are wanted.
        name: what messages call it.

    Raises:
        TypeError: something that is no number.
        ValueError: more than ``k`` of them, one that is not a number, or one that the format does
            not hold exactly: nothing is rounded.
    """
    items = as_list(values, name)
    if len(items) > k:
        raise ValueError(f"{name} has {len(items)} elements; at most {k} are accepted")
    where = [f"{name}[{i}]" if k > 1 else name for i in range(len(items))]
    target = formats.get(fmt)
    codes = [_code(x, target, w) for x, w in zip(items, where, strict=True)]
    return codes + [0] * (k - len(codes))


def as_list(values: Any, name: str) -> list[Any]:
    """A sequence's items, or the one number; TypeError for what has no order or is no numbers."""
    if isinstance(values, Mapping | Set | bytes | bytearray):
        raise TypeError(
            f"{name} must be numbers or strings in a list, not a {type(values).__name__}"
        )
    one = isinstance(values, str) or not isinstance(values, Iterable)
    return [values] if one else list(values)


def _code(x: Any, fmt: Format, where: str) -> int:
    if isinstance(x, str):
        text = x.strip().lower()
        if re.fullmatch(r"0x[0-9a-f]+", text):
            code = int(text, 16)
            if code >> fmt.width:
                raise ValueError(f"{where} = {x} is no code of {fmt}, which has {fmt.width} bits")
            return code
        number, negative = _parse(text, x, fmt, where)
    else:
        number, negative = _number(x, where)
    if isinstance(number, str):
        return _special(number, negative, x, fmt, where)
    exact = _encode(number, negative, fmt)
    if exact is None:
        raise ValueError(
            f"{where} = {x} is not representable in {fmt}{_nearest(number, fmt)}; "
            "bitmma.quantize rounds explicitly"
        )
    return exact


def _number(x: Any, where: str) -> tuple[Fraction | str, bool]:
    """A Python or NumPy number as an exact fraction, or "inf" or "nan"; and its sign."""
    if isinstance(x, bool | np.bool_ | complex | np.ndarray) or not hasattr(x, "__float__"):
        raise TypeError(f"{where} must be a number or a string, not {x!r}")
    if isinstance(x, int | np.integer):
        return _short(Fraction(int(x)), where), int(x) < 0
    if not hasattr(x, "as_integer_ratio"):
        x = float(x)  # ml_dtypes scalars: exact
    negative = x < 0 or (x == 0 and math.copysign(1.0, x) < 0)
    if x != x:
        return "nan", negative
    if abs(x) == math.inf:
        return "inf", negative
    return _short(Fraction(*x.as_integer_ratio()), where), negative


def _short(number: Fraction, where: str) -> Fraction:
    """The number, unless it is one that messages, limited as Python's texts are, cannot show."""
    bits = max(number.numerator.bit_length(), number.denominator.bit_length())
    if bits > _BIT_LIMIT:
        raise ValueError(f"{where} has {bits} bits; no format needs {_BIT_LIMIT}")
    return number


def _parse(text: str, given: str, fmt: Format, where: str) -> tuple[Fraction | str, bool]:
    negative = text.startswith("-")
    if match := _SPECIAL.fullmatch(text):
        return match[2][:3], negative
    if len(text) > _DIGIT_LIMIT:
        raise ValueError(f"{where} has {len(text)} digits; no format needs {_DIGIT_LIMIT}")
    # Without a point or an exponent it would be a code, and a code has no sign.
    if ("." in text or "p" in text) and (match := _HEX.fullmatch(text)) and match[2] + match[3]:
        base, power = 2, match[4]
        number = Fraction(int(match[1] + match[2] + match[3], 16), 16 ** len(match[3]))
    elif match := _DECIMAL.fullmatch(text):
        base, power = 10, match[1]
        number = Fraction(text.split("e")[0])
    else:
        raise ValueError(
            f"{where} = {given!r} is neither a decimal, nor a C hexadecimal float, nor a 0x code"
        )
    exponent = int(power or 0)
    if number and abs(exponent) > _EXPONENT_LIMIT:
        raise ValueError(f"{where} = {given} is not representable in {fmt}")
    number *= Fraction(base) ** (exponent if number else 0)
    read = float(text) if base == 10 else math.inf
    if math.isfinite(read) and Fraction(repr(read)) == number:
        number = Fraction(read)  # "0.1" is the double 0.1, as in Python; "0.1000...01" is not
    return number, negative


def _special(kind: str, negative: bool, x: Any, fmt: Format, where: str) -> int:
    if not (fmt.has_nan if kind == "nan" else fmt.has_inf):
        what = "NaN" if kind == "nan" else "infinity"
        raise ValueError(f"{where} = {x} is not representable in {fmt}, which has no {what}")
    if kind == "nan":
        return fmt.nan_code
    return fmt.inf_code | (fmt.sign_bit if negative else 0)


def _encode(number: Fraction, negative: bool, fmt: Format) -> int | None:
    """The code worth exactly ``number``; None where there is none."""
    if not number:
        if fmt.specials == "ue8m0" or (negative and (fmt.specials == "fnuz" or not fmt.signed)):
            return None
        return fmt.sign_bit if negative else 0
    denominator = number.denominator
    if denominator & (denominator - 1) or (negative and not fmt.signed):
        return None
    code = fmt.encode(number.numerator, 1 - denominator.bit_length(), "RZ")
    return code if _value(code, fmt) == number else None


def _value(code: int, fmt: Format) -> Fraction | None:
    kind, sign, significand, exponent = fmt.decode(code)
    if kind not in (formats.Kind.ZERO, formats.Kind.FINITE):
        return None
    magnitude = significand * Fraction(2) ** (exponent - fmt.mantissa_bits)
    return -magnitude if sign else magnitude


def _nearest(number: Fraction, fmt: Format) -> str:
    """The two neighbours among the format's numbers, for a message."""
    if (number < 0 and not fmt.signed) or (number <= 0 and fmt.specials == "ue8m0"):
        return ""
    q = -fmt.bias - fmt.mantissa_bits - 8
    n = int(abs(number) / Fraction(2) ** q) * 2 + 1  # between two numbers: a sticky bit will do
    signed = -n if number < 0 else n
    found = dict.fromkeys(fmt.encode(signed, q - 1, mode, clip=True) for mode in ("RZ", "RA"))
    finite = [(c, v) for c in found if (v := _value(c, fmt)) is not None]
    shown = " and ".join(f"{float(v)!r} ({c:#0{fmt.width // 4 + 2}x})" for c, v in finite)
    return f"; nearest is {shown}" if len(finite) == 1 else f"; nearest are {shown}"
