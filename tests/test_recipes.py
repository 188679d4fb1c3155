"""Recipes: the products they stand for, written out with matmul and in plain loops."""

import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import bitmma
import slow_products as slow
from bitmma import Epilogue, Schedule, formats, isa, quantize_blocks, recipes
from bitmma.recipes import default_instruction

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("f4")


def same(x: np.ndarray, y: np.ndarray) -> bool:
    return x.dtype == y.dtype and np.array_equal(x.view(f"u{x.itemsize}"), y.view(f"u{x.itemsize}"))


@pytest.mark.parametrize("gpu", isa.GPUS)
def test_a_default_for_everything_that_a_gpu_has(gpu: str) -> None:
    for i in bitmma.instructions(gpu):
        chosen = default_instruction(gpu, i.a, i.b, i.d, scale=i.scale, block=i.block)
        assert (chosen.a, chosen.b, chosen.d, chosen.scale, chosen.block) == (
            i.a, i.b, i.d, i.scale, i.block,
        )  # fmt: skip
        assert chosen.k >= i.k or chosen.op != i.op
        free = default_instruction(gpu, i.a, i.b, scale=i.scale)
        assert free.d in ("f32", "f64") and free.c == free.d


@pytest.mark.parametrize(
    ("gpu", "a", "name"),
    [
        ("V100", "f16", "m8n8k4.f32.f16.f16.f32"),
        ("A100", "bf16", "m16n8k16.f32.bf16.bf16.f32"),
        ("A100", "f64", "m8n8k4.f64.f64.f64.f64"),
        ("L40S", "e4m3", "m16n8k32.f32.e4m3.e4m3.f32"),
        ("H100", "f16", "m64n256k16.f32.f16.f16"),
        ("H100", "float8_e4m3fn", "m64n256k32.f32.e4m3.e4m3"),
        ("H100", "f64", "m16n8k16.f64.f64.f64.f64"),
        ("B200", "tf32", "m128n256k8.kind::tf32.f32.tf32.tf32"),
        ("MI100", "bf16", "f32_16x16x8bf16"),
        ("MI250X", "bf16", "f32_16x16x16bf16_1k"),
        ("MI300X", "f32", "f32_16x16x4_f32"),
        ("MI300X", "fp8", "f32_16x16x32_fp8_fp8"),
    ],
)
def test_known_defaults(gpu: str, a: str, name: str) -> None:
    assert default_instruction(gpu, a).name == name
    assert default_instruction(gpu, a) is default_instruction(gpu, a, a)


def test_no_default() -> None:
    with pytest.raises(ValueError, match=r"Ampere has no instruction for e4m3·e4m3; Ada Lovelace"):
        default_instruction("A100", "e4m3")
    with pytest.raises(ValueError, match="float32 arrays are tf32 operands on NVIDIA"):
        default_instruction("A100", "f32")
    with pytest.raises(ValueError, match="Hopper has no instruction for e2m1·e2m1 with ue4m3 sc"):
        recipes.nvfp4("H100")
    with pytest.raises(ValueError, match="unknown GPU"):
        default_instruction("H1000", "f16")


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize(("gpu", "b"), [("H100", "e5m2"), ("RTX 4090", None), ("B200", "e4m3")])
def test_scaled_mm(gpu: str, b: str | None, fast: bool) -> None:
    r = recipes.scaled_mm(gpu, use_fast_accum=fast, b=b)
    assert (r.instruction.a, r.instruction.b) == ("e4m3", b or "e4m3")
    A, B = bitmma.quantize(normal(5, 400), "e4m3"), bitmma.quantize(normal(400, 6), b or "e4m3")
    slow_schedule = Schedule() if gpu == "B200" else Schedule(promote_every=128)
    schedule = Schedule() if fast else slow_schedule
    assert r.schedule == schedule and ("assumed" in r.evidence) == (gpu == "B200")
    bias = normal(6).astype(ml_dtypes.bfloat16)
    rows = {"scale_a": normal(5, 1), "scale_b": normal(1, 6)}
    for options in ({}, {"scale_a": 0.3, "scale_b": 1.7}, {"bias": bias}, rows):
        e = Epilogue(**{"scale_a": 1, "scale_b": 1, **options}, out_format="bf16")
        want = bitmma.matmul(A, B, instruction=r.instruction, schedule=schedule, epilogue=e)
        assert same(r(A, B, **options), want)
        acc = slow.product(
            r.instruction, schedule, A[2].view("u1").tolist(), B[:, 3].view("u1").tolist(), None
        )[0]
        assert int(want.view("u2")[2, 3]) == slow.epilogue(e, r.instruction, acc, 2, 3, 0)


def test_scaled_mm_on_cdna3() -> None:
    r = recipes.scaled_mm("MI300X", out_format="fp8")
    assert r.instruction.a == "fp8" and r.out_format == "fp8"  # type: ignore[attr-defined]


def test_deepgemm() -> None:
    r = recipes.deepgemm_fp8("H100")
    A, B = bitmma.quantize(normal(3, 300), "e4m3"), bitmma.quantize(normal(300, 200), "e4m3")
    sa, sb = normal(3, 3), normal(3, 2)
    d = r(A, B, scale_a=sa, scale_b=sb)
    assert d.dtype == ml_dtypes.bfloat16
    for i, j in ((0, 0), (2, 199), (1, 127), (1, 128)):
        acc = slow.product(
            r.instruction, Schedule(promote_every=128), A[i].view("u1").tolist(),
            B[:, j].view("u1").tolist(), None, promote_a=sa.view("u4")[i].tolist(),
            promote_b=sb.view("u4")[:, j // 128].tolist(),
        )[0]  # fmt: skip
        e = Epilogue(out_format="bf16")
        assert int(d.view("u2")[i, j]) == slow.epilogue(e, r.instruction, acc, i, j, 0)
    assert same(r(A, B), r(A, B, scale_a=np.ones_like(sa)))
    with pytest.raises(ValueError, match="kernel for Hopper, not for Blackwell"):
        recipes.deepgemm_fp8("B200")


def test_zero_accumulate() -> None:
    """The known answer of CDNA3's asymmetric rounding: with C = 0 inside it is gone."""
    instr = bitmma.instruction("CDNA3", "f32_16x16x16_f16")
    A, B = np.zeros((1, 16), "f2"), np.zeros((16, 1), "f2")
    A[0, :2], B[:2, 0] = 2048, (2048, -2048)
    C = np.full((1, 1), -1e-6, "f4")
    assert bitmma.matmul(A, B, C, instruction=instr)[0, 0] == -0.25
    r = recipes.zero_accumulate(("MI300X", "f32_16x16x16_f16"))
    assert r(A, B, C)[0, 0] == np.float32(-1e-6) and r.schedule == Schedule(promote_every=16)
    A, B = normal(4, 70).astype("f2"), normal(70, 3).astype("f2")
    d = r(A, B)
    for i, j in np.ndindex(4, 3):
        want = slow.product(
            instr, r.schedule, A[i].view("u2").tolist(), B[:, j].view("u2").tolist(), None
        )
        assert (int(d.view("u4")[i, j]), "f32") == want


@pytest.mark.parametrize("which", ["A", "B", "AB"])
@pytest.mark.parametrize("a", ["f16", "bf16"])
def test_scaled_operands(which: str, a: str) -> None:
    instr = default_instruction("MI250X", a)
    r = recipes.scaled_operands(6, operands=which, instruction=instr)
    dtype = formats.get(a).dtype
    tiny = 2.0**-18 if a == "f16" else 2.0**-130
    A, B = (normal(4, 24) * tiny).astype(dtype), normal(24, 3).astype(dtype)
    if which == "B":
        A, B = B.T.copy(), A.T.copy()
    C = normal(len(A), B.shape[1]) * np.float32(tiny)
    plain = bitmma.matmul(A, B, C, instruction=instr)
    assert not same(r(A, B, C), plain)
    for D, c in ((r(A, B), None), (r(A, B, C), C)):
        up = {"A": (64, 1), "B": (1, 64), "AB": (64, 64)}[which]
        a64, b64 = A.astype(float) * up[0], B.astype(float) * up[1]
        scaled = [bitmma.quantize(x, a) for x in (a64, b64)]
        c64 = None if c is None else (c.astype(float) * up[0] * up[1]).astype("f4")
        for i, j in np.ndindex(D.shape):
            code, _ = slow.product(
                instr, Schedule(), scaled[0][i].view("u2").tolist(),
                scaled[1][:, j].view("u2").tolist(),
                None if c64 is None else int(c64.view("u4")[i, j]),
            )  # fmt: skip
            want = slow.mul(code, int(np.float32(1 / (up[0] * up[1])).view("u4")), "f32", 0)
            assert int(D.view("u4")[i, j]) == want
    huge = np.full((1, 4), 60000, "f2") if a == "f16" else np.full((1, 4), 3e38).astype(dtype)
    d = recipes.scaled_operands(6, instruction=instr)(huge, np.ones((4, 1), dtype))
    assert np.isinf(d[0, 0])  # as a multiplication in the operands' format gives


QUANTIZED = {
    "mxfp8": (recipes.mxfp8, {}, ("e4m3", "e4m3", "ue8m0", 32)),
    "mxfp8 mixed": (recipes.mxfp8, {"a": "e5m2", "b": "e4m3"}, ("e5m2", "e4m3", "ue8m0", 32)),
    "mxfp6": (recipes.mxfp6, {"a": "e3m2", "b": "e2m3"}, ("e3m2", "e2m3", "ue8m0", 32)),
    "mxfp4": (recipes.mxfp4, {"scale_rule": "ceil"}, ("e2m1", "e2m1", "ue8m0", 32)),
    "nvfp4": (recipes.nvfp4, {}, ("e2m1", "e2m1", "ue4m3", 16)),
    "nvfp4 flat": (recipes.nvfp4, {"tensor_scale": False}, ("e2m1", "e2m1", "ue4m3", 16)),
}


@pytest.mark.parametrize("gpu", ["B200", "RTX 5090"])
@pytest.mark.parametrize("name", QUANTIZED)
def test_products_of_unquantised_numbers(name: str, gpu: str) -> None:
    make, options, (a, b, scale, block) = QUANTIZED[name]
    r = make(gpu, **options, out_format="bf16")  # type: ignore[operator]
    i = r.instruction
    assert (i.a, i.b, i.scale, i.block) == (a, b, scale, block)
    A, B, C = normal(2, 3, 100) * 100, normal(100, 5), normal(3, 5)
    second = "amax" if name == "nvfp4" else None
    rule = {"scale_rule": options["scale_rule"]} if "scale_rule" in options else {}
    common: dict[str, Any] = {"block": block, "scale_format": scale, "tensor_scale": second}
    common |= rule
    qa, qb = quantize_blocks(A, a, **common), quantize_blocks(B, b, axis=-2, **common)
    for c in (None, C):
        e = Epilogue(out_format="bf16")
        if second:
            beta = {} if c is None else {"beta": 1}
            scales = {"scale_a": qa.tensor_scale, "scale_b": qb.tensor_scale}
            e = Epilogue(**scales, **beta, out_format="bf16")
        want = bitmma.matmul(
            qa.values, qb.values, c, instruction=i, scale_a=qa.scales, scale_b=qb.scales, epilogue=e
        )
        got = r(A, B, c)
        assert same(got, want) and got.shape == (2, 3, 5)
        acc = slow.product(
            i, Schedule(), qa.values[1, 2].view("u1").tolist(), qb.values[:, 3].view("u1").tolist(),
            None if c is None or second else int(c.view("u4")[2, 3]),
            qa.scales[1, 2].view("u1").tolist(), qb.scales[:, 3].view("u1").tolist(),
        )[0]  # fmt: skip
        joins = 0 if c is None else int(c.view("u4")[2, 3])
        assert int(got.view("u2")[1, 2, 3]) == slow.epilogue(e, i, acc, 2, 3, joins)


@pytest.mark.parametrize(
    "r",
    [
        recipes.scaled_mm("H100"),
        recipes.deepgemm_fp8(),
        recipes.zero_accumulate(("H100", "m64n8k32.f32.e4m3.e4m3")),
        recipes.scaled_operands(3),
        recipes.nvfp4("B200"),
    ],
    ids=str,
)
def test_a_recipe_is_a_value(r: recipes.Recipe) -> None:
    copy = pickle.loads(pickle.dumps(r))
    assert copy == r and hash(copy) == hash(r)
    assert r.evidence and str(r).startswith(r.name)
    assert isinstance(r.instruction, bitmma.Instruction)


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "mode": (lambda: recipes.scaled_mm("H100", use_fast_accum=1), TypeError, "True or False"),
    "gpu": (lambda: recipes.scaled_mm("A100"), ValueError, "Ampere has no instruction for e4m3"),
    "out": (lambda: recipes.scaled_mm("H100", out_format="tf32"), ValueError, "out_format is one"),
    "power": (lambda: recipes.scaled_operands(1.5), TypeError, "power must be an int"),
    "large power": (lambda: recipes.scaled_operands(200), ValueError, "power must be -126 to 126"),
    "operands": (lambda: recipes.scaled_operands(1, operands="C"), ValueError, "'A', 'B' or 'AB'"),
    "f16": (
        lambda: recipes.scaled_operands(
            1, instruction=("H100", "m64n8k16.f16.f16.f16")
        ), ValueError, "needs an f32 C and D",
    ),
    "instruction": (lambda: recipes.zero_accumulate("H100"), TypeError, "must be an Instruction"),
    "elements": (lambda: recipes.mxfp8("B200", "e2m1"), ValueError, "e4m3 or e5m2, not e2m1"),
    "rule": (lambda: recipes.mxfp4("B200", scale_rule="max"), ValueError, "scale_rule for ue8m0"),
    "rounding": (lambda: recipes.mxfp4("B200", rounding="X"), ValueError, "rounding is one of"),
    "second level": (lambda: recipes.nvfp4("B200", tensor_scale=2.0), TypeError, "True or False"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str) -> None:
    action, error, words = BAD[case]
    with pytest.raises(error, match=words):
        action()
