"""Probes of plain sums: more than one rounding, machines that flush, many products."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bitmma
from bitmma.clfp import BlackBox, Report, probe
from bitmma.clfp.box import Box
from bitmma.clfp.evidence import predict
from bitmma.clfp.inputs import aimed, same, sparse
from bitmma.models import FDPA, RNE_FP16, RNE_FP32, Model, SumTree

f16, f32 = np.float16, np.float32
Sum = Callable[[list[Any], Any], Any]


def products(A: Any, B: Any) -> list[Any]:
    k = A.shape[-1]
    return [A[..., :, i, None].astype(f32) * B[..., None, i, :].astype(f32) for i in range(k)]


def run(total: Sum, k: int, a: str, d: str, inputs: int = 10_000) -> tuple[Report, BlackBox]:
    """A box of that sum of products, probed; what it found holds on inputs of another seed."""

    def fn(A: Any, B: Any, C: Any) -> Any:
        with np.errstate(all="ignore"):
            return total(products(A, B), C)

    spec = BlackBox(fn, 8, 8, k, a, c=d, batched=True)
    report = probe(spec, inputs=inputs)
    box = Box(spec)
    for model in [report.model] if report.model else []:
        for draw in (aimed, sparse):
            x = draw(box, model, 1500, 99)
            assert same(box.formats[3], predict(box, model, x), box.dot(x)).all()
    box.close()
    return report, spec


def blocks(p: list[Any]) -> list[Any]:
    """Sums of four, one after the other."""
    return [functools.reduce(np.add, p[s : s + 4]) for s in range(0, len(p), 4)]


def half_accumulator(p: list[Any], c: Any) -> Any:
    """float32 sums, each added in float32 and rounded to float16."""
    first, *rest = blocks(p)
    return functools.reduce(
        lambda acc, x: (acc.astype(f32) + x).astype(f16), rest, first.astype(f16)
    )


def half_sums(p: list[Any], c: Any) -> Any:
    """float32 sums rounded to float16 and added there."""
    return functools.reduce(np.add, [x.astype(f16) for x in blocks(p)])


def half_inside(p: list[Any], c: Any) -> Any:
    """float16 products and sums of four, added in float32."""
    return functools.reduce(np.add, [x.astype(f32) for x in blocks([x.astype(f16) for x in p])])


def test_a_float16_accumulator() -> None:
    report, _ = run(half_accumulator, 8, "f16", "f16")
    assert report.status == "verified"
    tree = "[([(((0 1) 2) 3)] (((4 5) 6) 7))]"
    assert report.model == SumTree(tree, rho2=RNE_FP16)


def test_float16_additions_of_float32_sums() -> None:
    report, _ = run(half_sums, 8, "f16", "f16")
    assert report.status == "verified"
    # Rounded to float32 before, as it might be, the same: twice the bits do not matter.
    assert report.model == SumTree("[[(((0 1) 2) 3)] [(((4 5) 6) 7)]]", rho2=RNE_FP16)


def test_float16_inside() -> None:
    report, _ = run(half_inside, 8, "f16", "f32")
    assert report.status == "verified"
    tree = "([[[0 1] 2] 3] [[[4 5] 6] 7])"
    assert report.model == SumTree(tree, RNE_FP32, RNE_FP16, rho2=RNE_FP16)


# --- machines that flush --------------------------------------------------------------------------


def flushed(x: Any) -> Any:
    return np.where(np.abs(x) < f32(2.0**-126), np.copysign(f32(0), x), x)


def flushing_chain(p: list[Any], c: Any) -> Any:
    """Sums in float32 that are flushed, from +0, converted to float16 with its subnormals."""
    zero = np.zeros_like(p[0])
    total = functools.reduce(lambda acc, x: flushed(acc + flushed(x)), p, zero)
    return total.astype(f16)


def flushing_blocks(p: list[Any], c: Any) -> Any:
    """Two blocks from +0 each, added to +0 one after the other: as AMX does tiles."""
    total = zero = np.zeros_like(p[0])
    for block in (p[:4], p[4:]):
        even, odd = (
            functools.reduce(lambda acc, x: flushed(acc + flushed(x)), lanes, zero)
            for lanes in (block[::2], block[1::2])
        )
        total = flushed(total + flushed(even + odd))
    return total


@pytest.mark.parametrize("total", [flushing_chain, flushing_blocks])
def test_sums_that_flush(total: Sum) -> None:
    d = "f16" if total is flushing_chain else "f32"
    report, _ = run(total, 8, "bf16", d)
    assert report.status == "verified", report
    model = report.model
    assert isinstance(model, SumTree) and model.flush_out != "no"
    if total is flushing_chain:
        assert (model.out, model.flush_last) == (RNE_FP16, "no")


@pytest.mark.parametrize("tiny", ["stored", "after", "before"])
@pytest.mark.parametrize("tree", [True, False])
def test_which_sums_are_flushed(tree: bool, tiny: Any) -> None:
    """As stored, or as x86 or Arm find underflows: told apart just below normal numbers."""
    model: Model = FDPA(4, 26, F_c=26, e_zero=None, rho=RNE_FP32, flush_out="zero", tiny=tiny)
    if tree:
        model = SumTree("((((0 c) 1) 2) 3)", flush_out="sign", tiny=tiny)

    def fn(A: Any, B: Any, C: Any) -> Any:
        return bitmma.mma(model, A, B, C, a="bf16")

    report = probe(BlackBox(fn, 8, 8, 4, "bf16", batched=True), inputs=20_000)
    assert report.status == "verified", report
    assert report.model == model
    assert next(x.reading for x in report.features if x.name == "tiny results") == tiny


def test_the_sign_of_a_flushed_sum() -> None:
    """Two machines alike but that one starts its last sum at +0: what was left open before."""
    x, y = (
        SumTree(f"({first} (2 3))", flush_out="sign", zero="start")
        for first in ("(0 1)", "((0 1))")
    )
    box = Box(BlackBox(lambda *x: x[2], 8, 8, 4, "bf16"))
    dots = sparse(box, x, 2000, 1)
    got = [predict(box, m, dots) for m in (x, y)]
    differ = got[0] != got[1]
    assert differ.any() and {int(v) for v in got[0][differ]} == {1 << 31}
    assert not got[1][differ].any()


# --- many products --------------------------------------------------------------------------------


def eight_accumulators(p: list[Any], c: Any) -> Any:
    lanes = [functools.reduce(np.add, p[i::8]) for i in range(8)]
    while len(lanes) > 1:
        lanes = [x + y for x, y in zip(lanes[::2], lanes[1::2], strict=True)]
    return lanes[0] + c


def test_512_products() -> None:
    report, _ = run(eight_accumulators, 512, "f32", "f32", inputs=1000)
    assert report.status == "verified", report.reason
    model = report.model
    assert isinstance(model, SumTree) and model.K == 512 and model.rho_product == RNE_FP32
    assert report.cost["dots"] < 10_000  # nowhere near all 131,328 pairs of 513 terms
