"""FP8 error against K: where a chain's truncation starts to bite, and what promotion costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bitmma import formats
from bitmma.analysis import Exact, exact_product, sample
from bitmma.experiments.report import COLOURS, SEED, Each, Finding, Progress, Report, figures
from bitmma.gemm import matmul
from bitmma.schedule import Schedule
from bitmma.unit import Instruction, instruction

__all__ = ["compute"]

PROMOTIONS = (32, 64, 128, 256, 512)
HOPPER = ("Hopper", "m64n8k32.f32.e4m3.e4m3")


@dataclass(frozen=True)
class Way:
    """One way to compute the product."""

    label: str
    gpu: str
    name: str
    every: int | None = None

    @property
    def instr(self) -> Instruction:
        return instruction(self.gpu, self.name)

    def error(self, A: Any, B: Any, exact: Exact) -> npt.NDArray[np.float64]:
        """Of operands as numbers, which every unit's format holds."""
        instr = self.instr
        operands = formats.quantize(A, instr.a), formats.quantize(B, instr.b)
        schedule = None if self.every is None else Schedule(promote_every=self.every)
        return exact.error_of(matmul(*operands, instruction=instr, schedule=schedule))


WAYS = (
    Way("Hopper, one chain", *HOPPER),
    *(Way(f"Hopper, promoted every {p}", *HOPPER, p) for p in reversed(PROMOTIONS)),
    Way("Ada, one chain", "Ada Lovelace", "m16n8k32.f32.e4m3.e4m3.f32"),
    Way("Blackwell, one chain", "Blackwell", "m64n8k32.kind::f8f6f4.f32.e4m3.e4m3"),
    Way("CDNA3, one chain", "CDNA3", "f32_16x16x32_fp8_fp8"),
    Way("Hopper FP16 unit", "Hopper", "m64n8k16.f32.f16.f16"),
)
#: Numbers of mean zero, whose sums grow as sqrt(K), and positive ones, whose sums grow as K.
INPUTS = {"N(0,1)": "normal", "uniform in [0,1)": "uniform"}


def compute(quick: bool, progress: Progress, each: Each) -> Report:
    lengths = [2**n for n in ((6, 8, 10, 12, 14) if quick else range(6, 17))]
    M = 16 if quick else 64
    table: list[dict[str, Any]] = []
    done, total = 0, sum(lengths) * len(INPUTS)
    cases = [(label, K) for label in INPUTS for K in lengths]
    found = each(_rows, *zip(*cases, strict=True), [M] * len(cases))
    for (_, K), rows in zip(cases, found, strict=True):
        table += rows
        done += K
        progress(done, total)
    pivot: list[dict[str, Any]] = [
        {"inputs": inputs, "K": K}
        | {w.label: _of(table, inputs, w.label)[K]["relative RMS error"] for w in WAYS}
        for inputs in INPUTS
        for K in lengths
    ]
    return Report(
        "fp8-promotion",
        "FP8 sums and promotion",
        [
            "Hopper's FP8 unit keeps 13 bits below its largest exponent and an accumulator of 14 "
            "significant bits. The longer a chain, the larger the accumulator, and the more of "
            "each group's sum is cut. Kernels that care leave the unit every P elements of K and "
            "add in FP32 (promotion); DeepSeek-V3 chose P = 128.",
            f"Products of {M}×K and K×{M} E4M3 matrices; every unit gets the same numbers, CDNA3 "
            "as FNUZ codes and the FP16 unit as FP16. Errors are against the exact product of the "
            "E4M3 numbers; the table has their root mean square, relative to that of the exact "
            "results. Sums of N(0, 1) numbers grow as √K, sums of positive numbers as K.",
            _bite(table),
            "An FP32 addition for every P products costs 1/P of the products' number: "
            + ", ".join(f"{1 / p:.2%} at P = {p}" for p in PROMOTIONS)
            + ". P = 32 is an addition for every instruction: what is left is the cut within each.",
        ],
        pivot,
        _findings(table),
        lambda: _draw(table, lengths),
        "Relative RMS error against K; no mark where no output has an error. Left: N(0, 1); "
        "right: uniform in [0, 1).",
        {"M": M, "all": table},
        quick,
    )  # fmt: skip


def _rows(label: str, K: int, M: int) -> list[dict[str, Any]]:
    """The errors of every way, of one length."""
    A, B = (_operand(INPUTS[label], s, i) for i, s in enumerate(((M, K), (K, M))))
    exact = exact_product(A, B)
    size = float(np.sqrt(np.mean(exact.value**2)))
    there = exact.value != 0
    rows = []
    for way in WAYS:
        e = way.error(A, B, exact)
        rows.append(
            {"inputs": label, "K": K, "unit": way.label, "outputs": e.size,
             "relative RMS error": float(np.sqrt(np.mean(e * e))) / size,
             "relative mean error": float(e.mean()) / size,
             "largest relative error": float(np.max(np.abs(e[there] / exact.value[there]))),
             "largest error": float(np.max(np.abs(e))) / size,
             "FP32 adds per output": -(-K // way.every) if way.every else 0}
        )  # fmt: skip
    return rows


def _operand(distribution: str, shape: tuple[int, int], which: int) -> npt.NDArray[np.float64]:
    x = sample(distribution, shape, seed=(SEED, 5, which, *shape))
    if distribution == "uniform":
        x = (x + 1) / 2
    return formats.quantize(x, "e4m3").astype(np.float64)


def _of(table: list[dict[str, Any]], inputs: str, unit: str) -> dict[int, dict[str, Any]]:
    return {r["K"]: r for r in table if r["inputs"] == inputs and r["unit"] == unit}


def _bite(table: list[dict[str, Any]]) -> str:
    """From which K on the chain's error is twice that of its shortest length."""
    words = []
    for inputs in INPUTS:
        rows = _of(table, inputs, "Hopper, one chain")
        base = rows[min(rows)]["relative RMS error"]
        K = next((k for k, r in rows.items() if r["relative RMS error"] > 2 * base), None)
        last = rows[max(rows)]
        from_k = f"from K = {K:,} on" if K else "nowhere here"
        words.append(
            f"with {inputs} the chain's error is more than twice that at K = {min(rows)} {from_k}, "
            f"and {last['relative RMS error']:.2%} at K = {last['K']:,}"
        )
    text = "; ".join(words)
    return f"Where it bites: {text}."


def _findings(table: list[dict[str, Any]]) -> list[Finding]:
    normal, chain = (_of(table, inputs, "Hopper, one chain")[4096] for inputs in INPUTS)
    uniform = chain["largest relative error"]
    kept = _of(table, "uniform in [0,1)", "Hopper, promoted every 128")[4096]
    return [
        Finding(
            "largest relative error of Hopper's FP8 GEMM at K = 4,096, one chain (DeepSeek-V3 "
            "technical report, 3.3.2)",
            "nearly 2%",
            f"uniform in [0,1): {uniform:.1%}; N(0,1): {normal['largest error']:.1%} of the "
            "results' root mean square",
            "yes" if 0.005 < uniform < 0.04 else "in part",
            "the report does not give its inputs, and the figure depends on them: between sums "
            "that cancel, whose own relative errors have no limit, and sums that grow, where the "
            f"whole product is off by {chain['relative RMS error']:.1%}",
        ),
        Finding(
            "effect of P = 128 at K = 4,096 (same report)",
            "significantly improves precision",
            f"RMS error {chain['relative RMS error']:.2%} → {kept['relative RMS error']:.3%}",
            "yes" if kept["relative RMS error"] < chain["relative RMS error"] / 3 else "no",
            "each chain's accumulator stays small",
        ),
    ]  # fmt: skip


def _draw(table: list[dict[str, Any]], lengths: list[int]) -> Any:
    plt = figures()
    figure, axes = plt.subplots(1, 2, figsize=(11.5, 4.8), sharey=True)
    shades = plt.get_cmap("Oranges")(np.linspace(0.85, 0.35, len(PROMOTIONS)))
    styles: dict[str, dict[str, Any]] = {
        "Hopper, one chain": {"color": COLOURS["black"], "linewidth": 2.4, "marker": "o"},
        "Ada, one chain": {"color": COLOURS["grey"], "linestyle": "--", "marker": "s"},
        "Blackwell, one chain": {"color": COLOURS["green"], "marker": "^"},
        "CDNA3, one chain": {"color": COLOURS["purple"], "marker": "v"},
        "Hopper FP16 unit": {"color": COLOURS["blue"], "linestyle": ":", "marker": "D"},
    }
    for shade, every in zip(shades, reversed(PROMOTIONS), strict=True):
        styles[f"Hopper, promoted every {every}"] = {"color": shade, "marker": "."}
    for ax, inputs in zip(axes, INPUTS, strict=True):
        for way in WAYS:
            rows = _of(table, inputs, way.label)
            y = [rows[K]["relative RMS error"] or np.nan for K in lengths]  # no error: no mark
            ax.plot(lengths, y, label=way.label, markersize=4, **styles[way.label])
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xlabel("K")
        ax.set_title(f"E4M3, {inputs}")
    axes[0].set_ylabel("relative RMS error")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=9)
    return figure
