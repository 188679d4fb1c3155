"""CDNA3 rounds its sums down: the bias that comes of it, and C = 0 as the cure."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from bitmma import formats
from bitmma.analysis import Exact, exact_product, sample
from bitmma.experiments.report import COLOURS, SEED, Each, Finding, Progress, Report, figures
from bitmma.gemm import matmul
from bitmma.models import Conversion, as_fdpa
from bitmma.unit import Instruction, instruction

__all__ = ["compute", "toward_zero"]

Floats = npt.NDArray[np.float64]

UNIT = instruction("CDNA3", "f32_16x16x16_f16")
M = 128  # rows and columns of a sample's product
PUBLISHED_RATIO = 18


@dataclass(frozen=True)
class Circumstance:
    """How the cure is tried: what differs from the first of `CIRCUMSTANCES`.

    Attributes:
        what: in words. name: the instruction. instructions: how many, one after the other.
        operands: distribution and factor of A and B. addend: those of C, None for C = 0.
        add: the rounding of the FP32 addition outside.
    """

    what: str
    name: str = UNIT.name
    instructions: int = 1
    operands: tuple[str, float] = ("normal", 10.0)
    addend: tuple[str, float] | None = ("normal", 1.0)
    add: str = "RNE"


CIRCUMSTANCES = (
    Circumstance("as published"),
    Circumstance("one group of eight", "f32_32x32x8_f16"),
    Circumstance("BF16", "f32_16x16x16_bf16"),
    Circumstance("FP8", "f32_16x16x32_fp8_fp8"),
    Circumstance("XF32", "f32_16x16x8_xf32"),
    Circumstance("FP32 add toward zero", add="RZ"),
    Circumstance("2 instructions", instructions=2),
    Circumstance("8 instructions", instructions=8),
    Circumstance("8 instructions, C = 0", instructions=8, addend=None),
    Circumstance("A, B = N(0,1)", operands=("normal", 1.0)),
    Circumstance("A, B = 100·N(0,1)", operands=("normal", 100.0)),
    Circumstance("C = 0.1·N(0,1)", addend=("normal", 0.1)),
    Circumstance("C = 100·N(0,1)", addend=("normal", 100.0)),
    Circumstance("A, B = 10·U(−1,1)", operands=("uniform", 10.0)),
    Circumstance("A, B = 10·U(−1,1), C = U(−1,1)", operands=("uniform", 10.0),
                 addend=("uniform", 1.0)),
)  # fmt: skip
#: Of these the figure shows the means; they get as many samples as the first.
SHOWN = 4


def toward_zero(unit: Instruction) -> Instruction:
    """The unit with its cuts downward made toward zero: nobody built it."""
    model = as_fdpa(unit.model)
    assert model is not None
    model = replace(model, cut_c="RZ", cut2="RZ", cut_sum="RZ")
    return replace(unit, model=model)


def compute(quick: bool, progress: Progress, each: Each) -> Report:
    shapes, most, fewest = (16, 48, 20) if quick else (80, 480, 160)
    samples = [most if i < SHOWN else fewest for i in range(len(CIRCUMSTANCES))]
    total, done = shapes + sum(samples), 0
    units = {"rounding down": UNIT, "rounding toward zero": toward_zero(UNIT)}
    found: dict[str, list[Floats]] = {label: [] for label in units}
    for i in range(shapes):
        A, B, C = _operands(UNIT, UNIT.k, (0, i), ("normal", 1000.0), ("normal", 1.0))
        assert C is not None
        x = exact_product(*(o.astype(np.float64) for o in (A, B, C)))
        for label, unit in units.items():
            found[label].append(x.error_of(matmul(A, B, C, instruction=unit)))
        done += 1
        progress(done, total)
    errors = {label: np.stack(e) for label, e in found.items()}

    means: dict[str, npt.NDArray[Any]] = {}
    for n, circumstance in enumerate(CIRCUMSTANCES):
        pairs = []
        streams = [(1 + n, i) for i in range(samples[n])]
        for means_of_one in each(_mean_errors, [circumstance] * len(streams), streams):
            pairs.append(means_of_one)
            done += 1
            progress(done, total)
        means[circumstance.what] = np.array(pairs)

    table = [_row(c, means[c.what]) for c in CIRCUMSTANCES]
    (d_mean, d_half), (z_mean, z_half) = (_mean(e.mean(axis=(1, 2))) for e in errors.values())
    low, high = _interval(means["as published"])
    ours = _share(means["as published"])
    outputs = most * M * M
    # With n outputs the interval is as wide as this one times sqrt(outputs / n).
    within = outputs * ((high - low) / 2 / (ours - 1 / PUBLISHED_RATIO)) ** 2
    inside = [c.what for c, row in zip(CIRCUMSTANCES, table, strict=True) if row["1/18"] == "in it"]
    return Report(
        "cdna3-bias",
        "CDNA3 rounds down",
        [
            "CDNA3 joins the sum of the products with c by cutting both toward minus infinity "
            "(TR-FDPA). Errors of such a cut have one sign. With C = N(0, 1) and A, B = "
            "1000·N(0, 1), c lies far below the products and loses all but a few bits: the errors' "
            f"mean is {d_mean:.3g} ± {d_half:.1g}. A hypothetical unit that differs in nothing but "
            "cutting toward zero has errors of the same size and a mean of "
            f"{z_mean:.2g} ± {z_half:.1g}. (It is the catalogue's model as an FDPA, with RZ in "
            "place of RD at its three cuts.)",
            "The cure is to give the unit C = 0 and to add C outside, in FP32 to nearest. With "
            "A, B = 10·N(0, 1) this takes most of the bias away, not all: an instruction with "
            "k = 16 works in two groups of eight, and the second takes the first one's result for "
            "its c. f32_32x32x8_f16, with one group, has no bias left that this sample could show. "
            "BF16 and FP8 have next to none: sums of their products seldom have bits below what "
            "the unit keeps of c. Over several instructions the cure wears off: what is left of "
            "each adds up, while an accumulator in the unit soon has no bits to lose.",
            f"**The published 1/{PUBLISHED_RATIO}.** As published, the share that is left is "
            f"{ours:.3f} ({low:.3f} to {high:.3f}) of {outputs:,} outputs. The table tries other "
            "circumstances: other instructions, several of them, another rounding of the FP32 "
            "addition, other sizes and distributions. "
            + (f"1/{PUBLISHED_RATIO} lies in the interval of: {'; '.join(inside)}. " if inside else
               f"None of them gives 1/{PUBLISHED_RATIO}. ")
            + "Or of smaller samples: the paper does not say how many outputs it has, and of "
            f"{_round(within):,} or fewer the 95% interval holds 1/{PUBLISHED_RATIO} as published.",
            f"Intervals (95%) are those of means of independent products of {M}×{M} outputs; all "
            "errors are against exact results.",
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
                f"1/{1 / ours:.1f} (95%: {low:.3f} to {high:.3f}) on {UNIT.name}",
                "yes" if low <= 1 / PUBLISHED_RATIO <= high else "in part",
                "the size agrees, the number does not: "
                + (f"1/{PUBLISHED_RATIO} is what some circumstances give (see above), or "
                   if inside else "it is ")
                + f"within the chance of a sample of fewer than {_round(within):,} outputs",
            ),
        ],
        lambda: _draw(errors, means),
        "Left: errors with A, B = 1000·N(0,1), C = N(0,1), in units of 2⁻⁴: CDNA3 and a unit that "
        "cuts toward zero. Right: mean error with A, B = 10·N(0,1), c in the unit or added "
        "outside, with 95% intervals.",
        {"means": {name: _summary(x) for name, x in means.items()}, "products of M x M": M,
         "1000·N(0,1)": {"rounding down": [d_mean, d_half], "toward zero": [z_mean, z_half]}},
        quick,
    )  # fmt: skip


def _operands(
    unit: Instruction,
    K: int,
    stream: tuple[int, int],
    operands: tuple[str, float],
    addend: tuple[str, float] | None,
) -> tuple[Any, ...]:
    def draw(i: int, shape: tuple[int, int], how: tuple[str, float], fmt: str) -> Any:
        x = sample(how[0], shape, seed=(SEED, 4, *stream, i), scale=how[1])
        return formats.quantize(x, fmt)

    c = None if addend is None else draw(2, (M, M), addend, "f32")
    return draw(0, (M, K), operands, unit.a), draw(1, (K, M), operands, unit.b), c


def _mean_errors(how: Circumstance, stream: tuple[int, int]) -> list[float]:
    """Of one sample: with accumulators in the unit, and with C = 0 and an FP32 add outside."""
    unit = instruction("CDNA3", how.name)
    a, b, C = _operands(unit, how.instructions * unit.k, stream, how.operands, how.addend)
    x = exact_product(
        a.astype(np.float64), b.astype(np.float64), None if C is None else C.astype(np.float64)
    )
    inside = matmul(a, b, C, instruction=unit)
    acc = np.zeros((M, M), np.float32) if C is None else C
    for start in range(0, a.shape[1], unit.k):
        k = slice(start, start + unit.k)
        r = matmul(a[:, k], b[k], instruction=unit)
        total = Exact((acc.astype(np.float64) + r.astype(np.float64),))  # exact in float64, or
        acc = total.rounded(Conversion(how.add, "f32")).astype(np.float32)  # far below FP32's bits
    return [float(x.error_of(d).mean()) for d in (inside, acc)]


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


def _share(pairs: npt.NDArray[Any]) -> float:
    return float(pairs[:, 1].mean() / pairs[:, 0].mean())


def _summary(pairs: npt.NDArray[Any]) -> dict[str, Any]:
    return {
        "samples": len(pairs), "c in the unit": _mean(pairs[:, 0]),
        "C = 0 and FP32 add": _mean(pairs[:, 1]), "share": (_share(pairs), *_interval(pairs)),
    }  # fmt: skip


def _round(n: float) -> int:
    """To two digits."""
    digits = max(0, math.floor(math.log10(max(n, 1))) - 1)
    return int(n // 10**digits) * int(10**digits)


def _row(how: Circumstance, pairs: npt.NDArray[Any]) -> dict[str, Any]:
    means = [_mean(pairs[:, i]) for i in (0, 1)]
    inside, outside = (f"{mean:.3g} ± {half:.1g}" for mean, half in means)
    low, high = _interval(pairs)
    target = 1 / PUBLISHED_RATIO
    resolved = high - low < target
    share = f"{_share(pairs):.3f} ({low:.3f} to {high:.3f})".replace("-0.000", "0.000")
    return {
        "circumstance": how.what, "instruction": how.name, "outputs": len(pairs) * M * M,
        "bias, c in the unit": inside, "bias, C = 0 and FP32 add": outside, "share left": share,
        "1/18": "not resolved" if not resolved else "in it" if low <= target <= high else "no",
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
    shown = CIRCUMSTANCES[:SHOWN]
    names = [how.what for how in shown]
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
    short = [how.name.replace("f32_", "").replace("_", "\n", 1) for how in shown]
    right.set_xticks(range(len(names)), short)
    right.set_ylabel("mean error, 10⁻⁶")
    right.set_title("A, B = 10·N(0,1), C = N(0,1)")
    right.legend(loc="lower left")
    right.grid(axis="x", visible=False)
    return figure
