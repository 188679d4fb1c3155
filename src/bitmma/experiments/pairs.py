"""How many outputs differ between any two GPUs, for BF16 and FP16 products of K = 4,096."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

from bitmma import formats, isa
from bitmma.analysis import exact_product, sample
from bitmma.experiments.report import SEED, Each, Progress, Report, figures
from bitmma.gemm import matmul
from bitmma.unit import Instruction, instruction

__all__ = ["compute"]

K = 4096
#: GPU: its FP16 and BF16 instruction with FP32 output and the longest groups.
UNITS: dict[str, dict[str, str]] = {
    "Volta": {"f16": "m8n8k4.f32.f16.f16.f32"},
    "Turing": {"f16": "m16n8k8.f32.f16.f16.f32"},
    **{gpu: {x: f"m16n8k16.f32.{x}.{x}.f32" for x in ("f16", "bf16")}
       for gpu in ("Ampere", "Ada Lovelace", "Hopper", "Blackwell", "RTX Blackwell")},
    "CDNA1": {"f16": "f32_16x16x16f16", "bf16": "f32_16x16x8bf16"},
    "CDNA2": {"f16": "f32_16x16x16f16", "bf16": "f32_16x16x16bf16_1k"},
    "CDNA3": {"f16": "f32_16x16x16_f16", "bf16": "f32_16x16x16_bf16"},
}  # fmt: skip


TITLES = {"bf16": "BF16", "f16": "FP16"}


def compute(quick: bool, progress: Progress, each: Each) -> Report:
    del each  # the products are large: each uses all cores
    M = 32 if quick else 256
    table, shares, apart = [], {}, {}
    rms: dict[str, float] = {}
    done, total = 0, sum(map(len, UNITS.values()))
    for fmt in ("bf16", "f16"):
        A, B = (
            formats.quantize(sample("normal", s, seed=(SEED, 7, i)), fmt)
            for i, s in enumerate(((M, K), (K, M)))
        )
        exact = exact_product(A.astype(np.float64), B.astype(np.float64))
        units = {g: instruction(g, names[fmt]) for g, names in UNITS.items() if fmt in names}
        d = {}
        for gpu, unit in units.items():
            d[gpu] = matmul(A, B, instruction=unit).astype(np.float64)
            done += 1
            progress(done, total)
        rms = {gpu: float(np.sqrt(np.mean(exact.error_of(x) ** 2))) for gpu, x in d.items()}
        shares[fmt] = np.array([[np.mean(x != y) for y in d.values()] for x in d.values()])
        apart[fmt] = list(d)
        for first, second in combinations(d, 2):
            gap = np.abs(d[first] - d[second])
            table.append(
                {"operands": fmt, "first": first, "second": second,
                 "outputs": gap.size, "share that differ": float((gap > 0).mean()),
                 "mean difference": float(gap.mean()), "largest": float(gap.max()),
                 "RMS error of first": rms[first], "RMS error of second": rms[second],
                 "same arithmetic": _same(units[first], units[second])}
            )  # fmt: skip
    nvidia = [x for gpu, x in rms.items() if not gpu.startswith("CDNA")]
    amd = [x for gpu, x in rms.items() if gpu.startswith("CDNA")]
    equal = [r for r in table if r["share that differ"] == 0]
    assert all(r["same arithmetic"] == "yes" for r in equal)
    differing = [r["share that differ"] for r in table if r["same arithmetic"] == "no"]
    return Report(
        "pairs",
        "Which GPUs agree",
        [
            f"The same {M}×{K:,}×{M} product of N(0, 1) matrices, as one chain of each GPU's "
            "instruction with FP32 output. A cell is the share of outputs that differ.",
            f"GPUs whose instructions have the same model agree in every output; there are "
            f"{len(equal)} such pairs. Of all others the share is {min(differing):.1%} to "
            f"{max(differing):.1%}: after {K:,} products nearly every output has met a difference. "
            "The differences are small (in the table). Against the exact product, FP16 results "
            f"are off by {_range(nvidia)} (RMS) on NVIDIA's GPUs, which cut toward zero, and by "
            f"{_range(amd)} on AMD's, whose accumulators are rounded to nearest; results are of "
            f"size {K**0.5:.0f}.",
            "Kernels on these GPUs differ in more than the instruction (split-K, for one): equal "
            "arithmetic is needed for equal results, but it is not enough.",
        ],
        table,
        [],
        lambda: _draw(shares, apart),
        f"Share of differing outputs for every pair of GPUs, K = {K:,}.",
        {"K": K, "M": M, "gpus": apart, "shares": {f: s.tolist() for f, s in shares.items()},
         "instructions": UNITS},
        quick,
    )  # fmt: skip


def _range(x: list[float]) -> str:
    return f"{min(x):.1g} to {max(x):.1g}"


def _same(first: Instruction, second: Instruction) -> str:
    return "yes" if first.model == second.model else "no"


def _draw(shares: dict[str, Any], gpus: dict[str, list[str]]) -> Any:
    plt = figures()
    figure, axes = plt.subplots(1, 2, figsize=(12.4, 5.4))
    names = {gpu: gpu.replace("Ada Lovelace", "Ada").replace("RTX ", "RTX\n") for gpu in isa.GPUS}
    for ax, (fmt, share) in zip(axes, shares.items(), strict=True):
        image = ax.imshow(share, cmap="cividis_r", vmin=0, vmax=1)
        for i, row in enumerate(share):
            for j, x in enumerate(row):
                text = "=" if x == 0 else ">99%" if 0.995 <= x < 1 else f"{x:.0%}"
                ax.text(j, i, text, ha="center", va="center", fontsize=8,
                        color="white" if x > 0.6 else "black")  # fmt: skip
        labels = [names[g] for g in gpus[fmt]]
        ax.set_xticks(range(len(labels)), labels, rotation=45, ha="right")
        ax.set_yticks(range(len(labels)), labels)
        ax.set_title(f"{TITLES[fmt]} operands, FP32 results, K = {K:,}")
        ax.grid(False)
        ax.tick_params(length=0)
    figure.colorbar(image, ax=axes, shrink=0.7, label="share of outputs that differ")
    return figure
