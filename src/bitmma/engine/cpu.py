"""The engine on the CPU: the native module, its threads, and what it is told.

The native module holds every model of the catalogue in vector kernels and nearly every
hypothetical one in its exact evaluator. What it cannot hold at all (`_native_can`) is computed by
`bitmma.reference`, slowly and by the same rules.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bitmma import _native, formats, reference
from bitmma.engine import operands
from bitmma.formats import Format
from bitmma.models import (
    FAMILIES,
    FDPA,
    FLUSHES,
    GSTFDPA,
    OVERFLOWS,
    STFDPA,
    TFDPA,
    TINY_RULES,
    TREE_ZERO_RULES,
    Conversion,
    Lowered,
    Model,
    SumTree,
    as_family,
    check_k,
)

__all__ = ["Plan", "dpa", "mma", "plan", "thread_count"]

Codes = npt.NDArray[Any]

#: Told how many multiply-accumulates are done, and of how many.
Progress = Callable[[int, int], None]

#: Below so many products a call is not worth a second thread.
_PRODUCTS_PER_THREAD = 1 << 21

#: From so many products on, with or without a vector kernel, a call may take long enough for its
#: thread to be wanted meanwhile: see `_in_threads`.
_PRODUCTS_ALONE = {True: 1 << 26, False: 1 << 22}

#: Seconds between two looks at what came meanwhile.
_TICK = 0.1

#: The vector instructions to use, plain, avx2, avx512 or avx512vbmi; empty: the best this machine
#: has. It changes no bit: for tests and benchmarks.
_ISA = os.environ.get("BITMMA_ISA", "")

_MODES = ("RNE", "RNA", "RZ", "RD", "RU", "RA")
_SPECIALS = ("ieee", "fn", "fnuz", "none", "ue8m0")


def thread_count(threads: int | None = None) -> int:
    """How many threads a call uses: the argument, else BITMMA_NUM_THREADS, else all cores.

    Raises:
        TypeError, ValueError: not a positive integer; the message says which of the two it was.
    """
    if threads is None:
        text = os.environ.get("BITMMA_NUM_THREADS")
        if not text:
            return _cores()
        if not text.isdecimal() or len(text) > 9 or int(text) < 1:
            shown = f"{text!r}" if len(text) <= 20 else f"{text[:20]!r}…"
            raise ValueError(f"BITMMA_NUM_THREADS must be a positive integer, not {shown}")
        return int(text)
    if isinstance(threads, bool) or not isinstance(threads, (int, np.integer)):
        raise TypeError(f"threads must be a positive integer, not {threads!r}")
    if threads < 1:
        raise ValueError(f"threads must be a positive integer, not {threads}")
    return int(threads)


@functools.cache
def _cores() -> int:
    return os.cpu_count() or 1


def mma(
    model: Model,
    a: Codes,
    b: Codes,
    c: Codes | None = None,
    *,
    a_format: str,
    b_format: str,
    c_format: str | None = None,
    k: int | None = None,
    scale_a: Codes | None = None,
    scale_b: Codes | None = None,
    scale_format: str | None = None,
    block: int | None = None,
    promote: int | None = None,
    promote_scale_a: Codes | None = None,
    promote_scale_b: Codes | None = None,
    promote_fused: bool = True,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Codes:
    """D = A B + C on raw codes.

    Args:
        model: any model.
        a (..., M, K), b (..., K, N), c (..., M, N) or None (+0): unsigned code arrays of any
            strides; leading dimensions broadcast. c_format defaults to the model's d.
        k: products of one instruction; K is filled up with +0 to a multiple. None: one
            instruction does it all.
        scale_a (..., M, ceil(K/block)), scale_b (..., ceil(K/block), N): codes of scale_format.
        promote: P, a multiple of k (and of block): a chain ends every P elements of K and the next
            one starts from +0; their results r are added, in the order of K and by IEEE rules to
            nearest, to an f32 that starts from +0 or from c. c then is f32 (values or codes) and so
            is the result, whatever the model's d and c_format, but f64 where the model's d is.
            K = 0 is one chain of no products, without scales. None: one chain is the result.
        promote_scale_a (..., M, ceil(K/P)), promote_scale_b (..., ceil(K/P), N): float32, of every
            chain: s = RN32(scale_a * scale_b), or the one that is given, and acc becomes
            fma(s, r, acc), or RN32(acc + RN32(s * r)) without ``promote_fused``. Not for f64.
        threads: see `thread_count`.
        progress: called with (done, total), in multiply-accumulates, a few times a second from the
            thread that called, and with (total, total) at the end. What it raises ends the product.

    Returns:
        (..., M, N) codes of the model's d format (f32 or f64, if promoted), a new C-contiguous
        array.

    Raises:
        TypeError, ValueError: a ``promote`` or its scales that do not fit; a code of a or b with
            bits above its format's.
        KeyboardInterrupt: in the main thread, soon after Ctrl-C, however long the product.
    """
    K = a.shape[-1]
    check_k(model, K if k is None else k, "K" if k is None else "k")
    threads = thread_count(threads)
    promotion = _ONE_CHAIN
    if promote is not None or promote_scale_a is not None or promote_scale_b is not None:
        promotion = _promotion(model, k, block, promote, promote_scale_a, promote_scale_b)
        promotion = promotion._replace(fused=bool(promote_fused))
        c_format = model.d
        c = c if c is None else c.view(_code_dtype(promotion.d(model.d)))
    step = k if k is not None else max(K, 1)
    plan = _planned(model, a_format, b_format, c_format or model.d, step, scale_format, block)
    return plan.run(a, b, c, scale_a, scale_b, promotion, threads, progress)


class Plan(NamedTuple):
    """A model on some formats, before there are operands: made once, run many times.

    Attributes:
        key: the model, the formats of a, b and c, the products of one instruction, the scales'
            format and block.
        native: what the native module is told; None where it cannot serve.
        d: the format of results.
    """

    key: tuple[Any, ...]
    native: _Plan | None
    d: str

    def mma(
        self,
        a: Codes,
        b: Codes,
        c: Codes | None = None,
        scale_a: Codes | None = None,
        scale_b: Codes | None = None,
        threads: int | None = None,
    ) -> Codes:
        """As the function `mma`, for what was planned."""
        return self.run(a, b, c, scale_a, scale_b, _ONE_CHAIN, thread_count(threads), None)

    def dpa(
        self,
        a: Codes,
        b: Codes,
        c: Codes | None = None,
        scale_a: Codes | None = None,
        scale_b: Codes | None = None,
        threads: int | None = None,
    ) -> Codes:
        """As the function `dpa`, for what was planned."""
        d = self.mma(*_as_matrices(a, b, c, scale_a, scale_b), threads)
        return d.reshape(d.shape[:-2])

    def direct(self, outputs: tuple[int, ...]) -> Callable[..., Any] | None:
        """Calls on NumPy values as they come, of so few products that threads are no matter.

        Args:
            outputs: (m, n) of one instruction, or () of one dot product.

        Returns:
            What computes, given A, B, C, scale_a and scale_b: their D, an array of d's dtype, if
            they are arrays of their formats' dtypes and of the instruction's shapes with the same
            leading dimensions; else None, and all is as if it had not been asked. Or None where
            codes are to be looked at, which do not fill their bytes, or there is only `reference`.
        """
        _, a, b, c, _, scale, _ = self.key
        known = [None if x is None else formats.get(x) for x in (a, b, c, scale, scale, self.d)]
        if self.native is None or any(f is not None and f.width < 8 for f in known):
            return None
        spec, _, padded_step, alone = self.native
        fewer = min(alone, 2 * _PRODUCTS_PER_THREAD) - 1
        dtypes = tuple(None if f is None else f.dtype for f in known)
        most = fewer // (math.prod(outputs) * padded_step)
        return _native.Direct(spec, dtypes, outputs, most, _ISA).compute

    def run(
        self,
        a: Codes,
        b: Codes,
        c: Codes | None,
        scale_a: Codes | None,
        scale_b: Codes | None,
        promotion: _Promotion,
        threads: int,
        progress: Progress | None,
    ) -> Codes:
        every, fused, promote_a, promote_b = promotion
        given = a, b
        # What most calls are is told without a look at anything else: they take microseconds.
        lead: tuple[int, ...] = a.shape[:-2]
        if not (
            scale_a is scale_b is promote_a is promote_b is None
            and b.shape[:-2] == lead and a.flags.aligned and b.flags.aligned
            and (c is None or (c.shape[:-2] == lead and c.flags.aligned))
        ):  # fmt: skip
            lead, (a, b, c, scale_a, scale_b, promote_a, promote_b) = _together(
                a, b, c, scale_a, scale_b, promote_a, promote_b
            )
        M, K = a.shape[-2:]
        d = self.d if not every else promotion.d(self.d)
        out = np.empty((*lead, M, b.shape[-1]), _code_dtype(d))
        if self.native is None or not out.size:
            for name, x, fmt in zip("ab", given, self.key[1:3], strict=True):
                operands.check(x, fmt, name, operands.BeyondFormat)
        if self.native is None:
            arrays = (a, b, c, scale_a, scale_b, promote_a, promote_b)
            _by_reference(self.key, arrays, promotion, out, progress)
        else:
            spec, step, padded_step, alone = self.native
            work = out.size * max(1, -(-K // step)) * padded_step
            if work >= alone or (threads > 1 and work >= 2 * _PRODUCTS_PER_THREAD):
                job = a, b, c, out, scale_a, scale_b, promote_a, promote_b
                _in_threads(spec, job, promotion, work, threads, progress)
            else:
                _native_mma(
                    spec, a, b, c, out, scale_a, scale_b, _ISA, False, every, fused,
                    promote_a, promote_b,
                )  # fmt: skip
        if progress is not None:
            progress(out.size * K, out.size * K)
        return out


def plan(
    model: Model, a: str, b: str, c: str, k: int, scale: str | None = None, block: int | None = None
) -> Plan:
    """What `mma` and `dpa` need to know before there are operands. Arguments as `mma`'s.

    Raises:
        ValueError: a k that the model does not have.
    """
    check_k(model, k)
    return _planned(model, a, b, c, k, scale, block)


@functools.lru_cache(4096)
def _planned(
    model: Model, a: str, b: str, c: str, step: int, scale: str | None, block: int | None
) -> Plan:
    key = (model, a, b, c, step, scale, block)
    return Plan(key, _plan(*key), model.d)


def _together(*given: Codes | None) -> tuple[tuple[int, ...], list[Any]]:
    """The leading dimensions of operands, and these broadcast to them; none at an odd address."""
    leads = {x.shape[:-2] for x in given if x is not None}
    lead = leads.pop() if len(leads) == 1 else np.broadcast_shapes(*leads)
    spread = (
        x if x is None or x.shape[:-2] == lead else np.broadcast_to(x, lead + x.shape[-2:])
        for x in given
    )
    return lead, [x if x is None or x.flags.aligned else x.copy() for x in spread]


@functools.cache
def _code_dtype(format: str) -> np.dtype[Any]:
    return formats.get(format).code_dtype


def dpa(
    model: Model,
    a: Codes,
    b: Codes,
    c: Codes | None = None,
    *,
    a_format: str,
    b_format: str,
    c_format: str | None = None,
    scale_a: Codes | None = None,
    scale_b: Codes | None = None,
    scale_format: str | None = None,
    block: int | None = None,
    threads: int | None = None,
) -> Codes:
    """Dot products of one instruction each: a (..., k), b (..., k), c (...) give d (...).

    Arguments as `mma`; scale_a and scale_b are (..., k/block).
    """
    a, b, c, scale_a, scale_b = _as_matrices(a, b, c, scale_a, scale_b)
    return mma(
        model, a, b, c, a_format=a_format, b_format=b_format, c_format=c_format, block=block,
        scale_a=scale_a, scale_b=scale_b, scale_format=scale_format, threads=threads,
    )[..., 0, 0]  # fmt: skip


def _as_matrices(
    a: Codes, b: Codes, c: Codes | None, scale_a: Codes | None, scale_b: Codes | None
) -> tuple[Codes, Codes, Codes | None, Codes | None, Codes | None]:
    """Rows, columns and single numbers of dot products as the matrices of one output each."""
    return (
        a[..., None, :], b[..., None], None if c is None else c[..., None, None],
        None if scale_a is None else scale_a[..., None, :],
        None if scale_b is None else scale_b[..., None],
    )  # fmt: skip


# --- promotion ------------------------------------------------------------------------------------


class _Promotion(NamedTuple):
    every: int = 0  # 0: one chain is the result
    fused: bool = True
    scale_a: Codes | None = None  # codes of f32
    scale_b: Codes | None = None

    def d(self, d: str) -> str:
        """The format of sums of results of ``d``."""
        return "f64" if d == "f64" else "f32"


_ONE_CHAIN = _Promotion()


def _promotion(
    model: Model, k: int | None, block: int | None, every: int | None, *scales: Codes | None
) -> _Promotion:
    """What the arguments of `mma` mean together."""
    if every is None:
        raise ValueError("promote_scale_a and promote_scale_b need promote")
    if isinstance(every, bool) or not isinstance(every, int | np.integer):
        raise TypeError(f"promote must be a positive integer, not {every!r}")
    if k is None:
        raise ValueError("promote needs k, the products of one instruction")
    for name, unit in (("k", k), ("block", block or 1)):
        if every < 1 or every % unit:
            raise ValueError(f"promote must be a positive multiple of {name} = {unit}, not {every}")
    codes: list[Codes | None] = []
    for name, x in zip(("promote_scale_a", "promote_scale_b"), scales, strict=True):
        if x is not None and (not isinstance(x, np.ndarray) or x.dtype != np.float32):
            got = x.dtype if isinstance(x, np.ndarray) else type(x).__name__
            raise TypeError(f"{name} must be a float32 array, not {got}")
        if x is not None and model.d == "f64":
            raise ValueError(f"{name} scales sums in f32, but the results of {model!r} are f64")
        codes.append(None if x is None else x.view(np.uint32))
    return _Promotion(int(every), True, *codes)


# --- threads --------------------------------------------------------------------------------------


def _native_mma(*arguments: Any) -> None:
    if not _native.mma(*arguments):
        raise operands.BeyondFormat("a code of a or b has bits above its format's")


# a, b, c, d, scale_a, scale_b, promote_scale_a, promote_scale_b, with the same leading dimensions.
_Job = tuple[Any, Any, Any, Codes, Any, Any, Any, Any]
#: Which of them have no columns, or no rows: every block of outputs needs them whole.
_BESIDE = {-1: (0, 4, 6), -2: (1, 5, 7)}


def _in_threads(
    spec: npt.NDArray[np.int64],
    job: _Job,
    promotion: _Promotion,
    work: int,
    threads: int,
    progress: Progress | None,
) -> None:
    """Blocks of the leading dimension, of rows or of columns, whichever is longest.

    No bit depends on it: every output is computed whole by one thread. The caller's own thread only
    waits, so that it hears Ctrl-C and can tell of the progress.
    """
    out = job[3]
    total = out.size * job[0].shape[-1]
    axis = int(np.argmax(out.shape))
    parts = max(1, min(threads, work // _PRODUCTS_PER_THREAD, out.shape[axis]))
    edges = [out.shape[axis] * i // parts for i in range(parts + 1)]
    watch = np.zeros(2, np.int64)  # stop, done: see struct Watch in native/spec.hpp

    def compute(i: int) -> None:
        where = slice(edges[i], edges[i + 1])
        a, b, c, d, scale_a, scale_b, *of_parts = (
            _piece(x, o, axis - out.ndim, where) for o, x in enumerate(job)
        )
        _native_mma(
            spec, a, b, c, d, scale_a, scale_b, _ISA, False, promotion.every, promotion.fused,
            of_parts[0], of_parts[1], watch,
        )  # fmt: skip

    pool = None
    if threads > 1:
        pool = _pool(threads)
    elif progress is not None or threading.current_thread() is threading.main_thread():
        pool = ThreadPoolExecutor(1, thread_name_prefix="bitmma")  # not shared: it is one of many
    futures: list[Future[None]] = []
    try:
        if pool is not None:
            # No new threads as the interpreter shuts down, nor from a pool replaced meanwhile:
            # what was not submitted is done here.
            with contextlib.suppress(RuntimeError):
                for i in range(parts):
                    futures.append(pool.submit(compute, i))
        for i in range(len(futures), parts):
            compute(i)
        waiting: Collection[Future[None]] = futures
        while waiting:
            done, waiting = wait(waiting, timeout=_TICK, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
            if progress is not None and waiting:
                progress(min(total, total * int(watch[1]) // work), total)
    except BaseException:
        watch[0] = 1
        for future in futures:
            future.cancel()
        wait(futures)  # nothing may still write to an output that the caller has given up
        raise
    finally:
        if pool is not None and threads == 1:
            pool.shutdown(wait=False)


def _piece(x: Codes | None, operand: int, axis: int, where: slice) -> Codes | None:
    """The part of an operand that the outputs in ``where`` along ``axis`` (negative) need."""
    if x is None or operand in _BESIDE.get(axis, ()):
        return x
    index: tuple[Any, ...] = (Ellipsis, where, *(slice(None),) * (-1 - axis))
    piece: Codes = x[index]
    return piece


_pools: list[ThreadPoolExecutor] = []  # one at most, as large as was ever asked for
_pool_lock = threading.Lock()


def _pool(threads: int) -> ThreadPoolExecutor:
    with _pool_lock:
        if not _pools or _pools[0]._max_workers < threads:
            for old in _pools:
                old.shutdown(wait=False)
            _pools[:] = [ThreadPoolExecutor(threads, thread_name_prefix="bitmma")]
        return _pools[0]


def _forget_pool() -> None:
    """A forked child has none of its parent's threads, nor whoever held the lock."""
    global _pool_lock
    _pool_lock = threading.Lock()
    _pools.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


# --- what the native module is told ---------------------------------------------------------------


def _kernel_family(model: FDPA, scale: str | None, block: int | None) -> Model | None:
    """The family that the FDPA is a value of, for the sake of its kernel."""
    family = as_family(model)
    if scale is None or block is None:
        return family
    if isinstance(family, TFDPA) and scale == "ue8m0" and block % family.L == 0:
        return STFDPA(family.L, family.F, family.rho, family.e_zero)
    return None


def _native_can(model: Model, a_format: str, b_format: str) -> bool:
    if isinstance(model, GSTFDPA):
        return max(formats.get(a_format).width, formats.get(b_format).width) <= 8
    if isinstance(model, Lowered):
        return sum(map(len, model.parts)) <= 64
    return True


class _Plan(NamedTuple):
    """What the native module is told."""

    spec: npt.NDArray[np.int64]
    step: int  # products of one instruction
    padded_step: int  # the same, whole groups of them
    alone: int  # products from which on the caller's thread is kept free


@functools.lru_cache(4096)
def _plan(
    model: Model, a: str, b: str, c: str, step: int, scale: str | None, block: int | None
) -> _Plan | None:
    """None: the native module cannot."""
    spec = _spec(model, a, b, c, step, scale, block)
    if spec is None:
        return None
    padded_step = -(-step // model.group) * model.group
    return _Plan(spec, step, padded_step, _PRODUCTS_ALONE[_native.has_kernel(spec, _ISA)])


def _spec(
    model: Model, a: str, b: str, c: str, step: int, scale: str | None, block: int | None
) -> npt.NDArray[np.int64] | None:
    """The model and formats in the order of native/module.cpp's read_spec; None: it cannot."""
    if not _native_can(model, a, b):
        return None
    if isinstance(model, FDPA):
        model = _kernel_family(model, scale, block) or model
    unit = model.unit if isinstance(model, Lowered) else model
    rho = None if isinstance(unit, SumTree) else getattr(unit, "rho", None)
    general = model if isinstance(model, FDPA | SumTree) else None
    d = formats.get(model.d)
    period = sum(map(len, model.parts)) if isinstance(model, Lowered) else 0
    parts = model.parts if isinstance(model, Lowered) else ()
    part_of = {i: n for n, part in enumerate(parts) for i in part}
    words = [
        FAMILIES.index(type(model)),
        getattr(unit, "L", 1), *((0, 0) if general else (getattr(unit, x, 0) for x in ("F", "F2"))),
        getattr(unit, "G", 0), getattr(unit, "P", 0), getattr(unit, "e_zero", 0) or 0,
        _MODES.index(rho.mode) if rho else 0,
        (rho.mantissa_bits if rho else None) or d.mantissa_bits,
        model.group, period, len(parts), *(part_of[i] for i in range(period)),
        int(model.nan == "ones"), OVERFLOWS.index(rho.overflow) if rho else 0, step, block or 0,
    ]  # fmt: skip
    for fmt in (formats.get(a), formats.get(b), formats.get(c), d):
        words += _format_fields(fmt)
    if block:
        words += _format_fields(formats.get(scale or ""))
    if general is not None:
        words += _open_fields(general)
    spec = np.array(words, np.int64)
    spec.flags.writeable = False
    return spec


def _format_fields(fmt: Format) -> list[int]:
    return [
        fmt.width, fmt.exponent_bits, fmt.mantissa_bits, fmt.bias, _SPECIALS.index(fmt.specials),
        int(fmt.signed), fmt.dropped_bits,
    ]  # fmt: skip


def _open_fields(model: FDPA | SumTree) -> list[int]:
    """What the general models have besides, in the order of read_open."""
    choices: tuple[tuple[str, Sequence[str]], ...] = (
        *((name, _MODES) for name in ("cut", "cut_c", "cut_groups", "cut2", "cut_sum")),
        *((name, FLUSHES) for name in ("flush_in", "flush_c", "flush_out", "flush_last")),
        ("zero", TREE_ZERO_RULES), ("tiny", TINY_RULES), ("c", ("early", "late")),
        ("order", ("chain", "pairwise")),
    )  # fmt: skip
    # A SumTree has some of these fields: for the others, any value does.
    x = {f.name: getattr(model, f.name) for f in fields(model)}
    x = {f.name: f.default for f in fields(FDPA)} | x
    x["flush_last"] = x.get("flush_last") or x["flush_out"]
    x |= {name: words.index(x[name]) for name, words in choices}

    def known(name: str) -> list[int]:
        return [int(x[name] is not None), x[name] or 0]

    bits = [x[name] for name in ("F", "F_c", "F_groups", "F2", "F_sum")]
    tree = model.nodes if isinstance(model, SumTree) else ()
    second = [rho != model.rho for rho in model.roundings] if isinstance(model, SumTree) else ()
    return [
        *(-1 if F is None else F for F in bits),
        *(x[name] for name, words in choices if words is _MODES),
        x["c"], int(x["renormalise"]), x["groups"], x["order"],
        int(x["e_zero"] is not None), *known("e_sum"),
        -1 if x["drop_c"] is None else x["drop_c"], *known("product_overflow"),
        x["flush_in"], x["flush_c"], x["flush_out"], x["flush_last"], x["zero"], x["tiny"],
        *_rho_fields(x["rho"]), *_rho_fields(x["rho_products"] or x.get("rho_product")),
        *_rho_fields(x.get("out")), *_rho_fields(x.get("rho2")),
        len(tree),
        *(i for node, mark in zip(tree, second, strict=True) for i in (mark, len(node), *node)),
    ]  # fmt: skip


def _rho_fields(rho: Conversion | None) -> list[int]:
    if rho is None:
        return [0]
    fmt = formats.get(rho.format)
    return [
        1, _MODES.index(rho.mode), rho.mantissa_bits or fmt.mantissa_bits,
        OVERFLOWS.index(rho.overflow), *_format_fields(fmt),
    ]  # fmt: skip


def _by_reference(
    key: tuple[Any, ...],
    operands: tuple[Any, ...],
    promotion: _Promotion,
    out: Codes,
    progress: Progress | None,
) -> None:
    model, a_format, b_format, c_format, step, scale_format, block = key
    a, b, c, scale_a, scale_b, promote_a, promote_b = operands
    chain: Callable[..., int] = reference.promoted_chain if promotion.every else reference.chain
    total = out.size * a.shape[-1]
    for done, index in enumerate(np.ndindex(*out.shape)):
        if progress is not None:
            progress(total * done // out.size, total)
        *head, i, j = index
        row, column = (*head, i), (*head, slice(None), j)
        more: dict[str, Any] = {}
        if promotion.every:
            more = {
                "promote": promotion.every, "promote_fused": promotion.fused,
                "promote_scale_a": promote_a[row].tolist() if promote_a is not None else (),
                "promote_scale_b": promote_b[column].tolist() if promote_b is not None else (),
            }  # fmt: skip
        out[index] = chain(
            model, a[row].tolist(), b[column].tolist(), int(c[index]) if c is not None else 0,
            k=step, a_format=a_format, b_format=b_format, c_format=c_format,
            scale_format=scale_format, block=block,
            scale_a=scale_a[row].tolist() if scale_a is not None else (),
            scale_b=scale_b[column].tolist() if scale_b is not None else (), **more,
        )  # fmt: skip
