"""What is measured, and what is asked of it. Ratios are to NumPy's float32 matmul (float64 for f64)
on one thread in the same process; the targets were set on a Zen 3 core with AVX2.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import bitmma
from benchmarks import operands
from benchmarks.measure import WALL, Unavailable, Work, alone, beside, memory
from bitmma import formats
from bitmma.models import RNE_FP32, TFDPA, Model


@dataclass(frozen=True)
class Scale:
    """How much is done: sizes of everything."""

    n: int = 1024
    skinny: int = 8192
    batch: int = 10_000
    calls: int = 2000
    lengths: tuple[int, ...] = (1024, 8192, 65536)
    repetitions: int = 7


FULL = Scale()
QUICK = Scale(n=256, skinny=1024, batch=1000, calls=200, lengths=(1024, 8192), repetitions=3)


@dataclass(frozen=True)
class Row:
    """One row: ``at_least`` or ``at_most`` and ``aim`` are of ``unit``; ``peer``: see `peer`."""

    group: str
    name: str
    unit: str
    work: Callable[[Scale], Work]
    at_least: float | None = None
    at_most: float | None = None
    aim: float | None = None
    peer: bitmma.Instruction | None = None


@dataclass(frozen=True)
class Unit:
    """What computes: an instruction by GPU and name, or a hypothetical model on f16."""

    gpu: str = ""
    name: str = ""
    model: Model | None = None

    @functools.cached_property
    def instruction(self) -> bitmma.Instruction | None:
        return None if self.model else bitmma.instruction(self.gpu, self.name)

    def product(
        self, m: int, n: int, k: int, kind: operands.Kind = operands.normal
    ) -> functools.partial[Any]:
        """A whole product of one thread, or of ``threads``, on operands of a kind."""
        rng = np.random.default_rng(0)
        instr = self.instruction
        a_format, b_format = (
            formats.get(x) for x in ((instr.a, instr.b) if instr else ("f16",) * 2)
        )
        a = kind(rng, a_format, (m, k)).view(a_format.dtype)
        b = kind(rng, b_format, (k, n)).view(b_format.dtype)
        if instr is None:
            assert self.model
            return functools.partial(bitmma.mma, self.model, a, b, a="f16", threads=1)
        scales = {}
        if instr.scale and instr.block:
            fmt = formats.get(instr.scale)
            blocks = -(-k // instr.block)
            for name, shape in (("scale_a", (m, blocks)), ("scale_b", (blocks, n))):
                scales[name] = operands.scales(rng, fmt, shape).view(fmt.dtype)
        return functools.partial(bitmma.matmul, a, b, instruction=instr, threads=1, **scales)


HOPPER_F16 = Unit("Hopper", "m64n256k16.f32.f16.f16")
HOPPER_BF16 = Unit("Hopper", "m64n256k16.f32.bf16.bf16")
HOPPER_E4M3 = Unit("Hopper", "m64n256k32.f32.e4m3.e4m3")
HOPPER_TF32 = Unit("Hopper", "m64n256k8.f32.tf32.tf32")
AMPERE_F16_OUT = Unit("Ampere", "m16n8k16.f16.f16.f16.f16")
CDNA1_F16 = Unit("CDNA1", "f32_32x32x8f16")
CDNA2_F16 = Unit("CDNA2", "f32_32x32x8f16")
CDNA3_F16 = Unit("CDNA3", "f32_32x32x8_f16")
CDNA3_BF16 = Unit("CDNA3", "f32_32x32x8_bf16")
MXFP8 = Unit("Blackwell", "m128n256k32.kind::mxf8f6f4.block32.f32.e4m3.e4m3.ue8m0")
NVFP4 = Unit("Blackwell", "m128n256k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.ue4m3")
F64 = Unit("Hopper", "m16n8k16.f64.f64.f64.f64")
F32_AMD = Unit("CDNA3", "f32_32x32x2_f32")
_F8F6F4 = "m128n256k32.kind::f8f6f4.f32"

# name, unit, at least, aim: times NumPy.
PRODUCTS: tuple[tuple[str, Unit, float, float], ...] = (
    ("f16 Hopper (L=16, F=25)", HOPPER_F16, 0.18, 0.30),
    ("bf16 Hopper", HOPPER_BF16, 0.20, 0.30),
    ("e4m3 Hopper wgmma (F=13)", HOPPER_E4M3, 0.25, 0.40),
    ("e4m3 Ada (L=16, F=13)", Unit("Ada", "m16n8k32.f32.e4m3.e4m3.f32"), 0.25, 0.40),
    ("f16 Ampere (L=8, F=24)", Unit("Ampere", "m16n8k16.f32.f16.f16.f32"), 0.17, 0.30),
    ("tf32 Ampere", Unit("Ampere", "m16n8k8.f32.tf32.tf32.f32"), 0.10, 0.25),
    ("tf32 Hopper", HOPPER_TF32, 0.10, 0.25),
    ("f16 output Ampere", AMPERE_F16_OUT, 0.10, 0.25),
    ("f16 output Hopper", Unit("Hopper", "m64n256k16.f16.f16.f16"), 0.10, 0.25),
    ("e4m3 Blackwell (L=32, F=25)", Unit("Blackwell", f"{_F8F6F4}.e4m3.e4m3"), 0.18, 0.30),
    ("e5m2 Blackwell", Unit("Blackwell", f"{_F8F6F4}.e5m2.e5m2"), 0.18, 0.30),
    ("e3m2 Blackwell", Unit("Blackwell", f"{_F8F6F4}.e3m2.e3m2"), 0.18, 0.30),
    ("e2m1 Blackwell", Unit("Blackwell", f"{_F8F6F4}.e2m1.e2m1"), 0.18, 0.30),
    ("MXFP8", MXFP8, 0.12, 0.25),
    ("MXFP4 K=64", Unit("Blackwell", "m128n256k64.kind::mxf4.block32.f32.e2m1.e2m1.ue8m0"),
     0.25, 1.0),
    ("NVFP4 K=64", NVFP4, 0.25, 1.0),
    ("f64", F64, 0.40, 0.80),
    ("f32 AMD", F32_AMD, 0.40, 0.80),
    ("f16 CDNA2", CDNA2_F16, 0.15, 0.30),
    ("bf16 CDNA2 (P=2)", Unit("CDNA2", "f32_32x32x4bf16"), 0.15, 0.30),
    ("f16 CDNA1", CDNA1_F16, 0.05, 0.15),
    ("bf16 CDNA1", Unit("CDNA1", "f32_32x32x4bf16"), 0.05, 0.15),
    ("f16 CDNA3", CDNA3_F16, 0.08, 0.20),
    ("bf16 CDNA3", CDNA3_BF16, 0.08, 0.20),
    ("xf32 CDNA3", Unit("CDNA3", "f32_32x32x4_xf32"), 0.08, 0.20),
    ("fp8 CDNA3", Unit("CDNA3", "f32_32x32x16_fp8_fp8"), 0.08, 0.20),
    ("e4m3 Hopper mma.sync, lowered", Unit("Hopper", "m16n8k32.f32.e4m3.e4m3.f32"), 0.12, 0.25),
    ("f16 Volta (L=4, F=23)", Unit("Volta", "m8n8k4.f32.f16.f16.f32"), 0.08, 0.15),
    ("any T-FDPA: f16, L=12, F=20", Unit(model=TFDPA(L=12, F=20)), 0.08, 0.15),
    ("any T-FDPA: f16, L=16, F=25, RNE", Unit(model=TFDPA(rho=RNE_FP32)), 0.08, 0.15),
    ("any T-FDPA: f16, L=16, F=40", Unit(model=TFDPA(F=40)), 0.08, 0.15),
)  # fmt: skip

# Products with few rows: one or two of each kernel.
SKINNY_UNITS = {
    "f16 Hopper": HOPPER_F16,
    "bf16 Hopper": HOPPER_BF16,
    "e4m3 wgmma": HOPPER_E4M3,
    "tf32 Hopper": HOPPER_TF32,
    "MXFP8": MXFP8,
    "NVFP4": NVFP4,
    "f64": F64,
    "f32 AMD": F32_AMD,
    "f16 CDNA1": CDNA1_F16,
    "f16 CDNA2": CDNA2_F16,
    "f16 CDNA3": CDNA3_F16,
}

# Costs over normal operands: every unit on every kind; at most 3, except where only told.
UNUSUAL_UNITS = {
    "f16 Hopper": HOPPER_F16,
    "bf16 Hopper": HOPPER_BF16,
    "e4m3 wgmma": HOPPER_E4M3,
    "tf32 Hopper": HOPPER_TF32,
    "f16 output Ampere": AMPERE_F16_OUT,
    "e5m2 Hopper mma.sync, lowered": Unit("Hopper", "m16n8k32.f32.e5m2.e5m2.f32"),
    "f16 CDNA3": CDNA3_F16,
    "bf16 CDNA3": CDNA3_BF16,
    "f16 CDNA1": CDNA1_F16,
    "f16 CDNA2": CDNA2_F16,
}
UNUSUAL_KINDS: dict[str, tuple[operands.Kind, float | None]] = {
    "wide exponents": (operands.wide, 3.0),
    "1% specials": (operands.special, 3.0),
    "half subnormal": (operands.subnormal, 3.0),
    "any finite code": (operands.any_finite, None),
}


def all_rows() -> Iterator[Row]:
    """Every row, in the order of the table."""
    for name, unit, at_least, aim in PRODUCTS:
        yield Row(
            "product", name, "× NumPy", functools.partial(_product, unit), at_least, aim=aim,
            peer=unit.instruction,
        )  # fmt: skip
    for name, unit in UNUSUAL_UNITS.items():
        for what, (kind, limit) in UNUSUAL_KINDS.items():
            work = functools.partial(_unusual, unit, kind)
            yield Row("operands", f"{name}, {what}", "× the time", work, at_most=limit)
    for name, unit in SKINNY_UNITS.items():
        for m in (1, 8):
            work = functools.partial(_skinny, unit, m)
            yield Row("skinny", f"{name}, M = {m}", "× the square's rate", work, at_least=0.5)
        work = functools.partial(_reading, unit)
        yield Row("skinny", f"{name}, M = 1, of memory's rate", "× a read of B", work)
    yield Row(
        "skinny", "f16 Hopper, M = 8, B prepared", "× the square's rate", _prepared, at_least=0.5
    )
    for name, unit in (("f16 Hopper", HOPPER_F16), ("f16 CDNA3", CDNA3_F16)):
        work = functools.partial(_threads, unit)
        yield Row("threads", f"{name}, two threads", "× one thread", work, at_least=1.6)
    work = functools.partial(_skinny_threads, HOPPER_F16)
    yield Row("threads", "f16 Hopper, M = 1, two threads", "× one thread", work)
    for name, at_least in (("m64n8k16.f32.f16.f16", 0.5), ("m16n8k16.f32.f16.f16.f32", 1.0)):
        instr = bitmma.instruction("Hopper", name)
        yield Row(
            "batch", f"{name} Hopper, one call", "M instructions/s",
            functools.partial(_batch, instr), at_least=at_least, peer=instr,
        )  # fmt: skip
    instr = bitmma.instruction("Hopper", "m16n8k16.f32.f16.f16.f32")
    yield Row(
        "latency", "m16n8k16 call", "µs", functools.partial(_call, instr), at_most=25, aim=5,
        peer=instr,
    )  # fmt: skip
    yield Row(
        "latency", "dpa of 8 dot products", "µs", functools.partial(_dpa, instr), at_most=25, aim=5
    )
    for name, unit in (("f16 Hopper", HOPPER_F16), ("e4m3 wgmma", HOPPER_E4M3)):
        for i in range(len(FULL.lengths)):
            yield Row(
                "memory", f"{name}, K = {FULL.lengths[i]}", "× operands and result",
                functools.partial(_memory, unit, i), at_most=3,
            )  # fmt: skip


def _product(unit: Unit, scale: Scale) -> Work:
    n = scale.n
    dtype = np.float64 if unit.instruction and unit.instruction.d == "f64" else np.float32
    x, y = np.random.default_rng(1).standard_normal((2, n, n)).astype(dtype)
    return beside(unit.product(n, n, n), lambda: x @ y, lambda mine, numpy: numpy / mine, macs=n**3)


def _unusual(unit: Unit, kind: operands.Kind, scale: Scale) -> Work:
    n = scale.n // 2
    return beside(
        unit.product(n, n, n, kind), unit.product(n, n, n), lambda mine, normal: mine / normal,
        macs=n**3,
    )  # fmt: skip


def _tiled(kind: operands.Kind, tile: int) -> operands.Kind:
    """The same block over and over: drawing 64 million numbers takes longer than measuring."""

    def make(rng: np.random.Generator, fmt: formats.Format, shape: operands.Shape) -> Any:
        block = kind(rng, fmt, tuple(min(tile, x) for x in shape))
        return np.tile(block, [-(-x // tile) for x in shape])[tuple(map(slice, shape))]

    return make


def _skinny(unit: Unit, m: int, scale: Scale) -> Work:
    n, s = scale.skinny, scale.n
    return beside(
        unit.product(m, n, n, _tiled(operands.normal, 512)), unit.product(s, s, s),
        lambda mine, square: (m * n * n / mine) / (s**3 / square), macs=m * n * n,
    )  # fmt: skip


def _reading(unit: Unit, scale: Scale) -> Work:
    """A product of one row reads B once: beside NumPy's search for the largest of B's bytes.

    Each after a square product, as in the row above, or what a cache of many cores still had of B
    (a part that others decide) would be read faster than memory is.
    """
    n, s = scale.skinny, scale.n
    product = unit.product(1, n, n, _tiled(operands.normal, 512))
    read = product.args[1].view(np.uint8).max
    square = unit.product(s, s, s)
    return beside(
        product, read, lambda mine, reading: reading / mine, macs=n * n, between=square
    )  # fmt: skip


def _prepared(scale: Scale) -> Work:
    m, n, s = 8, scale.skinny, scale.n
    instr = bitmma.instruction(HOPPER_F16.gpu, HOPPER_F16.name)
    a, b = HOPPER_F16.product(m, n, n, _tiled(operands.normal, 512)).args
    packed = bitmma.prepare(np.asfortranarray(b), instr)  # as weights lie
    return beside(
        lambda: bitmma.matmul(a, packed, instruction=instr, threads=1),
        HOPPER_F16.product(s, s, s),
        lambda mine, square: (m * n * n / mine) / (s**3 / square), macs=m * n * n,
    )  # fmt: skip


def _threads(unit: Unit, scale: Scale) -> Work:
    n = scale.n
    return _both_cores(unit.product(n, n, n), n**3)


def _skinny_threads(unit: Unit, scale: Scale) -> Work:
    n = scale.skinny
    return _both_cores(unit.product(1, n, n, _tiled(operands.normal, 512)), n * n)


def _both_cores(product: functools.partial[Any], macs: int) -> Work:
    if (os.cpu_count() or 1) < 2:
        raise Unavailable("this machine has one core")
    return beside(
        functools.partial(product, threads=2), product, lambda two, one: one / two, macs=macs,
        clock=WALL,
    )  # fmt: skip


def _operands_of(instr: bitmma.Instruction, lead: operands.Shape) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    shapes = ((instr.a, (instr.m, instr.k)), (instr.b, (instr.k, instr.n)),
              (instr.c, (instr.m, instr.n)))  # fmt: skip
    a, b, c = (
        operands.normal(rng, formats.get(f), lead + shape).view(formats.get(f).dtype)
        for f, shape in shapes
    )
    return a, b, c


def _batch(instr: bitmma.Instruction, scale: Scale) -> Work:
    a, b, c = _operands_of(instr, (scale.batch,))
    return alone(
        lambda: instr(a, b, c), lambda mine: scale.batch / mine / 1e6,
        macs=scale.batch * instr.m * instr.n * instr.k,
    )  # fmt: skip


def _call(instr: bitmma.Instruction, scale: Scale) -> Work:
    a, b, c = _operands_of(instr, ())
    return alone(
        lambda: instr(a, b, c), lambda mine: mine * 1e6, macs=instr.m * instr.n * instr.k,
        calls=scale.calls,
    )  # fmt: skip


def _dpa(instr: bitmma.Instruction, scale: Scale) -> Work:
    a, b, c = _operands_of(instr, ())
    rows, columns, addends = a[:8], np.ascontiguousarray(b.T), c[0]
    return alone(
        lambda: instr.dpa(rows, columns, addends), lambda mine: mine * 1e6, macs=8 * instr.k,
        calls=scale.calls,
    )  # fmt: skip


def _memory(unit: Unit, index: int, scale: Scale) -> Work:
    if index >= len(scale.lengths):
        raise Unavailable("not in a quick run")
    return memory(unit.gpu, unit.name, 256, 256, scale.lengths[index])
