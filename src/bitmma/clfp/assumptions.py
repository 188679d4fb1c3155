"""Step 1: is the box a function of row, column and c at all?

Determinism: the same calls again, in another order, give the same bits. Independence: one row, one
column and one c spread over all positions give one output everywhere; and changing one row, column
or c changes nothing elsewhere.

Source: Xie et al., arXiv 2511.10909v2, section 3.1; the changes one at a time are added here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from bitmma.clfp.box import Box, Codes, Dots
from bitmma.clfp.inputs import aimed, neutral, same
from bitmma.clfp.report import Counterexample

__all__ = ["NoFunction", "ask_again", "check", "example"]

_REPEATS = 20
_POSITIONS = 32


class NoFunction(Exception):
    """The box's output depends on more than row, column and c; with the calls that show it."""

    def __init__(self, reason: str, evidence: list[Counterexample]) -> None:
        super().__init__(reason)
        self.reason, self.evidence = reason, evidence


def example(x: Dots, i: int, got: Any, other: Any, claim: str) -> Counterexample:
    """Dot product i with what was returned and what it should have been."""

    def row(codes: Codes | None) -> tuple[int, ...]:
        return () if codes is None else tuple(codes[i].tolist())

    return Counterexample(
        row(x.a), row(x.b), int(x.c[i]), int(got), int(other), claim, row(x.scale_a), row(x.scale_b)
    )


def check(box: Box, outputs: int, seed: int) -> str:
    """Raises NoFunction where an assumption fails; says how much was tried."""
    found = [_determinism(box, outputs, seed), _positions(box, outputs, seed)]
    return "; ".join([*found, _one_at_a_time(box, seed)])


def ask_again(box: Box, x: Dots, before: Codes, times: int = 8) -> None:
    """Raises NoFunction where the box now answers otherwise than before."""
    for _ in range(times):
        again = box.dot(x)
        changed = np.flatnonzero(~same(box.formats[3], again, before))
        if len(changed):
            i = int(changed[0])
            raise NoFunction(
                "the box is not deterministic: the same dot product gave different bits",
                [example(x, i, before[i], again[i], "the same dot product, asked again")],
            )


def _some(box: Box, calls: int, seed: int) -> Dots:
    """Whole calls of ordinary numbers and of close exponents, where every rounding shows."""
    count = max(1, calls) * min(box.spec.m, box.spec.n)
    return box.tiles(aimed(box, neutral(box), count, seed, ("normal", "narrow", "cancel")))


def _fail(reason: str, calls: Dots, where: Codes, got: Codes, other: Codes, claim: str) -> None:
    """Raises with the first places in ``where`` (calls, m, n), if there are any."""
    places = np.argwhere(where)
    if not len(places):
        return
    dots = Box.pick(calls, places[:3])
    evidence = [
        example(dots, row, got[tuple(place)], other[tuple(place)], claim)
        for row, place in enumerate(places[:3])
    ]
    _, i, j = map(int, places[0])
    raise NoFunction(reason.format(i=i, j=j), evidence)


def _determinism(box: Box, outputs: int, seed: int) -> str:
    calls = _some(box, min(1000, outputs // 100) // (box.spec.m * box.spec.n) + 2, seed)
    first = box.mma(calls)
    rng = np.random.default_rng(seed)
    for _ in range(_REPEATS):
        order = rng.permutation(len(first))
        again = np.empty_like(first)
        again[order] = box.mma(calls[order])
        _fail(
            "the box is not deterministic: output ({i}, {j}) of the same call differed",
            calls, ~same(box.formats[3], first, again), first, again, "the same call, asked again",
        )  # fmt: skip
    return f"{first.size} outputs asked {_REPEATS + 1} times"


def _positions(box: Box, outputs: int, seed: int) -> str:
    m, n, k = box.spec.m, box.spec.n, box.spec.k
    trials = max(4, min(outputs // 100, 1000, (1 << 23) // (m * n * k)))
    x = aimed(box, neutral(box), trials, seed + 1, ("normal", "narrow", "cancel", "special"))

    def spread(codes: Codes | None, copies: int, axis: int) -> Codes | None:
        return None if codes is None else np.repeat(np.expand_dims(codes, axis), copies, axis)

    a, b = spread(x.a, m, 1), spread(x.b, n, 2)
    assert a is not None and b is not None
    c = np.broadcast_to(x.c[:, None, None], (trials, m, n))
    calls = Dots(a, b, c, spread(x.scale_a, m, 1), spread(x.scale_b, n, 2))
    d = box.mma(calls)
    corner = np.broadcast_to(d[:, :1, :1], d.shape)
    _fail(
        "outputs depend on their position: ({i}, {j}) differs from (0, 0) though row, column and c "
        "are the same",
        calls, ~same(box.formats[3], d, corner), d, corner, "the same dot product at (0, 0)",
    )  # fmt: skip
    return f"{trials} dot products at all {m * n} positions"


def _changes(box: Box, rng: np.random.Generator) -> Iterator[tuple[str, Any, Codes]]:
    """What is changed: its name, an index into the operand, and the outputs that may change."""
    m, n = box.spec.m, box.spec.n

    def some(count: int) -> list[int]:
        if count <= _POSITIONS:
            return list(range(count))
        return [0, count - 1, *rng.choice(count, _POSITIONS - 2, replace=False).tolist()]

    for i in some(m):
        yield "a", i, np.arange(m)[:, None].repeat(n, 1) == i
    for j in some(n):
        yield "b", j, np.arange(n)[None].repeat(m, 0) == j
    for at in some(m * n):
        yield "c", at, np.arange(m * n).reshape(m, n) == at


def _one_at_a_time(box: Box, seed: int) -> str:
    base = _some(box, 2, seed + 2)
    other = base[1:2]
    base = base[:1]
    before = box.mma(base)
    changes = list(_changes(box, np.random.default_rng(seed)))
    calls = base.each(lambda x: np.repeat(x, len(changes), axis=0))
    for t, (operand, at, _) in enumerate(changes):
        match operand:
            case "a":
                calls.a[t, at] = other.a[0, at]
                if calls.scale_a is not None and other.scale_a is not None:
                    calls.scale_a[t, at] = other.scale_a[0, at]
            case "b":
                calls.b[t, :, at] = other.b[0, :, at]
                if calls.scale_b is not None and other.scale_b is not None:
                    calls.scale_b[t, :, at] = other.scale_b[0, :, at]
            case "c":
                calls.c[t].flat[at] = other.c[0].flat[at]
    after = box.mma(calls)
    was = np.broadcast_to(before, after.shape)
    may = np.stack([outputs for *_, outputs in changes])
    moved = ~same(box.formats[3], after, was) & ~may
    if moved.any():
        t = int(np.argwhere(moved)[0][0])
        what = {"a": "row", "b": "column", "c": "c"}[changes[t][0]]
        _fail(
            f"outputs are not independent: a change of {what} {changes[t][1]} moved output "
            "({i}, {j})",
            calls, moved, after, was, "before that change",
        )  # fmt: skip
    return f"{len(changes)} changes of one row, column or c"
