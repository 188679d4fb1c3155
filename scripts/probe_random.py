"""Probe units that nobody has built: python scripts/probe_random.py --count 200 --seed 1

Each is drawn with random parameters. The probe has to verify a model that gives the same bits, or
to say honestly that several are left.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from probe_catalogue import equal_bits

import bitmma
from bitmma.clfp import BlackBox, Report, probe
from bitmma.formats import ROUNDINGS
from bitmma.models import FDPA, Conversion, Model

_MODES = tuple(ROUNDINGS)


def draw(seed: int) -> tuple[Model, BlackBox]:
    """A random fused sum and a black box that computes it."""
    rng = np.random.default_rng([seed, 7])

    def one(*choices: object) -> object:
        return choices[int(rng.integers(len(choices)))]

    a, c = one(("f16", "f32"), ("bf16", "f32"), ("f16", "f16"), ("e5m2", "f32"), ("e4m3", "f32"))
    L = int(one(1, 2, 4, 8, 16, 32))
    F = int(rng.integers(8, 41))
    mantissa = {"f32": 23, "f16": 10}[c]
    rho = Conversion(one(*_MODES), c, one(None, None, int(rng.integers(8, mantissa + 1))))
    late = one(False, False, True)
    F_c = one(F, F, int(rng.integers(8, 41)))
    exact = one(False, False, False, False, True)  # E-FDPA
    model = FDPA(
        L, None if exact else F, cut=one("RZ", *_MODES), c="late" if late else "early",
        F_c=None if exact else F_c, cut_c=one("RZ", *_MODES),
        e_zero=one(None, {"f32": -133, "f16": -21}[c]),
        F2=F_c if late and not exact else None, cut2=one("RZ", *_MODES),
        rho=rho, flush_in=one("no", "no", "zero"), flush_c=one("no", "no", "zero"),
        flush_out=one("no", "no", "zero"), renormalise=one(False, False, True),
        order=one("chain", "chain", "pairwise"), zero=one("plus", "signed"),
        nan=one("ones", "quiet"),
    )  # fmt: skip
    k = min(32, L * int(one(1, 2, 4)))

    def fn(A: object, B: object, C: object) -> object:
        return bitmma.mma(model, A, B, C, a=a, c=c)

    return model, BlackBox(fn, 8, 8, k, a, c=c, batched=True, name=f"random unit {seed}")


def draw_staged(seed: int) -> tuple[Model, BlackBox]:
    """A random unit of CDNA3's kind: products alone, in groups or not, then joined with c."""
    rng = np.random.default_rng([seed, 8])

    def one(*choices: object) -> object:
        return choices[int(rng.integers(len(choices)))]

    a, L = one(("f16", 8), ("bf16", 8), ("bf16", 4), ("fp8", 16), ("bf8", 16))
    F, groups = int(rng.integers(12, 33)), one(1, 1, 2)
    F2 = int(rng.integers(F, F + 10))
    model = FDPA(
        L, F, cut=one("RZ", "RZ", *_MODES), c="late", F_c=F, cut_c=one("RD", "RD", *_MODES),
        e_zero=-126, F2=F2 + 1, cut2=one("RD", "RD", *_MODES), F_sum=F2,
        cut_sum=one("RD", "RD", *_MODES), e_sum=-126, groups=groups,
        F_groups=F if groups == 2 else None, cut_groups=one("RD", *_MODES),
        drop_c=one(None, F + 1), product_overflow=one(None, 128),
        rho=Conversion(one("RNE", "RNE", *_MODES), "f32"), zero="signed", nan="quiet",
    )  # fmt: skip

    def fn(A: object, B: object, C: object) -> object:
        return bitmma.mma(model, A, B, C, a=a, c="f32")

    k = L * int(one(1, 2))
    return model, BlackBox(fn, 8, 8, k, a, c="f32", batched=True, name=f"staged unit {seed}")


KINDS = {"fused": draw, "staged": draw_staged}


def judged(spec: BlackBox, truth: Model, report: Report, outputs: int) -> str:
    """ "right": the verified model, or a candidate, gives the bits of the unit; else why not."""
    if report.status not in ("verified", "ambiguous"):
        return f"WRONG: {report.status}"
    for i, model in enumerate(report.candidates):
        if equal_bits(spec, truth, model, outputs):
            return "right" if i == 0 else f"right, candidate {i + 1}"
    return "WRONG: other bits"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=KINDS, default="fused", help="which units are drawn")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--step", type=int, default=1, help="every so many of them")
    parser.add_argument("--inputs", type=int, default=100_000, help="of the differential test")
    parser.add_argument("--outputs", type=int, default=100_000, help="compared with the truth")
    options = parser.parse_args()
    counts: dict[str, int] = {}
    for seed in range(options.seed, options.seed + options.count, options.step):
        truth, spec = KINDS[options.kind](seed)
        start = time.perf_counter()
        report = probe(spec, inputs=options.inputs)
        found = judged(spec, truth, report, options.outputs)
        key = f"{report.status}, {found}"
        counts[key] = counts.get(key, 0) + 1
        print(
            f"{seed:4} {key:24} {time.perf_counter() - start:5.1f} s  "
            f"{spec.a} {spec.c} k={spec.k} {truth!r}",
            flush=True,
        )
        if found != "right" or report.status != "verified":
            print(f"       found {report.model!r}: {report.reason[-300:]}", flush=True)
    print(counts)


if __name__ == "__main__":
    main()
