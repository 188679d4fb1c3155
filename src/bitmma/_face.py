"""What the constructors of `nv_ptx` and `amd` share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from bitmma.engine import operands
from bitmma.unit import Instruction, instruction


@dataclass(frozen=True)
class Face:
    """An instruction by GPU and name, of one ``op``; callable on matrices. A value.

    Attributes:
        arch: any name of the GPU, e.g. ``"Hopper"``.
        qualifier: the instruction's name.
        instruction: what they mean.
    """

    arch: str
    qualifier: str
    instruction: Instruction = field(init=False, repr=False, compare=False)

    _op: ClassVar[str]
    _scaled: ClassVar[bool] = False

    def __post_init__(self) -> None:
        found = instruction(self.arch, self.qualifier, self._op)
        if (found.scale is not None) != self._scaled:
            name = type(self).__name__
            raise ValueError(
                f"{found.name} has no block scales: use {name.removesuffix('BlockScale')}"
                if self._scaled
                else f"{found.name} is block-scaled: use {name}BlockScale"
            )
        object.__setattr__(self, "instruction", found)

    @property
    def m(self) -> int:
        return self.instruction.m

    @property
    def n(self) -> int:
        return self.instruction.n

    @property
    def k(self) -> int:
        return self.instruction.k

    def _run(self, A: Any, B: Any, *others: Any) -> Any:
        return self.instruction(
            _unpacked(A, self.instruction.a, self.k, -1),
            _unpacked(B, self.instruction.b, self.k, -2),
            *others,
        )


def _unpacked(x: Any, fmt: str, k: int, k_axis: int) -> Any:
    """fp4 bytes that are half as many as k elements hold two each; anything else stays."""
    if fmt == "e2m1" and operands.is_array(x) and x.ndim >= 2 and x.shape[k_axis] * 2 == k:
        return operands.unpack_bytes(x, k_axis)
    return x
