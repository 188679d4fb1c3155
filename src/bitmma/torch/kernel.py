"""One product as a policy has it: what the mode and the custom operators share."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from bitmma import recipes
from bitmma.epilogue import Epilogue
from bitmma.gemm import matmul
from bitmma.schedule import Schedule
from bitmma.torch.policy import DTYPES, Policy
from bitmma.unit import Instruction

__all__ = ["Computed", "multiply"]

Tensor = Any


class Computed(NamedTuple):
    """A product and what computed it."""

    result: Tensor
    instruction: Instruction
    schedule: Schedule


def multiply(
    policy: Policy,
    op: str,
    A: Tensor,
    B: Tensor,
    C: Tensor | None = None,
    *,
    alpha: Any = 1,
    beta: Any = 1,
    dtype: Any | None = None,
    epilogue: Epilogue | None = None,
    fast_accum: bool | None = None,
    threads: int | None = None,
) -> Computed:
    """``round(alpha A B + beta C)``, as a kernel on the policy's instruction computes it.

    The FP32 accumulators start from +0. Then y = fma(alpha, accumulator, RN32(beta C)), C being
    read as FP32, and y is rounded to the result's dtype, to nearest even. In FP64 alpha and beta
    are multiplied and C is added with a rounding each.

    Args:
        op: the operator's name, for the policy and for messages.
        A: (..., M, K). B: (..., K, N). C: broadcasts to (..., M, N); with beta = 0 it is not read.
        dtype: of the result; None: A's.
        epilogue: in place of C, alpha, beta and dtype.
        fast_accum: whether FP8 kernels promote where the policy has no schedule; None: they do not.
        threads: as for `bitmma.matmul`.

    Raises:
        UnmodelledProduct: no instruction takes these dtypes.
        TypeError, ValueError: as for `bitmma.matmul`.
    """
    instruction, schedule, rounds_operands = policy.unit(op, A.dtype, B.dtype)
    if schedule is None and fast_accum is not None:
        schedule = recipes.scaled_mm(
            policy.gpu, use_fast_accum=fast_accum, a=DTYPES[A.dtype], b=DTYPES[B.dtype]
        ).schedule
    schedule = schedule or Schedule()
    dtype = dtype or A.dtype
    if C is not None:
        if C.dtype not in (A.dtype, dtype):
            raise ValueError(f"{op}: the addend must be {A.dtype} as the matrices, not {C.dtype}")
        batch = torch.broadcast_shapes(A.shape[:-2], B.shape[:-2])
        C = C if instruction.d == "f64" else C.float()
        C = C.expand(*batch, A.shape[-2], B.shape[-1]) if beta != 0 else None
    if rounds_operands:
        A, B = _to_tf32(A), _to_tf32(B)
    if instruction.d == "f64":
        D = matmul(A, B, instruction=instruction, schedule=schedule, threads=threads) * alpha
        return Computed(D if C is None else D + beta * C, instruction, schedule)
    if epilogue is None:
        beta = None if C is None else beta
        epilogue = Epilogue(alpha=alpha, beta=beta, out_format=DTYPES[dtype])
    D = matmul(
        A, B, C, instruction=instruction, schedule=schedule, epilogue=epilogue, threads=threads,
    )  # fmt: skip
    return Computed(D, instruction, schedule)


def _to_tf32(x: Tensor) -> Tensor:
    """float32 rounded to TF32, ties away from zero, as cuBLAS converts operands.

    Half of the last place kept is added to the magnitude, and what is below that place cut: a carry
    runs into the exponent as it should, up to infinity.
    """
    codes = x.view(torch.int32) + (1 << 12) & -(1 << 13)
    return torch.where(x.isnan(), torch.nan, codes.view(torch.float32))
