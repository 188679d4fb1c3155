"""matmul: any size, one chain along K."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import bitmma
from bitmma import formats

F16 = bitmma.instruction("Ampere", "m16n8k8.f32.f16.f16.f32")
FP8 = bitmma.instruction("Hopper", "m64n8k32.f32.e4m3.e4m3")
MX = bitmma.instruction("RTX Blackwell", "m16n8k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.f32.ue4m3")


def values(fmt: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal(shape)
    return bitmma.quantize(x if formats.get(fmt).signed else abs(x), fmt)


def bits(x: np.ndarray) -> np.ndarray:
    return x.view(f"u{x.dtype.itemsize}")


def padded(x: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    out = np.zeros(shape, x.dtype)
    out[: x.shape[0], : x.shape[1]] = x
    return out


def by_hand(i: bitmma.Instruction, A, B, C=None, scale_a=None, scale_b=None):  # type: ignore[no-untyped-def]
    """The same out of whole instructions: tiles filled up with +0, c handed on."""
    (M, K), N = A.shape, B.shape[1]
    D = np.zeros((M, N), formats.get(i.d).dtype)
    for row, column in itertools.product(range(0, M, i.m), range(0, N, i.n)):
        rows, columns = slice(row, row + i.m), slice(column, column + i.n)
        c = np.zeros((i.m, i.n), formats.get(i.c).dtype)
        if C is not None:
            c = padded(C[rows, columns], (i.m, i.n))
        for start in range(0, max(K, 1), i.k):
            ks = slice(start, start + i.k)
            scales = []
            if scale_a is not None:
                per = i.k // i.block
                blocks = slice(start // i.block, start // i.block + per)
                scales = [
                    padded(scale_a[rows, blocks], (i.m, per)),
                    padded(scale_b[blocks, columns], (per, i.n)),
                ]
            c = i(padded(A[rows, ks], (i.m, i.k)), padded(B[ks, columns], (i.k, i.n)), c, *scales)
        D[rows, columns] = c[: M - row, : N - column]
    return D


@pytest.mark.parametrize(
    ("M", "N", "K"), [(1, 1, 1), (16, 8, 8), (17, 9, 20), (3, 2, 40), (5, 3, 0)]
)
def test_a_chain_of_instructions(M: int, N: int, K: int) -> None:
    A, B, C = values("f16", (M, K)), values("f16", (K, N), 1), values("f32", (M, N), 2)
    D = bitmma.matmul(A, B, C, instruction=F16)
    assert D.dtype == np.float32 and D.shape == (M, N)
    assert np.array_equal(bits(D), bits(by_hand(F16, A, B, C)))
    assert np.array_equal(
        bits(bitmma.matmul(A, B, instruction=("A100", F16.name))), bits(by_hand(F16, A, B))
    )


def test_the_chain_matters() -> None:
    """One long sum would differ: this is what a chain of k = 8 is."""
    A, B = values("f16", (4, 64)), values("f16", (64, 4), 1)
    D = bitmma.matmul(A, B, instruction=F16)
    assert not np.array_equal(bits(D), bits((A.astype(float) @ B.astype(float)).astype("f4")))
    other = bitmma.matmul(A[:, ::-1], B[::-1], instruction=F16)
    assert not np.array_equal(bits(D), bits(other))


def test_k_zero_is_one_instruction() -> None:
    """An E8M13 unit cuts c even when there is nothing to multiply (case 4 of the known answers)."""
    C = np.full((2, 3), 0x40403017, np.uint32).view(np.float32)
    A, B = values("e4m3", (2, 0)), values("e4m3", (0, 3))
    assert np.all(bits(bitmma.matmul(A, B, C, instruction=FP8)) == 0x40403000)
    assert np.all(bits(bitmma.matmul(A, B, instruction=FP8)) == 0)


@pytest.mark.parametrize("K", [64, 128, 48, 70, 16, 0])
def test_block_scales(K: int) -> None:
    blocks = -(-K // 16)
    A, B = values("e2m1", (3, K)), values("e2m1", (K, 2), 1)
    sa, sb = values("ue4m3", (3, blocks), 2), values("ue4m3", (blocks, 2), 3)
    C = values("f32", (3, 2), 4)
    D = bitmma.matmul(A, B, C, instruction=MX, scale_a=sa, scale_b=sb)
    assert np.array_equal(bits(D), bits(by_hand(MX, A, B, C, sa, sb)))


def test_batches_and_layouts() -> None:
    A, B, C = values("f16", (2, 1, 3, 10)), values("f16", (3, 10, 2), 1), values("f32", (3, 2), 2)
    D = bitmma.matmul(A, B, C, instruction=F16)
    assert D.shape == (2, 3, 3, 2)
    for i, j in np.ndindex(2, 3):
        assert np.array_equal(bits(D[i, j]), bits(bitmma.matmul(A[i, 0], B[j], C, instruction=F16)))
    turned = np.ascontiguousarray(np.swapaxes(A, -1, -2)).swapaxes(-1, -2)
    assert np.array_equal(bits(bitmma.matmul(turned, B[:, ::1], C, instruction=F16)), bits(D))


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_threads_change_no_bit(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    A, B = values("f16", (5, 24)), values("f16", (24, 7), 1)
    want = bits(bitmma.matmul(A, B, instruction=F16, threads=1))
    assert np.array_equal(bits(bitmma.matmul(A, B, instruction=F16, threads=threads)), want)
    monkeypatch.setenv("BITMMA_NUM_THREADS", str(threads))
    assert np.array_equal(bits(bitmma.matmul(A, B, instruction=F16)), want)


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (0, 0, 0), (2, 0, 0)])
def test_empty(shape: tuple[int, int, int]) -> None:
    M, N, K = shape
    D = bitmma.matmul(values("f16", (M, K)), values("f16", (K, N)), instruction=F16)
    assert D.shape == (M, N) and D.dtype == np.float32
    batch = bitmma.matmul(values("f16", (0, 2, 4)), values("f16", (4, 3)), instruction=F16)
    assert batch.shape == (0, 2, 3)


def test_an_instruction_whose_c_is_not_its_d() -> None:
    i = bitmma.instruction("Volta", "m8n8k4.f32.f16.f16.f16")
    A, B, C = values("f16", (2, 4)), values("f16", (4, 3), 1), values("f16", (2, 3), 2)
    assert np.array_equal(bits(bitmma.matmul(A, B, C, instruction=i)), bits(by_hand(i, A, B, C)))
    with pytest.raises(ValueError, match=r"C of f16 .* D of f32.*K must be at most 4, got 5"):
        bitmma.matmul(values("f16", (2, 5)), values("f16", (5, 3)), C, instruction=i)


def test_a_prepared_b_in_whole_products() -> None:
    A, B = values("e4m3", (9, 200)), values("e4m3", (200, 7), 1)
    ready = bitmma.prepare(B, FP8)
    e = bitmma.Epilogue(scale_a=0.3, out_format="bf16")
    for s in (bitmma.Schedule(64), bitmma.Schedule(split_k=2, split_tile=64)):
        options = {"instruction": FP8, "schedule": s, "epilogue": e}
        want = bits(bitmma.matmul(A, B, **options))
        assert np.array_equal(bits(bitmma.matmul(A, ready, **options)), want)
        with ThreadPoolExecutor(2) as pool:
            got = bitmma.matmul(A, ready, **options, executor=pool)
        assert np.array_equal(bits(got), want)
