"""Matrix products of any size on one instruction: what a kernel built on it would give."""

from __future__ import annotations

from typing import Any

from bitmma.unit import Instruction
from bitmma.unit import instruction as _find

__all__ = ["matmul"]


def matmul(
    A: Any,
    B: Any,
    C: Any | None = None,
    *,
    instruction: Instruction | tuple[str, str],
    scale_a: Any | None = None,
    scale_b: Any | None = None,
    threads: int | None = None,
) -> Any:
    """D = A B + C for any M, N and K, as one chain of instructions along K.

    The accumulator of one instruction is the c of the next, K in increasing order; the last one's
    missing products are +0. K = 0 is one instruction of zero products. That is what FP16, BF16 and
    TF32 kernels do, and FP8 kernels with fast accumulation.

    Args:
        A: (..., M, K). B: (..., K, N). C: (..., M, N); None is +0. Leading dimensions broadcast.
        instruction: an `Instruction`, or GPU and name: ``("H100", "m64n8k16.f32.f16.f16")``. Its m
            and n do not matter.
        scale_a, scale_b: (..., M, ceil(K/block)) and (..., ceil(K/block), N), for block-scaled
            instructions.
        threads: how many; None: BITMMA_NUM_THREADS, or all cores. Changes no bit.

    Returns:
        (..., M, N), a new array (or tensor on the operands' device) of the dtype of ``d``.

    Raises:
        TypeError, ValueError: as for a call of the instruction; also K beyond the instruction's k
            where its C and D differ in format, so that D cannot be the next one's C.
    """
    if isinstance(instruction, tuple) and len(instruction) == 2:
        instruction = _find(*instruction)
    if not isinstance(instruction, Instruction):
        raise TypeError(
            f"instruction must be an Instruction or a (gpu, name) pair, not {instruction!r}"
        )
    return instruction.chain_call.run(A, B, C, scale_a, scale_b, threads)
