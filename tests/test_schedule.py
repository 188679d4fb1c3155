"""Schedules: every bit against plain loops over the reference."""

import dataclasses
import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bitmma
import slow_products as slow
from bitmma import Schedule, formats

HOPPER = bitmma.instruction("Hopper", "m64n8k32.f32.e4m3.e5m2")
UNITS = {
    "hopper fp8": HOPPER,
    "hopper fp8 f16": bitmma.instruction("Hopper", "m64n8k32.f16.e4m3.e4m3"),
    "lowered fp8": bitmma.instruction("Hopper", "m16n8k32.f32.e4m3.e4m3.f32"),
    "hopper f16": bitmma.instruction("Hopper", "m64n8k16.f32.f16.f16"),
    "volta mixed": bitmma.instruction("Volta", "m8n8k4.f32.f16.f16.f16"),
    "ampere f64": bitmma.instruction("Ampere", "m8n8k4.f64.f64.f64.f64"),
    "cdna3 f16": bitmma.instruction("CDNA3", "f32_16x16x16_f16"),
    "cdna3 fp8": bitmma.instruction("CDNA3", "f32_16x16x32_fp8_fp8"),
    "cdna2 bf16": bitmma.instruction("CDNA2", "f32_16x16x16bf16_1k"),
    "cdna1 f16": bitmma.instruction("CDNA1", "f32_16x16x16f16"),
    "mx": bitmma.instruction("RTX 5090", "m16n8k32.kind::mxf8f6f4.block32.f32.e4m3.e5m2.f32.ue8m0"),
    "nvfp4": bitmma.instruction("B200", "m128n8k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.ue4m3"),
}
# In units of the instruction's k: promote_every, split_k, split_order, split_tile, reduce.
SCHEDULES = [
    (1, 1, "contiguous", 4, "serial"),
    (2, 1, "contiguous", 4, "serial"),
    (None, 2, "contiguous", 1, "serial"),
    (None, 4, "contiguous", 1, "serial"),  # of 5 tiles: an empty part
    (None, 4, "interleaved", 1, "pairwise"),
    (2, 3, "interleaved", 1, "serial"),
    (2, 2, "contiguous", 2, "pairwise"),
    (2, 5, "interleaved", 1, "pairwise"),
    (1, 3, "contiguous", 1, "pairwise"),
]


def made(instr: bitmma.Instruction, row: tuple[Any, ...]) -> Schedule:
    every, split_k, order, tile, reduce = row
    return Schedule(every and every * instr.k, split_k, order, tile * instr.k, reduce)


def codes(fmt: str, shape: tuple[int, ...], rng: np.random.Generator, special: float) -> Any:
    """Values over a few binades, and now and then any code at all."""
    f = formats.get(fmt)
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-3, 4, shape)
    values = bitmma.quantize(x if f.signed else abs(x), fmt, saturate=True).view(f.code_dtype)
    wild = rng.integers(0, 2 ** min(f.width, 8), shape).astype(f.code_dtype)
    if f.width > 8:
        edges = [f.inf_code, f.inf_code | f.sign_bit, f.nan_code, f.sign_bit, f.max_code, 1]
        wild = rng.choice(np.array(edges, f.code_dtype), shape)
    tiny = rng.integers(0, 4, shape).astype(f.code_dtype)
    pick = rng.random(shape)
    return np.where(pick < special, wild, np.where(pick < 2 * special, tiny, values))


def operands(instr: bitmma.Instruction, s: Schedule, M: int, N: int, K: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    special = [0.0, 0.0, 0.002, 0.02][seed % 4]
    a, b = codes(instr.a, (M, K), rng, special), codes(instr.b, (K, N), rng, special)
    plain = s.promote_every is None and s.split_k == 1
    c_format = instr.c if plain else "f64" if instr.d == "f64" else "f32"
    c = codes(c_format, (M, N), rng, 0.3) if seed % 2 else None
    scales = {}
    if instr.block:
        blocks = -(-K // instr.block)
        scales["scale_a"] = codes(instr.scale, (M, blocks), rng, special / 4)
        scales["scale_b"] = codes(instr.scale, (blocks, N), rng, special / 4)
    return a, b, c, scales


def check(instr: Any, s: Schedule, a: Any, b: Any, c: Any, scales: Any, **promotion: Any) -> Any:
    """The fast product against the slow one; returns the codes."""
    got = bitmma.matmul(a, b, c, instruction=instr, schedule=s, **scales, **promotion)
    sa, sb = promotion.get("promote_scale_a"), promotion.get("promote_scale_b")
    rows, per_a = promotion.get("promote_block_a", (1, 128))
    per_b, columns = promotion.get("promote_block_b", (128, 128))
    for i, j in np.ndindex(got.shape):
        want, fmt = slow.product(
            instr, s, a[i].tolist(), b[:, j].tolist(), None if c is None else int(c[i, j]),
            scales["scale_a"][i].tolist() if scales else (),
            scales["scale_b"][:, j].tolist() if scales else (),
            None if sa is None else sa.view("u4")[i // rows].tolist(),
            None if sb is None else sb.view("u4")[:, j // columns].tolist(), (per_a, per_b),
        )  # fmt: skip
        f = formats.get(fmt)
        assert got.dtype == f.dtype
        assert int(got.view(f.code_dtype)[i, j]) == want, (s, i, j)
    return got.view(f.code_dtype)


@pytest.mark.parametrize("row", SCHEDULES, ids=str)
@pytest.mark.parametrize("unit", UNITS)
def test_every_unit_and_schedule(unit: str, row: tuple[Any, ...]) -> None:
    instr = UNITS[unit]
    if instr.c != instr.d and row[0] != 1:
        row = (1, *row[1:])  # it has no chains
    s = made(instr, row)
    for seed, extra in ((0, 0), (1, -instr.k // 2), (2, 1 - instr.k), (3, 0)):
        K = 5 * instr.k + extra
        check(instr, s, *operands(instr, s, 2, 3, K, seed))


def test_the_results_show_something() -> None:
    """Schedules differ from the chain and from one another; Inf, NaN and zeros occur."""
    seen: Counter[str] = Counter()
    results = {}
    for row in [(None, 1, "contiguous", 1, "serial"), *SCHEDULES]:
        s = made(HOPPER, row)
        for seed in range(4):
            d = check(HOPPER, s, *operands(HOPPER, s, 4, 4, 9 * HOPPER.k, seed)).view("f4")
            seen += Counter(
                nan=int(np.isnan(d).sum()),
                inf=int(np.isinf(d).sum()),
                number=int(np.isfinite(d).sum()),
            )
        results[row] = d.tobytes()
    assert len(set(results.values())) == len(results)
    assert min(seen["nan"], seen["inf"], seen["number"]) > 10, seen


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    ("split", "shape_a", "shape_b"),
    [
        ({}, (1, 64), (64, 3)),
        ({}, (2, 64), (128, 1)),
        ({}, (1, 32), (32, 1)),
        ({"split_k": 2, "split_tile": 64}, (1, 64), (64, 2)),
        ({"split_k": 2, "split_tile": 32, "split_order": "interleaved"}, (3, 32), (32, 2)),
    ],
)
def test_block_scaled_promotion(fused: bool, split: Any, shape_a: Any, shape_b: Any) -> None:
    s = Schedule(promote_every=32, promote_fused=fused, **split)
    M, N, K = 5, 4, 200
    rng = np.random.default_rng(5)
    for seed in range(4):
        a, b, c, _ = operands(HOPPER, s, M, N, K, seed)
        sa = scales(rng, -(-M // shape_a[0]), -(-K // shape_a[1]), seed == 3)
        sb = scales(rng, -(-K // shape_b[0]), -(-N // shape_b[1]), seed == 3)
        blocks = {"promote_block_a": shape_a, "promote_block_b": shape_b}
        both = check(HOPPER, s, a, b, c, {}, promote_scale_a=sa, promote_scale_b=sb, **blocks)
        only = check(HOPPER, s, a, b, c, {}, promote_scale_b=sb, **blocks)
        assert not np.array_equal(both, only)


def scales(rng: np.random.Generator, rows: int, columns: int, special: bool) -> Any:
    x = rng.standard_normal((rows, columns)).astype("f4")
    if special:
        wild = rng.choice(np.float32([np.inf, -0.0, 1e-42, np.nan, 3e38]), x.shape)
        x = np.where(rng.random(x.shape) < 0.3, wild, x)
    return x


def test_fused_is_not_separate() -> None:
    s = Schedule(promote_every=32)
    a, b, _, _ = operands(HOPPER, s, 16, 16, 256, 0)
    one = scales(np.random.default_rng(1), 16, 2, False)
    d = [
        bitmma.matmul(
            a, b, instruction=HOPPER, schedule=dataclasses.replace(s, promote_fused=fused),
            promote_scale_a=one, promote_block_a=(1, 128),
        )
        for fused in (True, False)
    ]  # fmt: skip
    assert not np.array_equal(*d)


def test_deepseek_s_blocks_on_large_operands() -> None:
    """1x128 and 128x128, as the defaults are: the same as scales spread out by hand."""
    rng = np.random.default_rng(0)
    M, N, K = 40, 300, 300
    a, b = codes("e4m3", (M, K), rng, 0), codes("e4m3", (K, N), rng, 0)
    sa, sb = scales(rng, M, 3, False), scales(rng, 3, 3, False)
    instr = bitmma.instruction("H100", "m64n8k32.f32.e4m3.e4m3")
    s = Schedule(promote_every=128)
    d = bitmma.matmul(a, b, instruction=instr, schedule=s, promote_scale_a=sa, promote_scale_b=sb)
    wide = bitmma.matmul(
        a, b, instruction=instr, schedule=s, promote_scale_a=sa,
        promote_scale_b=np.repeat(sb, 128, axis=1)[:, :N], promote_block_b=(128, 1),
    )  # fmt: skip
    assert np.array_equal(d, wide)
    for i, j in ((0, 0), (39, 299), (7, 128), (20, 127)):
        want, _ = slow.product(
            instr, s, a[i].tolist(), b[:, j].tolist(), None,
            promote_a=sa.view("u4")[i].tolist(), promote_b=sb.view("u4")[:, j // 128].tolist(),
        )  # fmt: skip
        assert int(d.view("u4")[i, j]) == want


# --- the 144 products of cuBLAS as recorded and replayed ------------------------------------------

PRODUCTS = np.load(Path(__file__).parent / "fp8_gemm.npz")
ROWS = json.loads(str(PRODUCTS["index"]))


def profile(row: dict[str, Any]) -> tuple[bitmma.Instruction, Schedule]:
    """cuBLASLt's FP8 products on H100 PCIe ("hopper") and RTX 4060 ("ada")."""
    hopper = row["profile"] == "hopper"
    name = "m64n8k32.f32.{a}.{b}" if hopper else "m16n8k32.f32.{a}.{b}.f32"
    split: dict[str, Any] = {}
    if row["splitk"] != 1:
        parts, order = row["splitk"]
        split = {"split_k": parts, "split_tile": 128 if hopper else 64}
        split |= {"split_order": "contiguous" if hopper else "interleaved"}
        split |= {} if hopper else {"reduce": order}
    every = None if row["fast_accum"] else 128
    return bitmma.instruction(row["arch"], name.format(**row)), Schedule(every, **split)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["key"])
def test_recorded_products(row: dict[str, Any]) -> None:
    a, b, d = (PRODUCTS[f"{row['key']}_{x}"] for x in "abd")
    instr, s = profile(row)
    got = bitmma.matmul(a, b.T, instruction=instr, schedule=s)
    assert np.array_equal(got.view(np.uint32), d)


def test_all_144_are_there() -> None:
    assert len(ROWS) == 144
    kinds = Counter((r["profile"], r["fast_accum"], str(r["splitk"])) for r in ROWS)
    assert len(kinds) == 10 and min(kinds.values()) == 6


# --- batches, progress, values --------------------------------------------------------------------


def test_batches_broadcast() -> None:
    s = Schedule(promote_every=32, split_k=2, split_tile=64)
    rng = np.random.default_rng(3)
    a, b = codes("e4m3", (2, 1, 3, 192), rng, 0), codes("e5m2", (3, 192, 2), rng, 0)
    c, sa = codes("f32", (3, 3, 2), rng, 0), scales(rng, 3, 6, False)[None, None]
    options: dict[str, Any] = {"promote_block_a": (1, 32)}
    d = bitmma.matmul(a, b, c, instruction=HOPPER, schedule=s, promote_scale_a=sa, **options)
    assert d.shape == (2, 3, 3, 2)
    for i, j in np.ndindex(2, 3):
        one = bitmma.matmul(
            a[i, 0], b[j], c[j], instruction=HOPPER, schedule=s, promote_scale_a=sa[0, 0], **options
        )
        assert np.array_equal(d[i, j], one)


@pytest.mark.parametrize("beta", [None, 2])
@pytest.mark.parametrize("s", [Schedule(promote_every=32), Schedule(split_k=2, split_tile=32)])
def test_c_alone_may_be_a_batch(s: Schedule, beta: float | None) -> None:
    rng = np.random.default_rng(3)
    a, b = codes("e4m3", (3, 64), rng, 0), codes("e5m2", (64, 2), rng, 0)
    c = codes("f32", (2, 1, 3, 2), rng, 0)
    options = {"instruction": HOPPER, "schedule": s, "epilogue": bitmma.Epilogue(beta=beta)}
    d = bitmma.matmul(a, b, c, **options)
    assert d.shape == (2, 1, 3, 2)
    for i in range(2):
        assert np.array_equal(d[i, 0], bitmma.matmul(a, b, c[i, 0], **options))


@pytest.mark.parametrize(
    "s", [Schedule(), Schedule(promote_every=64), Schedule(split_k=3, split_tile=64)], ids=str
)
def test_progress(s: Schedule) -> None:
    rng = np.random.default_rng(3)
    a, b = codes("e4m3", (20, 320), rng, 0), codes("e5m2", (320, 30), rng, 0)
    calls: list[tuple[int, int]] = []
    d = bitmma.matmul(a, b, instruction=HOPPER, schedule=s, progress=lambda *x: calls.append(x))
    assert np.array_equal(d, bitmma.matmul(a, b, instruction=HOPPER, schedule=s))
    assert calls[-1] == (20 * 320 * 30, 20 * 320 * 30)
    assert calls == sorted(calls) and {total for _, total in calls} == {20 * 320 * 30}


def test_progress_that_raises_ends_the_product() -> None:
    a, b = np.zeros((64, 64), np.uint8), np.zeros((64, 64), np.uint8)

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bitmma.matmul(a, b, instruction=HOPPER, progress=stop)


def test_text_and_back() -> None:
    for s in (
        Schedule(),
        Schedule(promote_every=128),
        Schedule(128, 4, "interleaved", 64, "pairwise", False),
        Schedule(split_k=2),
    ):
        assert Schedule.parse(str(s)) == s
        assert pickle.loads(pickle.dumps(s)) == s and hash(s) == hash(Schedule.parse(str(s)))
    assert str(Schedule()) == "chain" and Schedule.parse("") == Schedule()
    assert str(Schedule(128, 4)) == "promote_every=128,split_k=4"
    assert Schedule.parse(" promote_every = None , promote_fused=false").promote_fused is False


def test_parts() -> None:
    s = Schedule(split_k=4, split_tile=64)
    assert s.parts(1936) == (range(8), range(8, 16), range(16, 24), range(24, 31))
    interleaved = dataclasses.replace(s, split_order="interleaved")
    assert [list(p)[:2] for p in interleaved.parts(1936)] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert sorted(t for p in interleaved.parts(1936) for t in p) == list(range(31))
    assert s.parts(320) == (range(2), range(2, 4), range(4, 5), range(5, 5))
