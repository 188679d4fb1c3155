"""The engine against the reference, which share no arithmetic: every bit, on adversarial inputs."""

import dataclasses
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bitmma import cases, engine, formats, isa, reference
from bitmma.models import (
    EFDPA,
    FMA,
    GSTFDPA,
    GTRFDPA,
    RNE_FP16,
    RNE_FP32,
    RNE_FP64,
    RZ_E8M13,
    RZ_FP32,
    STFDPA,
    TFDPA,
    TRFDPA,
    Conversion,
    FTZMulAdd,
    Lowered,
    Model,
)

Check = Callable[..., None]


class Config(NamedTuple):
    """A model with everything else a dot product needs."""

    model: Model
    a: str
    b: str
    c: str
    k: int
    scale: str | None = None
    block: int | None = None

    def __str__(self) -> str:
        scale = f"-{self.scale}/{self.block}" if self.scale else ""
        return f"{self.model}-{self.a}-{self.b}-{self.c}-k{self.k}{scale}"

    @property
    def formats(self) -> dict[str, Any]:
        return {
            "a_format": self.a, "b_format": self.b, "c_format": self.c, "scale_format": self.scale,
        }  # fmt: skip

    def draw(self, count: int, seed: int, category: Any = None) -> cases.Cases:
        return cases.generate(
            self.model, self.a, self.b, self.c, self.k, count, seed,
            category=category, scale_format=self.scale, block=self.block,
        )  # fmt: skip

    def run(self, x: cases.Cases, **options: Any) -> np.ndarray:
        return engine.dpa(
            self.model, x.a, x.b, x.c, scale_a=x.scale_a, scale_b=x.scale_b, block=self.block,
            **self.formats, **options,
        )  # fmt: skip

    def traces(self, x: cases.Cases) -> list[reference.Trace]:
        def scales(i: int) -> dict[str, Any]:
            if x.scale_a is None or x.scale_b is None:
                return {}
            return {"scale_a": x.scale_a[i].tolist(), "scale_b": x.scale_b[i].tolist()}

        return [
            reference.trace(
                self.model, x.a[i].tolist(), x.b[i].tolist(), int(x.c[i]),
                **self.formats, **scales(i),
            )
            for i in range(len(x.c))
        ]  # fmt: skip

    def chain(
        self, a: np.ndarray, b: np.ndarray, c: int, scale_a: Any, scale_b: Any, k: int
    ) -> int:
        return reference.chain(
            self.model, a.tolist(), b.tolist(), c, k=k, **self.formats, block=self.block,
            scale_a=() if scale_a is None else scale_a.tolist(),
            scale_b=() if scale_b is None else scale_b.tolist(),
        )  # fmt: skip


def results(traces: list[reference.Trace], model: Model) -> np.ndarray:
    return np.array([t.result for t in traces], formats.get(model.d).code_dtype)


# --- the coverage floor -------------------------------------------------------------------------

NO_C_ALIGNED = ("truncated", "e_zero")  # models that align nothing
NO_INF = ("inf_minus_inf",)
#: f32's range is out of reach of products of these formats: an overflow or e_zero cannot happen.
NARROW = ("e_zero", "overflow")

FLOOR = [
    (Config(TFDPA(4, 23, RZ_FP32, -131), "bf16", "bf16", "f32", 4), ()),
    (Config(TFDPA(4, 23, RNE_FP16, -19), "f16", "f16", "f16", 4), ()),
    (Config(TFDPA(8, 24, RZ_FP32, -132), "bf16", "bf16", "f32", 16), ()),
    (Config(TFDPA(8, 24, RNE_FP16, -20), "f16", "f16", "f16", 16), ()),
    (Config(TFDPA(4, 24, RZ_FP32, -132), "tf32", "tf32", "f32", 8), ()),
    (Config(TFDPA(16, 25, RZ_FP32, -133), "bf16", "bf16", "f32", 16), ()),
    (Config(TFDPA(16, 25, RNE_FP16, -21), "f16", "f16", "f16", 16), ()),
    (Config(TFDPA(8, 25, RZ_FP32, -133), "tf32", "tf32", "f32", 8), ()),
    (Config(TFDPA(32, 13, RNE_FP16, -21), "e5m2", "e5m2", "f16", 32), ()),
    (Config(TFDPA(32, 13, RZ_E8M13, -133), "e5m2", "e5m2", "f32", 32), NARROW),
    (Config(TFDPA(16, 13, RZ_E8M13, -132), "e4m3", "e4m3", "f32", 32), (*NARROW, *NO_INF)),
    (Config(TFDPA(16, 13, RNE_FP16, -20), "e4m3", "e5m2", "f16", 32), ("e_zero",)),
    (Config(TFDPA(32, 25, RZ_FP32, -133), "e2m3", "e3m2", "f32", 32), (*NARROW, *NO_INF)),
    (Config(TFDPA(32, 25, RNE_FP16, -21), "e2m1", "e5m2", "f16", 32), ("e_zero",)),
    (Config(STFDPA(), "e5m2", "e4m3", "f32", 32, "ue8m0", 32), ()),
    (Config(STFDPA(), "e2m1", "e3m2", "f32", 32, "ue8m0", 32), NO_INF),
    (Config(GSTFDPA(), "e2m1", "e2m1", "f32", 64, "ue8m0", 32), NO_INF),
    (Config(GSTFDPA(), "e2m1", "e2m1", "f32", 64, "ue8m0", 16), NO_INF),
    (Config(GSTFDPA(), "e2m1", "e2m1", "f32", 64, "ue4m3", 16), (*NARROW, *NO_INF)),
    (Config(TRFDPA(8), "bf16", "bf16", "f32", 16), ()),
    (Config(TRFDPA(4), "xf32", "xf32", "f32", 8), ()),
    (Config(TRFDPA(8), "f16", "f16", "f32", 16), NARROW),
    (Config(GTRFDPA(16), "fp8", "bf8", "f32", 32), (*NARROW, *NO_INF)),
    (Config(GTRFDPA(16), "bf16", "bf16", "f32", 16), ()),
    (Config(EFDPA(2), "bf16", "bf16", "f32", 8), NO_C_ALIGNED),
    (Config(EFDPA(4), "f16", "f16", "f32", 16), (*NO_C_ALIGNED, "overflow")),
    (Config(FMA(RNE_FP32), "f32", "f32", "f32", 4), NO_C_ALIGNED),
    (Config(FMA(RNE_FP64), "f64", "f64", "f64", 4), NO_C_ALIGNED),
    (Config(FTZMulAdd(2), "bf16", "bf16", "f32", 8), (*NO_C_ALIGNED, "subnormal")),
    (Config(FTZMulAdd(4), "bf16", "bf16", "f32", 16), (*NO_C_ALIGNED, "subnormal")),
    (Config(FTZMulAdd(4), "f16", "f16", "f32", 16), (*NO_C_ALIGNED, "subnormal", "overflow")),
    (Config(Lowered(32, TFDPA(16, 25, RNE_FP16, -21)), "e5m2", "e5m2", "f16", 32), ()),
    (Config(Lowered(32, TFDPA(16, 25)), "e4m3", "e5m2", "f32", 32), NARROW),
    (Config(Lowered(16, TFDPA(8, 25)), "e5m2", "e4m3", "f32", 16), NARROW),
]  # fmt: skip


@pytest.mark.parametrize(("config", "unreachable"), FLOOR, ids=str)
def test_every_category_with_the_coverage_floor(
    config: Config, unreachable: tuple[str, ...], assert_same_bits: Check
) -> None:
    """Whatever the formats can do at all is done, at least once, and the engine agrees on it."""
    mixed = config.draw(len(cases.CATEGORIES) * 40, seed=2026)
    special = config.draw(8 * config.k, seed=1, category="special")
    traces = []
    for part in (mixed, special):
        found = config.traces(part)
        assert_same_bits(config.model, config.run(part), results(found, config.model))
        traces += found
    positions = [
        (x, i) for x, f in (("a", config.a), ("b", config.b)) if formats.get(f).has_nan
        for i in range(config.k)
    ]  # fmt: skip
    floor = cases.coverage(traces)
    assert set(floor.missing(nan_positions=[*positions, ("c", 0)])) == set(unreachable)
    finite = np.isfinite(
        formats.decode(results(traces[: len(mixed.c)], config.model), config.model.d)
    )
    assert finite.mean() > 0.5


# --- random models ------------------------------------------------------------------------------

OPERANDS = ("f64", "f32", "tf32", "xf32", "f16", "bf16", "e5m2", "e4m3", "bf8", "fp8", "e3m2",
            "e2m3", "e2m1")  # fmt: skip
ADDENDS = ("f32", "f16", "bf16", "f64")


@st.composite
def conversions(draw: st.DrawFn) -> Conversion:
    name = draw(st.sampled_from(["f32", "f16", "bf16", "f64"]))
    bits = draw(st.none() | st.integers(1, formats.get(name).mantissa_bits))
    return Conversion(draw(st.sampled_from(sorted(formats.ROUNDINGS))), name, bits)


known = st.sampled_from([RZ_FP32, RZ_E8M13, RNE_FP16, RNE_FP32, RNE_FP64])
rhos = known | conversions()
lengths = st.sampled_from([1, 2, 4, 8, 16, 32]) | st.integers(1, 64)
bits = st.sampled_from([13, 23, 24, 25, 31, 35]) | st.integers(1, 64)
exponents = st.sampled_from([-131, -132, -133, -19, -20, -21, -139]) | st.integers(-400, 60)


@st.composite
def configs(draw: st.DrawFn) -> Config:
    a = draw(st.sampled_from(OPERANDS))
    b = draw(st.sampled_from([a, a, *OPERANDS]))
    family = draw(st.sampled_from(
        [TFDPA, TFDPA, STFDPA, GSTFDPA, TRFDPA, GTRFDPA, EFDPA, FMA, FTZMulAdd, Lowered]
    ))  # fmt: skip
    scale = block = None
    match family.__name__:
        case "TFDPA":
            model: Model = TFDPA(draw(lengths), draw(bits), draw(rhos), draw(exponents))
        case "STFDPA":
            model = STFDPA(draw(lengths), draw(bits), draw(rhos), draw(exponents))
            scale, block = "ue8m0", model.L * draw(st.integers(1, 2))
        case "GSTFDPA":
            G, groups = draw(st.sampled_from([1, 2, 4, 16])), draw(st.integers(1, 4))
            model = GSTFDPA(G * groups, G, draw(bits), draw(rhos), draw(exponents))
            scale = draw(st.sampled_from(["ue8m0", "ue4m3"]))
            block = draw(st.sampled_from([G, model.L]))
            a, b = (draw(st.sampled_from(OPERANDS[6:])) for _ in "ab")
        case "TRFDPA" | "GTRFDPA":
            kind = TRFDPA if family is TRFDPA else GTRFDPA
            model = kind(draw(lengths), draw(bits), draw(bits), draw(rhos))
        case "EFDPA":
            model = EFDPA(draw(lengths), draw(rhos))
        case "FMA":
            model = FMA(draw(st.sampled_from([RNE_FP32, RNE_FP64])))
        case "FTZMulAdd":
            model = FTZMulAdd(draw(st.sampled_from([2, 4])))
        case _:
            unit = TFDPA(draw(lengths), draw(bits), draw(rhos), draw(exponents))
            parts = draw(st.sampled_from(
                [((0, 1), (2, 3)), ((0,),), ((0, 2), (1,)), ((1,), (0,)), ((3, 0), (2,), (1,))]
            ))  # fmt: skip
            period = sum(map(len, parts))
            model = Lowered(period * draw(st.integers(1, 8)), unit, parts)
    k = draw(st.integers(1, 40))
    if block is not None:
        k = block * draw(st.integers(1, 2))
        k += -k % model.group
    c = draw(st.sampled_from([model.d, model.d, *ADDENDS]))
    return Config(model, a, b, c, k, scale, block)


@given(configs(), st.integers(0, 2**32))
@example(Config(TFDPA(16, 64, RNE_FP64, -133), "f64", "f64", "f64", 16), 0)
@example(Config(TFDPA(1, 1, Conversion("RA", "bf16", 1), 60), "f32", "e2m1", "bf16", 3), 0)
@example(Config(EFDPA(64, RNE_FP64), "f64", "f32", "f64", 64), 0)
@example(Config(TRFDPA(3, 64, 64, RNE_FP64), "bf16", "f64", "f64", 7), 0)
@example(Config(FTZMulAdd(4), "f64", "f64", "f32", 8), 0)
@example(Config(FMA(RNE_FP32), "f64", "f64", "f64", 3), 0)
def test_any_model(assert_same_bits: Check, config: Config, seed: int) -> None:
    x = config.draw(2 * len(cases.CATEGORIES), seed)
    want = results(config.traces(x), config.model)
    assert_same_bits(config.model, config.run(x), want, str(config))


@pytest.mark.parametrize(
    "config",
    [
        Config(TFDPA(4096, 25), "f16", "f16", "f32", 4096),
        Config(TFDPA(1000, 13, RZ_E8M13), "e4m3", "e4m3", "f32", 2000),
        Config(TFDPA(4096, 64, RNE_FP64, -400), "bf16", "bf16", "f64", 4096),
        Config(EFDPA(4096), "e5m2", "e4m3", "f32", 4096),
        Config(TRFDPA(512), "bf16", "bf16", "f32", 1024),
        Config(GTRFDPA(4096, 64, 64), "fp8", "fp8", "f32", 4096),
        Config(STFDPA(1024), "e4m3", "e5m2", "f32", 1024, "ue8m0", 1024),
        Config(GSTFDPA(4096, 512), "e2m1", "e2m1", "f32", 4096, "ue8m0", 512),
        Config(Lowered(4096, TFDPA(512)), "e5m2", "e5m2", "f32", 4096),
    ],
    ids=str,
)
def test_very_long_groups(config: Config, assert_same_bits: Check) -> None:
    x = config.draw(len(cases.CATEGORIES), seed=4)
    assert_same_bits(config.model, config.run(x), results(config.traces(x), config.model))


@pytest.mark.parametrize("rounding", formats.ROUNDINGS)
@pytest.mark.parametrize("d", ["f64", "f32", "f16", "bf16"])
@pytest.mark.parametrize("bits", [None, 1, 5])
def test_every_conversion(rounding: str, d: str, bits: int | None, assert_same_bits: Check) -> None:
    for model in (
        TFDPA(4, 30, Conversion(rounding, d, bits), -100),
        EFDPA(4, Conversion(rounding, d, bits)),
        TRFDPA(4, 24, 31, Conversion(rounding, d, bits)),
    ):
        config = Config(model, "bf16", "bf16", d, 4)
        x = config.draw(260, seed=8, category=["ties", "overflow", "subnormal", "cancel"])
        assert_same_bits(config.model, config.run(x), results(config.traces(x), config.model))


def test_every_catalogue_model(assert_same_bits: Check) -> None:
    """Each distinct model with each of its type pairs, all categories."""
    kinds = {(e.model, e.a, e.b, e.c, e.k, e.scale, e.block) for e in isa.catalogue()}
    for kind in sorted(kinds, key=str):
        config = Config(*kind)
        x = config.draw(3 * len(cases.CATEGORIES), seed=12)
        want = results(config.traces(x), config.model)
        assert_same_bits(config.model, config.run(x), want, str(config))


# --- all 256 x 256 pairs ------------------------------------------------------------------------

PAIRS = [
    *itertools.product(("e4m3", "e5m2"), repeat=2),
    *itertools.product(("fp8", "bf8"), repeat=2),
]
#: The second product: large, so that much of the first is cut; in the middle; and tiny.
SECOND = {"e4m3": (448, 1.125, 2.0**-9), "e5m2": (57344, 1.25, 2.0**-16),
          "fp8": (-240, 1.875, 2.0**-10), "bf8": (-57344, 1.75, 2.0**-17)}  # fmt: skip


def two_terms(model: TFDPA | GTRFDPA, n: np.ndarray, q: np.ndarray, e: np.ndarray) -> np.ndarray:
    """Two finite products n * 2**q (N, 2) of exponents e, c = 0: vectorised int64, on its own.

    Without c, and with one product on each side, GTR-FDPA is: both aligned rounding down.
    """
    e = np.where(n == 0, -(10**6), e)
    e_max = e.max(axis=1)
    if isinstance(model, TFDPA):
        e_max = np.maximum(e_max, model.e_zero)
    unit = np.where(e_max < -(10**5), 0, e_max - model.F)[:, None]
    shift = np.where(n == 0, 0, q - unit)
    up, down = np.clip(shift, 0, 40), np.clip(-shift, 0, 62)
    magnitude = np.abs(n)
    truncated = np.sign(n) * ((magnitude << up) >> down)
    floor = (n << up) >> down  # an arithmetic shift rounds down
    kept = truncated if isinstance(model, TFDPA) else floor
    total = kept.sum(axis=1)
    assert np.abs(total).max() < 1 << 53
    exact = np.ldexp(total.astype(np.float64), unit[:, 0])
    with np.errstate(over="ignore", under="ignore"):
        if model.rho == RNE_FP16:
            out = exact.astype(np.float16).view(np.uint16)
        elif model.rho == RNE_FP32:
            out = exact.astype(np.float32).view(np.uint32)
        else:  # toward zero, then to the bits that are kept
            near = exact.astype(np.float32)
            over = np.abs(near.astype(np.float64)) > np.abs(exact)
            out = np.where(over, np.nextafter(near, np.float32(0)), near).view(np.uint32)
            dropped = 23 - (model.rho.mantissa_bits or 23)
            out = out >> np.uint32(dropped) << np.uint32(dropped)
    sign_only = out == out.dtype.type(1 << (8 * out.dtype.itemsize - 1))
    return np.where(sign_only & (model.nan == "ones"), out.dtype.type(0), out)


def decoded(format: str) -> np.ndarray:
    """Signed significand, exponent and kind of all 256 codes: (256, 3)."""
    fmt = formats.get(format)
    rows = [fmt.decode(code) for code in range(256)]
    return np.array(
        [(-r.significand if r.sign else r.significand, r.exponent, r.kind) for r in rows]
    )


def pair_models(a: str) -> list[Model]:
    if a in ("fp8", "bf8"):
        return [GTRFDPA(16)]
    return [
        TFDPA(16, 13, RZ_E8M13, -132), TFDPA(16, 13, RNE_FP16, -20), TFDPA(32, 25, RZ_FP32, -133),
        TFDPA(32, 25, RNE_FP16, -21), TFDPA(2, 3, RZ_FP32, -5),
    ]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), PAIRS)
@pytest.mark.parametrize("order", [0, 1])
def test_all_pairs_of_codes_against_integers(
    a: str, b: str, order: int, assert_same_bits: Check
) -> None:
    fa, fb = formats.get(a), formats.get(b)
    x, y = (v.ravel() for v in np.indices((256, 256)))
    info_a, info_b = decoded(a), decoded(b)
    seconds = list(zip(SECOND[a], SECOND[b], strict=True))
    for second_a, second_b in seconds[1:2] if order else seconds:
        other = [
            int(formats.quantize(v, f).view(np.uint8)) for v, f in ((second_a, a), (second_b, b))
        ]
        pair = (
            np.stack([x, np.full_like(x, other[0])], 1),
            np.stack([y, np.full_like(y, other[1])], 1),
        )
        left, right = (v[:, ::-1] if order else v for v in pair)
        pa, pb = info_a[left], info_b[right]
        n, e = pa[..., 0] * pb[..., 0], pa[..., 1] + pb[..., 1]
        q = e - fa.mantissa_bits - fb.mantissa_bits
        values = formats.decode(left.astype(np.uint8), a), formats.decode(right.astype(np.uint8), b)
        with np.errstate(invalid="ignore"):
            special = (values[0] * values[1]).sum(axis=1)  # right where it is Inf or NaN
        finite = np.isfinite(special)
        assert finite.mean() > 0.9
        for model in pair_models(a):
            fd = formats.get(model.d)
            want = two_terms(model, np.where(finite[:, None], n, 0), q, e)  # type: ignore[arg-type]
            nan = fd.nan_code if model.nan == "quiet" else (1 << (fd.width - 1)) - 1
            inf = np.where(special < 0, fd.sign_bit | fd.inf_code, fd.inf_code) if fd.has_inf else 0
            want = np.where(finite, want, np.where(np.isnan(special), nan, inf))
            got = engine.dpa(
                model, left.astype(np.uint8), right.astype(np.uint8), None, a_format=a, b_format=b
            )
            assert_same_bits(model, got, want.astype(fd.code_dtype), f"{a} {b} {second_a}")


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_pairs_of_codes_against_the_reference(a: str, b: str, assert_same_bits: Check) -> None:
    """A share of the same pairs, c among the terms, for every kind of model."""
    picked = np.arange(0, 1 << 16, 127)
    left = np.stack([picked >> 8, picked * 37 & 0xFF], 1).astype(np.uint8)
    right = np.stack([picked & 0xFF, picked * 91 >> 3 & 0xFF], 1).astype(np.uint8)
    for model, c in (
        (pair_models(a)[0], 0x3F812345), (EFDPA(2), 0xBF812345), (TRFDPA(2), 0x3F812345),
        (FTZMulAdd(2), 0x00812345), (FMA(RNE_FP32), 0x80000000), (STFDPA(2), 0x5F812345),
        (GTRFDPA(2), 0xB3812345), (Lowered(4, TFDPA(2)), 0x1F812345),
    ):  # fmt: skip
        want = [
            reference.dpa(model, i, j, c, a_format=a, b_format=b, c_format="f32")
            for i, j in zip(left.tolist(), right.tolist(), strict=True)
        ]
        got = engine.dpa(
            model, left, right, np.full(len(left), c, np.uint32), a_format=a, b_format=b,
            c_format="f32",
        )  # fmt: skip
        want = np.array(want, formats.get(model.d).code_dtype)  # type: ignore[assignment]
        assert_same_bits(model, got, want, f"{a} {b}")


@pytest.mark.parametrize("name", ["e3m2", "e2m3", "e2m1"])
def test_all_pairs_of_narrow_codes(name: str, assert_same_bits: Check) -> None:
    size = 1 << formats.get(name).width
    x, y = (v.ravel().astype(np.uint8) for v in np.indices((size, size)))
    left = np.stack([x, np.roll(x, 7)], 1)
    right = np.stack([y, np.roll(y, 3)], 1)
    for model in (TFDPA(32, 25), TFDPA(32, 25, RNE_FP16, -21), TFDPA(2, 2), EFDPA(2)):
        want = [
            reference.dpa(model, i, j, 0, a_format=name, b_format=name, c_format=model.d)
            for i, j in zip(left.tolist(), right.tolist(), strict=True)
        ]
        got = engine.dpa(model, left, right, None, a_format=name, b_format=name)
        assert_same_bits(model, got, np.array(want, got.dtype), name)


# --- matrix products ----------------------------------------------------------------------------

PRODUCTS = [
    Config(TFDPA(8, 24, RZ_FP32, -132), "f16", "f16", "f32", 16),
    Config(TFDPA(16, 25, RZ_FP32, -133), "bf16", "bf16", "f32", 16),
    Config(TFDPA(16, 25, RNE_FP16, -21), "f16", "f16", "f16", 16),
    Config(TFDPA(8, 25, RZ_FP32, -133), "tf32", "tf32", "f32", 8),
    Config(TFDPA(32, 13, RZ_E8M13, -133), "e4m3", "e5m2", "f32", 32),
    Config(TFDPA(32, 13, RNE_FP16, -21), "e5m2", "e5m2", "f16", 32),
    Config(TFDPA(32, 25, RZ_FP32, -133), "e3m2", "e2m1", "f32", 32),
    Config(STFDPA(), "e5m2", "e4m3", "f32", 32, "ue8m0", 32),
    Config(GSTFDPA(), "e2m1", "e2m1", "f32", 64, "ue8m0", 32),
    Config(GSTFDPA(), "e2m1", "e2m1", "f32", 64, "ue4m3", 16),
    Config(TRFDPA(8), "bf16", "bf16", "f32", 16),
    Config(TRFDPA(4), "xf32", "xf32", "f32", 8),
    Config(GTRFDPA(16), "fp8", "bf8", "f32", 32),
    Config(EFDPA(4), "f16", "f16", "f32", 16),
    Config(FTZMulAdd(2), "bf16", "bf16", "f32", 8),
    Config(FTZMulAdd(4), "f16", "f16", "f32", 16),
    Config(FMA(RNE_FP64), "f64", "f64", "f64", 4),
    Config(FMA(RNE_FP32), "f32", "f32", "f32", 4),
    Config(Lowered(), "e4m3", "e5m2", "f32", 32),
    Config(TFDPA(3, 40, Conversion("RNA", "bf16"), -140), "f32", "f16", "bf16", 7),
]  # fmt: skip


def product(config: Config, x: cases.Matrices, **options: Any) -> np.ndarray:
    return engine.mma(
        config.model, x.a, x.b, x.c, k=config.k, scale_a=x.scale_a, scale_b=x.scale_b,
        block=config.block, **config.formats, **options,
    )  # fmt: skip


def product_by_reference(config: Config, x: cases.Matrices, rows: Any, columns: Any) -> np.ndarray:
    out = np.empty((len(rows), len(columns)), formats.get(config.model.d).code_dtype)
    for (i, row), (j, column) in itertools.product(enumerate(rows), enumerate(columns)):
        out[i, j] = config.chain(
            x.a[row], x.b[:, column], int(x.c[row, column]),
            None if x.scale_a is None else x.scale_a[row],
            None if x.scale_b is None else x.scale_b[:, column], config.k,
        )  # fmt: skip
    return out


def sprinkle(config: Config, x: cases.Matrices, share: float, seed: int) -> cases.Matrices:
    """Inf, NaN, zeros and subnormals over a share of A, B and C."""
    rng = np.random.default_rng(seed)

    def over(codes: np.ndarray, name: str) -> np.ndarray:
        fmt = formats.get(name)
        odd = [0, 1 << fmt.dropped_bits, fmt.max_code]
        odd += [fmt.inf_code] if fmt.has_inf else []
        odd += [fmt.nan_code] if fmt.has_nan else []
        odd += [v | fmt.sign_bit for v in odd if fmt.specials != "fnuz" or v]
        chosen = np.array(odd, codes.dtype)[rng.integers(0, len(odd), codes.shape)]
        return np.where(rng.random(codes.shape) < share, chosen, codes)

    return dataclasses.replace(
        x, a=over(x.a, config.a), b=over(x.b, config.b), c=over(x.c, config.c)
    )


@pytest.mark.parametrize("config", PRODUCTS, ids=str)
@pytest.mark.parametrize("share", [0, 0.001, 0.01, 0.1])
def test_products_in_every_shape_of_block(
    config: Config, share: float, assert_same_bits: Check
) -> None:
    """Edges of tiles and blocks: 70 x 45 outputs, of which a lattice goes through the reference."""
    step = config.block or 1
    K = (3 * config.k // 2 + step - 1) // step * step + (0 if config.block else 3)
    categories = [c for c in cases.CATEGORIES if c != "special"]
    x = cases.matrices(
        config.model, config.a, config.b, config.c, 70, 45, K, 3,
        category=categories, scale_format=config.scale, block=config.block,
    )  # fmt: skip
    x = sprinkle(config, x, share, seed=int(1000 * share))
    rows, columns = [0, 1, 7, 8, 31, 32, 33, 63, 64, 69], [0, 1, 15, 16, 31, 32, 44]
    got = product(config, x)
    want = product_by_reference(config, x, rows, columns)
    assert_same_bits(config.model, got[np.ix_(rows, columns)], want)


@pytest.mark.parametrize("config", PRODUCTS, ids=str)
@pytest.mark.parametrize("category", ["normal", "narrow", "subnormal", "huge", "zeros"])
def test_uniform_products(config: Config, category: str, assert_same_bits: Check) -> None:
    """Whole matrices of one kind, so that the fast paths run undisturbed, at two sizes."""
    for m, n in ((33, 34), (1, 40), (40, 1)):
        x = cases.matrices(
            config.model, config.a, config.b, config.c, m, n, 4 * config.k, 5,
            category=category, scale_format=config.scale, block=config.block,
        )  # fmt: skip
        rows, columns = sorted({0, m // 2, m - 1}), sorted({0, n // 3, n - 1})
        got = product(config, x)
        want = product_by_reference(config, x, rows, columns)
        assert_same_bits(config.model, got[np.ix_(rows, columns)], want)


@pytest.mark.parametrize("config", PRODUCTS, ids=str)
def test_one_output_does_not_disturb_another(config: Config) -> None:
    """A tile, a row and a single output of a product are those of the whole product."""
    x = cases.matrices(
        config.model, config.a, config.b, config.c, 40, 37, 2 * config.k, 6,
        scale_format=config.scale, block=config.block,
    )  # fmt: skip
    whole = product(config, x)
    for rows, columns in (
        (slice(5, 6), slice(None)), (slice(None), slice(9, 10)), (slice(3, 38), slice(1, 34)),
        (slice(39, 40), slice(36, 37)), (slice(None, None, -1), slice(None, None, -2)),
    ):  # fmt: skip
        part = cases.Matrices(
            x.a[rows], x.b[:, columns], x.c[rows, columns],
            None if x.scale_a is None else x.scale_a[rows],
            None if x.scale_b is None else x.scale_b[:, columns],
        )  # fmt: skip
        assert np.array_equal(product(config, part), whole[rows, columns])


@pytest.mark.parametrize("config", PRODUCTS, ids=str)
def test_a_missing_c_is_plus_zero(config: Config) -> None:
    x = cases.matrices(
        config.model, config.a, config.b, config.c, 9, 11, 2 * config.k, 6,
        scale_format=config.scale, block=config.block,
    )  # fmt: skip
    zero = dataclasses.replace(x, c=np.zeros_like(x.c))
    without = dataclasses.replace(x, c=None)  # type: ignore[arg-type]
    assert np.array_equal(product(config, without), product(config, zero))


# --- layout, batches, threads -------------------------------------------------------------------


def strided(x: np.ndarray) -> np.ndarray:
    out = np.zeros((*x.shape[:-2], 2 * x.shape[-2] + 1, 3 * x.shape[-1] + 2), x.dtype)
    out[...] = x.dtype.type(0x3F)
    out[..., 1::2, 2::3] = x
    return out[..., 1::2, 2::3]


def reversed_(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1]


def unaligned(x: np.ndarray) -> np.ndarray:
    raw = np.zeros(x.nbytes + 1, np.uint8)
    out = raw[1:].view(x.dtype).reshape(x.shape)
    out[...] = x
    assert x.itemsize == 1 or not out.flags.aligned
    return out


def read_only(x: np.ndarray) -> np.ndarray:
    out = x.copy()
    out.flags.writeable = False
    return out


def fortran(x: np.ndarray) -> np.ndarray:
    return np.swapaxes(np.ascontiguousarray(np.swapaxes(x, -1, -2)), -1, -2)


def foreign(x: np.ndarray) -> np.ndarray:
    """A view into a record array: strides that are no multiple of the item."""
    out = np.zeros(x.shape, [("pad", "u1"), ("x", x.dtype)])
    out["x"] = x
    return out["x"]


LAYOUTS = [strided, reversed_, unaligned, read_only, fortran, foreign]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("config", PRODUCTS, ids=str)
def test_memory_layout_changes_no_bit(config: Config, layout: Any) -> None:
    x = cases.matrices(
        config.model, config.a, config.b, config.c, 35, 33, 2 * config.k, 7,
        scale_format=config.scale, block=config.block,
    )  # fmt: skip
    plain = product(config, x)
    assert plain.flags.c_contiguous and plain.flags.writeable
    fields = {
        f.name: layout(value) for f in dataclasses.fields(x)
        if (value := getattr(x, f.name)) is not None
    }  # fmt: skip
    before = {name: value.copy() for name, value in fields.items()}
    assert np.array_equal(product(config, dataclasses.replace(x, **fields)), plain)
    for name, value in fields.items():
        assert np.array_equal(value, before[name]), f"{name} was written to"
    for name, value in fields.items():  # and each alone, beside plain ones
        assert np.array_equal(product(config, dataclasses.replace(x, **{name: value})), plain)


@pytest.mark.parametrize("config", PRODUCTS, ids=str)
def test_batches_are_their_members(config: Config) -> None:
    made = [
        cases.matrices(
            config.model, config.a, config.b, config.c, 6, 5, 2 * config.k, seed,
            scale_format=config.scale, block=config.block,
        )
        for seed in range(6)
    ]  # fmt: skip

    def stack(name: str, *shape: int) -> Any:
        parts = [getattr(x, name) for x in made]
        return None if parts[0] is None else np.stack(parts).reshape(*shape, *parts[0].shape)

    def one(i: int, j: int) -> np.ndarray:
        """A of member i with B and C of member j."""
        return product(config, dataclasses.replace(made[j], a=made[i].a, scale_a=made[i].scale_a))

    names = ("a", "b", "c", "scale_a", "scale_b")
    batch = cases.Matrices(*(stack(n, 2, 3) for n in names))
    got = product(config, batch)
    assert got.shape == (2, 3, 6, 5)
    assert all(np.array_equal(got.reshape(6, 6, 5)[i], one(i, i)) for i in range(6))

    # Broadcast: A (6, 1, m, k), B and C (6, m, n); scales follow their operands.
    outer = cases.Matrices(
        stack("a", 6, 1), stack("b", 6), stack("c", 6), stack("scale_a", 6, 1), stack("scale_b", 6)
    )
    got = product(config, outer)
    assert got.shape == (6, 6, 6, 5)
    assert all(np.array_equal(got[i, j], one(i, j)) for i, j in np.ndindex(6, 6))


def test_empty_products() -> None:
    model, f = TFDPA(), {"a_format": "f16", "b_format": "f16", "c_format": "f32"}
    for m, n, lead in ((0, 3, ()), (3, 0, ()), (2, 2, (0,)), (0, 0, (2, 0))):
        a, b = np.zeros((*lead, m, 16), np.uint16), np.zeros((*lead, 16, n), np.uint16)
        got = engine.mma(model, a, b, None, k=16, **f)
        assert got.shape == (*lead, m, n) and got.dtype == np.uint32
    nothing = np.zeros((0, 16), np.uint16)
    assert engine.dpa(model, nothing, nothing, None, **f).shape == (0,)


@pytest.mark.parametrize("model", [TFDPA(32, 13, RZ_E8M13, -133), TFDPA(16, 25)], ids=str)
def test_k_of_zero_is_one_instruction_of_zero_products(model: Model) -> None:
    c = np.array([[0x40403017, 0x80000000, 0x00000001, 0xFFC00000]], np.uint32)
    got = engine.mma(
        model, np.zeros((1, 0), np.uint8), np.zeros((0, 4), np.uint8), c,
        a_format="e4m3", b_format="e4m3", c_format="f32", k=32,
    )  # fmt: skip
    want = [
        reference.chain(model, [], [], int(x), k=32, a_format="e4m3", b_format="e4m3",
                        c_format="f32")
        for x in c[0]
    ]  # fmt: skip
    assert got.tolist() == [want]


@pytest.mark.parametrize("config", PRODUCTS, ids=str)
@pytest.mark.parametrize(("m", "n", "lead"), [(150, 97, ()), (3, 4001, ()), (2, 3, (700,))])
def test_thread_count_changes_no_bit(config: Config, m: int, n: int, lead: tuple[int, ...]) -> None:
    """Large enough for the engine to split, along each of the three axes."""
    x = cases.matrices(
        config.model, config.a, config.b, config.c, max(m, 30), max(n, 30), 2 * config.k, 9,
        scale_format=config.scale, block=config.block,
    )  # fmt: skip
    count = 1 + (6 << 17) // (m * n * 2 * config.k * max(1, *lead, 1))
    lead = (lead[0] * count,) if lead else lead
    if not lead:
        m, n = (m * count, n) if m > n else (m, n * count)
    rng = np.random.default_rng(1)
    rows, columns = rng.integers(0, x.a.shape[0], m), rng.integers(0, x.b.shape[1], n)
    part = cases.Matrices(
        x.a[rows], x.b[:, columns], x.c[np.ix_(rows, columns)],
        None if x.scale_a is None else x.scale_a[rows],
        None if x.scale_b is None else x.scale_b[:, columns],
    )  # fmt: skip
    if lead:
        part = dataclasses.replace(part, a=np.broadcast_to(part.a, (*lead, *part.a.shape)))
    single = product(config, part, threads=1)
    assert single.size * 2 * config.k >= 4 << 17
    for threads in (2, 3, 8):
        assert np.array_equal(product(config, part, threads=threads), single)


def test_calls_from_many_threads(assert_same_bits: Check) -> None:
    jobs = []
    for config in PRODUCTS:
        x = config.draw(130, seed=3)
        jobs.append((config, x, config.run(x)))

    def again(i: int) -> bool:
        config, x, want = jobs[i % len(jobs)]
        return np.array_equal(config.run(x, threads=1 + i % 3), want)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(again, range(200)))
