"""Products by plain loops: `bitmma.reference` for chains, exact rationals for everything outside.

Nothing here shares arithmetic with `bitmma.gemm`, `bitmma.epilogue` or the engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import bitmma
from bitmma import formats, reference
from bitmma.formats import Kind

Number = Fraction | str  # a finite number, "inf", "-inf" or "nan"


def read(code: int, fmt: str) -> tuple[Number, bool]:
    """What a code is worth, and its sign."""
    f = formats.get(fmt)
    kind, sign, significand, exponent = f.decode(int(code))
    if kind is Kind.NAN:
        return "nan", False
    if kind is Kind.INF:
        return "-inf" if sign else "inf", bool(sign)
    value = significand * Fraction(2) ** (exponent - f.mantissa_bits)
    return (-value if sign else value), bool(sign)


def write(x: Number, negative_zero: bool, fmt: str, nan: int, saturate: bool = False) -> int:
    """The code nearest to x, ties to even."""
    f = formats.get(fmt)
    if x == "nan":
        return nan
    if isinstance(x, str):
        code = f.max_code if saturate else f.inf_code
        return code | (f.sign_bit if x == "-inf" else 0)
    # A Fraction with any denominator: enough bits that only stickiness is left of the rest.
    q = -400
    scaled = x / Fraction(2) ** q
    n = math.floor(abs(scaled)) * 2 + (abs(scaled).denominator != 1)
    return f.encode(-n if x < 0 else n, q - 1, negative_zero=negative_zero, saturate=saturate)


def fma(x: int, y: int, z: int, fmt: str, nan: int) -> int:
    """RN(x y + z) on codes, by IEEE 754."""
    (a, sa), (b, sb), (c, sc) = read(x, fmt), read(y, fmt), read(z, fmt)
    minus = sa != sb
    if "nan" in (a, b, c):
        return nan
    infinite = isinstance(a, str) or isinstance(b, str)
    if infinite and 0 in (a, b):
        return nan
    if infinite:
        product: Number = "-inf" if minus else "inf"
        if isinstance(c, str) and c != product:
            return nan
        return write(product, False, fmt, nan)
    if isinstance(c, str):
        return write(c, False, fmt, nan)
    assert not isinstance(a, str) and not isinstance(b, str)
    exact = a * b
    total = exact + c
    zero_minus = minus and sc if exact == 0 and c == 0 else False
    return write(total, zero_minus, fmt, nan)


def add(x: int, y: int, fmt: str, nan: int) -> int:
    return fma(x, one(fmt), y, fmt, nan)


def mul(x: int, y: int, fmt: str, nan: int) -> int:
    """RN(x y): as fma, but an exact zero keeps the product's sign."""
    code = fma(x, y, 0, fmt, nan)
    sign = formats.get(fmt).sign_bit
    finite = all(not isinstance(read(v, fmt)[0], str) for v in (x, y))
    return code | ((x ^ y) & sign) if code == 0 and finite else code


def one(fmt: str) -> int:
    return formats.get(fmt).encode(1, 0)


def widen(code: int, fmt: str, to: str, nan: int) -> int:
    x, sign = read(code, fmt)
    return write(x, sign, to, nan)


def nan_of(instr: bitmma.Instruction, fmt: str) -> int:
    f = formats.get(fmt)
    ones = instr.model.nan == "ones" and f.specials != "fnuz"
    return f.sign_bit - 1 if ones else f.nan_code


def own_k(s: bitmma.Schedule, K: int) -> list[list[int]]:
    """Which k each part of split-K sums, as ../spec says it."""
    if s.split_k == 1:
        return [list(range(K))]
    T = math.ceil(K / s.split_tile)
    q = math.ceil(T / s.split_k)
    tile = [k // s.split_tile for k in range(K)]
    if s.split_order == "contiguous":
        return [[k for k in range(K) if tile[k] // q == p] for p in range(s.split_k)]
    return [[k for k in range(K) if tile[k] % s.split_k == p] for p in range(s.split_k)]


def product(
    instr: bitmma.Instruction,
    s: bitmma.Schedule,
    a: Sequence[int],
    b: Sequence[int],
    c: int | None,
    scale_a: Sequence[int] = (),
    scale_b: Sequence[int] = (),
    promote_a: Sequence[int] | None = None,
    promote_b: Sequence[int] | None = None,
    per_k: tuple[int, int] = (128, 128),
) -> tuple[int, str]:
    """One output's code and format. promote_a, promote_b: f32 codes, one a block of per_k."""
    plain = s.promote_every is None and s.split_k == 1
    out = "f64" if instr.d == "f64" else "f32"
    nan = nan_of(instr, out)
    more: dict[str, Any] = {"a_format": instr.a, "b_format": instr.b, "k": instr.k}
    if instr.scale:
        more |= {"scale_format": instr.scale, "block": instr.block}

    def chain(ks: Sequence[int], start: int, start_format: str) -> int:
        scales = {}
        if instr.block:
            heads = [k // instr.block for k in ks[:: instr.block]]
            scales = {
                "scale_a": [scale_a[h] for h in heads],
                "scale_b": [scale_b[h] for h in heads],
            }
        return reference.chain(
            instr.model, [a[k] for k in ks], [b[k] for k in ks], start, c_format=start_format,
            **more, **scales,
        )  # fmt: skip

    if plain:
        return chain(range(len(a)), c or 0, instr.c), instr.d
    parts = []
    for ks in own_k(s, len(a)):
        if s.promote_every is None:
            parts.append(widen(chain(ks, 0, instr.c), instr.d, out, nan))
            continue
        acc = 0 if c is None or s.split_k > 1 else c
        for at in range(0, max(1, len(ks)), s.promote_every):
            own = ks[at : at + s.promote_every]
            r = widen(chain(own, 0, instr.c), instr.d, out, nan)
            if own and (promote_a is not None or promote_b is not None):
                x = one(out) if promote_a is None else int(promote_a[own[0] // per_k[0]])
                y = one(out) if promote_b is None else int(promote_b[own[0] // per_k[1]])
                scale = mul(x, y, out, nan)
                if s.promote_fused:
                    acc = fma(scale, r, acc, out, nan)
                else:
                    acc = add(acc, mul(scale, r, out, nan), out, nan)
            else:
                acc = add(acc, r, out, nan)
        parts.append(acc)
    if s.split_k == 1:
        return parts[0], out
    if s.reduce == "serial":
        total = parts[0]
        rest = parts[1:]
    else:
        S, h = s.split_k, math.ceil(s.split_k / 2)
        rest = [
            add(parts[i], parts[i + h], out, nan) if i + h < S - 1 else parts[i] for i in range(h)
        ]
        total = parts[S - 1]
    for x in rest:
        total = add(total, x, out, nan)
    if c is not None:
        total = add(total, c, out, nan)
    return total, out


def epilogue(
    e: bitmma.Epilogue, instr: bitmma.Instruction, acc: int, i: int, j: int, c: int
) -> int:
    """One FP32 accumulator's code to one of the output format."""
    nan = nan_of(instr, "f32")

    def code(x: Any) -> int:
        return int(x.view("u4"))

    y = acc
    if e.is_row_wise:
        y = mul(code(e.scale_b[0, j]), mul(code(e.scale_a[i, 0]), y, "f32", nan), "f32", nan)
        y = add(y, 0 if e.bias is None else code(e.bias[j]), "f32", nan)
    else:
        given = [x for x in (e.scale_a, e.scale_b, e.alpha) if x is not None]
        if given or e.beta is not None:
            alpha = one("f32")
            for x in given:
                alpha = mul(alpha, code(x), "f32", nan)
            addend = 0 if e.beta is None else mul(code(e.beta), c, "f32", nan)
            y = fma(alpha, y, addend, "f32", nan)
        if e.bias is not None:
            y = add(y, code(e.bias[j]), "f32", nan)
    if e.scale_result is not None:
        y = mul(y, code(e.scale_result), "f32", nan)
    value, sign = read(y, "f32")
    out = formats.get(e.out_format)
    return write(value, sign, out.name, nan_of(instr, out.name), saturate=out.width == 8)
