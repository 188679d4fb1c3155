"""Dask arrays and executors: the bits of one thread, on two processes, one of them killed."""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, futures_of

import bitmma
import bitmma.dask
from bitmma import Epilogue, Schedule, gemm

HOPPER = bitmma.instruction("H100", "m64n8k32.f32.e4m3.e4m3")
NVFP4 = bitmma.instruction("B200", "m128n8k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.ue4m3")
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def fp8(*shape: int) -> np.ndarray:
    return bitmma.quantize(RNG.standard_normal(shape), "e4m3")


def same(x: Any, y: np.ndarray) -> bool:
    x = np.asarray(x)
    return x.dtype == y.dtype and np.array_equal(x.view(f"u{x.itemsize}"), y.view(f"u{x.itemsize}"))


def chunked(x: np.ndarray, *chunks: int) -> da.Array:
    return da.from_array(x, chunks=chunks)


def test_blockwise(client: Client) -> None:
    A, B = fp8(70, 300), fp8(300, 50)
    want = bitmma.matmul(A, B, instruction=HOPPER, threads=1)
    D = bitmma.dask.matmul(chunked(A, 20, 77), chunked(B, 100, 13), instruction=HOPPER)
    assert D.chunks == ((20, 20, 20, 10), (13, 13, 13, 11)) and D.dtype == np.float32
    assert same(D.compute(), want)
    assert same(bitmma.dask.matmul(A, chunked(B, 300, 50), instruction=HOPPER).compute(), want)


def test_all_operands(client: Client) -> None:
    """Scales of DeepSeek-V3's blocks, row-wise epilogue scales, a bias, C and split-K."""
    A, B, C = fp8(2, 1, 150, 300), fp8(3, 300, 140), np.ones((150, 140), "f4")
    sa, sb = np.random.rand(150, 3).astype("f4"), np.random.rand(3, 2).astype("f4")
    e = Epilogue(
        scale_a=np.random.rand(150, 1).astype("f4"), scale_b=np.random.rand(1, 140).astype("f4"),
        bias=np.random.rand(140).astype("f4"), out_format="bf16",
    )  # fmt: skip
    options: dict[str, Any] = {
        "instruction": HOPPER, "schedule": Schedule(128, 2, split_tile=128), "epilogue": e,
        "promote_scale_a": sa, "promote_scale_b": sb,
    }  # fmt: skip
    want = bitmma.matmul(A, B, C, **options)
    D = bitmma.dask.matmul(
        chunked(A, 1, 1, 40, 300), chunked(B, 2, 100, 50), chunked(C, 150, 7), **options
    )
    assert D.chunks == ((1, 1), (2, 1), (40, 40, 40, 30), (50, 50, 40))
    assert same(D.compute(), want)
    options |= {"promote_scale_a": chunked(sa[::2], 9, 1), "promote_block_a": (2, 128)}
    sb2 = np.repeat(sb, 64, axis=1)[:, :140]
    options |= {"promote_scale_b": da.from_array(sb2[:, :140]), "promote_block_b": (128, 1)}
    options |= {"promote_scale_b": da.from_array(np.repeat(sb, 70, axis=1))}
    D = bitmma.dask.matmul(chunked(A, 2, 1, 33, 300), chunked(B, 3, 300, 60), C, **options)
    here = {k: x.compute() if isinstance(x, da.Array) else x for k, x in options.items()}
    assert same(D.compute(), bitmma.matmul(A, B, C, **here))


def test_block_scaled_instructions(client: Client) -> None:
    x, w = RNG.standard_normal((40, 200)), RNG.standard_normal((200, 30))
    common: dict[str, Any] = {"block": 16, "scale_format": "ue4m3"}
    a, b = (bitmma.quantize_blocks(*args, **common) for args in ((x, "e2m1"), (w, "e2m1")))
    b = bitmma.quantize_blocks(w, "e2m1", axis=-2, **common)
    want = bitmma.matmul(a.values, b.values, instruction=NVFP4, scale_a=a.scales, scale_b=b.scales)
    D = bitmma.dask.matmul(
        chunked(a.values, 16, 64), chunked(b.values, 64, 16), instruction=NVFP4,
        scale_a=chunked(a.scales, 7, 3), scale_b=b.scales,
    )  # fmt: skip
    assert same(D.compute(), want)


def test_errors_come_at_once() -> None:
    A, B = chunked(fp8(8, 64), 4, 32), chunked(fp8(64, 8), 64, 8)
    for options, error, words in (
        ({"schedule": Schedule(48)}, ValueError, "promote_every must be a multiple of 32"),
        ({"epilogue": Epilogue(bias=np.ones(9, "f4"))}, ValueError, r"bias must be \(8,\)"),
        ({"C": B}, TypeError, "C must be float32 values"),
        ({"C": [[1]]}, TypeError, "C must be a Dask or NumPy array, not list"),
        ({"instruction": 1}, TypeError, "instruction must be an Instruction"),
    ):
        with pytest.raises(error, match=words):
            bitmma.dask.matmul(A, B, **{"instruction": HOPPER, **options})
    with pytest.raises(ValueError, match="inner dimensions differ"):
        bitmma.dask.matmul(A, A, instruction=HOPPER)
    with pytest.raises(ValueError, match=r"A must be \(..., M, K\)"):
        bitmma.dask.matmul(A[0], B, instruction=HOPPER)


def kill_one(client: Client) -> int:
    pid = next(iter(client.run(os.getpid).values()))
    os.kill(pid, signal.SIGKILL)
    return pid


def test_a_killed_worker_loses_nothing(client: Client) -> None:
    A, B = fp8(1024, 4096), fp8(4096, 1024)
    D = bitmma.dask.matmul(
        chunked(A, 256, 4096), chunked(B, 4096, 256), instruction=HOPPER
    ).persist()
    futures = futures_of(D)
    while sum(f.done() for f in futures) < 3:
        time.sleep(0.02)
    pid = kill_one(client)
    assert sum(f.done() for f in futures) < len(futures)  # it was in the middle
    want = bitmma.matmul(A, B, instruction=HOPPER, threads=1)
    assert same(D.compute(), want)
    client.wait_for_workers(2, timeout=30)
    assert pid not in client.run(os.getpid).values()


def test_as_an_executor(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "_TILE_PRODUCTS", 1 << 26)
    A, B = fp8(2, 640, 1500), fp8(1500, 700)
    e = Epilogue(scale_a=np.full((640, 1), 0.3, "f4"), scale_b=np.ones((1, 700), "f4"))
    options: dict[str, Any] = {"instruction": HOPPER, "schedule": Schedule(128), "epilogue": e}
    killed: list[int] = []

    def progress(done: int, total: int) -> None:
        if not killed and done < total:
            killed.append(kill_one(client))

    D = bitmma.matmul(A, B, **options, executor=client.get_executor(), progress=progress)
    assert killed and same(D, bitmma.matmul(A, B, **options, threads=1))
