"""Inputs by category: the same everywhere, aimed at what they say, valid for any model."""

import hashlib
import itertools

import numpy as np
import pytest

from bitmma import cases, formats, isa, reference
from bitmma.formats import Kind
from bitmma.models import (
    FMA,
    GSTFDPA,
    RNE_FP16,
    RNE_FP64,
    STFDPA,
    TFDPA,
    TRFDPA,
    Conversion,
    Model,
)

F16_OUT = TFDPA(16, 25, RNE_FP16, -21)


def digest(c: cases.Cases | cases.Matrices) -> str:
    """Of all words, in little-endian order."""
    whole = hashlib.sha256()
    for x in (c.a, c.b, c.c, c.scale_a, c.scale_b):
        if x is not None:
            whole.update(np.ascontiguousarray(x).astype(x.dtype.newbyteorder("<")).tobytes())
    return whole.hexdigest()[:16]


def traces(model: Model, c: cases.Cases, a: str, b: str, cf: str, scale: str | None = None):  # type: ignore[no-untyped-def]
    for i in range(len(c.c)):
        scales = {} if c.scale_a is None or c.scale_b is None else {
            "scale_a": c.scale_a[i].tolist(), "scale_b": c.scale_b[i].tolist(),
        }  # fmt: skip
        yield reference.trace(
            model, c.a[i].tolist(), c.b[i].tolist(), int(c.c[i]), a_format=a, b_format=b,
            c_format=cf, scale_format=scale, **scales,
        )  # fmt: skip


# Golden files carry their seed: a change of these words is a change of what seeds mean.
@pytest.mark.parametrize(
    ("make", "want"),
    [
        (lambda: cases.generate(F16_OUT, "f16", "f16", "f16", 16, 1300, 7), "36544eeedd42df7c"),
        (lambda: cases.generate(TFDPA(), "tf32", "bf16", "f32", 8, 1300, 0), "9334e3e16803a2dc"),
        (lambda: cases.generate(FMA(RNE_FP64), "f64", "f64", "f64", 4, 130, 2**70),
         "a95dd2f6e405e82b"),
        (lambda: cases.generate(GSTFDPA(), "e2m1", "e2m1", "f32", 64, 1300, 1,
                                scale_format="ue4m3", block=16), "9d60cbc755a734c1"),
        (lambda: cases.matrices(TRFDPA(), "fp8", "bf8", "f32", 19, 5, 24, 3), "118ef9bc3cbd3007"),
    ],
)  # fmt: skip
def test_a_seed_means_the_same_words_everywhere(make, want) -> None:  # type: ignore[no-untyped-def]
    assert digest(make()) == digest(make()) == want


def test_a_category_alone_is_its_share_of_the_mixture() -> None:
    whole = cases.generate(F16_OUT, "f16", "f16", "f16", 16, 13 * 40, 5)
    assert whole.category.tolist() == [i % 13 for i in range(13 * 40)]
    for number, name in enumerate(cases.CATEGORIES):
        alone = cases.generate(F16_OUT, "f16", "f16", "f16", 16, 40, 5, category=name)
        assert set(alone.category.tolist()) == {number}
        for x in "abc":
            assert np.array_equal(getattr(alone, x), getattr(whole, x)[number::13]), name
    other = cases.generate(F16_OUT, "f16", "f16", "f16", 16, 13 * 40, 6)
    assert not np.array_equal(other.a, whole.a)


@pytest.mark.parametrize("name", formats.FORMATS)
def test_every_format_gets_codes_of_its_width(name: str) -> None:
    fmt = formats.get(name)
    if not fmt.signed:
        with pytest.raises(ValueError, match=f"a_format cannot be {name}, a format of scales"):
            cases.generate(TFDPA(), name, "f16", "f32", 4, 10, 1)
        return
    for model in (TFDPA(8, 40, Conversion("RU", "bf16"), 3), TFDPA(8, 64, RNE_FP16, -1000)):
        c = cases.generate(model, name, name, name, 5, 1300, 1)
        for x in (c.a, c.b, c.c):
            assert x.dtype == fmt.code_dtype
            formats.decode(x, fmt)  # raises where a code has bits above the format's
            assert len(np.unique(x)) > min(1 << fmt.width, 64) // 2
        kinds = {fmt.decode(x).kind for x in c.a.ravel().tolist()}
        assert kinds == {
            Kind.ZERO, Kind.FINITE, *([Kind.INF] * fmt.has_inf), *([Kind.NAN] * fmt.has_nan)
        }  # fmt: skip
        for number, category in enumerate(cases.CATEGORIES):
            if category != "special":
                rows = c.category == number
                values = formats.decode(c.a[rows], fmt), formats.decode(c.c[rows], fmt)
                assert all(np.isfinite(v).all() for v in values), category


NUMBERS = [
    (F16_OUT, "f16", "f16", "f16", None, None),
    (TFDPA(16, 24, e_zero=-132), "bf16", "bf16", "f32", None, None),
    (TRFDPA(), "bf16", "bf16", "f32", None, None),
    (STFDPA(), "e4m3", "e5m2", "f32", "ue8m0", 32),
    (GSTFDPA(), "e2m1", "e2m1", "f32", "ue8m0", 16),
]


@pytest.mark.parametrize(("model", "a", "b", "c", "scale", "block"), NUMBERS, ids=str)
@pytest.mark.parametrize(
    ("category", "condition", "share"),
    [
        ("normal", "two_terms", 0.9),
        ("cancel", "two_terms", 0.6),
        ("narrow", "two_terms", 0.9),
        ("near_f", "truncated", 0.15),
        ("ties", "ties", 0.4),
        ("e_zero", "e_zero", 0.4),
        ("subnormal", "subnormal", 0.3),
        ("overflow", "overflow", 0.3),
        ("zeros", "negative_zero", 0.8),
        ("huge", "two_terms", 0.0),
    ],
)
def test_categories_hit_what_they_aim_at(  # type: ignore[no-untyped-def]
    model, a, b, c, scale, block, category, condition, share
) -> None:
    k = 64 if scale else 16
    k = 32 if isinstance(model, STFDPA) else k
    made = cases.generate(
        model, a, b, c, k, 200, 11, category=category, scale_format=scale, block=block
    )
    hit = getattr(cases.coverage(traces(model, made, a, b, c, scale)), condition)
    assert hit >= share * 200, hit


def test_overflow_lies_on_both_sides_of_the_edge() -> None:
    made = cases.generate(F16_OUT, "f16", "f16", "f16", 16, 400, 2, category="overflow")
    results = [t.result & 0x7FFF for t in traces(F16_OUT, made, "f16", "f16", "f16")]
    assert {0x7BFE, 0x7BFF, 0x7C00} <= set(results)
    assert 40 < results.count(0x7C00) < 360


def test_cancel_leaves_little() -> None:
    made = cases.generate(TFDPA(), "f16", "f16", "f32", 16, 400, 2, category="cancel")
    results = formats.decode(
        np.array([t.result for t in traces(TFDPA(), made, "f16", "f16", "f32")], np.uint32), "f32"
    )
    c = formats.decode(made.c, "f32")
    assert (np.abs(results) <= np.abs(c) * 2.0**-18).mean() > 0.8


def test_special_reaches_every_position_with_every_kind() -> None:
    k = 8
    made = cases.generate(F16_OUT, "f16", "f16", "f16", k, 16 * k, 0, category="special")
    found = cases.coverage(traces(F16_OUT, made, "f16", "f16", "f16"))
    positions = [*itertools.product("ab", range(k)), ("c", 0)]
    assert set(found.nan) == set(positions)
    assert found.inf_minus_inf > 0
    for x in (made.a, made.b):
        magnitude = x & 0x7FFF
        assert ((magnitude == 0x7C00).any(axis=0)).all()
        assert len(np.unique(magnitude[magnitude > 0x7C00])) > 5  # payloads
        assert (x > 0xFC00).any()  # and negative NaNs


def test_tf32_gets_something_below_the_cut() -> None:
    made = cases.generate(TFDPA(), "tf32", "tf32", "f32", 8, 1300, 0)
    assert 0.3 < (made.a & 0x1FFF != 0).mean() < 0.7
    infinite = made.a & 0x7FFFE000 == 0x7F800000
    assert (made.a[infinite] & 0x1FFF != 0).any()  # looks like a NaN, counts as Inf


def test_matrices_keep_their_cases_on_the_diagonal() -> None:
    for category in cases.CATEGORIES:
        alone = cases.generate(TFDPA(), "f16", "f16", "f32", 24, 30, 9, category=category)
        made = cases.matrices(TFDPA(), "f16", "f16", "f32", 30, 17, 24, 9, category=category)
        assert (made.a.shape, made.b.shape, made.c.shape) == ((30, 24), (24, 17), (30, 17))
        assert np.array_equal(made.a, alone.a) and np.array_equal(made.b.T, alone.b[:17])
        if category != "cancel":
            assert np.array_equal(np.diagonal(made.c), alone.c[:17])
    a, b = (formats.decode(x, "f16") for x in (made.a, made.b))
    assert np.isfinite(a).all() and np.isfinite(b).all()
    made = cases.matrices(TFDPA(), "f16", "f16", "f32", 30, 17, 24, 9, category="cancel")
    a, b, c = (formats.decode(x, f) for x, f in ((made.a, "f16"), (made.b, "f16"), (made.c, "f32")))
    assert (np.abs(a @ b + c) <= 1e-5 * (np.abs(a) @ np.abs(b) + 1e-30)).mean() > 0.9
    scaled = cases.matrices(
        STFDPA(), "e4m3", "e2m1", "f32", 4, 6, 64, 9, scale_format="ue8m0", block=32
    )
    assert scaled.scale_a is not None and scaled.scale_b is not None
    assert (scaled.scale_a.shape, scaled.scale_b.shape) == ((4, 2), (2, 6))
    assert cases.matrices(TFDPA(), "f16", "f16", "f32", 0, 3, 8, 1).c.shape == (0, 3)


def test_every_instruction_can_be_fed() -> None:
    """The floor of the whole catalogue's model kinds is asserted in test_engine_reference."""
    kinds = {(e.model, e.a, e.b, e.c, e.k, e.scale, e.block) for e in isa.catalogue()}
    assert len(kinds) == 182
    for model, a, b, c, k, scale, block in kinds:
        made = cases.generate(model, a, b, c, k, 26, 0, scale_format=scale, block=block)
        assert made.a.shape == (26, k) and made.c.shape == (26,)
        assert (made.scale_a is None) == (scale is None)
        if block and made.scale_b is not None:
            assert made.scale_b.shape == (26, k // block)


def test_coverage_of_nothing_is_missing_everything() -> None:
    empty = cases.coverage([])
    assert empty == cases.Coverage()
    assert set(empty.missing(nan_positions=[("a", 0), ("c", 0)])) == {
        "total", "finite", "two_terms", "truncated", "e_zero", "subnormal", "overflow", "ties",
        "inf_minus_inf", "negative_zero", "nan in a0", "nan in c0",
    }  # fmt: skip


def test_coverage_of_known_dot_products() -> None:
    def one(a: list[int], b: list[int], c: int, model: Model = F16_OUT) -> set[str]:
        found = cases.coverage(
            [reference.trace(model, a, b, c, a_format="f16", b_format="f16", c_format="f16")]
        )
        return {name for name, count in vars(found).items() if count} - {"total"}

    tiny, small, one_, inf, nan = 0x0400, 0x1000, 0x3C00, 0x7C00, 0x7E00
    assert one([one_], [one_], 0) == {"finite"}
    assert one([one_], [one_], 0x8000) == {"finite", "negative_zero"}
    assert one([tiny], [tiny], 0) == {"finite", "e_zero"}  # 2^-28
    assert one([small], [small], 0) == {"finite", "e_zero", "subnormal"}  # 2^-22
    # 1 and 2^-24 (1 + 2^-10)^2, whose last bits lie below 2^-25
    assert one([0x0401], [0x1401], one_) == {"finite", "two_terms", "truncated"}
    assert one([inf, one_], [one_, one_], 0) == set()
    assert one([0, one_], [inf, one_], 0) == set()  # Inf times zero is no Inf-Inf
    assert one([inf], [one_], 0xFC00) == {"inf_minus_inf"}
    assert one([nan], [one_], 0) == {"nan"}
    assert one([0x7BFF], [one_], 0x7BFF) == {"two_terms", "overflow"}
    assert one([one_], [0x1000], one_) == {"finite", "two_terms", "ties"}  # 1 + 2^-11
    assert one([one_], [0x1001], one_) == {"finite", "two_terms"}


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("f16", "f16", "f32", 8, 10, 1), {"category": "odd"}, "category is one of .*'odd'"),
        (("f16", "f16", "f32", 8, 10, 1), {"category": []}, "category must name at least one"),
        (("f16", "f16", "f32", 0, 10, 1), {}, "k must be 1 or more, not 0"),
        (("f16", "f16", "f32", 8, -1, 1), {}, "count must be 0 or more, not -1"),
        (("f16", "f16", "f32", 8, 10, -1), {}, "seed must be 0 or more, not -1"),
        (("f99", "f16", "f32", 8, 10, 1), {}, "unknown format 'f99'"),
        (("f16", "f16", "f32", 8, 10, 1), {"block": 4}, "scale_format and block go together"),
        (("f16", "f16", "f32", 8, 10, 1), {"scale_format": "ue8m0", "block": 3},
         "block must divide k=8, not 3"),
    ],
)  # fmt: skip
def test_errors(arguments, options, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        cases.generate(TFDPA(), *arguments, **options)
    assert cases.generate(TFDPA(), "f16", "f16", "f32", 8, 0, 1).a.shape == (0, 8)
