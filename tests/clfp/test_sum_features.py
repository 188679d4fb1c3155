"""What is said of sums of two terms at a time, on sums whose arithmetic is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bitmma import engine, formats
from bitmma.clfp.box import BlackBox, Box
from bitmma.clfp.features import ALIGNMENT, PROBES, Bench
from bitmma.clfp.loop import probe
from bitmma.clfp.sum_features import SUM_PROBES
from bitmma.clfp.tree import binary, read_tree
from bitmma.models import RNE_FP32, RNE_FP64, Conversion, SumTree

BF16 = Conversion("RNE", "bf16")


def box(model: SumTree, k: int, a: str, c: str) -> BlackBox:
    codes = [formats.get(x).code_dtype for x in (a, a, c)]

    def fn(*operands: Any) -> Any:
        given = [x.view(t) for x, t in zip(operands, codes, strict=True)]
        out = engine.mma(model, *given, a_format=a, b_format=a, c_format=c)
        return out.view(formats.get(model.d).dtype)

    return BlackBox(fn, 4, 4, k, a, c=c, d=model.d, batched=True)


def readings(spec: BlackBox) -> dict[str, str]:
    b = Box(spec)
    tree = read_tree(b).tree
    assert binary(tree)
    bench = Bench(b, tree)
    found = {ask.name: ask(bench) for ask in SUM_PROBES}
    b.close()
    assert all(f.evidence or f.reading == "not fed" for f in found.values())
    return {name: f.reading for name, f in found.items()}


CHAIN = "((((c 0) 1) 2) 3)"
BRANCHES = "((((0) 1) ((2) 3)) c)"


@pytest.mark.parametrize("mode", ["RNE", "RZ", "RD", "RU", "RA", "RNA"])
def test_roundings_of_additions(mode: str) -> None:
    said = readings(box(SumTree(CHAIN, Conversion(mode, "f32")), 4, "f16", "f32"))
    assert said["rounding of additions"] == mode
    assert said["precision of additions"] == "24 bits, f32"


F32, F64 = "24 bits, f32", "53 bits, f64"


@pytest.mark.parametrize(
    ("model", "a", "c", "want"),
    [
        (SumTree(CHAIN), "f32", "f32", (F32, "fused (FMA)", "first", "4 additions", "kept")),
        (
            SumTree(CHAIN, rho_product=RNE_FP32, flush_out="sign"), "f32", "f32",
            (F32, "rounded first", "first", "4 additions", "flushed"),
        ),
        (
            SumTree(BRANCHES), "f32", "f32",
            (F32, "fused (FMA), rounded first in p0, p2", "last", "3 additions", "kept"),
        ),
        (
            SumTree("(((0 1) c) (2 3))", RNE_FP64, RNE_FP32, RNE_FP32), "f32", "f32",
            (F64, "rounded first", "in between", "3 additions", "not fed"),
        ),
        (
            SumTree("(((0 1) 2) 3)", out=BF16), "bf16", "bf16",
            (F32, "exact", "ignored", "3 additions", "kept"),
        ),
        (
            SumTree(CHAIN, RNE_FP64), "f64", "f64",
            (F64, "fused (FMA)", "first", "4 additions", "kept"),
        ),
        (
            SumTree("(0 c)"), "f32", "f32",
            ("not fed", "fused (FMA)", "last", "1 addition", "not fed"),
        ),
    ],
)  # fmt: skip
def test_what_an_analyst_asks(model: SumTree, a: str, c: str, want: tuple[str, ...]) -> None:
    said = readings(box(model, model.K, a, c))
    names = ("precision of additions", "products", "place of c", "depth", "subnormal sums")
    assert tuple(said[name] for name in names) == want


def test_additions_of_two_precisions() -> None:
    model = SumTree("([0 1] [2 3])", RNE_FP32, RNE_FP32, rho2=Conversion("RNE", "f16"), out=BF16)
    said = readings(box(model, 4, "f16", "bf16"))
    assert said["precision of additions"].startswith("11 bits, f16")


@pytest.mark.parametrize(
    ("model", "a", "want"),
    [
        (SumTree("(((0 1) 2) 3)", out=BF16), "bf16", ("RNE to bf16", "twice")),
        (SumTree("[(0 1) 2]", rho2=BF16), "bf16", ("RNE to bf16", "once")),
        (SumTree("(((0 1) 2) 3)", out=Conversion("RZ", "f16")), "f16", ("RZ to f16", "")),
        (SumTree("(((0 1) 2) 3)"), "f16", ("the last sum", "not rounded again")),
    ],
)
def test_the_output(model: SumTree, a: str, want: tuple[str, str]) -> None:
    b = Box(box(model, model.K, a, model.d))
    bench = Bench(b, read_tree(b).tree)
    found = [ask(bench) for ask in SUM_PROBES][-1]
    b.close()
    assert (found.name, found.reading) == ("output", want[0])
    assert want[1] in found.meaning


def test_a_report_says_these_and_nothing_of_alignment() -> None:
    report = probe(box(SumTree(CHAIN), 4, "f32", "f32"), inputs=1_000)
    names = [f.name for f in report.features]
    assert names[: len(SUM_PROBES)] == [ask.name for ask in SUM_PROBES]
    assert not set(names) & set(ALIGNMENT)
    assert {ask.name for ask in PROBES} - set(ALIGNMENT) <= set(names)
    assert set(ALIGNMENT) < {ask.name for ask in PROBES}
    assert np.isfinite(report.cost["calls"])
