"""Two units on the same product, and two properties of sums that units may lack."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from bitmma import formats
from bitmma.analysis import products
from bitmma.analysis.exact import mean_of, ulp
from bitmma.analysis.products import Product
from bitmma.analysis.steps import Steps, shapley, subsets
from bitmma.analysis.tables import Tabular
from bitmma.formats import Format
from bitmma.gemm import Progress
from bitmma.recipes import Recipe
from bitmma.unit import resolve

__all__ = [
    "Asymmetry",
    "Difference",
    "NonMonotonicity",
    "Step",
    "discrepancy",
    "monotonicity",
    "symmetry",
]

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[Any]
Index = tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """One step in which two units differ, and what it does: see `bitmma.analysis.steps`.

    Attributes:
        name: input, grouping, alignment, rounding, summation or schedule. first, second: what it is
            in the two.
        changes: outputs of the first unit that change if this step alone is made the second's.
        suffices: differing outputs that are then the second's: this step alone makes the whole
            difference.
        share: its share of the differing outputs: how many of them it makes leave the first unit's
            result, on average over all orders in which the steps can be exchanged (its Shapley
            value). The shares of all steps add up to ``Difference.differing``.
        mean: its share, found in the same way, of the mean of second - first, over the outputs
            that are finite whichever steps are exchanged.
    """

    name: str
    first: str
    second: str
    changes: int
    suffices: int
    share: float
    mean: float


@dataclass(frozen=True, eq=False)
class Difference(Tabular):
    """What `discrepancy` found.

    Attributes:
        first, second: who computed.
        outputs: how many. differing: how many of them differ in value (two NaNs do not, nor do +0
            and -0). share: differing / outputs.
        mean_abs, max_abs: of the difference where both are finite, over all outputs. max_ulps: the
            largest in units in the last place: the distance between the numbers of the coarser
            output format around the exact result, which is small where terms cancel.
        steps: what makes the difference; empty for units of the same arithmetic.
        together: differing outputs that no step changes alone: only several steps do.
        worst: the output with the largest difference, and what the two gave there; None if none.
        parts_at: after how many products of the worst output's chain the two accumulators first
            differ; None if none do, or if it is not one chain without an epilogue.
        d: both results, in float64.
    """

    first: str
    second: str
    outputs: int
    differing: int
    mean_abs: float
    max_abs: float
    max_ulps: float
    steps: tuple[Step, ...]
    together: int
    worst: tuple[Index, float, float] | None
    parts_at: int | None
    d: tuple[Floats, Floats]

    @property
    def share(self) -> float:
        return self.differing / self.outputs

    def rows(self) -> list[dict[str, Any]]:
        about = {"first": self.first, "second": self.second, "outputs": self.outputs,
                 "differing": self.differing, "mean_abs": self.mean_abs, "max_abs": self.max_abs,
                 "max_ulps": self.max_ulps}  # fmt: skip
        return [about | row for row in self._table()]

    def _title(self) -> str:
        text = f"{self.first} | {self.second}: {self.differing} of {self.outputs} differ"
        if self.worst:
            index, d1, d2 = self.worst
            text += f"; worst at {index}: {d1!r} | {d2!r}"
        if self.parts_at:
            text += f", apart from product {self.parts_at} on"
        if self.together:
            text += f"; {self.together} by several steps together only"
        return text

    def _table(self) -> list[dict[str, Any]]:
        steps = self.steps or (Step("none", "", "", 0, 0, 0.0, 0.0),)
        return [
            {"step": s.name, "in first": s.first, "in second": s.second, "changes": s.changes,
             "suffices": s.suffices, "share": s.share, "mean": s.mean}
            for s in steps
        ]  # fmt: skip


@formats.in_default_environment
def discrepancy(
    first: Any,
    second: Any,
    A: Any,
    B: Any,
    C: Any | None = None,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> Difference:
    """The same product on two units: the share of outputs that differ, by how much, and why.

    Why: the steps in which they differ (`bitmma.analysis.steps`, and the schedule as one more) are
    exchanged, alone and in all combinations, and every unit between the two computes the product:
    up to 30 that nobody built, which run at a hundredth of the speed where no kernel serves them.

    Args:
        first, second: Instructions or (gpu, name) pairs, of the same operand formats; or recipes
            (`bitmma.recipes`) that hand the same operands to their units and end alike.
        A, B, C: as for `bitmma.matmul`.
        progress: called as ``progress(done, total)``, in products (multiply-adds) of all these
            units, now and then.
        options: scale_a, scale_b, schedule, epilogue, promote_scale_a, promote_scale_b,
            promote_block_a, promote_block_b, as for `bitmma.matmul`, or what the recipes take; the
            same for both.

    Raises:
        TypeError, ValueError: as `bitmma.matmul`; operands that differ in format or, from recipes,
            in value; epilogues that differ.
    """
    who = [
        (x, x.instruction) if isinstance(x, Recipe) else (resolve(x, name),) * 2
        for x, name in ((first, "first"), (second, "second"))
    ]
    (_, one), (_, two) = who
    for field in ("a", "b", "c", "scale", "block"):
        mine, other = getattr(one, field), getattr(two, field)
        alike = mine == other or (mine and other and {mine, other} == {"tf32", "xf32"})
        if not alike and not (field == "c" and C is None):
            raise ValueError(
                f"first takes {field} of {mine} and second of {other}: discrepancy compares units "
                f"on the same operands; dataclasses.replace(second, {field}={mine!r}) is second's "
                "arithmetic on first's"
            )
    between = Steps(one, two)
    p, q = (products.product(x, A, B, C, options) for x, _ in who)
    _check_alike(p, q)
    differ = _differ(p.d, q.d)
    finite = np.isfinite(p.d) & np.isfinite(q.d)
    with np.errstate(over="ignore"):
        gap = np.abs(np.where(finite, p.d, 0.0) - np.where(finite, q.d, 0.0))
    gap = np.minimum(gap, np.finfo(np.float64).max)
    coarser = max((ulp(x.exact.value, formats.get(x.plan.d)) for x in (p, q)), key=np.max)
    worst, parts_at = None, None
    if differ.any():
        at = np.unravel_index(
            int(np.argmax(np.where(finite, gap, 0.0) + differ * 1e-300)), p.d.shape
        )
        index = tuple(int(i) for i in at)
        worst = index, float(p.d[index]), float(q.d[index])
        parts_at = _parts_at(p, q, index)
    steps, together = _steps(p, q, between, differ, progress)
    return Difference(
        p.title, q.title, p.d.size, int(differ.sum()), float(mean_of(gap)),
        float(gap.max(initial=0.0)), float((gap / coarser).max(initial=0.0)),
        steps, together, worst, parts_at, (p.d, q.d),
    )  # fmt: skip


def _differ(x: Floats, y: Floats) -> npt.NDArray[np.bool_]:
    differ: npt.NDArray[np.bool_] = (x != y) & ~(np.isnan(x) & np.isnan(y))
    return differ


def _check_alike(p: Product, q: Product) -> None:
    """What two recipes may make differ is the unit and its schedule."""
    given: list[dict[str, Any]]
    given = [{**x.plan.arrays, **x.plan.promote_blocks, "power": x.power} for x in (p, q)]
    for plan, named in zip((p.plan, q.plan), given, strict=True):
        e = plan.epilogue
        named |= {} if e is None else {f"epilogue.{f.name}": getattr(e, f.name) for f in fields(e)}
    for name in dict.fromkeys([*given[0], *given[1]]):
        x: Any = given[0].get(name)
        y: Any = given[1].get(name)
        if not np.array_equal(x, y, equal_nan=getattr(x, "dtype", np.dtype("V")).kind == "f"):
            raise ValueError(
                f"first and second differ in {name}: discrepancy compares what two units and "
                "schedules make of the same operands, with the same epilogue"
            )
    for x in (p, q):
        schedule = x.plan.schedule
        for k in (p.instr.k, q.instr.k):
            if (schedule.promote_every or k) % k or (
                schedule.split_k > 1 and schedule.split_tile % k
            ):
                raise ValueError(
                    f"the schedule {schedule} of {x.title} cannot be exchanged: it is of no whole "
                    f"number of steps of k = {k}, which the other unit takes"
                )


def _steps(
    p: Product, q: Product, between: Steps, differ: npt.NDArray[np.bool_], progress: Progress | None
) -> tuple[tuple[Step, ...], int]:
    """Every step with what it does, and how many outputs no step changes alone."""
    texts = dict(between.texts)
    if p.plan.schedule != q.plan.schedule:
        texts["schedule"] = str(p.plan.schedule), str(q.plan.schedule)
    names = tuple(texts)
    if not differ.any():
        none = ((name, *text, 0, 0, 0.0, 0.0) for name, text in texts.items())
        return tuple(Step(*x) for x in none), 0
    d = {}
    *proper, everything = subsets(names)
    for n, which in enumerate(proper):
        share = progress and products.share(progress, n, len(proper))
        d[which] = _with(which, p, q, between, share) if which else p.d
    d[everything] = q.d
    finite = np.logical_and.reduce([np.isfinite(x) for x in d.values()])
    count = {which: int((differ & _differ(x, p.d)).sum()) for which, x in d.items()}
    mean = {which: 2 * mean_of(np.concatenate([x[finite], -p.d[finite]])) for which, x in d.items()}
    shares, means = (shapley(x.__getitem__, names) for x in (count, mean))
    alone = {name: d[frozenset({name})] for name in names}
    changed = {name: _differ(x, p.d) for name, x in alone.items()}
    together = differ & ~np.logical_or.reduce([*changed.values(), np.zeros(differ.shape, bool)])
    return tuple(
        Step(
            name, *texts[name], int(changed[name].sum()),
            int((differ & ~_differ(alone[name], q.d)).sum()), float(shares[name]),
            float(means[name]),
        )
        for name in names
    ), int(together.sum())  # fmt: skip


def _with(
    which: frozenset[str], p: Product, q: Product, between: Steps, progress: Progress | None
) -> Floats:
    """The first product, but with these steps from the second."""
    schedule = (q if "schedule" in which else p).plan.schedule
    instr = between.instruction(which - {"schedule"})
    plan = replace(p.plan, instruction=instr, schedule=schedule)
    return p.finished(formats.decode(plan.accumulators(progress=progress), plan.held))


def _parts_at(p: Product, q: Product, index: Index) -> int | None:
    """The length of the shortest chain, in whole instructions, on which the two differ."""
    if not all(x.plan.schedule.is_chain and x.plan.epilogue is None for x in (p, q)):
        return None
    where = tuple(slice(i, i + 1) for i in index)
    step = max(p.instr.k, q.instr.k)
    cut = [x.plan.cut(where) for x in (p, q)]
    for stop in range(step, p.K + step, step):
        k = np.arange(min(stop, p.K))
        d = [products.chain(x, x.instruction, k, x.arrays.get("c")) for x in cut]
        if _differ(*d).any():
            return min(stop, p.K)
    return None


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
    a, b, c, *scales = products.to_codes(instr, A, B, C, scale_a, scale_b)
    plain = products.run(instr, (a, b, c, *scales))
    negated = _negative(a, instr.a), b, None if c is None else _negative(c, instr.c)
    mirrored = products.run(instr, (*negated, *scales))
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
    a, b, c, *scales = products.to_codes(instr, A, B, C, scale_a, scale_b)
    c_format = formats.get(instr.c)
    if c is None:
        lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        c = np.zeros((*lead, *a.shape[-2:-1], *b.shape[-1:]), c_format.code_dtype)
    before = products.run(instr, (a, b, c, *scales))
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

    look(products.run(instr, (a, b, _next_up(c, c_format), *scales)), 1.0, -1)
    values_b = np.nan_to_num(formats.decode(b, instr.b), nan=0.0)
    for k in range(a.shape[-1]):
        raised = a.copy()
        raised[..., k] = _next_up(raised[..., k], formats.get(instr.a))
        after = products.run(instr, (raised, b, c, *scales))
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
