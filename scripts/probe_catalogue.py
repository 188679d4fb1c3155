"""Probe every distinct instruction of the catalogue blindly: python scripts/probe_catalogue.py

Instructions that differ in nothing but m, n and name are probed once. What is found has to be the
model's own value or, where candidates are left, one that gives the same bits on --outputs inputs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import numpy as np

import bitmma
from bitmma import isa
from bitmma.clfp import BlackBox, Report, probe
from bitmma.clfp.box import Box
from bitmma.clfp.evidence import predict
from bitmma.clfp.inputs import aimed, same
from bitmma.clfp.separating import separating
from bitmma.models import Model


def distinct() -> Iterator[isa.Entry]:
    """One instruction, the smallest, of each kind."""
    found: dict[object, isa.Entry] = {}
    for e in isa.catalogue():
        key = (e.model, e.a, e.b, e.c, e.d, e.scale, e.block, e.k)
        if key not in found or e.m * e.n < found[key].m * found[key].n:
            found[key] = e
    yield from found.values()


def blind(e: isa.Entry) -> BlackBox:
    """The instruction as a function of matrices: name and model do not go along."""
    instr = bitmma.instruction(e.gpu, e.name, op=e.op)
    return BlackBox(
        lambda *operands: instr(*operands), e.m, e.n, e.k, e.a, e.b, e.c, e.d, e.scale, e.block,
        batched=True,
    )  # fmt: skip


def equal_bits(spec: BlackBox, x: Model, y: Model, outputs: int, seed: int = 99) -> bool:
    """Whether two models agree on inputs aimed at either, and on those made to tell them apart."""
    box = Box(spec)
    made = separating(box, (x, y), outputs, seed)
    for dots in (made, *(aimed(box, model, outputs // 2, seed) for model in (x, y))):
        got = [predict(box, m, dots) for m in (x, y)]
        if not same(box.formats[3], *got, nan="quiet" in (x.nan, y.nan)).all():
            return False
    return True


def verdict(spec: BlackBox, truth: Model, report: Report, outputs: int) -> str:
    """ "same", "equal bits" (on so many outputs), or what is wrong."""
    if report.status not in ("verified", "ambiguous") or report.model is None:
        return f"WRONG: {report.status}"
    if report.model == truth:
        return "same"
    return "equal bits" if equal_bits(spec, truth, report.model, outputs) else "WRONG: other bits"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=100_000, help="of the differential test")
    parser.add_argument("--outputs", type=int, default=100_000, help="compared with the truth")
    parser.add_argument("--part", default="0/1", help="i/n: every n-th, from the i-th")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    seconds, wrong = [], 0
    for e in list(distinct())[part::parts]:
        spec = blind(e)
        start = time.perf_counter()
        report = probe(spec, inputs=options.inputs)
        seconds.append(time.perf_counter() - start)
        found = verdict(spec, e.model, report, options.outputs)
        wrong += found.startswith("WRONG")
        print(
            f"{found:12} {report.status:10} {seconds[-1]:5.1f} s  "
            f"{e.gpu} {e.name}: {report.model!r}"
            + (f" and {len(report.candidates) - 1} more" if len(report.candidates) > 1 else ""),
            flush=True,
        )
    print(
        f"{len(seconds)} instructions, {wrong} wrong; seconds a probe: "
        f"median {np.median(seconds):.1f}, most {max(seconds):.1f}"
    )


if __name__ == "__main__":
    main()
