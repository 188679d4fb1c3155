"""A file of the box's answers, so that an interrupted probe goes on where it was.

A probe asks the same questions in the same order whenever it is run with the same arguments. So it
is enough to keep the answers: the next run reads them back, call by call, each checked by a digest
of the question, and asks the box only for what is missing.

After a line of JSON that says which probe it is, the file has one record a call: a head (digest of
the question, size of the answer in bytes, checksums of the answer and of the head) and the answer.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Journal"]

_DIGEST = 16

#: Of the answers recalled an eighth is asked again, and no more than so many.
_DOUBTS = 32
_FIELDS = struct.Struct(f"<{_DIGEST}sQ{_DIGEST}s")
_HEAD = _FIELDS.size + _DIGEST


class Journal:
    """Answers kept in a file, one after the other. ``about`` says which probe they belong to.

    Attributes:
        replayed: how many answers were recalled so far.
        doubted: whether the last one recalled is to be asked again. The first, the last and some
            between, drawn anew each time, are: the file cannot tell whether the box is still the
            same function. One that is another in a tenth of the calls is noticed in 97 of 100
            runs where there are 32 to ask.
    """

    def __init__(self, path: str | os.PathLike[str], about: Mapping[str, Any]) -> None:
        self.path = path
        self._file = open(path, "a+b")  # noqa: SIM115  # closed by `close`
        self._file.seek(0)
        head = json.dumps(dict(about), sort_keys=True).encode() + b"\n"
        found = self._file.readline()
        try:
            if found and found != head:
                other = found.decode(errors="replace")[:200]
                raise ValueError(f"checkpoint {path} belongs to another probe: {other}")
            if not found:
                self._file.write(head)
                self._file.flush()
            start = self._file.tell()
            self._kept = 0
            while self._read() is not None:
                self._kept += 1
        except ValueError:
            self._file.close()
            raise
        self._file.seek(start)
        asked = min(self._kept, _DOUBTS, max(3, self._kept // 8))
        between = range(1, self._kept - 1)
        self._doubts = {0, self._kept - 1, *random.sample(between, min(asked, len(between)))}
        self.replayed = 0
        self.doubted = False

    def _read(self) -> tuple[bytes, bytes] | None:
        """The next question's digest and its answer; None, and cut off, where no whole one is."""
        here = self._file.tell()
        head = self._file.read(_HEAD)
        if len(head) == _HEAD:
            fields, check = head[: _FIELDS.size], head[_FIELDS.size :]
            question, size, answer_check = _FIELDS.unpack(fields)
            self._sound(check == _digest(fields))
            answer = self._file.read(size)
            if len(answer) == size:
                self._sound(answer_check == _digest(answer))
                return question, answer
        self._cut(here)
        return None

    def _sound(self, sound: bool) -> None:
        if not sound:
            raise ValueError(f"checkpoint {self.path} is corrupted: a checksum does not match")

    def _cut(self, here: int) -> None:
        self._file.truncate(here)
        self._file.seek(here)

    def recall(
        self, question: Sequence[npt.NDArray[Any]], shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> npt.NDArray[Any] | None:
        """The answer to the next question; None where the file has no more of them."""
        here = self._file.tell()
        record = self._read()
        if record is None:
            return None
        asked, answer = record
        if asked != _digest(*question) or len(answer) != int(np.prod(shape)) * dtype.itemsize:
            self._cut(here)  # the questions have changed since
            return None
        self.doubted = self.replayed in self._doubts
        self.replayed += 1
        return np.frombuffer(answer, dtype).reshape(shape).copy()

    def keep(self, question: Sequence[npt.NDArray[Any]], answer: npt.NDArray[Any]) -> None:
        codes = np.ascontiguousarray(answer).tobytes()
        fields = _FIELDS.pack(_digest(*question), len(codes), _digest(codes))
        self._file.write(fields + _digest(fields) + codes)
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _digest(*data: npt.NDArray[Any] | bytes) -> bytes:
    h = hashlib.blake2b(digest_size=_DIGEST)
    for x in data:
        h.update(x if isinstance(x, bytes) else np.ascontiguousarray(x).tobytes())
    return h.digest()
