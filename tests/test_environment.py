"""The caller's floating-point modes and threads: what must change no bit, nor pile up."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

import bitmma
from bitmma import models, reference

SMALLEST = float.fromhex("0x1p-149")  # outside: pow rounds as it is told, too
FE_MODES = {"down": 0x400, "up": 0x800, "toward zero": 0xC00}  # x86-64; aarch64 has others


@pytest.fixture(params=FE_MODES)
def rounding(request: pytest.FixtureRequest) -> Iterator[str]:
    if sys.platform != "linux" or "x86_64" not in __import__("platform").machine():
        pytest.skip("fesetround's constants are those of x86-64 Linux")
    libm = ctypes.CDLL("libm.so.6")
    assert libm.fesetround(FE_MODES[request.param]) == 0
    yield request.param
    libm.fesetround(0)


def test_callers_rounding_changes_no_bit(rounding: str) -> None:
    third = np.float64(1) / np.float64(3)
    assert (third * 3 != 1) or rounding == "up"  # the mode is really on
    x = np.array([1 / 3, -1 / 3, 1e-310, 65519.9, SMALLEST])
    assert bitmma.quantize(x, "f16").view(np.uint16).tolist() == [
        0x3555, 0xB555, 0x0000, 0x7BFF, 0x0000,
    ]  # fmt: skip
    ties = [1 + 1 / 2048, 1 + 3 / 2048, -1 - 3 / 2048, 1 + 5 / 4096, -1 - 3 / 4096]
    assert bitmma.quantize(ties, "f16").view(np.uint16).tolist() == [
        0x3C00, 0x3C02, 0xBC02, 0x3C01, 0xBC01,
    ]  # fmt: skip
    assert bitmma.decode(np.uint32([1]), "f32")[0] == SMALLEST
    instr = bitmma.instruction("MI300X", "f32_16x16x16_f16")
    a = np.random.default_rng(1).standard_normal((16, 16)).astype(np.float16)
    got = instr(a, a.T).view(np.uint32)
    want = [
        [
            reference.dpa(
                instr.model, row.view(np.uint16).tolist(), column.view(np.uint16).tolist(), 0,
                a_format="f16", b_format="f16", c_format="f32",
            )
            for column in a
        ]
        for row in a
    ]  # fmt: skip
    assert got.tolist() == want


RNG = np.random.default_rng(0)
X, W = RNG.standard_normal((9, 300)), RNG.standard_normal((300, 8))
HALVES = X.astype("f2"), W.astype("f2")
ADDEND = RNG.standard_normal((9, 8)).astype("f4")
TINY = ADDEND[:, :1] * np.float32(SMALLEST)
THIRD = 1 / 3


def whole_products() -> list[np.ndarray]:
    """Everything computed in NumPy outside the engine: sums, scales, epilogues, block scales."""
    (a, b), c, x, w = HALVES, ADDEND, X, W
    mi250 = ("MI250X", "f32_32x32x8f16")
    split = bitmma.Schedule(split_k=3, split_tile=32, reduce="pairwise")
    e = bitmma.Epilogue(alpha=0.1, beta=0.3, bias=c[0], scale_a=THIRD, out_format="bf16")
    rows = bitmma.Epilogue(scale_a=TINY, scale_b=c[:1])
    blocks = bitmma.quantize_blocks(x, "e2m1", block=16, scale_format="ue4m3", tensor_scale="amax")
    results = [
        bitmma.matmul(a, b, c, instruction=mi250, schedule=split),
        bitmma.matmul(a, b, c, instruction=mi250, epilogue=e),
        bitmma.matmul(a, b, c, instruction=mi250, epilogue=rows),
        bitmma.recipes.scaled_operands(5, operands="AB")(a, b, c),
        bitmma.recipes.mxfp8("B200", out_format="e5m2")(x, w, c),
        *blocks,
        e.apply(c, c[::-1], True),
    ]
    return [np.asarray(d).view(f"u{d.itemsize}") for d in results]


WHOLE_PRODUCTS = whole_products()


def test_callers_rounding_changes_no_whole_product(rounding: str) -> None:
    third = np.float64(1) / np.float64(3)
    assert (third * 3 != 1) or rounding == "up"
    for got, want in zip(whole_products(), WHOLE_PRODUCTS, strict=True):
        assert np.array_equal(got, want)


def test_scales_belong_to_their_block_whatever_k() -> None:
    """K = 5 in blocks of 4: the fifth product has the second scale, in both engines."""
    one = np.full((1, 5), 0x3C00, np.uint16)
    for model in (models.GSTFDPA(L=1, G=1), models.STFDPA(L=1)):
        got = bitmma.mma(
            model, one, one.T, a="f16", scale="ue8m0", block=4,
            scale_a=np.uint8([[127, 130]]), scale_b=np.uint8([[127], [127]]),
        )  # fmt: skip
        assert got.tolist() == [[4 + 8]]
        code = reference.chain(
            model, [0x3C00] * 5, [0x3C00] * 5, 0, k=5, a_format="f16", b_format="f16",
            c_format="f32", scale_format="ue8m0", scale_a=[127, 130], scale_b=[127, 127], block=4,
        )  # fmt: skip
        assert code == np.float32(12).view(np.uint32)


def test_threads_do_not_pile_up() -> None:
    instr = bitmma.instruction("H100", "m16n8k16.f32.f16.f16.f32")
    a = np.ones((256, 256), np.float16)
    before = set(threading.enumerate())
    for threads in range(2, 12):
        assert (bitmma.matmul(a, a, instruction=instr, threads=threads) == 256).all()
    for _ in range(300):  # those of pools that were replaced may take a moment to end
        if len(left := set(threading.enumerate()) - before) <= 2 * 11:
            break
        time.sleep(0.1)
    assert len(left) <= 2 * 11


def test_work_goes_on_after_the_main_thread() -> None:
    """No new threads can start then; the product is computed all the same."""
    program = """
import threading, time, numpy as np, bitmma
instr = bitmma.instruction("H100", "m16n8k16.f32.f16.f16.f32")
a = np.ones((512, 512), np.float16)
def late():
    threading.main_thread().join()
    time.sleep(0.2)
    print(int(bitmma.matmul(a, a, instruction=instr, threads=2).sum()))
threading.Thread(target=late).start()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout.strip(), done.stderr) == (str(512**3), "")
