"""A file of the box's answers, so that an interrupted probe goes on where it was.

A probe asks the same questions in the same order whenever it is run with the same arguments. So it
is enough to keep the answers: the next run reads them back, call by call, each checked by a digest
of the question, and asks the box only for what is missing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Journal"]

_DIGEST = 16


class Journal:
    """Answers kept in a file, one after the other. ``about`` says which probe they belong to."""

    def __init__(self, path: str | Path, about: Mapping[str, Any]) -> None:
        self._file = open(path, "a+b")  # noqa: SIM115  # closed by `close`
        self._file.seek(0)
        head = json.dumps(dict(about), sort_keys=True).encode() + b"\n"
        found = self._file.readline()
        if found and found != head:
            self._file.close()
            other = found.decode(errors="replace")[:200]
            raise ValueError(f"checkpoint {path} belongs to another probe: {other}")
        if not found:
            self._file.write(head)
        self.replayed = 0

    def recall(
        self, question: Sequence[npt.NDArray[Any]], shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> npt.NDArray[Any] | None:
        """The answer to the next question; None where the file has no more of them."""
        here = self._file.tell()
        size = int(np.prod(shape)) * dtype.itemsize
        record = self._file.read(_DIGEST + size)
        if len(record) == _DIGEST + size and record[:_DIGEST] == _digest(question):
            self.replayed += 1
            return np.frombuffer(record[_DIGEST:], dtype).reshape(shape).copy()
        self._file.truncate(here)  # cut off in the middle, or the questions have changed since
        self._file.seek(here)
        return None

    def keep(self, question: Sequence[npt.NDArray[Any]], answer: npt.NDArray[Any]) -> None:
        self._file.write(_digest(question) + np.ascontiguousarray(answer).tobytes())
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _digest(question: Sequence[npt.NDArray[Any]]) -> bytes:
    h = hashlib.blake2b(digest_size=_DIGEST)
    for x in question:
        h.update(np.ascontiguousarray(x).tobytes())
    return h.digest()
