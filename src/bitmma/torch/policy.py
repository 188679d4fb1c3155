"""Which instruction and schedule a product of an operator and a dtype runs on: `Policy`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from bitmma import formats, isa
from bitmma.isa import Provenance
from bitmma.models import FMA, RNE_FP32
from bitmma.recipes import default_instruction
from bitmma.schedule import Schedule
from bitmma.torch.operators import PRODUCTS
from bitmma.unit import Instruction, instruction

__all__ = ["DTYPES", "Policy", "Unit", "UnmodelledProduct"]

#: Formats of PyTorch's dtypes. What becomes of f32 is for ``fp32`` to say.
DTYPES: Mapping[Any, str] = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "e4m3",
    torch.float8_e5m2: "e5m2",
    torch.float8_e4m3fnuz: "fp8",
    torch.float8_e5m2fnuz: "bf8",
}

_FP32 = ("raise", "tf32", "ieee")


class UnmodelledProduct(ValueError):
    """A matrix product that there is no instruction for, or an operator that hides one."""


class Unit(NamedTuple):
    """What computes one kind of product.

    Attributes:
        instruction: of which a chain is made.
        schedule: how the kernel walks along K; None: as the operator's kernels do.
        rounds_operands: whether float32 operands are rounded to TF32, ties away from zero, before
            the instruction sees them, as cuBLAS does.
    """

    instruction: Instruction
    schedule: Schedule | None
    rounds_operands: bool


@dataclass(frozen=True)
class Policy:
    """What computes each matrix product of a model.

    Attributes:
        gpu: its name, as for `bitmma.instruction`.
        fp32: products of float32 tensors. "raise": an error. "tf32": the TF32 instruction, operands
            rounded to TF32 with ties away from zero as cuBLAS does; on CDNA3 the xf32 instruction,
            which cuts operands itself. "ieee": a chain of FP32 fused multiply-adds, K in order: the
            f32 instruction of AMD's matrix cores; on NVIDIA, which has none, what CUDA cores do.
        instruction: other instructions than `bitmma.recipes.default_instruction` has for the GPU
            and format. Keys are an operator ("bmm"), a format of A ("f16"; "f32" for any float32
            tensor) or both ("bmm:f16"); the most specific one counts. Operators go by ATen's names
            without overload, as in a report: "mm", "addmm", "bmm", "convolution", "_scaled_mm".
        schedule: a `bitmma.Schedule` for all products or, by the same keys, for some. The others
            are one chain of instructions over all of K; those of ``_scaled_mm`` what
            `bitmma.recipes.scaled_mm` says.

    Raises:
        TypeError, ValueError: an unknown GPU, instruction, key or value of ``fp32``.
    """

    gpu: str
    fp32: str = "raise"
    instruction: Mapping[str, str | Instruction] = field(default_factory=dict)
    schedule: Schedule | Mapping[str, Schedule] = field(default_factory=dict)

    def __post_init__(self) -> None:
        isa.gpu(self.gpu)
        if self.fp32 not in _FP32:
            raise ValueError(f"fp32 is one of {', '.join(map(repr, _FP32))}, not {self.fp32!r}")
        given = _checked(self.instruction, "instruction", (str, Instruction))
        found = {k: instruction(self.gpu, v) if isinstance(v, str) else v for k, v in given.items()}
        object.__setattr__(self, "instruction", MappingProxyType(found))
        if not isinstance(self.schedule, Schedule):
            schedules = _checked(self.schedule, "schedule", (Schedule,))
            object.__setattr__(self, "schedule", MappingProxyType(schedules))

    def unit(self, op: str, a: Any, b: Any) -> Unit:
        """What computes a product of operator ``op`` on tensors of these two dtypes.

        Raises:
            UnmodelledProduct: no instruction takes them.
        """
        for dtype in (a, b):
            if dtype not in DTYPES:
                raise UnmodelledProduct(f"{op} of {dtype} tensors, which no matrix unit takes")
        fmt = DTYPES[a]
        chosen = _most_specific(self.instruction, op, fmt)
        if chosen is None:
            chosen = self._default(op, fmt, DTYPES[b])
        else:
            _check_takes(chosen, op, a, b)
        schedule: Any = self.schedule
        if not isinstance(schedule, Schedule):
            schedule = _most_specific(schedule, op, fmt)
        return Unit(chosen, schedule, chosen.a == "tf32")

    def _default(self, op: str, a: str, b: str) -> Instruction:
        gpu = isa.gpu(self.gpu)
        if a == b == "f32":
            match self.fp32:
                case "raise":
                    raise UnmodelledProduct(
                        f"{op} of float32 tensors; fp32='tf32' computes them with the TF32 "
                        "instruction, fp32='ieee' with FP32 fused multiply-adds: it depends on a "
                        "program's settings which of the two a GPU does, so there is no default"
                    )
                case "ieee" if not isa.select(gpu_name=gpu, a="f32"):
                    return _cuda_cores(gpu)
                case "tf32":
                    a = b = "xf32" if gpu == "CDNA3" else "tf32"
        try:
            return default_instruction(gpu, a, b, d="f64" if a == "f64" else "f32")
        except ValueError as error:
            raise UnmodelledProduct(f"{op}: {error}") from None


def _checked(given: Any, name: str, accepted: tuple[type, ...]) -> dict[str, Any]:
    """A mapping by operator and format, its keys and values looked at."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{name} must be a mapping by operator and format, not {given!r}")
    for key, value in given.items():
        if not isinstance(value, accepted):
            names = " or ".join("a name" if t is str else t.__name__ for t in accepted)
            raise TypeError(f"{name}[{key!r}] must be {names}, not {value!r}")
        op, colon, fmt = key.partition(":") if isinstance(key, str) else ("", "", "")
        known = op in PRODUCTS and (not colon or fmt in DTYPES.values())
        if not known and key not in DTYPES.values():
            raise ValueError(
                f"{name} has the key {key!r}; keys are an operator ({', '.join(sorted(PRODUCTS))}),"
                f" a format ({', '.join(DTYPES.values())}) or both, as in 'bmm:f16'"
            )
    return dict(given)


def _most_specific(by_key: Mapping[str, Any], op: str, fmt: str) -> Any | None:
    return next((by_key[key] for key in (f"{op}:{fmt}", op, fmt) if key in by_key), None)


def _check_takes(chosen: Instruction, op: str, a: Any, b: Any) -> None:
    """UnmodelledProduct unless an instruction that the user chose takes tensors of these dtypes."""
    for letter, dtype, fmt in (("A", a, chosen.a), ("B", b, chosen.b)):
        if formats.get(fmt).dtype != formats.get(DTYPES[dtype]).dtype:
            raise UnmodelledProduct(
                f"{op}: {chosen.title} was chosen for it, whose {letter} is {fmt}, not {dtype}"
            )


@functools.cache
def _cuda_cores(gpu: str) -> Instruction:
    """A chain of FP32 fused multiply-adds as if it were an instruction: NVIDIA has none."""
    return Instruction(
        gpu, "mma", "fma.rn.f32", 1, 1, 1, "f32", "f32", "f32", "f32", None, None,
        FMA(RNE_FP32), Provenance("hypothetical", "", "hypothetical", ""),
    )  # fmt: skip
