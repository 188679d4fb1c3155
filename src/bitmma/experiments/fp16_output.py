"""FP16 against FP32 accumulators: what a narrower result costs along K."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from bitmma import formats
from bitmma.analysis import errors, sample
from bitmma.experiments.report import COLOURS, SEED, Each, Progress, Report, figures

__all__ = ["compute"]

UNITS = {
    "Volta": "m8n8k4.{d}.f16.f16.{d}",
    "Ampere": "m16n8k16.{d}.f16.f16.{d}",
    "Hopper": "m64n8k16.{d}.f16.f16",
}
Floats = npt.NDArray[np.float64]

#: Sums that grow as the square root of K, and sums that grow as K and leave FP16's range.
INPUTS: dict[str, Callable[[Floats], Floats]] = {
    "N(0,1)": lambda x: x,
    "4·|N(0,1)|": lambda x: 4 * np.abs(x),
}


def compute(quick: bool, progress: Progress, each: Each) -> Report:
    lengths = [2**n for n in ((4, 7, 10) if quick else range(4, 15))]
    M = 24 if quick else 64
    table: list[dict[str, Any]] = []
    done, total = 0, sum(lengths) * len(INPUTS)
    cases = [(label, K) for label in INPUTS for K in lengths]
    found = each(_rows, *zip(*cases, strict=True), [M] * len(cases))
    for (_, K), rows in zip(cases, found, strict=True):
        table += rows
        done += K
        progress(done, total)
    K = lengths[-1]
    last = {(r["GPU"], r["d"]): r for r in table if (r["inputs"], r["K"]) == ("N(0,1)", K)}
    rms = {which: r["relative RMS error"] for which, r in last.items()}
    overflowed = [r["K"] for r in table if r["overflowed"]]
    end = f"leave their range of 65,504 from K = {min(overflowed):,} on, and " if overflowed else ""
    return Report(
        "fp16-output",
        "FP16 accumulators",
        [
            "FP16 instructions with FP16 output round the accumulator to eleven bits after every "
            f"group of products. With N(0, 1) operands and K = {K:,} the RMS error on Hopper is "
            f"{rms['Hopper', 'f16']:.2%}, {rms['Hopper', 'f16'] / rms['Hopper', 'f32']:,.0f} times "
            "that of its FP32 accumulator.",
            "Nearly all of it is accumulation, the roundings between groups. So units that take "
            "more products at a time are better: Volta rounds every 4 products, Ampere every 8, "
            f"Hopper every 16 ({rms['Volta', 'f16']:.2%}, {rms['Ampere', 'f16']:.2%}, "
            f"{rms['Hopper', 'f16']:.2%}). Alignment hardly matters beside it.",
            "FP32 results are another matter: RZ, at every group, pulls them toward zero (column "
            "“mean error along x”), where FP16 results are rounded to nearest. Volta, with the "
            f"fewest bits, has the smallest error at this K: {rms['Volta', 'f32']:.2g} against "
            f"{rms['Ampere', 'f32']:.2g} on Ampere. It cuts each product, whose signs vary, at the "
            "accumulator's own last bit: what RZ cuts off an accumulator the next alignment would "
            "cut as well (column “by accumulation”). With positive operands, whose products are "
            "all cut in one direction, it has the largest.",
            "With positive operands, 4·|N(0, 1)|, sums grow as K. FP16 accumulators "
            f"{end}lose whatever is below half of their last bit.",
        ],
        table,
        [],
        lambda: _draw(table, lengths),
        "Relative RMS error against K, N(0, 1). Left: FP16 and FP32 accumulators of three "
        "generations. Right: what Hopper's errors are made of.",
        {"M": M},
        quick,
    )  # fmt: skip


def _rows(label: str, K: int, M: int) -> list[dict[str, Any]]:
    """Every unit with both outputs, of one length."""
    A, B = (
        formats.quantize(INPUTS[label](sample("normal", s, seed=(SEED, 6, i, K))), "f16")
        for i, s in enumerate(((M, K), (K, M)))
    )
    return [
        {"inputs": label, "GPU": gpu, "d": d, "K": K} | _row((gpu, pattern.format(d=d)), A, B)
        for gpu, pattern in UNITS.items()
        for d in ("f16", "f32")
    ]


def _row(which: tuple[str, str], A: Any, B: Any) -> dict[str, Any]:
    """Errors relative to the root mean square of the exact results; None where all overflow."""
    names = ("accumulation", "alignment", "rounding")
    columns = ("relative RMS error", "mean error along x", *(f"by {name}" for name in names))
    try:
        e = errors(which, A, B)
    except ValueError:  # no output is finite
        return dict.fromkeys(columns) | {"overflowed": 1.0}
    size = float(np.sqrt(np.mean(e.exact[e.counted] ** 2)))
    along = float(np.mean((e.error * np.sign(e.exact))[e.counted]))
    parts = (c.part.mse**0.5 for c in e.causes)
    values = (x / size for x in (e.total.mse**0.5, along, *parts))
    return dict(zip(columns, values, strict=True)) | {"overflowed": e.overflowed / e.outputs}


def _draw(table: list[dict[str, Any]], lengths: list[int]) -> Any:
    plt = figures()
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), sharey=True)
    rows = [r for r in table if r["inputs"] == "N(0,1)"]
    colours = dict(zip(UNITS, (COLOURS["red"], COLOURS["green"], COLOURS["blue"]), strict=True))
    for gpu, colour in colours.items():
        for d, style in (("f16", "-"), ("f32", "--")):
            y = [r["relative RMS error"] for r in rows if (r["GPU"], r["d"]) == (gpu, d)]
            left.plot(lengths, y, style, color=colour, marker="o", markersize=4,
                      label=f"{gpu}, {d.replace('f', 'FP')}")  # fmt: skip
    left.set_title("FP16 and FP32 accumulators")
    left.set_ylabel("relative RMS error")
    left.legend(ncols=3, fontsize=9, loc="upper left")
    parts = {"alignment": COLOURS["orange"], "accumulation": COLOURS["purple"],
             "rounding": COLOURS["sky"]}  # fmt: skip
    for name, colour in parts.items():
        for d, style in (("f16", "-"), ("f32", "--")):
            y = [r[f"by {name}"] for r in rows if (r["GPU"], r["d"]) == ("Hopper", d)]
            right.plot(lengths, [v or np.nan for v in y], style, color=colour, marker="o",
                       markersize=4, label=f"{name}, {d.replace('f', 'FP')}")  # fmt: skip
    right.set_title("Hopper: parts of the error")
    right.legend(ncols=3, fontsize=9, loc="upper left")
    for ax in (left, right):
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_ylim(1e-8, 1)  # room for the legends
        ax.set_xlabel("K")
    return figure
