#!/usr/bin/env python3
"""Wild calls of the native module: each must return or raise, never crash or write elsewhere.

    python scripts/fuzz_native.py --seconds 600 --seed 7
    python scripts/fuzz_native.py --seed 7 --only 1234       # one call again, in this process

Calls `bitmma._native.mma`, `Direct` and `has_kernel` with valid, mutated and truncated specs and
with arrays of any dtype, shape, strides, alignment and writability. A call may raise TypeError,
ValueError or MemoryError and must then have left the output alone; it may never touch a byte that
is not the output's. Calls run in child processes, so that a crash is reported with the number of
its call; under scripts/sanitize.sh reads beyond an array are found too.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from fuzz_kernels import Rng, chance, draw_codes, draw_scales, draw_unit, pick

from bitmma import _native, formats

CALLS_OF_A_CHILD = 3_000
SECONDS_OF_A_CHILD = 600  # many times what they take, sanitizers or not
WORK = 1 << 23  # products of one call, filled-up ones included
MEMORY = 4 << 30  # address space of a child
SPEC_HEAD = 12  # fields before part_of, see read_spec in src/native/module.cpp
PERIOD, FORMAT_FIELDS = 10, 7

# fmt: off
WILD_INTS = (
    0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 127, 255, 4095, 4096, 4097, 1 << 30,
    1 << 31, 1 << 32, 1 << 62, (1 << 63) - 1, -1, -2, -133, -200_000, -(1 << 63),
)
NOT_ARRAYS = (
    None, 0, 1.5, "a", b"bytes", [1, 2], (), {}, object(), memoryview(b"12345678"), np.float32(1),
)
DTYPES = (
    "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", ">u2", ">u4", "?", "c8", "V4",
    "S3", "U2", "m8", "O",
)
PLACES = (
    "Fortran", "backward", "gaps", "inside", "unaligned", "read-only", "broadcast", "memoryview",
)
# fmt: on


# --- specs ----------------------------------------------------------------------------------------


def draw_spec(rng: Rng, spec: list[int]) -> list[int]:
    """The fields of a spec: as they are, or a few of them changed, or too few, or too many."""
    match pick(rng, ("valid",) * 5 + ("changed",) * 4 + ("short", "long", "noise")):
        case "changed":
            for _ in range(int(rng.integers(1, 4))):
                i = int(rng.integers(len(spec)))
                small = int(rng.integers(-2, 70))
                spec[i] = pick(rng, (*WILD_INTS, small, spec[i] + 1, spec[i] - 1, spec[i] * 2))
                spec[i] = min(max(spec[i], -(1 << 63)), (1 << 63) - 1)
        case "short":
            del spec[int(rng.integers(len(spec))) :]
        case "long":
            spec += [int(pick(rng, WILD_INTS)) for _ in range(int(rng.integers(1, 9)))]
        case "noise":
            spec = rng.integers(-3, 40, int(rng.integers(0, 80))).tolist()
    return spec


@dataclass(frozen=True)
class Meaning:
    """What read_spec makes of a spec, as far as it tells which arrays go with it."""

    widths: tuple[int, ...]  # of a, b, c, d and the scales
    group: int
    step: int
    block: int


def meaning(spec: Sequence[int]) -> Meaning | None:
    at = SPEC_HEAD + (spec[PERIOD] if len(spec) > PERIOD else 1 << 62)
    if at < SPEC_HEAD or at + 4 + 4 * FORMAT_FIELDS > len(spec):
        return None
    _, _, step, block = spec[at : at + 4]
    return Meaning(tuple(spec[at + 4 :: FORMAT_FIELDS][:5]), spec[9], step, block)


def too_much_work(m: Meaning, items: int, M: int, N: int, K: int) -> bool:
    """Valid calls of any size are allowed and would only take long."""
    if not (1 <= m.group <= 4096 and 1 <= m.step <= 1 << 30):
        return False  # refused
    padded = -(-m.step // m.group) * m.group
    total = max(1, -(-K // m.step)) * padded
    return total < 1 << 61 and (total * (M + 16) * (N + 16) * items > WORK or padded > 1 << 15)


# --- arrays ---------------------------------------------------------------------------------------


@dataclass
class Call:
    """The arguments of one call, and what of it may change."""

    arguments: list[Any]
    keywords: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def draw_promotion(
    rng: Rng, m: Meaning, operands: list[Any], keywords: dict[str, Any], notes: list[str]
) -> None:
    """Keywords of a promoted product, and C and D as it needs them; or wild ones."""
    step = max(1, m.step)
    fitting = math.lcm(step, max(1, m.block)) * int(pick(rng, (1, 1, 2, 3)))
    every = pick(rng, (fitting,) * 8 + WILD_INTS)
    keywords["promote"] = every if -(1 << 63) <= every < 1 << 63 else 1
    keywords["promote_fused"] = chance(rng, 0.5)
    a, b, c, d = operands[:4]
    if not all(isinstance(x, np.ndarray) and x.ndim >= 2 for x in (a, b, d)) or every < 1:
        return
    (M, K), N = a.shape[-2:], b.shape[-1]
    parts = -(-K // every)
    lead = d.shape[:-2]
    scales = math.prod(lead) * max(M, N) * parts  # many though d be empty
    if max(M, N, K) >= 1 << 31 or max(scales, parts, d.size) > 1 << 20:
        return
    dtype = np.dtype("u8" if d.dtype.itemsize == 8 else "u4")
    if chance(rng, 0.9):
        operands[3] = place(rng, np.zeros((*lead, M, N), dtype), notes)
        if c is not None:
            operands[2] = rng.integers(0, 256, (*lead, M, N)).astype(dtype)
    for name, (rows, cols) in (("promote_scale_a", (M, parts)), ("promote_scale_b", (parts, N))):
        if chance(rng, 0.5):
            codes = draw_codes(rng, "f32", (rows, cols))
            x = place(rng, np.broadcast_to(codes, (*lead, rows, cols)).copy(), notes)
            if chance(rng, 0.1) and isinstance(x, np.ndarray):
                x = distort(rng, x, notes)
            keywords[name] = x


def unsigned(width: int) -> str:
    return f"u{8 if width > 32 else 4 if width > 16 else 2 if width > 8 else 1}"


def place(rng: Rng, codes: Any, notes: list[str]) -> Any:
    """The same array somewhere else: in any order, with gaps, unaligned, read-only, broadcast."""
    kind = pick(rng, ("as it is",) * 6 + PLACES)
    notes.append(kind)
    match kind:
        case "Fortran":
            return np.asfortranarray(codes)
        case "backward":
            back = (slice(None, None, -1),) * codes.ndim
            return np.ascontiguousarray(codes[back])[back]
        case "gaps" | "inside":
            step = [1] * (codes.ndim - 2) + [2 if kind == "gaps" else 1] * 2
            room = [n * by + 2 for n, by in zip(codes.shape, step, strict=True)]
            if math.prod(room) > 1 << 24:  # of a few elements with many or long dimensions
                return codes
            big = rng.integers(0, 255, (*room, codes.itemsize), dtype=np.uint8)
            big = big.reshape(*room[:-1], -1).view(codes.dtype)
            ends = zip(codes.shape, step, strict=True)
            view = big[tuple(slice(1, 1 + n * by, by) for n, by in ends)]
            view[...] = codes
            return view
        case "unaligned":
            memory = np.zeros(codes.nbytes + 8, np.uint8)
            by = int(rng.integers(0, 8))
            view = memory[by : by + codes.nbytes].view(codes.dtype).reshape(codes.shape)
            view[...] = codes
            return view
        case "read-only":
            codes = codes.copy()
            codes.flags.writeable = False
        case "broadcast" if codes.size:
            first = codes[(slice(0, 1),) * codes.ndim].copy()
            return np.lib.stride_tricks.as_strided(first, codes.shape, (0,) * codes.ndim)
        case "memoryview" if codes.size and codes.flags.c_contiguous:
            return memoryview(codes)
    return codes


def distort(rng: Rng, x: Any, notes: list[str]) -> Any:
    """Something else than the array that the call needs."""
    kind = pick(rng, ("dtype", "shape", "shape", "dimensions", "none", "thing", "huge"))
    notes.append(kind)
    match kind:
        case "dtype":
            return np.zeros(x.shape, np.dtype(pick(rng, DTYPES)))
        case "shape":
            shape = [max(0, n + int(rng.integers(-1, 2))) for n in x.shape]
            if chance(rng, 0.2) and shape:
                shape[int(rng.integers(len(shape)))] = 0
            return np.zeros(shape, x.dtype)
        case "dimensions":
            if x.ndim and chance(rng, 0.5):
                return np.zeros(x.shape[1:], x.dtype)
            return np.zeros((1,) * int(rng.integers(1, 40)) + x.shape, x.dtype)
        case "none":
            return None
        case "thing":
            return pick(rng, NOT_ARRAYS)
    shape = list(x.shape)
    if shape:
        shape[int(rng.integers(len(shape)))] = int(pick(rng, (1 << 31, 1 << 40, 1 << 58)))
    return repeated(x.dtype, shape)


def repeated(dtype: Any, shape: Sequence[int]) -> Any:
    """One element that claims to be a whole array; just the element if that is beyond NumPy."""
    element = np.zeros(1, dtype)
    try:
        return np.lib.stride_tricks.as_strided(element, shape, (0,) * len(shape))
    except ValueError:
        return element


def draw_call(rng: Rng) -> Call | None:
    unit = draw_unit(rng)
    spec = draw_spec(rng, unit.spec.tolist())
    m = meaning(spec)
    known = (unit.a, unit.b, unit.c, unit.model.d, unit.scale or "ue8m0")
    widths = [formats.get(f).width for f in known]
    if m is None:
        m = Meaning(tuple(widths), unit.model.group, unit.k, unit.block or 0)
    M, N = (int(pick(rng, (0, 1, 2, 3, 17, 40, 90))) for _ in range(2))
    if chance(rng, 0.3):  # few rows and whole tiles: kernels read B's codes where they lie
        M, N = int(rng.integers(1, 9)), int(pick(rng, (32, 64, 128, 131)))
    K = int(pick(rng, (0, 1, unit.k, unit.k, unit.k + 1, 2 * unit.k, 100)))
    if chance(rng, 0.02):
        K = 1 << 61  # as a repeated element; read_spec's widths still hold
    lead = tuple(int(pick(rng, (0, 1, 2, 3))) for _ in range(int(pick(rng, (0, 0, 0, 1, 2, 5)))))
    if len(lead) > 2:
        M, N = min(M, 3), min(N, 3)
    if too_much_work(m, math.prod(lead), M, N, K):
        return None
    blocks = -(-K // m.block) if 0 < m.block <= 1 << 30 else 0
    shapes = ((M, K), (K, N), (M, N), (M, N), (M, blocks), (blocks, N))
    of = (0, 1, 2, 3, 4, 4)  # whose format each array has
    arrays: list[Any] = []
    notes: list[str] = []
    for position, ((rows, cols), o) in enumerate(zip(shapes, of, strict=True)):
        width = m.widths[o] if o < len(m.widths) else widths[o]
        dtype = np.dtype(unsigned(width))
        if max(rows, cols) >= 1 << 31:
            x = repeated(dtype, (*lead, rows, cols))
        else:
            draw = draw_scales if o == 4 else draw_codes
            flat = draw(rng, known[o], (rows, cols)).astype(dtype)
            if width > 8 or chance(rng, 0.1):  # bits that the format does not have
                flat |= rng.integers(0, 256, flat.shape).astype(dtype)
            x = np.broadcast_to(flat, (*lead, rows, cols))
            if position == 3 or not lead or chance(rng, 0.5):
                x = x.copy()
            x = place(rng, x, notes)
        arrays.append(x)
    scaled = m.block != 0
    a, b, c, d, scale_a, scale_b = arrays
    c = c if chance(rng, 0.7) else None
    scale_a, scale_b = (x if scaled else None for x in (scale_a, scale_b))
    operands = [a, b, c, d, scale_a, scale_b]
    if chance(rng, 0.3):
        i = int(rng.integers(6))
        if isinstance(operands[i], np.ndarray) and max(operands[i].shape) < 1 << 31:
            operands[i] = distort(rng, operands[i], notes)
    if chance(rng, 0.05) and all(isinstance(x, np.ndarray) for x in operands[:4]):
        operands[3] = operands[int(rng.integers(3))]  # the output is an operand
        notes.append("overlap")
    given: Any = np.array(spec, np.int64)
    match pick(rng, ("spec",) * 20 + ("dtype", "shape", "spaced", "read-only", "list")):
        case "dtype":
            given = given.astype(pick(rng, ("i4", "f8", "u8", ">i8")))
        case "shape":
            given = given[None]
        case "spaced":
            given = np.repeat(given, 2)[::2]
        case "read-only":
            given.flags.writeable = False
        case "list":
            given = spec
    keywords: dict[str, Any] = {}
    if chance(rng, 0.7):
        keywords["isa"] = pick(rng, _native.isas())
    if chance(rng, 0.05):
        keywords["isa"] = pick(rng, ("", "sse9", "AVX2", "\0", "x" * 10_000, "\ud800", None, 3))
    if chance(rng, 0.3):
        draw_promotion(rng, m, operands, keywords, notes)
    if chance(rng, 0.1):
        keywords["watch"] = np.array([pick(rng, (0, 0, 0, 1)), int(pick(rng, WILD_INTS))], np.int64)
    if chance(rng, 0.02):
        keywords["watch"] = pick(rng, (*NOT_ARRAYS, np.zeros(1, "i8"), np.zeros(2, "i4")))
    if chance(rng, 0.3):
        keywords["exact"] = pick(rng, (True, False, True, False, None, 1, "yes"))
    arguments = [given, *operands]
    if chance(rng, 0.01):
        del arguments[int(rng.integers(len(arguments)))]
    return Call(arguments, keywords, notes)


# --- one call, watched ----------------------------------------------------------------------------


def memory_of(x: Any) -> Any:
    """The whole memory that an array is a view of, as bytes; None where that is no small array."""
    while isinstance(x, np.ndarray) and x.base is not None:
        x = x.base
    if isinstance(x, memoryview):
        x = np.asarray(x)
        return memory_of(x) if x.base is not None and not isinstance(x.base, memoryview) else x
    if not isinstance(x, np.ndarray) or x.dtype.hasobject or not x.flags.c_contiguous:
        return None
    return x


def snapshot(x: Any) -> bytes | None:
    memory = memory_of(x)
    return None if memory is None else memory.tobytes()


def perform(call: Call, outcomes: Counter[str]) -> None:
    """Make the call; AssertionError if it changed what it must not."""
    output = call.arguments[4] if len(call.arguments) == 7 else None
    writable = isinstance(output, np.ndarray) and output.flags.writeable
    aliased = writable and any(
        isinstance(x, np.ndarray) and np.may_share_memory(x, output)
        for i, x in enumerate(call.arguments)
        if i != 4
    )
    before = [snapshot(x) for x in call.arguments]
    raised: Exception | None = None
    try:
        _native.mma(*call.arguments, **call.keywords)
    except (TypeError, ValueError, MemoryError) as error:
        raised = error
    outcomes["returned" if raised is None else type(raised).__name__] += 1
    if isinstance(raised, MemoryError):
        return
    for i, (x, old) in enumerate(zip(call.arguments, before, strict=True)):
        if old is None or (aliased and raised is None):
            continue
        changed = snapshot(x) != old
        if i == 4 and raised is None and writable:
            # What is the output's may differ; all around it must be as it was.
            memory = memory_of(x)
            now = memory.tobytes()
            mask = _owned(x, memory)
            outside = ~mask
            a = np.frombuffer(old, np.uint8)[outside]
            b = np.frombuffer(now, np.uint8)[outside]
            assert np.array_equal(a, b), "bytes around the output changed"
        else:
            assert not changed or (i == 4 and raised is None), f"argument {i} changed ({raised!r})"


def perform_directly(rng: Rng, call: Call, outcomes: Counter[str]) -> None:
    """The same arrays by way of `Direct`, which may change none of them."""
    if len(call.arguments) != 7:
        return
    spec, a, b, c, d, scale_a, scale_b = call.arguments
    operands = [a, b, c, scale_a, scale_b]
    dtypes: list[Any] = [x.dtype if isinstance(x, np.ndarray) else None for x in (*operands, d)]
    if c is None and isinstance(d, np.ndarray):
        dtypes[2] = d.dtype  # as wide as C would be, or not
    if chance(rng, 0.1):
        dtypes[int(rng.integers(6))] = pick(rng, (None, "f2", *map(np.dtype, DTYPES)))
    outputs = tuple(d.shape[-2:]) if isinstance(d, np.ndarray) else (16, 8)
    if chance(rng, 0.3):
        outputs, ends = (), ((0, slice(None)), (slice(None), 0), (0, 0))
        for i, end in zip((0, 1, 2, 3, 4), (*ends, *ends[:2]), strict=True):
            x = operands[i]
            if isinstance(x, np.ndarray) and x.ndim >= 2 and min(x.shape[-2:]) > 0:
                operands[i] = x[(Ellipsis, *end)]
    if chance(rng, 0.05):
        outputs = pick(rng, ((1,), (0, 0), (1 << 40, 1), (-1, 2), ("a", 1), (1, 2, 3)))
    before = [snapshot(x) for x in operands]
    most = int(pick(rng, (1, 100, 1 << 40, 0, -1)))
    try:
        d = _native.Direct(spec, tuple(dtypes), outputs, most).compute(*operands)
        outcomes["None at once" if d is None else "at once"] += 1
    except (TypeError, ValueError, RuntimeError, MemoryError) as error:
        outcomes[f"{type(error).__name__} at once"] += 1
    for i, (x, old) in enumerate(zip(operands, before, strict=True)):
        assert old is None or snapshot(x) == old, f"operand {i} changed"


def _owned(x: np.ndarray, memory: np.ndarray) -> Any:
    """Which bytes of ``memory`` are elements of ``x``."""
    mask = np.zeros(memory.nbytes, bool)
    offset = x.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    if not x.size:
        return mask
    starts = np.full(1, offset)
    for n, stride in zip(x.shape, x.strides, strict=True):
        starts = np.unique(starts[:, None] + np.arange(n if stride else 1) * stride)
    for byte in range(x.itemsize):
        mask[starts + byte] = True
    return mask


def one(seed: int, index: int, outcomes: Counter[str], *, verbose: bool = False) -> None:
    rng = np.random.default_rng((seed, index))
    call = draw_call(rng)
    if call is None:
        outcomes["skipped: too long"] += 1
        return
    if verbose:
        print(describe(call), flush=True)
    perform(call, outcomes)
    perform_directly(rng, call, outcomes)
    spec = call.arguments[0]
    with contextlib.suppress(TypeError, ValueError):
        _native.has_kernel(spec, call.keywords.get("isa", ""))


def describe(call: Call) -> str:
    def text(x: Any) -> str:
        if isinstance(x, np.ndarray) and x.ndim != 1:
            return f"{x.dtype} {x.shape} strides {x.strides} writable {x.flags.writeable}"
        return repr(x.tolist() if isinstance(x, np.ndarray) else x)[:2000]

    names = ("spec", "a", "b", "c", "d", "scale_a", "scale_b")
    lines = [f"  {name}: {text(x)}" for name, x in zip(names, call.arguments, strict=False)]
    return "\n".join([f"{call.keywords} ({', '.join(call.notes)})"[:2000], *lines])


# --- processes ------------------------------------------------------------------------------------


def child(seed: int, first: int, calls: int, end: float, progress: Path) -> int:
    """Calls first, first + 1, ...; ``progress`` always holds the number of the current one."""
    faulthandler.enable()
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        if "libasan" not in Path("/proc/self/maps").read_text():
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    outcomes: Counter[str] = Counter()
    file = os.open(progress, os.O_WRONLY)
    index = first
    while index < first + calls and time.time() < end:
        os.pwrite(file, b"%020d" % index, 0)
        one(seed, index, outcomes)
        index += 1
    print(json.dumps(outcomes))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--count", type=int, help="so many calls, however long they take")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of the one call to make")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child:
        first, calls, end, progress = options.child
        return child(options.seed, int(first), int(calls), float(end), Path(progress))
    if options.only is not None:
        one(options.seed, options.only, Counter(), verbose=True)
        return 0
    return _parent(options.seed, options.seconds, options.count)


def _parent(seed: int, seconds: float, count: int | None) -> int:
    end = time.time() + (seconds if count is None else SECONDS_OF_A_CHILD * (1 + count))
    totals: Counter[str] = Counter()
    first = 0
    with tempfile.TemporaryDirectory() as folder:
        progress = Path(folder) / "call"
        while time.time() < end if count is None else first < count:
            progress.write_text("")
            calls = CALLS_OF_A_CHILD if count is None else min(CALLS_OF_A_CHILD, count - first)
            arguments = ["--child", str(first), str(calls), str(end), str(progress)]
            command = [sys.executable, __file__, "--seed", str(seed), *arguments]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=SECONDS_OF_A_CHILD
                )
                code, output, errors = done.returncode, done.stdout, done.stderr
            except subprocess.TimeoutExpired as late:
                code, output, errors = None, "", str(late)
            if code != 0:
                index = int(progress.read_text() or first)
                how = "HUNG" if code is None else f"SIGNAL {-code}" if code < 0 else f"EXIT {code}"
                print(
                    f"{how} in call {index} of seed {seed}\n{errors[:3000]}\n...\n{errors[-1500:]}"
                )
                print(f"again: {sys.argv[0]} --seed {seed} --only {index}")
                return 1
            totals.update(json.loads(output))
            first += calls
    print(f"{sum(totals.values())} calls, no crash: {dict(totals.most_common())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
