"""The box: any function that multiplies and accumulates, asked for single dot products.

`BlackBox` is what a user wraps a function in. `Box` is how the probes see it: codes in, codes out,
many dot products a call, every call checked, limited in time and counted.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from bitmma import formats
from bitmma.clfp.journal import Journal
from bitmma.formats import Format
from bitmma.models import check_int
from bitmma.unit import Instruction

__all__ = ["BlackBox", "Box", "BoxError", "Dots", "printable"]

Codes = npt.NDArray[Any]

#: Operand elements of one batched call: a few MB.
_ELEMENTS_PER_CALL = 1 << 21


@dataclass(frozen=True, eq=False)
class Dots:
    """Dot products as raw codes: a, b (N, k); c (N,); scale_a, scale_b (N, k/block) or None."""

    a: Codes
    b: Codes
    c: Codes
    scale_a: Codes | None = None
    scale_b: Codes | None = None

    def each(self, change: Callable[[Codes], Codes]) -> Dots:
        """The same with every operand changed in one way."""
        scale_a, scale_b = (None if x is None else change(x) for x in (self.scale_a, self.scale_b))
        return Dots(change(self.a), change(self.b), change(self.c), scale_a, scale_b)

    def __getitem__(self, index: Any) -> Dots:
        """Some of them: by a slice, a mask or an array of indices."""
        return self.each(lambda x: x[index])

    def meetings(self, count: int) -> Iterator[Dots]:
        """Of whole calls: so many times all of them, after the first with columns of others."""
        if count == 1:
            yield self
            return
        n = len(self.c)
        b, scale_b = (None if x is None else np.concatenate([x, x]) for x in (self.b, self.scale_b))
        assert b is not None
        for shift in range(count):
            part = slice(-shift % n, -shift % n + n)
            yield replace(self, b=b[part], scale_b=None if scale_b is None else scale_b[part])

    @property
    def count(self) -> int:
        return len(self.c)

    @staticmethod
    def join(parts: Sequence[Dots]) -> Dots:
        """All of them, one after the other."""

        def scales(codes: list[Codes | None]) -> Codes | None:
            found = [x for x in codes if x is not None]
            return np.concatenate(found) if found else None

        return Dots(
            np.concatenate([x.a for x in parts]),
            np.concatenate([x.b for x in parts]),
            np.concatenate([x.c for x in parts]),
            scales([x.scale_a for x in parts]),
            scales([x.scale_b for x in parts]),
        )


class BoxError(Exception):
    """The box raised, hung, or returned what is no D; the message names the probe."""


@dataclass(frozen=True)
class BlackBox:
    """Any function D = A B + C, to be probed.

    Attributes:
        fn: ``fn(A, B, C)`` or, with block scales, ``fn(A, B, C, scale_a, scale_b)``: NumPy arrays
            of the formats' dtypes, A (m, k), B (k, n), C (m, n), scale_a (m, k/block), scale_b
            (k/block, n); returns D (m, n) of the dtype of ``d``.
        m, n, k: the shape of one call.
        a, b, c, d: format names; ``b`` is ``a`` and ``d`` is ``c`` if not given.
        scale, block: block scaling: the scales' format and how many k share one.
        batched: ``fn`` takes leading batch dimensions, which makes probing much faster.
        name: what reports call it.
    """

    fn: Callable[..., Any]
    m: int
    n: int
    k: int
    a: str = "f16"
    b: str | None = None
    c: str = "f32"
    d: str | None = None
    scale: str | None = None
    block: int | None = None
    batched: bool = False
    name: str = "black box"

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise TypeError(f"fn must be a function (A, B, C) -> D, not {self.fn!r}")
        for field in ("m", "n", "k"):
            check_int(self, field, 1, 4096)
        for field, default in (("a", self.a), ("b", self.a), ("c", self.c), ("d", self.c)):
            given = getattr(self, field)
            fmt = formats.get(default if given is None else given)
            if not fmt.signed:
                raise ValueError(f"{field} is {fmt}, which is for scales only")
            object.__setattr__(self, field, fmt.name)
        if self.d not in ("f64", "f32", "f16", "bf16"):
            raise ValueError(f"d must be f64, f32, f16 or bf16, not {self.d}")
        if (self.scale is None) != (self.block is None):
            raise ValueError(
                f"scale and block go together, got scale={self.scale!r} and block={self.block!r}"
            )
        if self.scale is not None and self.block is not None:
            if formats.get(self.scale).signed:
                raise ValueError(f"scale is ue8m0 or ue4m3, not {self.scale!r}")
            check_int(self, "block", 1)
            if self.k % self.block:
                raise ValueError(f"block must divide k={self.k}, not {self.block}")

    @staticmethod
    def of(box: BlackBox | Instruction) -> BlackBox:
        """The same seen as a black box; an instruction's name and model are forgotten."""
        if isinstance(box, BlackBox):
            return box
        if not isinstance(box, Instruction):
            raise TypeError(f"box must be an Instruction or a BlackBox, not {box!r}")
        return BlackBox(
            functools.partial(_call, box), box.m, box.n, box.k, box.a, box.b, box.c, box.d,
            box.scale, box.block, batched=True, name=box.title,
        )  # fmt: skip


def _call(instr: Instruction, *arrays: Any) -> Any:
    return instr(*arrays)


class Box:
    """A black box as the probes see it.

    Attributes:
        calls, dots: how many calls of the function, and useful outputs of it, so far.
        seconds: time spent inside the function. engine_seconds: in evaluating models of it.
        probe: what is being done; errors name it.
    """

    def __init__(self, spec: BlackBox, limit: float = 60.0, journal: Journal | None = None) -> None:
        self.spec = spec
        self.journal = journal
        self.limit = limit
        self.calls = self.dots = 0
        self.seconds = self.engine_seconds = 0.0
        self.probe = "first call"
        self._worker: _Worker | None = None

    @property
    def k(self) -> int:
        return self.spec.k

    @functools.cached_property
    def formats(self) -> tuple[Format, Format, Format, Format]:
        s = self.spec
        return tuple(formats.get(x or "") for x in (s.a, s.b, s.c, s.d))  # type: ignore[return-value]

    @property
    def scale_format(self) -> Format | None:
        return formats.get(self.spec.scale) if self.spec.scale else None

    @contextlib.contextmanager
    def during(self, probe: str) -> Iterator[None]:
        """What happens inside is done for this probe."""
        before, self.probe = self.probe, probe
        yield
        self.probe = before  # not after an error: its report says where it was

    def close(self) -> None:
        """Ends the thread that the box runs in."""
        if self._worker is not None:
            self._worker.stop()
            self._worker = None

    def engine_arguments(self) -> dict[str, Any]:
        """Formats as `bitmma.engine` wants them."""
        s = self.spec
        return {
            "a_format": s.a, "b_format": s.b, "c_format": s.c, "scale_format": s.scale,
            "block": s.block,
        }  # fmt: skip

    def dot(self, x: Dots) -> Codes:
        """(N,) codes of d: dot product t is output (i, i), i = t mod min(m, n), of its call."""
        r = min(self.spec.m, self.spec.n)
        i = np.arange(r)
        self.dots += x.count
        out: Codes = self.mma(self.tiles(x))[:, i, i].reshape(-1)[: x.count]
        return out

    def tiles(self, x: Dots) -> Dots:
        """Whole calls with the dot products on the diagonal, rows and columns mixing elsewhere.

        Returns a (calls, m, k), b (calls, k, n), c (calls, m, n) and scales alike. What is not
        filled by dot products repeats the first ones.
        """
        m, n = self.spec.m, self.spec.n
        r = min(m, n)
        calls = -(-x.count // r)
        if x.count < calls * r:
            x = x[np.arange(calls * r) % max(x.count, 1)]
        i, j = np.arange(m), np.arange(n)

        def rows(codes: Codes | None, which: npt.NDArray[np.int64] = i) -> Codes | None:
            if codes is None:
                return None
            return codes.reshape(calls, r, codes.shape[1]).take(which % r, axis=1)

        def columns(codes: Codes | None) -> Codes | None:
            found = rows(codes, j)
            return None if found is None else np.ascontiguousarray(found.swapaxes(1, 2))

        mixed = np.where(i[:, None] == j, i[:, None], i[:, None] + 3 * j) % r
        a, b, c = rows(x.a), columns(x.b), x.c.reshape(calls, r).take(mixed, axis=1)
        assert a is not None and b is not None
        return Dots(a, b, c, rows(x.scale_a), columns(x.scale_b))

    @staticmethod
    def pick(calls: Dots, places: npt.NDArray[np.int64]) -> Dots:
        """Outputs (t, i, j) of whole calls, places (N, 3), as single dot products."""
        t, i, j = places.T

        def rows(codes: Codes | None) -> Codes | None:
            return None if codes is None else codes[t, i]

        def columns(codes: Codes | None) -> Codes | None:
            return None if codes is None else codes[t, :, j]

        a, b = rows(calls.a), columns(calls.b)
        assert a is not None and b is not None
        return Dots(a, b, calls.c[t, i, j], rows(calls.scale_a), columns(calls.scale_b))

    def mma(self, x: Dots) -> Codes:
        """(calls, m, n) codes of whole calls, shaped as `tiles` returns them."""
        out = np.empty((len(x.a), self.spec.m, self.spec.n), self.formats[3].code_dtype)
        for part, codes in self.answers(x):
            out[part] = codes
        return out

    def answers(self, x: Dots) -> Iterator[tuple[slice, Codes]]:
        """The same, as many calls as are made at once: which of them, and codes to read now.

        They may lie in the box's own memory, which it may use again.
        """
        s = self.spec
        fmts = (*self.formats[:3], self.scale_format, self.scale_format)
        given = [
            _values(fmt, codes)
            for codes, fmt in zip((x.a, x.b, x.c, x.scale_a, x.scale_b), fmts, strict=True)
            if codes is not None and fmt is not None
        ]
        if s.batched:
            step = max(1, _ELEMENTS_PER_CALL // (s.k * (s.m + s.n) + 2 * s.m * s.n))
            for start in range(0, len(x.a), step):
                part = slice(start, min(start + step, len(x.a)))
                shape = (part.stop - start, s.m, s.n)
                yield part, self._ask([x[part] for x in given], shape)
        else:
            out = np.empty((len(x.a), s.m, s.n), self.formats[3].code_dtype)
            for t in range(len(x.a)):
                out[t] = self._ask([x[t] for x in given], (s.m, s.n))
            yield slice(0, len(x.a)), out

    def _ask(self, arrays: list[Codes], shape: tuple[int, ...]) -> Codes:
        arrays = [np.ascontiguousarray(x) for x in arrays]
        code_dtype = self.formats[3].code_dtype
        if self.journal is not None:
            known = self.journal.recall(arrays, shape, code_dtype)
            if known is not None:
                if self.journal.doubted and not np.array_equal(self._checked(arrays, shape), known):
                    raise ValueError(
                        f"checkpoint {self.journal.path} holds the answers of another function: "
                        "asked one of its questions again, the box answers otherwise"
                    )
                return known
        codes = self._checked(arrays, shape)
        if self.journal is not None:
            self.journal.keep(arrays, codes)
        return codes

    def _checked(self, arrays: list[Codes], shape: tuple[int, ...]) -> Codes:
        if self._worker is None:
            self._worker = _Worker(self.spec.fn)
            weakref.finalize(self, self._worker.stop)  # a box that nobody closed leaves no thread
        start = time.perf_counter()
        try:
            # Copies: the box may work in place.
            d, error = self._worker.call([x.copy() for x in arrays], self.limit)
        except queue.Empty:
            self._worker = None  # left to itself: a thread cannot be stopped
            raise BoxError(
                f"{self.probe}: the box did not return within {self.limit:g} s"
            ) from None
        finally:
            self.seconds += time.perf_counter() - start
            self.calls += 1
        if isinstance(error, KeyboardInterrupt):
            raise error
        if error is not None:
            where = "".join(
                f" ({printable(x.filename)}:{x.lineno})"
                for x in traceback.extract_tb(error.__traceback__)[-1:]
            )
            raise BoxError(
                f"{self.probe}: the box raised {printable(type(error).__name__)}: "
                f"{_message(error)}{where}"
            ) from error
        fmt = self.formats[3]
        if not isinstance(d, np.ndarray) or isinstance(d, np.ma.MaskedArray):
            name = "masked array" if isinstance(d, np.ma.MaskedArray) else type(d).__name__
            raise BoxError(f"{self.probe}: the box returned a {printable(name)}, not a NumPy array")
        d = d.view(np.ndarray)  # not what a subclass makes of it
        if d.dtype != fmt.dtype:
            raise BoxError(f"{self.probe}: the box returned {d.dtype}, d is {fmt}: {fmt.dtype}")
        if d.shape != shape:
            raise BoxError(f"{self.probe}: the box returned shape {d.shape}, not {shape}")
        return np.ascontiguousarray(d).view(fmt.code_dtype)


def _values(fmt: Format, codes: Codes) -> Codes:
    """Codes as an array of the format's dtype, the same bits."""
    codes = np.ascontiguousarray(codes, fmt.code_dtype)
    return codes.view(fmt.dtype)


#: Characters of a text that is not ours.
_TEXT = 500


def printable(text: str) -> str:
    """The beginning of it, in one line: what cannot be shown (NUL, half a pair) as escapes."""
    short = text if len(text) <= _TEXT else text[:_TEXT] + " …"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in short)


def _message(error: BaseException) -> str:
    try:
        return printable(str(error))
    except BaseException:  # it is the box's code that runs here
        return "(its message cannot be shown)"


class _Worker:
    """A thread that calls one function, so that a call can be given up on."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        self._todo: queue.SimpleQueue[list[Codes] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="bitmma-probe", daemon=True).start()

    def _run(self) -> None:
        with np.errstate(all="ignore"):  # overflow is what some probes are about
            while (arrays := self._todo.get()) is not None:
                try:
                    self._done.put((self._fn(*arrays), None))
                except BaseException as error:  # Ctrl-C too: it belongs to the caller
                    self._done.put((None, error))

    def stop(self) -> None:
        self._todo.put(None)

    def call(self, arrays: list[Codes], limit: float) -> tuple[Any, BaseException | None]:
        """What was returned, or raised; raises `queue.Empty` after ``limit`` seconds."""
        self._todo.put(arrays)
        return self._done.get(timeout=limit)
