"""The published simulator's constructors."""

import pickle

import ml_dtypes
import numpy as np
import pytest

import bitmma
from bitmma.amd import MFMA
from bitmma.nv_ptx import MMA, WGMMA, MMABlockScale, TCGen05MMA, TCGen05MMABlockScale

MXF4 = "m16n8k64.kind::mxf4.block32.f32.e2m1.e2m1.f32.ue8m0"


@pytest.mark.parametrize(
    ("cls", "arch", "qualifier", "op", "mnk"),
    [
        (MMA, "Ampere", "m16n8k16.f32.f16.f16.f32", "mma", (16, 8, 16)),
        (WGMMA, "Hopper", "m64n8k32.f32.e4m3.e4m3", "wgmma", (64, 8, 32)),
        (TCGen05MMA, "Blackwell", "m64n8k16.kind::f16.f32.f16.f16", "tcgen05", (64, 8, 16)),
        (MMABlockScale, "RTX Blackwell", MXF4, "mma", (16, 8, 64)),
        (
            TCGen05MMABlockScale,
            "Blackwell",
            "m128n8k64.kind::mxf4.block32.f32.e2m1.e2m1.ue8m0",
            "tcgen05",
            (128, 8, 64),
        ),
        (MFMA, "CDNA3", "f32_16x16x16_f16", "mfma", (16, 16, 16)),
    ],
)
def test_constructors(cls, arch, qualifier, op, mnk) -> None:  # type: ignore[no-untyped-def]
    face = cls(arch, qualifier)
    assert face.instruction is bitmma.instruction(arch, qualifier)
    assert face.instruction.op == op
    assert (face.m, face.n, face.k) == mnk
    assert (face.arch, face.qualifier) == (arch, qualifier)
    twin = pickle.loads(pickle.dumps(face))
    assert twin == face and hash(twin) == hash(face) and twin != object()


def test_known_answers() -> None:
    wgmma = WGMMA("Hopper", "m64n8k32.f32.e4m3.e4m3")
    for a, b, want in [
        ((16, 0.125, 0.375, 1.5), (16, 0.125, 0.1875, 0.75), 0x43809800),
        ((15, 0.125), (15, 0.0625), 0x43610000),
    ]:
        A = np.zeros((64, 32), ml_dtypes.float8_e4m3fn)
        B = np.zeros((32, 8), ml_dtypes.float8_e4m3fn)
        A[0, : len(a)], B[: len(b), 0] = a, b
        assert wgmma(A, B, np.zeros((64, 8), np.float32)).view(np.uint32)[0, 0] == want
        assert wgmma(A, B).view(np.uint32)[0, 0] == want

    mfma = MFMA("CDNA3", "f32_16x16x16_f16")
    A, B = np.zeros((16, 16), np.float16), np.zeros((16, 16), np.float16)
    A[0, :2], B[:2, 0] = 2048, (2048, -2048)
    assert mfma(A, B, np.full((16, 16), -1e-6, np.float32))[0, 0] == -0.25
    assert mfma(A, B, np.full((16, 16), 1e-6, np.float32))[0, 0] == 0


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_packed_fp4(dtype: type) -> None:
    """Two a byte along k, low nibble first, or one a byte: the shape says which."""
    rng = np.random.default_rng(0)
    A, B = (rng.integers(0, 16, s, np.uint8) for s in ((16, 64), (64, 8)))
    scale_a, scale_b = (rng.integers(120, 132, s, np.uint8) for s in ((16, 2), (2, 8)))
    C = np.zeros((16, 8), np.uint32)
    face = MMABlockScale("RTX Blackwell", MXF4)
    want = face(A, B, C, scale_a, scale_b).view(np.uint32)
    assert len(np.unique(want)) > 50
    packed_a = (A[:, ::2] | A[:, 1::2] << 4).view(dtype)
    packed_b = (B[::2] | B[1::2] << 4).view(dtype)
    for a, b in [(packed_a, packed_b), (packed_a, B), (A.view(dtype), packed_b)]:
        got = face(a, b, C, scale_A=scale_a, scale_B=scale_b)
        assert np.array_equal(got.view(np.uint32), want)
    with pytest.raises(ValueError, match=r"A must be \(\.\.\., 16, 64\)"):
        face.instruction(packed_a & 0xF, B, C, scale_a, scale_b)


def test_the_wrong_constructor() -> None:
    with pytest.raises(ValueError, match="Hopper has no wgmma instruction"):
        WGMMA("Hopper", "m16n8k16.f32.f16.f16.f32.f32")
    with pytest.raises(ValueError, match=r"Ampere has no instruction .*; Hopper"):
        WGMMA("Ampere", "m64n8k32.f32.e4m3.e4m3")
    with pytest.raises(ValueError, match="is block-scaled: use MMABlockScale"):
        MMA("RTX Blackwell", MXF4)
    with pytest.raises(ValueError, match="has no block scales: use TCGen05MMA"):
        TCGen05MMABlockScale("Blackwell", "m64n8k16.kind::f16.f32.f16.f16")
