"""How wrong a product can be: bounds from the models' definitions.

These bounds are bitmma's own. (Table 9 of arXiv 2511.10909v2 states some for single operations; it
was not at hand when this was written, so nothing here is claimed to be that table's.) They hold for
every model, instruction, schedule, epilogue and recipe, and depend on |A|, |B|, |C| and the scales
only, not on signs: a bound for all ways in which terms may cancel.

For every output the computation is followed step by step with two numbers: S, the sum of the
magnitudes that have gone into a sum so far, and E, which its error cannot exceed. So a computed sum
is at most S + E in magnitude. With [x] the power of two at or below x, and lambda = 1/2 for
roundings to nearest, else 1:

====================  ==========================================================================
a sum                 S and E add up.
a rounding            to M mantissa bits: E grows by lambda 2^-M [S + E], at least the lowest step.
FDPA, and so T-, ST-  e_max stands for at most P, the largest of [S + E], a product's 2^e, 2^e_zero.
TR-, GTR-FDPA (which  A product whose last bit lies at or above P 2^-F loses nothing, any other at
are FDPAs)            most lambda P 2^-F and, where it is cut toward zero, not more than itself. The
                      same for c at F_c; for sums of groups at F_groups, of all products at F2, of
                      everything at F_sum, where the magnitude of what is cut takes P's place. A c
                      that may be dropped: at most P 2^-drop_c, or itself. Then rho.
E-FDPA, FMA           The sum is exact, then rho.
GST-FDPA              As T-FDPA with groups of G products as terms and 2^e of their scales.
FTZ-MulAdd, SumTree   A rounding at every node, and of every product where there is one.
Lowered               Each part a chain of T-FDPA from 0; then the sum with c, rounded.
flushed results       at most the lowest normal number.
outside the unit      promotion, split-K and the epilogue: every product and sum with its rounding.
saturation            no bound where S + E reaches the largest number.
====================  ==========================================================================

What the unit changes in its operands (flushed subnormals, dropped bits), and what a recipe changes
by quantisation, is added as it is: both are known exactly. A factor 1 + 2^-20 covers the float64
arithmetic in which the bound is evaluated.

They are not loose: of 6,240 dot products by category (`bitmma.cases`) on a unit of each family, the
one that came nearest reached this share of its bound: GTR-FDPA 0.62, TR-FDPA 0.84, T-FDPA 0.89,
ST-FDPA 0.99, GST-FDPA, FTZ-MulAdd, E-FDPA, FMA and Lowered 1.00. Of random inputs, whose errors
cancel, the largest error is a small part of it: 0.5% for Hopper's FP8 at N(0, 1) and K = 1,024.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bitmma import formats
from bitmma.analysis.products import Product, chains, words
from bitmma.analysis.stages import tree_of
from bitmma.models import (
    FDPA,
    GSTFDPA,
    RNE_FP32,
    Conversion,
    FTZMulAdd,
    Lowered,
    Model,
    SumTree,
    as_fdpa,
)

__all__ = ["Bound", "check", "error_bound"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Bound:
    """An a-priori bound on every output's error, and how it fared.

    Attributes:
        values: the bound, output by output; Inf where there is none, because results may saturate.
        violations: outputs whose error is larger. Anything but 0 is a bug in the bound or the unit.
        tightest: the largest error divided by its bound.
    """

    values: Floats
    violations: int
    tightest: float

    @property
    def held(self) -> bool:
        return self.violations == 0


def check(values: Any, error: Floats, where: Any) -> Bound:
    """Whether the bound held on the outputs of ``where``."""
    size, limit = np.abs(error[where]), values[where]
    ratio = np.divide(size, limit, out=np.zeros(size.shape), where=limit > 0)
    return Bound(values, int((size > limit).sum()), float(ratio.max(initial=0.0)))


@formats.in_default_environment
def error_bound(p: Product) -> Floats:
    """The bound for each output."""
    with np.errstate(all="ignore"):  # where it overflows, there is none
        total = _finished(p, _accumulators(p))
        E = np.ldexp(total.E, p.power)
        if p.power:
            E = E + 2.0**-150  # the result's own rounding, if it underflows
        if p.exact is not p.whole:
            E = E + np.abs(p.exact.below(p.whole))
        bound: Floats = np.where(np.isnan(E), np.inf, E) * (1 + 2.0**-20)
        if "f64" in (p.instr.a, p.instr.b, p.instr.c):  # below which float64 itself ends
            bound = bound + 2.0**-1072
    return np.broadcast_to(bound, p.d.shape)


# --- sums with their errors -----------------------------------------------------------------------


@dataclass(frozen=True)
class _Sum:
    """What is known of a computed number: exactly it is at most S in magnitude, its error E."""

    S: Any
    E: Any

    @property
    def size(self) -> Any:
        return self.S + self.E

    def __add__(self, other: _Sum) -> _Sum:
        return _Sum(self.S + other.S, self.E + other.E)

    def times(self, factor: Any) -> _Sum:
        return _Sum(self.S * factor, self.E * factor)

    def lost(self, most: Any) -> _Sum:
        """After a step that changes the number by no more than that."""
        return _Sum(self.S, self.E + most)

    def rounded(self, rho: Conversion, *, flush: str = "no") -> _Sum:
        fmt = formats.get(rho.format)
        bits = fmt.mantissa_bits if rho.mantissa_bits is None else rho.mantissa_bits
        lowest = 2.0**fmt.min_exponent
        power = np.where(self.size == 0, 0.0, np.maximum(_power(self.size), lowest))
        lost = _lambda(rho.mode) * power * 2.0**-bits
        if flush != "no":
            lost = np.maximum(lost, np.minimum(self.size, lowest))
        if rho.overflow != "inf":
            lost = np.where(self.size >= 2.0**fmt.max_exponent, np.inf, lost)
        return self.lost(lost)


_NOTHING = _Sum(0.0, 0.0)


def _lambda(mode: str) -> float:
    return 0.5 if mode.startswith("RN") else 1.0


def _power(x: Any, slack: float = 2.0**-40) -> Any:
    """The power of two at or below; of sums as if a little larger, for float64's own roundings."""
    m, e = np.frexp(x)
    power = np.ldexp(1.0, e - 1 + (m >= 1 - slack))
    return np.where(np.isfinite(x), np.where(x == 0, 0.0, power), np.inf)


def _cut(size: Any, mode: str, unit: Any) -> Any:
    """What a number of that magnitude may lose when it is cut to multiples of ``unit``."""
    if mode in ("RZ", "RNE", "RNA"):
        return np.minimum(size, _lambda(mode) * unit)
    return np.where(size == 0, 0.0, unit)


# --- products -------------------------------------------------------------------------------------


class _Products:
    """The products as a unit sees them.

    a, b: magnitudes of the operands as they are used. a_power, b_power: their 2^e. last: the last
    bit of a product whose powers are 1. changed: whether some operands are not used as they were
    given.
    """

    def __init__(self, p: Product) -> None:
        i = p.instr
        self.given = np.abs(p.A), np.abs(p.B)
        (self.a, self.a_power), (self.b, self.b_power) = _operand(p, "a"), _operand(p, "b")
        bits = formats.get(i.a).mantissa_bits + formats.get(i.b).mantissa_bits
        if i.scale:
            bits += 2 * formats.get(i.scale).mantissa_bits
        self.last = 2.0**-bits
        self.wide = "f64" in (i.a, i.b)  # whose products can lie below float64's numbers
        self.changed = any(
            (x != y).any() for x, y in zip(self.given, (self.a, self.b), strict=True)
        )

    def of(self, k: int) -> tuple[Floats, Floats]:
        """|ab| and 2^e of every output's product."""
        size, power = (
            x[..., :, k, None] * y[..., k, None, :]
            for x, y in ((self.a, self.b), (self.a_power, self.b_power))
        )
        if not self.wide:
            return size, power
        there = (self.a[..., :, k, None] != 0) & (self.b[..., k, None, :] != 0)
        size, power = (np.where(there, np.maximum(x, 2.0**-1074), 0.0) for x in (size, power))
        return size, power

    def lost(self, k: Any) -> Any:
        """By the sum of products over some k, because operands were changed."""
        (A, B), axes = self.given, (-1, -2)
        given, used = (
            np.matmul(*(np.take(x, k, axis) for x, axis in zip(pair, axes, strict=True)))
            for pair in ((A, B), (self.a, self.b))
        )
        slack = (given + used) * len(k) * 2.0**-52
        return np.where(given == used, 0.0, given - used + slack)


def _operand(p: Product, which: str) -> tuple[Floats, Floats]:
    """A or B in magnitude, as the unit uses it (low bits dropped, subnormals flushed, times the
    scale), and 2^e: subnormals have their format's lowest exponent; 0 of a zero."""
    i, model = p.instr, p.instr.model
    fmt = formats.get(getattr(i, which))
    x = np.abs(words(p.plan.arrays[which], fmt.name))
    x = np.where(np.isfinite(x), x, 0.0)
    if fmt.dropped_bits:
        x = formats.quantize(x, fmt, rounding="RZ").astype(np.float64)
    if isinstance(model, FTZMulAdd) or getattr(model, "flush_in", "no") != "no":
        x = np.where(x < 2.0**fmt.min_exponent, 0.0, x)
    power = _at_least(_power(x, 0.0), 2.0**fmt.min_exponent)
    if not (i.scale and i.block):
        return x, power
    scale = words(p.plan.arrays[f"scale_{which}"], i.scale)
    block = np.arange(p.K) // i.block
    scales = np.take(np.where(np.isfinite(scale), scale, 0.0), block, -1 if which == "a" else -2)
    of_scale = _at_least(_power(scales, 0.0), 2.0 ** formats.get(i.scale).min_exponent)
    x = x * scales
    return x, np.where(x == 0, 0.0, of_scale * (1.0 if isinstance(model, GSTFDPA) else power))


def _at_least(power: Floats, lowest: float) -> Floats:
    return np.where(power == 0, 0.0, np.maximum(power, lowest))


# --- one chain ------------------------------------------------------------------------------------


def _chain(p: Product, products: _Products, k: Any, c: _Sum) -> _Sum:
    """One chain over some k, from c."""
    model, instr = p.instr.model, p.instr
    step = _STEPS.get(type(model), _fdpa)
    lowest = 2.0 ** formats.get(instr.c).min_exponent
    for start in range(0, max(len(k), 1), instr.k):
        c = step(model, instr.k, products, k[start : start + instr.k].tolist(), c, lowest)
        lowest = _lowest(model)
    return c.lost(products.lost(k)) if products.changed else c


def _lowest(model: Model) -> float:
    return 2.0 ** formats.get(model.d).min_exponent


def _fdpa(
    model: Model, length: int, products: _Products, lanes: list[int], c: _Sum, lowest: float
) -> _Sum:
    """One instruction: its groups one after the other, or in pairs.

    Where K ends within it, groups have no products, but they cut and round c all the same.

    lowest: the lowest normal number of c's format.
    """
    fdpa = as_fdpa(model)
    assert fdpa is not None
    groups = [lanes[i : i + fdpa.L] for i in range(0, length, fdpa.L)]
    if fdpa.order == "chain":
        for group in groups:
            c = _fused(fdpa, _terms(fdpa, products, group), c, lowest)
            lowest = _lowest(model)
        return c
    sums = [_fused(fdpa, _terms(fdpa, products, group), _NOTHING, lowest) for group in groups]
    while len(sums) > 1:
        pairs = [sums[i : i + 2] for i in range(0, len(sums), 2)]
        sums = [
            (x[0] + x[1]).rounded(fdpa.rho, flush=fdpa.flush_out) if len(x) == 2 else x[0]
            for x in pairs
        ]
    return (_entering(fdpa, c, lowest) + sums[0]).rounded(fdpa.rho, flush=fdpa.flush_out)


#: A product's or a group's magnitude, 2^e and last bit (0: unknown), for every output.
_Term = tuple[Any, Any, Any]


def _terms(model: FDPA, products: _Products, lanes: list[int]) -> list[list[_Term]]:
    """The terms of a step, apart by the group that they are cut in."""
    found: list[list[_Term]] = [[] for _ in range(model.groups)]
    for n, k in enumerate(lanes):
        size, power = products.of(k)
        last = power * products.last
        found[n % model.groups].append((size, _power(size) if model.renormalise else power, last))
    return found


def _entering(model: FDPA | SumTree, c: _Sum, lowest: float) -> _Sum:
    return c if model.flush_c == "no" else c.lost(np.minimum(c.size, lowest))


def _fused(model: FDPA, groups: list[list[_Term]], c: _Sum, lowest: float) -> _Sum:
    """One step: everything cut and added, then rho."""
    c = _entering(model, c, lowest)
    e_zero = 0.0 if model.e_zero is None else 2.0 ** max(model.e_zero, -1074)
    c_power = np.where(c.size == 0, e_zero, np.maximum(_power(c.size), max(lowest, e_zero)))
    early = model.c == "early"
    total, largest = _NOTHING, np.zeros(())
    powers = [functools.reduce(np.maximum, (t[1] for t in g), np.zeros(())) for g in groups]
    for power in powers:
        largest = np.maximum(largest, power)
    top = np.maximum(largest, c_power) if early else largest
    for terms, power in zip(groups, powers, strict=True):
        S = functools.reduce(np.add, (size for size, _, _ in terms), np.zeros(()))
        E = np.zeros(())
        if model.F is not None:
            unit = (top if model.groups == 1 else power) * 2.0**-model.F
            cuts = (_cut(size, model.cut, unit) * (last < unit) for size, _, last in terms)
            E = functools.reduce(np.add, cuts, E)
        part = _Sum(S, E)
        if model.groups > 1 and model.F_groups is not None:
            part = part.lost(_cut(part.size, model.cut_groups, top * 2.0**-model.F_groups))
        total = total + part
    if not early:
        exponent = largest
        if model.rho_products is not None:
            total = total.rounded(model.rho_products, flush=model.flush_out)
            lowest_T = 2.0 ** formats.get(model.rho_products.format).min_exponent
            exponent = _at_least(_power(total.size), lowest_T)
        top = np.maximum(exponent, c_power)
        if model.F2 is not None:
            total = total.lost(_cut(total.size, model.cut2, top * 2.0**-model.F2))
    if model.F_c is not None:
        c = c.lost(_cut(c.size, model.cut_c, top * 2.0**-model.F_c))
    if model.drop_c is not None:
        c = c.lost(np.minimum(c.size, top * 2.0**-model.drop_c))
    total = total + c
    if model.F_sum is not None:
        least = 0.0 if model.e_sum is None else 2.0 ** max(model.e_sum, -1074)
        unit = np.maximum(_power(total.size), least) * 2.0**-model.F_sum
        total = total.lost(_cut(total.size, model.cut_sum, unit))
    return total.rounded(model.rho, flush=model.flush_out)


def _gst(
    model: Any, length: int, products: _Products, lanes: list[int], c: _Sum, lowest: float
) -> _Sum:
    as_one = FDPA(model.L, model.F, F_c=model.F, rho=model.rho, e_zero=model.e_zero)
    for start in range(0, length, model.L):
        terms: list[_Term] = []
        for first in range(start, min(start + model.L, len(lanes)), model.G):
            of = [products.of(k) for k in lanes[first : first + model.G]]
            power = functools.reduce(np.maximum, (x[1] for x in of))
            terms.append((sum(x[0] for x in of), power, np.zeros(())))
        c = _fused(as_one, [terms], c, lowest)
        lowest = _lowest(model)
    return c


def _lowered(
    model: Any, length: int, products: _Products, lanes: list[int], c: _Sum, lowest: float
) -> _Sum:
    period = sum(map(len, model.parts))
    unit = as_fdpa(model.unit)
    assert unit is not None
    lowest = _lowest(model)
    for start in range(0, length, model.K):
        t = _NOTHING
        for part in model.parts:
            places = [start + n for n in range(model.K) if n % period in part]
            for i in range(0, len(places), unit.L):
                mine = [lanes[n] for n in places[i : i + unit.L] if n < len(lanes)]
                t = _fused(unit, _terms(unit, products, mine), t, lowest)
        c = (c + t).rounded(Conversion("RNE", model.d))
    return c


def _tree(
    model: Any, length: int, products: _Products, lanes: list[int], c: _Sum, lowest: float
) -> _Sum:
    tree = tree_of(model, length) if isinstance(model, FTZMulAdd) else model
    K = tree.K
    leaves: dict[int, _Sum] = {K: _entering(tree, c, lowest)}
    for i in range(K):
        x = _Sum(products.of(lanes[i])[0], 0.0) if i < len(lanes) else _NOTHING
        if tree.rho_product is not None:
            x = x.rounded(tree.rho_product, flush=tree.flush_out)
        leaves[i] = x
    with_c = False
    root = _NOTHING
    for n, (children, rho) in enumerate(zip(tree.nodes, tree.roundings, strict=True)):
        with_c |= K in children
        root = functools.reduce(_Sum.__add__, (leaves[child] for child in children))
        root = leaves[K + 1 + n] = root.rounded(rho, flush=tree.flush_out)
    if tree.out is not None:
        root = root.rounded(tree.out, flush=tree.flush_last or tree.flush_out)
    return root if with_c else _Sum(root.S + c.S, root.E + c.S)  # c is ignored, and so lost


_STEPS: dict[type[Model], Callable[..., _Sum]] = {
    GSTFDPA: _gst, Lowered: _lowered, SumTree: _tree, FTZMulAdd: _tree,
}  # fmt: skip


# --- outside the unit -----------------------------------------------------------------------------


def _accumulators(p: Product) -> _Sum:
    """The schedule's chains and sums."""
    schedule, products, rho = p.plan.schedule, _Products(p), p.last_rounding
    beta = p.plan.epilogue is not None and p.plan.epilogue.beta is not None
    C = _NOTHING if p.C is None or beta else _Sum(np.abs(p.C), 0.0)
    if schedule.is_chain:
        return _chain(p, products, np.arange(p.K), C)
    parts: dict[int, _Sum | None] = {}
    starts = C if schedule.split_k == 1 and p.C is not None and not beta else None
    for s, k in chains(p.plan):
        r = _chain(p, products, k, _NOTHING)
        r, scaled = _promoted(p, r, k, rho)
        before = parts.get(s, starts)
        # 0 + r is r.
        parts[s] = r if before is None and not scaled else ((before or _NOTHING) + r).rounded(rho)
    sums = [x or _NOTHING for x in parts.values()]
    total = _reduced(sums, schedule.reduce, rho)
    if schedule.split_k > 1 and p.C is not None and not beta:
        total = (total + C).rounded(rho)
    return total


def _promoted(p: Product, r: _Sum, k: Any, rho: Conversion) -> tuple[_Sum, bool]:
    """A chain's result times promotion's scales, up to the sum's own rounding."""
    scales = []
    for name, per_k in p.plan.promote_blocks.items() if k.size else ():
        block = slice(int(k[0]) // per_k, int(k[0]) // per_k + 1)
        scale = p.plan.arrays[name]
        one = scale[..., block] if name.endswith("a") else scale[..., block, :]
        scales.append(_Sum(np.abs(np.where(np.isfinite(one), one, 0.0).astype(np.float64)), 0.0))
    if not scales:
        return r, False
    s = scales[0] if len(scales) == 1 else _product(*scales).rounded(rho)
    r = _product(s, r)
    return (r if p.plan.schedule.promote_fused else r.rounded(rho)), True


def _product(x: _Sum, y: _Sum) -> _Sum:
    return _Sum(x.S * y.S, x.S * y.E + x.E * y.S + x.E * y.E)


def _reduced(parts: list[_Sum], how: str, rho: Conversion) -> _Sum:
    def add(x: _Sum, y: _Sum) -> _Sum:
        return (x + y).rounded(rho)

    if how == "serial" or len(parts) == 1:
        return functools.reduce(add, parts)
    S, h = len(parts), -(-len(parts) // 2)
    slots = (add(parts[i], parts[i + h]) if i + h < S - 1 else parts[i] for i in range(h))
    return functools.reduce(add, slots, parts[S - 1])


def _finished(p: Product, acc: _Sum) -> _Sum:
    """The epilogue, step by step as `bitmma.Epilogue` has them."""
    e = p.plan.epilogue
    if e is None:
        return acc
    one = {n: _constant(getattr(e, n)) for n in ("alpha", "beta", "scale_a", "scale_b", "bias",
                                                   "scale_result")}  # fmt: skip
    if e.is_row_wise:
        for name in ("scale_a", "scale_b"):
            acc = _product(acc, one[name] or _NOTHING).rounded(RNE_FP32)
    else:
        factors = [x for n in ("scale_a", "scale_b", "alpha") if (x := one[n]) is not None]
        if factors or one["beta"] is not None:
            alpha = functools.reduce(
                lambda x, y: _product(x, y).rounded(RNE_FP32), factors or [_Sum(1.0, 0.0)]
            )
            acc = _product(alpha, acc)
            if one["beta"] is not None and p.C is not None:
                C = _Sum(np.abs(p.C), 0.0)
                acc = acc + _product(one["beta"], C).rounded(RNE_FP32)
            acc = acc.rounded(RNE_FP32)
    if one["bias"] is not None:
        acc = (acc + one["bias"]).rounded(RNE_FP32)
    if one["scale_result"] is not None:
        acc = _product(acc, one["scale_result"]).rounded(RNE_FP32)
    return acc if e.out_format == "f32" else _stored(acc, e.out_format)


def _constant(x: Any) -> _Sum | None:
    if x is None:
        return None
    return _Sum(np.abs(np.where(np.isfinite(x), x, 0.0).astype(np.float64)), 0.0)


def _stored(x: _Sum, name: str) -> _Sum:
    """Rounded to the output's format; FP8 saturates."""
    fmt = formats.get(name)
    power = np.maximum(_power(x.size), 2.0**fmt.min_exponent)
    lost = np.where(x.size == 0, 0.0, power * 2.0 ** -(fmt.mantissa_bits + 1))
    if fmt.width == 8:
        largest = formats.decode(np.array(fmt.max_code, np.uint8), fmt)
        lost = np.where(x.size > largest, np.inf, lost)
    return x.lost(lost)
