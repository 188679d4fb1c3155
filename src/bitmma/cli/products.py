"""``bitmma matmul``: a product on files, tile by tile."""

from __future__ import annotations

import contextlib
import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bitmma import formats, isa
from bitmma.cli import files
from bitmma.engine.operands import to_codes
from bitmma.epilogue import Epilogue
from bitmma.gemm import Product, addend_format, planned
from bitmma.recipes import default_instruction
from bitmma.schedule import Schedule
from bitmma.unit import Instruction

__all__ = ["default", "multiply"]

Codes = npt.NDArray[Any]

#: Products in one tile of D: a fraction of a second, so that a bar moves and Ctrl-C is heard; and
#: the tile's least side, so that packing A and B costs little beside the products.
_TILE = 1 << 29
_SIDE = 256
#: Seconds after which a bar is shown.
_PATIENCE = 1.0


def default(gpu: str, specs: Mapping[str, str]) -> Instruction:
    """The documented default for the formats that the files of A and B say they hold.

    Raises:
        ValueError: arrays of codes, which do not say it; block scales; a GPU that has none.
    """
    for name in specs:
        if name.startswith("--scale"):
            raise ValueError(f"with {name}, an instruction must be named")
    a, b = (_format(files.load(specs[name], name), name, gpu) for name in ("A", "B"))
    return default_instruction(gpu, a, b)


def _format(array: Codes, name: str, gpu: str) -> str:
    if array.dtype == np.float32:
        # NVIDIA's matrix units take float32 words as tf32, AMD's have f32 as well.
        return "f32" if isa.gpu(gpu).startswith("CDNA") else "tf32"
    if array.dtype.kind in "iu" or array.dtype.type is np.void:
        raise ValueError(
            f"{name} holds {array.dtype} codes, which do not say their format: "
            "an instruction must be named"
        )
    return formats.get(array.dtype.name).name


def multiply(
    instr: Instruction,
    specs: Mapping[str, str],
    output: Path,
    threads: int | None,
    schedule: Schedule | None = None,
    epilogue: Epilogue | None = None,
    blocks: Mapping[str, tuple[int, int]] | None = None,
) -> str:
    """Read the operands, multiply, write D; what was written, in words.

    Args:
        specs: ``FILE`` or ``FILE:NAME`` under A, B and, where given, --c, --scale-a, --scale-b,
            --promote-scale-a, --promote-scale-b.
        output: a path ending in .npy, .npz or .safetensors.
        schedule, epilogue: as for `bitmma.matmul`. blocks: promote_block_a and promote_block_b.

    Raises:
        TypeError, ValueError: an operand that cannot be read or does not fit, an output that cannot
            be written; then the output is left as it was.
    """
    suffix = files.output_suffix(output, files.SUFFIXES)
    arrays = {name: files.load(spec, name) for name, spec in specs.items()}
    for name, spec in specs.items():
        if output.exists() and output.samefile(files.split(spec, name)[0]):
            raise ValueError(f"-o {str(output)!r} is also {name}, which it would replace")
    wanted = {"A": instr.a, "B": instr.b,
              "--c": addend_format(instr, schedule or Schedule(), epilogue),
              "--scale-a": instr.scale, "--scale-b": instr.scale,
              "--promote-scale-a": "f32", "--promote-scale-b": "f32"}  # fmt: skip
    for name in ("--scale-a", "--scale-b"):
        if name in arrays and not instr.scale:
            raise ValueError(f"{name} was given, but {instr.name} has no block scales")
        if instr.scale and name not in arrays:
            raise ValueError(f"{name} is missing: {instr.name} needs scales of {instr.scale}")
    codes: dict[str, Any] = {}
    for name, array in arrays.items():
        # Codes, whatever the files held: so that codes and values may meet in one product.
        converted, _ = to_codes(array, wanted[name] or "", name)
        codes[_argument(name)] = converted
    try:
        plan = planned(
            **codes, instruction=instr, schedule=schedule, epilogue=epilogue,
            **dict[str, Any](blocks or {}),
        )  # fmt: skip
    except (TypeError, ValueError) as error:
        raise type(error)(_as_options(str(error))) from None

    *lead, M, N = plan.shape
    K = max(1, plan.K)
    side = max(_SIDE, math.isqrt(_TILE // K))
    rows = max(1, min(M, side))
    columns = max(side, _TILE // (K * rows))
    dtype = formats.get(plan.d).dtype
    with (
        files.written(output) as file,
        files.array_writer(file, suffix, plan.shape, dtype) as write,
        _progress(math.prod(plan.shape)) as advance,
    ):
        for index in np.ndindex(*lead):
            matrix = tuple(slice(i, i + 1) for i in index)
            for i in range(0, M, rows):
                band = np.empty((min(rows, M - i), N), dtype)
                for j in range(0, N, columns):
                    tile = band[:, j : j + columns]
                    where = (*matrix, slice(i, i + rows), slice(j, j + columns))
                    tile[:] = _tile(plan, where, threads).view(dtype).reshape(tile.shape)
                    advance(tile.size)
                write(band)
    shape = " × ".join(map(str, plan.shape))
    held = files.stored_as(suffix, dtype)
    codes_of = "" if held == dtype else f", as {held} codes"
    # NumPy's files do not say which FP8 they hold: a reader who mixed them up sees it here.
    untyped = [f"{name} as {wanted[name]}" for name, x in arrays.items() if x.dtype.type is np.void]
    read = f"; read {', '.join(untyped)}" if untyped else ""
    return f"{output}: {shape} of {plan.d}{codes_of}{read}; {instr.title}"


def _tile(plan: Product, where: tuple[slice, ...], threads: int | None) -> Codes:
    return plan.cut(where).compute(threads)


def _argument(option: str) -> str:
    """What `planned` calls an operand: ``--scale-a`` is ``scale_a``, ``--c`` is ``C``."""
    return "C" if option == "--c" else option.removeprefix("--").replace("-", "_")


def _as_options(message: str) -> str:
    """The library's words for arguments, in those of the command line."""
    message = re.sub(r"\bC(?= must| may| \()", "--c", message)
    names = r"\b(?:promote_)?(?:scale|block)_[ab]\b"
    return re.sub(names, lambda match: "--" + match[0].replace("_", "-"), message)


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
