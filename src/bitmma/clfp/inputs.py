"""Inputs for testing a model against the box, and what they reached.

Random inputs alone are nearly vacuous (13% finite outputs for e5m2), so most come from
`bitmma.cases`, aimed at what the models in question can get wrong; the rest is what matrix units
are usually fed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bitmma import cases, formats, reference
from bitmma.clfp.box import Box, Codes, Dots
from bitmma.formats import Format
from bitmma.models import TFDPA, Conversion, Model

__all__ = ["aimed", "coverage", "neutral", "outliers", "same"]


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
        x += (rng.random(shape) < 0.001) * rng.standard_normal(shape) * 100
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
