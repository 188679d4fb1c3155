"""A unit with its causes of error switched off, one after the other, until nothing is wrong.

====================  ==========================================================================
switched off          what is left, family by family
====================  ==========================================================================
1 ``input``           Operands enter as they were given. FTZ-MulAdd: subnormals of A, B and C are
                      not flushed (the same unit on operands of a wider format, in which they are
                      normal numbers). tf32, xf32: the words' low 13 bits are not dropped (the same
                      unit on f32 operands). All others take operands as they are.
2 ``alignment``       Every group of L products and the accumulator is summed exactly and rounded
                      by the unit's own rho: T-FDPA(L, F, rho), ST-FDPA, GST-FDPA, TR-FDPA and
                      GTR-FDPA become E-FDPA(L, rho), block scales multiplied into the operands.
                      Lowered: its T-FDPA unit with F = 64, the widest there is. FMA, FTZ-MulAdd
                      and E-FDPA align nothing.
3 ``accumulation``    All K products and C (and, with a schedule, its additions outside) are one
                      exact sum, rounded once, at the end, by rho (Lowered, FTZ-MulAdd, schedules:
                      RNE to the output's format): no rounding between groups.
4 ``rounding``        That last rounding is left out: the exact result.
====================  ==========================================================================

An output's error is so the sum of four parts, each the change that one switch makes: nothing is
left over and nothing counts twice. The order matters (what is switched off first gets the
interactions), and this is the order in which things happen inside a unit.
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
    GSTFDPA,
    GTRFDPA,
    RNE_FP32,
    STFDPA,
    TFDPA,
    TRFDPA,
    Conversion,
    FTZMulAdd,
    Lowered,
    Model,
)
from bitmma.unit import Instruction
from bitmma.unit import instruction as _find

__all__ = [
    "CAUSES",
    "Product",
    "Stage",
    "last_rounding",
    "peel",
    "product",
    "resolve",
    "run",
    "spread",
    "to_codes",
    "words",
]

Floats = npt.NDArray[np.float64]

#: In the order in which they are switched off.
CAUSES = ("input", "alignment", "accumulation", "rounding")


def resolve(instruction: Any, name: str = "instruction") -> Instruction:
    """An Instruction, or GPU and name."""
    if isinstance(instruction, tuple) and len(instruction) == 2:
        instruction = _find(*instruction)
    if not isinstance(instruction, Instruction):
        raise TypeError(f"{name} must be an Instruction or a (gpu, name) pair, not {instruction!r}")
    return instruction


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
    """What `bitmma.matmul` gives, as float64."""
    A, B, C, scale_a, scale_b = codes
    more = {} if schedule is None else {"schedule": schedule}
    d = matmul(A, B, C, instruction=instr, scale_a=scale_a, scale_b=scale_b, **more)
    return np.asarray(d, np.float64)


def outside(instr: Instruction, schedule: Any) -> str | None:
    """The format of a schedule's own sums, which C joins and D has; None for one chain."""
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
    """The unit with one cause after the other switched off; without those that it does not have."""
    stages = []
    instr, values = p.instr, (p.A, p.B, p.C)
    wide = _unflushed(p)
    if wide is not None:
        instr = wide
        text = f"operands in {wide.a}" if wide.a != p.instr.a else "C in f64"
        stages.append(Stage("input", text, _run_values(wide, values, p.schedule)))
    if type(instr.model) in _UNALIGNED:
        # Scales are multiplied into the operands, which float64 holds.
        changes: dict[str, Any] = {"model": _UNALIGNED[type(instr.model)](instr.model)}
        if instr.scale:
            changes |= {"a": "f64", "b": "f64", "scale": None, "block": None}
        unaligned = dataclasses.replace(instr, **changes)
        stages.append(
            Stage("alignment", repr(unaligned.model), _run_values(unaligned, values, p.schedule))
        )
    rho = last_rounding(p.instr.model)
    if outside(p.instr, p.schedule):
        rho = Conversion("RNE", p.d_format)
    stages.append(Stage("accumulation", f"one exact sum, {rho}", p.exact.rounded(rho)))
    stages.append(Stage("rounding", "the exact result", None))
    return stages


def _run_values(instr: Instruction, values: tuple[Floats | None, ...], schedule: Any) -> Floats:
    names = (instr.a, instr.b, outside(instr, schedule) or instr.c)
    quantized = [
        None if x is None else formats.quantize(x, fmt)
        for x, fmt in zip(values, names, strict=True)
    ]
    return run(instr, (*quantized, None, None), schedule)


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


def _exact_groups(model: Any) -> Model:
    return EFDPA(model.L, model.rho)


def _widest_alignment(model: Any) -> Model:
    return Lowered(model.K, dataclasses.replace(model.unit, F=64), model.parts)


_UNALIGNED: Mapping[type[Model], Callable[[Any], Model]] = {
    TFDPA: _exact_groups,
    STFDPA: _exact_groups,
    GSTFDPA: _exact_groups,
    TRFDPA: _exact_groups,
    GTRFDPA: _exact_groups,
    Lowered: _widest_alignment,
}


def last_rounding(model: Model) -> Conversion:
    """The one rounding with which an output leaves the unit."""
    if isinstance(model, Lowered):
        return Conversion("RNE", model.d)
    rho: Conversion = getattr(model, "rho", RNE_FP32)
    return rho
