"""A product against its exact result: how wrong, in which direction, and why."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bitmma import formats
from bitmma.analysis import bounds, products, stages
from bitmma.analysis.bounds import Bound
from bitmma.analysis.exact import Exact, exact_product, mean_of, ulp
from bitmma.analysis.tables import Tabular
from bitmma.gemm import Progress
from bitmma.models import Model
from bitmma.recipes import Recipe
from bitmma.unit import Instruction

__all__ = ["Cause", "Errors", "Statistics", "errors", "statistics_of"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Statistics:
    """Of the signed errors d - x of many outputs, x being exact.

    Attributes:
        count: outputs.
        bias: the mean error. low, high: its confidence interval, see `errors`.
        mean_abs, max_abs: of |d - x|. mse: the mean of (d - x)^2.
        mean_ulps, max_ulps: signed mean and largest magnitude, in units in the last place: the
            distance between the numbers of the output's format around x. Where terms cancel, x is
            small beside them and its unit, too: an error that is harmless beside the terms is then
            millions of units.
        mean_relative, max_relative: of |d - x| / |x|, over the outputs whose x is not 0.
        equal: the share of outputs without error.
    """

    count: int
    bias: float
    low: float
    high: float
    mean_abs: float
    max_abs: float
    mse: float
    mean_ulps: float
    max_ulps: float
    mean_relative: float
    max_relative: float
    equal: float


@dataclass(frozen=True)
class Cause:
    """One cause of error, switched off after those before it.

    Attributes:
        name: input, accumulation, alignment, rounding, output or quantisation: see
            `bitmma.analysis.stages`.
        unit: the unit that is left, in words.
        part: the part of the error that went with it. Parts add up to the error.
        left: the error that the unit still has without it and those before it.
    """

    name: str
    unit: str
    part: Statistics
    left: Statistics


@dataclass(frozen=True, eq=False)
class Errors(Tabular):
    """What `errors` found. ``print`` it, or take `to_pandas`, ``rows()`` or the fields.

    Attributes:
        title: who computed. model: the unit's arithmetic, None for a function. K: the length of the
            dot products.
        outputs: how many there were. special: left out because an Inf or NaN among the operands
            decides them. overflowed: left out because the unit (or it with a cause switched off)
            gave Inf or NaN of finite operands. All statistics are over the rest.
        total: the whole error. causes: what it is made of, in the order of switching off.
        bound: an a-priori bound and whether it held; None for a function.
        d, exact, error: arrays of the outputs, in float64; ``exact`` and ``error`` rounded once.
        counted: which outputs the statistics are of.
    """

    title: str
    model: Model | None
    K: int
    outputs: int
    special: int
    overflowed: int
    confidence: float
    total: Statistics
    causes: tuple[Cause, ...]
    bound: Bound | None
    d: Floats
    exact: Floats
    error: Floats
    counted: npt.NDArray[np.bool_]

    def rows(self) -> list[dict[str, Any]]:
        from dataclasses import asdict

        lines = [("error", repr(self.model or self.title), self.total)]
        lines += [(c.name, c.unit, c.part) for c in self.causes]
        return [{"cause": name, "unit left": unit} | asdict(x) for name, unit, x in lines]

    def _title(self) -> str:
        held = ""
        if self.bound:
            kept = "held" if self.bound.held else f"VIOLATED {self.bound.violations} times"
            held = f"; bound {kept}, largest error {self.bound.tightest:.2g} of it"
        left_out = f", {self.special} special" * (self.special > 0)
        left_out += f", {self.overflowed} overflowed" * (self.overflowed > 0)
        return f"{self.title}, K = {self.K}: {self.outputs} outputs{left_out}{held}"

    def _table(self) -> list[dict[str, Any]]:
        names = ("bias", "low", "high", "mse", "max_abs", "mean_ulps", "max_ulps")
        return [
            {"cause": row["cause"], **{name: row[name] for name in names}} for row in self.rows()
        ]


@formats.in_default_environment
def errors(
    instruction: Any,
    A: Any,
    B: Any,
    C: Any | None = None,
    *,
    causes: bool = True,
    confidence: float = 0.95,
    progress: Progress | None = None,
    **options: Any,
) -> Errors:
    """The errors of a product on one unit, against the exact result of the operands as given.

    The exact result is exact (`bitmma.analysis.exact_product`): no float64 sum stands in for it. It
    is that of all that the kernel is told: block scales, promotion's scales, the epilogue.
    The interval of the bias is that of a mean whose errors may be correlated within a row of A and
    within a column of B (two-way clustered standard error, normal quantile): it means something
    with a few dozen independent rows and columns, not with one.

    Args:
        instruction: an `Instruction` or (gpu, name), hypothetical ones of any model too; a recipe
            (`bitmma.recipes`); or any function that gives a product when called on A, B (and C),
            such as ``np.matmul``. Of a function nothing is known but what it returns: there is the
            whole error only, no causes and no bound.
        A, B, C: as for `bitmma.matmul`, any size; for a recipe as it takes them. Of one that
            quantises them the exact result is that of the numbers before.
        causes: also switch the causes off one after the other (`bitmma.analysis.stages` defines
            them); units that nobody built run at a hundredth of the speed.
        confidence: of the bias's interval.
        progress: called as ``progress(done, total)`` while causes are switched off, in products
            (multiply-adds) of the units that this takes.
        options: scale_a, scale_b, schedule, epilogue, promote_scale_a, promote_scale_b,
            promote_block_a and promote_block_b, as for `bitmma.matmul`; for a recipe what it takes.

    Raises:
        TypeError, ValueError: as `bitmma.matmul`; a confidence outside (0, 1); no output that can
            be counted; options for a function.
    """
    if not isinstance(confidence, float) or not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, not {confidence!r}")
    if callable(instruction) and not isinstance(instruction, Instruction | Recipe):
        for name in options:
            raise TypeError(f"{name} is for instructions and recipes; a function takes A, B and C")
        return _errors_of_a_function(instruction, A, B, C, confidence)
    p = products.product(instruction, A, B, C, options)
    peeled = stages.peel(p, progress) if causes else []
    counted = ~p.special & np.isfinite(p.d)
    for stage in peeled:
        counted &= np.isfinite(stage.d.value)
    describe = _Describer(p.exact.value, p.A, p.B, p.plan.d, counted, confidence)
    error = p.exact.error_of(p.d)
    found = []
    before = Exact((p.d,))
    for stage in peeled:
        with np.errstate(invalid="ignore"):
            part, left = stage.d.below(before), p.exact.below(stage.d)
        found.append(Cause(stage.cause, stage.unit, describe(part), describe(left)))
        before = stage.d
    return Errors(
        p.title, p.instr.model, p.K, p.d.size, int(p.special.sum()),
        int((~counted & ~p.special).sum()), confidence, describe(error), tuple(found),
        bounds.check(bounds.error_bound(p), error, counted), p.d, p.exact.value, error, counted,
    )  # fmt: skip


def _errors_of_a_function(function: Any, A: Any, B: Any, C: Any, confidence: float) -> Errors:
    d_given = np.asarray(function(A, B) if C is None else function(A, B, C))
    held = [name for name, f in formats.FORMATS.items() if f.dtype == d_given.dtype]
    a, b, c = (_numbers(x, name) for x, name in ((A, "A"), (B, "B"), (C, "C")))
    assert a is not None and b is not None
    if not held:
        raise TypeError(f"{function!r} gave an array of {d_given.dtype}, which is no format")
    d = d_given.astype(np.float64)
    exact = exact_product(a, b, c)
    if d.shape != exact.value.shape:
        raise ValueError(f"{function!r} gave {d.shape}; A B is {exact.value.shape}")
    counted, error = np.isfinite(d), exact.error_of(d)
    describe = _Describer(exact.value, a, b, held[0], counted, confidence)
    return Errors(
        getattr(function, "__name__", repr(function)), None, a.shape[-1], d.size, 0,
        int((~counted).sum()), confidence, describe(error), (), None,
        d, exact.value, error, counted,
    )  # fmt: skip


def _numbers(x: Any, name: str) -> Floats | None:
    if x is None:
        return None
    array = np.asarray(x)
    if array.dtype.kind in "uib":
        raise TypeError(
            f"{name} is of {array.dtype}: a function's error is that of numbers, not codes"
        )
    return array.astype(np.float64)


class _Describer:
    """Statistics of arrays of one product's shape."""

    def __init__(
        self,
        x: Floats,
        A: Floats,
        B: Floats,
        d_format: str,
        counted: npt.NDArray[np.bool_],
        confidence: float,
    ) -> None:
        if not counted.any():
            raise ValueError(f"none of {x.size} outputs is finite: there is no error to speak of")
        self.x, self.counted, self.confidence = x, counted, confidence
        self.ulp = ulp(x, formats.get(d_format))
        # A row's errors are those along N, and along leading dimensions in which A does not vary.
        lead = x.ndim - 2
        self.axes = [
            (axis, *(i for i in range(lead) if not _varies(matrix, i - lead)))
            for axis, matrix in ((lead + 1, A), (lead, B))
        ]

    def __call__(self, error: Floats) -> Statistics:
        return statistics_of(
            error, self.x, self.ulp, counted=self.counted, clusters=self.axes,
            confidence=self.confidence,
        )  # fmt: skip


def _varies(x: Floats, lead_axis: int) -> bool:
    """Whether a matrix differs along this leading dimension, counted from the right."""
    axis = lead_axis - 2
    return x.ndim >= -axis and x.shape[axis] > 1


@np.errstate(over="ignore", invalid="ignore")
def statistics_of(
    error: Floats,
    exact: Floats,
    ulp: Floats,
    *,
    counted: npt.NDArray[np.bool_] | None = None,
    clusters: Iterable[tuple[int, ...]] = (),
    confidence: float = 0.95,
) -> Statistics:
    """The statistics of an array of errors.

    Args:
        error, exact, ulp: signed errors, exact results and units in the last place, of one shape.
        counted: which elements; None: all.
        clusters: for each way in which errors may hang together, the axes along which they do.
        confidence: of the bias's interval.
    """
    counted = np.ones(error.shape, bool) if counted is None else counted
    e, x, unit = error[counted], exact[counted], ulp[counted]
    n = e.size
    bias = _mean(e)
    apart = np.where(counted, error - bias, 0.0)
    variances = [_sum((apart * apart).reshape(-1))]
    variances += [_sum((apart.sum(axes) ** 2).reshape(-1)) for axes in clusters]
    # V_rows + V_columns - V_each, but never less than any of them.
    together = sum(variances[1:]) - variances[0] * (len(variances) - 2)
    deviation = math.sqrt(max(*variances, together)) / n if len(variances) > 1 else (
        math.sqrt(variances[0]) / n
    )  # fmt: skip
    half = statistics.NormalDist().inv_cdf((1 + confidence) / 2) * deviation
    size = np.abs(e)
    relative = size[x != 0] / np.abs(x[x != 0])
    return Statistics(
        n, bias, bias - half, bias + half, _mean(size), float(size.max()), _mean(e * e),
        _mean(e / unit), float((size / unit).max()), _mean(relative),
        float(relative.max(initial=0.0)), float((e == 0).mean()),
    )  # fmt: skip


def _mean(x: Floats) -> float:
    return float(mean_of(x)) if np.isfinite(x).all() else _sum(x) / x.size


def _sum(x: Floats) -> float:
    """Exactly, rounded once: the same on every machine."""
    try:
        return math.fsum(x.tolist())
    except (OverflowError, ValueError):  # a sum beyond float64, or of infinities
        return math.inf
