"""Matrix products of any size as kernels compute them: chains, promotion, split-K, an epilogue."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field
from itertools import product as _grid
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from bitmma import engine, formats
from bitmma.engine import operands
from bitmma.epilogue import Epilogue, canonical_nan
from bitmma.schedule import Schedule
from bitmma.unit import MAX_LEADING, Call, Instruction, resolve

__all__ = ["Product", "addend_format", "matmul", "planned"]

Array = npt.NDArray[Any]
Progress = Callable[[int, int], None]

#: Products in one tile given to an executor, tenths of a second of one core; and the least side of
#: a tile, so that packing and sending A and B costs little beside the products.
_TILE_PRODUCTS = 1 << 27
_TILE_SIDE = 128
#: Tiles submitted and not yet written back: enough to keep a cluster busy, fewer (but a few) where
#: their operands, copied for pickling, would take more than so many bytes.
_IN_FLIGHT = (4, 64)
_BYTES_IN_FLIGHT = 1 << 31
#: Outputs that an epilogue takes at once: its float64 temporaries stay small.
_EPILOGUE_OUTPUTS = 1 << 20

#: Which of a result's rows and columns an operand's own two trailing dimensions follow.
_FOLLOWS = {
    "a": (True, False), "scale_a": (True, False), "promote_scale_a": (True, False),
    "b": (False, True), "scale_b": (False, True), "promote_scale_b": (False, True),
    "c": (True, True),
}  # fmt: skip
#: The axis of an operand along which split-K cuts it.
_K_AXIS: Mapping[str, Literal[-1, -2]] = {"a": -1, "b": -2, "scale_a": -1, "scale_b": -2}


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
    threads: int | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Any:
    """D = A B + C for any M, N and K, as a kernel on one instruction computes it.

    Along K, in increasing order, the accumulator of one instruction is the c of the next; the last
    one's missing products are +0, and K = 0 is one instruction of zero products. Without a schedule
    that is all: one chain, as FP16, BF16 and TF32 kernels do it, and FP8 kernels with fast
    accumulation. A `Schedule` says when accumulators leave the matrix unit, an `Epilogue` what is
    made of them.

    Args:
        A: (..., M, K). B: (..., K, N). Leading dimensions broadcast.
        C: (..., M, N); None is +0. Of the instruction's ``c`` where it starts its one chain; of f32
            (f64 for an f64 unit) where it starts the promoted accumulator, joins split-K's sum last
            or enters an epilogue with ``beta``.
        instruction: an `Instruction`, or GPU and name: ``("H100", "m64n8k16.f32.f16.f16")``. Its m
            and n do not matter.
        schedule: None is ``Schedule()``, one chain.
        epilogue: applied to the FP32 accumulators, those of an f16 unit widened. None: they are the
            result.
        scale_a, scale_b: (..., M, ceil(K/block)) and (..., ceil(K/block), N), for block-scaled
            instructions.
        promote_scale_a, promote_scale_b: float32, one a block of ``promote_block_a`` (rows, k) of A
            and of ``promote_block_b`` (k, columns) of B: (..., ceil(M/rows), ceil(K/k)) and
            (..., ceil(K/k), ceil(N/columns)). Each chain's result r joins the accumulator as
            (scale_a scale_b) r, see ``Schedule.promote_fused``; one alone scales as if the other
            were 1. Blocks of k must be multiples of ``promote_every``, and no chain may run across
            two. The default blocks are DeepSeek-V3's.
        threads: how many; None: BITMMA_NUM_THREADS, or all cores. Each task of an executor uses one
            unless told otherwise. Changes no bit.
        executor: any `concurrent.futures.Executor`: the result is cut in tiles, which are submitted
            to it, a bounded number at a time. Process pools and ``dask.distributed``'s
            ``client.get_executor()`` will do. Changes no bit.
        progress: called as ``progress(done, total)``, in products (multiply-adds), now and then.

    Returns:
        (..., M, N), a new array (or tensor on the operands' device): of the epilogue's
        ``out_format``; else of ``d`` for one chain; else of f32 (f64 for an f64 unit). A NaN is
        0x7FFFFFFF where the unit's is, else the quiet 0x7FC00000.

    Raises:
        TypeError, ValueError: as for a call of the instruction; also a schedule or epilogue that
            does not fit, scales of another granularity, K beyond the instruction's k where its C
            and D differ in format, so that D cannot be the next one's C. What an executor's task
            raised is raised here.
    """
    plan_with = functools.partial(
        planned, A, B, C, instruction=instruction, schedule=schedule, epilogue=epilogue,
        scale_a=scale_a, scale_b=scale_b, promote_scale_a=promote_scale_a,
        promote_scale_b=promote_scale_b, promote_block_a=promote_block_a,
        promote_block_b=promote_block_b,
    )  # fmt: skip
    if executor is not None:  # tasks are submitted only once all codes are known to be good
        plan = plan_with()
        return operands.wrap(_submitted(plan, executor, threads, progress), plan.d, plan.kind)
    plan = plan_with(to_codes=operands.as_codes)
    codes = operands.computed(lambda: plan.compute(threads, progress), plan_with)
    return operands.wrap(codes, plan.d, plan.kind)


def planned(
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
    to_codes: operands.ToCodes = operands.to_codes,
) -> Product:
    """The checked product, not yet computed. Arguments and errors as `matmul`; ``to_codes`` as for
    `bitmma.unit.Call.read`."""
    instr = resolve(instruction)
    schedule = _checked(schedule, Schedule, "schedule") or Schedule()
    epilogue = _checked(epilogue, Epilogue, "epilogue")
    if epilogue is not None and instr.d == "f64":
        raise ValueError(f"an epilogue is for FP32 accumulators, those of {instr.name} are f64")
    reader = _reader(instr, addend_format(instr, schedule, epilogue))
    (a, b, c, more), kind = reader.read(A, B, C, scale_a, scale_b, to_codes)
    M, K, N = a.shape[-2], a.shape[-1], b.shape[-1]
    schedule.check(instr, K)
    if epilogue is not None:
        epilogue.check(M, N, c is not None)
    found = {"a": a, "b": b, **more}
    if c is not None:
        found["c"] = c
    blocks = {}
    for name, scale, block, k_axis in (
        ("promote_scale_a", promote_scale_a, promote_block_a, -1),
        ("promote_scale_b", promote_scale_b, promote_block_b, -2),
    ):
        if scale is not None:
            side, blocks[name] = _promotion_blocks(name, block, k_axis, instr, schedule)
            found[name] = _promotion_scale(name, scale, side, blocks[name], k_axis, (M, K, N))
    try:
        lead = np.broadcast_shapes(*(x.shape[:-2] for x in found.values()))
    except ValueError:
        named = ((name.upper() if len(name) == 1 else name, x) for name, x in found.items())
        shown = ", ".join(f"{name} {x.shape}" for name, x in named)
        raise ValueError(f"leading dimensions do not broadcast: {shown}") from None
    plan = Product(instr, schedule, epilogue, (*lead, M, N), K, found, blocks, kind)
    for tiles in schedule.parts(K) if blocks else ():
        plan.promotion_scales(tiles)  # raises where a chain runs across blocks
    return plan


def addend_format(instr: Instruction, schedule: Schedule, epilogue: Epilogue | None) -> str:
    """The format of C: the instruction's where C starts its one chain, else that of outer sums."""
    if schedule.is_chain and (epilogue is None or epilogue.beta is None):
        return instr.c
    return _outside(instr)


def _outside(instr: Instruction) -> str:
    """The format of sums outside the matrix unit."""
    return "f64" if instr.d == "f64" else "f32"


def _checked(value: Any, wanted: type, name: str) -> Any:
    if value is not None and not isinstance(value, wanted):
        raise TypeError(f"{name} must be a bitmma.{wanted.__name__} or None, not {value!r}")
    return value


@functools.lru_cache(1024)
def _reader(instr: Instruction, c_format: str) -> Call:
    return instr.free_call(c_format)


# --- promotion's scales ---------------------------------------------------------------------------


def _promotion_blocks(
    name: str, block: Any, k_axis: int, instr: Instruction, schedule: Schedule
) -> tuple[int, int]:
    """How many rows (or columns), and how many k, share a scale; checked."""
    which = name.replace("scale", "block")
    every = schedule.promote_every
    if every is None:
        raise ValueError(f"{name} was given, but the schedule has no promote_every")
    if instr.d == "f64":
        raise ValueError(f"{name} is for FP32 accumulators, those of {instr.name} are f64")
    whole = isinstance(block, tuple) and len(block) == 2 and all(type(x) is int for x in block)
    if not whole or min(block) < 1:
        raise (ValueError if whole else TypeError)(
            f"{which} must be two positive integers, not {block!r}"
        )
    per_k = block[k_axis]
    if per_k % every:
        raise ValueError(
            f"{which} must span a multiple of promote_every = {every} along k, not {per_k}"
        )
    return block[-3 - k_axis], per_k


def _promotion_scale(
    name: str, scale: Any, side: int, per_k: int, k_axis: int, size: tuple[int, int, int]
) -> Array:
    """The scales as float32, one for each row of A (column of B) and block of k."""
    M, K, N = size
    array = operands.to_codes(scale, "f32", name)[0].view(np.float32)
    length = M if k_axis == -1 else N
    wanted = [-(-length // side)] * 2
    wanted[k_axis] = -(-K // per_k)
    if array.ndim < 2 or array.shape[-2:] != tuple(wanted):
        raise ValueError(
            f"{name} must be (..., {wanted[0]}, {wanted[1]}), one for each block of "
            f"{(side, per_k) if k_axis == -1 else (per_k, side)}, got {array.shape}"
        )
    if array.ndim - 2 > MAX_LEADING:
        raise ValueError(
            f"{name} may have up to {MAX_LEADING} leading dimensions, not {array.ndim - 2}"
        )
    return array if side == 1 else np.take(array, np.arange(length) // side, axis=-3 - k_axis)


# --- a product, whole or in part ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Product:
    """A checked product: what to compute, of which codes. Picklable; any block of it is one too.

    Attributes:
        instruction, schedule, epilogue: as for `matmul`.
        shape: the result's, (..., M, N). K: the inner dimension.
        arrays: codes by name (a, b, c, scale_a, scale_b) and float32 promotion scales.
        promote_blocks: how many k share a promotion scale, by its name.
        kind: what `bitmma.engine.operands.wrap` makes of the result.
    """

    instruction: Instruction
    schedule: Schedule
    epilogue: Epilogue | None
    shape: tuple[int, ...]
    K: int
    arrays: Mapping[str, Array]
    promote_blocks: Mapping[str, int]
    kind: operands.Kind = field(default=operands.VALUES, repr=False)

    @property
    def d(self) -> str:
        """The result's format."""
        return self.held if self.epilogue is None else self.epilogue.out_format

    @property
    def held(self) -> str:
        """The accumulators' format."""
        return self.instruction.d if self.schedule.is_chain else self._outside

    @property
    def _outside(self) -> str:
        return _outside(self.instruction)

    @property
    def products(self) -> int:
        return math.prod(self.shape) * self.K

    def cut(self, where: tuple[slice, ...]) -> Product:
        """The product that gives one block of this one's result."""
        *lead, rows, columns = where
        cut = {}
        for name, x in self.arrays.items():
            own = lead[len(lead) - (x.ndim - 2) :]
            follows_rows, follows_columns = _FOLLOWS[name]
            index = [slice(None) if n == 1 else s for n, s in zip(x.shape[:-2], own, strict=True)]
            index.append(rows if follows_rows else slice(None))
            index.append(columns if follows_columns else slice(None))
            cut[name] = x[tuple(index)]
        shape = tuple(len(range(*s.indices(n))) for s, n in zip(where, self.shape, strict=True))
        epilogue = self.epilogue and self.epilogue.cut(rows, columns)
        return dataclasses.replace(self, epilogue=epilogue, shape=shape, arrays=cut)

    @formats.in_default_environment
    def compute(self, threads: int | None = None, progress: Progress | None = None) -> Array:
        """The result's codes. Arguments as for `matmul`."""
        accumulators = self.accumulators(threads, progress)
        if self.epilogue is None:
            return accumulators
        return self.finished(_as_values(accumulators, self.held))

    def finished(self, accumulators: Array) -> Array:
        """The codes of D that the epilogue makes of FP32 accumulators."""
        assert self.epilogue is not None
        M, N = self.shape[-2:]
        d = np.empty(self.shape, formats.get(self.d).code_dtype)
        c = self.arrays.get("c") if self.epilogue.beta is not None else None
        c = None if c is None else np.broadcast_to(c.view(np.float32), self.shape)
        step = max(1, _EPILOGUE_OUTPUTS // max(1, math.prod(self.shape[:-2]) * N))
        for start in range(0, M, step):
            rows = slice(start, start + step)
            part = self.epilogue.cut(rows, slice(None))
            d[..., rows, :] = part.apply(
                accumulators[..., rows, :], None if c is None else c[..., rows, :], self._ones
            )
        return d

    @property
    def _ones(self) -> bool:
        return self.instruction.model.nan == "ones"

    def accumulators(self, threads: int | None = None, progress: Progress | None = None) -> Array:
        """The codes of what the epilogue is given."""
        c = self.arrays.get("c")
        if self.epilogue is not None and self.epilogue.beta is not None:
            c = None
        parts = self.schedule.parts(self.K)
        if len(parts) == 1:
            return self._chains(parts[0], c, threads, progress)
        partial = self._partial(parts, threads, progress)
        with np.errstate(all="ignore"):
            total = _REDUCTIONS[self.schedule.reduce](partial)
            if c is not None:
                total = total + c.view(total.dtype)
        codes = total.view(formats.get(self._outside).code_dtype)
        codes[np.isnan(total)] = canonical_nan(self._outside, self._ones)
        return codes

    def _partial(
        self, parts: Iterable[range], threads: int | None, progress: Progress | None
    ) -> Iterator[Array]:
        """The parts of split-K, one after the other, as numbers."""
        held = self.instruction.d if self.schedule.promote_every is None else self._outside
        before = 0
        for tiles in parts:
            length = _length(tiles, self.schedule.split_tile, self.K)
            share = None if progress is None else _share(progress, self, before, length)
            yield _as_values(self._chains(tiles, None, threads, share), held)
            before += length

    def _chains(
        self, tiles: range, c: Array | None, threads: int | None, progress: Progress | None
    ) -> Array:
        """The codes of one part: its chains, promoted where the schedule says so."""
        i, s = self.instruction, self.schedule
        found: dict[str, Any] = {n: self.arrays[n] for n in _K_AXIS if n in self.arrays}
        if s.split_k > 1:
            for name, x in found.items():
                width = s.split_tile // (1 if name in "ab" else i.block or 1)
                found[name] = _along(x, _K_AXIS[name], tiles, width)
        promotion: dict[str, Any] = {}
        if s.promote_every is not None:
            promotion = {"promote": s.promote_every, "promote_fused": s.promote_fused}
            promotion |= self.promotion_scales(tiles)
        return engine.mma(
            i.model, c=c, a_format=i.a, b_format=i.b, c_format=i.c, k=i.k, scale_format=i.scale,
            block=i.block, threads=threads, progress=progress, **found, **promotion,
        )  # fmt: skip

    def promotion_scales(self, tiles: range) -> dict[str, Array]:
        """Promotion's scales of one part, one for each of its chains.

        Raises:
            ValueError: a chain runs across two blocks.
        """
        every = self.schedule.promote_every or 1
        tile = self.schedule.split_tile
        found = {}
        for name, per_k in self.promote_blocks.items():
            k = np.concatenate(
                [np.arange(t * tile, min((t + 1) * tile, self.K)) for t in tiles] or [np.arange(0)]
            )
            block = k // per_k
            if not np.array_equal(np.repeat(block[::every], every)[: len(block)], block):
                raise ValueError(
                    f"{name}: with {self.schedule}, a chain of {every} runs across blocks of "
                    f"{per_k} along k"
                )
            axis = -1 if name == "promote_scale_a" else -2
            found[name] = np.take(self.arrays[name], block[::every], axis=axis)
        return found


def _length(tiles: range, tile: int, K: int) -> int:
    return sum(min(tile, K - t * tile) for t in tiles)


def _along(x: Array, axis: int, tiles: range, width: int) -> Array:
    """Some tiles of ``width`` along an axis (-1 or -2), side by side."""
    if tiles.step == 1 or not tiles:
        pieces = [slice(tiles.start * width, tiles.stop * width)]
    else:
        pieces = [slice(t * width, (t + 1) * width) for t in tiles]
    found = [x[..., piece] if axis == -1 else x[..., piece, :] for piece in pieces]
    return found[0] if len(found) == 1 else np.concatenate(found, axis)


def _as_values(codes: Array, fmt: str) -> Array:
    """Codes of f64, f32 or f16 as numbers to go on with: float32 for f16."""
    values = codes.view(formats.get(fmt).dtype)
    return values if fmt == "f64" else values.astype(np.float32, copy=False)


def _serial(parts: Iterable[Array]) -> Array:
    return functools.reduce(np.add, parts)


def _pairwise(parts: Iterable[Array]) -> Array:
    p = list(parts)
    S, h = len(p), -(-len(p) // 2)
    slots = (p[i] + p[i + h] if i + h < S - 1 else p[i] for i in range(h))
    return functools.reduce(np.add, slots, p[S - 1])


_REDUCTIONS: Mapping[str, Callable[[Iterable[Array]], Array]] = {
    "serial": _serial,
    "pairwise": _pairwise,
}


def _share(progress: Progress, plan: Product, before: int, length: int) -> Progress:
    """A part's own progress as that of the whole product."""
    outputs = math.prod(plan.shape)

    def inner(done: int, total: int) -> None:
        progress(outputs * before + outputs * length * done // max(total, 1), plan.products)

    return inner


# --- tiles for executors --------------------------------------------------------------------------


class _Tile(NamedTuple):
    where: tuple[slice, ...]
    products: int


def _tiles(plan: Product) -> Iterator[_Tile]:
    """Blocks of the result, whole matrices of a batch first."""
    K = max(plan.K, 1)
    block = list(plan.shape)
    for axis in range(len(block) - 2):
        fits = _TILE_PRODUCTS // max(1, math.prod(block[axis + 1 :]) * K)
        block[axis] = min(max(fits, 1), block[axis])
    side = max(_TILE_SIDE, math.isqrt(_TILE_PRODUCTS // K))
    block[-2] = min(block[-2], side)
    block[-1] = min(block[-1], max(side, _TILE_PRODUCTS // (K * max(1, block[-2]))))
    starts = (range(0, n, max(1, step)) for n, step in zip(plan.shape, block, strict=True))
    for corner in _grid(*starts):
        where = tuple(
            slice(i, min(i + step, n)) for i, step, n in zip(corner, block, plan.shape, strict=True)
        )
        yield _Tile(where, math.prod(s.stop - s.start for s in where) * K)


def _computed(tile: Product, threads: int) -> Array:
    """What an executor runs."""
    return tile.compute(threads)


def _submitted(
    plan: Product, executor: Executor, threads: int | None, progress: Progress | None
) -> Array:
    """The result's codes, computed tile by tile by an executor."""
    if not isinstance(executor, Executor):
        raise TypeError(f"executor must be a concurrent.futures.Executor, not {executor!r}")
    plan = dataclasses.replace(plan, kind=operands.VALUES)  # no device goes along with a task
    threads = 1 if threads is None else threads
    d = np.empty(plan.shape, formats.get(plan.d).code_dtype)
    running: dict[Future[Array], _Tile] = {}
    fewest, most = _IN_FLIGHT
    done = 0

    def collect() -> None:
        nonlocal done
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            tile = running.pop(future)
            d[tile.where] = future.result()
            done += tile.products
            if progress is not None:
                progress(done, plan.products)

    try:
        for tile in _tiles(plan):
            part = plan.cut(tile.where)
            size = sum(x.nbytes for x in part.arrays.values())
            if len(running) >= max(fewest, min(most, _BYTES_IN_FLIGHT // max(1, size))):
                collect()
            running[executor.submit(_computed, part, threads)] = tile
        while running:
            collect()
    except BaseException:  # Ctrl-C too: what has not begun will not
        for future in running:
            future.cancel()
        raise
    return d
