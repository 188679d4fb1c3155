"""Numbers, models and traces in words: what every way of showing them shares."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from fractions import Fraction
from itertools import groupby
from typing import TYPE_CHECKING, Any

from bitmma import formats
from bitmma.formats import Format, Kind
from bitmma.models import FDPA, Model, SumTree
from bitmma.reference import Aligned, Step

if TYPE_CHECKING:
    from bitmma.isa import Provenance

__all__ = [
    "code_text",
    "decoded_text",
    "exact_text",
    "fixed_text",
    "hex_float",
    "model_dict",
    "model_text",
    "nan_claim",
    "provenance_text",
    "result_number",
    "runs",
    "term_name",
    "value_of",
    "value_text",
]

#: Letters of one parameter of a model beyond which it is shortened.
_WORD_SHOWN = 60

# --- numbers --------------------------------------------------------------------------------------


def hex_float(n: int, q: int) -> str:
    """``n * 2**q`` as a C hex float, exact whatever its size: ``0x1.8p+5``."""
    if n == 0:
        return "0x0p+0"
    magnitude = abs(n)
    exponent = magnitude.bit_length() - 1
    rest = magnitude - (1 << exponent)
    width = -(-exponent // 4)  # hex digits that hold the bits below the leading one
    digits = f"{rest << (4 * width - exponent):0{width}x}".rstrip("0") if rest else ""
    point = "." if digits else ""
    return f"{'-' if n < 0 else ''}0x1{point}{digits}p{exponent + q:+d}"


def exact_text(n: int, q: int, longest: int = 12) -> str:
    """``n * 2**q`` as a decimal where a short one is exact, else as a hex float."""
    if abs(n) < 1 << 64 and -64 <= q <= 64:
        decimal = repr(math.ldexp(float(n), q)).removesuffix(".0")
        if len(decimal) <= longest and Fraction(decimal) == Fraction(n) * Fraction(2) ** q:
            return decimal
    return hex_float(n, q)


def fixed_text(n: int, q: int) -> str:
    """A significand, ``n * 2**q`` with no exponent: a short decimal or hex, ``-0x2.54217``."""
    decimal = exact_text(n, q)
    if "p" not in decimal:
        return decimal
    places = -(min(q, 0) // 4)
    digits = abs(n) << (4 * places + q)
    fraction = f"{digits & ((1 << 4 * places) - 1):0{places}x}".rstrip("0")
    return f"{'-' if n < 0 else ''}0x{digits >> 4 * places:x}.{fraction}"


def code_text(fmt: Format | str, code: int) -> str:
    """A code in hex, as wide as its format."""
    return f"0x{code:0{-(-formats.get(fmt).width // 4)}x}"


def value_of(fmt: Format | str, code: int) -> float:
    """The value of one code, exact (float64 holds every format)."""
    fmt = formats.get(fmt)
    kind, sign, significand, exponent = fmt.decode(code)
    if kind is Kind.NAN:
        return math.nan
    magnitude = (
        math.inf if kind is Kind.INF else math.ldexp(significand, exponent - fmt.mantissa_bits)
    )
    return -magnitude if sign else magnitude


def value_text(fmt: Format | str, code: int) -> str:
    """The value of one code, exact: a short decimal, a C hex float, ``nan``, ``inf`` or ``-0``."""
    fmt = formats.get(fmt)
    kind, sign, significand, exponent = fmt.decode(code)
    if kind is Kind.FINITE:
        return exact_text(-significand if sign else significand, exponent - fmt.mantissa_bits)
    return ("-" if sign and kind is not Kind.NAN else "") + _SPECIAL_TEXT[kind]


_SPECIAL_TEXT = {Kind.ZERO: "0", Kind.INF: "inf", Kind.NAN: "nan"}


def decoded_text(fmt: Format, code: int) -> str:
    """As `value_text`, but a subnormal shows its significand below 1 and the lowest exponent."""
    kind, sign, significand, exponent = fmt.decode(code)
    if kind is Kind.FINITE and not significand >> fmt.mantissa_bits:
        return f"{'-' if sign else ''}{fixed_text(significand, -fmt.mantissa_bits)}·2^{exponent}"
    return value_text(fmt, code)


def model_dict(model: Model) -> dict[str, Any]:
    """A model's family and parameters as JSON-able data."""

    def plain(value: object) -> Any:
        if isinstance(value, Model):
            return model_dict(value)
        if isinstance(value, tuple):
            return [plain(v) for v in value]
        return str(value) if is_dataclass(value) else value

    return {
        "family": model.family,
        **{f.name: plain(getattr(model, f.name)) for f in fields(model)},
    }


def model_text(model: Model) -> str:
    """A model in few words: ``T-FDPA L=16 F=25 RZ-FP32 e_zero=-133``."""
    values = [(f.name, getattr(model, f.name)) for f in fields(model)]
    if isinstance(model, FDPA | SumTree):  # of many fields, what is not at its default
        said = {"L", "F", "rho", *(f.name for f in model.chosen())}
        values = [(name, x) for name, x in values if name in said]
    words = [
        model_text(x) if isinstance(x, Model) else str(x) if name == "rho" else f"{name}={x}"
        for name, x in values
        if not isinstance(x, tuple)
    ]
    words = [x if len(x) <= _WORD_SHOWN else f"{x[:_WORD_SHOWN]}…" for x in words]
    return " ".join([model.family, *words])


def nan_claim(model: Model) -> str:
    """What is claimed of a NaN output: "bits", or "any": that it is a NaN."""
    return "bits" if model.nan == "ones" else "any"


def provenance_text(provenance: Provenance) -> str:
    """The levels without their sources: ``published (family recorded)``."""
    level, family = provenance.level, provenance.family_level
    return level if family == level else f"{level} (family {family})"


# --- traces ---------------------------------------------------------------------------------------


def result_number(step: Step, unit_model: Model) -> tuple[int, int] | None:
    """What the rounding kept of the sum, as (n, unit); None where it is no number."""
    fmt = formats.get(step.format)
    kind, sign, significand, exponent = fmt.decode(step.result)
    if kind in (Kind.INF, Kind.NAN) or step.total is None:
        return None
    q = exponent - fmt.mantissa_bits
    rho = getattr(unit_model, "rho", None)
    if rho is not None and rho.mantissa_bits is not None and step.rounding == str(rho):
        q += fmt.mantissa_bits - rho.mantissa_bits
        significand >>= fmt.mantissa_bits - rho.mantissa_bits
    if q < step.total[1]:  # nothing was rounded: write the result as wide as the sum
        significand >>= step.total[1] - q
        q = step.total[1]
    return (-significand if sign else significand), q


def term_name(name: str) -> str:
    return name.replace("*", "·")


def runs(
    terms: Sequence[Aligned], halves: Sequence[str]
) -> Iterator[tuple[Aligned, int, Aligned, str]]:
    """Neighbours of one half that differ in name only, as (first, how many, last, half)."""
    pairs = zip(terms, halves, strict=True)
    for _, group in groupby(pairs, lambda p: (*p[0][1:], p[0].name == "c", p[1])):
        run = list(group)
        yield run[0][0], len(run), run[-1][0], run[0][1]
