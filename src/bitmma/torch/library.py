"""``torch.ops.bitmma.matmul`` and ``scaled_mm``: products that torch.compile and export keep whole.

A compiler sees their shapes and dtypes only; the numbers are made by `bitmma.matmul` when the
program runs. They have no gradient: a backward pass through one is an error.
"""

from __future__ import annotations

from typing import Any

import torch
from bitmma.schedule import Schedule
from bitmma.torch.kernel import multiply
from bitmma.torch.policy import Policy
from bitmma.torch.products import HANDLERS

__all__ = ["matmul", "scaled_mm"]

Tensor = Any


@torch.library.custom_op(
    "bitmma::matmul",
    mutates_args=(),
    schema='(Tensor A, Tensor B, Tensor? C=None, *, str gpu, str instruction="", '
    'str schedule="", str fp32="raise", ScalarType? out_dtype=None) -> Tensor',
)
def _matmul(
    A: Tensor,
    B: Tensor,
    C: Tensor | None = None,
    *,
    gpu: str,
    instruction: str = "",
    schedule: str = "",
    fp32: str = "raise",
    out_dtype: Any = None,
) -> Tensor:
    policy = Policy(
        gpu, fp32, {"mm": instruction} if instruction else {},
        Schedule.parse(schedule) if schedule else {},
    )  # fmt: skip
    return multiply(policy, "mm", A, B, C, dtype=out_dtype).result


@_matmul.register_fake
def _(A: Tensor, B: Tensor, C: Tensor | None = None, *, out_dtype: Any = None, **_: Any) -> Tensor:
    torch._check(A.dim() >= 2 and B.dim() >= 2, lambda: "A and B must be matrices")
    torch._check(A.shape[-1] == B.shape[-2], lambda: "inner dimensions of A and B differ")
    batch = torch.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    return A.new_empty(*batch, A.shape[-2], B.shape[-1], dtype=out_dtype or A.dtype)


@torch.library.custom_op(
    "bitmma::scaled_mm",
    mutates_args=(),
    schema="(Tensor A, Tensor B, Tensor scale_a, Tensor scale_b, Tensor? bias=None, *, str gpu, "
    'str schedule="", ScalarType? out_dtype=None, bool use_fast_accum=False) -> Tensor',
)
def _scaled_mm(
    A: Tensor,
    B: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    *,
    gpu: str,
    schedule: str = "",
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Tensor:
    policy = Policy(gpu, schedule=Schedule.parse(schedule) if schedule else {})

    def product(*operands: Any, **options: Any) -> Tensor:
        return multiply(policy, "_scaled_mm", *operands, **options).result

    return HANDLERS["_scaled_mm"](
        product, A, B, scale_a, scale_b, bias, None, out_dtype, use_fast_accum
    )


@_scaled_mm.register_fake
def _(A: Tensor, B: Tensor, *_: Any, out_dtype: Any = None, **__: Any) -> Tensor:
    torch._check(A.dim() == 2 and B.dim() == 2, lambda: "A and B must be matrices")
    torch._check(A.shape[1] == B.shape[0], lambda: "inner dimensions of A and B differ")
    return A.new_empty(A.shape[0], B.shape[1], dtype=out_dtype or A.dtype)


def matmul(
    A: Tensor,
    B: Tensor,
    C: Tensor | None = None,
    *,
    gpu: str,
    instruction: str | None = None,
    schedule: Schedule | None = None,
    fp32: str = "raise",
    out_dtype: Any = None,
) -> Tensor:
    """A B + C as `emulate` computes ``mm``, in programs that are compiled or exported as well.

    Args:
        A: (..., M, K). B: (..., K, N), of one dtype. C: broadcasts to (..., M, N); it joins the
            FP32 accumulators at the end, before the one rounding to ``out_dtype``.
        gpu, instruction, fp32: as for `Policy`, the instruction by name.
        schedule: None: one chain.
        out_dtype: of the result; None: A's.

    Returns:
        (..., M, N), a new tensor without gradient.
    """
    return torch.ops.bitmma.matmul(
        A, B, C, gpu=gpu, instruction=instruction or "", schedule=str(schedule or ""), fp32=fp32,
        out_dtype=out_dtype,
    )  # fmt: skip


def scaled_mm(
    A: Tensor,
    B: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    *,
    gpu: str,
    schedule: Schedule | None = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """``torch._scaled_mm`` as `emulate` computes it, in compiled and exported programs as well.

    Args:
        A: (M, K). B: (K, N), both of FP8 dtypes.
        scale_a, scale_b: float32, one number each or (M, 1) and (1, N). bias: (N,).
        schedule: None: what `bitmma.recipes.scaled_mm` has for the GPU and ``use_fast_accum``.
        out_dtype: of the result; None: A's.

    Returns:
        (M, N), a new tensor without gradient.
    """
    return torch.ops.bitmma.scaled_mm(
        A, B, scale_a, scale_b, bias, gpu=gpu, schedule=str(schedule or ""), out_dtype=out_dtype,
        use_fast_accum=use_fast_accum,
    )  # fmt: skip
