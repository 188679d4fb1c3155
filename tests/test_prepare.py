"""prepare: a B read and laid out once."""

import pickle
from typing import Any

import numpy as np
import pytest

import bitmma
from bitmma import formats

F16 = bitmma.instruction("Hopper", "m64n8k16.f32.f16.f16")
FP8 = bitmma.instruction("Hopper", "m64n8k32.f32.e4m3.e4m3")
F64 = bitmma.instruction("MI300X", "f64_16x16x4_f64")
MX = bitmma.instruction("RTX Blackwell", "m16n8k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.f32.ue4m3")


def values(fmt: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal(shape)
    return bitmma.quantize(x if formats.get(fmt).signed else abs(x), fmt)


def same_bits(x: np.ndarray, y: np.ndarray) -> bool:
    return x.dtype == y.dtype and x.tobytes() == y.tobytes()


@pytest.mark.parametrize("instr", [F16, FP8, F64], ids=lambda i: i.b)
@pytest.mark.parametrize("layout", ["C", "columns", "part", "backward", "codes", "void"])
def test_in_place_of_b(instr: bitmma.Instruction, layout: str) -> None:
    """Any layout and kind, any M; codes with codes, values with values."""
    A, B, C = values(instr.a, (9, 40)), values(instr.b, (40, 70), 1), values(instr.c, (9, 70), 2)
    match layout:
        case "columns":
            B = np.asfortranarray(B)
        case "part":
            B = np.ascontiguousarray(np.pad(B, 3))[3:-3, 3:-3]
        case "backward":
            B = B[::-1, ::-1].copy()[::-1, ::-1]
        case "codes":
            A, B, C = (x.view(f"u{x.dtype.itemsize}") for x in (A, B, C))
        case "void":
            B = B.view(f"V{B.dtype.itemsize}")
    P = bitmma.prepare(B, instr)
    assert P.shape == (40, 70) and P.format == instr.b and P.nbytes == B.nbytes
    want = bitmma.matmul(A, B, C, instruction=instr)
    assert same_bits(bitmma.matmul(A, P, C, instruction=instr), want)
    assert same_bits(bitmma.matmul(A[:1], P, instruction=instr, threads=2),
                     bitmma.matmul(A[:1], B, instruction=instr))  # fmt: skip
    copy = pickle.loads(pickle.dumps(P))
    assert same_bits(bitmma.matmul(A, copy, C, instruction=instr), want)
    assert repr(copy) == f"<Prepared B of {instr.b}, (40, 70)>"


@pytest.mark.parametrize("shape", [(1, 1), (3, 5, 7), (33, 65)])
def test_it_begins_at_a_line_of_memory(shape: tuple[int, ...]) -> None:
    P = bitmma.prepare(values("f16", shape), F16)
    for made in (P, pickle.loads(pickle.dumps(P))):
        assert made._codes.ctypes.data % 64 == 0 and made._codes.flags.c_contiguous
        assert not made._codes.flags.writeable and made._codes.shape == shape


def test_it_is_a_copy_and_serves_like_instructions() -> None:
    A, B = values("f16", (16, 16)), values("f16", (16, 8), 1)
    P = bitmma.prepare(B, ("H100", "m64n8k16.f32.f16.f16"))
    mma = bitmma.instruction("A100", "m16n8k16.f32.f16.f16.f32")
    want = mma(A, B)
    B[...] = 0
    assert same_bits(mma(A, P), want)


def test_batches() -> None:
    A, B = values("f16", (2, 1, 5, 20)), values("f16", (3, 20, 6), 1)
    P = bitmma.prepare(B, F16)
    assert same_bits(bitmma.matmul(A, P, instruction=F16), bitmma.matmul(A, B, instruction=F16))


def test_with_block_scales() -> None:
    A, B = values("e2m1", (5, 128)), values("e2m1", (128, 6), 1)
    scales = {"scale_a": values("ue4m3", (5, 8), 2), "scale_b": values("ue4m3", (8, 6), 3)}
    P = bitmma.prepare(B, MX)
    assert same_bits(
        bitmma.matmul(A, P, instruction=MX, **scales), bitmma.matmul(A, B, instruction=MX, **scales)
    )


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda A, B, P: bitmma.matmul(A, P, instruction=FP8), TypeError, "A must be"),
        (lambda A, B, P: bitmma.matmul(values("e4m3", (3, 20)), P, instruction=FP8), ValueError,
         "B was prepared as f16, the instruction takes e4m3"),
        (lambda A, B, P: bitmma.matmul(P, B, instruction=F16), TypeError, "A is a prepared B"),
        (lambda A, B, P: bitmma.matmul(A, B, P, instruction=F16), TypeError, "C is a prepared B"),
        (lambda A, B, P: bitmma.matmul(A[:, :5], P, instruction=F16), ValueError, "inner dim"),
        (lambda A, B, P: bitmma.matmul(A.view("u2"), P, instruction=F16), TypeError, "of one kind"),
        (lambda A, B, P: bitmma.prepare(P, FP8), ValueError, "B was prepared as f16"),
        (lambda A, B, P: bitmma.prepare(B, "H100"), TypeError, "instruction must be"),
        (lambda A, B, P: bitmma.prepare(B.astype("f4"), F16), TypeError, "B must be float16"),
        (lambda A, B, P: bitmma.prepare(B[0], F16), ValueError, r"B must be \(..., K, N\), got"),
        (lambda A, B, P: bitmma.prepare([[1.0]], F16), TypeError, "B must be a NumPy array"),
    ],
)  # fmt: skip
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    A, B = values("f16", (3, 20)), values("f16", (20, 6), 1)
    with pytest.raises(error, match=message):
        call(A, B, bitmma.prepare(B, F16))
