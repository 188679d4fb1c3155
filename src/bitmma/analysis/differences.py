"""Two units on the same product, and two properties of sums that units may lack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bitmma import formats
from bitmma.analysis import stages
from bitmma.analysis.exact import ulp
from bitmma.analysis.stages import CAUSES, Product
from bitmma.analysis.tables import Tabular
from bitmma.formats import Format
from bitmma.unit import resolve

__all__ = [
    "Asymmetry",
    "Difference",
    "NonMonotonicity",
    "discrepancy",
    "monotonicity",
    "symmetry",
]

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[Any]
Index = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Difference(Tabular):
    """What `discrepancy` found.

    Attributes:
        first, second: who computed.
        outputs: how many. differing: how many of them differ in value (two NaNs do not, nor do +0
            and -0). share: differing / outputs.
        mean_abs, max_abs: of the difference where both are finite, over all outputs. max_ulps: the
            largest in units in the last place of the coarser output format at the exact result.
        steps: how many of the differing outputs agree once this is switched off in both units,
            causes in order (`bitmma.analysis.stages`): that step made the difference. "special":
            outputs that an Inf or NaN decides; "not split": of models without switches.
        worst: the output with the largest difference, and what the two gave there; None if none.
        parts_at: after how many products of the worst output's chain the two accumulators first
            differ; None if none do.
        d: both results, in float64.
    """

    first: str
    second: str
    outputs: int
    differing: int
    mean_abs: float
    max_abs: float
    max_ulps: float
    steps: dict[str, int]
    worst: tuple[Index, float, float] | None
    parts_at: int | None
    d: tuple[Floats, Floats]

    @property
    def share(self) -> float:
        return self.differing / self.outputs

    def _title(self) -> str:
        text = f"{self.first} | {self.second}: {self.differing} of {self.outputs} differ"
        if self.worst:
            index, d1, d2 = self.worst
            text += f"; worst at {index}: {d1!r} | {d2!r}"
        if self.parts_at:
            text += f", apart from product {self.parts_at} on"
        return text

    def _table(self) -> list[dict[str, Any]]:
        return [
            {"first": self.first, "second": self.second, "share": self.share,
             "mean_abs": self.mean_abs, "max_abs": self.max_abs, "max_ulps": self.max_ulps,
             **{f"by {cause}": n for cause, n in self.steps.items()}}
        ]  # fmt: skip


@formats.in_default_environment
def discrepancy(
    first: Any,
    second: Any,
    A: Any,
    B: Any,
    C: Any | None = None,
    *,
    scale_a: Any | None = None,
    scale_b: Any | None = None,
    schedule: Any | None = None,
) -> Difference:
    """The same product on two units: the share of outputs that differ, by how much, and why.

    Args:
        first, second: Instructions or (gpu, name) pairs, of the same operand formats.
        A, B, C, scale_a, scale_b, schedule: as for `bitmma.matmul`.

    Raises:
        TypeError, ValueError: as `bitmma.matmul`; operand formats that differ.
    """
    one, two = resolve(first, "first"), resolve(second, "second")
    for field in ("a", "b", "c", "scale", "block"):
        mine, other = getattr(one, field), getattr(two, field)
        alike = mine == other or (mine and other and {mine, other} == {"tf32", "xf32"})
        if not alike and not (field == "c" and C is None):
            raise ValueError(
                f"first takes {field} of {mine} and second of {other}: "
                "discrepancy compares units on the same operands"
            )
    p, q = (stages.product(x, A, B, C, scale_a, scale_b, schedule) for x in (one, two))
    differ = _differ(p.d, q.d)
    finite = np.isfinite(p.d) & np.isfinite(q.d)
    gap = np.abs(np.where(finite, p.d, 0.0) - np.where(finite, q.d, 0.0))
    coarser = max((ulp(x.exact.value, formats.get(x.d_format)) for x in (p, q)), key=np.max)
    worst, parts_at = None, None
    if differ.any():
        at = np.unravel_index(
            int(np.argmax(np.where(finite, gap, 0.0) + differ * 1e-300)), p.d.shape
        )
        index = tuple(int(i) for i in at)
        worst = index, float(p.d[index]), float(q.d[index])
        parts_at = None if schedule is not None else _parts_at(p, q, index)
    return Difference(
        one.title, two.title, p.d.size, int(differ.sum()), float(gap.mean()),
        float(gap.max(initial=0.0)), float((gap / coarser).max(initial=0.0)),
        _steps(p, q, differ), worst, parts_at, (p.d, q.d),
    )  # fmt: skip


def _differ(x: Floats, y: Floats) -> npt.NDArray[np.bool_]:
    differ: npt.NDArray[np.bool_] = (x != y) & ~(np.isnan(x) & np.isnan(y))
    return differ


def _steps(p: Product, q: Product, differ: npt.NDArray[np.bool_]) -> dict[str, int]:
    """For each differing output, the first switch after which the two agree."""
    open_ = differ & ~p.special
    counts = {cause: 0 for cause in CAUSES}
    if open_.any():
        now, peeled = [p.d, q.d], [{s.cause: s.d for s in stages.peel(x)} for x in (p, q)]
        if not all(peeled):
            return {"not split": int(differ.sum())}
        for cause in CAUSES[:-1]:
            for i, without in enumerate(peeled):
                d = without.get(cause)
                now[i] = now[i] if d is None else d
            agree = open_ & ~_differ(now[0], now[1])
            counts[cause] = int(agree.sum())
            open_ = open_ & ~agree
        counts["rounding"] = int(open_.sum())
    special = int((differ & p.special).sum())
    return counts | ({"special": special} if special else {})


def _parts_at(p: Product, q: Product, index: Index) -> int | None:
    """The length of the shortest chain, in whole instructions, on which the two differ."""
    *lead, i, j = index
    step = max(p.instr.k, q.instr.k)
    for stop in range(step, p.K + step, step):
        d = [stages.run(x.instr, _cut(x, tuple(lead), i, j, stop), None)[0, 0] for x in (p, q)]
        if _differ(d[0], d[1]).any():
            return min(stop, p.K)
    return None


def _cut(p: Product, lead: Index, i: int, j: int, stop: int) -> tuple[Any, ...]:
    """The operands of one output's first ``stop`` products, as codes."""
    blocks = -(-stop // p.instr.block) if p.instr.block else None
    rows, columns = slice(i, i + 1), slice(j, j + 1)
    where = (
        (rows, slice(stop)), (slice(stop), columns), (rows, columns),
        (rows, slice(blocks)), (slice(blocks), columns),
    )  # fmt: skip
    cut: list[Codes | None] = []
    for codes, part in zip(p.codes, where, strict=True):
        if codes is None:
            cut.append(None)
        else:
            whole = np.broadcast_to(codes, (*p.d.shape[:-2], *codes.shape[-2:]))
            cut.append(whole[(*lead, *part)])
    return tuple(cut)


# --- two properties -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Asymmetry(Tabular):
    """What `symmetry` found: a unit without directed rounding gives 0 violations.

    Attributes:
        title: who computed. outputs: how many; violations: of them.
        max_abs: the largest |Φ(-A, B, -C) + Φ(A, B, C)|. mean: its mean, signed: twice the bias
            that comes of the asymmetry.
        example: an output of the largest violation and the two results; None without one.
    """

    title: str
    outputs: int
    violations: int
    max_abs: float
    mean: float
    example: tuple[Index, float, float] | None

    @property
    def share(self) -> float:
        return self.violations / self.outputs

    def _title(self) -> str:
        return f"{self.title}: Φ(-A, B, -C) = -Φ(A, B, C)"

    def _table(self) -> list[dict[str, Any]]:
        return [
            {"unit": self.title, "outputs": self.outputs, "violations": self.violations,
             "max_abs": self.max_abs, "mean": self.mean}
        ]  # fmt: skip


@formats.in_default_environment
def symmetry(
    instruction: Any,
    A: Any,
    B: Any,
    C: Any | None = None,
    *,
    scale_a: Any | None = None,
    scale_b: Any | None = None,
) -> Asymmetry:
    """Whether Φ(-A, B, -C) = -Φ(A, B, C), as it is of every unit without directed rounding.

    Signs of zero and NaNs do not count. Arguments as for `bitmma.matmul`.
    """
    instr = resolve(instruction)
    a, b, c, *scales = stages.to_codes(instr, A, B, C, scale_a, scale_b)
    plain = stages.run(instr, (a, b, c, *scales), None)
    negated = _negative(a, instr.a), b, None if c is None else _negative(c, instr.c)
    mirrored = stages.run(instr, (*negated, *scales), None)
    broken = _differ(mirrored, -plain)
    with np.errstate(invalid="ignore"):
        gap = mirrored + plain
    gap = np.where(np.isfinite(gap), gap, 0.0)
    example = None
    if broken.any():
        at = np.unravel_index(int(np.argmax(np.where(broken, np.abs(gap), -1.0))), gap.shape)
        index = tuple(int(i) for i in at)
        example = index, float(plain[index]), float(mirrored[index])
    return Asymmetry(
        instr.title, plain.size, int(broken.sum()), float(np.abs(gap).max(initial=0.0)),
        float(gap.mean()), example,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class NonMonotonicity(Tabular):
    """What `monotonicity` found.

    Attributes:
        title: who computed.
        comparisons: outputs compared after raising C, and after raising a product.
        by_c, by_product: how many of them fell.
        largest: the largest fall, in units in the last place of the output.
        example: an output of the largest fall, what was raised (-1: C, else which k), and what it
            was before and after; None without one.
    """

    title: str
    comparisons: tuple[int, int]
    by_c: int
    by_product: int
    largest: float
    example: tuple[Index, int, float, float] | None

    @property
    def violations(self) -> int:
        return self.by_c + self.by_product

    def _title(self) -> str:
        return f"{self.title}: outputs that fall when C or one product is raised"

    def _table(self) -> list[dict[str, Any]]:
        return [
            {"unit": self.title, "comparisons": sum(self.comparisons), "by C": self.by_c,
             "by a product": self.by_product, "largest fall in ulps": self.largest}
        ]  # fmt: skip


@formats.in_default_environment
def monotonicity(
    instruction: Any,
    A: Any,
    B: Any,
    C: Any | None = None,
    *,
    scale_a: Any | None = None,
    scale_b: Any | None = None,
) -> NonMonotonicity:
    """Raise C, then each column of A in turn, to the next number up: which outputs fall?

    An exact sum never falls when a term rises; a unit that cuts its terms at a common exponent may:
    the raised term can push the others' low bits out. Where b is negative a product sinks instead,
    and an output that rises counts. K + 2 products are computed. Arguments as for `bitmma.matmul`.
    """
    instr = resolve(instruction)
    a, b, c, *scales = stages.to_codes(instr, A, B, C, scale_a, scale_b)
    c_format = formats.get(instr.c)
    if c is None:
        lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        c = np.zeros((*lead, *a.shape[-2:-1], *b.shape[-1:]), c_format.code_dtype)
    before = stages.run(instr, (a, b, c, *scales), None)
    fallen, example, largest = [0, 0], None, 0.0

    def look(after: Floats, sign: Any, k: int) -> None:
        nonlocal example, largest
        with np.errstate(invalid="ignore"):
            fall = np.where(np.isfinite(before) & np.isfinite(after), (before - after) * sign, 0.0)
        worse = fall > 0
        fallen[k >= 0] += int(worse.sum())
        if worse.any():
            steps = fall / ulp(before, formats.get(instr.d))
            at = np.unravel_index(int(np.argmax(np.where(worse, steps, -1.0))), fall.shape)
            index = tuple(int(i) for i in at)
            if steps[index] > largest:
                largest = float(steps[index])
                example = index, k, float(before[index]), float(after[index])

    look(stages.run(instr, (a, b, _next_up(c, c_format), *scales), None), 1.0, -1)
    values_b = np.nan_to_num(formats.decode(b, instr.b), nan=0.0)
    for k in range(a.shape[-1]):
        raised = a.copy()
        raised[..., k] = _next_up(raised[..., k], formats.get(instr.a))
        after = stages.run(instr, (raised, b, c, *scales), None)
        look(after, np.sign(values_b[..., k, :])[..., None, :], k)
    count = before.size
    return NonMonotonicity(
        instr.title, (count, count * a.shape[-1]), fallen[0], fallen[1], largest, example
    )


def _negative(codes: Codes, fmt: str) -> Codes:
    """The codes of -x; the FNUZ formats' zero and NaN have no negative."""
    target = formats.get(fmt)
    flipped = codes ^ codes.dtype.type(target.sign_bit)
    if target.specials == "fnuz":
        return np.where((codes == 0) | (codes == target.sign_bit), codes, flipped)
    return np.asarray(flipped)


def _next_up(codes: Codes, fmt: Format) -> Codes:
    """The next larger number; the largest, Inf and NaN stay."""
    step, word = 1 << fmt.dropped_bits, fmt.code_dtype.type
    negative = (codes & word(fmt.sign_bit)) != 0
    magnitude = (codes & word((fmt.sign_bit - 1) & ~(step - 1))).astype(np.int64)
    raised = np.minimum(np.where(negative, -magnitude, magnitude) + step, fmt.max_code)
    sign = np.where(raised < 0, word(fmt.sign_bit), word(0))
    up = np.abs(raised).astype(fmt.code_dtype) | sign
    # Inf, NaN, and the negative zero that FNUZ formats use as NaN:
    fixed = (magnitude > fmt.max_code) | ((fmt.specials == "fnuz") & negative & (magnitude == 0))
    return np.where(fixed, codes, up)
