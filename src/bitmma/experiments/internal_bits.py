"""How many bits NVIDIA's units keep below the largest term, and how they round: by probing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bitmma import clfp
from bitmma.experiments.report import COLOURS, Each, Finding, Progress, Report, figures
from bitmma.models import Lowered
from bitmma.unit import Instruction, instruction

__all__ = ["compute", "probed"]

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


#: How outputs are rounded, by the same sources.
RHO = {"f16": "RZ-FP32", "bf16": "RZ-FP32", "e4m3": "RZ-FP32"}
RHO_FP8 = {"Ada Lovelace": "RZ-E8M13", "Hopper": "RZ-E8M13"}


def compute(quick: bool, progress: Progress, each: Each) -> Report:
    inputs = 10_000 if quick else 100_000
    table = []
    reports = each(_of, *zip(*UNITS, strict=True), [inputs] * len(UNITS))
    for done, ((gpu, name), report) in enumerate(zip(UNITS, reports, strict=True), 1):
        instr = instruction(gpu, name)
        table.append({"GPU": gpu, "instruction": f"{instr.op} {instr.name}",
                      "operands": instr.a} | _row(instr, report))  # fmt: skip
        progress(done, len(UNITS))
    findings = []
    for gpu, published in PUBLISHED.items():
        rows = {
            r["operands"]: r
            for r in table
            if r["GPU"] == gpu
            and r["operands"] in published
            and (gpu, r["instruction"]) != ("Hopper", LOWERED)
        }
        rho = {x: RHO_FP8.get(gpu, RHO[x]) if x == "e4m3" else RHO[x] for x in published}
        ours = {x: f"{r['F']}, {r['rho']}" for x, r in rows.items()}
        theirs = {x: f"{F}, {rho[x]}" for x, F in published.items()}
        findings.append(
            Finding(
                f"F and output rounding of {gpu}", _listed(theirs), _listed(ours),
                "yes" if ours == theirs else "no",
                "probed on bitmma's own unit, which has the published F: the probe measures it",
            )
        )  # fmt: skip
    outputs = sum(r["outputs compared"] for r in table)
    return Report(
        "internal-bits",
        "Bits inside NVIDIA's matrix units",
        [
            "`bitmma.probe` is given each unit as a black box, a function D = f(A, B, C) without a "
            "name, and finds its arithmetic: the tree of its sum, how many bits F are kept below "
            "the largest exponent, how the output is rounded. F shows when two products cancel and "
            "a third, halved until it vanishes, is what is left; the rounding, when units in the "
            "last place are halved likewise. The model that follows is then compared with the box "
            f"bit against bit, on {outputs:,} outputs in all.",
            "What is probed here are bitmma's own units, as one would probe a GPU: it shows that "
            "the probe finds what is there, not what GPUs are. The catalogue's columns stand "
            "beside.",
            "FP8 `mma.sync` on Hopper has no hardware: the compiler makes FP16 instructions of it, "
            "and the probe finds these: their 25 bits, which products share one, and an FP32 "
            "addition of c at the end.",
        ],
        table,
        findings,
        lambda: _draw(table),
        "F, the bits kept below the largest exponent, by generation and operand format, as probed.",
        {"published": PUBLISHED},
        quick,
    )


def _of(gpu: str, name: str, inputs: int) -> clfp.Report:
    return probed(instruction(gpu, name), inputs)


def probed(instr: Instruction, inputs: int) -> clfp.Report:
    """What the probe finds of a unit of which it is told the shape and the formats only."""
    box = clfp.BlackBox(
        lambda A, B, C: instr(A, B, C), instr.m, instr.n, instr.k, instr.a, instr.b, c=instr.c,
        d=instr.d, batched=True, name="a black box",
    )  # fmt: skip
    return clfp.probe(box, inputs=inputs)


def _row(instr: Instruction, report: clfp.Report) -> dict[str, Any]:
    model, truth = (_fused(x) for x in (report.model, instr.model))
    return {
        "probe": report.status, "F": getattr(model, "F", None), "F catalogue": truth.F,
        "rho": str(getattr(model, "rho", None)), "rho catalogue": str(truth.rho),
        "sum": report.tree_text, "outputs compared": report.tested,
        "same as catalogue": "yes" if report.model == instr.model else "no",
    }  # fmt: skip


def _fused(model: Any) -> Any:
    return model.unit if isinstance(model, Lowered) else model


def _listed(found: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {text}" for name, text in found.items())


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
        y = [r["F"] for r in rows]
        ax.scatter(x, y, marker=marker, color=colour, s=55, label=fmt, zorder=3)
    for gpu, F in dict.fromkeys((r["GPU"], r["F"]) for r in table):
        places = [_place(gpus, shown, r["GPU"], r["operands"]) for r in table
                  if (r["GPU"], r["F"]) == (gpu, F)]  # fmt: skip
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
