"""Probe units that nobody has built: python scripts/probe_random.py --count 200

Each is drawn with random parameters, of a kind that its seed says (see `mixed`). The probe has to
verify a model that gives the same bits, or to say honestly that several are left. Docs:

    python scripts/probe_random.py --inputs 5000 --outputs 20000 --rows rows.jsonl
    python scripts/probe_random.py --page rows.jsonl > docs/probing/random.md
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from probe_catalogue import equal_bits

import bitmma
from bitmma.clfp import BlackBox, Report, probe
from bitmma.formats import ROUNDINGS
from bitmma.models import (
    EFDPA,
    FDPA,
    FLUSHES,
    GSTFDPA,
    GTRFDPA,
    STFDPA,
    TFDPA,
    TINY_RULES,
    TRFDPA,
    Conversion,
    FTZMulAdd,
    Lowered,
    Model,
    SumTree,
)

_MODES = tuple(ROUNDINGS)


def draw(seed: int) -> tuple[Model, BlackBox]:
    """Fused sums: F 8 to 40, L 1 to 32, c early or late, chained or in pairs, cut or exact."""
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
    model = _tiny(model, seed)
    k = min(32, L * int(one(1, 2, 4)))

    def fn(A: object, B: object, C: object) -> object:
        return bitmma.mma(model, A, B, C, a=a, c=c)

    return model, BlackBox(fn, 8, 8, k, a, c=c, batched=True, name=f"random unit {seed}")


def draw_staged(seed: int) -> tuple[Model, BlackBox]:
    """CDNA3's kind: products cut alone, in groups or not, then joined with c, cut again."""
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


def draw_scaled(seed: int) -> tuple[Model, BlackBox]:
    """Block scales: exponents alone (ST-FDPA) or significands of groups too (GST-FDPA)."""
    one = chooser(seed, 9)
    F, rho = one(*range(8, 41)), _conversion(one, "f32")
    if one(False, True):
        a, k, block = one("e4m3", "e5m2", "e2m1"), 32, one(16, 32)
        L = min(block, one(8, 16, 32))
        model: Model = STFDPA(L, F, rho, one(-133, -126, -140))
        scale = "ue8m0"
    else:
        a, k, block, scale = "e2m1", 64, one(16, 32), one("ue8m0", "ue4m3")
        model = GSTFDPA(one(32, 64), one(8, 16), F, rho, one(-139, -133))
    return model, box_of(model, a, "f32", k, f"scaled unit {seed}", scale=scale, block=block)


def draw_tree(seed: int) -> tuple[Model, BlackBox]:
    """Sums with a rounding at every node: in sequence, in pairs, strided, with fused nodes."""
    one = chooser(seed, 10)
    a, c, k = one("f16", "bf16", "f32"), "f32", one(4, 8, 16)
    if a == "f16":
        c = one("f16", "f32")
    shape = one("sequential", "pairwise", "strided", "fused")
    parts: list[Any] = list(range(k))
    if shape == "pairwise":
        while len(parts) > 1:
            parts = [tuple(parts[i : i + 2]) for i in range(0, len(parts), 2)]
        tree: Any = (parts[0], "c")
    elif shape == "strided":
        halves = [functools.reduce(lambda t, i: (t, i), range(s + 2, k, 2), (s,)) for s in (0, 1)]
        tree = (tuple(halves), "c")
    else:
        size = 1 if shape == "sequential" else one(2, 4)
        steps = [range(i, i + size) for i in range(0, k, size)]
        tree = functools.reduce(lambda t, step: (t, *step), steps, "c")
    mode = one("RNE", "RNE", *_MODES)
    product = Conversion(mode, c) if one(False, True) else None
    zero = one("ieee", "ieee", "plus")
    model = SumTree(tree, Conversion(mode, c), product, zero=zero)
    return model, box_of(model, a, c, k, f"{shape} sum {seed}")


def draw_flushed(seed: int) -> tuple[Model, BlackBox]:
    """Flush-to-zero of operands and results, to +0 or keeping the sign, where signs are seen."""
    one = chooser(seed, 11)
    a, P = one("f16", "bf16"), one(2, 4)
    flushes = {name: one(*FLUSHES) for name in ("flush_in", "flush_c", "flush_out")}
    rho, k = Conversion(one("RNE", *_MODES), "f32"), P * one(1, 2, 4)
    kind = one("mul-add", "fused", "tree")
    if kind == "mul-add":
        model: Model = FTZMulAdd(P)
    elif kind == "fused":
        F = one(None, *range(8, 41))
        rest = {"F": F, "F_c": F, "e_zero": None, "zero": "ieee", "nan": "quiet"}
        model = _tiny(FDPA(P, rho=rho, **rest, **flushes), seed)
    else:
        tree = functools.reduce(lambda t, i: (t, i), range(k), "c")
        model = _tiny(SumTree(tree, rho, one(None, rho), **flushes), seed)
    return model, box_of(model, a, "f32", k, f"flushed unit {seed}")


def draw_lowered(seed: int) -> tuple[Model, BlackBox]:
    """An instruction made of two or more of another unit, c added at the end."""
    one = chooser(seed, 12)
    parts = one(((0, 1), (2, 3)), ((0,), (1,)), ((0, 2), (1, 3)), ((0, 1, 2, 3), (4, 5, 6, 7)))
    c = one("f32", "f16")
    e_zero = {"f32": -133, "f16": -21}[c]
    unit = TFDPA(one(4, 8, 16), one(*range(8, 41)), _conversion(one, c), e_zero)
    model = Lowered(one(16, 32), unit, parts)
    return model, box_of(model, one("e4m3", "e5m2"), c, model.K, f"lowered unit {seed}")


def draw_published(seed: int) -> tuple[Model, BlackBox]:
    """The published families E-, T-, TR- and GTR-FDPA with random parameters."""
    one = chooser(seed, 13)
    a, L = one("f16", "bf16", "e5m2", "e4m3"), one(1, 2, 4, 8, 16, 32)
    F, F2, rho = one(*range(8, 41)), one(*range(20, 41)), _conversion(one, "f32")
    family = one("E", "T", "TR", "GTR")
    if family in ("TR", "GTR"):
        L = max(L, 4)
    families: dict[str, Model] = {
        "E": EFDPA(L, rho), "T": TFDPA(L, F, rho, one(-133, -126, -140)),
        "TR": TRFDPA(L, F, F2, rho), "GTR": GTRFDPA(L, F, F2, rho),
    }  # fmt: skip
    model = families[family]
    return model, box_of(model, a, "f32", min(32, L * one(1, 2)), f"{family}-FDPA {seed}")


def _tiny(model: Any, seed: int) -> Any:
    """With some rule for which results are flushed, if any are."""
    rule = chooser(seed, 14)(*TINY_RULES)
    return model if model.flush_out == "no" else dataclasses.replace(model, tiny=rule)


def _conversion(one: Callable[..., Any], d: str) -> Conversion:
    kept = {"f32": 23, "f16": 10}[d]
    return Conversion(one("RNE", "RZ", *_MODES), d, one(None, None, *range(8, kept)))


def chooser(seed: int, stream: int) -> Callable[..., Any]:
    """A function that returns one of its arguments."""
    rng = np.random.default_rng([seed, stream])
    return lambda *choices: choices[int(rng.integers(len(choices)))]


def box_of(model: Model, a: str, c: str, k: int, name: str, **scaled: Any) -> BlackBox:
    """A black box that computes a model."""

    def fn(A: object, B: object, C: object, *scales: object) -> object:
        given = dict(zip(("scale_a", "scale_b"), scales, strict=False))
        return bitmma.mma(model, A, B, C, a=a, c=c, **scaled, **given)

    return BlackBox(fn, 8, 8, k, a, c=c, batched=True, name=name, **scaled)


KINDS = {
    "fused": draw, "staged": draw_staged, "scaled": draw_scaled, "tree": draw_tree,
    "flushed": draw_flushed, "lowered": draw_lowered, "published": draw_published,
}  # fmt: skip
#: Of every ten seeds four are fused sums, and one is of each other kind.
_MIXED = ("fused",) * 4 + tuple(KINDS)[1:]


def mixed(seed: int) -> str:
    """Which kind a seed of the mixture is."""
    return _MIXED[seed % len(_MIXED)]


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
    parser.add_argument("--kind", choices=["mixed", *KINDS], default="mixed")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--step", type=int, default=1, help="every so many of them")
    parser.add_argument("--inputs", type=int, default=100_000, help="of the differential test")
    parser.add_argument("--outputs", type=int, default=100_000, help="compared with the truth")
    parser.add_argument("--rows", type=Path, help="a file that results are appended to, as JSON")
    parser.add_argument("--page", type=Path, nargs="+", help="make the page of such files instead")
    options = parser.parse_args()
    if options.page:
        print(page([json.loads(x) for path in options.page for x in path.open()]))
        return
    counts: dict[str, int] = {}
    for seed in range(options.seed, options.seed + options.count, options.step):
        kind = mixed(seed) if options.kind == "mixed" else options.kind
        row = probed(kind, seed, options.inputs, options.outputs)
        key = f"{row['status']}, {row['found']}"
        counts[key] = counts.get(key, 0) + 1
        print(f"{seed:4} {kind:9} {key:24} {row['seconds']:5.1f} s  {row['box']} {row['truth']}")
        if key != "verified, right":
            print(f"       found {row['model']}: {row['reason'][-300:]}")
        if options.rows:
            with options.rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
    print(counts)


def probed(kind: str, seed: int, inputs: int, outputs: int) -> dict[str, Any]:
    """One unit, probed: what was drawn, what was found, and whether that is it."""
    truth, spec = KINDS[kind](seed)
    start, cpu = time.perf_counter(), time.process_time()
    report = probe(spec, inputs=inputs)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    open_fields = {
        name
        for m in report.candidates[1:]
        for name in vars(m)
        if type(m) is type(report.model) and getattr(m, name) != getattr(report.model, name)
    }
    return {
        "seed": seed, "kind": kind, "truth": repr(truth), "model": repr(report.model),
        "box": f"{spec.a}, {spec.c}, K={spec.k}" + (f", {spec.scale}" if spec.scale else ""),
        "status": report.status, "found": judged(spec, truth, report, outputs),
        "seconds": round(seconds, 1), "cpu": round(cpu, 1), "candidates": len(report.candidates),
        "open": sorted(open_fields), "reason": report.reason,
        "inputs": inputs, "outputs": outputs,
    }  # fmt: skip


def page(rows: list[dict[str, Any]]) -> str:
    """docs/probing/random.md."""
    rows = sorted(rows, key=lambda row: row["seed"])
    inputs, outputs = rows[0]["inputs"], rows[0]["outputs"]
    lines = [
        "# Units that nobody built",
        "",
        "`scripts/probe_random.py` draws units with random parameters and probes each blindly.",
        "What is found is compared with the unit that was drawn, bit by bit. Here: "
        f"{len(rows)} units, of seeds {rows[0]['seed']} to {rows[-1]['seed']}.",
        "",
        "| kind | what is drawn | units | verified | ambiguous | unexplained | not right | CPU s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind in [*KINDS, "all"]:
        mine = [row for row in rows if kind in (row["kind"], "all")]
        if not mine:
            continue
        statuses = [sum(row["status"] == x for row in mine) for x in _STATUSES]
        wrong = sum("WRONG" in row["found"] for row in mine)
        cpu = [row["cpu"] for row in mine]
        what = "" if kind == "all" else (KINDS[kind].__doc__ or "").strip().rstrip(".")
        lines.append(
            f"| {kind} | {what} | {len(mine)} | {' | '.join(map(str, statuses))} | {wrong} "
            f"| median {np.median(cpu):.0f}, most {max(cpu):.0f} |"
        )
    lines += ["", _ABOUT.format(inputs=inputs, outputs=outputs), "", "## Every unit", ""]
    lines += ["| seed | kind | a, c, K | unit | status | candidates | the unit is | CPU s |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for row in rows:
        left = f"{row['candidates']}"
        if row["open"]:
            left += f", which differ in {', '.join(row['open'])}"
        where = {"right": "the first"}.get(row["found"], row["found"].removeprefix("right, "))
        where = "**not among them**" if "WRONG" in where else where
        lines.append(
            f"| {row['seed']} | {row['kind']} | {row['box']} | `{row['truth']}` | {row['status']} "
            f"| {left} | {where} | {row['cpu']:.1f} |"
        )
    return "\n".join(lines)


_STATUSES = ("verified", "ambiguous", "unexplained")
_ABOUT = """\
- "The unit is": which of the candidates gave the bits of the drawn unit on {outputs:,} adversarial
  outputs that the probe did not draw, half of them aimed at either model, and on as many made to
  tell the two apart. "Not right": none did, or no model was found. Seeds 0 to 199 are also those
  that the rules and inputs were developed on.
- Each probe's differential test had {inputs:,} outputs, where the default for such a box is
  4,000,000, and other steps draw fewer random inputs with it.
- CPU seconds of one core that had other work beside this.
- Drawn parameters often hide each other. Those that provably cannot be seen (an `F_sum` beyond the
  bits that a sum can have, a rounding that never rounds) count as one model, by the rules of
  `bitmma.clfp.fused`. What is left open is what no rule covers and no input that was made for it
  showed."""


if __name__ == "__main__":
    main()
