#!/usr/bin/env python3
"""Every vector kernel, on every instruction set of this machine, against the exact evaluator.

    python scripts/fuzz_kernels.py --seconds 600 --seed 7
    python scripts/fuzz_kernels.py --seed 7 --only 1234      # one product again

Draws models (the catalogue's and hypothetical ones), formats, shapes, strides and operands with the
specials and the exponents that kernels find hard, and compares codes. Exit code 1 and everything
needed to reproduce it at the first difference; the exact evaluator itself is tested against
`bitmma.reference` in tests/, and here too for FDPA and SumTree, most of which have no kernel.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bitmma import _native, formats, isa, models, reference
from bitmma.engine import cpu
from bitmma.models import Model

Codes = npt.NDArray[Any]
Rng = np.random.Generator

OPERANDS = [f.name for f in formats.FORMATS.values() if f.signed]
C_FORMATS = ("f32", "f16", "bf16", "f64")
MODES = tuple(formats.ROUNDINGS)
OF_THE_REFERENCE = 4  # outputs of a general model's product that it is asked for


@dataclass(frozen=True)
class Unit:
    """A model, its formats, and how many products one instruction has."""

    model: Model
    a: str
    b: str
    c: str
    k: int
    scale: str | None = None
    block: int | None = None

    @property
    def spec(self) -> npt.NDArray[np.int64]:
        return cpu._spec(self.model, self.a, self.b, self.c, self.k, self.scale, self.block)


# --- what to compute ------------------------------------------------------------------------------


def pick(rng: Rng, choices: Sequence[Any]) -> Any:
    return choices[rng.integers(len(choices))]


def chance(rng: Rng, p: float) -> bool:
    return bool(rng.random() < p)


CATALOGUE = list(
    dict.fromkeys(Unit(e.model, e.a, e.b, e.c, e.k, e.scale, e.block) for e in isa.catalogue())
)


def draw_unit(rng: Rng) -> Unit:
    """One of the catalogue's, or a hypothetical one."""
    return pick(rng, CATALOGUE) if chance(rng, 0.5) else _hypothetical(rng)


def _conversion(rng: Rng) -> models.Conversion:
    if chance(rng, 0.6):
        usual = (models.RZ_FP32, models.RZ_E8M13, models.RNE_FP16, models.RNE_FP32)
        return pick(rng, usual)
    d = pick(rng, ("f32", "f32", "f16", "bf16", "f64"))
    bits = formats.get(d).mantissa_bits
    return models.Conversion(pick(rng, MODES), d, int(rng.integers(1, bits + 1)))


def _hypothetical(rng: Rng) -> Unit:
    L = int(pick(rng, (1, 2, 3, 4, 5, 8, 16, 32, 64)))
    F = int(rng.integers(1, 64 if chance(rng, 0.2) else 36))
    F2 = F + int(rng.integers(-3, 9)) if chance(rng, 0.8) else int(rng.integers(1, 65))
    F2 = min(max(F2, 1), 64)
    e_zero = int(pick(rng, (-133, -132, -139, -21, -300, 0, 40, -100_000)))
    rho = _conversion(rng)
    if chance(rng, 0.2):
        return draw_general(rng, L)
    nearest = rho if rho.mode == "RNE" else models.RNE_FP32
    toward_zero = rho if rho.mode == "RZ" else models.RZ_FP32
    a = pick(rng, OPERANDS)
    b = a if chance(rng, 0.5) else pick(rng, OPERANDS)
    scale, block = None, None
    model: Model
    match pick(rng, ("T", "T", "ST", "GST", "TR", "GTR", "E", "FTZ", "FMA", "Lowered")):
        case "T":
            model = models.TFDPA(L, F, rho, e_zero)
        case "ST":
            model = models.STFDPA(L, F, rho, e_zero)
            scale, block = "ue8m0", L * int(pick(rng, (1, 1, 2)))
        case "GST":
            G = int(pick(rng, (1, 2, 4, 8, 16, 32)))
            model = models.GSTFDPA(G * int(pick(rng, (1, 2, 4))), G, F, toward_zero, e_zero)
            scale, block = pick(rng, ("ue8m0", "ue4m3")), G * int(pick(rng, (1, 1, 2)))
            narrow = [f for f in OPERANDS if formats.get(f).width <= 8]
            a = b = "e2m1"
            if chance(rng, 0.2):
                a, b = pick(rng, narrow), pick(rng, narrow)
        case "TR":
            model = models.TRFDPA(L, F, F2, nearest)
        case "GTR":
            model = models.GTRFDPA(L, F, F2, nearest)
        case "E":
            model = models.EFDPA(L, nearest)
        case "FTZ":
            model = models.FTZMulAdd(int(pick(rng, (2, 4))))
        case "FMA":
            model = models.FMA(pick(rng, (models.RNE_FP32, models.RNE_FP64)))
        case _:
            parts = pick(rng, (((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0,), (1,)), ((0, 1, 2),)))
            period = sum(map(len, parts))
            unit = models.TFDPA(int(pick(rng, (1, 2, 4, 8, 16))), F, rho, e_zero)
            model = models.Lowered(period * int(pick(rng, (1, 2, 4, 8))), unit, parts)
    k = model.group * int(pick(rng, (1, 2, 3)))
    if scale is None and chance(rng, 0.1):
        k = max(1, k - 1)  # the last group of every instruction is filled up
    c = model.d if chance(rng, 0.5) else pick(rng, C_FORMATS)
    return Unit(model, a, b, c, k, scale, block)


def draw_general(rng: Rng, L: int) -> Unit:
    """An FDPA with any of its choices, or a tree of any shape; or a family as an FDPA."""
    if chance(rng, 0.1):
        unit = pick(rng, CATALOGUE)
        return dataclasses.replace(unit, model=models.as_fdpa(unit.model) or unit.model)
    a = pick(rng, OPERANDS)
    b = a if chance(rng, 0.5) else pick(rng, OPERANDS)
    scale, block = None, None
    if chance(rng, 0.5):
        model: Model = draw_fdpa(rng, L)
        k = L * int(pick(rng, (1, 2, 3, 7)))
        if chance(rng, 0.2):
            scale, block = pick(rng, ("ue8m0", "ue4m3")), int(pick(rng, (1, 2, 3, 8, 16)))
            k += -k % block
        elif chance(rng, 0.1):
            k = max(1, k - 1)
    else:
        model = draw_tree(rng, int(pick(rng, (1, 2, 3, 4, 8, 16, 40))))
        k = model.group
    c = model.d if chance(rng, 0.5) else pick(rng, C_FORMATS)
    return Unit(model, a, b, c, k, scale, block)


def draw_fdpa(rng: Rng, L: int) -> models.FDPA:
    """Every field drawn; half of the cuts near each other, so that they decide."""
    near = int(rng.integers(3, 40))

    def bits() -> int | None:
        if chance(rng, 0.3):
            return None
        return int(np.clip(near + rng.integers(-3, 9), 1, 65) if chance(rng, 0.7)
                   else rng.integers(1, 66))  # fmt: skip

    def rarely(value: Any, otherwise: Any = None) -> Any:
        return value if chance(rng, 0.25) else otherwise

    c = pick(rng, ("early", "late"))
    e_zero = int(pick(rng, (-133, -126, -21, 0, 40, -300, -100_000)))
    flushes = [rarely(pick(rng, ("zero", "sign")), "no") for _ in range(3)]
    return models.FDPA(
        L, bits(), pick(rng, MODES), c, bits(), pick(rng, MODES), pick(rng, (e_zero, None)),
        rarely(near + int(rng.integers(-2, 4))), chance(rng, 0.25),
        pick(rng, (1, 1, 2, 3)), bits(), pick(rng, MODES),
        bits() if c == "late" else None, pick(rng, MODES),
        draw_rho(rng) if c == "late" and chance(rng, 0.4) else None,
        rarely(bits()), pick(rng, MODES), rarely(int(pick(rng, (-126, -14, 0, 20)))),
        rarely(int(pick(rng, (128, 16, 0)))), draw_rho(rng), *flushes,
        rarely("pairwise", "chain"), pick(rng, models.ZERO_RULES), nan=pick(rng, ("ones", "quiet")),
        tiny=pick(rng, models.TINY_RULES),
    )  # fmt: skip


def draw_rho(rng: Rng) -> models.Conversion:
    rho = _conversion(rng)
    return dataclasses.replace(rho, overflow=pick(rng, ("inf", "inf", *models.OVERFLOWS)))


def draw_tree(rng: Rng, K: int) -> models.SumTree:
    """Neighbours joined in any order to nodes of one to five children; c anywhere or nowhere.

    Half of them are made of the additions and fused multiply-adds that machines have.
    """
    plain = chance(rng, 0.5)
    parts: list[Any] = [*range(K), *(["c"] if chance(rng, 0.8) else [])]
    rng.shuffle(parts)  # type: ignore[arg-type]
    while len(parts) > 1 or not isinstance(parts[0], tuple):
        count = int(pick(rng, (1, 2, 2, 2) if plain else (1, 2, 2, 2, 3, 5)))
        count = min(count, len(parts))
        first = int(rng.integers(len(parts) - count + 1))
        parts[first : first + count] = [tuple(parts[first : first + count])]
    flushes = [pick(rng, ("no", "no", *models.FLUSHES)) for _ in range(3)]
    rho, zero = draw_rho(rng), pick(rng, models.ZERO_RULES)
    rho_product = draw_rho(rng) if chance(rng, 0.4) else None
    if plain:
        rho, zero = pick(rng, (models.RNE_FP32, models.RNE_FP64)), "ieee"
        rho_product = rho if rho_product else None
    tree = models.SumTree(parts[0]).tree
    if not plain and chance(rng, 0.5):
        tree = bracketed(rng, tree)
    out = draw_rho(rng) if chance(rng, 0.3) else None
    return models.SumTree(
        tree, rho, rho_product, out, *flushes, zero, draw_rho(rng) if "[" in tree else None,
        pick(rng, (None, *models.FLUSHES)) if out else None, nan=pick(rng, ("ones", "quiet")),
        tiny=pick(rng, models.TINY_RULES),
    )  # fmt: skip


def bracketed(rng: Rng, tree: str) -> str:
    """The tree with some of its nodes written in brackets."""
    found, open_nodes = list(tree), []
    for i, letter in enumerate(tree):
        if letter == "(":
            open_nodes.append(i)
        elif letter == ")" and chance(rng, 0.4):
            found[open_nodes.pop()], found[i] = "[]"
        elif letter == ")":
            open_nodes.pop()
    return "".join(found)


# --- operands -------------------------------------------------------------------------------------


def draw_codes(rng: Rng, format: str, shape: tuple[int, int]) -> Codes:
    """Codes of a format: any bits, or exponents near each other; specials, zeros and repeats."""
    fmt = formats.get(format)
    bits = rng.integers(0, 1 << fmt.width, shape, dtype=np.uint64)
    codes = bits
    if chance(rng, 0.8):
        top = (1 << fmt.exponent_bits) - 1
        middle = min(fmt.bias, top) if chance(rng, 0.3) else int(rng.integers(0, top + 1))
        spread = int(pick(rng, (0, 1, 2, 3, 6, 12, 25, 60, 200, 1000)))
        field = np.clip(middle + rng.integers(-spread, spread + 1, shape), 0, top)
        mantissa = bits & np.uint64((1 << fmt.mantissa_bits) - 1)
        if chance(rng, 0.2):  # few significant bits: ties
            mantissa &= ~np.uint64((1 << max(fmt.mantissa_bits - 3, 0)) - 1)
        word = field.astype(np.uint64) << np.uint64(fmt.mantissa_bits) | mantissa
        if fmt.signed:
            sign = np.uint64(0) if chance(rng, 0.1) else rng.integers(0, 2, shape, dtype=np.uint64)
            word |= sign << np.uint64(fmt.exponent_bits + fmt.mantissa_bits)
        codes = word << np.uint64(fmt.dropped_bits)
        if fmt.dropped_bits and chance(rng, 0.3):  # what the unit must not see
            codes |= bits & np.uint64((1 << fmt.dropped_bits) - 1)
    if chance(rng, 0.7):
        values = formats.decode(codes.astype(fmt.code_dtype), fmt)
        codes[~np.isfinite(values)] = 0
        if chance(rng, 0.3):
            some = rng.random(shape) < pick(rng, (0.001, 0.01, 0.1))
            codes[some] = rng.integers(0, 1 << fmt.width, int(some.sum()), dtype=np.uint64)
    if chance(rng, 0.3):
        codes[rng.random(shape) < pick(rng, (0.1, 0.5, 0.95))] = 0
    if codes.size and chance(rng, 0.1):
        codes[...] = codes[:, :1] if chance(rng, 0.5) else codes[:1]
    return codes.astype(fmt.code_dtype)


def draw_scales(rng: Rng, format: str, shape: tuple[int, int]) -> Codes:
    if format == "ue4m3" or chance(rng, 0.2):
        return rng.integers(0, 256, shape).astype(np.uint8)
    middle, spread = int(rng.integers(0, 256)), int(pick(rng, (0, 1, 3, 20, 100)))
    top = 254 if chance(rng, 0.8) else 255  # 255 is NaN
    return np.clip(middle + rng.integers(-spread, spread + 1, shape), 0, top).astype(np.uint8)


def lay_out(rng: Rng, x: Codes) -> Codes:
    """The same codes elsewhere in memory: C or Fortran order, every second one, or backwards."""
    rows, cols = x.shape
    match pick(rng, ("C", "C", "C", "Fortran", "spaced", "backward")):
        case "Fortran":
            return np.asfortranarray(x)
        case "spaced":
            y = np.empty((rows * 2 + 1, cols * 3 + 2), x.dtype)[: rows * 2 : 2, : cols * 3 : 3]
            y[...] = x
            return y
        case "backward":
            return np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1]
    return x


@dataclass(frozen=True)
class Problem:
    """One product: a unit and its operands."""

    unit: Unit
    operands: tuple[Codes | None, ...]  # A, B, C, scale_a, scale_b
    shape: tuple[int, int, int]
    promotion: dict[str, Any]  # what `bitmma.engine.mma` takes, scales as codes

    @property
    def d(self) -> formats.Format:
        return formats.get(sum_format(self.unit.model) if self.promotion else self.unit.model.d)

    def run(self, rng: Rng, isa_name: str, *, exact: bool = False) -> Codes:
        M, N, _ = self.shape
        A, B, C, *scales = self.operands
        d = lay_out(rng, np.zeros((M, N), self.d.code_dtype))
        _native.mma(
            self.unit.spec, A, B, C, d, *scales, isa=isa_name, exact=exact, **self.promotion
        )
        return d

    def dot_product(self, i: int, j: int) -> tuple[list[int], list[int], int, dict[str, Any]]:
        """The codes behind one output: a, b, c, and scales by name."""
        A, B, C, scale_a, scale_b = self.operands
        assert A is not None and B is not None
        scales = {
            "scale_a": scale_a[i].tolist() if scale_a is not None else [],
            "scale_b": scale_b[:, j].tolist() if scale_b is not None else [],
        }
        if self.promotion:
            for name, line in (("promote_scale_a", i), ("promote_scale_b", (slice(None), j))):
                x = self.promotion[name]
                scales[name] = [] if x is None else x[line].tolist()
        return A[i].tolist(), B[:, j].tolist(), int(C[i, j]) if C is not None else 0, scales

    def by_reference(self, i: int, j: int) -> int:
        """One output."""
        u = self.unit
        a, b, c, scales = self.dot_product(i, j)
        more = {k: v for k, v in self.promotion.items() if not k.startswith("promote_scale")}
        chain = reference.promoted_chain if more else reference.chain
        return chain(
            u.model, a, b, c, k=u.k, a_format=u.a, b_format=u.b, c_format=u.c,
            scale_format=u.scale, block=u.block, **scales, **more,
        )  # fmt: skip


def sum_format(model: Model) -> str:
    """What promoted results are added in."""
    return "f64" if model.d == "f64" else "f32"


def draw_promotion(rng: Rng, u: Unit, M: int, N: int, K: int) -> dict[str, Any]:
    if chance(rng, 0.7) or (u.block and math.lcm(u.k, u.block) > K + u.k):
        return {}
    every = math.lcm(u.k, u.block or 1) * int(pick(rng, (1, 1, 2, 3, 8)))
    parts = -(-K // every)
    scales = [
        lay_out(rng, draw_codes(rng, "f32", shape))
        if u.model.d != "f64" and chance(rng, 0.6)
        else None
        for shape in ((M, parts), (parts, N))
    ]
    return {
        "promote": every, "promote_fused": chance(rng, 0.5),
        "promote_scale_a": scales[0], "promote_scale_b": scales[1],
    }  # fmt: skip


def draw_problem(rng: Rng) -> Problem:
    u = draw_unit(rng)
    M = int(rng.integers(1, 7)) if chance(rng, 0.3) else int(rng.integers(1, 40))
    N = (
        1
        if chance(rng, 0.1)
        else int(pick(rng, (64, 128)))
        if chance(rng, 0.2)
        else int(rng.integers(1, 90))
    )
    K = u.k if chance(rng, 0.2) else int(rng.integers(0, 5 * u.k + 20))
    if chance(rng, 0.02):  # chunks of a product with few rows
        M, N, K = 1, min(N, 64), K + int(rng.integers(2200))
    A, B = draw_codes(rng, u.a, (M, K)), draw_codes(rng, u.b, (K, N))
    promotion = draw_promotion(rng, u, M, N, K)
    c_format = sum_format(u.model) if promotion else u.c
    C = draw_codes(rng, c_format, (M, N)) if chance(rng, 0.8) else None
    scales: list[Codes | None] = [None, None]
    if u.scale and u.block:
        blocks = -(-K // u.block)
        scales = [draw_scales(rng, u.scale, s) for s in ((M, blocks), (blocks, N))]
    laid = tuple(x if x is None else lay_out(rng, x) for x in (A, B, C, *scales))
    return Problem(u, laid, (M, N, K), promotion)


# --- comparing ------------------------------------------------------------------------------------


Counts = collections.Counter[tuple[str, str]]


def check(problem: Problem, rng: Rng, counts: Counts) -> str | None:
    """What differs, or None. Counts outputs by family and instruction set."""
    unit, (M, N, K) = problem.unit, problem.shape
    family = unit.model.family
    want = problem.run(rng, "", exact=True)
    values = formats.decode(want, problem.d)
    counts[family, "outputs"] += M * N
    counts[family, "plain numbers"] += int((np.isfinite(values) & (values != 0)).sum())
    runs = [(name, False) for name in _native.isas() if _native.has_kernel(unit.spec, name)]
    general = isinstance(unit.model, models.FDPA | models.SumTree)
    if general or chance(rng, 0.05):  # the exact evaluator is compiled for each of them, too
        runs += [(name, True) for name in _native.isas()]
    for name, exact in runs:
        got = problem.run(rng, name, exact=exact)
        column = f"{name}, exact" if exact else name
        counts[family, column] += M * N
        if (got != want).any():
            return _report(problem, f"{family} {column}", got, want)
    if general:  # nothing but the exact evaluator serves most of these
        for _ in range(OF_THE_REFERENCE):
            i, j = int(rng.integers(M)), int(rng.integers(N))
            got = want.copy()
            want[i, j] = problem.by_reference(i, j)
            counts[family, "reference"] += 1
            if got[i, j] != want[i, j]:
                return _report(problem, f"{family} reference", got, want)
    # All builds form the sums alike. (Blocks that straddle instructions are no unit's.)
    if problem.promotion and K <= 200 and unit.k % (unit.block or 1) == 0:
        counts[family, "promoted"] += M * N
        i, j = int(rng.integers(M)), int(rng.integers(N))
        got = want.copy()
        got[i, j] = problem.by_reference(i, j)
        if got[i, j] != want[i, j]:
            return _report(problem, f"{family} exact evaluator and reference", want, got)
    return None


def _report(problem: Problem, label: str, got: Codes, want: Codes) -> str:
    u, (M, N, K) = problem.unit, problem.shape
    wrong = np.argwhere(got != want)
    i, j = (int(x) for x in wrong[0])
    row, column, c, scales = problem.dot_product(i, j)
    promotion = {k: v for k, v in problem.promotion.items() if k not in scales}
    referee = problem.by_reference(i, j)
    return "\n".join([
        f"DIFFERENCE {label}: {len(wrong)} of {M * N} outputs, M, N, K = {M}, {N}, {K}",
        f"  {u!r}",
        *([f"  {promotion}"] if promotion else []),
        f"  strides {[None if x is None else x.strides for x in problem.operands]}",
        f"  first at ({i}, {j}): {got[i, j]:#x}; exact evaluator {want[i, j]:#x}, "
        f"reference {referee:#x}",
        f"  a = {_hex(row)}",
        f"  b = {_hex(column)}",
        f"  c = {c:#x}",
        *(f"  {name} = {_hex(codes)}" for name, codes in scales.items() if codes),
    ])  # fmt: skip


def _hex(codes: Sequence[int]) -> str:
    return f"[{', '.join(f'{x:#x}' for x in codes)}]"


def rounds(seconds: float, count: int | None, only: int | None) -> Iterator[int]:
    """Numbers of problems: so many, or until the time is up, or the one asked for."""
    if only is not None:
        yield only
        return
    end = time.monotonic() + seconds
    index = 0
    while index < count if count is not None else time.monotonic() < end:
        yield index
        index += 1


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--count", type=int, help="so many products, however long they take")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of the one product to try")
    parser.add_argument("--family", help="only this: T-FDPA, FMA, ...")
    options = parser.parse_args(argv)
    counts: Counts = collections.Counter()
    problems = 0
    for index in rounds(options.seconds, options.count, options.only):
        rng = np.random.default_rng((options.seed, index))
        problem = draw_problem(rng)
        if options.family not in (None, problem.unit.model.family):
            continue
        difference = check(problem, rng, counts)
        problems += 1
        if difference:
            print(difference)
            print(f"  again: {sys.argv[0]} --seed {options.seed} --only {index}")
            return 1
    _print_table(counts)
    print(f"{problems} products, no difference")
    return 0


def _print_table(counts: Counts) -> None:
    """Outputs by family: all, those neither zero nor special, those compared with each build."""
    builds = _native.isas()
    exact = [f"{x}, exact" for x in builds]
    columns = ["outputs", "plain numbers", "promoted", *builds, *exact, "reference"]
    print(f"{'':12}", *(f"{x:>18}" for x in columns))
    for family in sorted({f for f, _ in counts}):
        print(f"{family:12}", *(f"{counts[family, x]:18,}" for x in columns))


if __name__ == "__main__":
    sys.exit(main())
