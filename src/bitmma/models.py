"""The arithmetic models of matrix units: small frozen values, nothing else.

Each class names one way in which a unit computes ``d = sum(a*b) + c``; its fields are the
parameters. `bitmma.reference` says what they mean, in exact integers; `bitmma.engine` executes
them. Replace a field (``dataclasses.replace(model, F=13)``) and you have a hypothetical unit.

Source: Xie et al., "Bit-Accurate Modeling of GPU Matrix Multiply-Accumulate Units",
arXiv 2511.10909v2 (MICRO 2026), section 4; Lowered: read from the machine code of nvcc 13.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from bitmma import formats

__all__ = [
    "EFDPA",
    "FAMILIES",
    "FMA",
    "GSTFDPA",
    "GTRFDPA",
    "RNE_FP16",
    "RNE_FP32",
    "RNE_FP64",
    "RZ_E8M13",
    "RZ_FP32",
    "STFDPA",
    "TFDPA",
    "TRFDPA",
    "Conversion",
    "FTZMulAdd",
    "Lowered",
    "Model",
]

F_RANGE = (1, 64)
L_RANGE = (1, 4096)
EXPONENT_RANGE = (-100_000, 1_000)


def check_int(owner: object, field: str, low: int, high: float = float("inf")) -> None:
    """TypeError or ValueError unless a field is an int in that range."""
    value = getattr(owner, field)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{type(owner).__name__}: {field} must be an int, not {value!r}")
    if not low <= value <= high:
        accepted = f"{low} to {high}" if high < float("inf") else f"{low} or more"
        raise ValueError(f"{type(owner).__name__}: {field} must be {accepted}, not {value}")


@dataclass(frozen=True)
class Conversion:
    """rho, the one rounding that turns an exact sum into the output.

    A magnitude beyond the format gives Inf in every mode: units do not stop at the largest number.

    Attributes:
        mode: a rounding of `bitmma.formats.ROUNDINGS`.
        format: the output format, one with an infinity (f64, f32, f16, bf16).
        mantissa_bits: how many mantissa bits are kept; None keeps all (E8M13: f32 with 13).
    """

    mode: str
    format: str
    mantissa_bits: int | None = None

    def __post_init__(self) -> None:
        for field in ("mode", "format"):
            value = getattr(self, field)
            if not isinstance(value, str):
                raise TypeError(f"Conversion: {field} must be a string, not {value!r}")
        if self.mode not in formats.ROUNDINGS:
            raise ValueError(
                f"Conversion: mode is one of {', '.join(formats.ROUNDINGS)}, not {self.mode!r}"
            )
        if self.format not in ("f64", "f32", "f16", "bf16"):
            raise ValueError(f"Conversion: format is f64, f32, f16 or bf16, not {self.format!r}")
        if self.mantissa_bits is not None:
            check_int(self, "mantissa_bits", 1, formats.get(self.format).mantissa_bits)

    def __repr__(self) -> str:
        return _CONVERSION_NAMES.get(self) or (
            f"Conversion({self.mode!r}, {self.format!r}"
            + (f", {self.mantissa_bits})" if self.mantissa_bits is not None else ")")
        )

    def __str__(self) -> str:
        return repr(self).replace("_", "-") if self in _CONVERSION_NAMES else repr(self)


_CONVERSION_NAMES: dict[Conversion, str] = {}

RZ_FP32 = Conversion("RZ", "f32")
RZ_E8M13 = Conversion("RZ", "f32", 13)
RNE_FP16 = Conversion("RNE", "f16")
RNE_FP32 = Conversion("RNE", "f32")
RNE_FP64 = Conversion("RNE", "f64")
_CONVERSION_NAMES.update(
    {
        RZ_FP32: "RZ_FP32",
        RZ_E8M13: "RZ_E8M13",
        RNE_FP16: "RNE_FP16",
        RNE_FP32: "RNE_FP32",
        RNE_FP64: "RNE_FP64",
    }
)


def _conversion(rho: object, owner: str) -> Conversion:
    """A Conversion, or the name of one as models print it: "RNE-FP32", "RNE_FP32"."""
    if isinstance(rho, Conversion):
        return rho
    named = {name: conversion for conversion, name in _CONVERSION_NAMES.items()}
    message = f"{owner}: rho must be a Conversion or one of {', '.join(named)}, not {rho!r}"
    if not isinstance(rho, str):
        raise TypeError(message)
    name = rho.strip().upper().replace("-", "_")
    if name not in named:
        raise ValueError(message)
    return named[name]


@dataclass(frozen=True)
class Model:
    """What all models share. ``d`` is the output format, ``group`` the products of one step.

    Where a model has a ``rho``, the names of this module's conversions do as well as themselves:
    ``TFDPA(rho="RNE_FP32")`` and ``TFDPA(rho="RNE-FP32")`` hold `RNE_FP32`.
    """

    #: "ones": a NaN result is all ones with sign 0 (NVIDIA FDPA); "quiet": the payload is not
    #: known, the canonical quiet NaN is returned and only NaN-ness is claimed.
    nan: ClassVar[Literal["ones", "quiet"]] = "quiet"
    family: ClassVar[str]

    def __post_init__(self) -> None:
        if hasattr(self, "rho"):
            object.__setattr__(self, "rho", _conversion(self.rho, type(self).__name__))
        for field in ("L", "G"):
            if hasattr(self, field):
                check_int(self, field, *L_RANGE)
        for field in ("F", "F2"):
            if hasattr(self, field):
                check_int(self, field, *F_RANGE)
        if hasattr(self, "e_zero"):
            check_int(self, "e_zero", *EXPONENT_RANGE)

    @property
    def d(self) -> str:
        rho: Conversion = getattr(self, "rho", RNE_FP32)
        return rho.format

    @property
    def group(self) -> int:
        return int(getattr(self, "L", 1))


@dataclass(frozen=True)
class FMA(Model):
    """A chain of IEEE fused multiply-adds in the output's type: f64 everywhere, f32 on AMD."""

    family: ClassVar[str] = "FMA"
    rho: Conversion = RNE_FP32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rho not in (RNE_FP32, RNE_FP64):
            raise ValueError(f"FMA: rho is RNE_FP32 or RNE_FP64, not {self.rho}")


@dataclass(frozen=True)
class FTZMulAdd(Model):
    """CDNA2 f16 and bf16: FP32 multiply and add, RNE, subnormals flushed in, inside and out.

    Attributes:
        P: products added among themselves before they join d: 2, ``p0+p1``, or 4,
            ``(p0+p1)+(p2+p3)``.
    """

    family: ClassVar[str] = "FTZ-MulAdd"
    P: int = 4

    def __post_init__(self) -> None:
        check_int(self, "P", 2, 4)
        if self.P == 3:
            raise ValueError(f"FTZMulAdd: P is 2 or 4, not {self.P!r}")

    @property
    def group(self) -> int:
        return self.P


@dataclass(frozen=True)
class EFDPA(Model):
    """CDNA1: groups of L products and c are summed exactly and rounded once."""

    family: ClassVar[str] = "E-FDPA"
    L: int = 4
    rho: Conversion = RNE_FP32


@dataclass(frozen=True)
class TFDPA(Model):
    """Truncated fused dot product-add, most of NVIDIA.

    The non-zero products and c are cut (RZ) to multiples of ``2**(e_max - F)``, e_max being their
    largest exponent, summed exactly and converted by rho; a zero c counts with exponent e_zero.
    """

    nan: ClassVar[Literal["ones", "quiet"]] = "ones"
    family: ClassVar[str] = "T-FDPA"
    L: int = 16
    F: int = 25
    rho: Conversion = RZ_FP32
    e_zero: int = -133


@dataclass(frozen=True)
class STFDPA(Model):
    """T-FDPA with block scales (ue8m0) whose exponents are added to every product: MXFP8/6/4."""

    nan: ClassVar[Literal["ones", "quiet"]] = "ones"
    family: ClassVar[str] = "ST-FDPA"
    L: int = 32
    F: int = 25
    rho: Conversion = RZ_FP32
    e_zero: int = -133


@dataclass(frozen=True)
class GSTFDPA(Model):
    """K=64 block-scaled FP4: exact sums of G products, scaled, cut and fused, L products a step.

    A group counts with e_zero only if all its products are zero or a scale is zero.
    """

    nan: ClassVar[Literal["ones", "quiet"]] = "ones"
    family: ClassVar[str] = "GST-FDPA"
    L: int = 64
    G: int = 16
    F: int = 35
    rho: Conversion = RZ_FP32
    e_zero: int = -139

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.L % self.G:
            raise ValueError(f"GSTFDPA: G must divide L={self.L}, not {self.G}")


@dataclass(frozen=True)
class TRFDPA(Model):
    """CDNA3 xf32, f16, bf16: products cut (RZ) among themselves, then joined with c rounding down.

    Attributes:
        F: bits kept below the products' own e_max, and below the joint one for c.
        F2: bits kept of the joint sum, and one more of the products' sum.
    """

    family: ClassVar[str] = "TR-FDPA"
    L: int = 8
    F: int = 24
    F2: int = 31
    rho: Conversion = RNE_FP32


@dataclass(frozen=True)
class GTRFDPA(Model):
    """CDNA3 fp8, bf8: as TR-FDPA with even- and odd-indexed products cut and summed apart."""

    family: ClassVar[str] = "GTR-FDPA"
    L: int = 16
    F: int = 24
    F2: int = 31
    rho: Conversion = RNE_FP32


_PARTS = "Lowered: parts must be sets of ints such as ((0, 1), (2, 3))"


@dataclass(frozen=True)
class Lowered(Model):
    """FP8 ``mma.sync`` on sm_90 and sm_100, which the compiler makes of two f16 instructions.

    Every K products: t = 0; for each part, t = unit(the products whose index modulo the period is
    in the part, c=t); d = t + c, one IEEE addition (RNE) in the output's type. The period is the
    number of indices in all parts together.

    Attributes:
        K: products of one lowered instruction.
        unit: the T-FDPA unit that the parts run on.
        parts: index sets, e.g. ``((0, 1), (2, 3))``.
    """

    nan: ClassVar[Literal["ones", "quiet"]] = "ones"
    family: ClassVar[str] = "Lowered"
    K: int = 32
    unit: TFDPA = TFDPA(L=16)
    parts: tuple[tuple[int, ...], ...] = ((0, 1), (2, 3))

    def __post_init__(self) -> None:
        check_int(self, "K", *L_RANGE)
        if type(self.unit) is not TFDPA:
            raise TypeError(f"Lowered: unit must be a TFDPA, not {self.unit!r}")
        try:  # lists do as well: a model is hashable, whatever it was made of
            object.__setattr__(self, "parts", tuple(map(tuple, self.parts)))
        except TypeError:
            raise TypeError(f"{_PARTS}, not {self.parts!r}") from None
        order = [i for part in self.parts for i in part]
        if any(type(i) is not int for i in order):
            raise TypeError(f"{_PARTS}, not {self.parts!r}")
        if not order or sorted(order) != list(range(len(order))) or not all(self.parts):
            raise ValueError(
                f"Lowered: parts must split 0..n-1 into non-empty sets, not {self.parts!r}"
            )
        if self.K % len(order):
            raise ValueError(f"Lowered: K must be a multiple of the period {len(order)}")

    @property
    def d(self) -> str:
        return self.unit.rho.format

    @property
    def group(self) -> int:
        return self.K


#: All models. Others, and classes made of these, are nothing that the engines know.
FAMILIES: tuple[type[Model], ...] = (
    FMA, FTZMulAdd, EFDPA, TFDPA, STFDPA, GSTFDPA, TRFDPA, GTRFDPA, Lowered,
)  # fmt: skip


def check_model(model: object) -> None:
    """TypeError unless it is a value of one of this module's classes."""
    if type(model) not in FAMILIES:
        names = ", ".join(family.__name__ for family in FAMILIES)
        raise TypeError(f"model must be one of bitmma.models ({names}), not {model!r}")
