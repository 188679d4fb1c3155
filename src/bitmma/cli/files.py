"""Arrays in files: opened without reading them, written row by row and only ever whole.

- ``.npy`` and uncompressed ``.npz`` members (their checksum verified) are memory-mapped, compressed
  ones read.
- ``.safetensors`` are checked by the safetensors package and memory-mapped; its NumPy loader cannot
  be used, because it refuses FP8.
- Arrays of ml_dtypes come back from ``.npy`` as void bytes, which count as codes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

__all__ = ["SUFFIXES", "array_writer", "load", "output_suffix", "split", "written"]

Array = npt.NDArray[Any]
Write = Callable[[Array], object]

SUFFIXES = (".npy", ".npz", ".safetensors")

# The safetensors format's names. F4 is two codes a byte, the first in the low bits.
_TAGS = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F4": "uint8",
    "I8": "int8", "U8": "uint8", "I16": "int16", "U16": "uint16", "I32": "int32", "U32": "uint32",
    "I64": "int64", "U64": "uint64",
}  # fmt: skip


# --- reading --------------------------------------------------------------------------------------


def load(spec: str, name: str) -> Array:
    """The array that ``FILE`` or ``FILE:NAME`` means, mapped where it can be.

    Args:
        spec: a path ending in one of ``SUFFIXES``, and the array's name in an archive that has
            several.
        name: what messages call the operand.

    Raises:
        ValueError: no such file or array, or one that cannot be read; names ``name`` and the file.
    """
    path, suffix, wanted = split(spec, name)
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise ValueError(f"{name}: {str(path)!r} {what}")
    if suffix == ".npy" and wanted:
        raise ValueError(
            f"{name}: {path} holds one array and no names, but {wanted!r} was asked for"
        )
    try:
        return _READERS[suffix](path, wanted)
    except _NoSuchArray as error:
        raise ValueError(f"{name}: {path} {error}") from None
    except ModuleNotFoundError:
        raise ValueError(
            f"{name}: reading .safetensors needs the safetensors package: pip install 'bitmma[io]'"
        ) from None
    except Exception as error:
        # Readers of broken files raise whatever the bytes lead them to: all mean the same here.
        reason = " ".join(str(error).split()) or type(error).__name__
        if "f1'" in reason:  # what np.save calls float8_e5m2, and np.load does not know
            reason += (
                "; np.save cannot name this FP8 type: save codes, x.view(np.uint8), or .safetensors"
            )
        raise ValueError(f"{name}: {path} cannot be read as {suffix}: {reason}") from error


def split(spec: str, name: str) -> tuple[Path, str, str | None]:
    """Path, suffix and array name of ``FILE`` or ``FILE:NAME``; errors as `load`."""
    match = re.fullmatch(r"(.+?(\.npy|\.npz|\.safetensors))(?::(.+))?", spec, re.I | re.S)
    if not match:
        raise ValueError(
            f"{name}: {spec!r} does not end in {_listed(SUFFIXES)} (or those and :NAME)"
        )
    return Path(match[1]), match[2].lower(), match[3]


class _NoSuchArray(Exception):
    """The archive holds no array of that name; says which it holds."""


def _choose(names: list[str], wanted: str | None) -> str:
    shown = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    if wanted is None and len(names) != 1:
        raise _NoSuchArray(f"holds {len(names)} arrays, choose one as FILE:NAME: {shown}")
    if wanted is not None and wanted not in names:
        raise _NoSuchArray(f"holds no array {wanted!r}, but: {shown}")
    return wanted or names[0]


def _map(path: Path, dtype: Any, offset: int, shape: tuple[int, ...], order: str = "C") -> Array:
    if 0 in shape:
        return np.empty(shape, dtype)  # nothing to map
    return np.memmap(path, dtype, "r", offset, shape, "F" if order == "F" else "C")


def _npy(path: Path, _: str | None, offset: int = 0) -> Array:
    with path.open("rb") as file:
        file.seek(offset)
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            file.seek(offset)
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
        header = {(1, 0): np.lib.format.read_array_header_1_0,
                  (2, 0): np.lib.format.read_array_header_2_0}  # fmt: skip
        shape, fortran, dtype = header[version](file)
        if dtype.hasobject:
            raise ValueError("it holds Python objects")
        return _map(path, dtype, file.tell(), shape, "F" if fortran else "C")


def _npz(path: Path, wanted: str | None) -> Array:
    with zipfile.ZipFile(path) as archive:
        members = {i.filename.removesuffix(".npy"): i for i in archive.infolist()}
        info = members[_choose(list(members), wanted)]
        with archive.open(info) as file:
            if info.compress_type != zipfile.ZIP_STORED:
                return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
            while file.read(1 << 20):  # to the end, where the checksum is compared
                pass
    with path.open("rb") as raw:  # the local header: 30 bytes, then a name and extra fields
        raw.seek(info.header_offset)
        name_length, extra_length = struct.unpack("<HH", raw.read(30)[26:])
    return _npy(path, None, info.header_offset + 30 + name_length + extra_length)


def _safetensors(path: Path, wanted: str | None) -> Array:
    from safetensors import safe_open

    # safe_open maps the file and checks the header: names, shapes, offsets, length.
    with safe_open(path, "numpy") as archive:
        name = _choose(sorted(archive.keys()), wanted)
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        entry = json.loads(file.read(length))[name]
    tag, shape, start = entry["dtype"], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0]
    if tag not in _TAGS:
        raise ValueError(f"array {name!r} has dtype {tag}, readable are {', '.join(_TAGS)}")
    dtype = np.dtype(getattr(ml_dtypes, _TAGS[tag], _TAGS[tag]))
    if tag != "F4":
        return _map(path, dtype, start, shape)
    if not shape or shape[-1] % 2:
        raise ValueError(f"array {name!r} is F4 with an odd last dimension: {shape}")
    pairs = _map(path, dtype, start, (*shape[:-1], shape[-1] // 2))
    return np.stack((pairs & 0xF, pairs >> 4), axis=-1).reshape(shape)


_READERS: Mapping[str, Callable[[Path, str | None], Array]] = {
    ".npy": _npy, ".npz": _npz, ".safetensors": _safetensors,
}  # fmt: skip


# --- writing --------------------------------------------------------------------------------------


@contextlib.contextmanager
def written(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that appears under ``path`` once the block ends well, and not at all otherwise.

    Raises:
        ValueError: nothing can be written there.
    """
    if path.is_dir():
        raise ValueError(f"cannot write {str(path)!r}: it is a directory")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        file = temporary.open("xb")
    except OSError as error:
        raise ValueError(f"cannot write {str(path)!r}: {error.strerror}") from None
    try:
        with file:
            yield file
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):  # a full disk, say
            raise ValueError(f"cannot write {str(path)!r}: {error.strerror or error}") from error
        raise


@contextlib.contextmanager
def array_writer(
    file: IO[bytes], suffix: str, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Iterator[Write]:
    """Writes one array, named ``d`` in archives, in pieces given in C order.

    ml_dtypes values, which ``.npy`` cannot name, are written there as unsigned codes.
    """
    if suffix == ".safetensors":
        tag = next(t for t, name in _TAGS.items() if name == dtype.name)
        size = int(np.prod(shape, dtype=object)) * dtype.itemsize
        header = json.dumps({"d": {"dtype": tag, "shape": shape, "data_offsets": [0, size]}})
        header += " " * (-len(header) % 8)
        file.write(struct.pack("<Q", len(header)) + header.encode())
        yield lambda piece: file.write(piece.tobytes())
        return
    fields = {"descr": stored_as(suffix, dtype).str, "fortran_order": False, "shape": shape}
    with contextlib.ExitStack() as stack:
        target = file
        if suffix == ".npz":
            archive = stack.enter_context(zipfile.ZipFile(file, "w"))
            # A fixed date: equal arrays make equal files.
            member = zipfile.ZipInfo("d.npy", (1980, 1, 1, 0, 0, 0))
            target = stack.enter_context(archive.open(member, "w", force_zip64=True))
        np.lib.format.write_array_header_1_0(target, fields)
        yield lambda piece: target.write(piece.tobytes())


def stored_as(suffix: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype that such a file can name; where it knows none of ml_dtypes, unsigned codes."""
    if suffix != ".safetensors" and dtype.type.__module__ != "numpy":
        return np.dtype(f"u{dtype.itemsize}")
    return dtype


def output_suffix(path: Path, accepted: tuple[str, ...]) -> str:
    """The path's suffix, one of those accepted; ValueError otherwise."""
    if path.suffix.lower() not in accepted:
        raise ValueError(f"-o {str(path)!r} must end in {_listed(accepted)}")
    return path.suffix.lower()


def _listed(items: tuple[str, ...]) -> str:
    return f"{', '.join(items[:-1])} or {items[-1]}"
