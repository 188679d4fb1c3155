"""Probe what others wrote: python scripts/probe_software.py [--page FILE]

NumPy's matmul, sum and dot, PyTorch's matmul, math.fsum and, where it is installed, the published
simulator mmasim. What is found depends on the machine: a BLAS chooses its kernels by processor.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import math
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from bitmma import isa
from bitmma.clfp import BlackBox, Report, probe


def numpy_boxes() -> Iterator[BlackBox]:
    for k in (4, 16, 64, 512):
        yield BlackBox(lambda A, B, C: A @ B + C, 16, 16, k, "f32", name=f"NumPy A @ B + C, K={k}")
    for k in (8, 64, 512):
        yield BlackBox(
            lambda A, B, C: (A[0] * B[:, 0]).sum().reshape(1, 1), 1, 1, k, "f32",
            name=f"NumPy (a * b).sum(), K={k}",
        )  # fmt: skip
        yield BlackBox(
            lambda A, B, C: np.dot(A[0], B[:, 0]).reshape(1, 1), 1, 1, k, "f32",
            name=f"NumPy dot(a, b), K={k}",
        )  # fmt: skip


def fsum(A: Any, B: Any, C: Any) -> Any:
    products = A[0].astype(np.float64) * B[:, 0].astype(np.float64)
    try:
        return np.array([[math.fsum([*products.tolist(), float(C[0, 0])])]])
    except (OverflowError, ValueError):  # Inf - Inf, which fsum refuses
        return np.full((1, 1), np.nan)


def _installed(*names: str) -> bool:
    return all(importlib.util.find_spec(name) for name in names)


def _exchange() -> tuple[Any, Any]:
    """NumPy to PyTorch and back, bfloat16 too, bit by bit."""
    import torch

    integers = {2: (np.int16, torch.int16), 4: (np.int32, torch.int32), 8: (np.int64, torch.int64)}
    names = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32,
             "float64": torch.float64}  # fmt: skip
    dtypes = {torch.bfloat16: np.dtype(ml_dtypes.bfloat16)}

    def tensor(x: Any) -> Any:
        here, _ = integers[x.itemsize]
        return torch.from_numpy(np.array(x).view(here)).view(names[x.dtype.name])

    def array(x: Any) -> Any:
        _, there = integers[x.element_size()]
        dtype = dtypes.get(x.dtype) or np.dtype(str(x.dtype).removeprefix("torch."))
        return x.contiguous().view(there).numpy().view(dtype)

    return tensor, array


def torch_boxes() -> Iterator[BlackBox]:
    if not _installed("torch"):
        return
    tensor, array = _exchange()
    for name in ("f32", "bf16", "f16"):
        for k in (16, 64):
            yield BlackBox(
                lambda A, B, C: array(tensor(A) @ tensor(B)), 16, 16, k, name, c=name,
                name=f"PyTorch {name} A @ B, K={k}",
            )  # fmt: skip


MMASIM = (
    ("Volta", "m8n8k4.f32.f16.f16.f32"),
    ("Ampere", "m16n8k8.f32.bf16.bf16.f32"),
    ("Hopper", "m16n8k16.f32.f16.f16.f32"),
    ("Hopper", "m16n8k16.f16.f16.f16.f16"),
    ("CDNA2", "f32_4x4x4f16"),
    ("CDNA3", "f32_4x4x4_16b_f16"),
)


def mmasim_boxes() -> Iterator[BlackBox]:
    if not _installed("mmasim", "torch"):
        return
    from mmasim import amd, nv_ptx

    tensor, array = _exchange()
    for gpu, name in MMASIM:
        e = isa.find(gpu, name)
        unit = (amd.MFMA if gpu.startswith("CDNA") else nv_ptx.MMA)(gpu, name)
        yield BlackBox(
            lambda A, B, C, unit=unit: array(unit(*map(tensor, (A, B, C)))),
            e.m, e.n, e.k, e.a, e.b, e.c, e.d, name=f"mmasim {gpu} {name}",
        )  # fmt: skip


# --- the page -------------------------------------------------------------------------------------


def _short(text: str, limit: int = 90) -> str:
    return text if len(text) <= limit else f"{text[: limit - 30]} … {text[-24:]}"


def _row(report: Report, seconds: float) -> str:
    """A line of the page's table: what was found, and where nothing was, why."""
    found = f"`{_short(repr(report.model), 110)}`" if report.model else _short(report.reason, 170)
    if len(report.candidates) > 1:
        found += f" and {len(report.candidates) - 1} more: {report.reason.split('; ')[-1]}"
    shown = f"`{_short(report.tree_text)}`" if report.tree else report.tree_note
    missed = ", ".join(report.not_reached) if report.model else "–"
    cells = (
        report.box["name"], report.status, shown, found, f"{report.tested:,}", missed or "–",
        f"{seconds:.0f}",
    )  # fmt: skip
    return "| " + " | ".join(x.replace("|", "\\|") for x in cells) + " |"


def _versions() -> str:
    names = [x for x in ("numpy", "torch", "mmasim") if _installed(x)]
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


def _processor() -> str:
    """The processor and its vector instructions, where the system says; kernels go by them."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() or platform.machine()
    lines = dict(
        (part.strip() for part in line.split(":", 1))
        for line in info.read_text().splitlines()
        if ":" in line
    )
    known = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16")
    flags = [x for x in known if x in lines.get("flags", "").split()]
    return f"{lines.get('model name', platform.machine())} ({', '.join(flags)})"


def page(rows: list[str]) -> str:
    return "\n".join(
        [
            "# Software that others wrote", "",
            "Made by `python scripts/probe_software.py --page docs/probing/software.md`. What is "
            "found holds for these versions on this processor: a BLAS chooses its kernels, and "
            "with them its order of summation, by processor and by the shape of the matrices "
            "(here 16×K times K×16; sums and dots are of one vector). "
            "*Outputs* of the box were compared with the model's. "
            "Long trees and models are abbreviated, `--reports FOLDER` keeps them whole. *Not "
            "reached* are conditions that none of the traced inputs met; in sums of two at a time "
            "nothing is cut but by the rounding, and no zero has an exponent.", "",
            f"- {_versions()}, Python {platform.python_version()}",
            f"- {_processor()}, seconds on a machine with other work", "",
            "| box | status | tree | model, or why there is none | outputs | not reached "
            "| seconds |",
            "|---|---|---|---|---:|---|---:|", *rows, "",
        ]
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--inputs", type=int,
        help="outputs to compare; else a million, and ten thousand of mmasim, which is slow",
    )  # fmt: skip
    parser.add_argument("--only", default="", help="boxes whose name has this in it")
    parser.add_argument("--reports", type=Path, help="a folder for the reports")
    parser.add_argument("--page", type=Path, help="the table, as Markdown")
    options = parser.parse_args()
    rows: dict[int, str] = {}
    fsum_box = BlackBox(fsum, 1, 1, 8, "f16", c="f64", name="math.fsum")
    boxes = [*numpy_boxes(), fsum_box, *torch_boxes(), *mmasim_boxes()]
    for place, spec in sorted(enumerate(boxes), key=lambda box: box[1].k):  # long ones last
        if options.only not in spec.name:
            continue
        start = time.perf_counter()
        inputs = options.inputs or (10_000 if spec.name.startswith("mmasim") else 1_000_000)
        report = probe(spec, inputs=inputs)
        seconds = time.perf_counter() - start
        rows[place] = _row(report, seconds)
        print(f"{report}\n    in {seconds:.1f} s\n", flush=True)
        if options.reports:
            options.reports.mkdir(parents=True, exist_ok=True)
            name = "".join(x if x.isalnum() else "-" for x in spec.name)
            report.save(options.reports / f"{name}.json")
        if options.page:
            options.page.write_text(page([rows[i] for i in sorted(rows)]), encoding="utf-8")


if __name__ == "__main__":
    main()
