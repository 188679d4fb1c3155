"""How many bits NVIDIA's units keep below the largest term, and how they round: by probing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from bitmma import formats
from bitmma.experiments.report import COLOURS, Finding, Report, figures
from bitmma.models import Lowered
from bitmma.unit import Instruction, instruction

__all__ = ["compute", "internal_bits", "output_rounding"]

Floats = npt.NDArray[np.float64]

UNITS: tuple[tuple[str, str], ...] = (
    ("Volta", "m8n8k4.f32.f16.f16.f32"),
    ("Turing", "m16n8k8.f32.f16.f16.f32"),
    ("Ampere", "m16n8k16.f32.f16.f16.f32"),
    ("Ampere", "m16n8k16.f32.bf16.bf16.f32"),
    ("Ampere", "m16n8k8.f32.tf32.tf32.f32"),
    ("Ada Lovelace", "m16n8k16.f32.f16.f16.f32"),
    ("Ada Lovelace", "m16n8k32.f32.e4m3.e4m3.f32"),
    ("Hopper", "m64n8k16.f32.f16.f16"),
    ("Hopper", "m64n8k16.f32.bf16.bf16"),
    ("Hopper", "m64n8k32.f32.e4m3.e4m3"),
    ("Hopper", "m16n8k32.f32.e4m3.e4m3.f32"),
    ("Blackwell", "m64n8k16.kind::f16.f32.f16.f16"),
    ("Blackwell", "m64n8k32.kind::f8f6f4.f32.e4m3.e4m3"),
    ("RTX Blackwell", "m16n8k16.f32.f16.f16.f32"),
    ("RTX Blackwell", "m16n8k32.kind::f8f6f4.f32.e4m3.e4m3.f32"),
)

#: F as published for FP16 and BF16 units, and for FP8: arXiv 2511.10909v2, arXiv 2512.07004.
PUBLISHED: Mapping[str, dict[str, int]] = {
    "Volta": {"f16": 23}, "Turing": {"f16": 24}, "Ampere": {"f16": 24, "bf16": 24},
    "Ada Lovelace": {"f16": 24, "e4m3": 13}, "Hopper": {"f16": 25, "bf16": 25, "e4m3": 13},
    "Blackwell": {"f16": 25, "e4m3": 25}, "RTX Blackwell": {"f16": 25, "e4m3": 25},
}  # fmt: skip
#: FP8 without hardware: the compiler makes FP16 instructions of it.
LOWERED = "mma m16n8k32.f32.e4m3.e4m3.f32"


def compute(quick: bool, progress: Callable[[int, int], object]) -> Report:
    del quick
    table = []
    for done, (gpu, name) in enumerate(UNITS, 1):
        instr = instruction(gpu, name)
        model: Any = instr.model.unit if isinstance(instr.model, Lowered) else instr.model
        mantissa, mode = output_rounding(instr)
        row = {
            "GPU": gpu,
            "instruction": f"{instr.op} {instr.name}",
            "operands": instr.a,
            "F by products": internal_bits(instr),
            "F by c": _text(internal_bits(instr, by_c=True)),
            "F catalogue": model.F,
            "mantissa bits of d": mantissa,
            "rounding of d": mode,
            "rho catalogue": str(model.rho),
        }
        table.append(row)
        progress(done, len(UNITS))
    findings = []
    for gpu, published in PUBLISHED.items():
        ours = {
            r["operands"]: r["F by products"]
            for r in table
            if r["GPU"] == gpu
            and r["operands"] in published
            and (gpu, r["instruction"]) != ("Hopper", LOWERED)
        }
        findings.append(
            Finding(
                f"F of {gpu}", _listed(published), _listed(ours),
                "yes" if ours == published else "no",
                "probed on bitmma's own unit, which has the published F: the probe measures it",
            )
        )  # fmt: skip
    return Report(
        "internal-bits",
        "Bits inside NVIDIA's matrix units",
        [
            "Three lanes of a dot product tell how many bits a unit keeps below its largest term: "
            "U, −U and ε. U and −U cancel, and ε, halved until it vanishes, shows where terms are "
            "cut: F halvings survive. With ε in c instead of a product the same F appears: c is "
            "aligned with the products, in one step. ε is tried in every lane; the table has the "
            "one where fewest halvings survive. What is probed here are bitmma's own units, as one "
            "would probe a GPU: it shows what the probe sees of each, not what GPUs are.",
            "Rounding of the output: 2U plus one and a half units in its last place, with both "
            "signs. RZ gives one unit for either sign, RNE two.",
            "FP8 `mma.sync` on Hopper has no hardware: the compiler makes FP16 instructions of it, "
            "and the probe sees their 25 bits, in the lanes that share an instruction with U and "
            "−U. c is added afterwards, in FP32: an ε in c is never cut.",
        ],
        table,
        findings,
        lambda: _draw(table),
        "F, the bits kept below the largest exponent, by generation and operand format, as probed.",
        {"published": PUBLISHED},
    )


def _text(F: int | None) -> str:
    return "not cut" if F is None else str(F)


def _listed(bits: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {F}" for name, F in bits.items())


def _dots(instr: Instruction, products: Floats, c: Any = 0.0) -> Floats:
    """d of products (..., k), each 0 or a power of two, and of c (...)."""
    e = np.frexp(products)[1] - 1
    b = np.where(products == 0, 0.0, np.ldexp(1.0, e // 2))
    a = np.divide(products, b, out=np.zeros(products.shape), where=b != 0)
    operands = (formats.quantize(x, f) for x, f in ((a, instr.a), (b, instr.b), (c, instr.c)))
    return np.asarray(instr.dpa(*operands), np.float64)


def _large(instr: Instruction) -> float:
    """U: a power of four, at most 2^40, four of which overflow nowhere."""
    return 4.0 ** min(formats.get(instr.a).max_exponent - 1, 20)


def internal_bits(instr: Instruction, *, by_c: bool = False) -> int | None:
    """How many halvings of U survive beside U and -U, in the lane where fewest do (or in c).

    None: all that the operands' format allows, or 39.
    """
    U, fmt = _large(instr), formats.get(instr.a)
    lowest = 2 * (fmt.min_exponent - fmt.mantissa_bits)
    deepest = 39 if by_c else min(39, round(math.log2(U)) - lowest)
    tiny = U * 2.0 ** -np.arange(deepest + 1)
    lanes = np.arange(2, 3 if by_c else instr.k)
    products = np.zeros((len(lanes), deepest + 1, instr.k))  # lane of ε, halvings
    products[..., 0], products[..., 1] = U, -U
    if not by_c:
        products[lanes - 2, :, lanes] = tiny
    gone = _dots(instr, products, tiny if by_c else 0.0) == 0
    return int(np.argmax(gone, axis=1)[gone.any(1)].min()) - 1 if gone.any() else None


def output_rounding(instr: Instruction) -> tuple[int, str]:
    """Mantissa bits of d, and the mode in which it is rounded to them."""
    U = _large(instr) / 4
    products = np.zeros((60, instr.k))
    products[:, 0] = products[:, 1] = U
    products[:, 2] = 2 * U * 2.0 ** -np.arange(60)
    small = products[:, 2] < 4.0 ** formats.get(instr.a).min_exponent
    products[small, 2] = 0
    gone = [np.abs(_dots(instr, sign * products)) == 2 * U for sign in (1, -1)]
    bits = int(np.argmax(gone[0] | gone[1])) - 1  # a directed rounding keeps any ε, of one sign
    step = 2 * U * 2.0**-bits
    one = np.zeros(instr.k)
    one[:4] = U, U, step, step / 2
    up, down = (np.abs(_dots(instr, np.stack([one, -one]))) - 2 * U) / step
    modes = {(1, 1): "RZ", (2, 2): "RNE", (1, 2): "RD", (2, 1): "RU"}
    return bits, modes.get((int(up), int(down)), "?")


def _draw(table: list[dict[str, Any]]) -> Any:
    plt = figures()
    gpus = list(PUBLISHED)
    styles = {
        "f16": ("o", COLOURS["blue"]), "bf16": ("s", COLOURS["green"]),
        "tf32": ("^", COLOURS["purple"]), "e4m3": ("D", COLOURS["red"]),
    }  # fmt: skip
    figure, ax = plt.subplots(figsize=(9, 4))
    shown = {gpu: [f for f in styles if _has(table, gpu, f)] for gpu in gpus}
    for fmt, (marker, colour) in styles.items():
        rows = [r for r in table if r["operands"] == fmt]
        x = [_place(gpus, shown, r["GPU"], fmt) for r in rows]
        y = [r["F by products"] for r in rows]
        ax.scatter(x, y, marker=marker, color=colour, s=55, label=fmt, zorder=3)
    for gpu, F in dict.fromkeys((r["GPU"], r["F by products"]) for r in table):
        places = [_place(gpus, shown, r["GPU"], r["operands"]) for r in table
                  if (r["GPU"], r["F by products"]) == (gpu, F)]  # fmt: skip
        ax.annotate(f"{F}", (sum(places) / len(places), F), xytext=(0, 9),
                    textcoords="offset points", ha="center")  # fmt: skip
    at = _place(gpus, shown, "Hopper", "e4m3"), 25
    ax.annotate("e4m3 by mma.sync:\nmade of f16 instructions", at, xytext=(5, 20.2), ha="center",
                va="center", arrowprops={"arrowstyle": "-", "color": COLOURS["grey"]})  # fmt: skip
    ax.set_xticks(range(len(gpus)), gpus)
    ax.set_xlim(-0.5, len(gpus) - 0.3)
    ax.set_ylim(11, 27.5)
    ax.set_ylabel("F: bits below the largest exponent")
    ax.legend(title="operands", loc="lower left", ncols=4)
    ax.grid(axis="x", visible=False)
    return figure


def _has(table: list[dict[str, Any]], gpu: str, fmt: str) -> bool:
    return any(r["GPU"] == gpu and r["operands"] == fmt for r in table)


def _place(gpus: list[str], shown: Mapping[str, list[str]], gpu: str, fmt: str) -> float:
    """x of a format's mark: those of one GPU side by side around its tick."""
    return gpus.index(gpu) + 0.15 * (shown[gpu].index(fmt) - (len(shown[gpu]) - 1) / 2)
