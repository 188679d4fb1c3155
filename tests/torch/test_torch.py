"""PyTorch tensors in, PyTorch tensors out, the same bits as NumPy's."""

import re

import numpy as np
import pytest

import bitmma
import torch
from bitmma import formats
from bitmma.amd import MFMA
from bitmma.nv_ptx import WGMMA, MMABlockScale
from bitmma.testing import assert_bits_equal, compare_bits

DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "fp8": torch.float8_e4m3fnuz,
    "bf8": torch.float8_e5m2fnuz,
    "tf32": torch.float32,
    "xf32": torch.float32,
    "ue8m0": torch.float8_e8m0fnu,
    "ue4m3": torch.float8_e4m3fn,
}
SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
UNSIGNED = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}

F16 = bitmma.instruction("H100", "m16n8k16.f32.f16.f16.f32")
MXF4 = "m16n8k64.kind::mxf4.block32.f32.e2m1.e2m1.f32.ue8m0"


def codes(fmt: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    f = formats.get(fmt)
    x = np.random.default_rng(seed).standard_normal(shape)
    return bitmma.quantize(x if f.signed else abs(x) + 0.1, f).view(f.code_dtype)


def tensor(codes: np.ndarray) -> torch.Tensor:
    """A tensor of signed integers with these bits."""
    return torch.from_numpy(codes.view(f"i{codes.dtype.itemsize}").copy())


def bits(x: torch.Tensor) -> np.ndarray:
    size = x.element_size()
    return x.view(SIGNED[size]).numpy().view(f"u{size}")


def test_the_published_simulators_program() -> None:
    wgmma = WGMMA("Hopper", "m64n8k32.f32.e4m3.e4m3")
    for a, b, want in [
        ((16, 0.125, 0.375, 1.5), (16, 0.125, 0.1875, 0.75), 0x43809800),
        ((15, 0.125), (15, 0.0625), 0x43610000),
    ]:
        A = torch.zeros(64, 32)
        B = torch.zeros(32, 8)
        A[0, : len(a)] = torch.tensor(a)
        B[: len(b), 0] = torch.tensor(b)
        A, B = A.to(torch.float8_e4m3fn), B.to(torch.float8_e4m3fn)
        C = torch.zeros(64, 8)
        D = wgmma(A, B, C)
        assert D[0, 0].view(torch.int32).item() & 0xFFFFFFFF == want


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ("Ampere", "m8n8k4.f64.f64.f64.f64"),
        ("Ampere", "m16n8k8.f32.tf32.tf32.f32"),
        ("Ampere", "m16n8k8.f32.bf16.bf16.f32"),
        ("Hopper", "m16n8k16.f16.f16.f16.f16"),
        ("Hopper", "m16n8k32.f32.e4m3.e5m2.f32"),
        ("CDNA3", "f32_16x16x8_xf32"),
        ("CDNA3", "f32_16x16x32_fp8_bf8"),
        ("RTX Blackwell", "m16n8k32.kind::mxf8f6f4.block32.f32.e4m3.e5m2.f32.ue8m0"),
    ],
)
def test_every_dtype(gpu: str, name: str) -> None:
    i = bitmma.instruction(gpu, name)
    named = [(i.a, (i.m, i.k)), (i.b, (i.k, i.n)), (i.c, (i.m, i.n))]
    if i.scale and i.block:
        named += [(i.scale, (i.m, i.k // i.block)), (i.scale, (i.k // i.block, i.n))]
    raw = [codes(f, shape, seed) for seed, (f, shape) in enumerate(named)]
    want = i(*raw)
    as_values = [tensor(x).view(DTYPES[f]) for x, (f, _) in zip(raw, named, strict=True)]
    as_signed = [tensor(x) for x in raw]
    as_unsigned = [tensor(x).view(UNSIGNED[x.dtype.itemsize]) for x in raw]
    mixed = [*as_values[:1], *as_signed[1:2], *as_values[2:]]  # PyTorch has no fp6: codes must mix
    for given in (as_values, as_signed, as_unsigned, mixed):
        D = i(*given)
        assert isinstance(D, torch.Tensor) and D.dtype is DTYPES[i.d]
        assert_bits_equal(D, want)
        assert len(np.unique(bits(D))) > 4


def test_batches_dot_products_and_matmul() -> None:
    A, B = codes("f16", (3, 16, 16)), codes("f16", (16, 8), 1)
    tA, tB = (tensor(x).view(torch.float16) for x in (A, B))
    assert_bits_equal(F16(tA, tB), F16(A, B))
    assert_bits_equal(F16.dpa(tA, tB.T[0]), F16.dpa(A, B.T[0]))
    assert F16.dpa(tA[0, 0], tB[:, 0]).shape == ()
    assert_bits_equal(
        bitmma.matmul(tA[0, :5, :9], tB[:9], instruction=F16),
        bitmma.matmul(A[0, :5, :9], B[:9], instruction=F16),
    )
    assert bitmma.matmul(tA[:, :0], tB, instruction=F16).shape == (3, 0, 8)
    assert_bits_equal(bitmma.mma(F16.model, tA, tB, a="f16"), F16(A, B))


def test_layouts_gradients_and_negative_views() -> None:
    A, B = codes("f16", (16, 16)), codes("f16", (16, 8), 1)
    tA, tB = (tensor(x).view(torch.float16) for x in (A, B))
    want = F16(A, B)
    assert_bits_equal(F16(tA.T.contiguous().T, tB.t().contiguous().t()), want)
    wide = torch.zeros(16, 48, dtype=torch.float16)
    wide[:, ::3] = tA
    assert_bits_equal(F16(wide[:, ::3], tB.expand(1, 16, 8)), want[None])
    assert_bits_equal(F16(tA.clone().requires_grad_(), tB), want)
    assert not F16(tA.clone().requires_grad_(), tB).requires_grad
    C = torch.complex(torch.zeros(16, 8), torch.ones(16, 8)).conj().imag
    assert C.is_neg()
    assert_bits_equal(F16(tA, tB, C), F16(A.view("f2"), B.view("f2"), np.full((16, 8), -1, "f4")))


def test_nothing_is_written() -> None:
    A, B, C = torch.ones(16, 16).half(), torch.ones(16, 8).half(), torch.ones(16, 8)
    D = F16(A, B, C)
    D += 1
    assert (C == 1).all() and (A == 1).all() and (B == 1).all()


def test_fp4_pairs() -> None:
    A, B = (np.random.default_rng(0).integers(0, 16, s, np.uint8) for s in ((16, 64), (64, 8)))
    sa, sb = codes("ue8m0", (16, 2)), codes("ue8m0", (2, 8), 1)
    C = np.zeros((16, 8), np.uint32)
    i = bitmma.instruction("RTX Blackwell", MXF4)
    want = i(A, B, C, sa, sb)
    scales = [tensor(x).view(torch.float8_e8m0fnu) for x in (sa, sb)]
    packed_a = torch.from_numpy(A[:, ::2] | A[:, 1::2] << 4)
    packed_b = torch.from_numpy(np.ascontiguousarray((B[::2] | B[1::2] << 4).T)).T
    pairs = [x.view(torch.float4_e2m1fn_x2) for x in (packed_a, packed_b)]
    assert_bits_equal(i(*pairs, torch.zeros(16, 8), *scales), want)
    assert_bits_equal(i(pairs[0], torch.from_numpy(B), None, *scales), want)
    b = torch.from_numpy(np.ascontiguousarray((B[::2] | B[1::2] << 4).T))
    d = i.dpa(pairs[0][0], b.view(torch.float4_e2m1fn_x2)[0], None, scales[0][0], scales[1][:, 0])
    assert bits(d) == want.view(np.uint32)[0, 0]
    face = MMABlockScale("RTX Blackwell", MXF4)
    for a, b in [pairs, (packed_a, packed_b), (torch.from_numpy(A), packed_b.view(torch.int8))]:
        assert_bits_equal(face(a, b, torch.zeros(16, 8), *scales), want)


def test_amd_face() -> None:
    A, B = torch.zeros(16, 16).half(), torch.zeros(16, 16).half()
    A[0, :2], B[0, 0], B[1, 0] = 2048, 2048, -2048
    D = MFMA("CDNA3", "f32_16x16x16_f16")(A, B, torch.full((16, 16), -1e-6))
    assert D[0, 0] == -0.25


def test_explain_takes_tensors() -> None:
    a, b = torch.tensor([1.5, 2]).half(), torch.tensor([3.0]).half()
    assert F16.explain(a, b, torch.tensor(1.0)).trace.result == 0x40B00000  # 5.5


def test_compare_bits() -> None:
    x = torch.tensor([0.0, 1.0, float("nan")])
    y = torch.tensor([-0.0, 1.0, float("nan")])
    assert compare_bits(x, y).classes == {"sign of zero": 1}
    assert compare_bits(x, y.numpy()).classes == {"sign of zero": 1}
    assert_bits_equal(x.to(torch.bfloat16), x.to(torch.bfloat16).view(torch.int16))
    assert_bits_equal(x.to(torch.float8_e4m3fnuz), x.to(torch.float8_e4m3fnuz))


A, B, C = torch.zeros(16, 16).half(), torch.zeros(16, 8).half(), torch.zeros(16, 8)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (
            (A.double(), B),
            TypeError,
            "A must be torch.float16 values or 16-bit integer codes of f16",
        ),
        ((A.double(), B), TypeError, r"not torch.float64; A.to\(torch.float16\)"),
        ((A, B.bfloat16()), TypeError, "B must be torch.float16 .* not torch.bfloat16"),
        ((A.bool(), B), TypeError, "A must be .* not torch.bool"),
        ((A.to(torch.complex64), B), TypeError, "A must be .* not torch.complex64"),
        ((A.numpy(), B), TypeError, "A is NumPy values and B is a PyTorch tensor"),
        ((A, B, C.numpy()), TypeError, "A is a PyTorch tensor and C is NumPy values"),
        ((A, B, C.numpy().view("V4")), TypeError, "A is a PyTorch tensor and C is NumPy void"),
        ((A.to("meta"), B), TypeError, "A must be a dense tensor with data, not a meta one"),
        ((A.to_sparse(), B), TypeError, "A must be a dense tensor with data"),
        ((A[:3], B), ValueError, r"A must be \(..., 16, 16\) .* got \(3, 16\)"),
    ],
)
def test_errors(given: tuple[object, ...], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        F16(*given)


def test_fp6_has_no_dtype() -> None:
    i = bitmma.instruction("RTX Blackwell", "m16n8k32.kind::f8f6f4.f32.e3m2.e2m3.f32")
    A, B = codes("e3m2", (16, 32)), codes("e2m3", (32, 8))
    assert_bits_equal(i(torch.from_numpy(A), torch.from_numpy(B), C), i(A, B))
    with pytest.raises(TypeError, match="A must be 8-bit integer codes of e3m2, not"):
        i(torch.zeros(16, 32), torch.from_numpy(B), C)
    hint = r"; (torch.from_numpy\(bitmma.quantize\(A.*\)) rounds numbers to codes of e3m2$"
    with pytest.raises(TypeError, match=hint) as caught:
        i(torch.zeros(16, 32), torch.from_numpy(B))
    said = re.search(hint, str(caught.value))
    codes_of_A = eval(said[1], {"torch": torch, "bitmma": bitmma, "A": torch.full((2, 3), 1.5)})
    assert codes_of_A.dtype is torch.uint8 and (codes_of_A == 0b001110).all()
    with pytest.raises(ValueError, match="bits above the 6 of e3m2"):
        i(torch.from_numpy(A) + 64, torch.from_numpy(B), C)


def test_flush_to_zero_changes_no_bit() -> None:
    assert torch.set_flush_denormal(True)
    try:
        assert bitmma.decode(np.uint32([1]), "f32")[0] == 2.0**-149
        assert bitmma.quantize(np.uint32([1]).view(np.float32), "f32").view(np.uint32) == 1
        instr = bitmma.instruction("H100", "m16n8k16.f32.bf16.bf16.f32")
        assert instr.explain(["0x1p-133"], [1]).code == 1 << 16
        answers = bitmma.compare(["0x1p-133"], [1]).answers
    finally:
        torch.set_flush_denormal(False)
    assert answers == bitmma.compare(["0x1p-133"], [1]).answers


@pytest.mark.parametrize("fmt", ["f64", "f32", "f16", "bf16", "e4m3", "e5m2", "fp8", "bf8"])
def test_quantize_reads_tensors_exactly(fmt: str) -> None:
    x = codes(fmt, (4, 5))
    tensor = torch.from_numpy(x.view(f"i{x.itemsize}")).view(DTYPES[fmt]).T
    if fmt[0] != "e" and fmt[:2] not in ("fp", "bf"):
        tensor = tensor.requires_grad_()
    expected = x.view(formats.get(fmt).dtype).T.astype(np.float64)
    assert_bits_equal(bitmma.quantize(tensor, "f64"), expected)


def test_quantize_reads_integers_and_gradients() -> None:
    x = torch.tensor([1.0, 2.5], dtype=torch.bfloat16, requires_grad=True)
    assert bitmma.quantize(x, "f16").tolist() == [1.0, 2.5]
    assert bitmma.quantize(torch.tensor([1, 2]), "f16").tolist() == [1.0, 2.0]
    assert bitmma.quantize(-torch.tensor([1.0]), "f16").tolist() == [-1.0]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_without_plain_numbers() -> None:
    from torch._subclasses import FakeTensorMode

    nested = torch.nested.nested_tensor([torch.zeros(16, 16), torch.zeros(16, 16)])
    with FakeTensorMode():
        fake = torch.zeros(16, 16, dtype=torch.float16)
    B = torch.zeros(16, 8, dtype=torch.float16)
    for x, what in ((nested.half(), "nested"), (fake, "FakeTensor")):
        with pytest.raises(TypeError, match=f"A must be a dense tensor with data, not a {what}"):
            F16(x, B)
        with pytest.raises(TypeError, match="x must be real numbers in a dense tensor"):
            bitmma.quantize(x, "f16")
    with pytest.raises(TypeError, match="x must be real numbers, not complex64"):
        bitmma.quantize(torch.zeros(2, dtype=torch.complex64), "f16")
