"""A unit with its causes of error switched off, one after the other, until nothing is wrong.

====================  ==========================================================================
switched off          what is left
====================  ==========================================================================
1 ``input``           Operands enter as they were given. FTZ-MulAdd, FDPA and SumTree that flush:
                      subnormals of A, B and C are not flushed. tf32, xf32: the words' low 13 bits
                      are not dropped (the same unit on f32 operands). All others take operands as
                      they are.
2 ``accumulation``    Accumulators keep what a group gave them, and only the last is rounded. T-,
                      ST-, GST-, TR-, GTR-FDPA and FDPA: rho (and rho_products) are RNE-FP64 within
                      a chain, and so for the unit in Lowered; sums of chains, promotion's and
                      split-K's, are exact, scales too. FMA, E-FDPA, FTZ-MulAdd, SumTree, and FDPA
                      without cuts lose nothing but by rounding sums (and products): one exact sum
                      of all, rounded once.
3 ``alignment``       Nothing is cut when terms are aligned: one exact sum of all, rounded once.
                      (FMA, E-FDPA, FTZ-MulAdd and SumTree align nothing.)
4 ``rounding``        That last rounding is left out, and with it those of the epilogue in FP32:
                      the exact result, or, with an epilogue of another format than FP32, the exact
                      result rounded to that format once.
5 ``output``          That rounding, too, is left out: the exact result.
6 ``quantisation``    Recipes that quantise: the exact result of the numbers before.
====================  ==========================================================================

The last rounding is rho, of a SumTree its ``out`` if it has one; that of Lowered, FTZ-MulAdd and
schedules is RNE to the accumulators' format.

An output's error is so the sum of up to six parts, each the change that one switch makes: nothing
is left over and nothing counts twice. The order matters. An accumulator that was already cut when
it was aligned has little left for rho to round, so accumulation goes first: what is put down to it
is what only it does. Parts can cancel, too: on CDNA3, rounding accumulators to FP32 spares them
most of the cut downward that comes next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from bitmma import formats
from bitmma.analysis.exact import Exact, exact_sum, times
from bitmma.analysis.products import Product, chain, chains, share
from bitmma.gemm import Progress
from bitmma.models import (
    EFDPA,
    FDPA,
    FMA,
    RNE_FP32,
    RNE_FP64,
    FTZMulAdd,
    Lowered,
    Model,
    SumTree,
)
from bitmma.unit import Instruction

__all__ = ["Stage", "peel", "tree_of", "unflushed"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Stage:
    """What comes out once ``cause``, too, is switched off; ``unit`` says in words what it is."""

    cause: str
    unit: str
    d: Exact


def peel(p: Product, progress: Progress | None = None) -> list[Stage]:
    """The unit with one cause after the other switched off; without those that it does not have.

    progress: called with the products (multiply-adds) of all units computed, now and then.
    """
    instr = unflushed(p.instr)
    wide = _wide(instr.model)
    units = (instr is not p.instr) + (wide is not None)
    stages: list[Stage] = []
    if instr is not p.instr:
        plan = replace(p.plan, instruction=instr)
        codes = plan.accumulators(progress=progress and share(progress, 0, units))
        d = p.finished(formats.decode(codes, plan.held))
        stages.append(Stage("input", _words(instr), _exactly(d)))
    rho = p.last_rounding
    one_sum = _exactly(p.finished(p.sums.rounded(rho)))
    if wide is None:
        stages.append(Stage("accumulation", f"one exact sum, {rho}", one_sum))
    else:
        sums, finite = _of_wide_chains(
            p, instr, wide, progress and share(progress, units - 1, units)
        )
        d = np.where(finite, p.finished(sums.rounded(rho)), np.nan)
        stages.append(Stage("accumulation", f"{wide!r}, then {rho}", _exactly(d)))
        stages.append(Stage("alignment", f"one exact sum, {rho}", one_sum))
    out = p.plan.d
    if p.plan.epilogue is not None and out != "f32":
        once = formats.quantize(p.whole.to_odd(), out, saturate=formats.get(out).width == 8)
        text = f"the exact result, rounded to {out}"
        stages.append(Stage("rounding", text, _exactly(once.astype(np.float64))))
    last = "output" if p.plan.epilogue is not None and out != "f32" else "rounding"
    stages.append(Stage(last, "the exact result", p.whole))
    if p.exact is not p.whole:
        stages.append(Stage("quantisation", "the exact result before quantisation", p.exact))
    return stages


def _exactly(d: Floats) -> Exact:
    return Exact((d,))


# --- operands as they are -------------------------------------------------------------------------


def unflushed(instr: Instruction) -> Instruction:
    """The unit that takes operands as they were given; itself if it does so anyway."""
    model = instr.model
    if isinstance(model, FTZMulAdd):
        model = tree_of(model, instr.k)
    if isinstance(model, FDPA | SumTree) and (model.flush_in, model.flush_c) != ("no", "no"):
        instr = replace(instr, model=replace(model, flush_in="no", flush_c="no"))
    if formats.get(instr.a).dropped_bits or formats.get(instr.b).dropped_bits:
        a, b = ("f32" if formats.get(x).dropped_bits else x for x in (instr.a, instr.b))
        instr = replace(instr, a=a, b=b)
    return instr


def _words(instr: Instruction) -> str:
    return f"operands of {instr.a}·{instr.b} as they are"


def tree_of(model: FTZMulAdd | FMA | EFDPA, k: int) -> SumTree:
    """The same arithmetic, but for signs of zero and NaN, as a tree over one instruction's k."""
    tree: Any = "c"
    for start in range(0, k, model.group):
        lanes = range(start, min(start + model.group, k))
        if isinstance(model, FTZMulAdd):
            leaves: list[Any] = [*lanes, *[None] * (model.P - len(lanes))]
            pairs = [_node(leaves[i : i + 2]) for i in range(0, model.P, 2)]
            inner = pairs[0] if len(pairs) == 1 else _node(pairs)
            tree = (tree, inner)
        else:
            tree = (tree, *lanes)
    if isinstance(model, FTZMulAdd):
        return SumTree(tree, RNE_FP32, RNE_FP32, flush_in="zero", flush_c="zero", flush_out="sign")
    return SumTree(tree, model.rho)


def _node(children: list[Any]) -> Any:
    """A node of those that are there; None of nothing."""
    there = [x for x in children if x is not None]
    return tuple(there) if there else None


# --- accumulators that lose nothing ---------------------------------------------------------------


def _wide(model: Model) -> Model | None:
    """The model with wide accumulators; None if these are all that is wrong with it."""
    match model:
        case FMA() | EFDPA() | FTZMulAdd() | SumTree():
            return None
        case Lowered():
            return Lowered(model.K, replace(model.unit, rho=RNE_FP64), model.parts)
        case FDPA():
            cuts = (model.F, model.F_c, model.F2, model.F_sum, model.F_groups, model.drop_c)
            if all(cut is None for cut in cuts):
                return None
            products = model.rho_products and RNE_FP64
            return replace(model, rho=RNE_FP64, rho_products=products, flush_c="no", flush_out="no")
    wide: Model = replace(model, rho=RNE_FP64)  # type: ignore[call-arg]
    return wide


def _of_wide_chains(
    p: Product, instr: Instruction, model: Model, progress: Progress | None
) -> tuple[Exact, npt.NDArray[np.bool_]]:
    """The exact sum of what chains with f64 accumulators give, and where all are finite."""
    wide = replace(instr, model=model, c="f64", d="f64")
    C = None if p.C is None or _has_beta(p) else p.C
    if p.plan.schedule.is_chain:
        c = None if C is None else C.view(np.uint64)
        d = chain(p.plan, wide, np.arange(p.K), c, progress)
        return Exact((np.where(np.isfinite(d), d, 0.0),)), np.isfinite(d)
    finite = np.ones(p.plan.shape, bool)
    addends: list[Floats] = [np.zeros(p.plan.shape)] if C is None else [C]
    done, outputs = 0, math.prod(p.plan.shape)
    for _, k in chains(p.plan):
        d = chain(p.plan, wide, k)
        done += outputs * len(k)
        if progress is not None:
            progress(done, p.plan.products)
        finite &= np.isfinite(d)
        parts = [np.where(np.isfinite(d), d, 0.0)]
        for name in p.plan.promote_blocks if k.size else ():
            parts = times(parts, _scale(p, name, int(k[0])))
        addends += parts
    M, N = p.plan.shape[-2:]
    return exact_sum(np.zeros((M, 0)), np.zeros((0, N)), addends), finite


def _has_beta(p: Product) -> bool:
    return p.plan.epilogue is not None and p.plan.epilogue.beta is not None


def _scale(p: Product, name: str, k: int) -> Any:
    """Promotion's scale of the chain that begins at k, to be multiplied with its results."""
    block = k // p.plan.promote_blocks[name]
    scale = p.plan.arrays[name]
    one = scale[..., block : block + 1] if name.endswith("a") else scale[..., block : block + 1, :]
    return np.where(np.isfinite(one), one, 0.0)
