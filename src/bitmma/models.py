"""The arithmetic models of matrix units: small frozen values, nothing else.

Each class names one way in which a unit computes ``d = sum(a*b) + c``; its fields are the
parameters. `bitmma.reference` says what they mean, in exact integers; `bitmma.engine` executes
them. Replace a field (``dataclasses.replace(model, F=13)``) and you have a hypothetical unit.

The eight families and Lowered are the units of the catalogue. Two general models stand beside them
for what probing may find elsewhere: `FDPA`, one fused sum with every choice open, and `SumTree`, a
sum of any shape with a rounding at every node.

Source: Xie et al., "Bit-Accurate Modeling of GPU Matrix Multiply-Accumulate Units",
arXiv 2511.10909v2 (MICRO 2026), section 4; Lowered: read from the machine code of nvcc 13.0.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

from bitmma import formats

__all__ = [
    "EFDPA",
    "FAMILIES",
    "FDPA",
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
    "SumTree",
    "as_family",
    "as_fdpa",
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


def _check_choice(owner: object, field: str, choices: tuple[str, ...]) -> None:
    """ValueError unless a field is one of those words."""
    value = getattr(owner, field)
    if value not in choices:
        raise ValueError(
            f"{type(owner).__name__}: {field} is one of {', '.join(choices)}, not {value!r}"
        )


OVERFLOWS = ("inf", "saturate", "ieee")


@dataclass(frozen=True)
class Conversion:
    """rho, the one rounding that turns an exact sum into the output.

    Attributes:
        mode: a rounding of `bitmma.formats.ROUNDINGS`.
        format: the output format, one with an infinity (f64, f32, f16, bf16).
        mantissa_bits: how many mantissa bits are kept; None keeps all (E8M13: f32 with 13).
        overflow: what a magnitude beyond the largest number gives. "inf": Inf in every mode, as in
            all units of the catalogue; "saturate": the largest number; "ieee": the largest number
            where the mode rounds toward it (RZ, RD of positive and RU of negative numbers), else
            Inf. A sum with an Inf among its terms is that Inf whatever this says.
    """

    mode: str
    format: str
    mantissa_bits: int | None = None
    overflow: str = "inf"

    def __post_init__(self) -> None:
        for field in ("mode", "format", "overflow"):
            value = getattr(self, field)
            if not isinstance(value, str):
                raise TypeError(f"Conversion: {field} must be a string, not {value!r}")
        if self.mode not in formats.ROUNDINGS:
            raise ValueError(
                f"Conversion: mode is one of {', '.join(formats.ROUNDINGS)}, not {self.mode!r}"
            )
        if self.format not in ("f64", "f32", "f16", "bf16"):
            raise ValueError(f"Conversion: format is f64, f32, f16 or bf16, not {self.format!r}")
        _check_choice(self, "overflow", OVERFLOWS)
        if self.mantissa_bits is not None:
            check_int(self, "mantissa_bits", 1, formats.get(self.format).mantissa_bits)

    def __repr__(self) -> str:
        named = _CONVERSION_NAMES.get(self)
        if named:
            return named
        bits = f", {self.mantissa_bits}" if self.mantissa_bits is not None else ""
        overflow = f", overflow={self.overflow!r}" if self.overflow != "inf" else ""
        return f"Conversion({self.mode!r}, {self.format!r}{bits}{overflow})"

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


def _conversion(rho: object, owner: str, field: str = "rho") -> Conversion:
    """A Conversion, or the name of one as models print it: "RNE-FP32", "RNE_FP32"."""
    if isinstance(rho, Conversion):
        return rho
    named = {name: conversion for conversion, name in _CONVERSION_NAMES.items()}
    message = f"{owner}: {field} must be a Conversion or one of {', '.join(named)}, not {rho!r}"
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


# --- general models -------------------------------------------------------------------------------

#: Bits that an FDPA keeps: one more than F_RANGE, for TR-FDPA's F2 + 1.
_KEPT_RANGE = (1, F_RANGE[1] + 1)
#: The range of every field of an FDPA that may be None.
_FDPA_RANGES = (
    *((name, _KEPT_RANGE) for name in ("F", "F_c", "F_groups", "F2", "F_sum")),
    *((name, EXPONENT_RANGE) for name in ("e_zero", "e_sum")),
    ("drop_c", (0, 10_000)),
    ("product_overflow", (-10_000, 10_000)),
)
_ROUNDINGS = tuple(formats.ROUNDINGS)
FLUSHES = ("no", "zero", "sign")
ZERO_RULES = ("plus", "signed", "ieee")
TREE_ZERO_RULES = (*ZERO_RULES, "start")
#: When a result is tiny, from the fewest such results to the most.
TINY_RULES = ("stored", "after", "before")
_Flush = Literal["no", "zero", "sign"]
_Tiny = Literal["stored", "after", "before"]
_Zero = Literal["plus", "signed", "ieee"]
_Nan = Literal["ones", "quiet"]


@dataclass(frozen=True, repr=False)
class _General(Model):
    """What the general models share: checks of common fields, and a repr without the defaults."""

    def __repr__(self) -> str:
        shown = [f"{f.name}={getattr(self, f.name)!r}" for f in self.chosen()]
        return f"{type(self).__name__}({', '.join(shown)})"

    def chosen(self) -> list[dataclasses.Field[Any]]:
        """The dataclass fields that are not at their defaults, in the order of the constructor."""
        found = [f for f in fields(self) if getattr(self, f.name) != f.default]
        return sorted(found, key=lambda f: bool(f.kw_only))

    def _check_common(self) -> None:
        owner = type(self).__name__
        for field in ("rho", "rho_products", "rho_product", "out", "rho2"):
            value = getattr(self, field, None)
            if field == "rho" or not (value is None or isinstance(value, Conversion)):
                object.__setattr__(self, field, _conversion(value, owner, field))
        for field in ("flush_in", "flush_c", "flush_out"):
            _check_choice(self, field, FLUSHES)
        _check_choice(self, "zero", TREE_ZERO_RULES if isinstance(self, SumTree) else ZERO_RULES)
        _check_choice(self, "nan", ("ones", "quiet"))
        _check_choice(self, "tiny", TINY_RULES)


@dataclass(frozen=True, repr=False)
class FDPA(_General):
    """A fused dot product-add with every choice open; by default T-FDPA as on Hopper (f16).

    A step takes L products and c. The exponent of a product is the sum of its operands' exponents
    (and of its scales', where there are block scales, which multiply it). Zero products take no
    part. "Cut at e - F by a rounding" is: rounded to a multiple of ``2**(e - F)``; with F None,
    left as it is. Sums of what was cut are exact.

    1. Products are cut at e_max - F by ``cut``, e_max being the largest exponent of the step: of
       the products and, if c is early, of c. With ``groups`` > 1, products whose index within the
       step is the same modulo ``groups`` have an e_max of their own, without c; then their sums are
       cut at e - F_groups by ``cut_groups``, e being the largest of the groups' and, if c is early,
       of c's exponents.
    2. A late c only: the sum T of all products is rounded by ``rho_products``, if there is one,
       and then has the exponent of the number it has become (none if it is 0); without, T has the
       products' largest exponent. The joint E is the larger of T's and c's exponents, and T is cut
       at E - F2 by ``cut2``.
    3. c is cut by ``cut_c`` at F_c below e_max, or E if it is late, and added.
    4. The sum is cut at e - F_sum by ``cut_sum``, e being its own exponent, floor(log2 |sum|), or
       ``e_sum`` if that is larger; then converted by ``rho``.

    NaN in is NaN out, so are Inf times 0 and infinities of both signs; else an Inf is the result.

    Attributes:
        L: products of a step.
        F, cut: bits kept of products below e_max, 1 to 65 or None, and the rounding of that cut.
        c: "early", aligned with the products; "late", joined to their sum.
        F_c, cut_c: the same for c.
        e_zero: the exponent of a zero c; None: it takes no part.
        drop_c: a c with an exponent more than so many below e_max (E) counts as 0, uncut; or None.
        renormalise: products get the exponent floor(log2 |product|) instead.
        groups, F_groups, cut_groups: see 1 (CDNA3's fp8: even and odd products, 2).
        F2, cut2, rho_products: see 2; only for a late c.
        F_sum, cut_sum, e_sum: see 4; ``e_sum`` None sets no limit.
        product_overflow: finite products of magnitude ``2**product_overflow`` or more count as Inf.
        rho: the conversion to the output.
        flush_in, flush_c, flush_out: what becomes of subnormal a and b; of subnormal c, as it
            enters a step; and of subnormal results of ``rho`` and ``rho_products``. "no": nothing;
            "zero": they, and -0 likewise, become +0; "sign": zeros of their sign (+0 in FNUZ).
        order: "chain": steps in increasing k, each result the next c. "pairwise": the steps' sums,
            taken without c (though an e_zero still counts among the exponents), are added in pairs
            of neighbours, and so are the results until one is left, each addition exact and
            converted by ``rho``; an odd one at the end goes on as it is (5: ((0+1)+(2+3))+4). Then
            c is added likewise. K is that of one instruction: longer products are chains of them.
        zero: the sign of zero results. "plus": never -0; "signed": an exactly zero sum is +0, a
            negative one that rounds to zero -0; "ieee": the same, but -0 also for a sum of nothing
            but -0, and, where rho rounds down, for all zero sums but those of nothing but +0.
        nan: as `Model.nan`.
        tiny: which results ``flush_out`` takes for subnormal. "stored": those that are, once they
            are rounded to the multiples of the smallest subnormal number. "after" and "before" are
            the two ways of IEEE 754-2019, section 7.5, to detect an underflow: what is below the
            smallest normal number when rounded as if exponents had no end (x86), or not rounded at
            all (Arm). So of the f32 sums 2^-126 - 2^-150 and 2^-126 - 2^-151, rounded to nearest,
            both are 2^-126, "after" flushes the first, "before" both.
    """

    family: ClassVar[str] = "FDPA"
    L: int = 16
    F: int | None = 25
    cut: str = "RZ"
    c: Literal["early", "late"] = "early"
    F_c: int | None = 25
    cut_c: str = "RZ"
    e_zero: int | None = -133
    drop_c: int | None = None
    renormalise: bool = False
    groups: int = 1
    F_groups: int | None = None
    cut_groups: str = "RZ"
    F2: int | None = None
    cut2: str = "RZ"
    rho_products: Conversion | None = None
    F_sum: int | None = None
    cut_sum: str = "RZ"
    e_sum: int | None = None
    product_overflow: int | None = None
    rho: Conversion = RZ_FP32
    flush_in: _Flush = "no"
    flush_c: _Flush = "no"
    flush_out: _Flush = "no"
    order: Literal["chain", "pairwise"] = "chain"
    zero: _Zero = "plus"
    nan: _Nan = dataclasses.field(default="ones", kw_only=True)  # type: ignore[misc]
    tiny: _Tiny = dataclasses.field(default="stored", kw_only=True)

    def __post_init__(self) -> None:
        check_int(self, "L", *L_RANGE)
        check_int(self, "groups", *L_RANGE)
        for field, limits in _FDPA_RANGES:
            if getattr(self, field) is not None:
                check_int(self, field, *limits)
        for field in ("cut", "cut_c", "cut_groups", "cut2", "cut_sum"):
            _check_choice(self, field, _ROUNDINGS)
        _check_choice(self, "c", ("early", "late"))
        _check_choice(self, "order", ("chain", "pairwise"))
        if not isinstance(self.renormalise, bool):
            raise TypeError(f"FDPA: renormalise must be a bool, not {self.renormalise!r}")
        self._check_common()
        for field in ("F2", "rho_products"):
            if self.c == "early" and getattr(self, field) is not None:
                raise ValueError(
                    f"FDPA: {field} is for a late c, not with c='early': {getattr(self, field)!r}"
                )


#: Nested tuples and lists of 0..K-1 and "c".
Tree = Any


@dataclass(frozen=True, repr=False)
class SumTree(_General):
    """A sum of products in any order, with a rounding at every node: BLAS kernels, NumPy, PyTorch.

    A leaf i is the product a[i]*b[i], exact; "c" is the addend. A node is the sum of its children,
    exact, rounded once by ``rho``. So ``(x, 3)`` is a fused multiply-add, ``(x, y)`` of two nodes
    an IEEE addition, ``(3,)`` a rounded product, ``(0, 1, 2, 3, "c")`` a fused sum; and with
    ``rho_product`` every product is rounded before anything else. Specials are IEEE's at every
    node, and by default so are signs of zero. It has exactly K products, each of 0..K-1 once; c
    need not occur, and is then ignored.

    A node in brackets, ``[x y]``, is rounded by ``rho2`` instead. So ``[[(0 1)] (2 3)]`` adds
    blocks of two products to an accumulator of another format, and ``[(x y)]`` rounds twice.

    Examples:
        >>> import functools
        >>> functools.reduce(lambda t, i: (t, i), range(4), "c")  # a chain of four FMAs
        (((('c', 0), 1), 2), 3)
        >>> SumTree((((0,), 2), ((1,), 3)))  # two accumulators with FMAs, then one addition
        SumTree(tree='(((0) 2) ((1) 3))')
        >>> SumTree("[([(0 1)] (2 3))]", rho2="RNE_FP16").d  # a float16 accumulator
        'f16'

    Attributes:
        tree: nested tuples or lists of leaves, or the same as text without commas, which is how it
            is kept: of any depth, at most 4096 leaves. Brackets can be written in text only.
        rho: the rounding of every node, but of those in brackets.
        rho_product: the rounding of every product, or None.
        out: a second rounding, of the root, to the output; None: there is none.
        flush_in, flush_c, flush_out, zero, nan, tiny: as for `FDPA`; ``flush_out`` is for the
            results of all roundings, and ``zero`` may also be "start": IEEE's, but where a node has
            one child, as an accumulator's first product, it is added to +0, so that -0 becomes +0
            there.
        rho2: the rounding of the nodes in brackets; None where there are none.
        flush_last: ``flush_out`` for the results of ``out``; None: the same.
    """

    family: ClassVar[str] = "SumTree"
    tree: Tree
    rho: Conversion = RNE_FP32
    rho_product: Conversion | None = None
    out: Conversion | None = None
    flush_in: _Flush = "no"
    flush_c: _Flush = "no"
    flush_out: _Flush = "no"
    zero: Literal["plus", "signed", "ieee", "start"] = "ieee"
    rho2: Conversion | None = None
    flush_last: _Flush | None = None
    nan: _Nan = dataclasses.field(default="quiet", kw_only=True)  # type: ignore[misc]
    tiny: _Tiny = dataclasses.field(default="stored", kw_only=True)

    def __post_init__(self) -> None:
        # As text: hashed, compared and pickled without recursion, however deep.
        object.__setattr__(self, "tree", _tree_text(self.tree))
        _check_leaves(self.tree)
        self._check_common()
        if ("[" in self.tree) != (self.rho2 is not None):
            has = "has some" if "[" in self.tree else "has none"
            raise ValueError(
                f"SumTree: rho2 rounds the nodes in [ ], and the tree {has}: rho2={self.rho2!r}"
            )
        if self.flush_last is not None:
            _check_choice(self, "flush_last", FLUSHES)
            if self.out is None:
                raise ValueError("SumTree: flush_last is for the results of out, and there is none")

    @property
    def K(self) -> int:
        """How many products it sums."""
        return _tree_nodes(self.tree)[0]

    @property
    def nodes(self) -> tuple[tuple[int, ...], ...]:
        """The children of every node, each node after its children and the root last.

        A child is the index of a product, K for c, or K + 1 + j for node j.
        """
        return _tree_nodes(self.tree)[1]

    @property
    def roundings(self) -> tuple[Conversion, ...]:
        """The rounding of every node, in the order of ``nodes``."""
        return tuple((self.rho2 or self.rho) if x else self.rho for x in _tree_nodes(self.tree)[2])

    @property
    def d(self) -> str:
        return (self.out or self.roundings[-1]).format

    @property
    def group(self) -> int:
        return self.K


_TREE = "SumTree: tree"
_NODES_MAX = 4 * L_RANGE[1]


def _tree_tokens(tree: Tree) -> Iterator[str]:
    """Parentheses, brackets and leaves in the order in which they are written."""
    if isinstance(tree, str):
        yield from re.findall(r"[()\[\]]|[^()\[\]\s]+", tree)
        return
    open_nodes: list[Iterator[Any]] = [iter((tree,))]
    while open_nodes:
        item = next(open_nodes[-1], _END)
        if item is _END:
            open_nodes.pop()
            if open_nodes:
                yield ")"
        elif isinstance(item, tuple | list):
            yield "("
            open_nodes.append(iter(item))
        elif item == "c" or (isinstance(item, int) and not isinstance(item, bool)):
            yield str(item)
        else:
            raise TypeError(f'{_TREE} is of tuples, ints and "c", not {item!r}')


_END = object()


def _tree_text(tree: Tree) -> str:
    """The tree as text: leaves and nodes apart by one space, ``((c 0) (1))``."""
    if not isinstance(tree, str | tuple | list):
        raise TypeError(f"{_TREE} must be nested tuples or text, not {tree!r}")
    # A list can hold itself: what is longer than any tree is read no further.
    tokens = tuple(itertools.islice(_tree_tokens(tree), _NODES_MAX + 1))
    return _text_of(tokens)


@functools.lru_cache(256)
def _text_of(tokens: tuple[str, ...]) -> str:
    if len(tokens) > _NODES_MAX:
        raise ValueError(f"{_TREE} has more than {_NODES_MAX} leaves and parentheses")
    text = re.sub(r"([(\[]) | (?=[)\]])", r"\1", " ".join(tokens))
    unmatched = f"{_TREE} must be one node, its parentheses matched: {_shortened(text)}"
    open_nodes: list[str] = []
    for token, following in itertools.zip_longest(tokens, tokens[1:]):
        if not re.fullmatch(r"[()\[\]c]|0|[1-9][0-9]{0,5}", token, re.ASCII):
            raise ValueError(f"{_TREE} has {token!r}, which is neither a product, nor c, nor ( )")
        if token in _CLOSING:
            open_nodes.append(_CLOSING[token])
            if following == _CLOSING[token]:
                raise ValueError(f"{_TREE} has a node of nothing: {_shortened(text)}")
        elif token in ")]" and (not open_nodes or open_nodes.pop() != token):
            raise ValueError(unmatched)
        if not open_nodes and (following is not None or token not in ")]"):
            raise ValueError(unmatched)
    if not tokens or open_nodes:
        raise ValueError(unmatched)
    return text


_CLOSING = {"(": ")", "[": "]"}


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"


@functools.lru_cache(256)
def _check_leaves(text: str) -> None:
    leaves = re.findall(r"[0-9]+|c", text)
    products = sorted(int(x) for x in leaves if x != "c")
    if leaves.count("c") > 1:
        raise ValueError(f"{_TREE} has c {leaves.count('c')} times: {_shortened(text)}")
    if not products or products != list(range(len(products))):
        raise ValueError(f"{_TREE} must hold each of 0..K-1 once: {_shortened(text)}")
    if len(products) > L_RANGE[1]:
        raise ValueError(f"{_TREE} has {len(products)} products; at most {L_RANGE[1]} are accepted")


@functools.lru_cache(1024)
def _tree_nodes(text: str) -> tuple[int, tuple[tuple[int, ...], ...], tuple[bool, ...]]:
    """How many products, the children of every node, and whether it is in brackets."""
    tokens = re.findall(r"[()\[\]c]|[0-9]+", text)
    K = sum(token.isdecimal() for token in tokens)
    nodes: list[tuple[int, ...]] = []
    bracketed: list[bool] = []
    open_nodes: list[list[int]] = [[]]
    for token in tokens:
        if token in _CLOSING:
            open_nodes.append([])
        elif token in ")]":
            nodes.append(tuple(open_nodes.pop()))
            bracketed.append(token == "]")
            open_nodes[-1].append(K + len(nodes))
        else:
            open_nodes[-1].append(K if token == "c" else int(token))
    return K, tuple(nodes), tuple(bracketed)


#: All models. Others, and classes made of these, are nothing that the engines know.
FAMILIES: tuple[type[Model], ...] = (
    FMA, FTZMulAdd, EFDPA, TFDPA, STFDPA, GSTFDPA, TRFDPA, GTRFDPA, Lowered, FDPA, SumTree,
)  # fmt: skip


def check_model(model: object) -> None:
    """TypeError unless it is a value of one of this module's classes."""
    if type(model) not in FAMILIES:
        names = ", ".join(family.__name__ for family in FAMILIES)
        raise TypeError(f"model must be one of bitmma.models ({names}), not {model!r}")


#: The most products of one instruction whose steps are added in pairs.
PAIRWISE_MAX = 1 << 20


def check_k(model: Model, k: int, name: str = "k") -> None:
    """ValueError unless an instruction of k products can run on the model."""
    if isinstance(model, FDPA) and model.order == "pairwise" and k > PAIRWISE_MAX:
        raise ValueError(f"{name} must be at most {PAIRWISE_MAX} in pairwise order, not {k}")
    if isinstance(model, SumTree) and k != model.K:
        raise ValueError(f"{name} must be {model.K}, the products of the SumTree, not {k}")


# --- families as FDPA -----------------------------------------------------------------------------


def as_fdpa(model: Model) -> FDPA | None:
    """The same arithmetic, bit for bit, as an `FDPA`; None for models that are none.

    Those are FTZ-MulAdd, GST-FDPA, Lowered and `SumTree`.
    """
    match model:
        case FDPA():
            return model
        case TFDPA() | STFDPA():
            F, rho, e_zero = model.F, model.rho, model.e_zero
            return FDPA(model.L, F, F_c=F, rho=rho, e_zero=e_zero)
        case EFDPA() | FMA():
            zero: _Zero = "ieee" if isinstance(model, FMA) else "signed"
            return FDPA(
                model.group, F=None, F_c=None, e_zero=None, rho=model.rho, zero=zero, nan="quiet"
            )
        case TRFDPA() | GTRFDPA():
            F, F2 = model.F, model.F2
            found = FDPA(
                model.L, F, c="late", F_c=F, cut_c="RD", e_zero=-126, F2=F2 + 1, cut2="RD",
                F_sum=F2, cut_sum="RD", e_sum=-126, rho=model.rho, zero="signed", nan="quiet",
            )  # fmt: skip
            if isinstance(model, TRFDPA):
                return replace(found, product_overflow=128)
            return replace(found, groups=2, F_groups=F, cut_groups="RD", drop_c=F + 1)
    return None


def as_family(model: FDPA) -> Model | None:
    """The inverse of `as_fdpa`: the family member that is the same, or None.

    T-FDPA stands for ST-FDPA too, which differs in nothing but that it has scales.
    """
    common = (model.order, model.renormalise, model.flush_in, model.flush_c, model.flush_out)
    if common != ("chain", False, "no", "no", "no"):  # as in all of them
        return None
    plain = _plain(model)
    if plain.cut != "RZ":
        return None
    candidates: list[Model] = []
    try:
        if model.F is None:
            candidates.append(EFDPA(model.L, model.rho))
            if model.rho in (RNE_FP32, RNE_FP64):
                candidates.append(FMA(model.rho))
        elif model.c == "early" and model.e_zero is not None:
            candidates.append(TFDPA(model.L, model.F, model.rho, model.e_zero))
        elif model.F_sum is not None and plain.cut2 == plain.cut_sum == "RD":
            candidates.append(TRFDPA(model.L, model.F, model.F_sum, model.rho))
            candidates.append(GTRFDPA(model.L, model.F, model.F_sum, model.rho))
    except ValueError:  # a bit more than F_RANGE
        return None
    return next((x for x in candidates if as_fdpa(x) == plain), None)


def _plain(model: FDPA) -> FDPA:
    """The same with the fields that do not matter, given the others, at their defaults."""
    unused = {
        "cut": model.F is None,
        "cut_c": model.F_c is None,
        "F_groups": model.groups == 1,
        "cut_groups": model.groups == 1 or model.F_groups is None,
        "cut2": model.F2 is None,
        "cut_sum": model.F_sum is None,
        "e_sum": model.F_sum is None,
        "tiny": model.flush_out == "no",
    }
    changes = {
        name: default
        for name, no in unused.items()
        if no and getattr(model, name) != (default := _FDPA_DEFAULTS[name])
    }
    return replace(model, **changes) if changes else model


_FDPA_DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(FDPA)}
