"""``bitmma vectors``: golden inputs and outputs, by category, as .npz or as text in hex."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bitmma import BITS_VERSION, cases, engine, formats
from bitmma.cli import files
from bitmma.models import STFDPA
from bitmma.render import nan_claim
from bitmma.unit import Instruction

__all__ = ["changed", "write"]

Codes = npt.NDArray[Any]

_SUFFIXES = (".npz", ".txt", ".hex")
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
#: Cases written at once.
_PIECE = 4096


def write(
    instr: Instruction, output: Path, count: int, seed: int, category: Sequence[str] | None
) -> None:
    """Generate ``count`` dot products of k terms, run them, write codes in and out.

    A .npz holds a (count, k), b (count, k), c (count,), d (count,), all raw codes, with block
    scaling scale_a and scale_b (count, k/block); category (count,), an index into categories
    (their names); gpu, instruction, model, provenance, nan ("bits", or "any" where only NaN-ness
    of d is claimed), formats ("a:f16 b:f16 …"), seed and bits_version. A .txt or .hex holds the
    same in text, see `_lines`.

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
                **_about(instr),
                "formats": " ".join(f"{name}:{f}" for name, f in _formats(instr).items()),
                "seed": seed,
                "bits_version": BITS_VERSION,
            }
            np.savez_compressed(file, allow_pickle=False, **arrays, **about)
        else:
            for text in _lines(instr, arrays, made.category, seed):
                file.write(text.encode())


def changed(instr: Instruction, changes: Mapping[str, Any]) -> Instruction:
    """The instruction with parameters of its model replaced: a hypothetical unit.

    Raises:
        ValueError: the model has no such parameter, or the value is none of its.
    """
    if not changes:
        return instr
    has = [field.name for field in dataclasses.fields(instr.model)]
    for name in changes:
        if name not in has:
            option = name.replace("_", "-")
            raise ValueError(f"--{option}: {instr.model!r} has no {name}, only {', '.join(has)}")
    model = dataclasses.replace(instr.model, **changes)
    if isinstance(model, STFDPA) and instr.block and instr.block % model.L:
        raise ValueError(f"--L must divide the block of {instr.block} that shares a scale")
    return dataclasses.replace(instr, model=model, d=model.d)


def _about(instr: Instruction) -> dict[str, str]:
    """What a file says of its unit; a hypothetical one is never passed off as the GPU's."""
    hypothetical = instr.provenance.level == "hypothetical"
    return {
        "gpu": f"hypothetical, after {instr.gpu}" if hypothetical else instr.gpu,
        "instruction": instr.name,
        "model": repr(instr.model),
        "provenance": str(instr.provenance),
        "nan": nan_claim(instr.model),
    }


def _formats(instr: Instruction) -> dict[str, str]:
    named = {"a": instr.a, "b": instr.b, "c": instr.c}
    if instr.scale:
        named |= {"scale_a": instr.scale, "scale_b": instr.scale}
    return named | {"d": instr.d}


def _lines(
    instr: Instruction, arrays: dict[str, Codes], category: Codes, seed: int
) -> Iterator[str]:
    """One header line, then one case a line; in pieces of many lines.

    The header is a ``//`` comment, which $readmemh skips: what made the file and, after "fields:",
    what a line holds, as name[count]:format. A case is hex codes without 0x, each as wide as its
    format, separated by single spaces: a[0] … a[k-1] b[0] … b[k-1] c (scale_a … scale_b …) d; its
    category follows as a comment. Where "nan: any" stands, only NaN-ness of a NaN d is claimed.
    """
    columns = {name: array if array.ndim == 2 else array[:, None] for name, array in arrays.items()}
    named = _formats(instr)
    fields = " ".join(f"{n}[{x.shape[1]}]:{named[n]}" for n, x in columns.items())
    about = "; ".join(f"{key}: {value}" for key, value in _about(instr).items())
    yield (
        f"// bitmma bits {BITS_VERSION}; {about}; "
        f"seed: {seed}; cases: {len(category)}; fields: {fields}\n"
    )
    ends = [f"// {name}\n" for name in cases.CATEGORIES]
    for start in range(0, len(category), _PIECE):
        piece = slice(start, start + _PIECE)
        blocks = [_words(x[piece], formats.get(named[n]).width) for n, x in columns.items()]
        text = np.concatenate(blocks, axis=1)
        words = text.tobytes().decode("ascii")
        width = text.shape[1]
        yield "".join(
            words[i * width : (i + 1) * width] + ends[number]
            for i, number in enumerate(category[piece].tolist())
        )


def _words(codes: Codes, width: int) -> npt.NDArray[np.uint8]:
    """Codes (rows, n) of ``width`` bits as characters (rows, n * digits and a space each)."""
    digits = -(-width // 4)
    shifts = np.arange(digits - 1, -1, -1, dtype=codes.dtype) * codes.dtype.type(4)
    text = np.full((*codes.shape, digits + 1), ord(" "), np.uint8)
    text[..., :digits] = _HEX[(codes[..., None] >> shifts) & codes.dtype.type(15)]
    return text.reshape(len(codes), -1)
