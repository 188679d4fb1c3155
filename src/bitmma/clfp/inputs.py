"""Inputs for testing a model against the box, and what they reached.

Random inputs alone are nearly vacuous (13% finite outputs for e5m2), so most come from
`bitmma.cases`, aimed at what the models in question can get wrong; the rest is what matrix units
are usually fed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bitmma import cases, formats, reference
from bitmma.clfp.box import Box, Codes, Dots
from bitmma.formats import Format
from bitmma.models import TFDPA, Conversion, Model

__all__ = ["Sample", "aimed", "coverage", "neutral", "outliers", "same", "sparse"]


def neutral(box: Box) -> Model:
    """A model to aim at while nothing is known: only its output format and length matter."""
    d = box.formats[3]
    return TFDPA(box.k, d.mantissa_bits + 1, Conversion("RNE", d.name), d.min_exponent - 8)


def aimed(
    box: Box, model: Model, count: int, seed: int, category: str | Sequence[str] | None = None
) -> Dots:
    """``count`` dot products of `bitmma.cases`, its categories one after the other."""
    s = box.spec
    x = cases.generate(
        model, s.a, str(s.b), s.c, s.k, count, seed,
        category=category, scale_format=s.scale, block=s.block,
    )  # fmt: skip
    dots = Dots(x.a, x.b, x.c, x.scale_a, x.scale_b)
    return dots[np.argsort(x.category, kind="stable")]


def outliers(box: Box, count: int, seed: int) -> Dots:
    """N(0,1) + Bernoulli(0.001) · N(0,100), as activations are; scales around 1."""
    rng = np.random.default_rng([seed, 1])

    def draw(fmt: Format, *shape: int) -> Codes:
        x = rng.standard_normal(shape)
        far = rng.integers(0, max(x.size, 1), rng.binomial(x.size, 0.001))
        x.reshape(-1)[far] += rng.standard_normal(len(far)) * 100
        codes: Codes = formats.quantize(x, fmt, saturate=True).view(fmt.code_dtype)
        return codes

    fa, fb, fc, _ = box.formats
    scales: list[Codes | None] = [None, None]
    if box.scale_format is not None and box.spec.block:
        shape = (count, box.k // box.spec.block)
        powers = 2.0 ** rng.integers(-3, 4, (2, *shape))
        scales = [
            formats.quantize(p, box.scale_format).view(box.scale_format.code_dtype) for p in powers
        ]
    return Dots(draw(fa, count, box.k), draw(fb, count, box.k), draw(fc, count), *scales)


def sparse(box: Box, model: Model, count: int, seed: int) -> Dots:
    """Rows that show signs of zero, flushing and underflow: few terms left of `aimed`, and zeros.

    In half of the rows up to three products stay, of which two may cancel, to 0 or to a subnormal
    sum; the others are zeros of one sign or of both, or made of one smallest subnormal or of two; c
    stays or is a zero or the smallest subnormal. In the next quarter all is -0 but two that cancel
    to a subnormal, or some negative products too small for most formats: a sum may be -0 from there
    on. In the last, all products lie where sums of two become subnormal.
    """
    x = aimed(box, model, count, seed)
    rng = np.random.default_rng([seed, 2])
    n, k = x.a.shape
    fa, fb, fc, fd = box.formats
    one, two, three = list(rng.integers(0, k, (3, n)))  # lanes, neighbours in half of the rows
    two = np.where(rng.random(n) < 0.5, (one + 1) % k, two)
    a, b, rows = np.array(x.a), np.array(x.b), np.arange(n)
    least_a, least_b = 1 << fa.dropped_bits, 1 << fb.dropped_bits

    # Products near the smallest normal number of some format.
    edges = sorted({formats.get(x).min_exponent for x in ("f32", "f16", fd.name)})
    target = rng.choice(edges, (n, 1))
    e_a: Codes = np.clip(target // 2, fa.min_exponent, fa.max_exponent)
    near_a = _signed(fa, rng.random((n, k)) < 0.5, _normal(rng, fa, e_a, (n, k)))
    near_b = _normal(rng, fb, target - e_a, (n, k))

    kind = np.asarray(rng.integers(0, 8, n))
    near = np.less(rng.random(n), 0.25)
    for lane, negative in ((one, False), (two, True)):
        number = _signed(
            fa, np.full(n, negative), near_a[rows, lane] & ~fa.code_dtype.type(fa.sign_bit)
        )
        a[rows, lane] = np.where(near, number, a[rows, lane])
        b[rows, lane] = np.where(near, near_b[rows, lane], b[rows, lane])
    mirrored = ~near & (rng.random(n) < 0.5)
    a[rows, two] = np.where(mirrored, a[rows, one] ^ fa.code_dtype.type(fa.sign_bit), a[rows, two])
    b[rows, two] = np.where(mirrored, b[rows, one], b[rows, two])
    many = np.maximum(rng.integers(0, 4, n), 2 * near)
    keep = np.zeros((n, k), bool)
    for i, lane in enumerate((one, two, three)):
        keep[rows, lane] |= many > i

    style = rng.integers(0, 5, (n, 1))  # products of +0, of -0, of both, with subnormal operands
    minus = np.where(style == 2, rng.random((n, k)) < 0.5, style == 1)
    minus = np.where(style >= 3, rng.random((n, 1)) < 0.7, minus)
    tiny = rng.random((n, k)) < 2.0 ** -rng.uniform(0, np.log2(k) + 1, (n, 1))
    last = (kind >= 4) & (kind < 6)
    keep[last & ~near], minus[last] = False, True
    keep[last & near] &= many[last & near, None] < 3
    style = np.where(last[:, None], np.where(tiny, 4, 1), style)
    turned = rng.random((n, k)) < 0.5
    a = np.where(keep, a, _signed(fa, minus ^ turned, np.where(style >= 3, least_a, 0)))
    one_b = fb.encode(1, 0)
    b = np.where(keep, b, _signed(fb, turned, np.where(style == 4, least_b, one_b)))
    a[kind >= 6], b[kind >= 6] = near_a[kind >= 6], near_b[kind >= 6]

    addend = np.where(last, 3, rng.integers(0, 6, n))  # c stays, as often as not
    least = np.where(addend == 5, 1 << fc.dropped_bits, 0)
    c = np.where(addend < 3, x.c, _signed(fc, (addend == 3) | (rng.random(n) < 0.3), least))
    return replace(x, a=a, b=b, c=c)


def _signed(fmt: Format, negative: Codes, codes: Codes) -> Codes:
    """Codes without sign given one; there is no -0 in FNUZ."""
    sign = np.where(negative, np.uint64(fmt.sign_bit), np.uint64(0))
    signed: Codes = (sign | np.asarray(codes).astype(np.uint64)).astype(fmt.code_dtype)
    if fmt.specials == "fnuz":
        signed[signed == fmt.sign_bit] = 0
    return signed


def _normal(rng: np.random.Generator, fmt: Format, e: Codes, shape: tuple[int, ...]) -> Codes:
    """Codes of positive normal numbers with those exponents, or the nearest that there are."""
    field = np.clip(e, fmt.min_exponent, fmt.max_exponent) - fmt.min_exponent + 1
    fraction = rng.integers(0, 1 << fmt.mantissa_bits, shape)
    code = np.minimum(field << fmt.mantissa_bits | fraction, fmt.max_code >> fmt.dropped_bits)
    found: Codes = (code << fmt.dropped_bits).astype(fmt.code_dtype)
    return found


def same(fmt: Format, x: Codes, y: Codes, *, nan: bool = True) -> Codes:
    """Where codes of an output format are equal; ``nan``: any two NaNs are."""
    equal: Codes = x == y
    if nan and not equal.all():
        equal |= _is_nan(fmt, x) & _is_nan(fmt, y)
    return equal


def _is_nan(fmt: Format, codes: Codes) -> Codes:
    magnitude = codes & fmt.code_dtype.type(fmt.sign_bit - 1)
    found: Codes = magnitude > fmt.inf_code
    return found


class Sample:
    """So many of all the dot products that are drawn, evenly spread over them.

    Not every so many, for kinds of inputs follow each other in turn: those are picked whose number
    times the golden ratio has the smallest fractions.
    """

    def __init__(self, size: int) -> None:
        self.size, self._drawn = size, 0
        self._keys, self.picked = np.empty(0), Dots(*np.empty((3, 0)))

    def add(self, x: Dots) -> None:
        number = np.arange(self._drawn, self._drawn + x.count)
        keys = np.concatenate([self._keys, number * ((5**0.5 - 1) / 2) % 1])
        lowest = np.sort(np.argsort(keys)[: self.size])
        old = lowest[lowest < len(self._keys)]
        new = x[lowest[len(old) :] - len(self._keys)]
        self.picked = Dots.join([self.picked[old], new]) if len(old) else new
        self._keys, self._drawn = keys[lowest], self._drawn + x.count


def coverage(box: Box, model: Model, x: Dots) -> dict[str, int]:
    """How many of these dot products met each condition of `cases.Coverage`, by the model."""
    s = box.spec
    traces = (
        reference.trace(
            model, x.a[i].tolist(), x.b[i].tolist(), int(x.c[i]),
            a_format=s.a, b_format=str(s.b), c_format=s.c, scale_format=s.scale, block=s.block,
            scale_a=x.scale_a[i].tolist() if x.scale_a is not None else (),
            scale_b=x.scale_b[i].tolist() if x.scale_b is not None else (),
        )
        for i in range(x.count)
    )  # fmt: skip
    found = cases.coverage(traces)
    counts = {name: int(n) for name, n in vars(found).items() if name != "nan"}
    counts["nan"] = sum(found.nan.values())
    return counts
