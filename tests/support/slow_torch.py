"""Products of tensors by plain loops over `slow_products`: what bitmma.torch must give, slowly."""

from __future__ import annotations

from typing import Any

import numpy as np

import bitmma
import slow_products as slow
import torch
from bitmma import Schedule, formats

FORMATS = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "e4m3",
    torch.float8_e5m2: "e5m2",
    torch.float8_e4m3fnuz: "fp8",
}
_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def codes(x: Any) -> np.ndarray:
    """The bits of a tensor, as unsigned integers."""
    size = x.element_size()
    return x.detach().contiguous().view(_SIGNED[size]).numpy().view(f"u{size}")


def tensor(array: np.ndarray, dtype: Any) -> Any:
    """The tensor that has these bits."""
    return torch.from_numpy(array.view(f"i{array.itemsize}").copy()).view(dtype)


def matmul(
    instr: bitmma.Instruction,
    A: Any,
    B: Any,
    C: Any = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    dtype: Any = None,
    schedule: Schedule | None = None,
) -> Any:
    """round(alpha A B + beta C) of two matrices; C broadcasts to the result."""
    dtype = dtype or A.dtype
    out = FORMATS[dtype]
    a, b = codes(A), codes(B)
    M, N = a.shape[0], b.shape[1]
    c = None if C is None else codes(C.expand(M, N).float() if out != "f64" else C.expand(M, N))
    wide = "f64" if instr.d == "f64" else "f32"
    nan = slow.nan_of(instr, wide)
    factors = [
        int(np.array(x, formats.get(wide).dtype).view(f"u{8 if wide == 'f64' else 4}"))
        for x in (alpha, beta)
    ]
    d = np.empty((M, N), f"u{torch.empty(0, dtype=dtype).element_size()}")
    for i, j in np.ndindex(M, N):
        acc, fmt = slow.product(
            instr, schedule or Schedule(), a[i].tolist(), b[:, j].tolist(), None
        )
        assert fmt == wide
        addend = 0 if c is None or beta == 0 else slow.mul(factors[1], int(c[i, j]), wide, nan)
        y = slow.fma(factors[0], acc, addend, wide, nan)
        value, sign = slow.read(y, wide)
        d[i, j] = slow.write(value, sign, out, slow.nan_of(instr, out))
    return tensor(d, dtype)


def to_tf32(x: Any) -> Any:
    """float32 to the nearest TF32, ties away from zero."""
    return torch.from_numpy(np.array(bitmma.quantize(x, "tf32", rounding="RNA")))


def equal(x: Any, y: Any) -> bool:
    """Same shape, dtype and bits."""
    return x.shape == y.shape and x.dtype == y.dtype and np.array_equal(codes(x), codes(y))
