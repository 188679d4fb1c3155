"""Explanations: what they say must be what the trace holds, in every way of showing it."""

from __future__ import annotations

import dataclasses
import io
import json
import pickle
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bitmma import cases, engine, formats, isa, models, reference
from bitmma.formats import FORMATS, Kind
from bitmma.render import Explanation, code_text, hex_float, value_of, value_text
from fuzzer import fuzzer

# One instruction of every kind of model, short and long.
KINDS = [
    ("Volta", "m8n8k4.f32.f16.f16.f32"),
    ("Ampere", "m16n8k8.f32.tf32.tf32.f32"),
    ("Hopper", "m16n8k16.f16.f16.f16.f16"),
    ("Hopper", "m64n8k32.f32.e4m3.e5m2"),
    ("Hopper", "m16n8k32.f32.e5m2.e5m2.f32"),
    ("Blackwell", "m16n8k16.f16.e4m3.e4m3.f16"),
    ("RTX Blackwell", "m16n8k32.kind::mxf8f6f4.block32.f32.e3m2.e5m2.f32.ue8m0"),
    ("RTX Blackwell", "m16n8k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.f32.ue4m3"),
    ("Hopper", "m16n8k8.f64.f64.f64.f64"),
    ("CDNA1", "f32_16x16x16f16"),
    ("CDNA2", "f32_16x16x16f16"),
    ("CDNA2", "f32_16x16x8bf16"),
    ("CDNA3", "f32_16x16x16_bf16"),
    ("CDNA3", "f32_16x16x8_xf32"),
    ("CDNA3", "f32_16x16x32_fp8_bf8"),
]

SIX = """\
Volta mma m8n8k4.f32.f16.f16.f32
T-FDPA: TFDPA(L=4, F=23, rho=RZ_FP32, e_zero=-131)

Operands and products s·2^e, exact
  k   a f16   value   b f16  value  product s   e
  0  0xf000   -8192  0x6400   1024         -1  23
  1  0xb800    -0.5  0x3c00      1         -1  -1
  2  0xb400   -0.25  0x3c00      1         -1  -2
  3  0xb000  -0.125  0x3c00      1         -1  -3
  c f32 0x4b000000 = 8388608, exponent 23

Products 0-3 and c · e_max 23
  term      e  kept|cut                        unit
  a0·b0    23  -1.00000000000000000000000       2^0
  a1·b1    -1  -0.00000000000000000000000|1     2^0
  a2·b2    -2  -0.00000000000000000000000|01    2^0
  a3·b3    -3  -0.00000000000000000000000|001   2^0
  c        23  +1.00000000000000000000000       2^0
  ───────  ──  ──────────────────────────────  ────
  Σ            +0.00000000000000000000000       2^0
  RZ-FP32      +0.00000000000000000000000       2^0
  → 0x00000000 = 0

d f32 0x00000000 = 0"""


def explanations(gpu: str, name: str, count: int = 40) -> Iterator[Explanation]:
    e = isa.find(gpu, name)
    made = cases.generate(
        e.model, e.a, e.b, e.c, e.k, count, 7, scale_format=e.scale, block=e.block
    )
    for i in range(count):
        scales = {}
        if made.scale_a is not None and made.scale_b is not None:
            scales = {"scale_a": made.scale_a[i].tolist(), "scale_b": made.scale_b[i].tolist()}
        trace = reference.trace(
            e.model, made.a[i].tolist(), made.b[i].tolist(), int(made.c[i]),
            a_format=e.a, b_format=e.b, c_format=e.c, scale_format=e.scale, **scales,
        )  # fmt: skip
        yield Explanation(trace, f"{gpu} {name}")


def one(gpu: str, name: str, a: list[float], b: list[float], c: float = 0.0) -> Explanation:
    e = isa.find(gpu, name)

    def codes(x: list[float], fmt: str) -> list[int]:
        kind = formats.get(fmt)
        return formats.quantize(np.array(x), fmt).view(kind.code_dtype).tolist()

    pad = [0] * (e.k - len(a))
    trace = reference.trace(
        e.model, codes(a, e.a) + pad, codes(b, e.b) + pad, codes([c], e.c)[0],
        a_format=e.a, b_format=e.b, c_format=e.c,
    )  # fmt: skip
    return Explanation(trace, f"{gpu} {e.op} {name}")


def rich_text(x: object, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(x)
    return out.getvalue()


# --- numbers as text ------------------------------------------------------------------------------


@given(st.integers(-(2**53), 2**53), st.integers(-1000, 900))
def test_hex_float_is_exact(n: int, q: int) -> None:
    text = hex_float(n, q)
    assert Fraction(float.fromhex(text)) == Fraction(n) * Fraction(2) ** q


def test_hex_float_of_any_size() -> None:
    assert hex_float((1 << 200) + 1, -100) == "0x1." + "0" * 49 + "1p+100"
    assert hex_float(-3, 5000) == "-0x1.8p+5001"
    assert hex_float(0, 77) == "0x0p+0"


@pytest.mark.parametrize("name", [n for n, f in FORMATS.items() if f.width <= 16])
def test_value_text_is_exact(name: str) -> None:
    fmt = FORMATS[name]
    for code in range(0, 1 << fmt.width, 1 if fmt.width <= 8 else 13):
        text, value = value_text(fmt, code), value_of(fmt, code)
        again = float.fromhex(text) if "0x" in text else float(text)
        assert again.hex() == value.hex(), (hex(code), text)
        assert value.hex() == float(formats.decode(fmt.code_dtype.type(code), fmt)).hex()
        assert int(code_text(fmt, code), 16) == code


# --- plain text -----------------------------------------------------------------------------------


def test_plain_text_in_full() -> None:
    six = one("Volta", "m8n8k4.f32.f16.f16.f32", [-(2.0**13), -0.5, -0.25, -0.125],
              [2.0**10, 1, 1, 1], 2.0**23)  # fmt: skip
    assert str(six) == SIX
    assert repr(six) == "<Explanation Volta mma m8n8k4.f32.f16.f16.f32: 0x00000000 = 0>"
    assert six.result == 0.0 and six.code == 0


ROW = re.compile(
    r"^  (\S+(?: \S+)*?)  .*?([+-])([01]+)\.([01]*)(?:\|(-?)([01]+)(…?))?  +2\^(-?\d+)$"
)


@pytest.mark.parametrize(("gpu", "name"), KINDS)
def test_bits_shown_are_the_trace_s(gpu: str, name: str) -> None:
    """Every binary row, read back: kept bits times unit, and the cut bits after them."""
    seen = cut_seen = 0
    for x in explanations(gpu, name):
        shown = {}
        for line in str(x).splitlines():
            if match := ROW.match(line):
                shown.setdefault(match[1], []).append(match.groups())
        for step in x.trace.steps:
            if step.e_max is None:
                continue
            for term in step.terms:
                rows = shown.get(term.name.replace("*", "·"))
                if not rows:  # one of a run of equal terms, or too long for bits
                    continue
                _, sign, whole, places, against, cut, more, unit = (
                    rows.pop(0) if term.name == "c" else rows[0]
                )
                kept = int(whole + places, 2) * (-1 if sign == "-" else 1)
                assert (kept, int(unit)) == (term.kept, term.unit)
                value = Fraction(term.n) * Fraction(2) ** term.q
                difference = value - Fraction(kept) * Fraction(2) ** int(unit)
                if cut is None:
                    assert difference == 0
                    continue
                signed = int(cut, 2) * (-1 if (sign == "-") != (against == "-") else 1)
                last = Fraction(2) ** (int(unit) - len(cut))
                error = difference - signed * last
                assert error == 0 if not more else 0 < abs(error) < last
                cut_seen += 1
                seen += 1
    e = isa.find(gpu, name)
    if e.model.family not in ("FMA", "E-FDPA", "FTZ-MulAdd"):
        assert seen and cut_seen, "no aligned row was recognised"


@pytest.mark.parametrize(("gpu", "name"), KINDS)
def test_result_is_the_engine_s(gpu: str, name: str) -> None:
    for x in explanations(gpu, name):
        t = x.trace
        scales = {}
        if t.scale_format:
            dtype = formats.get(t.scale_format).code_dtype
            scales = {
                "scale_a": np.array(t.scale_a, dtype), "scale_b": np.array(t.scale_b, dtype),
                "scale_format": t.scale_format, "block": len(t.a) // len(t.scale_a),
            }  # fmt: skip
        codes = [
            np.array(v, formats.get(f).code_dtype)
            for v, f in ((t.a, t.a_format), (t.b, t.b_format), (t.c, t.c_format))
        ]
        d = engine.dpa(
            t.model, *codes, a_format=t.a_format, b_format=t.b_format, c_format=t.c_format, **scales
        )
        kind = formats.get(t.d_format).decode(x.code).kind
        if kind is Kind.NAN and t.model.nan == "quiet":
            assert formats.get(t.d_format).decode(int(d)).kind is Kind.NAN
        else:
            assert int(d) == x.code
        last = str(x).splitlines()[-1]
        assert last.startswith(f"d {t.d_format} {code_text(t.d_format, x.code)} = ")
        assert last.split(" = ")[1].split(" ≈ ")[0] == value_text(t.d_format, x.code)


def test_specials_in_words() -> None:
    text = str(one("Hopper", "m16n8k16.f32.f16.f16.f32", [np.inf, 1], [1, -np.inf], np.nan))
    assert "special values decide: nan" in text and "+inf" in text and "-inf" in text
    assert "0x7fffffff = nan" in text
    text = str(one("Hopper", "m16n8k16.f16.f16.f16.f16", [2.0**15], [1], 2.0**15))
    assert "beyond the largest number: Inf" in text and "d f16 0x7c00 = inf" in text
    text = str(one("CDNA2", "f32_16x16x16f16", [2.0**-15, np.inf], [1, 1], 0))
    assert "a0 flushed to +0" in text and "a1*b1 is +inf" in text


def test_equal_neighbours_share_a_row() -> None:
    text = str(one("Hopper", "m64n8k32.f32.e4m3.e4m3", [1.0] * 32, [1.0] * 32))
    assert "a0·b0…a31·b31 ×32" in text and "  0–31  " in text
    assert len(text.splitlines()) < 20
    assert "= 32" in text.splitlines()[-1]


def test_even_and_odd_products_are_labelled() -> None:
    ones = [1.0] * 32
    lines = str(one("CDNA3", "f32_16x16x32_fp8_bf8", ones, ones, 0.5)).splitlines()
    names = [line.split("  ")[1].strip() for line in lines if line.startswith("  ")]
    first = names.index("even:")
    assert names[first : first + 6] == [
        "even:", "a0·b0…a14·b14 ×8", "odd:", "a1·b1…a15·b15 ×8", "joined with:", "c",
    ]  # fmt: skip
    assert "a17·b17…a31·b31 ×8" in names
    assert "even:" not in str(one("CDNA3", "f32_16x16x16_f16", [1, 1], [1, 1]))


def test_notes_of_cdna3_are_numbers() -> None:
    text = str(one("CDNA3", "f32_16x16x16_f16", [1, 2.0**-14], [1, 2.0**-14], 0.5))
    assert "sum of products, rounded down to multiples of 2^-32: 1\n" in text
    assert "joint sum, rounded down to multiples of 2^-31: 1.5\n" in text
    text = str(one("CDNA3", "f32_16x16x16_f16", [], [], 1))
    assert "no product but 0, joint exponent E = 0" in text and "None" not in text
    assert "joint sum, rounded down to multiples of 2^-31: 1\n" in text


def test_provenance_and_nan_are_said() -> None:
    e = isa.find("H100", "m64n8k32.f32.e4m3.e4m3")
    x = Explanation(one(e.gpu, e.name, [1], [1]).trace, "x", e.provenance)
    assert str(x).splitlines()[1].endswith("e_zero=-133); recorded")
    assert x.to_dict()["provenance"] == dataclasses.asdict(e.provenance)
    assert x.to_dict()["nan"] == "bits" and one(*KINDS[-1], [1], [1]).to_dict()["nan"] == "any"


# --- Rich, HTML, data -----------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(("gpu", "name"), KINDS)
def test_rich_fits_and_loses_nothing(gpu: str, name: str, width: int) -> None:
    for x in list(explanations(gpu, name, 6)):
        text = rich_text(x, width)
        assert max(map(len, text.splitlines())) <= width
        assert "…\n" not in text  # nothing shortened by Rich
        # Folding may break a cell but drops no character of it.
        wanted = sorted(re.sub(r"[\s─]", "", str(x)))
        assert sorted(re.sub(r"[\s─]", "", text)) == wanted


def test_rich_marks_cut_bits() -> None:
    out = io.StringIO()
    x = one("Ada", "m16n8k32.f32.e4m3.e4m3.f32", [1, 2.0**-6], [1, 2.0**-9], 1)
    Console(file=out, width=100, color_system="standard", force_terminal=True).print(x)
    assert re.search(r"\x1b\[31m0*1\x1b\[0m", out.getvalue())


def test_html_is_well_formed_and_escaped() -> None:
    for gpu, name in KINDS:
        for x in explanations(gpu, name, 5):
            page = Explanation(x.trace, "<script>alert('&')</script>")._repr_html_()
            root = ET.fromstring(f"<html>{page}</html>")
            assert "script" not in {node.tag for node in root.iter()}
            assert "".join(root.find(".//b").itertext()) == "<script>alert('&')</script>"
            shown = "".join(root.find("details/div").itertext())
            assert sorted(re.sub(r"[\s─]", "", shown)) == sorted(
                re.sub(r"[\s─]", "", str(Explanation(x.trace, "<script>alert('&')</script>")))
            )
    assert "prefers-color-scheme:dark" in page


def exact(text: str) -> Fraction:
    n, q = text.split("*2^")
    return Fraction(int(n)) * Fraction(2) ** int(q)


@pytest.mark.parametrize(("gpu", "name"), KINDS)
def test_to_dict_is_complete(gpu: str, name: str) -> None:
    summed = 0
    for x in explanations(gpu, name):
        data = json.loads(json.dumps(x.to_dict(), allow_nan=False))
        t = x.trace
        for key in ("a", "b", "scale_a", "scale_b"):
            assert [int(v["code"], 16) for v in data[key]] == list(getattr(t, key))
        assert int(data["c"]["code"], 16) == t.c
        assert int(data["result"]["code"], 16) == t.result
        assert float.fromhex(data["result"]["value"]).hex() == x.result.hex()
        assert [s["title"] for s in data["steps"]] == [s.title for s in t.steps]
        for shown, step in zip(data["steps"], t.steps, strict=True):
            assert int(shown["result"]["code"], 16) == step.result
            for term, own in zip(shown["terms"], step.terms, strict=True):
                assert exact(term["kept"]) + exact(term["cut"]) == exact(term["value"])
                assert exact(term["value"]) == Fraction(own.n) * Fraction(2) ** own.q
            if step.total is not None and t.model.family in ("T-FDPA", "E-FDPA", "FMA"):
                assert exact(shown["sum"]) == sum(exact(v["kept"]) for v in shown["terms"])
                summed += 1
        for shown, product in zip(data["products"], t.products, strict=True):
            if isinstance(product, str):
                assert shown == {"value": product.removeprefix("+")}
            else:
                assert exact(shown["value"]) == Fraction(product.n) * Fraction(2) ** product.q
    assert summed or t.model.family not in ("T-FDPA", "E-FDPA", "FMA")


def test_explanations_are_values() -> None:
    x, y = (list(explanations(*KINDS[0], 3))[1] for _ in range(2))
    assert x == y and hash(x) == hash(y) and pickle.loads(pickle.dumps(x)) == x
    assert x != list(explanations(*KINDS[0], 3))[2]


def test_plain_text_needs_no_rich() -> None:
    program = (
        "import sys\n"
        "sys.modules['rich'] = None\n"
        "from bitmma import isa, reference\n"
        "from bitmma.render import Explanation\n"
        "e = isa.find('Volta', 'm8n8k4.f32.f16.f16.f32')\n"
        "t = reference.trace(e.model, [0x3c00] * 4, [0x3c00] * 4, 0,\n"
        "                    a_format='f16', b_format='f16', c_format='f32')\n"
        "x = Explanation(t, 'x')\n"
        "str(x), repr(x), x._repr_html_(), x.to_dict()\n"
        "print(x.result)\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert out.stdout == "4.0\n"


# --- units of any kind ----------------------------------------------------------------------------


def explained(u: Any, count: int, seed: int) -> Iterator[Explanation]:
    x = cases.generate(
        u.model, u.a, u.b, u.c, u.k, count, seed, scale_format=u.scale, block=u.block
    )
    for i in range(count):
        scales = {
            name: getattr(x, name)[i].tolist() for name in ("scale_a", "scale_b") if u.scale
        }  # fmt: skip
        yield Explanation(
            reference.trace(
                u.model, x.a[i].tolist(), x.b[i].tolist(), int(x.c[i]), a_format=u.a,
                b_format=u.b, c_format=u.c, scale_format=u.scale, block=u.block, **scales,
            ),
            "any unit",
        )  # fmt: skip


def test_any_unit_can_be_explained() -> None:
    """In every way of showing it: cuts far from each other, nothing cut, exponents of any size."""
    seen: set[str] = set()
    for seed in range(60):
        rng = np.random.default_rng([seed, 31])
        L = int(fuzzer.pick(rng, (1, 2, 4, 8)))
        u = fuzzer.draw_general(rng, L) if seed % 3 else fuzzer._hypothetical(rng)
        if u.k > 64 or (u.block and u.k % u.block):
            continue
        seen.add(u.model.family)
        for e in explained(u, 6, seed):
            code = code_text(formats.get(e.trace.d_format), e.code)
            last = str(e).rstrip().splitlines()[-1]
            assert f"{code} = {value_text(e.trace.d_format, e.code)}" in last
            assert ET.fromstring(e.to_svg()) is not None and "<table" in e.to_html()
            assert e.to_dict()["result"]["code"] == code
    assert len(seen) > 7, seen


def test_what_is_cut_above_the_point() -> None:
    """A zero's exponent far below all others is where such sums are counted from."""
    model = models.FDPA(
        4, 9, c="late", F_c=None, e_zero=-100_000, rho_products=models.RNE_FP16, zero="ieee"
    )
    unit = fuzzer.Unit(model, "tf32", "tf32", "f32", 8)
    texts = [str(e) for e in explained(unit, 30, 104)]
    assert any("|" in text for text in texts)
    exact = dataclasses.replace(model, F=None, F_sum=10)  # nothing aligned, and something to say
    assert any(
        "sum, cut by RZ" in str(e) for e in explained(dataclasses.replace(unit, model=exact), 9, 1)
    )


@pytest.mark.parametrize(("less", "tiny"), [(-150, "after"), (-151, "before"), (-149, "stored")])
def test_a_flushed_sum_says_so(less: int, tiny: Any) -> None:
    """2^-126 and a hair less, which may or may not count as tiny."""
    fmt = formats.get("f32")
    a, b = [fmt.encode(1, -63), fmt.encode(-1, less + 63)], [fmt.encode(1, -63)] * 2
    words = {"a_format": "f32", "b_format": "f32", "c_format": "f32"}
    exact = models.FDPA(2, None, F_c=None, rho=models.RNE_FP32)
    for plain in (exact, models.SumTree("(0 1)")):
        model: Any = dataclasses.replace(plain, flush_out="sign", tiny=tiny)
        said = str(Explanation(reference.trace(model, a, b, 0, **words), "x"))
        assert "is below 2^-126: flushed" in said and "→ 0x00000000 = 0" in said
        if tiny != "stored":
            kept = dataclasses.replace(model, tiny="stored")
            said = str(Explanation(reference.trace(kept, a, b, 0, **words), "x"))
            assert "flushed" not in said
