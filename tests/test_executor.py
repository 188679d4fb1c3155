"""Executors: the bits of one call, tiles bounded in flight, errors and Ctrl-C."""

import multiprocessing
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import bitmma
from bitmma import Epilogue, Schedule, gemm

HOPPER = bitmma.instruction("H100", "m64n8k32.f32.e4m3.e4m3")
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "_TILE_PRODUCTS", 1 << 13)
    monkeypatch.setattr(gemm, "_TILE_SIDE", 8)
    monkeypatch.setattr(gemm, "_IN_FLIGHT", (2, 5))


def fp8(*shape: int) -> np.ndarray:
    return bitmma.quantize(RNG.standard_normal(shape), "e4m3")


def same(x: np.ndarray, y: np.ndarray) -> bool:
    return x.dtype == y.dtype and np.array_equal(x.view(f"u{x.itemsize}"), y.view(f"u{x.itemsize}"))


class Slow(ThreadPoolExecutor):
    """One thread, and a count of how many tasks were submitted and not yet done."""

    def __init__(self) -> None:
        super().__init__(1)
        self.futures: list[Future[Any]] = []
        self.most = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.futures.append(super().submit(fn, *args, **kwargs))
        self.most = max(self.most, sum(not f.done() for f in self.futures))
        return self.futures[-1]


def everything() -> tuple[tuple[Any, ...], dict[str, Any]]:
    A, B, C = fp8(2, 1, 37, 200), fp8(3, 200, 41), RNG.standard_normal((37, 41)).astype("f4")
    e = Epilogue(
        scale_a=RNG.random((37, 1)).astype("f4"), scale_b=RNG.random((1, 41)).astype("f4"),
        bias=RNG.random(41).astype("f4"), out_format="bf16",
    )  # fmt: skip
    sa, sb = RNG.random((37, 4)).astype("f4"), RNG.random((3, 4, 6)).astype("f4")
    return (A, B, C), {
        "instruction": HOPPER, "schedule": Schedule(64, 2, split_tile=64), "epilogue": e,
        "promote_scale_a": sa, "promote_scale_b": sb, "promote_block_a": (1, 64),
        "promote_block_b": (64, 8),
    }  # fmt: skip


@pytest.mark.parametrize("workers", [1, 3])
def test_threads(workers: int) -> None:
    operands, options = everything()
    want = bitmma.matmul(*operands, **options)
    with ThreadPoolExecutor(workers) as pool:
        assert same(bitmma.matmul(*operands, **options, executor=pool), want)
        assert same(bitmma.matmul(*operands, **options, executor=pool, threads=2), want)


def test_processes() -> None:
    """Everything that a task needs goes through pickle and back."""
    operands, options = everything()
    mx = bitmma.instruction("B200", "m128n8k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.ue4m3")
    x, w = RNG.standard_normal((20, 100)), RNG.standard_normal((100, 30))
    a = bitmma.quantize_blocks(x, "e2m1", block=16, scale_format="ue4m3")
    b = bitmma.quantize_blocks(w, "e2m1", block=16, scale_format="ue4m3", axis=-2)
    scaled: dict[str, Any] = {"instruction": mx, "scale_a": a.scales, "scale_b": b.scales}
    recipe = bitmma.recipes.nvfp4("B200")
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        got = bitmma.matmul(*operands, **options, executor=pool)
        assert same(got, bitmma.matmul(*operands, **options))
        got = bitmma.matmul(a.values, b.values, **scaled, executor=pool)
        assert same(got, bitmma.matmul(a.values, b.values, **scaled))
        assert same(recipe(x, w, executor=pool), recipe(x, w))


@pytest.mark.parametrize(("size", "most"), [(1 << 31, 5), (1, 2)])
def test_tiles_in_flight_are_bounded(size: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "_BYTES_IN_FLIGHT", size)
    operands, options = everything()
    calls: list[int] = []
    with Slow() as executor:
        got = bitmma.matmul(
            *operands, **options, executor=executor, progress=lambda done, _: calls.append(done)
        )
    assert same(got, bitmma.matmul(*operands, **options))
    assert 1 < executor.most <= most and len(calls) == len(executor.futures) > 20
    assert calls == sorted(calls) and calls[-1] == 2 * 3 * 37 * 41 * 200


def test_what_a_task_raises_is_raised_and_ends_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def fails(tile: Any, threads: int) -> Any:
        ran.append(tile)
        raise OSError("lost")

    monkeypatch.setattr(gemm, "_computed", fails)
    operands, options = everything()
    with ThreadPoolExecutor(1) as pool, pytest.raises(OSError, match="lost"):
        bitmma.matmul(*operands, **options, executor=pool)
    assert len(ran) <= 5


def test_ctrl_c_cancels_what_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    compute = gemm._computed

    def counted(tile: Any, threads: int) -> Any:
        ran.append(tile)
        return compute(tile, threads)

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(gemm, "_computed", counted)
    operands, options = everything()
    with ThreadPoolExecutor(1) as pool, pytest.raises(KeyboardInterrupt):
        bitmma.matmul(*operands, **options, executor=pool, progress=stop)
    assert 1 <= len(ran) <= 6


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
def test_empty(shape: tuple[int, int, int]) -> None:
    M, N, K = shape
    with ThreadPoolExecutor(1) as pool:
        d = bitmma.matmul(fp8(M, K), fp8(K, N), instruction=HOPPER, executor=pool)
    assert d.shape == (M, N) and not d.any()


def test_threads_of_a_task_are_checked() -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="threads must be"):
        bitmma.matmul(fp8(2, 2), fp8(2, 2), instruction=HOPPER, executor=pool, threads=0)
