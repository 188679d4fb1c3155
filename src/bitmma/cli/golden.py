"""``bitmma vectors``: golden inputs and outputs, by category, as .npz or as text in hex."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bitmma import BITS_VERSION, cases, engine, formats
from bitmma.cli import files
from bitmma.unit import Instruction

__all__ = ["write"]

Codes = npt.NDArray[Any]

_SUFFIXES = (".npz", ".txt", ".hex")


def write(
    instr: Instruction, output: Path, count: int, seed: int, category: Sequence[str] | None
) -> None:
    """Generate ``count`` dot products of k terms, run them, write codes in and out.

    A .npz holds a (count, k), b (count, k), c (count,), d (count,), all raw codes, with block
    scaling scale_a and scale_b (count, k/block); category (count,), an index into categories
    (their names); gpu, instruction, formats ("a:f16 b:f16 …"), seed and bits_version. A .txt or
    .hex holds the same in text, see `_lines`.

    Raises:
        ValueError: an unknown category, a count or seed below zero, an output that cannot be
            written.
    """
    suffix = files.output_suffix(output, _SUFFIXES)
    made = cases.generate(
        instr.model, instr.a, instr.b, instr.c, instr.k, count, seed,
        category=category, scale_format=instr.scale, block=instr.block,
    )  # fmt: skip
    d = engine.dpa(
        instr.model, made.a, made.b, made.c, a_format=instr.a, b_format=instr.b, c_format=instr.c,
        scale_a=made.scale_a, scale_b=made.scale_b, scale_format=instr.scale, block=instr.block,
    )  # fmt: skip
    arrays = {"a": made.a, "b": made.b, "c": made.c}
    if made.scale_a is not None and made.scale_b is not None:
        arrays |= {"scale_a": made.scale_a, "scale_b": made.scale_b}
    arrays["d"] = d
    with files.written(output) as file:
        if suffix == ".npz":
            about: dict[str, Any] = {
                "category": made.category,
                "categories": cases.CATEGORIES,
                "gpu": instr.gpu,
                "instruction": instr.name,
                "formats": " ".join(f"{name}:{f}" for name, f in _formats(instr).items()),
                "seed": seed,
                "bits_version": BITS_VERSION,
            }
            np.savez_compressed(file, allow_pickle=False, **arrays, **about)
        else:
            for line in _lines(instr, arrays, made.category, seed):
                file.write(f"{line}\n".encode())


def _formats(instr: Instruction) -> dict[str, str]:
    named = {"a": instr.a, "b": instr.b, "c": instr.c}
    if instr.scale:
        named |= {"scale_a": instr.scale, "scale_b": instr.scale}
    return named | {"d": instr.d}


def _lines(
    instr: Instruction, arrays: dict[str, Codes], category: Codes, seed: int
) -> Iterator[str]:
    """One header line, then one case a line.

    The header is a ``//`` comment, which $readmemh skips: what made the file and, after "fields:",
    what a line holds, as name[count]:format. A case is hex codes without 0x, each as wide as its
    format, separated by single spaces: a[0] … a[k-1] b[0] … b[k-1] c (scale_a … scale_b …) d; its
    category follows as a comment.
    """
    columns = {name: array if array.ndim == 2 else array[:, None] for name, array in arrays.items()}
    named = _formats(instr)
    fields = " ".join(f"{n}[{x.shape[1]}]:{named[n]}" for n, x in columns.items())
    yield (
        f"// bitmma bits {BITS_VERSION}; gpu: {instr.gpu}; instruction: {instr.name}; "
        f"seed: {seed}; cases: {len(category)}; fields: {fields}"
    )
    digits = {name: -(-formats.get(named[name]).width // 4) for name in columns}
    for i, number in enumerate(category.tolist()):
        words = " ".join(
            f"{code:0{digits[name]}x}" for name, x in columns.items() for code in x[i].tolist()
        )
        yield f"{words} // {cases.CATEGORIES[number]}"
