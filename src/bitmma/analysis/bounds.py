"""How wrong a chain of instructions can be: bounds from the models' definitions.

These bounds are bitmma's own. (Table 9 of arXiv 2511.10909v2 states some for single operations; it
was not at hand when this was written, so nothing here is claimed to be that table's.)

One output is a chain of G groups. Group g takes the accumulator c and at most L products p. Write
S_g for |C| plus the sum of |p| up to and including group g, S_0 = |C|, and P for the largest power
of two that a product's exponent stands for, 2^(e_a+e_b), or 2^e of the scales in GST-FDPA, over
the whole output, but at least 2^e_zero and the lowest normal number of C's format (so that it also
covers a zero or subnormal c). Then the group's error is at most

    alpha_p P + alpha_c S_{g-1} + pi (sum of |p| of the group) + kappa S_g + eta,

and as an accumulator enters the next sum with factor one, errors add up over the groups:

    |d - x| <= (1 + growth)^G (alpha_p G P + alpha_c W + pi (S_G - S_0) + kappa (W + S_G) + eta G)

with W = S_0 + ... + S_{G-1}. With u the relative error of rho (2^-M for RZ and other directed
modes, 2^-(M+1) to nearest; M mantissa bits kept):

============  =====================================================================================
FMA, E-FDPA   The sum is exact, then rounded: kappa = u.
FTZ-MulAdd    P products each rounded once and log2(P) times in the tree, then the last addition:
              pi = u (1 + log2 P), kappa = u. A result that is flushed loses less than 2^-126:
              eta = 2P 2^-126.
T-, ST-FDPA   L + 1 terms lose less than one unit 2^(e_max-F) each, and 2^e_max <= max(P, |c|):
              alpha_p = alpha_c = (L+1) 2^-F. Then rho, of at most S_g: kappa = u.
GST-FDPA      The same with L/G groups as terms: alpha = (L/G + 1) 2^-F.
TR-FDPA       Products lose at most L 2^(e_p-F); the sum RD at E-F2-1, c RD at E-F: alpha =
              (L+1) 2^-F + 2^-(F2+1). The joint sum RD at F2 bits, then rho: kappa = 2^-F2 + u.
GTR-FDPA      Two more RD at e-F where the halves join (a c that is dropped is below 2^(E-F)):
              alpha = (L+3) 2^-F + 2^-(F2+1).
Lowered       n = K/L groups of T-FDPA from t = 0, then one addition: alpha_p = n (L+1) 2^-F,
              pi = n ((L+1) 2^-F + u) (1+u)^n, kappa = 2^-(M+1) (1+u)^n.
============  =====================================================================================

An accumulator is at most S_g where everything is cut toward zero; elsewhere it may have grown by
earlier errors: growth = u, or alpha_c + kappa where sums are rounded down. eta is rho's smallest
step, twice; a factor 1 + 2^-20 covers terms of second order and the float64 in which the bound is
evaluated. What the unit changes in its operands (flushed subnormals, dropped bits) is added as it
is: the sum of |ab| as given minus that as used, since both only shrink them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bitmma import formats
from bitmma.analysis.stages import Product, last_rounding, spread, words
from bitmma.models import (
    EFDPA,
    FMA,
    GSTFDPA,
    GTRFDPA,
    STFDPA,
    TFDPA,
    TRFDPA,
    Conversion,
    FTZMulAdd,
    Lowered,
    Model,
)

__all__ = ["Bound", "error_bound"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Bound:
    """An a-priori bound on every output's error, and how it fared.

    Attributes:
        values: the bound, output by output.
        violations: outputs whose error is larger. Anything but 0 is a bug in the bound or the unit.
        tightest: the largest error divided by its bound.
    """

    values: Floats
    violations: int
    tightest: float

    @property
    def held(self) -> bool:
        return self.violations == 0


@dataclass(frozen=True)
class _Group:
    """The coefficients of one group, as in the module's text."""

    length: int
    kappa: float
    eta: float
    alpha_p: float = 0.0
    alpha_c: float = 0.0
    pi: float = 0.0
    growth: float = 0.0


def error_bound(p: Product) -> Floats | None:
    """The bound for each output; None for a schedule, and for models of which none is derived."""
    group = _group(p.instr.model)
    if group is None or p.schedule is not None:
        return None
    c = np.zeros(p.d.shape) if p.C is None else np.broadcast_to(np.abs(p.C), p.d.shape)
    used_a, used_b, used_c = (_used(p, x, n) for x, n in ((p.A, "a"), (p.B, "b"), (c, "c")))
    K = p.K
    G = max(1, -(-K // group.length))
    # How many groups after its own will find a product in their accumulator.
    later = G - 1 - np.arange(K) // group.length
    S = np.abs(used_a) @ np.abs(used_b) + used_c
    W = (np.abs(used_a) * later) @ np.abs(used_b) + G * used_c
    given = np.abs(p.A) @ np.abs(p.B) + c
    values = (
        group.alpha_p * G * _largest_power(p, used_a, used_b)
        + group.alpha_c * W
        + group.pi * (S - used_c)
        + group.kappa * (W + S)
        + group.eta * G
    )
    lost = np.where(given == S, 0.0, given - S + (given + S) * K * 2.0**-52)
    bound: Floats = (values * (1 + group.growth) ** G + lost) * (1 + 2.0**-20)
    return bound


def _used(p: Product, x: Floats, operand: str) -> Floats:
    """The operand as the unit uses it: low bits dropped, subnormals flushed."""
    fmt = formats.get(getattr(p.instr, operand))
    if fmt.dropped_bits:
        return formats.quantize(x, fmt, rounding="RZ").astype(np.float64)
    if isinstance(p.instr.model, FTZMulAdd):
        return np.where(np.abs(x) < 2.0**fmt.min_exponent, 0.0, x)
    return x


def _largest_power(p: Product, a: Floats, b: Floats) -> Floats:
    """P of the module's text."""
    model = p.instr.model
    power_a, power_b = (_powers(p, x, n) for x, n in ((a, "a"), (b, "b")))
    lowest = 2.0 ** formats.get(p.instr.c).min_exponent
    e_zero = getattr(model.unit if isinstance(model, Lowered) else model, "e_zero", -1074)
    largest = np.full(p.d.shape, max(lowest, 2.0 ** max(e_zero, -1074)))
    one = np.empty(p.d.shape)
    for k in range(p.K):
        np.multiply(power_a[..., :, k, None], power_b[..., k, None, :], out=one)
        np.maximum(largest, one, out=largest)
    return largest


def _powers(p: Product, x: Floats, operand: str) -> Floats:
    """2^e of every operand, subnormals with their format's lowest exponent; 0 of a zero."""
    if p.instr.scale and p.instr.block:
        axis, K = (-1, p.K) if operand == "a" else (-2, p.K)
        scale = words(p.codes[3 if operand == "a" else 4], p.instr.scale)
        scales = spread(np.where(np.isfinite(scale), scale, 0.0), p.instr.block, axis, K)
        power = _power(scales, formats.get(p.instr.scale).min_exponent)
        if isinstance(p.instr.model, GSTFDPA):
            return np.where(x == 0, 0.0, power)
        plain = np.divide(x, scales, out=np.zeros(x.shape), where=scales != 0)
        return power * _power(plain, formats.get(getattr(p.instr, operand)).min_exponent)
    return _power(x, formats.get(getattr(p.instr, operand)).min_exponent)


def _power(x: Floats, min_exponent: int) -> Floats:
    e = np.maximum(np.frexp(x)[1] - 1, min_exponent)
    return np.where(x == 0, 0.0, np.ldexp(1.0, e))


def _unit_roundoff(rho: Conversion) -> float:
    bits = rho.mantissa_bits or formats.get(rho.format).mantissa_bits
    return 2.0 ** -(bits + rho.mode.startswith("RN"))


def _smallest_step(rho: Conversion) -> float:
    fmt = formats.get(rho.format)
    return 2.0 ** (fmt.min_exponent - (rho.mantissa_bits or fmt.mantissa_bits) + 1)


def _group(model: Model) -> _Group | None:
    rho = last_rounding(model)
    u, eta = _unit_roundoff(rho), _smallest_step(rho)
    match model:
        case TFDPA(L=L, F=F) | STFDPA(L=L, F=F):
            alpha = (L + 1) * 2.0**-F
            return _Group(L, u, eta, alpha, alpha, growth=0.0 if rho.mode == "RZ" else u)
        case GSTFDPA(L=L, G=G, F=F):
            alpha = (L // G + 1) * 2.0**-F
            return _Group(L, u, eta, alpha, alpha, growth=0.0 if rho.mode == "RZ" else u)
        case TRFDPA(L=L, F=F, F2=F2) | GTRFDPA(L=L, F=F, F2=F2):
            joins = 3 if isinstance(model, GTRFDPA) else 1
            alpha = (L + joins) * 2.0**-F + 2.0 ** -(F2 + 1)
            kappa = 2.0**-F2 + u
            return _Group(L, kappa, eta, alpha, alpha, growth=alpha + kappa)
        case FTZMulAdd(P=P):
            pi = u * (1 + math.log2(P))
            return _Group(P, u, eta + 2 * P * 2.0**-126, pi=pi, growth=u)
        case Lowered(K=K, unit=unit):
            groups = sum(-(-K * len(part) // (_period(model) * unit.L)) for part in model.parts)
            inner = _unit_roundoff(unit.rho)
            alpha = (unit.L + 1) * 2.0**-unit.F
            grown = (1 + inner) ** groups
            pi = groups * (alpha + inner) * grown
            eta += groups * _smallest_step(unit.rho)
            return _Group(K, u * grown, eta, groups * alpha, pi=pi, growth=u)
        case FMA() | EFDPA():
            return _Group(model.group, u, eta, growth=u)
    return None


def _period(model: Lowered) -> int:
    return sum(map(len, model.parts))


def check(values: Any, error: Floats, where: Any) -> Bound:
    """Whether the bound held on the outputs of ``where``."""
    size, limit = np.abs(error[where]), values[where]
    ratio = np.divide(size, limit, out=np.zeros(size.shape), where=limit > 0)
    return Bound(values, int((size > limit).sum()), float(ratio.max(initial=0.0)))
