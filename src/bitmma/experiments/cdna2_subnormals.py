"""What CDNA2 loses by flushing subnormals, and what scaling the operands brings back."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bitmma import formats
from bitmma.analysis import exact_product, sample
from bitmma.experiments.report import COLOURS, SEED, Each, Finding, Progress, Report, figures
from bitmma.gemm import matmul
from bitmma.unit import instruction

__all__ = ["compute"]

Floats = npt.NDArray[np.float64]

F16 = instruction("CDNA2", "f32_32x32x8f16")
BF16 = instruction("CDNA2", "f32_32x32x8bf16_1k")
N = 128
PRODUCTS = 10
PUBLISHED = {"plain": 7.632e-9, "scaled": 1.591e-18}  # arXiv 2511.10909v2
VARIANTS = ("plain", "A scaled", "B scaled", "both scaled", "BF16")


def compute(quick: bool, progress: Progress, each: Each) -> Report:
    trials = 6 if quick else 60
    found = []
    for result in each(_trial, range(trials)):
        found.append(result)
        progress(len(found), trials)
    mse = {name: np.array([f[name] for f in found]) for name in (*VARIANTS, "chained")}
    subnormals = np.array([f["subnormals"] for f in found])
    table = [
        {"operands": name, "mean MSE": float(x.mean()), "smallest": float(x.min()),
         "largest": float(x.max()), "share of plain": float(x.mean() / mse["plain"].mean())}
        for name, x in mse.items()
    ]  # fmt: skip
    none = mse["A scaled"][subnormals == 0]
    return Report(
        "cdna2-subnormals",
        "CDNA2 flushes subnormals",
        [
            "CDNA2's FP16 unit takes every subnormal operand, below 2⁻¹⁴ = 6.1·10⁻⁵ in magnitude, "
            "for zero. With A = 0.001·N(0, 1) that is one element in twenty, and products of "
            "B = N(0, 1) with them are lost. Multiplying A by 2¹⁰ before, and the result by 2⁻¹⁰ "
            "after, is exact and leaves no subnormals in A. BF16, with FP32's exponents, has none "
            "either, but three bits of significand fewer: its operands are other numbers.",
            f"A trial is {PRODUCTS} products of {N}×{N} matrices, each a chain over K = {N} from "
            "0. Its mean squared error (MSE) is against the exact product of the operands as "
            f"rounded to the format. There are {trials} trials with matrices of their own. "
            "“Chained”: the ten are instead accumulated in one chain, K = 1,280.",
            "**B matters too.** One element of B in 20,000 is subnormal: 0.8 in a matrix, "
            f"{subnormals.mean():.1f} in ten. With A scaled they are all that is still flushed, "
            "and each adds about 10⁻¹⁸ to the trial's MSE (right). Scaling both matrices, by 2²⁰ "
            "in all, removes them too; what is left is the rounding of FP32 sums.",
        ],
        table,
        [
            _plain_finding(mse["plain"]),
            _scaled_finding(mse),
            Finding(
                "what the ten products are", "ten of 128³, chained in the accumulator",
                f"apart: {_spread(mse['plain'])}; chained: {_spread(mse['chained'])}",
                "in part",
                "the published figure is that of dot products of 128; one chain of 1,280 flushes "
                "ten times as much and has ten times the MSE",
            ),
        ],
        lambda: _draw(mse, subnormals),
        "Left: MSE of each trial; dashed: the published figures. Right: with A scaled, the MSE "
        "grows with the number of subnormal elements in the trial's ten matrices B.",
        {"trials": found, "A scaled, no subnormal in B": none.tolist()},
        quick,
    )  # fmt: skip


def _plain_finding(plain: npt.NDArray[Any]) -> Finding:
    inside = plain.min() <= PUBLISHED["plain"] <= plain.max()
    return Finding(
        "MSE as it is", f"{PUBLISHED['plain']:.4g}", _spread(plain), "yes" if inside else "no",
        "within the spread of trials; by the densities alone, 128 · E[a²; |a| < 2⁻¹⁴] = 7.7·10⁻⁹",
    )  # fmt: skip


def _scaled_finding(mse: dict[str, npt.NDArray[Any]]) -> Finding:
    both = mse["both scaled"]
    inside = both.min() <= PUBLISHED["scaled"] <= both.max()
    return Finding(
        "MSE with scaling", f"{PUBLISHED['scaled']:.4g}",
        f"both: {_spread(both)}; A scaled: {_spread(mse['A scaled'])}",
        "yes" if inside else "in part",
        "it is what rounding alone leaves, when nothing is flushed any more: both matrices were "
        "scaled, or B held next to no subnormal, as one matrix of 128×128 in two does",
    )  # fmt: skip


def _spread(x: npt.NDArray[Any]) -> str:
    return f"{x.mean():.4g} ({x.min():.4g} to {x.max():.4g})"


def _trial(trial: int) -> dict[str, Any]:
    a = sample("normal", (PRODUCTS, N, N), seed=(SEED, 3, trial, 0), scale=0.001)
    b = sample("normal", (PRODUCTS, N, N), seed=(SEED, 3, trial, 1))
    A, B = formats.quantize(a, "f16"), formats.quantize(b, "f16")
    up = np.float16(2.0**10)
    x = exact_product(A.astype(np.float64), B.astype(np.float64))

    def mse(A: Any, B: Any, scale: float) -> float:
        d = matmul(A, B, instruction=F16).astype(np.float64) / scale
        return float(np.mean(x.error_of(d) ** 2))

    found: dict[str, Any] = {
        "plain": mse(A, B, 1.0),
        "A scaled": mse(A * up, B, 2.0**10),
        "B scaled": mse(A, B * up, 2.0**10),
        "both scaled": mse(A * up, B * up, 2.0**20),
        "subnormals": int(((B != 0) & (np.abs(B) < 2.0**-14)).sum()),
    }
    A16, B16 = formats.quantize(a, "bf16"), formats.quantize(b, "bf16")
    d = matmul(A16, B16, instruction=BF16).astype(np.float64)
    own = exact_product(A16.astype(np.float64), B16.astype(np.float64))
    found["BF16"] = float(np.mean(own.error_of(d) ** 2))
    found["BF16 against A, B before rounding"] = float(
        np.mean(exact_product(a, b).error_of(d) ** 2)
    )
    long = np.concatenate(list(A), axis=1), np.concatenate(list(B), axis=0)
    d = matmul(*long, instruction=F16).astype(np.float64)
    exact = exact_product(*(m.astype(np.float64) for m in long))
    found["chained"] = float(np.mean(exact.error_of(d) ** 2))
    return found


def _draw(mse: dict[str, npt.NDArray[Any]], subnormals: npt.NDArray[Any]) -> Any:
    plt = figures()
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), width_ratios=(1.35, 1))
    colours = [COLOURS[c] for c in ("red", "orange", "purple", "blue", "green", "grey")]
    for i, (values, colour) in enumerate(zip(mse.values(), colours, strict=True)):
        x = i + 0.3 * (np.arange(len(values)) / max(len(values) - 1, 1) - 0.5)
        left.scatter(x, values, s=14, color=colour)
        below = values.max() < PUBLISHED["scaled"]  # out of the dashed line's way
        left.annotate(
            f"{values.mean():.2g}", (i, values.min() if below else values.max()),
            xytext=(0, -14 if below else 6), textcoords="offset points", ha="center", fontsize=9,
        )  # fmt: skip
    # Their names where there is room: below the upper line, above the lower one.
    for kind, factor, side in (("plain", 0.6, "top"), ("scaled", 1.5, "bottom")):
        value = PUBLISHED[kind]
        left.axhline(value, color=COLOURS["black"], linestyle="--", linewidth=1)
        left.text(
            len(mse) - 0.55, value * factor, f"published, {kind}", ha="right", va=side, fontsize=9
        )
    left.set_yscale("log")
    left.set_ylim(1e-20, 1e-6)
    left.set_xlim(-0.6, len(mse) - 0.4)
    left.set_xticks(range(len(mse)), [name.replace(" ", "\n") for name in mse])
    left.set_ylabel("mean squared error of a trial")
    left.set_title("Ten products of 128×128, A = 0.001·N(0,1), B = N(0,1)")
    left.grid(axis="x", visible=False)
    small = 1e-18
    for name, colour in (("A scaled", COLOURS["orange"]), ("both scaled", COLOURS["blue"])):
        right.scatter(subnormals, mse[name] / small, s=16, color=colour, label=name)
    right.axhline(PUBLISHED["scaled"] / small, color=COLOURS["black"], linestyle="--", linewidth=1,
                  label="published, scaled")  # fmt: skip
    right.set_xlabel("subnormal elements in the trial's ten matrices B")
    right.set_ylabel("mean squared error of a trial, 10⁻¹⁸")
    right.set_xlim(-0.5, subnormals.max() + 1)
    right.set_ylim(0, None)
    right.legend(loc="upper left")
    right.set_title("What is left depends on B")
    return figure
