"""Probe what others wrote: python scripts/probe_software.py [--inputs N] [--reports FOLDER]

NumPy's matmul, sum and dot, PyTorch's matmul, math.fsum and, where it is installed, the published
simulator mmasim. What is found depends on the machine: a BLAS chooses its kernels by processor.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from bitmma.clfp import BlackBox, probe


def numpy_boxes() -> Iterator[BlackBox]:
    for k in (4, 16, 48, 512):
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


def torch_boxes() -> Iterator[BlackBox]:
    if not importlib.util.find_spec("torch"):
        return
    import torch

    views = {"f32": (np.int32, torch.int32, torch.float32),
             "f16": (np.int16, torch.int16, torch.float16),
             "bf16": (np.int16, torch.int16, torch.bfloat16)}  # fmt: skip
    dtypes = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}

    def matmul(name: str) -> Any:
        integers, bits, dtype = views[name]

        def fn(A: Any, B: Any, C: Any) -> Any:
            a, b = (torch.from_numpy(x.view(integers)).view(dtype) for x in (A, B))
            return (a @ b).view(bits).numpy().view(dtypes[name])

        return fn

    for name in views:
        for k in (16, 64):
            yield BlackBox(matmul(name), 16, 16, k, name, c=name, name=f"PyTorch {name}, K={k}")


def mmasim_boxes() -> Iterator[BlackBox]:
    if not (importlib.util.find_spec("mmasim") and importlib.util.find_spec("torch")):
        return
    from mmasim import nv_ptx as nv

    import torch

    mma = nv.MMA("Hopper", "m16n8k16.f32.f16.f16.f32")

    def fn(A: Any, B: Any, C: Any) -> Any:
        return mma(*(torch.from_numpy(x.copy()) for x in (A, B, C))).numpy()

    yield BlackBox(fn, 16, 8, 16, name="mmasim Hopper m16n8k16.f32.f16.f16.f32")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--only", default="", help="boxes whose name has this in it")
    parser.add_argument("--reports", type=Path, help="a folder for the reports")
    options = parser.parse_args()
    fsum_box = BlackBox(fsum, 1, 1, 8, "f16", c="f64", name="math.fsum")
    for spec in [*numpy_boxes(), fsum_box, *torch_boxes(), *mmasim_boxes()]:
        if options.only not in spec.name:
            continue
        start = time.perf_counter()
        report = probe(spec, inputs=options.inputs)
        print(f"{spec.name}: {report.status} in {time.perf_counter() - start:.1f} s")
        print(f"    tree  {report.tree_text[:160] or report.tree_note}")
        found = repr(report.model)[:160] if report.model else report.reason[:300]
        print(f"    {found}", flush=True)
        if options.reports:
            options.reports.mkdir(parents=True, exist_ok=True)
            name = "".join(x if x.isalnum() else "-" for x in spec.name)
            report.save(options.reports / f"{name}.json")


if __name__ == "__main__":
    main()
