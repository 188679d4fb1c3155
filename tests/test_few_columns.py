"""Products with fewer columns than rows, which kernels compute as their transpose.

C and D lie across then, and go through a tile (`stage` in src/native/fused.hpp). Its rows, which
are columns of B, are computed one after another as long as nothing but numbers near each other
meets (`tile_rows`), the rest one by one. Whatever ends that is put into any of them, and counted.
The judge is the exact evaluator.
"""

import collections
from typing import Any

import numpy as np
import pytest

from bitmma import _native, formats
from bitmma.engine import cpu
from bitmma.models import (
    GTRFDPA,
    RNE_FP16,
    RNE_FP32,
    RZ_E8M13,
    STFDPA,
    TFDPA,
    TRFDPA,
    Lowered,
    Model,
)

Rng = np.random.Generator
Codes = np.ndarray[Any, Any]

UNITS: tuple[tuple[Model, str, str], ...] = (
    (TFDPA(), "f16", "f32"),
    (TFDPA(8, 24), "f16", "f32"),
    (TFDPA(16, 25, RNE_FP32), "f16", "f32"),
    (TFDPA(4, 23), "f16", "f16"),
    (TFDPA(8, 24, RNE_FP16, -20), "f16", "f16"),
    (TFDPA(), "bf16", "f32"),
    (TFDPA(32, 13, RZ_E8M13), "e4m3", "f32"),
    (TFDPA(32, 25), "e5m2", "f32"),
    (STFDPA(32, 25), "e4m3", "f32"),
    (TRFDPA(8, 24, 31), "f16", "f32"),
    (GTRFDPA(16, 24, 31), "fp8", "f32"),
    (Lowered(32, TFDPA(16, 25), ((0, 1), (2, 3))), "e5m2", "f32"),
)
#: What is wrong with a column of B or of C, besides nothing.
TROUBLES = ("special in B", "special in C", "large C", "small C", "zeros", "large sums")


def drawn(rng: Rng, format: str, shape: tuple[int, ...], near: int) -> Codes:
    """Normal numbers whose exponents are at most `near` from 1's, and zeros."""
    fmt = formats.get(format)
    field = fmt.bias + rng.integers(-near, near + 1, shape)
    word = field << fmt.mantissa_bits | rng.integers(0, 1 << fmt.mantissa_bits, shape)
    word |= rng.integers(0, 2, shape) << (fmt.width - 1)
    word[rng.random(shape) < 0.1] = 0
    return word.astype(fmt.code_dtype)


def trouble(rng: Rng, kind: str, fmt: str, c_fmt: str, b: Codes, c: Codes) -> None:
    """In one column of B and C."""
    f, g = formats.get(fmt), formats.get(c_fmt)
    one = 1 << g.mantissa_bits
    place = int(rng.integers(len(c)))
    match kind:
        case "special in B":
            b[rng.integers(len(b))] = f.nan_code
        case "special in C":
            special = (g.inf_code, g.inf_code | g.sign_bit, g.nan_code, g.inf_code | 1)
            c[place] = special[rng.integers(4)]
        case "large C":
            c[place] = g.inf_code - 1
        case "small C":
            c[place] = (1, one, 3 * one, g.sign_bit | 2)[rng.integers(4)]
        case "zeros":
            b[...] = 0
        case "large sums":  # of one sign, beyond int32 in units of the largest
            b[...] = ((f.bias + 1) << f.mantissa_bits) | ((1 << f.mantissa_bits) - 1)
            c[...] = ((g.bias + 3) << g.mantissa_bits) | (one - 1)


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: f"{u[0]!r}-{u[1]}"[:60])
def test_all_builds_agree(unit: tuple[Model, str, str]) -> None:
    model, fmt, c_fmt = unit
    rng = np.random.default_rng(UNITS.index(unit))
    met = collections.Counter[str]()
    for _ in range(60):
        m, n = int(rng.choice((16, 17, 32, 64, 65, 100))), int(rng.integers(1, 9))
        k = model.group * int(rng.choice((1, 1, 2, 20)))
        lead = int(rng.choice((1, 3)))
        near = int(rng.choice((1, 3, 6)))
        A, B = drawn(rng, fmt, (lead, m, k), near), drawn(rng, fmt, (lead, k, n), near)
        C = drawn(rng, c_fmt, (lead, m, n), near)
        for _ in range(int(rng.choice((0, 1, 3)))):
            kind = str(rng.choice(TROUBLES))
            item, column = int(rng.integers(lead)), int(rng.integers(n))
            if kind == "large sums":
                A[item] = B.dtype.type(formats.get(fmt).encode(2, 0, "RZ") - 1)
            trouble(rng, kind, fmt, c_fmt, B[item, :, column], C[item, :, column])
            met[kind] += 1
        c = C if rng.random() < 0.8 else None
        met["no C"] += c is None
        scales = None, None
        scale, block = None, None
        if isinstance(model, STFDPA):
            scale, block = "ue8m0", 32
            blocks = -(-k // 32)
            scales = tuple(
                rng.integers(120, 135, (lead, *s), np.uint8) for s in ((m, blocks), (blocks, n))
            )
        spec = cpu._spec(model, fmt, fmt, c_fmt, model.group, scale, block)
        shape, dtype = (lead, m, n), formats.get(model.d).code_dtype
        want = np.zeros(shape, dtype)
        _native.mma(spec, A, B, c, want, *scales, isa="", exact=True)
        for isa in _native.isas():
            assert _native.has_kernel(spec, isa)
            got = np.zeros(shape, dtype)
            _native.mma(spec, A, B, c, got, *scales, isa=isa)
            wrong = np.argwhere(got != want)
            assert not len(wrong), f"{isa}: {len(wrong)} differ, first at {wrong[0]} of {shape}"
    assert all(met[kind] >= 3 for kind in (*TROUBLES, "no C")), met
