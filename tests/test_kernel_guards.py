"""Vector kernels on both sides of what they ask of operands, against the exact evaluator.

A kernel takes a faster way where exponents leave it room: `fits` in truncated.hpp and
in rounded_down.hpp, `plain_span` in grouped.hpp, exact_sum.hpp's window.
Margins here say by how much a product keeps each of these conditions. Operands are drawn so that
one margin is 0 (just kept) or -1 (just not), all others being kept: both must occur for every one.
"""

import collections
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import bitmma
from bitmma import _native, formats, reference
from bitmma.engine import cpu
from bitmma.models import (
    EFDPA,
    GSTFDPA,
    GTRFDPA,
    RNE_FP16,
    RNE_FP32,
    RZ_E8M13,
    RZ_FP32,
    STFDPA,
    TFDPA,
    TRFDPA,
    Conversion,
    Lowered,
    Model,
)

Rng = np.random.Generator
Codes = np.ndarray[Any, Any]
FEW, MANY = 16, 67  # columns: one narrow panel; whole panels of every build and a rest


# --- operands -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Draw:
    """A unit, and the lowest and highest exponents of the numbers that it gets."""

    model: Model
    format: str
    c_format: str
    a: tuple[int, int]
    b: tuple[int, int]
    c: tuple[int, int]
    scale_a: tuple[int, int] = (0, 0)
    scale_b: tuple[int, int] = (0, 0)
    scale: str | None = None

    @property
    def k(self) -> int:
        return 2 * self.model.group

    @property
    def block(self) -> int | None:
        if not self.scale:
            return None
        return self.model.G if isinstance(self.model, GSTFDPA) else self.model.group

    @property
    def spec(self) -> Codes:
        spec = cpu._spec(
            self.model, self.format, self.format, self.c_format, self.k, self.scale, self.block
        )
        assert spec is not None
        return spec


def codes(rng: Rng, format: str, shape: tuple[int, int], span: tuple[int, int]) -> Codes:
    """Normal numbers and zeros with exponents in `span`, its ends among every line's first two."""
    fmt = formats.get(format)
    e = rng.integers(span[0], span[1] + 1, shape)
    e[:, ::16], e[:, 1::16] = span
    field = e + fmt.bias
    mantissa = rng.integers(0, 1 << fmt.mantissa_bits, shape)
    ones = rng.random() < 0.3
    mantissa[rng.random(shape) < (0.9 if ones else 0.1)] = (1 << fmt.mantissa_bits) - 1
    word = field << fmt.mantissa_bits | mantissa
    if fmt.signed and not ones:
        word |= rng.integers(0, 2, shape) << (fmt.mantissa_bits + fmt.exponent_bits)
    if fmt.signed:
        some = rng.random(shape) < 0.1
        some[:, ::16] = some[:, 1::16] = False
        word[some] = 0
    return (word << fmt.dropped_bits).astype(fmt.code_dtype)


def drawable(x: Draw) -> bool:
    """Whether all of these are finite normal numbers."""
    lines = [(x.format, x.a), (x.format, x.b), (x.c_format, x.c)]
    if x.scale:
        lines += [(x.scale, x.scale_a), (x.scale, x.scale_b)]
    for name, (low, top) in lines:
        fmt = formats.get(name)
        last = (1 << fmt.exponent_bits) - (1 if fmt.specials == "none" else 2)
        if not 1 - fmt.bias <= low <= top <= last - fmt.bias:
            return False
    return True


def check(x: Draw, A: Codes, B: Codes, C: Codes | None, *scales: Codes | None) -> None:
    """Every build that has a kernel gives what the exact evaluator gives."""
    d = [
        np.zeros((len(A), B.shape[1]), formats.get(x.model.d).code_dtype)
        for _ in range(1 + len(_native.isas()))
    ]
    a, b = scales or (None, None)
    _native.mma(x.spec, A, B, C, d[0], a, b, isa="", exact=True)
    for isa, got in zip(_native.isas(), d[1:], strict=True):
        assert _native.has_kernel(x.spec, isa)
        _native.mma(x.spec, A, B, C, got, a, b, isa=isa, exact=False)
        wrong = np.argwhere(got != d[0])
        if len(wrong):
            at = tuple(wrong[0])
            pytest.fail(f"{isa}: {len(wrong)} differ, {at}: {got[at]:#x}, not {d[0][at]:#x}; {x}")


def compare(rng: Rng, x: Draw) -> None:
    m, n = (2, FEW) if rng.random() < 0.5 else (17, MANY)  # rows go together (floors.hpp)
    A = codes(rng, x.format, (m, x.k), x.a)
    B = np.ascontiguousarray(codes(rng, x.format, (n, x.k), x.b).T)
    C = codes(rng, x.c_format, (m, n), x.c)
    if not x.scale or not x.block:
        return check(x, A, B, C)
    blocks = x.k // x.block
    scale_a = codes(rng, x.scale, (m, blocks), x.scale_a)
    scale_b = np.ascontiguousarray(codes(rng, x.scale, (n, blocks), x.scale_b).T)
    return check(x, A, B, C, scale_a, scale_b)


# --- both sides -----------------------------------------------------------------------------------


Margins = Callable[[Draw], Mapping[str, int]]
Nudge = Callable[[Draw, int], Draw]  # moves a margin by so much


def move(field: str, sign: int = 1, *, top_only: bool = False) -> Nudge:
    def nudge(x: Draw, by: int) -> Draw:
        low, top = getattr(x, field)
        span: Any = (low if top_only else low + sign * by, top + sign * by)
        moved: Draw = dataclasses.replace(x, **{field: span})
        return moved

    return nudge


def change(parameter: str, sign: int = 1) -> Nudge:
    def nudge(x: Draw, by: int) -> Draw:
        value = getattr(x.model, parameter) + sign * by
        model: Model = dataclasses.replace(x.model, **{parameter: value})
        return dataclasses.replace(x, model=model)

    return nudge


def try_both_sides(
    draw: Callable[[Rng], Draw], margins: Margins, nudges: Mapping[str, Nudge], *, each: int = 12
) -> None:
    rng = np.random.default_rng(11)
    reached: collections.Counter[tuple[str, int]] = collections.Counter()
    for guard, nudge in nudges.items():
        for side in (0, -1):
            for _ in range(20_000):
                if reached[guard, side] == each:
                    break
                x = draw(rng)
                x = nudge(x, side - margins(x)[guard])
                now = dict(margins(x))
                if now.pop(guard) == side and min(now.values()) >= 0 and drawable(x):
                    compare(rng, x)
                    reached[guard, side] += 1
    assert all(reached[guard, side] == each for guard in nudges for side in (0, -1)), reached


def pick(rng: Rng, choices: Any) -> Any:
    return choices[rng.integers(len(choices))]


def span(rng: Rng, low: int, high: int, most: int = 50) -> tuple[int, int]:
    start = int(rng.integers(low, high + 1))
    return start, start + int(pick(rng, (0, 1, 5, 12, most // 2, most - 1, most)))


# --- T-, ST-FDPA and Lowered ----------------------------------------------------------------------

TRUNCATED = {
    "low": move("a"),
    "span": move("a", -1, top_only=True),
    "least": move("a"),
    "most": move("a", -1),
}
C = {"c_small": move("c"), "c_large": move("c", -1)}


FEW_BINADES = {"e4m3": (-6, 8), "e2m1": (0, 2), "e2m3": (0, 2), "e3m2": (-2, 4)}


def truncated_margins(x: Draw) -> dict[str, int]:
    model = x.model
    unit = model.unit if isinstance(model, Lowered) else model
    assert isinstance(unit, TFDPA | STFDPA)
    half = unit.rho == RNE_FP16
    lines = {"a": x.a, "b": x.b}
    wide = {f"wide {name}": 50 - (top - low) for name, (low, top) in lines.items()}
    wide |= {f"far {name}": 100 - abs(top) for name, (_, top) in lines.items()}
    if few := FEW_BINADES.get(x.format):  # the format's, whatever the numbers
        wide, lines = {}, {"a": few, "b": few}
    lines |= {"scale_a": x.scale_a, "scale_b": x.scale_b}
    low = sum(low for low, _ in lines.values())
    most = sum(top for _, top in lines.values())
    least = lines["a"][1] + lines["b"][1] + x.scale_a[0] + x.scale_b[0]
    first = -14 if (x.c_format == "f16") != half else -126
    margins = {
        **wide,
        "low": low - (unit.F - 126),
        "span": low - most - (unit.F - 126),
        "least": least + 100,
        "most": 100 - most,
    }
    if not isinstance(model, Lowered):
        margins["c_small"] = x.c[0] - max(most + unit.F + 2 - 127, first)
        margins["c_large"] = (15 if half else min(least, 0) + 99) - x.c[1]
    return margins


def draw_t(rng: Rng) -> Draw:
    rho = pick(rng, (RZ_FP32, RZ_FP32, RNE_FP32, RZ_E8M13, RNE_FP16))
    F = int(pick(rng, (25, 26, 27, rng.integers(1, 28))))
    model = TFDPA(int(pick(rng, (4, 5, 8, 16, 32))), F, rho, int(pick(rng, (-126, -132, -133))))
    c_format = pick(rng, ("f32", "f32", "f16"))
    c = span(rng, -14, 2, 12) if c_format == "f16" else span(rng, -126, 80, 30)
    a, b = span(rng, -75, 60), span(rng, -75, 60)
    return Draw(model, pick(rng, ("bf16", "tf32")), c_format, a, b, c)


def test_t_fdpa() -> None:
    try_both_sides(draw_t, truncated_margins, TRUNCATED | C)


def test_t_fdpa_of_few_bits() -> None:
    def draw(rng: Rng) -> Draw:
        x = draw_t(rng)
        assert isinstance(x.model, TFDPA)
        L, F = int(pick(rng, (8, 12, 16, 32))), int(pick(rng, (1, 7, 12, 13, 14, 15)))
        model = dataclasses.replace(x.model, L=L, F=F)
        return dataclasses.replace(x, model=model, format="e4m3", a=(-6, 7), b=(-6, 7))

    try_both_sides(draw, truncated_margins, C)


@pytest.mark.parametrize("format", ["e4m3", "e5m2", "fp8", "e2m3"])
@pytest.mark.parametrize("rho", [RZ_E8M13, RZ_FP32, RNE_FP16])
def test_sums_of_few_bits_of_every_pair_of_codes(format: str, rho: Conversion) -> None:
    """Each product beside others, and a c, of all sizes: every way of being cut, on both sides."""
    fmt, rng = formats.get(format), np.random.default_rng(8)
    every = np.arange(1 << fmt.width, dtype=np.uint8)
    every[~np.isfinite(formats.decode(every, format))] = 0
    pairs = np.stack([every, rng.permutation(every)], axis=1)
    A, B = np.zeros((len(every), 8), np.uint8), np.zeros((8, len(every)), np.uint8)
    A[:, [0, 5]], B[[0, 5]] = pairs, pairs.T
    x = Draw(TFDPA(8, 13, rho), format, "f16" if rho == RNE_FP16 else "f32", (0, 0), (0, 0), (0, 0))
    shape = len(every), len(every)
    values = np.ldexp(rng.uniform(-2, 2, shape), rng.integers(-14, 16, shape))
    values[rng.random(shape) < 0.1] = 0
    c = formats.quantize(values, x.c_format)
    check(x, A, B, c.view(formats.get(x.c_format).code_dtype))


@pytest.mark.parametrize("L", [7, 8, 16, 32, 100, 255, 256])
def test_largest_sums_of_few_bits(L: int) -> None:
    """How many of the largest products, of one sign or both, may be added to 1.5 * 2^23."""
    for format in ("e4m3", "e5m2"):
        for F in range(11, 19):
            x = Draw(TFDPA(L, F, RZ_FP32), format, "f32", (0, 0), (0, 0), (0, 0))
            largest = 0x7E if format == "e4m3" else 0x7B
            A, B = np.full((16, x.k), largest, np.uint8), np.full((x.k, MANY), largest, np.uint8)
            A[1::4] |= 0x80
            A[2::4, ::2] |= 0x80
            A[3::4, 1::3] = 0x81  # negative, and far below the unit
            c = np.full((16, MANY), (2 * formats.get(format).max_exponent + 127) << 23 | 0x7FFFFF)
            c[:, ::2] |= 1 << 31
            c[:, 1::3] = 0
            check(x, A, B, c.astype(np.uint32))


def test_lowered() -> None:
    def draw(rng: Rng) -> Draw:
        x = draw_t(rng)
        parts, K = pick(rng, ((((0, 1), (2, 3)), 16), (((0, 2), (1, 3)), 32), (((0, 1, 2),), 24)))
        assert isinstance(x.model, TFDPA)
        unit = dataclasses.replace(x.model, L=int(pick(rng, (2, 4, 8))))
        return dataclasses.replace(x, model=Lowered(K, unit, parts))

    try_both_sides(draw, truncated_margins, TRUNCATED)


def test_st_fdpa() -> None:
    def draw(rng: Rng) -> Draw:
        F = int(pick(rng, (24, 25, 26, rng.integers(1, 28))))
        rho = pick(rng, (RZ_FP32, RNE_FP32, RZ_E8M13, RNE_FP16))
        model = STFDPA(int(pick(rng, (8, 16, 32))), F, rho, int(pick(rng, (-126, -133))))
        c_format = pick(rng, ("f32", "f32", "f16"))
        c = span(rng, -14, 2, 12) if c_format == "f16" else span(rng, -126, 80, 30)
        scales = span(rng, -100, 60), span(rng, -100, 60)
        format, ab = pick(rng, (("e4m3", (-6, 7)), ("e2m1", (0, 2))))
        return Draw(model, format, c_format, ab, ab, c, *scales, "ue8m0")

    scales = {
        "low": move("scale_a"),
        "span": move("scale_a", -1, top_only=True),
        "least": move("scale_a"),
        "most": move("scale_a", -1),
    }
    try_both_sides(draw, truncated_margins, scales | C)


BITS_OF_PRODUCTS = {"e2m1": 6, "e2m3": 10, "e3m2": 16}  # below 2^top, the largest's exponent


def whole_margins(x: Draw) -> dict[str, int]:
    """Beside the others', what lets a group's products be added as they are."""
    assert isinstance(x.model, TFDPA | STFDPA)
    F, depth = x.model.F, BITS_OF_PRODUCTS[x.format]
    top = 2 * FEW_BINADES[x.format][1]
    most, least = (top + x.scale_a[i] + x.scale_b[i] for i in (1, 0))
    whole = {"unit": F - depth - (most - least)}
    if whole["unit"] > 10:  # else no c of 24 bits keeps both
        whole["c's exponent"] = F - depth + least - x.c[1]
        whole["c's last bit"] = x.c[0] - 23 - (most - F)
    else:
        whole["c's exponent"] = whole["c's last bit"] = 99
    return truncated_margins(x) | whole


@pytest.mark.parametrize("scale", [None, "ue8m0"])
def test_sums_that_lose_nothing(scale: str | None) -> None:
    def draw(rng: Rng) -> Draw:
        format, L = pick(rng, list(BITS_OF_PRODUCTS)), int(pick(rng, (4, 5, 8, 32, 33)))
        F = int(pick(rng, (22, 23, 25, 27, rng.integers(6, 28))))
        rho = pick(rng, (RZ_FP32, RZ_E8M13))
        c = span(rng, -20, 20, 12)
        if not scale:
            return Draw(TFDPA(L, F, rho), format, "f32", *[FEW_BINADES[format]] * 2, c)
        scales = span(rng, -20, 10, 6), span(rng, -20, 10, 6)
        model = STFDPA(L, F, rho)
        return Draw(model, format, "f32", *[FEW_BINADES[format]] * 2, c, *scales, scale)

    guards = {"unit": change("F"), "c's exponent": move("c", -1), "c's last bit": move("c")}
    try_both_sides(draw, whole_margins, guards, each=40)


@pytest.mark.parametrize("format", list(BITS_OF_PRODUCTS))
def test_largest_sums_that_lose_nothing(format: str) -> None:
    """As many of the largest products as 24 bits hold beside the smallest one, and some more."""
    fmt = formats.get(format)
    largest, least = (1 << fmt.width - 1) - 1, 1
    size, bit = (float(formats.decode(np.uint8(x), format)) ** 2 for x in (largest, least))
    limit = int(2**24 * bit / size)
    for L in {4, 32, min(limit, 255), min(limit + 1, 255), min(limit + 9, 255)}:
        for F in (20, 25, 27):
            x = Draw(TFDPA(L, F, RZ_FP32), format, "f32", (0, 0), (0, 0), (0, 0))
            A, B = np.full((9, x.k), largest, np.uint8), np.full((x.k, MANY), largest, np.uint8)
            A[:, L - 1], B[L - 1] = least, least
            B[:, 1::2] |= 1 << fmt.width - 1
            B[: L // 2, 2::4] |= 1 << fmt.width - 1
            c = np.full((9, MANY), (127 << 23) + 1)
            c[1::2] |= 1 << 31
            c[2::4] = 0
            check(x, A, B, c.astype(np.uint32))


@pytest.mark.parametrize("L", [1, 2, 3, 4, 5, 8, 16, 32, 64])
def test_largest_sums(L: int) -> None:
    """The largest significands, added: int32 holds some of them, and c."""
    for F in range(21, 29):
        models: list[Model] = [TFDPA(L, F, rho, -133) for rho in (RZ_FP32, RNE_FP32, RNE_FP16)]
        models += [TRFDPA(L, F, 31), GTRFDPA(L, F, 31)]
        for model in models:
            for c in range(-1, 4):
                x = Draw(model, "f16", "f32", (0, 0), (0, 0), (c, c))
                A = np.full((1, x.k), 0x3FFF, np.uint16)
                B = np.full((x.k, FEW), 0x3FFF, np.uint16)
                B[:, 1::2] |= 0x8000
                B[: L - 1, 2::4] = 0  # not all of them
                word = (c + 127) << 23 | 0x7FFFFF
                check(x, A, B, np.array([[word, word | 1 << 31] * (FEW // 2)], np.uint32))


@pytest.mark.parametrize("L", [1, 3, 4, 15, 16, 32, 63])
def test_largest_sums_in_float64(L: int) -> None:
    """2^52 units, positive terms and negative ones apart, hold as many as L and F make."""
    F = 49 - L.bit_length()
    rng = np.random.default_rng(6)
    for rho in (RZ_FP32, RZ_E8M13, RNE_FP32, RNE_FP16):
        assert not any(
            _native.has_kernel(Draw(TFDPA(L, F + 1, rho), "f16", "f32", *[(0, 0)] * 3).spec, isa)
            for isa in _native.isas()
        )
        for format, one in (("f16", 0x3FFF), ("f32", 0x3FFFFFFF), ("bf16", 0x3FFF)):
            fmt = formats.get(format)
            x = Draw(TFDPA(L, F, rho), format, "f32", (0, 0), (0, 0), (2, 2))
            sign = 1 << (fmt.width - 1)
            A = np.full((20, x.k), one, fmt.code_dtype)
            A[1::3] |= sign
            A[2::3] = codes(rng, format, A[2::3].shape, (-14, 0))
            B = np.full((x.k, MANY), one, fmt.code_dtype)
            B[:, 1::3] |= sign
            B[:, 2::3] = codes(rng, format, B[:, 2::3].shape, (-14, 0))
            C = np.full((len(A), MANY), 129 << 23 | 0x7FFFFF)
            C[:, ::2] |= 1 << 31
            check(x, A, B, C.astype(np.uint32))


def test_wide_numbers_in_some_chunks() -> None:
    """Chunks are shorter after one of which most was computed in float64: here, in the middle."""
    rng = np.random.default_rng(7)
    for rho in (RZ_FP32, RNE_FP16, RNE_FP32):
        x = Draw(TFDPA(16, 25, rho), "bf16", "f32", (0, 0), (0, 0), (0, 0))
        near, far = (-3, 3), (-70, 50)
        spans = [near] * 9 + [far] * 20 + [near] * 11
        A = np.hstack([codes(rng, "bf16", (40, 16), span) for span in spans])
        B = np.vstack([codes(rng, "bf16", (16, MANY), span) for span in spans])
        check(x, A, B, codes(rng, "f32", (40, MANY), near))


def test_middles_between_halves_beside_an_infinity() -> None:
    """In float64: half of an f16's last place, and a unit or so that says which way it goes."""
    rng = np.random.default_rng(12)

    def powers(*exponents: int) -> list[int]:
        return [(e + 15) << 10 for e in exponents]

    for model in (TFDPA(8, 24, RNE_FP16), TFDPA(16, 25, RNE_FP16, -21)):
        x = Draw(model, "f16", "f16", (0, 0), (0, 0), (0, 0))
        # A number, half of its last place (of a subnormal one, too), what is near 2^-24 or 2^-28.
        A = np.zeros((16, x.k), np.uint16)
        A[:, :5] = powers(0, -11, -12, -12, -14)
        B = np.zeros((x.k, 4 * MANY), np.uint16)
        B[0] = rng.choice([1, 2, 3, 0x3FF, 0x400, 0x401, *range(0x3C00, 0x3C04)], B.shape[1])
        B[1] = np.where(B[0] < 0x800, 0, powers(0)[0])
        B[2] = np.where(B[0] < 0x800, powers(-13)[0], 0)
        B[3] = rng.choice([0, *powers(-14, -13, -12, -11)], B.shape[1])
        B[4] = rng.choice([0, *powers(-14, -12)], B.shape[1])
        B[3:5] |= (rng.integers(0, 2, B[3:5].shape) << 15).astype(np.uint16)
        B[:5, ::16] = 0x7BFF  # Inf in every panel
        A[:, 5], B[5, ::16] = 0x3C00, 0x7BFF
        A[::2] ^= 0x8000
        check(x, A, B, None)
        D = bitmma.mma(model, A, B, None, a="f16", c="f16")
        assert np.isinf(D[:, ::16]).all() and len(np.unique(D)) > 20


def test_outputs_that_are_infinite_before_the_end() -> None:
    """A group's kernel leaves off beside an Inf: what follows in finite rows must not be missed."""
    rng = np.random.default_rng(11)
    for model in (
        TFDPA(16, 25, RNE_FP16),
        TFDPA(8, 24, RNE_FP16),
        Lowered(32, TFDPA(16, 25, RNE_FP16)),
    ):
        x = Draw(model, "f16", "f16", (0, 0), (0, 0), (0, 0))
        A = np.vstack([codes(rng, "f16", (1, 640), (-14, top)) for top in range(-8, 16)])
        B = np.vstack([codes(rng, "f16", (128, MANY), (-14, top)) for top in (-9, 15, 0, 9, -9)])
        C = codes(rng, "f16", (len(A), MANY), (-14, 15))
        check(x, A, B, C)
        d = bitmma.mma(model, A, B, C, a="f16", c="f16")
        assert 0.1 < np.isinf(d).mean() < 0.9


def test_specials_along_chains_of_lowered_instructions() -> None:
    """Inf and NaN one after the other, in C too; once most of these were computed exactly."""
    rng = np.random.default_rng(12)
    for model in (Lowered(32, TFDPA(16)), Lowered(16, TFDPA(8, 24), ((0, 1),))):
        x = Draw(model, "e5m2", "f32", (0, 0), (0, 0), (0, 0))
        fmt, k = formats.get("e5m2"), 8192
        A, B = codes(rng, "e5m2", (24, k), (-3, 3)), codes(rng, "e5m2", (k, MANY), (-3, 3))
        for lines in (A, B.T):
            bad = rng.choice([fmt.inf_code, fmt.inf_code | fmt.sign_bit, fmt.nan_code], lines.shape)
            often = np.logspace(-5, -1, len(lines))[:, None]
            lines[:] = np.where(rng.random(lines.shape) < often, bad, lines)
        C = codes(rng, "f32", (len(A), MANY), (-3, 3))
        C[:, ::5], C[:, 1::5], C[:, 2::5] = 0x7FC00001, 0x7F800000, 0xFF800000
        check(x, A, B, C)
        d = bitmma.mma(model, A, B, C, a="e5m2")
        for some in (np.isnan(d), d == np.inf, d == -np.inf, np.isfinite(d)):
            assert some.sum() > 20


@pytest.mark.parametrize(
    ("model", "format"),
    [
        *((TFDPA(16, 25, rho), "bf16") for rho in (RZ_FP32, RNE_FP32)),
        (TFDPA(4, 24), "tf32"),
        (TFDPA(8, 24, RNE_FP16, -20), "f16"),
        (Lowered(32, TFDPA(16)), "bf16"),
        *((TRFDPA(8, 24, F2), "bf16") for F2 in (28, 31)),
        *((family(4, 24, 31), "tf32") for family in (TRFDPA, GTRFDPA)),
        *((EFDPA(2), f) for f in ("bf16", "f16")),
    ],
)
def test_infinities_and_overflow_in_any_order(model: Model, format: str) -> None:
    """Each row has a group of huge numbers and one with an Inf: which comes first decides."""
    rng = np.random.default_rng(13)
    fmt = formats.get(format)
    x = Draw(model, format, model.d, (0, 0), (0, 0), (0, 0))
    group = getattr(model, "L", 16)
    inf = np.array([fmt.inf_code, fmt.inf_code | fmt.sign_bit], fmt.code_dtype)
    met: collections.Counter[str] = collections.Counter()
    for rows in (2, 9, 40):
        for huge_in_a, special_in_a in ((1, 1), (0, 1), (1, 0)):
            K = 4 * x.k
            A, Bt = (codes(rng, format, (n, K), (-2, 2)) for n in (rows, MANY))
            for lines in (A, Bt):
                lines[lines == 0] = (
                    fmt.bias << fmt.mantissa_bits + fmt.dropped_bits
                )  # 0 * Inf: no NaN
            top = fmt.max_exponent
            for line in A if huge_in_a else Bt:
                at = group * int(rng.integers(K // group))
                line[at : at + group] = codes(rng, format, (1, group), (top - 1, top))
            for line in A if special_in_a else Bt:
                line[rng.integers(K, size=1 + rng.integers(2))] = inf[rng.integers(2)]
            C = codes(rng, model.d, (rows, MANY), (-2, 2))
            C[:, ::9] = codes(rng, model.d, C[:, ::9].shape, (15, 15))
            B = np.ascontiguousarray(Bt.T)
            check(x, A, B, C)
            d = bitmma.mma(model, A, B, C, a=format, c=model.d)
            met.update(nan=int(np.isnan(d).sum()), inf=int(np.isinf(d).sum()))
    few = isinstance(model, EFDPA) and format == "f16"  # whose products cannot overflow
    assert met["inf"] > 500 and (met["nan"] > 500 or few), met


@pytest.mark.parametrize("e_zero", [-127, -126, -125, -15, -14, -13, 0, 700, 701, 900])
def test_exponents_of_a_zero_c(e_zero: int) -> None:
    rng = np.random.default_rng(5)
    for rho in (RZ_FP32, RNE_FP32, RNE_FP16):
        model = STFDPA(16, 20, rho, e_zero)
        for scale in (-127, -126, -13, 0, 6):
            spans = (scale, scale), (scale, scale)
            x = Draw(model, "e4m3", "f32", (-6, 7), (-6, 7), (0, 0), *spans, "ue8m0")
            if e_zero > 700:  # too high for the float64 kernel
                assert not any(_native.has_kernel(x.spec, isa) for isa in _native.isas())
                continue
            A, B = codes(rng, "e4m3", (2, x.k), x.a), codes(rng, "e4m3", (x.k, FEW), x.b)
            C = np.zeros((2, FEW), np.uint32)
            C[1, ::3] = 0x80000000
            C[:, 1::4] = 0x3F800001
            of_a, of_b = (np.full(s, scale + 127, np.uint8) for s in ((2, 2), (2, FEW)))
            check(x, A, B, C, of_a, of_b)


# --- GST-FDPA -------------------------------------------------------------------------------------


def grouped_margins(x: Draw) -> dict[str, int]:
    assert isinstance(x.model, GSTFDPA)
    F, mantissa = x.model.F, formats.get(x.scale or "").mantissa_bits
    lowest = x.scale_a[0] + x.scale_b[0] - 2 - 2 * mantissa
    most, reach = x.scale_a[1] + x.scale_b[1], min(F, 36)
    return {
        "small scales": min(x.scale_a[0], x.scale_b[0]) + 40,
        "large scales": 40 - max(x.scale_a[1], x.scale_b[1]),
        "reach": reach - (most - lowest),
        "e_zero": lowest - 40 - x.model.e_zero,
        "F": F - 23,
        "c_small": x.c[0] - (most - F + 23),
        "c_large": lowest + reach - 1 - x.c[1],
    }


@pytest.mark.parametrize("scale", ["ue8m0", "ue4m3"])
def test_gst_fdpa(scale: str) -> None:
    def draw(rng: Rng) -> Draw:
        F = int(pick(rng, (22, 23, 33, 33, 34, 35, 36, 37)))
        model = GSTFDPA(64, 16, F, pick(rng, (RZ_FP32, RZ_E8M13)), -139)
        scales, c = (span(rng, -6, -5, 13), span(rng, -6, -5, 13)), span(rng, -10, 20, 4)
        if scale == "ue8m0":
            scales, c = (span(rng, -42, 42, 18), span(rng, -42, 42, 18)), span(rng, -80, 80, 10)
        return Draw(model, "e2m1", "f32", (0, 2), (0, 2), c, *scales, scale)

    guards: dict[str, Nudge] = {
        "reach": move("scale_a", -1, top_only=True),
        "e_zero": change("e_zero", -1),
        "F": change("F"),
        **C,
    }
    if scale == "ue8m0":  # the other is always moderate
        guards |= {"small scales": move("scale_a"), "large scales": move("scale_a", -1)}
    try_both_sides(draw, grouped_margins, guards)


@pytest.mark.parametrize("scale", ["ue8m0", "ue4m3"])
@pytest.mark.parametrize("together", [4, 2])
def test_dot_products_that_float32_adds(scale: str, together: int) -> None:
    """As many as keep below 2^24 of their last places, and scales one binade farther apart."""
    mantissa = formats.get(scale).mantissa_bits
    largest = together * 16 * 36 * (2 - 2.0**-mantissa) ** 2
    places = int(np.log2(2**24 / largest))

    def margins(x: Draw) -> dict[str, int]:
        apart = x.scale_a[1] - x.scale_a[0] + x.scale_b[1] - x.scale_b[0] + 2 + 2 * mantissa
        return grouped_margins(x) | {"together": places - apart}

    def draw(rng: Rng) -> Draw:
        scales = span(rng, -6, 0, 6), span(rng, -6, 0, 6)
        model = GSTFDPA(64, 16, 35, RZ_FP32, -139)
        return Draw(model, "e2m1", "f32", (0, 2), (0, 2), span(rng, -10, 20, 4), *scales, scale)

    try_both_sides(draw, margins, {"together": move("scale_a", -1, top_only=True)}, each=40)


# --- TR- and GTR-FDPA -----------------------------------------------------------------------------


def joint_margins(x: Draw) -> dict[str, int]:
    assert isinstance(x.model, TRFDPA | GTRFDPA)
    low, most = x.a[0] + x.b[0], x.a[1] + x.b[1]
    lines = {"a": x.a, "b": x.b}
    return {
        **{f"wide {name}": 50 - (top - low) for name, (low, top) in lines.items()},
        **{f"far {name}": 100 - abs(top) for name, (_, top) in lines.items()},
        "low": low - (x.model.F2 + 1 - 126),
        "span": low - most - (x.model.F2 + 1) + 103,
        "most": 100 - most,
        "c_small": x.c[0] - max(most - 103, -126),
        "c_large": min(most, 0) + 99 - x.c[1],
        "F": x.model.F - 24,
        "F high": 24 - x.model.F,
        "F2": x.model.F2 - 31,
        "F2 high": 31 - x.model.F2,
        "L": 15 - x.model.L,
    }


@pytest.mark.parametrize("family", [TRFDPA, GTRFDPA])
def test_tr_and_gtr_fdpa(family: type[TRFDPA | GTRFDPA]) -> None:
    def draw(rng: Rng) -> Draw:
        model = family(int(pick(rng, (4, 8, 12, 14, 15))), 24, 31)
        a, b = span(rng, -50, 50), span(rng, -50, 50)
        e = a[1] + b[1]
        near = span(rng, e - 34, e + 34, 8)  # what is cut off c or the sum, and dropped (GTR)
        c = near if rng.random() < 0.7 else span(rng, -120, 40, 10)
        return Draw(model, pick(rng, ("bf16", "tf32")), "f32", a, b, c)

    guards = {
        "low": move("a"),
        "span": move("a", -1, top_only=True),
        "most": move("a", -1),
        "F": change("F"),
        "F high": change("F", -1),
        "F2": change("F2"),
        "F2 high": change("F2", -1),
        "L": change("L", -1),
        **C,
    }
    try_both_sides(draw, joint_margins, guards, each=20)


@pytest.mark.parametrize("family", [TRFDPA, GTRFDPA])
def test_joint_sums_near_the_middle_between_floats(family: type[TRFDPA | GTRFDPA]) -> None:
    """c, half a unit of its last place, and what step 4 may clear; sums near c and far below."""
    fmt = formats.get("bf16")
    rows = []
    for near in range(-3, 40):  # how far the largest products are below c; they cancel
        for far in range(1, 14):
            for signs in range(4):
                row = [0] * 16
                exponents = (-24, -24 - far, -near, -near)  # of even products: GTR has two sums
                for i, e in enumerate(exponents):
                    row[2 * i] = (e + fmt.bias) << fmt.mantissa_bits
                row[0] |= (signs & 1) << 15
                row[2] |= (signs & 2) << 14
                row[6] |= 1 << 15
                rows.append(row)
    A = np.array(rows, np.uint16)
    B = np.full((16, MANY), fmt.bias << fmt.mantissa_bits, np.uint16)
    some = np.resize([0, 1, 2, 3, 0x7FFFFE, 0x7FFFFF, 0x400000], MANY) + (127 << 23)
    some[::2] |= 1 << 31
    x = Draw(family(8, 24, 31), "bf16", "f32", (0, 0), (0, 0), (0, 0))
    C = np.tile(some, (len(A), 1)).astype(np.uint32)
    check(x, A, B, C)
    check(x, *in_float64(x, A, B), C)


def in_float64(x: Draw, A: Codes, B: Codes) -> tuple[Codes, Codes]:
    """The same sums of rows that are wide: one instruction more, of zeros and a number far away."""
    A = np.hstack([A, np.zeros((len(A), x.k), A.dtype)])
    A[:, -1] = formats.get(x.format).encode(1, 120 if sum(x.a) < 0 else -120)
    return A, np.vstack([B, np.zeros((x.k, B.shape[1]), B.dtype)])


def far_margins(x: Draw) -> dict[str, int]:
    """What join_near (rounded_down.hpp) asks for, of the first group."""
    low, most = x.a[0] + x.b[0], x.a[1] + x.b[1]
    return {
        "large": 122 - most,
        "overflow": 126 - most,  # which asks for step 0, and breaks "large" on both sides
        "normal": max(low, x.c[0] - 60) - (31 + 1 - 126),
        "c_far": x.c[0] + 100 - most,
    }


@pytest.mark.parametrize("family", [TRFDPA, GTRFDPA])
def test_any_exponents(family: type[TRFDPA | GTRFDPA]) -> None:
    rng, sides = np.random.default_rng(12), (0, -1, -30)
    reached: collections.Counter[tuple[str, int]] = collections.Counter()
    large: dict[str, Nudge] = {"large": move("a", -1), "overflow": move("a", -1)}
    guards = large | {"normal": move("a"), "c_far": move("c")}
    for guard, nudge in guards.items():
        for side in sides:
            for _ in range(5000):
                if reached[guard, side] == 12:
                    break
                a, b = span(rng, -120, 80, 90), span(rng, -60, 60)
                e = a[1] + b[1]
                c = pick(rng, (span(rng, e - 110, e + 40), span(rng, -120, 100, 90)))
                x = Draw(family(int(pick(rng, (4, 8, 12))), 24, 31), "bf16", "f32", a, b, c)
                x = nudge(x, side - far_margins(x)[guard])
                now = far_margins(x)
                kept = all(now[name] >= 0 for name in now if name not in (guard, *large))
                if now[guard] != side or not kept or not drawable(x):
                    continue
                if guard not in large and now["large"] < 0:
                    continue
                A = codes(rng, "bf16", (5, x.k), x.a)
                B = np.ascontiguousarray(codes(rng, "bf16", (MANY, x.k), x.b).T)
                C = codes(rng, "f32", (5, MANY), x.c)
                C[1, ::7] = np.resize(np.array([0x7F800000, 0xFF800000], np.uint32), 10)
                C[2, ::7] = 0x80800000  # the least normal number
                C[3, ::7] = 0x80000001
                check(x, *in_float64(x, A, B), C)
                reached[guard, side] += 1
    assert all(reached[guard, side] == 12 for guard in guards for side in sides), reached


def any_codes(rng: Rng, format: str, shape: tuple[int, int], reach: int, specials: float) -> Codes:
    """Exponents of up to `reach` either way, some numbers subnormal, some Infs and zeros."""
    fmt = formats.get(format)
    field = rng.integers(max(0, fmt.bias - reach), fmt.bias + reach + 1, shape)
    field[rng.random(shape) < 0.1] = 0
    field[rng.random(shape) < specials] = 255
    mantissa = rng.integers(0, 1 << fmt.mantissa_bits, shape)
    mantissa[(rng.random(shape) < 0.1) | (field == 255)] = 0
    word = (rng.integers(0, 2, shape) << 8 | field) << fmt.mantissa_bits | mantissa
    return (word << fmt.dropped_bits).astype(fmt.code_dtype)


@pytest.mark.parametrize(("format", "L"), [("bf16", 8), ("tf32", 4), ("f32", 4)])
def test_products_of_any_codes(format: str, L: int) -> None:
    """Wide, subnormal and huge numbers, and Infs, in c too; `reference` agrees."""
    rng = np.random.default_rng(13)
    x = Draw(TRFDPA(L, 24, 31), format, "f32", (0, 0), (0, 0), (0, 0))
    kinds = collections.Counter[str]()
    for reach in (60, 70, 100, 127):
        for specials in (0, 0.01):
            A = any_codes(rng, format, (9, 2 * x.k), reach, specials)
            B = any_codes(rng, format, (2 * x.k, MANY), reach, specials)
            C = any_codes(rng, "f32", (9, MANY), reach, specials)
            check(x, A, B, C)
            check(x, A, B, None)
            D = np.zeros_like(C)
            _native.mma(x.spec, A, B, C, D, None, None, isa=_native.isas()[-1], exact=False)
            for i, j in zip(np.arange(36) % 9, rng.integers(0, MANY, 36), strict=True):
                want = reference.chain(
                    x.model, A[i].tolist(), B[:, j].tolist(), int(C[i, j]), k=x.k,
                    a_format=format, b_format=format, c_format="f32",
                )  # fmt: skip
                number, got = (float(np.uint32(w).view(np.float32)) for w in (want, D[i, j]))
                assert want == D[i, j] or (np.isnan(number) and np.isnan(got)), (i, j, want, got)
                overflow = abs(number) == np.inf and np.isfinite(C[i, j].view(np.float32))
                kinds["NaN" if np.isnan(number) else "Inf" if overflow else "other"] += 1
    assert min(kinds[kind] for kind in ("NaN", "Inf", "other")) >= 20, kinds


# --- E-FDPA ---------------------------------------------------------------------------------------


def exact_margins(x: Draw) -> dict[str, int]:
    assert isinstance(x.model, EFDPA)
    fraction = 2 * formats.get(x.format).mantissa_bits
    carries = (x.model.L - 1).bit_length()
    last = x.a[0] + x.b[0] - fraction
    return {
        "window": 52 - (x.a[1] - x.a[0] + x.b[1] - x.b[0] + fraction + 2 + carries),
        "grid": x.c[0] - 23 - last,
        "limit": 53 + last - x.c[1],
    }


@pytest.mark.parametrize(("format", "L"), [("f16", 4), ("f16", 3), ("f16", 2), ("bf16", 2)])
def test_e_fdpa(format: str, L: int) -> None:
    def draw(rng: Rng) -> Draw:
        low, high = (-14, -4) if format == "f16" else (-75, 60)
        a, b = span(rng, low, high, 14), span(rng, low, high, 18)
        near = a[0] + b[0]
        c = span(rng, near - 30, near + 40, 20) if rng.random() < 0.7 else span(rng, -126, 90, 30)
        return Draw(EFDPA(L, RNE_FP32), format, "f32", a, b, c)

    def widest(x: Draw) -> dict[str, int]:  # beyond the window, any c will do
        margins = exact_margins(x)
        return margins if margins["window"] >= 0 else margins | {"grid": 0, "limit": 0}

    guards = {"window": move("a", -1, top_only=True), "grid": move("c"), "limit": move("c", -1)}
    try_both_sides(draw, widest, guards, each=20)


@pytest.mark.parametrize(("format", "L", "wide"), [("f16", 4, 1), ("bf16", 2, 1), ("bf16", 2, 4)])
def test_exact_sums_near_the_middle_between_floats(format: str, L: int, wide: int) -> None:
    """c and half a unit of its last place; a last product, or none, says which way it goes."""
    fmt, rng = formats.get(format), np.random.default_rng(3)
    halves, lasts = (-9, 0, 9), [wide * e for e in (-14, -13, -5, -2, -1, 0, 3, 14)]

    def powers(*exponents: int) -> list[int]:
        return [(e + fmt.bias) << fmt.mantissa_bits for e in exponents]

    minus = 1 << (fmt.width - 1)
    A = [powers(h, e, 14, 14)[:L] for h in halves for e in lasts]
    B = []
    for h in halves:
        for e in lasts:
            half, last, one, other = powers(h, e, 14, 14)
            for line in ((half, last), (half | minus, last), (half, last | minus), (half, 0)):
                B.append([*line, one, other | minus][:L])  # the last two cancel
    exponent = np.repeat(halves, len(lasts))[:, None] + np.repeat(halves, 4 * len(lasts)) + 24
    C = (exponent + 127) << 23 | rng.choice([0, 1, 0x7FFFFF], exponent.shape)
    C |= rng.integers(0, 2, C.shape) << 31
    x = Draw(EFDPA(L, RNE_FP32), format, "f32", (0, 0), (0, 0), (0, 0))
    b = np.ascontiguousarray(np.array(B, fmt.code_dtype).T)
    check(x, np.array(A, fmt.code_dtype), b, C.astype(np.uint32))
