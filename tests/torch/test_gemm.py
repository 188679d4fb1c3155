"""Whole products of tensors: schedules, epilogues and recipes give what arrays give."""

from typing import Any

import numpy as np
import pytest

import bitmma
import torch
from bitmma import Epilogue, Schedule, recipes

RNG = np.random.default_rng(0)


def pair(x: np.ndarray, dtype: Any) -> tuple[torch.Tensor, np.ndarray]:
    """A tensor and the array of the same bits."""
    tensor = torch.from_numpy(np.ascontiguousarray(x)).to(dtype)
    size = tensor.element_size()
    codes = tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[size]).numpy()
    return tensor, codes.view(bitmma.formats.get(str(dtype)).dtype)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("f4")


def same(tensor: torch.Tensor, array: np.ndarray) -> bool:
    assert str(tensor.dtype) == "torch." + array.dtype.name
    view = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()]
    return np.array_equal(
        tensor.view(view).numpy(),
        array.view(f"i{array.itemsize}").view(tensor.view(view).numpy().dtype),
    )


@pytest.mark.parametrize("out", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e5m2])
def test_scaled_mm(out: Any) -> None:
    (A, a), (B, b) = (
        pair(normal(20, 300), torch.float8_e4m3fn),
        pair(normal(300, 9), torch.float8_e5m2),
    )
    r = recipes.scaled_mm("H100", b="e5m2", out_format=str(out))
    (sa, scale_a), (sb, scale_b) = (
        pair(normal(20, 1), torch.float32),
        pair(normal(1, 9), torch.float32),
    )
    bias, bias_array = pair(normal(9), torch.bfloat16)
    assert same(r(A, B), r(a, b))
    scaled = r(A, B, scale_a=torch.tensor(0.3), scale_b=torch.tensor([[2.0]]), bias=bias)
    assert same(scaled, r(a, b, scale_a=np.float32(0.3), scale_b=2, bias=bias_array))
    assert same(
        r(A, B, scale_a=sa, scale_b=sb, bias=bias),
        r(a, b, scale_a=scale_a, scale_b=scale_b, bias=bias_array),
    )


def test_schedules_and_promotion_scales() -> None:
    (A, a), (B, b) = (
        pair(normal(2, 20, 300), torch.float8_e4m3fn),
        pair(normal(300, 9), torch.float8_e4m3fn),
    )
    (C, c), (sa, scale_a) = pair(normal(20, 9), torch.float32), pair(normal(20, 3), torch.float32)
    options: dict[str, Any] = {
        "instruction": ("H100", "m64n8k32.f32.e4m3.e4m3"),
        "schedule": Schedule(128, 2, split_tile=128),
        "epilogue": Epilogue(alpha=2, beta=1, out_format="bf16"),
    }
    assert same(
        bitmma.matmul(A, B, C, promote_scale_a=sa, **options),
        bitmma.matmul(a, b, c, promote_scale_a=scale_a, **options),
    )


def test_recipes() -> None:
    (A, a), (B, b), (C, c) = (
        pair(normal(*shape), torch.float32) for shape in ((5, 70), (70, 6), (5, 6))
    )
    for r in (recipes.mxfp8("B200"), recipes.nvfp4("RTX 5090", out_format="f16")):
        assert same(r(A, B), r(a, b)) and same(r(A, B, C), r(a, b, c))
    (H, h), (W, w) = pair(normal(5, 70), torch.float16), pair(normal(70, 6), torch.float16)
    r = recipes.scaled_operands(5, operands="AB")
    assert same(r(H, W, C), r(h, w, c))


def test_flushing_subnormals_changes_no_bit() -> None:
    """``torch.set_flush_denormal`` sets the mode that NumPy's arithmetic would obey."""
    A, B = (normal(4, 40) * 2.0**-70).astype("f4"), (normal(40, 3) * 2.0**-70).astype("f4")
    small, large = A * np.float32(2.0**-60), B * np.float32(2.0**127)
    low = np.full((1, 3), 2.0**-60, np.float32) * np.float32(0.3)
    instr = ("MI300X", "f32_16x16x4_f32")

    def products() -> list[np.ndarray]:
        tiny = Epilogue(scale_a=2.0**-130, scale_b=0.3)
        rows = Epilogue(scale_a=A[:, :1], scale_b=low, bias=small[:3, 0])
        return [
            bitmma.matmul(A, B, instruction=instr, schedule=Schedule(split_k=2, split_tile=8)),
            bitmma.matmul(A, large, instruction=instr, epilogue=tiny),
            bitmma.matmul(A, large, instruction=instr, epilogue=rows),
            bitmma.quantize_blocks(small, "e4m3").values,
        ]

    want = products()
    assert all(((d != 0) & (np.abs(d) < 2.0**-126)).any() for d in want[:3])
    if not torch.set_flush_denormal(True):
        pytest.skip("this machine has no flush-to-zero mode")
    try:
        got = products()
    finally:
        torch.set_flush_denormal(False)
    for x, y in zip(got, want, strict=True):
        assert np.array_equal(x.view(f"u{x.itemsize}"), y.view(f"u{y.itemsize}"))
