"""CDNA3 rounds its sums down: the bias that comes of it, and C = 0 as the cure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from bitmma import formats
from bitmma.analysis import exact_product, sample
from bitmma.experiments.report import COLOURS, SEED, Finding, Report, figures
from bitmma.gemm import matmul
from bitmma.models import TRFDPA
from bitmma.unit import Instruction, instruction

__all__ = ["compute", "tr_fdpa"]

Floats = npt.NDArray[np.float64]

UNIT = instruction("CDNA3", "f32_16x16x16_f16")
#: What C = 0 does depends on the operands and on how many groups of L products an instruction has.
OTHERS = (
    UNIT,
    instruction("CDNA3", "f32_32x32x8_f16"),
    instruction("CDNA3", "f32_16x16x16_bf16"),
    instruction("CDNA3", "f32_16x16x32_fp8_fp8"),
)
M = 256  # rows and columns of a sample's product; K is the instruction's k
PUBLISHED_RATIO = 18


def compute(quick: bool, progress: Callable[[int, int], object]) -> Report:
    shapes, bias = (4, 12) if quick else (20, 120)
    total = shapes + bias * len(OTHERS)
    down, zero = [], []
    for i in range(shapes):
        A, B, C = _operands(UNIT, (0, i), 1000.0)
        x = exact_product(*(o.astype(np.float64) for o in (A, B, C)))
        d = matmul(A, B, C, instruction=UNIT).astype(np.float64)
        assert np.array_equal(tr_fdpa(UNIT.model, A, B, C, np.floor), d)  # bit for bit
        down.append(x.error_of(d))
        zero.append(x.error_of(tr_fdpa(UNIT.model, A, B, C, np.trunc)))
        progress(i + 1, total)
    errors = {"rounding down": np.stack(down), "rounding toward zero": np.stack(zero)}

    means: dict[str, npt.NDArray[Any]] = {}
    for n, unit in enumerate(OTHERS):
        found = []
        for i in range(bias):
            A, B, C = _operands(unit, (1 + n, i), 10.0)
            x = exact_product(*(o.astype(np.float64) for o in (A, B, C)))
            inside = x.error_of(matmul(A, B, C, instruction=unit))
            outside = x.error_of(C + matmul(A, B, instruction=unit))  # one FP32 addition
            found.append([e.mean() for e in (inside, outside)])
            progress(shapes + n * bias + i + 1, total)
        means[unit.name] = np.array(found)

    table = []
    for label, e in errors.items():
        mean, half = _mean(e.mean(axis=(1, 2)))
        table.append(_row(f"1000·N(0,1), {label}", UNIT.name, e.size, mean, half, ""))
    for name, pairs in means.items():
        rows = [_mean(pairs[:, i]) for i in (0, 1)]
        ratio = _ratio(pairs)
        count = len(pairs) * M * M
        table.append(_row("10·N(0,1), C in the unit", name, count, *rows[0], ""))
        table.append(_row("10·N(0,1), C = 0, FP32 add", name, count, *rows[1], ratio))
    (d_mean, d_half), (z_mean, z_half) = (_mean(e.mean(axis=(1, 2))) for e in errors.values())
    low, high = _interval(means[UNIT.name])
    covered = low <= 1 / PUBLISHED_RATIO <= high
    return Report(
        "cdna3-bias",
        "CDNA3 rounds down",
        [
            "CDNA3 joins the sum of the products with c by cutting both toward minus infinity "
            "(TR-FDPA). Errors of such a cut have one sign. With C = N(0, 1) and A, B = "
            "1000·N(0, 1), c lies far below the products and loses all but a few bits: the errors' "
            f"mean is {d_mean:.3g} ± {d_half:.1g}. A hypothetical unit that differs in nothing but "
            "cutting toward zero has errors of the same size and a mean of "
            f"{z_mean:.2g} ± {z_half:.1g}. (It is computed in NumPy by a function that, with floor "
            "in place of trunc, gave the catalogue's unit bit for bit in every sample.)",
            "The cure is to give the unit C = 0 and to add C outside, in FP32 to nearest. With "
            "A, B = 10·N(0, 1) this takes most of the bias away, not all: an instruction with "
            "k = 16 works in two groups of eight, and the second takes the first one's result for "
            "its c. f32_32x32x8_f16, with one group, has no bias left that this sample could show. "
            "BF16 and FP8 have next to none: sums of their products seldom have bits below what "
            "the unit keeps of c.",
            f"Intervals (95%) are those of the means of {bias} independent products of "
            f"{M}×{M} outputs for each unit; all errors are against exact results.",
        ],
        table,
        [
            Finding(
                "two error distributions", "round-down shifts the errors below zero, RZ does not",
                f"mean {d_mean:.3g} ± {d_half:.1g} against {z_mean:.2g} ± {z_half:.1g}",
                "yes" if d_mean + d_half < 0 and abs(z_mean) <= 2 * z_half else "no",
                "only the direction of the cuts differs between the two units",
            ),
            Finding(
                "|mean error| with C = 0 and an FP32 add", f"about 1/{PUBLISHED_RATIO}",
                f"1/{_inverse(means[UNIT.name])} (95%: {low:.3f} to {high:.3f}) on {UNIT.name}",
                "yes" if covered else "in part",
                "the cure's remaining mean is small beside the spread of single errors: with fewer "
                "outputs the ratio is mostly chance, and on an instruction of one group the true "
                "ratio is 0",
            ),
        ],
        lambda: _draw(errors, means),
        "Left: errors with A, B = 1000·N(0,1), C = N(0,1), in units of 2⁻⁴: CDNA3 and a unit that "
        "cuts toward zero. Right: mean error with A, B = 10·N(0,1), c in the unit or added "
        "outside, with 95% intervals.",
        {"samples": {name: x.tolist() for name, x in means.items()}, "products of M x M": M},
        quick,
    )  # fmt: skip


def _operands(unit: Instruction, stream: tuple[int, int], scale: float) -> tuple[Any, ...]:
    a, b, c = (
        sample("normal", shape, seed=(SEED, 4, *stream, i), scale=factor)
        for i, (shape, factor) in enumerate(
            (((M, unit.k), scale), ((unit.k, M), scale), ((M, M), 1.0))
        )
    )
    return formats.quantize(a, unit.a), formats.quantize(b, unit.b), formats.quantize(c, "f32")


def tr_fdpa(model: Any, A: Any, B: Any, C: Any, cut: Callable[[Floats], Floats]) -> Floats:
    """TR-FDPA on f16 operands (M, K), (K, N) and f32 (M, N), with its floors as a choice.

    ``np.floor`` is CDNA3; ``np.trunc`` a unit that cuts toward zero. All in float64, exactly:
    nothing here needs more than 53 bits.
    """
    assert isinstance(model, TRFDPA)
    d: Floats = C.astype(np.float64)
    a, b = A.astype(np.float64), B.astype(np.float64)
    e_a, e_b = (np.where(x == 0, -4096, np.maximum(np.frexp(x)[1] - 1, -14)) for x in (a, b))
    for start in range(0, a.shape[1], model.L):
        lanes = range(start, start + model.L)
        e = np.max([e_a[:, k, None] + e_b[None, k] for k in lanes], axis=0)
        T = sum(_cut(a[:, k, None] * b[None, k], e - model.F, np.trunc) for k in lanes)
        E = np.maximum(e, np.maximum(np.frexp(d)[1] - 1, -126))
        v = _cut(np.asarray(T), E - model.F2 - 1, cut) + _cut(d, E - model.F, cut)
        v = _cut(v, np.maximum(np.frexp(v)[1] - 1, -126) - model.F2, cut)
        d = v.astype(np.float32).astype(np.float64)
    return d


def _cut(x: Floats, unit: Any, cut: Callable[[Floats], Floats]) -> Floats:
    multiples: Floats = np.ldexp(cut(np.ldexp(x, -unit)), unit)
    return multiples


# --- means and their intervals --------------------------------------------------------------------


def _mean(samples: Any) -> tuple[float, float]:
    """The mean of independent samples and the half of its 95% interval."""
    values = [float(x) for x in samples]
    return statistics.fmean(values), 1.96 * statistics.stdev(values) / math.sqrt(len(values))


def _interval(pairs: npt.NDArray[Any]) -> tuple[float, float]:
    """Fieller's 95% interval of the ratio of two means, outside / inside, samples in pairs."""
    n = len(pairs)
    (x, y), cov = pairs.mean(axis=0), np.cov(pairs.T) / n
    q = 1.96**2
    a, b, c = x * x - q * cov[0, 0], x * y - q * cov[0, 1], y * y - q * cov[1, 1]
    root = math.sqrt(max(b * b - a * c, 0.0))
    return float((b - root) / a), float((b + root) / a)


def _inverse(pairs: npt.NDArray[Any]) -> str:
    return f"{abs(pairs[:, 0].mean() / pairs[:, 1].mean()):.1f}"


def _ratio(pairs: npt.NDArray[Any]) -> str:
    outside_over_inside = pairs[:, 1].mean() / pairs[:, 0].mean()
    share, low, high = (round(x, 3) + 0.0 for x in (outside_over_inside, *_interval(pairs)))
    return f"{share:.3f} ({low:.3f} to {high:.3f})"


def _row(
    what: str, name: str, outputs: int, mean: float, half: float, ratio: str
) -> dict[str, Any]:
    return {
        "A, B and C": what, "instruction": name, "outputs": outputs, "mean error": mean,
        "± 95%": half, "share of the bias in the unit": ratio,
    }  # fmt: skip


def _draw(errors: dict[str, Floats], means: dict[str, npt.NDArray[Any]]) -> Any:
    plt = figures()
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), width_ratios=(1.25, 1))
    unit = 2.0**-4
    span = 12
    bins = np.arange(-span, span + 0.25, 0.5)
    for (label, e), colour in zip(errors.items(), (COLOURS["red"], COLOURS["blue"]), strict=True):
        share = np.histogram(e / unit, bins)[0] / e.size
        left.stairs(share, bins, color=colour, label=label, fill=True, alpha=0.25)
        left.stairs(share, bins, color=colour, linewidth=1.5)
        left.axvline(e.mean() / unit, color=colour, linestyle="--", linewidth=1.2)
    left.axvline(0, color=COLOURS["black"], linewidth=0.8)
    left.set_xlabel("error, in units of 2⁻⁴")
    left.set_ylabel("share of outputs")
    left.set_title("A, B = 1000·N(0,1), C = N(0,1); dashed: means")
    left.legend()
    names = list(means)
    for offset, column, label, colour in (
        (-0.12, 0, "c in the unit", COLOURS["red"]),
        (0.12, 1, "C = 0, FP32 add outside", COLOURS["green"]),
    ):
        found = [_mean(means[name][:, column]) for name in names]
        right.errorbar(
            [i + offset for i in range(len(names))], [m / 1e-6 for m, _ in found],
            yerr=[h / 1e-6 for _, h in found], fmt="o", color=colour, label=label,
            capsize=3, markersize=5,
        )  # fmt: skip
    right.axhline(0, color=COLOURS["black"], linewidth=0.8)
    short = [name.replace("f32_", "").replace("_", "\n", 1) for name in names]
    right.set_xticks(range(len(names)), short)
    right.set_ylabel("mean error, 10⁻⁶")
    right.set_title("A, B = 10·N(0,1), C = N(0,1)")
    right.legend(loc="lower left")
    right.grid(axis="x", visible=False)
    return figure
