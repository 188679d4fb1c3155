"""A unit with its causes of error switched off, one after the other, until nothing is wrong.

====================  ==========================================================================
switched off          what is left, family by family
====================  ==========================================================================
1 ``input``           Operands enter as they were given. FTZ-MulAdd: subnormals of A, B and C are
                      not flushed (the same unit on operands of a wider format, in which they are
                      normal numbers). tf32, xf32: the words' low 13 bits are not dropped (the same
                      unit on f32 operands). All others take operands as they are.
2 ``accumulation``    Accumulators keep what a group gave them, and only the last is rounded by
                      rho. T-, ST-, GST-, TR- and GTR-FDPA: rho is RNE-FP64 within the chain, and so
                      for the unit in Lowered and all sums of a schedule, whose C is f64. FMA,
                      E-FDPA and FTZ-MulAdd, which lose nothing but by rounding sums: one exact sum
                      of all, rounded once.
3 ``alignment``       Nothing is cut when terms are aligned: one exact sum of all, rounded once by
                      the unit's last rounding. (FMA, E-FDPA and FTZ-MulAdd align nothing.)
4 ``rounding``        That last rounding is left out: the exact result.
====================  ==========================================================================

The last rounding is rho; that of Lowered, FTZ-MulAdd and schedules is RNE to the output's format.

An output's error is so the sum of up to four parts, each the change that one switch makes: nothing
is left over and nothing counts twice. The order matters. An accumulator that was already cut when
it was aligned has little left for rho to round, so accumulation goes first: what is put down to it
is what only it does. Parts can cancel, too: on CDNA3, rounding accumulators to FP32 spares them
most of the cut downward that comes next.

Models other than these have no switches, and their errors are not split.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bitmma import formats
from bitmma.analysis.exact import Exact, exact_product
from bitmma.engine import operands
from bitmma.formats import Format
from bitmma.gemm import matmul
from bitmma.models import (
    EFDPA,
    FMA,
    GSTFDPA,
    GTRFDPA,
    RNE_FP32,
    RNE_FP64,
    STFDPA,
    TFDPA,
    TRFDPA,
    Conversion,
    FTZMulAdd,
    Lowered,
    Model,
)
from bitmma.schedule import Schedule
from bitmma.unit import Instruction, resolve

__all__ = [
    "CAUSES",
    "Product",
    "Stage",
    "last_rounding",
    "peel",
    "product",
    "run",
    "spread",
    "to_codes",
    "words",
]

Floats = npt.NDArray[np.float64]

#: In the order in which they are switched off.
CAUSES = ("input", "accumulation", "alignment", "rounding")


@dataclass(frozen=True, eq=False)
class Product:
    """One product: the operands as the unit gets them, as numbers, and the exact result.

    Attributes:
        instr, schedule: who computes it.
        codes: A, B, C, scale_a, scale_b as arrays of codes, None where not given.
        A, B, C: the numbers given, in float64, block scales multiplied in; Inf and NaN as 0.
        special: where an output is decided by Inf or NaN among its operands.
        exact: A B + C.
        d: what the unit gives.
    """

    instr: Instruction
    schedule: Any
    codes: tuple[Any, ...]
    A: Floats
    B: Floats
    C: Floats | None
    special: npt.NDArray[np.bool_]
    exact: Exact
    d: Floats

    @property
    def d_format(self) -> str:
        return outside(self.instr, self.schedule) or self.instr.d

    @property
    def K(self) -> int:
        return int(self.A.shape[-1])


def product(
    instruction: Any, A: Any, B: Any, C: Any, scale_a: Any, scale_b: Any, schedule: Any
) -> Product:
    """The product on the unit and exactly; TypeError or ValueError as `bitmma.matmul`."""
    instr = resolve(instruction)
    c_format = outside(instr, schedule) or instr.c
    codes = to_codes(instr, A, B, C, scale_a, scale_b, c_format=c_format)
    d = run(instr, codes, schedule)
    a, b = words(codes[0], instr.a), words(codes[1], instr.b)
    c = None if codes[2] is None else words(codes[2], c_format)
    if instr.scale and instr.block:
        a = a * spread(words(codes[3], instr.scale), instr.block, -1, a.shape[-1])
        b = b * spread(words(codes[4], instr.scale), instr.block, -2, b.shape[-2])
    rows, columns = np.asarray(np.isfinite(a).all(-1)), np.asarray(np.isfinite(b).all(-2))
    special = ~(rows[..., :, None] & columns[..., None, :])
    special = np.broadcast_to(special if c is None else special | ~np.isfinite(c), d.shape)
    a, b = (np.where(np.isfinite(x), x, 0.0) for x in (a, b))
    c = None if c is None else np.where(np.isfinite(c), c, 0.0)
    exact = exact_product(a, b, c)
    exact = Exact(tuple(np.broadcast_to(x, d.shape) for x in exact.parts))
    return Product(instr, schedule, codes, a, b, c, special, exact, d)


def run(instr: Instruction, codes: tuple[Any, ...], schedule: Any) -> Floats:
    """What `bitmma.matmul` gives, as float64; ValueError where that is nothing."""
    A, B, C, scale_a, scale_b = codes
    more = {} if schedule is None else {"schedule": schedule}
    d = matmul(A, B, C, instruction=instr, scale_a=scale_a, scale_b=scale_b, **more)
    if not d.size:
        raise ValueError(f"there is nothing to analyse: the product is {d.shape}")
    return np.asarray(d, np.float64)


def outside(instr: Instruction, schedule: Any) -> str | None:
    """The format of a schedule's own sums, which C joins and D has; None for one chain."""
    if schedule is not None and not isinstance(schedule, Schedule):
        raise TypeError(f"schedule must be a bitmma.Schedule or None, not {schedule!r}")
    if schedule is None or schedule.is_chain:
        return None
    return "f64" if instr.d == "f64" else "f32"


def to_codes(instr: Instruction, *given: Any, c_format: str | None = None) -> tuple[Any, ...]:
    """A, B, C, scale_a and scale_b as arrays of codes, None where there are none.

    Raises:
        TypeError: not arrays of the instruction's formats; kinds that are mixed.
    """
    names = ("A", "B", "C", "scale_a", "scale_b")
    wanted = (instr.a, instr.b, c_format or instr.c, instr.scale, instr.scale)
    codes: list[Any] = []
    kinds = {}
    for name, x, fmt in zip(names, given, wanted, strict=True):
        if x is None and name in ("A", "B"):
            raise TypeError(f"{name} must be an array of {fmt}, not None")
        if x is None or fmt is None:
            codes.append(x)  # what is superfluous is for `bitmma.matmul` to complain about
            continue
        k_axis = -2 if name in ("B", "scale_b") else -1
        found, kinds[name] = operands.to_codes(x, fmt, name, k_axis)
        codes.append(found)
    operands.common_kind(kinds)
    return tuple(codes)


def words(codes: Any, fmt: str) -> Floats:
    """Numbers in float64; of tf32 and xf32 the whole word, with what the unit will drop."""
    return formats.decode(codes, "f32" if formats.get(fmt).dropped_bits else fmt)


def spread(scale: Floats, block: int, axis: int, K: int) -> Floats:
    return np.take(np.repeat(scale, block, axis), range(K), axis)


# --- the switches ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Stage:
    """What the unit gives once ``cause``, too, is switched off; ``unit`` says in words what it is.

    ``d`` is None for the last, whose result is the exact one.
    """

    cause: str
    unit: str
    d: Floats | None


def peel(p: Product) -> list[Stage]:
    """The unit with one cause after the other switched off; without those that it does not have.

    Empty for a model that has no switches.
    """
    stages: list[Stage] = []
    if type(p.instr.model) not in _SWITCHES:
        return stages
    instr, (a, b, _, *scales) = p.instr, p.codes
    unflushed = _unflushed(p)
    if unflushed is not None:
        instr = unflushed
        text = f"operands in {instr.a}" if instr.a != p.instr.a else "C in f64"
        a, b = _encoded(p.A, instr.a), _encoded(p.B, instr.b)
        d = run(instr, (a, b, _addend(p, instr), None, None), p.schedule)
        stages.append(Stage("input", text, d))
    rho = last_rounding(p.instr.model)
    if outside(p.instr, p.schedule):
        rho = Conversion("RNE", p.d_format)
    one_sum = p.exact.rounded(rho)
    wide = _SWITCHES[type(instr.model)](instr.model)
    if wide is None:
        stages.append(Stage("accumulation", f"one exact sum, {rho}", one_sum))
    else:
        instr = dataclasses.replace(instr, model=wide, c="f64", d="f64")
        d = run(instr, (a, b, _addend(p, instr), *scales), p.schedule)
        rounded = Exact((np.where(np.isfinite(d), d, 0.0),)).rounded(rho)
        d = np.where(np.isfinite(d), rounded, d)
        stages.append(Stage("accumulation", f"{wide!r}, then {rho}", d))
        stages.append(Stage("alignment", f"one exact sum, {rho}", one_sum))
    stages.append(Stage("rounding", "the exact result", None))
    return stages


def _addend(p: Product, instr: Instruction) -> Any:
    """C in the format that this unit takes."""
    return None if p.C is None else _encoded(p.C, outside(instr, p.schedule) or instr.c)


def _encoded(x: Floats, fmt: str) -> Any:
    """The codes of numbers that a format holds."""
    return formats.quantize(x, fmt).view(formats.get(fmt).code_dtype)


def _unflushed(p: Product) -> Instruction | None:
    """The unit on operands of a wider format, used as they are; None if all are so anyway."""
    instr = p.instr
    if isinstance(instr.model, FTZMulAdd):
        changes: dict[str, Any] = {"a": _wider(instr.a), "b": _wider(instr.b)}
        if p.C is not None and p.schedule is None and _has_subnormals(p.C, formats.get(instr.c)):
            # A chain whose first C has a format of its own: one instruction of all K, which is
            # the same arithmetic.
            changes |= {"c": _wider(instr.c), "k": -(-max(p.K, 1) // instr.k) * instr.k}
        return dataclasses.replace(instr, **changes)
    if formats.get(instr.a).dropped_bits or formats.get(instr.b).dropped_bits:
        return dataclasses.replace(instr, a="f32", b="f32")
    return None


def _wider(name: str) -> str:
    """The next format in which the subnormals of this one are normal."""
    return "f32" if formats.get(name).exponent_bits < 8 else "f64"


def _has_subnormals(x: Floats, fmt: Format) -> bool:
    return bool(((x != 0) & (np.abs(x) < 2.0**fmt.min_exponent)).any())


def _wide(model: Any) -> Model:
    found: Model = dataclasses.replace(model, rho=RNE_FP64)
    return found


def _wide_unit(model: Any) -> Model:
    return Lowered(model.K, dataclasses.replace(model.unit, rho=RNE_FP64), model.parts)


def _nothing(model: Any) -> None:
    del model


#: The unit with wide accumulators; None where these are all that is wrong with it.
_SWITCHES: Mapping[type[Model], Callable[[Any], Model | None]] = {
    FMA: _nothing,
    FTZMulAdd: _nothing,
    EFDPA: _nothing,
    TFDPA: _wide,
    STFDPA: _wide,
    GSTFDPA: _wide,
    TRFDPA: _wide,
    GTRFDPA: _wide,
    Lowered: _wide_unit,
}


def last_rounding(model: Model) -> Conversion:
    """The one rounding with which an output leaves the unit."""
    if isinstance(model, Lowered):
        return Conversion("RNE", model.d)
    rho: Conversion = getattr(model, "rho", RNE_FP32)
    return rho
