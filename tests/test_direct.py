"""Calls on NumPy values as they come (`engine.Plan.direct`) beside the way that looks at each.

Most calls need nothing but a look at a few fields of their arrays and are computed at once. What a
call gives or raises must not depend on it: each is made twice, once with that way closed.
"""

import collections
import dataclasses
import itertools
import threading
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import bitmma
from bitmma import _native, formats
from bitmma.engine import cpu
from bitmma.models import TFDPA
from bitmma.unit import Call

Arrays = dict[str, Any]

F16 = bitmma.instruction("Hopper", "m16n8k16.f32.f16.f16.f32")
BF16 = bitmma.instruction("Hopper", "m16n8k16.f32.bf16.bf16.f32")
MX = bitmma.instruction("Blackwell", "m128n8k32.kind::mxf8f6f4.block32.f32.e4m3.e4m3.ue8m0")
NAMES = ("A", "B", "C", "scale_a", "scale_b")


def one_of_each() -> list[bitmma.Instruction]:
    """Every model with every choice of formats, on the smallest instruction that has it."""
    found: dict[Any, bitmma.Instruction] = {}
    for i in bitmma.instructions():
        key = (i.model, i.a, i.b, i.c, i.scale)
        if key not in found or i.m * i.n * i.k < found[key].m * found[key].n * found[key].k:
            found[key] = i
    return list(found.values())


def call_of(i: bitmma.Instruction, vector: bool) -> Call:
    return i._vector_call if vector else i._matrix_call


def closed(call: Call) -> Call:
    """The same call without the direct way."""
    twin = dataclasses.replace(call)
    twin.__dict__["_direct"] = None
    return twin


def operands(i: bitmma.Instruction, vector: bool, lead: tuple[int, ...] = ()) -> Arrays:
    """Any codes of the formats, as values; scales where there are any."""
    rng = np.random.default_rng(i.m + i.k)
    call = call_of(i, vector)
    given: Arrays = {}
    for name, shape, fmt in zip(NAMES, call.shapes, (i.a, i.b, i.c, i.scale, i.scale), strict=True):
        if fmt is None:
            given[name] = None
            continue
        f = formats.get(fmt)
        codes = rng.integers(0, 1 << f.width, (*lead, *shape), np.uint64).astype(f.code_dtype)
        given[name] = codes.view(f.dtype)
    return given


def outcome(call: Call, given: Arrays) -> tuple[Any, ...]:
    try:
        d = call.run(*given.values())
    except (TypeError, ValueError) as error:
        return type(error), str(error)
    return type(d), d.dtype, d.shape, d.flags.c_contiguous, d.flags.writeable, d.tobytes()


@pytest.mark.parametrize("vector", [False, True], ids=["matrices", "vectors"])
def test_every_model_and_format(vector: bool) -> None:
    direct = collections.Counter[bool]()
    leads = itertools.cycle([(), (3,), (2, 1, 2)])
    for i in one_of_each():
        call = call_of(i, vector)
        given = operands(i, vector, next(leads))
        widths = [formats.get(f).width for f in (i.a, i.b, i.c, i.scale or i.c)]
        for C in (given["C"], None):
            given["C"] = C
            assert outcome(call, given) == outcome(closed(call), given), i
            asked = call._direct is not None and call._direct(*given.values()) is not None
            assert asked == (min(widths) >= 8), i
            direct[asked] += 1
    assert min(direct[True], direct[False]) >= 20, direct


class Sub(np.ndarray[Any, Any]):
    """Not quite NumPy's."""


def unaligned(x: Any) -> Any:
    memory = np.zeros(x.nbytes + 1, np.uint8)
    view = memory[1:].view(x.dtype).reshape(x.shape)
    view[...] = x
    return view


def read_only(x: Any) -> Any:
    x = x.copy()
    x.flags.writeable = False
    return x


def renewed_dtype(x: Any) -> Any:
    """Equal, but another object: as pickles may bring it."""
    return x.view(np.dtype(x.dtype.str, metadata={"from": "elsewhere"}))


#: What is done to one operand, and whether it stays one that is computed at once.
CHANGES: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "as it is": (lambda x: x, True),
    "Fortran": (np.asfortranarray, True),
    "backward": (lambda x: x[..., ::-1].copy()[..., ::-1], True),
    "spaced": (lambda x: np.repeat(x, 2, -1)[..., ::2], True),
    "one element": (lambda x: np.broadcast_to(x[..., :1, :1], x.shape), True),
    "read-only": (read_only, True),
    "a subclass": (lambda x: x.view(Sub), False),
    "a matrix": (lambda x: x.view(np.matrix) if x.ndim == 2 else x.view(Sub), False),
    "masked": (np.ma.masked_array, False),
    "unaligned": (unaligned, False),
    "swapped": (lambda x: x.byteswap().view(x.dtype.newbyteorder()), False),
    "another dtype object": (renewed_dtype, False),
    "unsigned codes": (lambda x: x.view(f"u{x.itemsize}"), False),
    "signed codes": (lambda x: x.view(f"i{x.itemsize}"), False),
    "void": (lambda x: x.view(f"V{x.itemsize}"), False),
    "float64": (lambda x: np.zeros(x.shape), False),
    "bool": (lambda x: np.zeros(x.shape, bool), False),
    "object": (lambda x: np.zeros(x.shape, object), False),
    "complex": (lambda x: np.zeros(x.shape, np.complex64), False),
    "another format": (lambda x: np.zeros(x.shape, ml_dtypes.bfloat16), False),
    "a list": (lambda x: x.tolist(), False),
    "a number": (lambda x: 1.0, False),
    "a scalar": (lambda x: x.reshape(-1)[0], False),
    "a memoryview": (lambda x: memoryview(x.tobytes()), False),
    "a row more": (lambda x: np.concatenate((x, x[..., :1, :]), -2), False),
    "a column less": (lambda x: x[..., :-1], False),
    "turned": (lambda x: x.swapaxes(-1, -2)[..., :8, :], False),
    "a leading 1": (lambda x: x[None], False),
    "no leading dimension": (lambda x: x[0], False),
    "without rows": (lambda x: x[..., :0, :], False),
    "without an element": (lambda x: x[..., :0], False),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["A", "B", "C"])
@pytest.mark.parametrize("lead", [(), (2,)], ids=["one", "two"])
def test_whatever_comes(change: str, name: str, lead: tuple[int, ...]) -> None:
    given = operands(F16, False, lead)
    alter, at_once = CHANGES[change]
    given[name] = alter(given[name])
    call = F16._matrix_call
    assert call._direct is not None
    assert (call._direct(*given.values()) is not None) == at_once
    assert outcome(call, given) == outcome(closed(call), given)


def test_what_comes_together() -> None:
    """Dimensions that broadcast, empty batches, scales missing or superfluous, no A, prepared B."""
    few, many = operands(F16, False), operands(F16, False, (2, 3))
    none = operands(F16, False, (0, 3))
    mx = operands(MX, False)
    cases: list[tuple[bitmma.Instruction, Arrays]] = [
        (F16, many | {"A": few["A"]}),
        (F16, many | {"B": few["B"]}),
        (F16, many | {"C": few["C"]}),
        (F16, many | {"A": many["A"][:1]}),
        (F16, many | {"A": many["A"].swapaxes(0, 1)}),
        (F16, none),
        (F16, few | {"A": None}),
        (F16, few | {"B": None}),
        (F16, few | {"B": bitmma.prepare(few["B"], F16)}),
        (F16, few | {"scale_a": mx["scale_a"]}),
        (F16, {n: x if x is None else x.view(f"u{x.itemsize}") for n, x in few.items()}),
        (MX, mx | {"scale_a": None}),
        (MX, mx | {"scale_b": None}),
        (MX, mx | {"scale_a": mx["scale_a"].view("u1")}),
        (MX, mx | {"scale_b": mx["scale_b"].T}),
        (BF16, few),
    ]
    for i, given in cases:
        call = i._matrix_call
        assert call._direct is not None and call._direct(*given.values()) is None
        assert outcome(call, given) == outcome(closed(call), given)


def test_thirty_leading_dimensions_at_once() -> None:
    for count, at_once in ((30, True), (31, False)):
        given = operands(F16, False)
        given = {n: x if x is None else x.reshape((1,) * count + x.shape) for n, x in given.items()}
        call = F16._matrix_call
        assert call._direct is not None
        assert (call._direct(*given.values()) is not None) == at_once
        assert outcome(call, given) == outcome(closed(call), given)


def test_many_products_are_shared_out_among_threads() -> None:
    call = F16._matrix_call
    most = (2 * cpu._PRODUCTS_PER_THREAD - 1) // (F16.m * F16.n * F16.k)
    for count, at_once in ((most, True), (most + 1, False)):
        given = {
            n: x if x is None else np.broadcast_to(x, (count, *x.shape))
            for n, x in operands(F16, False).items()
        }
        assert call._direct is not None
        assert (call._direct(*given.values()) is not None) == at_once


def test_results_are_new_and_operands_untouched() -> None:
    """Also where operands share their memory."""
    x = np.arange(256, dtype=np.float32).view(np.float16).reshape(32, 16)
    A, B, C = x[:16], x[16:, :8], x.view(np.float32).reshape(16, 16)[:, :8]
    before = x.tobytes()
    first, second = F16(A, B, C), F16(A, B, C)
    assert first.tobytes() == second.tobytes() and x.tobytes() == before
    assert not any(np.shares_memory(p, q) for p, q in ((first, second), (first, x)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_arrays_that_change_their_shape_meanwhile() -> None:
    """Another thread may replace an array's dimensions: they are read once."""
    given = operands(F16, False, (40,))
    want = outcome(F16._matrix_call, given)
    running = True

    def reshape() -> None:
        while running:
            for shape in ((40, 16, 16), (40, 1, 16, 16), (2, 20, 16, 16)):
                given["A"].shape = shape

    thread = threading.Thread(target=reshape)
    thread.start()
    try:
        got = [outcome(F16._matrix_call, given) for _ in range(200)]
    finally:
        running = False
        thread.join()
    assert all(x == want for x in got if x[0] is np.ndarray and x[2] == (40, 16, 8))


def test_the_native_face_checks_what_it_is_made_of() -> None:
    spec = cpu._spec(TFDPA(), "f16", "f16", "f32", 16, None, None)
    half, single = np.dtype("f2"), np.dtype("f4")
    good = (half, half, single, None, None, single)
    assert _native.Direct(spec, good, (16, 8), 5) and _native.Direct(spec, good, (), 5)
    bad: list[tuple[Any, ...]] = [
        (spec[:-1], good, (16, 8), 5),
        (spec.astype(np.int32), good, (16, 8), 5),
        (None, good, (16, 8), 5),
        (spec, good[:-1], (16, 8), 5),
        (spec, (*good[:-1], half), (16, 8), 5),
        (spec, (None, *good[1:]), (16, 8), 5),
        (spec, ("f2", *good[1:]), (16, 8), 5),
        (spec, (np.dtype("O"), *good[1:]), (16, 8), 5),
        (spec, list(good), (16, 8), 5),
        (spec, good, (16,), 5),
        (spec, good, (0, 8), 5),
        (spec, good, (16, "8"), 5),
        (spec, good, (16, 8), 1 << 80),
        (spec, good, (16, 8), 5, "sse9"),
    ]
    for arguments in bad:
        with pytest.raises((TypeError, ValueError, RuntimeError)):
            _native.Direct(*arguments)
