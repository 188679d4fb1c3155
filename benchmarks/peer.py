"""The published simulator mmasim 2.1.1 on one instruction, through its public constructors."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks import operands
from bitmma import Instruction, formats

#: How long one instruction is repeated, in seconds: the package does 0.001 to 0.01 GMAC/s.
_SECONDS = 0.3


def available() -> bool:
    """Whether the package can be imported."""
    try:
        import mmasim.nv_ptx  # noqa: F401
    except ImportError:
        return False
    return True


def rate(instr: Instruction) -> float | None:
    """GMAC/s over a chain of this instruction, one thread, the median call; None: it has none."""
    import torch

    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    a = _tensor(operands.normal(rng, formats.get(instr.a), (instr.m, instr.k)), instr.a)
    b = _tensor(operands.normal(rng, formats.get(instr.b), (instr.k, instr.n)), instr.b)
    d = _tensor(np.zeros((instr.m, instr.n), formats.get(instr.c).code_dtype), instr.c)
    scales = []
    if instr.scale and instr.block:
        for shape in ((instr.m, instr.k // instr.block), (instr.k // instr.block, instr.n)):
            codes = operands.scales(rng, formats.get(instr.scale), shape)
            scales.append(_tensor(codes, instr.scale))
    try:
        call = _constructed(instr)
    except AssertionError:  # how it refuses what it does not have: the lowered instructions
        return None
    times: list[float] = []
    end = time.perf_counter() + _SECONDS
    while len(times) < 3 or time.perf_counter() < end:
        start = time.thread_time()
        d = call(a, b, d, *scales)
        times.append(time.thread_time() - start)
    return instr.m * instr.n * instr.k / float(np.median(times)) / 1e9


def _constructed(instr: Instruction) -> Any:
    import mmasim.amd
    import mmasim.nv_ptx

    if instr.op == "mfma":
        return mmasim.amd.MFMA(instr.gpu, instr.name)
    name = {"mma": "MMA", "wgmma": "WGMMA", "tcgen05": "TCGen05MMA"}[instr.op]
    return getattr(mmasim.nv_ptx, name + ("BlockScale" if instr.scale else ""))(
        instr.gpu, instr.name
    )


def _tensor(codes: Any, fmt: str) -> Any:
    import torch

    held = torch.from_numpy(codes.view(np.dtype(f"i{codes.itemsize}")))
    name = formats.get(fmt).dtype_name
    dtype = getattr(torch, name, None)
    narrow = formats.get(fmt).width < 8  # PyTorch has no fp6; fp4 it takes as bytes too
    return held.view(torch.uint8 if narrow or dtype is None else dtype)
