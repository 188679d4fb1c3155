"""Named ways to compute a product: which instruction, which schedule, what is done around them.

    import bitmma

    D = bitmma.recipes.scaled_mm("H100")(A, B, scale_a=0.5, scale_b=2.0)  # torch._scaled_mm, bf16
    D = bitmma.recipes.nvfp4("B200")(X, W)                                # of unquantised numbers

A recipe is a small frozen value, called on (A, B, C=None) with the options of `bitmma.matmul`, and
says what stands behind it: ``recipe.evidence``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from bitmma import formats, isa
from bitmma.blocks import quantize_blocks
from bitmma.engine import operands
from bitmma.epilogue import Epilogue
from bitmma.gemm import matmul
from bitmma.schedule import Schedule
from bitmma.unit import Instruction, instructions, resolve

__all__ = [
    "Recipe",
    "deepgemm_fp8",
    "default_instruction",
    "mxfp4",
    "mxfp6",
    "mxfp8",
    "nvfp4",
    "scaled_mm",
    "scaled_operands",
    "zero_accumulate",
]


# --- which instruction ----------------------------------------------------------------------------


@functools.lru_cache(1024)
def default_instruction(
    gpu: str,
    a: str,
    b: str | None = None,
    d: str | None = None,
    *,
    scale: str | None = None,
    block: int | None = None,
) -> Instruction:
    """The instruction that a kernel for these operands would be built on.

    Of those with these formats, in this order: a D that can be the next one's C; the widest D, f32
    before f16; the unit that a GPU's own kernels use, wgmma and tcgen05 before mma; the largest k;
    the largest tile.

    Args:
        gpu: as for `bitmma.instruction`.
        a, b: the operands' formats; ``b`` is ``a`` if not given.
        d: the result's format, if that matters.
        scale, block: the block scales' format and length; without them, an instruction without.

    Raises:
        ValueError: the GPU has none; the message says which have.
    """
    wanted = {"a": a, "b": a if b is None else b, "d": d, "scale": scale}
    found = [
        i
        for i in instructions(gpu, **wanted)  # type: ignore[arg-type]
        if (i.scale is not None) == (scale is not None) and block in (None, i.block)
    ]
    if not found:
        raise ValueError(_none_found(isa.gpu(gpu), wanted))
    return max(found, key=_rank)


def _rank(i: Instruction) -> tuple[Any, ...]:
    return i.c == i.d, formats.get(i.d).width, i.op in ("wgmma", "tcgen05"), i.k, i.m * i.n


def _none_found(gpu: str, wanted: dict[str, str | None]) -> str:
    a, b, d, scale = (f and formats.get(f).name for f in wanted.values())
    what = f"{a}·{b}" + (f" with {scale} scales" if scale else "") + (f" → {d}" if d else "")
    entries = isa.select(**wanted)  # type: ignore[arg-type]
    having = dict.fromkeys(e.gpu for e in entries if (e.scale is None) == (scale is None))
    hint = f"; {', '.join(having)} {'have' if len(having) > 1 else 'has'} it" if having else ""
    fnuz = {"e4m3": "fp8", "e5m2": "bf8"}
    if {a, b} <= set(fnuz) and isa.select(gpu_name=gpu, a="fp8"):
        hint += f"; those of {gpu} are FNUZ types: fp8 (float8_e4m3fnuz) and bf8 (float8_e5m2fnuz)"
    if a == b == "f32":
        hint += "; float32 arrays are tf32 operands on NVIDIA's GPUs"
    return f"{gpu} has no instruction for {what}{hint}"


# --- recipes --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """How a product is computed. Call it on (A, B, C=None); options as for `bitmma.matmul`.

    Attributes:
        name: what it is called.
        instruction, schedule: what it is built on.
        evidence: what stands behind it, beside the instruction's own provenance.
    """

    name: str
    instruction: Instruction
    schedule: Schedule
    evidence: str

    def __call__(self, A: Any, B: Any, C: Any | None = None, **options: Any) -> Any:
        return self.finished(matmul(**self.arguments(A, B, C, **options)), A)

    def arguments(self, A: Any, B: Any, C: Any | None = None, **options: Any) -> dict[str, Any]:
        """What `bitmma.matmul` is called with: operands, instruction, schedule, scales …"""
        return dict(A=A, B=B, C=C, instruction=self.instruction, schedule=self.schedule, **options)

    def finished(self, D: Any, A: Any) -> Any:
        """What becomes of its result; ``A``, as it was given, says of which kind it is to be."""
        del A
        return D

    @property
    def power(self) -> int:
        """The power of two by which it multiplies D in the end."""
        return 0

    def __str__(self) -> str:
        return f"{self.name} on {self.instruction.title}"


@dataclass(frozen=True)
class _ScaledMM(Recipe):
    out_format: str

    def arguments(
        self,
        A: Any,
        B: Any,
        C: Any | None = None,
        *,
        scale_a: Any = 1.0,
        scale_b: Any = 1.0,
        bias: Any | None = None,
        scale_result: Any | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        epilogue = Epilogue(
            scale_a=scale_a, scale_b=scale_b, bias=bias, scale_result=scale_result,
            out_format=self.out_format,
        )  # fmt: skip
        return super().arguments(A, B, C, epilogue=epilogue, **options)


# Without fast accumulation, and what stands behind it.
_PROMOTED = Schedule(promote_every=128)
_SLOW = {
    "Hopper": (_PROMOTED, "recorded on H100 PCIe (cuBLASLt 12.8.3), replayed by mmaemu 0.1.0"),
    "Ada Lovelace": (_PROMOTED, "recorded on RTX 4060 (cuBLASLt 12.8.3), replayed by mmaemu 0.1.0"),
}
_ASSUMED = (Schedule(), "assumed: one chain, in both modes; nothing was recorded on this GPU")


def scaled_mm(
    gpu: str,
    *,
    use_fast_accum: bool = False,
    a: str | None = None,
    b: str | None = None,
    out_format: str = "bf16",
) -> Recipe:
    """``torch._scaled_mm`` on FP8 operands, K not split.

    With fast accumulation one chain; without, on Hopper and Ada Lovelace, promotion to FP32 every
    128 elements of K. Both, and the tensor-wise epilogue, are what recordings of cuBLASLt 12.8.3 on
    an H100 PCIe and an RTX 4060 show, as replayed by their author's package mmaemu 0.1.0. On other
    GPUs one chain in both modes is assumed. A library may also split K: see
    ``Schedule.split_k``, which this leaves at 1.

    Called with scale_a and scale_b (two numbers, or (M, 1) and (1, N)), bias (N,) and scale_result:
    see `bitmma.Epilogue` for their order and what stands behind it.

    Args:
        gpu: one that has FP8. a, b: the operands' formats; e4m3 (on CDNA3 fp8) if not given.
        out_format: the result's, f32, f16, bf16 or an fp8.
    """
    if not isinstance(use_fast_accum, bool):
        raise TypeError(f"use_fast_accum must be True or False, not {use_fast_accum!r}")
    generation = isa.gpu(gpu)
    a = a or ("fp8" if generation.startswith("CDNA") else "e4m3")
    instruction = default_instruction(gpu, a, b)
    schedule, evidence = _SLOW.get(generation, _ASSUMED)
    if use_fast_accum:
        schedule = Schedule()
    Epilogue(out_format=out_format)  # raises where there is none such
    name = f"scaled_mm({'fast' if use_fast_accum else 'slow'} accumulation)"
    return _ScaledMM(name, instruction, schedule, evidence, formats.get(out_format).name)


@dataclass(frozen=True)
class _DeepGEMM(Recipe):
    out_format: str

    def arguments(
        self,
        A: Any,
        B: Any,
        C: Any | None = None,
        *,
        scale_a: Any | None = None,
        scale_b: Any | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        return super().arguments(
            A, B, C, promote_scale_a=scale_a, promote_scale_b=scale_b,
            epilogue=Epilogue(out_format=self.out_format), **options,
        )  # fmt: skip


def deepgemm_fp8(gpu: str = "Hopper", *, out_format: str = "bf16") -> Recipe:
    """DeepGEMM's FP8 product with DeepSeek-V3's scales, on Hopper.

    Chains of four k32 wgmma, each promoted as acc = fma(RN32(scale_a scale_b), r, acc). Called with
    scale_a, float32 (M, ceil(K/128)), and scale_b, float32 (ceil(K/128), ceil(N/128)); None is 1.

    Evidence: the schedule is DeepSeek-V3's (arXiv 2412.19437, 3.3.2) and DeepGEMM's; the fma is
    what nvcc makes of its source. The kernel itself was recorded nowhere.

    Raises:
        ValueError: a GPU other than Hopper, whose kernels differ.
    """
    if isa.gpu(gpu) != "Hopper":
        raise ValueError(f"deepgemm_fp8 is DeepGEMM's kernel for Hopper, not for {isa.gpu(gpu)}")
    Epilogue(out_format=out_format)
    return _DeepGEMM(
        "deepgemm_fp8", default_instruction(gpu, "e4m3"), _PROMOTED,
        "derived: DeepGEMM's source as nvcc compiles it; no recording",
        formats.get(out_format).name,
    )  # fmt: skip


def zero_accumulate(instruction: Instruction | tuple[str, str]) -> Recipe:
    """C = 0 in the matrix unit, and an FP32 addition outside it after every instruction.

    The work-around for CDNA3, whose units round their sums with C toward minus infinity: with C = 0
    what remains of the bias is that of one instruction. It is ``Schedule(promote_every=k)``.

    Evidence: the instruction's; IEEE addition. No recording of a kernel that does it.
    """
    instr = resolve(instruction)
    evidence = "the instruction's own, and IEEE addition; no recording of a kernel"
    return Recipe("zero_accumulate", instr, Schedule(promote_every=instr.k), evidence)


@dataclass(frozen=True)
class _ScaledOperands(Recipe):
    up: int
    operands: str

    @formats.in_default_environment
    def arguments(self, A: Any, B: Any, C: Any | None = None, **options: Any) -> dict[str, Any]:
        i = self.instruction
        if "A" in self.operands:
            A = _times_power(A, i.a, self.up, "A")
        if "B" in self.operands:
            B = _times_power(B, i.b, self.up, "B", -2)
        if C is not None:
            C = _times_power(C, i.c, -self.power, "C")
        return super().arguments(A, B, C, **options)

    @formats.in_default_environment
    def finished(self, D: Any, A: Any) -> Any:
        return _times_power(D, self.instruction.d, self.power, "D")

    @property
    def power(self) -> int:
        return -self.up * len(self.operands)


def _times_power(x: Any, fmt: str, power: int, name: str, k_axis: int = -1) -> Any:
    """x * 2**power in x's own format, to nearest even: exact unless it over- or underflows."""
    codes, kind = operands.to_codes(x, fmt, name, k_axis)
    f = formats.get(fmt)
    with np.errstate(all="ignore"):
        scaled = formats.quantize(np.ldexp(formats.decode(codes, f), power), f)
    return operands.wrap(scaled.view(f.code_dtype), fmt, kind)


def scaled_operands(
    power: int,
    *,
    operands: str = "A",
    instruction: Instruction | tuple[str, str] = ("CDNA2", "f32_32x32x8f16"),
) -> Recipe:
    """Operands scaled up by 2**power before, the result scaled back after.

    The work-around for CDNA2, whose f16 and bf16 units flush subnormal inputs to zero: gradients
    below 2**-14 survive if scaled up. The scaled operands keep their format (what overflows it is
    Inf, as a multiplication would give), C is scaled along, and the FP32 result is multiplied by
    2**-power, or 2**(-2 power) if both are scaled, with one rounding.

    Args:
        power: an int. operands: which are scaled: "A", "B" or "AB".
        instruction: one with an f32 result.

    Evidence: the instruction's; IEEE multiplication. No recording of a kernel that does it.
    """
    if isinstance(power, bool) or not isinstance(power, int):
        raise TypeError(f"power must be an int, not {power!r}")
    if not -126 <= power <= 126:
        raise ValueError(f"power must be -126 to 126, not {power}")
    if operands not in ("A", "B", "AB"):
        raise ValueError(f"operands is 'A', 'B' or 'AB', not {operands!r}")
    instr = resolve(instruction)
    if (instr.c, instr.d) != ("f32", "f32") or instr.scale:
        raise ValueError(f"scaled_operands needs an f32 C and D and no block scales: {instr.name}")
    evidence = "the instruction's own, and IEEE multiplication; no recording of a kernel"
    name = f"scaled_operands({operands} up by 2^{power})"
    return _ScaledOperands(name, instr, Schedule(), evidence, power, operands)


# --- products of unquantised numbers --------------------------------------------------------------


@dataclass(frozen=True)
class _BlockQuantized(Recipe):
    rounding: str
    scale_rule: str
    second_level: bool
    out_format: str

    def arguments(self, A: Any, B: Any, C: Any | None = None, **options: Any) -> dict[str, Any]:
        i = self.instruction
        quantized = [
            quantize_blocks(
                x, fmt, block=i.block or 1, scale_format=i.scale or "", rounding=self.rounding,
                scale_rule=self.scale_rule, axis=axis,
                tensor_scale="amax" if self.second_level else None,
            )
            for x, fmt, axis in ((A, i.a, -1), (B, i.b, -2))
        ]  # fmt: skip
        a, b = quantized
        scales: dict[str, Any] = {}
        if self.second_level:
            scales = {"scale_a": a.tensor_scale, "scale_b": b.tensor_scale}
            scales |= {} if C is None else {"beta": 1.0}
        c = None if C is None else np.ascontiguousarray(operands.to_codes(C, "f32", "C")[0])
        return super().arguments(
            a.values, b.values, None if c is None else c.view(np.float32),
            scale_a=a.scales, scale_b=b.scales,
            epilogue=Epilogue(**scales, out_format=self.out_format), **options,
        )  # fmt: skip

    def finished(self, D: Any, A: Any) -> Any:
        f = formats.get(self.out_format)
        kind = operands.VALUES if isinstance(A, np.ndarray) else getattr(A, "device", None)
        return operands.wrap(D.view(f.code_dtype), f.name, kind or operands.VALUES)


def _block_quantized(
    name: str, gpu: str, a: str, b: str | None, scale: str, block: int, rounding: str,
    scale_rule: str, second_level: bool, out_format: str,
) -> Recipe:  # fmt: skip
    instruction = default_instruction(gpu, a, b, scale=scale, block=block)
    quantize_blocks(  # raises where rounding or rule is none
        np.zeros(1), a, scale_format=scale, rounding=rounding, scale_rule=scale_rule
    )
    Epilogue(out_format=out_format)
    evidence = (
        "the instruction's own; the quantisation is as specified, not recorded: kernels may round "
        "quotients and scales otherwise"
    )
    return _BlockQuantized(
        name, instruction, Schedule(), evidence, rounding, scale_rule, second_level,
        formats.get(out_format).name,
    )  # fmt: skip


def mxfp8(
    gpu: str,
    a: str = "e4m3",
    b: str | None = None,
    *,
    rounding: str = "RNE",
    scale_rule: str = "floor",
    out_format: str = "f32",
) -> Recipe:
    """A product of unquantised A and B in MXFP8: blocks of 32 along K with ue8m0 scales.

    Both operands are quantised by `bitmma.quantize_blocks` (OCP MX v1.0) and multiplied by one
    chain of the GPU's block-scaled instruction. Called with real numbers, A (..., M, K) and B (...,
    K, N), and a float32 C.

    Args:
        gpu: Blackwell or RTX Blackwell. a, b: e4m3 or e5m2 each; ``b`` is ``a`` if not given.
        rounding, scale_rule: see `bitmma.quantize_blocks`. out_format: the result's.

    Evidence: the instruction's; the quantisation follows the specification, which leaves rounding
    and more to kernels: no recording of one.
    """
    return _block_quantized(
        "mxfp8", gpu, _one_of(a, "e4m3", "e5m2"), b and _one_of(b, "e4m3", "e5m2"), "ue8m0", 32,
        rounding, scale_rule, False, out_format,
    )  # fmt: skip


def mxfp6(
    gpu: str,
    a: str = "e2m3",
    b: str | None = None,
    *,
    rounding: str = "RNE",
    scale_rule: str = "floor",
    out_format: str = "f32",
) -> Recipe:
    """The same in MXFP6: e2m3 or e3m2. Arguments and evidence as `mxfp8`."""
    return _block_quantized(
        "mxfp6", gpu, _one_of(a, "e2m3", "e3m2"), b and _one_of(b, "e2m3", "e3m2"), "ue8m0", 32,
        rounding, scale_rule, False, out_format,
    )  # fmt: skip


def mxfp4(
    gpu: str, *, rounding: str = "RNE", scale_rule: str = "floor", out_format: str = "f32"
) -> Recipe:
    """The same in MXFP4, e2m1. Arguments and evidence as `mxfp8`."""
    return _block_quantized(
        "mxfp4", gpu, "e2m1", None, "ue8m0", 32, rounding, scale_rule, False, out_format
    )


def nvfp4(
    gpu: str,
    *,
    tensor_scale: bool = True,
    rounding: str = "RNE",
    scale_rule: str = "max",
    out_format: str = "f32",
) -> Recipe:
    """The same in NVFP4: e2m1, blocks of 16 with ue4m3 scales, one float32 scale a tensor.

    The tensors' scales multiply the FP32 accumulators in the epilogue, as alpha; C then joins there
    (beta = 1). Arguments and evidence otherwise as `mxfp8`; the two levels are NVIDIA's (arXiv
    2509.25149).

    Args:
        tensor_scale: whether there is the second level.
    """
    if not isinstance(tensor_scale, bool):
        raise TypeError(f"tensor_scale must be True or False, not {tensor_scale!r}")
    return _block_quantized(
        "nvfp4", gpu, "e2m1", None, "ue4m3", 16, rounding, scale_rule, tensor_scale, out_format
    )


def _one_of(given: str, *accepted: str) -> str:
    name = formats.get(given).name
    if name not in accepted:
        raise ValueError(f"operands are {' or '.join(accepted)}, not {name}")
    return name
