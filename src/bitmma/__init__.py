"""bitmma: the bits that a GPU's matrix unit would return, computed on any machine.

    import bitmma, numpy as np

    instr = bitmma.instruction("H100", "m16n8k16.f32.f16.f16.f32")
    rng = np.random.default_rng(0)
    A = bitmma.quantize(rng.standard_normal((16, 16)), "f16")
    B = bitmma.quantize(rng.standard_normal((16, 8)), "f16")

    D = instr(A, B)                                  # one instruction, float32 (16, 8)
    d = instr.dpa(A, np.ascontiguousarray(B.T[0]))   # sixteen dot products, float32 (16,)
    D = bitmma.matmul(A, B, instruction=instr)       # any M, N and K: one chain of instructions
    walk = bitmma.Schedule(promote_every=16)         # or as other kernels walk along K
    D = bitmma.matmul(A, B, instruction=instr, schedule=walk)
    D = bitmma.recipes.mxfp8("B200")(A, B)           # quantised, multiplied: recipes by name
    print(instr.explain(A[0], B[:, 0]))              # every product, what was cut, the rounding

    print(bitmma.instructions("MI300X", a="fp8"))    # what a GPU has
    print(instr.provenance)                          # and what stands behind it

    unit = bitmma.models.TFDPA(L=8, F=13)            # a unit that nobody has built
    D = bitmma.mma(unit, A, B, a="f16")

    bitmma.testing.assert_bits_equal(D, D.copy())

Operands are NumPy arrays (ml_dtypes for bf16, fp8, fp6, fp4), PyTorch tensors, or integer codes.
Everything is loaded when first used: ``import bitmma`` is cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bitmma import (
        amd,
        analysis,
        cases,
        engine,
        formats,
        isa,
        models,
        nv_ptx,
        recipes,
        reference,
        testing,
    )
    from bitmma.analysis import compare
    from bitmma.blocks import quantize_blocks
    from bitmma.epilogue import Epilogue
    from bitmma.formats import decode, quantize
    from bitmma.gemm import matmul
    from bitmma.schedule import Schedule
    from bitmma.unit import Instruction, instruction, instructions, mma

    __version__: str

#: Changes whenever any output bit does; results, golden files and reports carry it.
BITS_VERSION = 1

__all__ = [
    "BITS_VERSION",
    "Epilogue",
    "Instruction",
    "Schedule",
    "__version__",
    "amd",
    "analysis",
    "cases",
    "compare",
    "decode",
    "engine",
    "formats",
    "instruction",
    "instructions",
    "isa",
    "matmul",
    "mma",
    "models",
    "nv_ptx",
    "quantize",
    "quantize_blocks",
    "recipes",
    "reference",
    "testing",
]

_HOME = {
    "Epilogue": "epilogue",
    "Instruction": "unit",
    "Schedule": "schedule",
    "compare": "analysis",
    "decode": "formats",
    "instruction": "unit",
    "instructions": "unit",
    "matmul": "gemm",
    "mma": "unit",
    "quantize": "formats",
    "quantize_blocks": "blocks",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("bitmma")
    elif name in _HOME:
        value = getattr(importlib.import_module(f"bitmma.{_HOME[name]}"), name)
    elif name in __all__:
        return importlib.import_module(f"bitmma.{name}")
    else:
        raise AttributeError(f"module 'bitmma' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
