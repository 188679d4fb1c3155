"""One product as analysis sees it: its operands as numbers, its exact result, what the unit gives.

Everything that a kernel is told belongs to it: block scales, a schedule, promotion's scales, an
epilogue, and what a recipe does before and after. The exact result is of all that, without one
rounding: of a recipe that quantises, it is the product of the numbers before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bitmma import formats, gemm
from bitmma.analysis.exact import Exact, exact_product, exact_sum, times
from bitmma.engine import operands
from bitmma.gemm import Progress, matmul
from bitmma.models import RNE_FP32, Conversion, Lowered, Model, SumTree
from bitmma.recipes import Recipe
from bitmma.schedule import Schedule
from bitmma.unit import Instruction, resolve

__all__ = ["Product", "chain", "chains", "product", "run", "share", "to_codes", "words"]

#: What a product may be told beside its operands, as `bitmma.matmul` takes it.
OPTIONS = (
    "scale_a", "scale_b", "schedule", "epilogue", "promote_scale_a", "promote_scale_b",
    "promote_block_a", "promote_block_b",
)  # fmt: skip

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Product:
    """One product.

    Attributes:
        title: who computes it. plan: how (`bitmma.gemm.Product`), of which codes.
        A, B, C: the numbers that the unit is given, in float64, block scales multiplied in; C is
            None where there is none. Inf and NaN are 0.
        special: where an output is decided by an Inf or NaN among what it is computed from.
        sums: what the accumulators would be if nothing were rounded.
        whole: what the epilogue would make of these if it rounded nothing.
        exact: the result to measure against: ``whole``, or that of the numbers before quantisation.
        power: the power of two by which a recipe multiplies the result in the end.
        d: what comes out.
    """

    title: str
    plan: gemm.Product
    A: Floats
    B: Floats
    C: Floats | None
    special: npt.NDArray[np.bool_]
    sums: Exact
    whole: Exact
    exact: Exact
    power: int
    d: Floats

    @property
    def instr(self) -> Instruction:
        return self.plan.instruction

    @property
    def K(self) -> int:
        return self.plan.K

    @property
    def last_rounding(self) -> Conversion:
        """The rounding with which accumulators end: the unit's, or that of sums outside it."""
        if self.plan.schedule.is_chain:
            return last_rounding(self.instr.model)
        return Conversion("RNE", "f64" if self.instr.d == "f64" else "f32")

    def finished(self, accumulators: Floats) -> Floats:
        """What the kernel makes of accumulators, which are numbers of their format."""
        d = accumulators
        if self.plan.epilogue is not None:
            with np.errstate(over="ignore"):
                codes = self.plan.finished(accumulators.astype(np.float32))
            d = formats.decode(codes, self.plan.d)
        if self.power:
            with np.errstate(all="ignore"):
                d = formats.quantize(np.ldexp(d, self.power), self.plan.d).astype(np.float64)
        return d


def last_rounding(model: Model) -> Conversion:
    """The one rounding with which an output leaves the unit."""
    if isinstance(model, Lowered):
        return Conversion("RNE", model.d)
    if isinstance(model, SumTree):
        return model.out or model.roundings[-1]
    rho: Conversion = getattr(model, "rho", RNE_FP32)
    return rho


def product(who: Any, A: Any, B: Any, C: Any, options: Mapping[str, Any]) -> Product:
    """The product of an instruction, or a recipe, and exactly.

    Args:
        options: what `bitmma.matmul` (or the recipe) takes beside the operands.

    Raises:
        TypeError, ValueError: as `bitmma.matmul`; a product without outputs.
    """
    given = {name: x for name, x in options.items() if x is not None}
    if isinstance(who, Recipe):
        arguments = who.arguments(A, B, C, **given)
        given = {n: x for n, x in arguments.items() if n not in ("A", "B", "C", "instruction")}
        title, power = str(who), who.power
    else:
        instr = resolve(who)
        arguments = {"A": A, "B": B, "C": C, "instruction": instr, **given}
        title, power = instr.title, 0
    for name in given:
        if name not in OPTIONS:
            raise TypeError(
                f"{name} is no option of a product to be analysed: {', '.join(OPTIONS)}"
            )
    plan = gemm.planned(**arguments)
    _check_size(plan.shape)
    a, b, c = _numbers(plan)
    special = ~_finite_everywhere(plan, a, b, c)
    a, b = _without_specials(a), _without_specials(b)
    c = None if c is None else _without_specials(c)
    sums = _sums(plan, a, b, c)
    whole = sums if plan.epilogue is None else _with_epilogue(plan, a, b, c)
    if power:
        whole = Exact(tuple(np.ldexp(part, power) for part in whole.parts))
    exact = whole
    if any(arguments[name] is not x for name, x in (("A", A), ("B", B), ("C", C))):
        exact = _spread(_before_quantisation(A, B, C), plan)
    empty = np.empty(plan.shape)
    p = Product(title, plan, a, b, c, special, sums, whole, exact, power, empty)
    d = p.finished(formats.decode(plan.accumulators(), plan.held))
    return dataclasses.replace(p, d=d)


def _check_size(shape: tuple[int, ...]) -> None:
    if 0 in shape:
        raise ValueError(f"there is nothing to analyse: the product is {shape}")


def _numbers(plan: gemm.Product) -> tuple[Floats, Floats, Floats | None]:
    """A, B (times their block scales) and C, as given."""
    i, arrays = plan.instruction, plan.arrays
    a, b = words(arrays["a"], i.a), words(arrays["b"], i.b)
    if i.scale and i.block:
        block = np.arange(plan.K) // i.block
        with np.errstate(over="ignore", invalid="ignore"):
            a = a * np.take(words(arrays["scale_a"], i.scale), block, -1)
            b = b * np.take(words(arrays["scale_b"], i.scale), block, -2)
    c = None
    if "c" in arrays:
        c = words(arrays["c"], gemm.addend_format(i, plan.schedule, plan.epilogue))
    return a, b, c


def words(codes: Any, fmt: str) -> Floats:
    """Numbers in float64; of tf32 and xf32 the whole word, with what the unit will drop."""
    return formats.decode(codes, "f32" if formats.get(fmt).dropped_bits else fmt)


def _without_specials(x: Floats) -> Floats:
    return np.where(np.isfinite(x), x, 0.0)


def _finite_everywhere(
    plan: gemm.Product, a: Floats, b: Floats, c: Floats | None
) -> npt.NDArray[np.bool_]:
    """Which outputs are computed from finite numbers alone."""
    e, arrays = plan.epilogue, plan.arrays
    rows, columns = np.asarray(np.isfinite(a).all(-1)), np.asarray(np.isfinite(b).all(-2))
    if "promote_scale_a" in arrays:
        rows = rows & np.isfinite(arrays["promote_scale_a"]).all(-1)
    if "promote_scale_b" in arrays:
        columns = columns & np.isfinite(arrays["promote_scale_b"]).all(-2)
    finite = rows[..., :, None] & columns[..., None, :]
    for x in () if e is None else (e.alpha, e.beta, e.scale_a, e.scale_b, e.bias, e.scale_result):
        finite = finite if x is None else finite & np.isfinite(x)
    finite = finite if c is None else finite & np.isfinite(c)
    return np.broadcast_to(finite, plan.shape)


# --- exactly --------------------------------------------------------------------------------------


def _sums(plan: gemm.Product, a: Floats, b: Floats, c: Floats | None) -> Exact:
    left, right = _promoted(plan, a, "a"), _promoted(plan, b, "b")
    joins = plan.epilogue is None or plan.epilogue.beta is None
    return _exactly(plan, left, right, [c] if c is not None and joins else [])


def _with_epilogue(plan: gemm.Product, a: Floats, b: Floats, c: Floats | None) -> Exact:
    """Each factor goes to A or B, and to what is added."""
    e = plan.epilogue
    assert e is not None
    left, right = _promoted(plan, a, "a"), _promoted(plan, b, "b")
    joining = [] if c is None else [c]
    for factor in (e.scale_a, e.alpha):
        left = _times(left, factor)
    right = _times(right, e.scale_b)
    for factor in (e.scale_a, e.alpha, e.scale_b) if e.beta is None else (e.beta,):
        joining = _times(joining, factor)
    if e.bias is not None:
        joining = [*joining, _without_specials(e.bias.astype(np.float64))]
    return _exactly(plan, _times(left, e.scale_result), right, _times(joining, e.scale_result))


def _times(parts: list[Floats], factor: Any) -> list[Floats]:
    return parts if factor is None else times(parts, _without_specials(factor))


def _promoted(plan: gemm.Product, x: Floats, which: str) -> list[Floats]:
    """A or B times promotion's scales."""
    name, axis = f"promote_scale_{which}", -1 if which == "a" else -2
    if name not in plan.arrays:
        return [x]
    k = np.arange(plan.K) // plan.promote_blocks[name]
    return _times([x], np.take(plan.arrays[name], k, axis))


def _exactly(
    plan: gemm.Product, left: list[Floats], right: list[Floats], addends: list[Floats]
) -> Exact:
    """The sum of all products of a part on the left and one on the right: a product of longer K."""
    a = np.concatenate([x for x in left for _ in right], axis=-1)
    b = np.concatenate([y for _ in left for y in right], axis=-2)
    return _spread(exact_sum(a, b, addends), plan)


def _spread(x: Exact, plan: gemm.Product) -> Exact:
    return Exact(tuple(np.broadcast_to(part, plan.shape) for part in x.parts))


def _before_quantisation(A: Any, B: Any, C: Any) -> Exact:
    """Of the numbers that a recipe was given, where it makes others of them."""
    numbers = []
    for name, x in (("A", A), ("B", B), ("C", C)):
        if getattr(getattr(x, "dtype", None), "kind", "f") in "ui":
            raise TypeError(f"{name} holds integers: a recipe that quantises is measured on floats")
        numbers.append(None if x is None else _without_specials(formats.as_float64(x)))
    a, b, c = numbers
    assert a is not None and b is not None
    return exact_product(a, b, c)


# --- its chains -----------------------------------------------------------------------------------


def chains(plan: gemm.Product) -> Iterator[tuple[int, Integers]]:
    """Every chain of instructions: the part of K that it belongs to, and its k, in order."""
    schedule, K = plan.schedule, plan.K
    for s, tiles in enumerate(schedule.parts(K)):
        tile = schedule.split_tile
        pieces = [np.arange(t * tile, min((t + 1) * tile, K)) for t in tiles]
        k = np.concatenate([np.arange(0), *pieces]) if schedule.split_k > 1 else np.arange(K)
        every = schedule.promote_every or max(len(k), 1)
        for start in range(0, max(len(k), 1), every):
            yield s, k[start : start + every]


def chain(
    plan: gemm.Product,
    instr: Instruction,
    k: Integers,
    c: npt.NDArray[Any] | None = None,
    progress: Progress | None = None,
) -> Floats:
    """What one chain over some k gives on an instruction of the same operands; c: its codes."""
    a, b = plan.arrays["a"], plan.arrays["b"]
    arrays = {"a": np.take(a, k, -1), "b": np.take(b, k, -2)}
    if instr.block:
        blocks = k[:: instr.block] // instr.block
        for name, axis in (("scale_a", -1), ("scale_b", -2)):
            arrays[name] = np.take(plan.arrays[name], blocks, axis)
    if c is not None:
        arrays["c"] = c
    one = gemm.Product(instr, Schedule(), None, plan.shape, len(k), arrays, {})
    return formats.decode(one.compute(progress=progress), instr.d)


def share(progress: Progress, n: int, of: int) -> Progress:
    """The progress of the n-th of several computations of the same size, as that of all."""
    return lambda done, total: progress(n * total + done, of * total)


# --- without exact results ------------------------------------------------------------------------


def run(instr: Instruction, codes: tuple[Any, ...]) -> Floats:
    """One chain's results, as float64; ValueError where there are none."""
    A, B, C, scale_a, scale_b = codes
    d = matmul(A, B, C, instruction=instr, scale_a=scale_a, scale_b=scale_b)
    _check_size(d.shape)
    return np.asarray(d, np.float64)


def to_codes(instr: Instruction, *given: Any) -> tuple[Any, ...]:
    """A, B, C, scale_a and scale_b as arrays of codes, None where there are none.

    Raises:
        TypeError: not arrays of the instruction's formats; kinds that are mixed.
    """
    names = ("A", "B", "C", "scale_a", "scale_b")
    wanted = (instr.a, instr.b, instr.c, instr.scale, instr.scale)
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
