"""Probe units that nobody has built: python scripts/probe_random.py --count 200 --seed 1

Each is drawn with random parameters. The probe has to verify a model that gives the same bits, or
to say honestly that several are left.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from probe_catalogue import verdict

import bitmma
from bitmma.clfp import BlackBox, probe
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--inputs", type=int, default=100_000, help="of the differential test")
    parser.add_argument("--outputs", type=int, default=100_000, help="compared with the truth")
    options = parser.parse_args()
    counts: dict[str, int] = {}
    for seed in range(options.seed, options.seed + options.count):
        truth, spec = draw(seed)
        start = time.perf_counter()
        report = probe(spec, inputs=options.inputs)
        found = verdict(spec, truth, report, options.outputs)
        key = f"{report.status}, {found}"
        counts[key] = counts.get(key, 0) + 1
        print(
            f"{seed:4} {key:24} {time.perf_counter() - start:5.1f} s  "
            f"{spec.a} {spec.c} k={spec.k} {truth!r}",
            flush=True,
        )
        if found.startswith("WRONG") or report.status != "verified":
            print(f"       found {report.model!r}: {report.reason[-300:]}", flush=True)
    print(counts)


if __name__ == "__main__":
    main()
