"""Products of Dask arrays: one task a block of the result, on one machine or a cluster.

    import bitmma.dask
    from dask.distributed import Client

    client = Client("tcp://scheduler:8786")  # or Client(): all cores of this machine
    D = bitmma.dask.matmul(A, B, instruction=("H100", "m64n256k16.f32.f16.f16"))  # lazy
    D.to_zarr("d.zarr")

Needs the dask extra: ``pip install 'bitmma[dask]'``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dask.array as da
import numpy as np

from bitmma import formats
from bitmma.epilogue import Epilogue
from bitmma.gemm import matmul as _matmul
from bitmma.gemm import planned
from bitmma.schedule import Schedule
from bitmma.unit import Instruction, resolve

__all__ = ["matmul"]


def matmul(
    A: Any,
    B: Any,
    C: Any | None = None,
    *,
    instruction: Instruction | tuple[str, str],
    schedule: Schedule | None = None,
    epilogue: Epilogue | None = None,
    scale_a: Any | None = None,
    scale_b: Any | None = None,
    promote_scale_a: Any | None = None,
    promote_scale_b: Any | None = None,
    promote_block_a: tuple[int, int] = (1, 128),
    promote_block_b: tuple[int, int] = (128, 128),
    threads: int = 1,
) -> da.Array:
    """D = A B + C, lazily and blockwise; arguments and bits as `bitmma.matmul`.

    The blocks of D are A's along M and B's along N. K is never divided among tasks, since the order
    of its sums is what decides the bits: chunks along it are put together in order, and every task
    holds its rows of A and columns of B whole. Choose chunks of M and N accordingly.

    Args:
        A, B, C, scale_a, scale_b, promote_scale_a, promote_scale_b: Dask arrays of any chunks, or
            NumPy arrays.
        threads: how many each task uses.

    Returns:
        A Dask array. Workers need bitmma installed, of the same version.

    Raises:
        TypeError, ValueError: as `bitmma.matmul`, at once; codes out of range when computed.
    """
    given = {
        "A": A, "B": B, "C": C, "scale_a": scale_a, "scale_b": scale_b,
        "promote_scale_a": promote_scale_a, "promote_scale_b": promote_scale_b,
    }  # fmt: skip
    arrays = {
        name: x if isinstance(x, da.Array) else da.asarray(_array(x, name))
        for name, x in given.items()
        if x is not None
    }
    fixed: dict[str, Any] = {
        "instruction": resolve(instruction), "schedule": schedule, "epilogue": epilogue,
    }  # fmt: skip
    blocks: dict[str, Any] = {
        "promote_block_a": promote_block_a, "promote_block_b": promote_block_b,
    }  # fmt: skip
    # Everything is checked on operands of these shapes in an empty batch.
    checked: dict[str, Any] = {
        name: np.empty((0, *x.shape[-2:]) if x.ndim >= 2 else x.shape, x.dtype)
        for name, x in arrays.items()
    }
    plan = planned(checked.pop("A"), checked.pop("B"), checked.pop("C", None),
                   **checked, **blocks, **fixed)  # fmt: skip
    lead = np.broadcast_shapes(*(x.shape[:-2] for x in arrays.values()))
    rows, columns = arrays["A"].chunks[-2], arrays["B"].chunks[-1]
    M, N = arrays["A"].shape[-2], arrays["B"].shape[-1]

    # One scale for each row and column, so that blocks of any size can be cut.
    for name, axis, length, block, one in (
        ("promote_scale_a", -2, M, promote_block_a, {"promote_block_a": (1, promote_block_a[1])}),
        ("promote_scale_b", -1, N, promote_block_b, {"promote_block_b": (promote_block_b[0], 1)}),
    ):
        if name in arrays:
            arrays[name] = da.take(arrays[name], np.arange(length) // block[axis], axis=axis)
            blocks |= one

    # Indices: leading dimensions from 0, then M and N; every array's own other axis is summed over.
    m, n = len(lead), len(lead) + 1
    wanted = {"A": (rows, -1), "B": (-1, columns), "C": (rows, columns)}
    pairs: list[Any] = []
    for number, (name, x) in enumerate(arrays.items()):
        at_m, at_n = wanted.get(name) or (wanted["A"] if name.endswith("a") else wanted["B"])
        x = x.rechunk({x.ndim - 2: at_m, x.ndim - 1: at_n})
        own = n + 1 + number
        last = (own if at_m == -1 else m, own if at_n == -1 else n)
        pairs += [x, (*range(len(lead) - (x.ndim - 2), len(lead)), *last)]
    pairs += [da.arange(M, chunks=(rows,)), (m,), da.arange(N, chunks=(columns,)), (n,)]
    dtype = formats.get(plan.d).dtype
    return da.blockwise(
        _block, (*range(len(lead)), m, n), *pairs, concatenate=True, dtype=dtype,
        meta=np.empty((0,) * (n + 1), dtype), names=tuple(arrays), threads=threads,
        **fixed, **blocks,
    )  # fmt: skip


def _array(x: Any, name: str) -> Any:
    if not isinstance(x, np.ndarray):
        raise TypeError(f"{name} must be a Dask or NumPy array, not {type(x).__name__}")
    return x


def _block(*arrays: Any, names: tuple[str, ...], epilogue: Epilogue | None, **fixed: Any) -> Any:
    """One block of the result, in a task of its own."""
    *operands, rows, columns = arrays
    named: Mapping[str, Any] = dict(zip(names, operands, strict=True))
    if epilogue is not None:
        epilogue = epilogue.cut(
            *(slice(int(i[0]), int(i[-1]) + 1) if len(i) else slice(0) for i in (rows, columns))
        )
    return _matmul(**named, epilogue=epilogue, **fixed)
