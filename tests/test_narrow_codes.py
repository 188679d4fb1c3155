"""Codes of fp6 and fp4 with bits above their width: an error wherever one is, and which, whatever
reads it: kernels look at codes as they go, others beforehand (src/native/rows.hpp).
"""

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import bitmma
from bitmma import _native, engine, formats
from bitmma.models import EFDPA, FDPA, GSTFDPA, RNE_FP32, TFDPA, Lowered, Model

Codes = np.ndarray[Any, Any]
NVFP4 = bitmma.instruction("Blackwell", "m128n256k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.ue4m3")
FP6 = bitmma.instruction("Blackwell", "m128n256k32.kind::f8f6f4.f32.e3m2.e3m2")

#: One of each way codes are read: kernels that look themselves and not, with and without panels of
#: float64, the exact evaluator; and the products of one instruction.
MODELS: list[tuple[Model, str, int]] = [
    (GSTFDPA(64, 16, 35), "e2m1", 64),
    (GSTFDPA(32, 8, 35), "e2m1", 32),
    (TFDPA(32, 25), "e3m2", 32),
    (TFDPA(32, 25), "e2m3", 32),
    (TFDPA(16, 40), "e2m1", 16),
    (EFDPA(4), "e2m1", 4),
    (FDPA(8, 20, rho=RNE_FP32), "e2m3", 8),
]
SHAPES = [(1, 130, 70), (8, 70, 67), (100, 70, 66), (70, 130, 1), (67, 70, 3), (1, 5, 1)]


def places(rows: int, cols: int) -> Iterator[tuple[int, int]]:
    """Every row in some columns, every column in some rows."""
    some = [{0, 15, 16, 31, 32, 63, 64, n - 1} & set(range(n)) for n in (rows, cols)]
    yield from itertools.product(range(rows), some[1])
    yield from itertools.product(some[0], range(cols))


def operands(model: Model, fmt: str, shape: tuple[int, int, int]) -> list[Any]:
    M, K, N = shape
    rng = np.random.default_rng(K)
    a, b = (rng.integers(0, 1 << formats.get(fmt).width, s, np.uint8) for s in ((M, K), (K, N)))
    return [a, b, None, np.empty((M, N), np.uint32), None, None]


@pytest.mark.parametrize("isa", _native.isas())
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("model", "fmt", "k"), MODELS, ids=lambda x: getattr(x, "family", x))
def test_every_place(model: Model, fmt: str, k: int, shape: tuple[int, int, int], isa: str) -> None:
    native = engine.plan(model, fmt, fmt, "f32", k).native
    assert native
    width = formats.get(fmt).width
    for layout in (np.ascontiguousarray, np.asfortranarray, spaced):
        arguments = operands(model, fmt, shape)
        arguments[:2] = map(layout, arguments[:2])
        assert _native.mma(native.spec, *arguments, isa)
        for x in arguments[:2]:
            all_places = list(places(*x.shape))
            # All, where a call takes microseconds; else every so many, first and last among them.
            few = 40 if _native.has_kernel(native.spec, isa) else 5
            step = 1 if few > 5 and len(all_places) * shape[0] < 3000 else len(all_places) // few
            for n, where in enumerate(all_places[::step] + all_places[-1:]):
                bad = np.uint8(1 << (width + n % (8 - width)))
                x[where] ^= bad
                assert not _native.mma(native.spec, *arguments, isa), where
                x[where] ^= bad
            x[where] ^= bad
            assert not _native.mma(native.spec, *arguments, isa, True)
            x[where] ^= bad
        assert _native.mma(native.spec, *arguments, isa, True)


def spaced(x: Codes) -> Codes:
    """Among codes that are no business of the product's."""
    rows, cols = x.shape
    memory = np.full((2 * rows, cols + 3), 255, np.uint8)
    memory[::2, 1:-2] = x
    return memory[::2, 1:-2]


def nvfp4(M: int, K: int, N: int) -> dict[str, Any]:
    rng = np.random.default_rng(M)
    a, b = (rng.integers(0, 16, shape, np.uint8) for shape in ((M, K), (K, N)))
    one = formats.quantize(np.ones(1), "ue4m3").view(np.uint8)[0]
    scales = {"scale_a": np.full((M, -(-K // 16)), one), "scale_b": np.full((-(-K // 16), N), one)}
    return {"A": a, "B": b, **scales}


def in_executor(arrays: dict[str, Any]) -> Any:
    with ThreadPoolExecutor(1) as executor:
        return bitmma.matmul(**arrays, instruction=NVFP4, executor=executor)


def product(**options: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda x: bitmma.matmul(**x, instruction=NVFP4, **options)


def batch(arrays: dict[str, Any]) -> Any:
    A = np.stack([np.zeros_like(arrays["A"]), arrays["A"]])
    return bitmma.matmul(**{**arrays, "A": A}, instruction=NVFP4)


def hypothetical(model: Model) -> Callable[[dict[str, Any]], Any]:
    return lambda x: bitmma.mma(model, x["A"], x["B"], a="e2m1")


CALLS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "one thread": product(threads=1),
    "two threads": product(threads=2),
    "batch": batch,
    "executor": in_executor,
    "promoted": product(schedule=bitmma.Schedule(promote_every=64)),
    "split": product(schedule=bitmma.Schedule(split_k=2, split_tile=64)),
    "epilogue": product(epilogue=bitmma.Epilogue(out_format="f16")),
    "kernel": hypothetical(TFDPA()),
    "exact": hypothetical(FDPA(8, 20, rho=RNE_FP32)),
    "reference": hypothetical(Lowered(65, TFDPA(1), tuple((i,) for i in range(65)))),
}


@pytest.mark.parametrize("shape", [(1, 130, 4), (2, 130, 8200)], ids=str)
@pytest.mark.parametrize("call", CALLS)
def test_which_operand_it_is(call: str, shape: tuple[int, int, int]) -> None:
    if call in ("exact", "reference") and shape[2] > 100:
        return
    arrays = nvfp4(*shape)
    CALLS[call](arrays)
    for name in "BA":  # A is named where both are wrong
        arrays[name][-1, -1] = 0x1F
        arrays[name][0, 3] = 0x41
        with pytest.raises(ValueError) as caught:
            CALLS[call](arrays)
        assert type(caught.value) is ValueError
        assert caught.value.__suppress_context__ or not caught.value.__context__
        assert str(caught.value) == (
            f"{name} has a code with bits above the 4 of e2m1: 0x41; "
            "e2m1 codes are one a byte, in the low bits"
        )


@pytest.mark.parametrize("shape", [(0, 64, 8), (1, 64, 0), (0, 0, 8)], ids=str)
def test_where_there_is_nothing_to_compute(shape: tuple[int, int, int]) -> None:
    arrays = nvfp4(*shape)
    assert bitmma.matmul(**arrays, instruction=NVFP4).shape == (shape[0], shape[2])
    name = max("AB", key=lambda n: arrays[n].size)
    if arrays[name].size:
        arrays[name][-1, -1] = 16
        with pytest.raises(ValueError, match=f"^{name} has a code"):
            bitmma.matmul(**arrays, instruction=NVFP4)


def test_instructions() -> None:
    rng = np.random.default_rng(0)
    A, B = rng.integers(0, 64, (3, FP6.m, 32), np.uint8), rng.integers(0, 64, (32, FP6.n), np.uint8)
    a, b = A[0, :, :], B.T[: FP6.m]
    FP6(A, B), FP6.dpa(a, b)
    B[31, 255] |= 64  # and thereby b, which is a view of its memory
    b = B.T[-FP6.m :]
    with pytest.raises(ValueError, match=r"^B has a code with bits above the 6 of e3m2: 0x[4-7]"):
        FP6(A, B)
    with pytest.raises(ValueError, match=r"^b has a code"):
        FP6.dpa(a, b)
    with pytest.raises(ValueError, match=r"^B has a code"):
        bitmma.prepare(B, FP6)
    A[2, 0, 0] |= 128
    with pytest.raises(ValueError, match=r"^A has a code"):
        FP6(A, B)
