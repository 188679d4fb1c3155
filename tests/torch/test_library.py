"""Custom operators for compiled and exported programs; compiled programs inside `emulate`."""

from __future__ import annotations

from typing import Any

import pytest

import bitmma
import bitmma.torch
import slow_torch as slow
import torch
from bitmma import Schedule
from bitmma.recipes import default_instruction, scaled_mm
from bitmma.torch import UnmodelledProduct, emulate

torch.manual_seed(0)
A, B, C = torch.randn(3, 5, 48).half(), torch.randn(48, 4).half(), torch.randn(4).half()
A8 = torch.randn(5, 48).to(torch.float8_e4m3fn)
B8 = torch.randn(4, 48).to(torch.float8_e4m3fn).t()
ONE = torch.tensor(0.3)
H100 = default_instruction("H100", "f16")


def test_matmul() -> None:
    want = torch.stack([slow.matmul(H100, a, B, C) for a in A])
    assert slow.equal(bitmma.torch.matmul(A, B, C, gpu="H100"), want)
    every = Schedule(promote_every=16)
    k8 = "m16n8k8.f32.f16.f16.f32"
    got = bitmma.torch.matmul(
        A[0], B, gpu="A100", instruction=k8, schedule=every, out_dtype=torch.float32
    )
    instr = bitmma.instruction("A100", k8)
    assert slow.equal(got, slow.matmul(instr, A[0], B, dtype=torch.float32, schedule=every))
    assert slow.equal(got, bitmma.matmul(A[0], B, instruction=instr, schedule=every))
    got = bitmma.torch.matmul(A.float(), B.float(), gpu="H100", fp32="tf32")
    with emulate("H100", fp32="tf32"):
        assert slow.equal(got, A.float() @ B.float())


@pytest.mark.parametrize("fast", [True, False])
def test_scaled_mm(fast: bool) -> None:
    options = {"out_dtype": torch.bfloat16, "use_fast_accum": fast}
    got = bitmma.torch.scaled_mm(A8, B8, ONE, ONE, gpu="H100", **options)
    recipe = scaled_mm("H100", use_fast_accum=fast)
    assert slow.equal(got, recipe(A8, B8, scale_a=ONE, scale_b=ONE))
    with emulate("H100"):
        assert slow.equal(got, torch._scaled_mm(A8, B8, ONE, ONE, **options))
    every = Schedule(promote_every=32)
    got = bitmma.torch.scaled_mm(A8, B8, ONE, ONE, gpu="H100", schedule=every, **options)
    instr = default_instruction("H100", "e4m3")
    epilogue = bitmma.Epilogue(scale_a=ONE, scale_b=ONE, out_format="bf16")
    want = bitmma.matmul(A8, B8, instruction=instr, schedule=every, epilogue=epilogue)
    assert slow.equal(got, want)


def test_pytorch_s_own_checks() -> None:
    torch.library.opcheck(torch.ops.bitmma.matmul.default, (A, B), {"gpu": "H100"})
    torch.library.opcheck(
        torch.ops.bitmma.matmul.default, (A, B, C.float()),
        {"gpu": "H100", "out_dtype": torch.float32},
    )  # fmt: skip
    torch.library.opcheck(
        torch.ops.bitmma.scaled_mm.default, (A8, B8, ONE, ONE),
        {"gpu": "H100", "out_dtype": torch.bfloat16},
        test_utils=("test_autograd_registration", "test_faketensor"),  # the others add FP8 numbers
    )  # fmt: skip


class Model(torch.nn.Module):
    def forward(self, a: Any, b: Any) -> Any:
        return bitmma.torch.matmul(a, b, gpu="H100").relu() + 1


def test_compile_and_export() -> None:
    want = Model()(A, B)
    compiled = torch.compile(Model(), fullgraph=True, backend="aot_eager")
    assert slow.equal(compiled(A, B), want)
    assert slow.equal(compiled(A[:2], B), want[:2])  # another shape
    batch = torch.export.Dim("batch")
    program = torch.export.export(Model(), (A, B), dynamic_shapes=({0: batch}, None))
    assert "bitmma.matmul" in program.graph_module.code
    assert slow.equal(program.module()(A, B), want)
    assert slow.equal(program.module()(A[:2], B), want[:2])


def test_there_is_no_gradient() -> None:
    y = bitmma.torch.matmul(A.clone().requires_grad_(), B, gpu="H100")
    with pytest.raises(RuntimeError, match="no autograd formula"):
        y.sum().backward()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: bitmma.torch.matmul(A, B, gpu="H101"), "unknown GPU"),
        (lambda: bitmma.torch.matmul(A, B.t(), gpu="H100"), "inner dimensions differ"),
        (lambda: bitmma.torch.matmul(A.float(), B.float(), gpu="H100"), "float32 tensors; fp32="),
        (lambda: bitmma.torch.scaled_mm(A8, B8, ONE, ONE, gpu="A100"), "Ampere has no"),
        (lambda: bitmma.torch.scaled_mm(A8, B8, ONE[None, None, None], torch.ones(3), gpu="H100"),
         "scales of shapes"),
    ],
)  # fmt: skip
def test_errors(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


# --- compiled programs inside the mode ------------------------------------------------------------


def test_the_mode_lets_custom_operators_alone() -> None:
    with emulate("A100") as context:
        got = bitmma.torch.matmul(A, B, gpu="MI300X")
    assert context.report().rows == ()
    assert slow.equal(got, bitmma.torch.matmul(A, B, gpu="MI300X"))


def test_compiled_functions_run_eagerly_inside() -> None:
    """PyTorch sees to it, for functions that were compiled before as well."""
    compiled = torch.compile(lambda x: (x @ x.t()).relu(), backend="aot_eager")
    x = A[0]
    compiled(x)
    with emulate("H100") as context:
        got = compiled(x)
    assert context.report().products == 1
    assert slow.equal(got, slow.matmul(H100, x, x.t()).relu())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_passes_through_the_mode() -> None:
    layer = torch.nn.Linear(48, 4).half().requires_grad_(False)
    scripted = torch.jit.script(torch.nn.Sequential(layer, torch.nn.ReLU()))
    want = slow.matmul(H100, A[0], layer.weight.t(), layer.bias).relu()
    with emulate("H100") as context:
        for _ in range(3):  # the third call is what its profiler made of the first two
            assert slow.equal(scripted(A[0]), want)
    assert context.report().products == 3


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("fused", ["prim::mkldnn_convolution", "prim::oneDNNFusionGroup"])
def test_kernels_of_torchscript_that_call_no_dispatcher(fused: str) -> None:
    """In the module's code, or in what the executor made of it in calls before."""
    layers = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).eval()
    x = torch.ones(1, 3, 8, 8)
    with torch.no_grad():
        if fused == "prim::mkldnn_convolution":
            inner = torch.jit.optimize_for_inference(torch.jit.script(layers))
        else:
            before = torch.jit.onednn_fusion_enabled()
            torch.jit.enable_onednn_fusion(True)
            try:
                inner = torch.jit.freeze(torch.jit.trace(layers, x))
                for _ in range(3):
                    inner(x)
            finally:
                torch.jit.enable_onednn_fusion(before)
        model = torch.nn.Sequential(inner)
        with emulate("H100", fp32="tf32") as context:
            with pytest.raises(UnmodelledProduct, match=fused):
                model(x)
            assert torch.mm(x[0, 0], x[0, 0])[0, 0] == 8
        (row,) = context.report().rows
        assert (row.op, row.module) == ("mm", "")
        for options in ({"fallback": "native"}, {"modules": {"0": "native"}}):
            with (
                emulate("H100", fp32="tf32", **options) as outer,
                emulate("A100", **options) as run,
            ):
                model(x)
            assert outer.report().rows == ()
            (row,) = run.report().rows
            assert (row.op, row.module, row.calls, row.native) == (fused, "0", 1, True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_fuses_nothing_inside() -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()).eval()
    x = torch.ones(3, 8)
    before = torch.jit.onednn_fusion_enabled()
    torch.jit.enable_onednn_fusion(True)
    try:
        with torch.no_grad():
            traced = torch.jit.freeze(torch.jit.trace(layers, x, check_trace=False))
            with emulate("H100", fp32="tf32") as context:
                for _ in range(3):
                    traced(x)
        assert torch.jit.onednn_fusion_enabled()
    finally:
        torch.jit.enable_onednn_fusion(before)
    (row,) = context.report().rows
    assert (row.op, row.calls, row.native) == ("addmm", 3, False)


def test_exported_programs_pass_through_the_mode() -> None:
    layer = torch.nn.Linear(48, 4).half().requires_grad_(False)
    program = torch.export.export(layer, (A[0],)).module()
    with emulate("H100"):
        got = program(A[0])
    assert slow.equal(got, slow.matmul(H100, A[0], layer.weight.t(), layer.bias))


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_operators_on_functions_are_errors() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    q = A[None, :, :, :16]
    with (
        emulate("H100"),
        pytest.raises(UnmodelledProduct, match="flex_attention is an operator on"),
    ):
        flex_attention(q, q, q)
