"""Instructions and hypothetical units: look-up, calls, values, layouts, threads."""

import copy
import dataclasses
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import bitmma
from bitmma import formats, isa, reference
from bitmma.models import (
    FMA,
    GSTFDPA,
    RNE_FP16,
    RNE_FP32,
    RNE_FP64,
    RZ_E8M13,
    RZ_FP32,
    STFDPA,
    TFDPA,
    TRFDPA,
    Lowered,
    Model,
)

F16 = bitmma.instruction("H100", "m16n8k16.f32.f16.f16.f32")
MX = bitmma.instruction("RTX Blackwell", "m16n8k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.f32.ue4m3")


def codes(fmt: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Random codes of moderate numbers, any sign."""
    f = formats.get(fmt)
    x = np.random.default_rng(seed).standard_normal(shape)
    return bitmma.quantize(abs(x) if not f.signed else x, f).view(f.code_dtype)


def values(fmt: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return codes(fmt, shape, seed).view(formats.get(fmt).dtype)


def operands(i: bitmma.Instruction, batch: tuple[int, ...] = ()) -> list[np.ndarray]:
    """A, B, C and, where it has them, scales for one instruction."""
    shapes = [(i.a, (i.m, i.k)), (i.b, (i.k, i.n)), (i.c, (i.m, i.n))]
    if i.scale and i.block:
        shapes += [(i.scale, (i.m, i.k // i.block)), (i.scale, (i.k // i.block, i.n))]
    return [values(f, batch + s, seed) for seed, (f, s) in enumerate(shapes)]


def expected(i: bitmma.Instruction, A, B, C, scale_a=None, scale_b=None) -> np.ndarray:  # type: ignore[no-untyped-def]
    """One instruction by `reference`, output by output, as codes."""
    word = lambda x, f: x.view(formats.get(f).code_dtype).tolist()  # noqa: E731
    out = np.zeros((i.m, i.n), formats.get(i.d).code_dtype)
    for row, column in np.ndindex(out.shape):
        scales = {}
        if scale_a is not None:
            scales = {
                "scale_format": i.scale,
                "scale_a": word(scale_a[row], i.scale),
                "scale_b": word(scale_b[:, column].copy(), i.scale),
            }
        out[row, column] = reference.dpa(
            i.model, word(A[row], i.a), word(B[:, column].copy(), i.b),
            word(C[row, column : column + 1], i.c)[0],
            a_format=i.a, b_format=i.b, c_format=i.c, **scales,
        )  # fmt: skip
    return out


def bits(x: np.ndarray) -> np.ndarray:
    return x.view(f"u{x.dtype.itemsize}")


# --- look-up --------------------------------------------------------------------------------------


def test_the_same_object_comes_back() -> None:
    assert F16 is bitmma.instruction("sm_90", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
    assert F16 in bitmma.instructions("hopper", op="mma", a="float16")
    assert any(F16 is x for x in bitmma.instructions("hopper", op="mma", a="float16"))


@pytest.mark.parametrize(
    ("query", "some", "count"),
    [
        ({"gpu": "V100"}, "m8n8k4.f32.f16.f16.f16", 3),
        ({"gpu": "MI300X", "format": "bf8"}, "f32_16x16x32_bf8_fp8", 6),
        ({"gpu": "Hopper", "op": "wgmma", "n": 8, "d": "f16"}, "m64n8k32.f16.e4m3.e5m2", 5),
        ({"scale": "ue4m3", "op": "mma"}, MX.name, 1),
        ({"gpu": "Ampere", "m": 16, "k": 4}, "m16n8k4.f32.tf32.tf32.f32", 1),
    ],
)
def test_queries(query: dict[str, object], some: str, count: int) -> None:
    found = bitmma.instructions(**query)  # type: ignore[arg-type]
    assert some in [i.name for i in found]
    assert len(found) == count
    assert all(isinstance(i, bitmma.Instruction) for i in found)


def test_nothing_fits() -> None:
    assert bitmma.instructions("Volta", a="e4m3") == ()


def test_every_entry_is_callable() -> None:
    every = bitmma.instructions()
    assert len(every) == len(isa.catalogue()) == len(set(every))
    assert all(i.provenance and i.d == i.model.d for i in every)


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "twin",
    [
        lambda i: pickle.loads(pickle.dumps(i)),
        copy.copy,
        copy.deepcopy,
        dataclasses.replace,
        lambda i: bitmma.Instruction(**{f.name: getattr(i, f.name) for f in dataclasses.fields(i)}),
    ],
)
def test_instructions_are_values(twin) -> None:  # type: ignore[no-untyped-def]
    for i in (F16, MX):
        i(*operands(i))  # what a call caches must not show
        other = twin(i)
        assert other == i and hash(other) == hash(i) and type(other) is bitmma.Instruction
        assert other in {i}
        assert np.array_equal(bits(other(*operands(i))), bits(i(*operands(i))))


@pytest.mark.parametrize("name", ["RNE_FP32", "RNE-FP32", "rne_fp32", " RNE-fp32 "])
def test_conversions_by_name(name: str) -> None:
    made = dataclasses.replace(F16.model, rho=name)  # type: ignore[type-var]
    assert made == dataclasses.replace(F16.model, rho=RNE_FP32)  # type: ignore[type-var]
    assert repr(made) == "TFDPA(L=16, F=25, rho=RNE_FP32, e_zero=-133)"


def test_every_conversion_is_found_by_what_it_prints() -> None:
    for rho in (RZ_FP32, RZ_E8M13, RNE_FP16, RNE_FP32, RNE_FP64):
        for name in (str(rho), repr(rho)):
            assert TFDPA(rho=name).rho is rho  # type: ignore[arg-type]


def test_instructions_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        F16.m = 3  # type: ignore[misc]


def test_a_changed_instruction() -> None:
    odd = dataclasses.replace(F16, model=TFDPA(L=4, F=5))
    assert odd != F16
    assert np.array_equal(bits(odd(*operands(odd))), expected(odd, *operands(odd)))
    title = f"hypothetical, after Hopper mma {F16.name}"
    assert repr(odd) == f"<Instruction {title}: {odd.model!r}>"
    assert odd.title == odd.explain([1], [1]).title == title
    assert str(odd.provenance) == f"hypothetical (after Hopper mma {F16.name})"
    assert pickle.loads(pickle.dumps(odd)) == odd


@pytest.mark.parametrize(
    "field",
    [
        {"model": dataclasses.replace(F16.model, F=20)},  # type: ignore[type-var]
        {"m": 8}, {"n": 16}, {"k": 32}, {"a": "bf16"}, {"gpu": "Ampere"}, {"gpu": "Nobody's"},
        {"op": "wgmma"}, {"name": "m16n8k8.f32.f16.f16.f32"}, {"name": "mine"},
    ],
    ids=str,
)  # fmt: skip
def test_evidence_does_not_outlive_a_change(field: dict[str, Any]) -> None:
    assert F16.provenance.level == "recorded"
    changed = dataclasses.replace(F16, **field)
    assert changed.provenance.level == changed.provenance.family_level == "hypothetical"
    assert dataclasses.replace(changed, **{f: getattr(F16, f) for f in field}) == F16


def test_no_instruction_of_the_catalogue_is_hypothetical() -> None:
    for i in bitmma.instructions():
        assert i.provenance.level != "hypothetical"
        assert i.title == f"{i.gpu} {i.op} {i.name}"


# --- calls ----------------------------------------------------------------------------------------

SAMPLE = [
    ("Volta", "m8n8k4.f32.f16.f16.f16"),
    ("Ampere", "m8n8k4.f64.f64.f64.f64"),
    ("Ampere", "m16n8k8.f32.tf32.tf32.f32"),
    ("Hopper", "m16n8k16.f16.f16.f16.f16"),
    ("Hopper", "m16n8k32.f32.e4m3.e5m2.f32"),
    ("RTX Blackwell", "m16n8k32.kind::f8f6f4.f32.e3m2.e2m1.f32"),
    ("RTX Blackwell", "m16n8k32.kind::mxf8f6f4.block32.f32.e2m3.e5m2.f32.ue8m0"),
    (MX.gpu, MX.name),
    ("CDNA1", "f32_4x4x4f16"),
    ("CDNA2", "f32_4x4x2bf16"),
    ("CDNA3", "f32_16x16x32_fp8_bf8"),
]


@pytest.mark.parametrize(("gpu", "name"), SAMPLE)
def test_calls_and_dot_products_give_the_reference_s_bits(gpu: str, name: str) -> None:
    i = bitmma.instruction(gpu, name)
    given = operands(i)
    D = i(*given)
    assert D.shape == (i.m, i.n) and D.dtype == formats.get(i.d).dtype
    assert np.array_equal(bits(D), expected(i, *given))
    assert len(np.unique(bits(D))) > 3

    A, B, C, *scales = given
    scale_a, scale_b = scales or (None, None)
    d = i.dpa(
        A, B.T[:1], C[:, 0],
        None if scale_a is None else scale_a, None if scale_b is None else scale_b.T[:1],
    )  # fmt: skip
    assert np.array_equal(bits(d), bits(D)[:, 0])

    as_codes = [x.view(f"i{x.dtype.itemsize}") for x in given]
    assert np.array_equal(bits(i(*as_codes)), bits(D)) and i(*as_codes).dtype == D.dtype
    as_void = [x.view(f"V{x.dtype.itemsize}") for x in given[:2]]
    assert np.array_equal(bits(i(*as_void, *given[2:])), bits(D))


def test_c_defaults_to_zero() -> None:
    A, B, C = operands(F16)
    assert np.array_equal(bits(F16(A, B)), bits(F16(A, B, np.zeros_like(C))))
    assert np.array_equal(bits(F16.dpa(A, A)), bits(F16.dpa(A, A, np.zeros(16, np.float32))))
    assert F16.dpa(A[0], A[0]).shape == ()
    assert bits(F16.dpa(A[0], A[0], np.float32(1))) == bits(F16.dpa(A[:1], A[:1], C[:1, 0] * 0 + 1))


@pytest.mark.parametrize("i", [F16, MX], ids=["f16", "mx"])
def test_leading_dimensions_broadcast(i: bitmma.Instruction) -> None:
    A, B, C, *scales = operands(i, (3,))
    D = i(A[:, None], B[0], C[1], *(s[:, None] for s in scales))
    assert D.shape == (3, 1, i.m, i.n)
    for j in range(3):
        one = i(A[j], B[0], C[1], *(s[j] for s in scales))
        assert np.array_equal(bits(D[j, 0]), bits(one))
    if scales:  # scales alone may be batched
        D = i(A[0], B[0], C[0], *scales)
        assert D.shape == (3, i.m, i.n)
        assert np.array_equal(bits(D[2]), bits(i(A[0], B[0], C[0], *(s[2] for s in scales))))


def test_empty_batches() -> None:
    A, B, C = operands(F16)
    assert F16(np.repeat(A[None], 0, 0), B, C).shape == (0, 16, 8)
    assert F16(np.repeat(A[None], 0, 0), B, C).dtype == np.float32
    assert F16.dpa(A[:0], A[0]).shape == (0,)


LAYOUTS = {
    "Fortran": np.asfortranarray,
    "strided": lambda x: np.repeat(np.repeat(x, 2, -1), 3, -2)[..., ::3, ::2],
    "reversed": lambda x: x[..., ::-1, ::-1].copy()[..., ::-1, ::-1],
    "unaligned": lambda x: (
        np.frombuffer(b"?" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape)
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("i", [F16, MX], ids=["f16", "mx"])
def test_layout_changes_no_bit(i: bitmma.Instruction, layout: str) -> None:
    given = operands(i, (2,))
    other = [LAYOUTS[layout](x) for x in given]
    for x in other:
        x.flags.writeable = False
    before = [x.tobytes() for x in other]
    assert np.array_equal(bits(i(*other)), bits(i(*given)))
    assert [x.tobytes() for x in other] == before


def test_order_changes_no_bit() -> None:
    A, B, C = operands(F16, (4,))
    D = F16(A, B, C)
    order = [2, 0, 3, 1]
    rows, columns = (
        np.random.default_rng(1).permutation(16),
        np.random.default_rng(2).permutation(8),
    )
    other = F16(A[order][:, rows], B[order][..., columns], C[order][:, rows][..., columns])
    assert np.array_equal(bits(other), bits(D[order][:, rows][..., columns]))


def test_results_are_new() -> None:
    A, B, C = operands(F16)
    D = F16(A, B, C)
    assert D.flags.writeable and D.flags.c_contiguous
    assert not any(np.shares_memory(D, x) for x in (A, B, C))


def test_many_threads_at_once() -> None:
    fresh = pickle.loads(pickle.dumps(F16))  # nothing cached yet
    given = [operands(F16, (n,)) for n in (1, 2)] * 8
    want = [bits(F16(*x)) for x in given]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda x: bits(fresh(*x)), given))
    assert all(np.array_equal(g, w) for g, w in zip(got, want, strict=True))


# --- explain --------------------------------------------------------------------------------------


def test_explain() -> None:
    i = bitmma.instruction("Hopper", "wgmma.m64n8k32.f32.e4m3.e4m3")
    shown = i.explain([16, 0.125, "0.375", "0x1.8p0"], [16, 0.125, 0.1875, 0.75])
    assert shown.trace.result == 0x43809800
    assert shown.title == "Hopper wgmma m64n8k32.f32.e4m3.e4m3"
    assert len(shown.trace.a) == 32

    A, B, C = operands(F16)
    trace = F16.explain(A[1], B[:, 2], C[1, 2]).trace
    assert trace.result == bits(F16(A, B, C))[1, 2]
    assert F16.explain(bits(A[1]), bits(B[:, 2]), bits(C)[1, 2:3]).trace.result == trace.result
    assert F16.explain(A[1, :3], B[:3, 2]).trace.a[3:] == (0,) * 13


def test_explain_scales() -> None:
    A, B, C, scale_a, scale_b = operands(MX)
    trace = MX.explain(A[0], B[:, 0], C[0, 0], scale_a[0], scale_b[:, 0]).trace
    assert trace.result == bits(MX(A, B, C, scale_a, scale_b))[0, 0]
    one = MX.explain([1], [1], 0, 2, "0x38").trace
    assert one.scale_a == (0x40,) * 4 and one.scale_b == (0x38,) * 4
    assert one.result == 0x40000000
    assert MX.explain([1], [1], 0, [2, 2, 2, 2], [1] * 4).trace.result == one.result


# --- hypothetical units ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "a", "b"),
    [
        (F16.model, "f16", "f16"),
        (dataclasses.replace(F16.model, F=30), "f16", "f16"),  # type: ignore[type-var]
        (TFDPA(L=8, F=13), "e4m3", "e5m2"),
        (TFDPA(L=3, F=4), "bf16", "f16"),
        (FMA(RNE_FP64), "f32", "f64"),
        (TRFDPA(L=4), "xf32", "xf32"),
        (Lowered(K=8, unit=TFDPA(L=4)), "e2m1", "e3m2"),
    ],
)
def test_mma_on_a_model(model: Model, a: str, b: str) -> None:
    K = 11  # fills no group
    A, B, C = values(a, (2, K)), values(b, (K, 3), 1), values(model.d, (2, 3), 2)
    D = bitmma.mma(model, A, B, C, a=a, b=b)
    assert D.dtype == formats.get(model.d).dtype
    for row, column in np.ndindex(2, 3):
        want = reference.dpa(
            model, bits(A)[row].tolist(), bits(B)[:, column].tolist(), int(bits(C)[row, column]),
            a_format=a, b_format=b, c_format=model.d,
        )  # fmt: skip
        assert bits(D)[row, column] == want


def test_mma_with_another_c_and_block_scales() -> None:
    A, B = values("e4m3", (2, 32)), values("e4m3", (32, 3), 1)
    C = values("f16", (2, 3), 2)
    wide = C.astype(np.float32)
    model = TFDPA(L=32)
    assert np.array_equal(
        bits(bitmma.mma(model, A, B, C, a="e4m3", c="f16")),
        bits(bitmma.mma(model, A, B, wide, a="e4m3")),
    )
    one = np.full((2, 1), 127, np.uint8).view(ml_dtypes.float8_e8m0fnu)
    half = np.full((1, 3), 126, np.uint8).view(ml_dtypes.float8_e8m0fnu)
    scaled = {"scale": "ue8m0", "block": 32, "scale_a": one, "scale_b": half}
    D = bitmma.mma(STFDPA(), A, B, a="e4m3", **scaled)  # type: ignore[arg-type]
    assert np.array_equal(bits(D), bits(bitmma.mma(model, A, B, a="e4m3") / np.float32(2)))


def test_mma_empty() -> None:
    for M, K, N in [(0, 4, 3), (2, 4, 0), (0, 0, 0)]:
        D = bitmma.mma(TFDPA(), np.zeros((M, K), "f2"), np.zeros((K, N), "f2"), a="f16")
        assert D.shape == (M, N) and D.dtype == np.float32
    C = values("f32", (2, 3))
    D = bitmma.mma(FMA(), np.zeros((2, 0), "f4"), np.zeros((0, 3), "f4"), C, a="f32")
    assert np.array_equal(bits(D), bits(C))


def test_scales_of_hypothetical_units_name_their_blocks() -> None:
    A, B = values("e2m1", (2, 64)), values("e2m1", (64, 3), 1)
    sa, sb = values("ue4m3", (2, 2), 2), values("ue4m3", (2, 3), 3)
    scaled = {"scale": "ue4m3", "block": 32, "scale_a": sa, "scale_b": sb}
    D = bitmma.mma(GSTFDPA(), A, B, a="e2m1", **scaled)  # type: ignore[arg-type]
    twice = {"scale_a": np.repeat(sa, 2, -1), "scale_b": np.repeat(sb, 2, -2), "block": 16}
    E = bitmma.mma(GSTFDPA(), A, B, a="e2m1", scale="ue4m3", **twice)  # type: ignore[arg-type]
    assert np.array_equal(bits(D), bits(E)) and np.all(D != 0)
