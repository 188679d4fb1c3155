"""``bitmma matmul``: a product on files, tile by tile."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bitmma import formats
from bitmma.cli import files
from bitmma.engine.operands import to_codes
from bitmma.gemm import matmul
from bitmma.unit import MAX_LEADING, Instruction

__all__ = ["multiply"]

Codes = npt.NDArray[Any]

#: Products in one tile of D: a fraction of a second, so that a bar moves and Ctrl-C is heard; and
#: the tile's least side, so that packing A and B costs little beside the products.
_TILE = 1 << 29
_SIDE = 256
#: Seconds after which a bar is shown.
_PATIENCE = 1.0


def multiply(
    instr: Instruction, specs: Mapping[str, str], output: Path, threads: int | None
) -> None:
    """Read the operands, multiply, write D.

    Args:
        specs: ``FILE`` or ``FILE:NAME`` under A, B and, where given, --c, --scale-a, --scale-b.
        output: a path ending in .npy, .npz or .safetensors.

    Raises:
        TypeError, ValueError: an operand that cannot be read or does not fit, an output that cannot
            be written; then the output is left as it was.
    """
    suffix = files.output_suffix(output, files.SUFFIXES)
    arrays = {name: files.load(spec, name) for name, spec in specs.items()}
    for name, spec in specs.items():
        if output.exists() and output.samefile(files.split(spec, name)[0]):
            raise ValueError(f"-o {str(output)!r} is also {name}, which it would replace")
    lead, (M, K, N) = _shapes(instr, arrays)
    # Codes, whatever the files held: so that codes and values may meet in one product.
    wanted = {"A": instr.a, "B": instr.b, "--c": instr.c,
              "--scale-a": instr.scale, "--scale-b": instr.scale}  # fmt: skip
    codes = {}
    for name, array in arrays.items():
        converted, _ = to_codes(array, wanted[name] or "", name)
        codes[name] = np.broadcast_to(converted, (*lead, *converted.shape[-2:]))

    side = max(_SIDE, math.isqrt(_TILE // max(1, K)))
    rows = max(1, min(M, side))
    columns = max(side, _TILE // max(1, K * rows))
    dtype = formats.get(instr.d).dtype
    with (
        files.written(output) as file,
        files.array_writer(file, suffix, (*lead, M, N), dtype) as write,
        _progress(math.prod(lead) * M * N) as advance,
    ):
        for index in np.ndindex(*lead):
            part = {name: array[index] for name, array in codes.items()}
            for i in range(0, M, rows):
                band = np.empty((min(rows, M - i), N), dtype)
                for j in range(0, N, columns):
                    tile = band[:, j : j + columns]
                    tile[:] = _tile(instr, part, slice(i, i + rows), slice(j, j + columns), threads)
                    advance(tile.size)
                write(band)


def _tile(
    instr: Instruction, part: Mapping[str, Codes], i: slice, j: slice, threads: int | None
) -> Codes:
    def cut(name: str, rows: slice, columns: slice) -> Codes | None:
        return part[name][rows, columns] if name in part else None

    every = slice(None)
    d: Codes = matmul(
        part["A"][i], part["B"][:, j], cut("--c", i, j), instruction=instr, threads=threads,
        scale_a=cut("--scale-a", i, every), scale_b=cut("--scale-b", every, j),
    )  # fmt: skip
    return d


def _shapes(
    instr: Instruction, arrays: Mapping[str, Codes]
) -> tuple[tuple[int, ...], tuple[int, int, int]]:
    """The leading dimensions and (M, K, N), checked here because `matmul` sees tiles."""
    for name in ("A", "B"):
        if arrays[name].ndim < 2:
            raise ValueError(f"{name} must be a matrix, its shape is {arrays[name].shape}")
    for name, array in arrays.items():
        if array.ndim - 2 > MAX_LEADING:
            dimensions = f"up to {MAX_LEADING} leading dimensions, not {array.ndim - 2}"
            raise ValueError(f"{name} may have {dimensions}")
    M, K = arrays["A"].shape[-2:]
    N = arrays["B"].shape[-1]
    blocks = -(-K // instr.block) if instr.block else 0
    wanted = {"A": (M, K), "B": (K, N), "--c": (M, N),
              "--scale-a": (M, blocks), "--scale-b": (blocks, N)}  # fmt: skip
    for name, array in arrays.items():
        if name.startswith("--scale") and not instr.scale:
            raise ValueError(f"{name} was given, but {instr.name} has no block scales")
        if array.shape[-2:] != wanted[name]:
            shown = f"(…, {', '.join(map(str, wanted[name]))})"
            raise ValueError(
                f"{name} must be {shown} for A {arrays['A'].shape} and B {arrays['B'].shape}, "
                f"its shape is {array.shape}"
            )
    if instr.scale:
        for name in ("--scale-a", "--scale-b"):
            if name not in arrays:
                raise ValueError(f"{name} is missing: {instr.name} needs scales of {instr.scale}")
    if instr.c != instr.d and instr.k < K:
        raise ValueError(
            f"{instr.name} cannot be chained: its d ({instr.d}) is no c ({instr.c}); "
            f"K is at most {instr.k}, not {K}"
        )
    try:
        lead = np.broadcast_shapes(*(array.shape[:-2] for array in arrays.values()))
    except ValueError:
        listed = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise ValueError(f"leading dimensions do not broadcast: {listed}") from None
    return lead, (M, K, N)


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """Counts outputs; draws a bar on a terminal's stderr once it has taken a while."""
    started, done = time.monotonic(), 0
    with contextlib.ExitStack() as stack:
        move: Callable[[int], object] | None = None

        def advance(outputs: int) -> None:
            nonlocal done, move
            done += outputs
            if move is not None:
                move(outputs)
            elif done < total and time.monotonic() - started > _PATIENCE and sys.stderr.isatty():
                from rich.console import Console
                from rich.progress import Progress

                bar = stack.enter_context(Progress(console=Console(stderr=True), transient=True))
                task = bar.add_task("products", total=total, completed=done)
                move = lambda n: bar.advance(task, n)  # noqa: E731

        yield advance
