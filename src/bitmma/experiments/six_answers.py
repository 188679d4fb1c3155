"""One dot product, six answers: the table, and what each unit keeps of its terms.

The figure is Matplotlib's, like those of the other experiments: six units on one page, as SVG and
as PNG, which the pictures of `explain` cannot be. It draws the same traces as they do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bitmma import formats
from bitmma.analysis import compare
from bitmma.analysis.answers import SIX_ANSWERS
from bitmma.engine.operands import from_list
from bitmma.experiments.report import COLOURS, Each, Finding, Progress, Report, figures
from bitmma.reference import Step, trace
from bitmma.unit import instruction

__all__ = ["compute"]

#: A unit for each answer, in the table's order.
SHOWN = (
    ("CDNA3", "f32_16x16x32_bf8_bf8", "rounds down"),
    ("CDNA1", "f32_16x16x16f16", "exact sum"),
    ("Hopper", "m16n8k16.f32.f16.f16.f32", "F = 25"),
    ("Ampere", "m16n8k16.f32.f16.f16.f32", "F = 24"),
    ("CDNA2", "f32_16x16x8bf16", "FP32 adds"),
    ("Volta", "m8n8k4.f32.f16.f16.f32", "F = 23"),
)
#: arithmetic by arithmetic: what the paper's table says.
PUBLISHED = (-1.0, -0.875, -0.75, -0.5, -0.375, 0.0)
TOP, BOTTOM = 23, -3  # the exponents that matter


def compute(quick: bool, progress: Progress, each: Each) -> Report:
    del quick, each  # it is quick
    comparison = compare()
    progress(1, 1)
    table: list[dict[str, Any]] = [*comparison.rows()]
    values = tuple(answer.value for answer in comparison.answers)
    listed = ", ".join(f"{x:g}" for x in values)
    finding = Finding(
        "answers of all units to this input", ", ".join(f"{x:g}" for x in PUBLISHED), listed,
        "yes" if values == PUBLISHED else "no",
        "the models are those of the paper, and every kind of instruction was run",
    )  # fmt: skip
    kinds = sum(len(answer.instructions) for answer in comparison.answers)
    return Report(
        "six-answers",
        "One dot product, six answers",
        [
            "a = (−2¹³, −0.5, −0.25, −0.125), b = (2¹⁰, 1, 1, 1), c = 2²³. The first product and c "
            "cancel; what is left is −0.875, and every part of it lies 24 to 26 bits below the "
            "largest term. How much of it survives is the number of bits F that a unit keeps below "
            "its largest exponent, and how it rounds what it cuts.",
            "The input is that of Xie et al., arXiv 2511.10909, run here on every kind of "
            f"instruction of ten generations that holds it, {kinds} of them. `bitmma compare` "
            "prints the same table.",
        ],
        table,
        [finding],
        _draw,
        "What six units keep of each term. Columns are powers of two, from 2²³ to 2⁻³. Filled: a "
        "bit that enters the sum; hollow: one that is cut. Grey: what the unit can hold. (CDNA3's "
        "even and odd products have fields of their own; their sums are joined rounding down.)",
        {"a": SIX_ANSWERS[0], "b": SIX_ANSWERS[1], "c": SIX_ANSWERS[2]},
    )  # fmt: skip


def _steps(gpu: str, name: str) -> tuple[tuple[Step, ...], float]:
    """The steps that the input's four products take."""
    instr = instruction(gpu, name)
    a, b, c = SIX_ANSWERS
    found = trace(
        instr.model, from_list(a, instr.a, 4, "a"), from_list(b, instr.b, 4, "b"),
        from_list(c, instr.c, 1, "c")[0],
        a_format=instr.a, b_format=instr.b, c_format=instr.c,
    )  # fmt: skip
    return found.steps, _value(found.result)


def _value(code: int) -> float:
    return float(formats.decode(np.array([code], np.uint32), "f32")[0])


def _draw() -> Any:
    plt = figures()
    figure, axes = plt.subplots(2, 3, figsize=(11, 6.2), sharex=True)
    for ax, (gpu, name, what) in zip(axes.flat, SHOWN, strict=True):
        steps, d = _steps(gpu, name)
        row, labels = 0, []
        for step in steps:
            terms = sorted((t for t in step.terms if t.n), key=lambda t: t.name)
            if not terms:
                continue
            for term in terms:
                _term(ax, row, term.n, term.q, term.kept, term.unit, step.e_max)
                labels.append(term.name.replace("*", "·"))
                row += 1
            _bits(ax, row, *_integer(_value(step.result)), COLOURS["blue"], filled=True)
            labels.append("d")
            ax.axhline(row - 0.5, color="#444444", linewidth=0.8)
            row += 1
        ax.set_yticks(range(row), labels)
        ax.set_ylim(row - 0.4, -0.6)
        ax.set_xlim(TOP + 2.2, BOTTOM - 1)
        ax.set_xticks(
            [23, 20, 15, 10, 5, 0, -3], [f"$2^{{{e}}}$" for e in (23, 20, 15, 10, 5, 0, -3)]
        )
        ax.grid(False)
        ax.tick_params(length=0)
        for side in ("left", "bottom"):
            ax.spines[side].set_visible(False)
        ax.set_title(f"{gpu} {instruction(gpu, name).a}: {what}", fontweight="bold")
        ax.text(1, 1.02, f"d = {d:g}", transform=ax.transAxes, ha="right", va="bottom",
                color=COLOURS["blue"], fontweight="bold")  # fmt: skip
    return figure


def _integer(x: float) -> tuple[int, int]:
    numerator, denominator = x.as_integer_ratio()
    return numerator, 1 - denominator.bit_length()


def _term(ax: Any, row: int, n: int, q: int, kept: int, unit: int, e_max: int | None) -> None:
    """A term's bits, those that were cut hollow, on the field that the unit keeps."""
    from matplotlib.patches import Rectangle

    if e_max is not None:
        low = max(unit, BOTTOM - 0.5)
        ax.add_patch(Rectangle((low - 0.5, row - 0.42), e_max - low + 1, 0.84, color="#ECECEC"))
    if kept * 2.0**unit != n * 2.0**q:
        _bits(ax, row, n, q, COLOURS["red"], filled=False)
    if kept:
        _bits(ax, row, kept, unit, COLOURS["black"], filled=True)


def _bits(ax: Any, row: int, n: int, q: int, colour: str, *, filled: bool) -> None:
    """The bits of n * 2^q as squares, its sign before them."""
    places = [q + i for i in range(abs(n).bit_length()) if abs(n) >> i & 1]
    face = colour if filled else "none"
    ax.scatter(places, [row] * len(places), marker="s", s=30, facecolor=face, edgecolor=colour)
    sign = "0" if n == 0 else "−" if n < 0 else "+"
    ax.text(max(places, default=-1) + 1.1, row, sign, ha="center", va="center", color=colour)
