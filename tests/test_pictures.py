"""Pictures: read back, their bits must be the trace's integers; and they must stand alone."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import bitmma
from bitmma import cases, formats, isa, reference
from bitmma.cli import main
from bitmma.formats import Kind
from bitmma.models import FDPA, TFDPA, Lowered, Model, SumTree
from bitmma.reference import Aligned, Trace
from bitmma.render import Explanation

SVG = "{http://www.w3.org/2000/svg}"

# One instruction of every kind of model, short and long.
KINDS = [
    ("Volta", "m8n8k4.f32.f16.f16.f32"),
    ("Ampere", "m16n8k8.f32.tf32.tf32.f32"),
    ("Hopper", "m16n8k16.f16.f16.f16.f16"),
    ("Hopper", "m16n8k16.f32.bf16.bf16.f32"),
    ("Hopper", "m64n8k32.f32.e4m3.e5m2"),
    ("Hopper", "m16n8k32.f32.e5m2.e5m2.f32"),
    ("RTX Blackwell", "m16n8k32.kind::mxf8f6f4.block32.f32.e3m2.e5m2.f32.ue8m0"),
    ("RTX Blackwell", "m16n8k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.f32.ue4m3"),
    ("Hopper", "m16n8k8.f64.f64.f64.f64"),
    ("CDNA1", "f32_16x16x16f16"),
    ("CDNA1", "f32_32x32x4bf16"),
    ("CDNA2", "f32_16x16x16f16"),
    ("CDNA2", "f32_16x16x8bf16"),
    ("CDNA3", "f32_16x16x16_bf16"),
    ("CDNA3", "f32_16x16x8_xf32"),
    ("CDNA3", "f32_16x16x32_fp8_bf8"),
]


def explanations(gpu: str, name: str, count: int = 26) -> Iterator[Explanation]:
    e = isa.find(gpu, name)
    made = cases.generate(
        e.model, e.a, e.b, e.c, e.k, count, 11, scale_format=e.scale, block=e.block
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


# --- a picture read back --------------------------------------------------------------------------


class Row(NamedTuple):
    """A row as a reader sees it; bits are weight -> digit."""

    name: str
    detail: str
    sign: int
    kept: dict[int, int]
    cut: dict[int, int]
    shades: set[str]
    more: bool
    note: str


@dataclass
class Axis:
    """Where weights lie, from the ticks over the columns; a fold "×12" stands for 12 of them."""

    GAP = 26.0

    ticks: list[tuple[float, int]] = field(default_factory=list)
    folds: dict[float, int] = field(default_factory=dict)
    cell: float = 13.0

    def weights(self, x: float) -> range:
        """The weights at x, highest first: one, or all those of a fold."""
        x0, w0 = self.ticks[0]
        if x in self.folds:
            first = w0 - self._columns(x0, x - self.GAP / 2 + self.cell / 2)
            return range(first, first - self.folds[x], -1)
        w = w0 - self._columns(x0, x)
        return range(w, w - 1, -1)

    def _columns(self, x0: float, x: float) -> int:
        """Weights from x0 to x, negative to the left."""
        between = [count for at, count in self.folds.items() if min(x0, x) < at < max(x0, x)]
        side = 1 if x >= x0 else -1
        cells = (x - x0 - side * self.GAP * len(between)) / self.cell
        assert abs(cells - round(cells)) < 0.07, "a digit between two columns"
        return round(cells) + side * sum(between)


DIGITS = re.compile(r"^c (pad|[KXSR][01])$")
POWER = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")


class Block(NamedTuple):
    terms: list[Row]
    sums: list[Row]


def read(picture: str) -> list[Block]:
    """The blocks of bits of one picture."""
    blocks = []
    for panel in ET.fromstring(picture).iter(f"{SVG}g"):
        if panel.get("class") != "panel":
            continue
        axis = Axis()
        texts = [(t.get("class") or "", t) for t in panel.iter(f"{SVG}text")]
        for kind, t in texts:
            x = float((t.get("x") or "").split()[0])
            if kind.startswith("a c ") and (t.text or "").startswith("×"):
                axis.folds[x] = int((t.text or "")[1:])
            elif kind.startswith("a c "):
                axis.ticks.append((x, int((t.text or "")[1:].translate(POWER))))
        xs = {float(x) for k, t in texts if DIGITS.match(k) for x in (t.get("x") or "").split()}
        steps = {round(q - p, 1) for p, q in itertools.pairwise(sorted(xs))}
        axis.cell = 9.5 if min(steps, default=13) < 12 else 13.0
        for block in panel.findall(f"{SVG}g"):
            kinds = ("row term", "row sum")
            blocks.append(Block(*([_row(g, axis) for g in block if g.get("class") == kind]
                                  for kind in kinds)))  # fmt: skip
    return blocks


def _row(node: ET.Element, axis: Axis) -> Row:
    texts = [(t.get("class") or "", t) for t in node.iter(f"{SVG}text")]
    words = [t.text or "" for kind, t in texts if not DIGITS.match(kind)]
    kept: dict[int, int] = {}
    cut: dict[int, int] = {}
    shades = set()
    for kind, t in texts:
        if match := DIGITS.match(kind):
            xs = [float(x) for x in (t.get("x") or "").split()]
            assert len(xs) == len(t.text or "")
            for x, digit in zip(xs, t.text or "", strict=True):
                shown = int(match[1][1]) if match[1] != "pad" else 0
                assert digit in ("⋯", str(shown))
                for w in axis.weights(x):
                    (cut if match[1][0] == "X" else kept)[w] = shown
            shades.add(match[1][0])
    sign = -1 if "−" in words else 1
    note = (
        words[-1]
        if len(words) > 2 and re.match("cut|rounded|flushed|=|≈|beyond", words[-1])
        else ""
    )
    return Row(words[0], words[1], sign, kept, cut, shades, "…" in words, note)


def number(bits: dict[int, int]) -> Fraction:
    return sum((digit * Fraction(2) ** w for w, digit in bits.items()), Fraction(0))


def exact(n: int, q: int) -> Fraction:
    return n * Fraction(2) ** q


# --- what the trace wants drawn -------------------------------------------------------------------


class Wanted(NamedTuple):
    """One block: summands in order, and the values of its sum and its roundings."""

    terms: list[Aligned]
    aligned: bool
    sums: list[Fraction]
    specials: list[str]


def wanted(trace: Trace) -> Iterator[Wanted]:
    for i, step in enumerate(trace.steps):
        if _is_quiet(trace, i):
            continue
        if step.specials:
            yield Wanted([], False, [], [name.replace("*", "·") for name, _ in step.specials])
            continue
        fmt = formats.get(step.format)
        kind, sign, significand, e = fmt.decode(step.result)
        results = [exact(-significand if sign else significand, e - fmt.mantissa_bits)]
        if kind in (Kind.INF, Kind.NAN):
            results = []
        products: dict[str, Aligned] = {}
        for stage in step.stages:
            if stage.total is None:
                products = {t.name: t for t in stage.terms}
                continue
            terms = [products.get(t.name, t) for t in stage.terms]
            sums = [exact(*stage.total[1:3]), exact(*stage.total[4:6])]
            last = stage is step.stages[-1]
            yield Wanted(terms, stage.e_max is not None, sums + results * last, [])
        if not step.stages:
            terms = [t for t in step.terms if t.n or t.name in ("c", "t") or step.e_max is not None]
            sums = [exact(*step.total), *results] if step.total else []
            yield Wanted(terms, step.e_max is not None, sums, [])


def _is_quiet(trace: Trace, i: int) -> bool:
    """No product but 0, nothing changed, and not the first: said in words."""
    if i == 0 or isinstance(trace.model, Lowered) or not trace.steps[i].terms:
        return False
    step, before = trace.steps[i], trace.steps[i - 1]
    zero = all(t.n == 0 for t in step.terms if t.name != "c")
    return zero and (step.result, step.format) == (before.result, before.format)


def check_term(row: Row, term: Aligned, aligned: bool) -> None:
    value, kept = exact(term.n, term.q), exact(term.kept, term.unit)
    assert term.n == 0 or row.sign == (-1 if term.n < 0 else 1)
    assert bool(row.note) == (kept != value) or row.note == "flushed to 0"
    if row.more:  # lower bits are in the row's title alone
        shown = number(row.kept | row.cut)
        lowest = min([*row.kept, *row.cut], default=None)
        assert row.cut or lowest is None or 0 <= abs(kept) - shown < Fraction(2) ** lowest
        if aligned:
            assert number(row.kept) == abs(kept)
        return
    assert number(row.kept) == abs(kept)
    assert number(row.cut) == abs(value) % Fraction(2) ** term.unit
    assert not aligned or min(row.kept) == term.unit


def check_standing_alone(picture: str) -> None:
    """Nothing from elsewhere, nothing beyond the edges."""
    assert "url(" not in picture and "@import" not in picture
    assert picture.count("http") == 1  # the namespace
    root = ET.fromstring(picture)
    width, height = float(root.get("width") or 0), float(root.get("height") or 0)
    for t in root.iter(f"{SVG}text"):
        assert max(map(float, (t.get("x") or "").split())) < width
        assert float(t.get("y") or 0) < height


def check(x: Explanation) -> tuple[int, int]:
    """The picture against the trace, in order: how many summands were read, how many were cut."""
    read_terms = cut_terms = 0
    picture = x.to_svg()
    check_standing_alone(picture)
    drawn = iter(read(picture))
    for want in wanted(x.trace):
        block = next(drawn)
        if want.specials:
            shown = [row.name if row.name != "t" else "c" for row in block.terms]
            assert shown == [name if name != "t" else "c" for name in want.specials]
            continue
        rows = iter(block.terms)
        names = {row.name for row in block.terms}
        run: Row | None = None
        for term in want.terms:
            name = term.name.replace("*", "·").replace("T_", "T ").replace("-", "–")
            if name == "c" and "c" not in names and "t" not in names:
                continue  # the row above it
            if run is None or not _within(name, run.name):
                run = next(rows)
                assert run.name.split("…")[0] in (name, "t" if name == "c" else name)
            check_term(run, term, want.aligned)
            read_terms, cut_terms = read_terms + 1, cut_terms + bool(run.cut)
        assert next(rows, None) is None
        sums = [row for row in block.sums if not row.note.startswith("beyond")]
        for row in sums:
            assert row.more or row.sign * number(row.kept | row.cut) in want.sums
        values = {row.sign * number(row.kept | row.cut) for row in sums}
        assert any(row.more for row in sums) or values == set(want.sums)
    assert next(drawn, None) is None
    return read_terms, cut_terms


def _within(name: str, run: str) -> bool:
    """Whether one row stands for several summands and this is one of them."""
    at, *_ = [*map(int, re.findall(r"(?:a|group )(\d+)", name)), -1]
    ends = [*map(int, re.findall(r"(?:a|group )(\d+)", run))]
    return len(ends) == 2 and ends[0] < at <= ends[1]


@pytest.mark.parametrize(("gpu", "name"), KINDS)
def test_bits_drawn_are_the_trace_s(gpu: str, name: str) -> None:
    terms = cut = 0
    for x in explanations(gpu, name):
        more = check(x)
        terms, cut = terms + more[0], cut + more[1]
    assert terms > 50
    family = isa.find(gpu, name).model.family
    assert cut > 5 or family in ("FMA", "E-FDPA", "FTZ-MulAdd")


def test_what_makes_reading_hard_is_met() -> None:
    """Rows that stand for several summands, folded columns, bits too low to be drawn."""
    names, folds, more = [], 0, 0
    for kind in (KINDS[3], KINDS[4], KINDS[8]):
        for x in explanations(*kind, 26):
            folds += x.to_svg().count("⋯")
            rows = [row for block in read(x.to_svg()) for row in block.terms]
            names += [row.name for row in rows]
            more += sum(row.more for row in rows)
    assert any("…" in name for name in names)
    assert folds > 50 and more > 20


# --- whole pictures -------------------------------------------------------------------------------

SIX = ([-8192, -0.5, -0.25, -0.125], [1024, 1, 1, 1], 8388608)


def six(gpu: str, name: str) -> Explanation:
    return bitmma.instruction(gpu, name).explain(*SIX)


HOPPER, CDNA3 = ("H100", "m16n8k16.f32.f16.f16.f32"), ("MI300X", "f32_16x16x16_f16")


def words(picture: str) -> str:
    return "\n".join(t.text or "" for t in ET.fromstring(picture).iter(f"{SVG}text"))


def test_what_a_picture_says() -> None:
    said = words(six(*HOPPER).to_svg())
    for text in (
        "Hopper mma m16n8k16.f32.f16.f16.f32", "T-FDPA L=16 F=25 RZ-FP32 e_zero=-133 · recorded",
        "e_max = 23: all cut toward zero below 2⁻² = 2^(e_max − 25)", "−8192 × 1024", "cut −0.125",
        "d = −0.75", "f32 0xbf400000", "exact a·b + c = −0.875, d − exact = 0.125",
    ):  # fmt: skip
        assert text in said.splitlines()
    root = ET.fromstring(six(*HOPPER).to_svg())
    assert root[0].tag == f"{SVG}title" and root[0].text == (
        "Hopper mma m16n8k16.f32.f16.f16.f32: d = −0.75"
    )
    assert root[1].tag == f"{SVG}desc" and "cut toward zero" in (root[1].text or "")


def test_stages_are_shown() -> None:
    said = words(six(*CDNA3).to_svg())
    assert "Products, e_max = 23: cut toward zero below 2⁻¹ = 2^(e_max − 24)" in said
    assert "T and c, E = 23: rounded down, T to 2⁻⁹ and c to 2⁻¹; their sum to 2⁻³²" in said
    assert "One more step: every product is 0, still d = −0.5" in said
    fp8 = bitmma.instruction("MI300X", "f32_16x16x32_fp8_fp8")
    said = words(fp8.explain([1, 2, 3], [1, 2, 3]).to_svg())
    assert "Even products, e_max = 2: cut" in said and "T even and T odd: rounded down" in said
    cdna2 = bitmma.instruction("MI250X", "f32_16x16x16f16")
    said = words(cdna2.explain([2.0**-15, 1], [1, 1], 2).to_svg())
    assert "s1 = a2·b2 + a3·b3, RNE-FP32" in said and "d = c + s, RNE-FP32" in said
    assert "flushed to 0" in said and "a0 flushed to +0" in said
    lowered = bitmma.instruction("H100", "m16n8k32.f32.e4m3.e4m3.f32")
    said = words(lowered.explain([1, 1], [1, 1], 2).to_svg())
    assert "Step 3 of 3: d = t + c" in said and "so far" in said
    said = words(bitmma.instruction(*HOPPER).explain(["inf", 1], [1, "-inf"]).to_svg())
    assert "= +∞" in said and "= −∞" in said and "= NaN" in said
    mx = bitmma.instruction("sm_120", "m16n8k64.kind::mxf4.block32.f32.e2m1.e2m1.f32.ue8m0")
    said = words(mx.explain([1], [1], 0, ["0xff", 2], [2, 2]).to_svg())
    assert "scales of a0·b0" in said and "NaN × 2" in said and "= NaN" in said
    said = words(mx.explain([1, 6, -3], [1, 2, 0.5], 0, [2, 2], [0.5, 4]).to_svg())
    assert "Products of each group, exact" in said and "−1.5" in said and "11.5 × 2 × 0.5" in said


def test_themes() -> None:
    x = six(*HOPPER)
    light, dark, auto = (x.to_svg(theme) for theme in ("light", "dark", "auto"))
    assert "prefers-color-scheme" in auto and "prefers-color-scheme" not in light + dark
    assert len({read_colours(picture)["k1"] for picture in (light, dark)}) == 2
    assert read_colours(auto)["k1"] == read_colours(light)["k1"]
    with pytest.raises(ValueError, match=r"theme must be one of auto, light, dark, not 'blue'"):
        x.to_svg("blue")
    with pytest.raises(ValueError, match="theme"):
        x.to_html("Dark")
    assert "data-md-color-scheme" in auto and "data-md-color-scheme" not in light + dark


def read_colours(picture: str) -> dict[str, str]:
    """Class -> colour, as far as the first rule of each says."""
    found: dict[str, str] = {}
    for name, rule in re.findall(r"\.(\w+)\{((?:fill|stroke):[^}]*)\}", picture):
        found.setdefault(name, rule)
    return found


def test_side_by_side() -> None:
    both = six(*HOPPER).beside(six(*CDNA3))
    root = ET.fromstring(both.to_svg())
    assert len(root.findall(f"{SVG}g")) == 2
    assert "d = −0.75" in words(both.to_svg()) and "d = −0.5" in words(both.to_svg())
    alone = [ET.fromstring(x.to_svg()) for x in both.explanations]
    assert float(root.get("width") or 0) > sum(float(x.get("width") or 0) for x in alone)
    assert str(both) == f"{both.explanations[0]}\n\n\n{both.explanations[1]}"
    assert [x["title"] for x in both.to_dict()["explanations"]] == [
        x.title for x in both.explanations
    ]
    with pytest.raises(TypeError, match="beside takes explanations, not 3"):
        six(*HOPPER).beside(3)  # type: ignore[arg-type]


def test_a_page_of_its_own() -> None:
    for shown in (six(*HOPPER), six(*HOPPER).beside(six(*CDNA3))):
        page = shown.to_html()
        assert page.startswith("<!DOCTYPE html>\n") and page.count("http") == page.count("<svg")
        root = ET.fromstring(page.partition("\n")[2])
        count = len(list(root.iter(f"{SVG}svg")))
        assert count == len(list(root.iter("details"))) == page.count("<h4>Operands")
        assert "color-scheme:light dark" in page
        assert "color-scheme:dark" in shown.to_html("dark")


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = ["--a=-8192,-0.5,-0.25,-0.125", "--b=1024,1,1,1", "--c=8388608"]
    svg, html = tmp_path / "x.svg", tmp_path / "x.html"
    assert main(["explain", *HOPPER, *numbers, "--svg", str(svg), "--html", str(html)]) == 0
    assert svg.read_text(encoding="utf-8") == six(*HOPPER).to_svg()
    assert html.read_text(encoding="utf-8") == six(*HOPPER).to_html()
    assert "d f32 0xbf400000" in capsys.readouterr().out
    beside = ["--beside", *CDNA3, "--theme", "dark"]
    assert main(["explain", *HOPPER, *numbers, *beside, "--svg", str(svg)]) == 0
    assert svg.read_text(encoding="utf-8") == six(*HOPPER).beside(six(*CDNA3)).to_svg("dark")
    out = capsys.readouterr().out
    assert "0xbf400000" in out and "0xbf000000" in out
    assert main(["explain", *HOPPER, *numbers, "--svg", str(svg), "--theme", "x"]) == 2
    assert "theme must be one of" in capsys.readouterr().err


def test_hypothetical_units() -> None:
    """Wide grids and narrow ones, groups that do not fill up."""
    h100 = bitmma.instruction("H100", "m64n8k32.f32.e4m3.e4m3")
    rng = np.random.default_rng(1)
    a, b = (bitmma.quantize(rng.standard_normal(32), "e4m3") for _ in range(2))
    for change in ({"F": 64}, {"F": 1}, {"L": 3, "rho": "RNE_FP16"}, {"e_zero": -1000}):
        unit = replace(
            h100, model=replace(h100.model, **change), d="f16" if "rho" in change else "f32"
        )
        check(unit.explain(a, b, 0.25))


@pytest.mark.parametrize(
    "model",
    [
        FDPA(L=8, F=12, c="late", F2=14, cut2="RD", groups=2, F_groups=11, F_sum=20, F_c=14),
        FDPA(L=4, F=20, order="pairwise"),
        FDPA(L=8, F=None, F_c=20),
        SumTree((((0, 4, 8), 2, (5, 6, 7)), ((1, 9, 10, 11), 3, (12, 13, 14, 15)), "c")),
    ],
    ids=["late", "pairwise", "exact", "tree"],
)
def test_general_models(model: Model) -> None:
    """Every summand of every step is drawn, whatever the steps are."""
    made = cases.generate(TFDPA(), "f16", "f16", "f32", 16, 26, 3)
    terms = 0
    for a, b, c in zip(made.a.tolist(), made.b.tolist(), made.c.tolist(), strict=True):
        trace = reference.trace(model, a, b, c, a_format="f16", b_format="f16", c_format="f32")
        blocks = iter(read(Explanation(trace, "x").to_svg()))
        for step in trace.steps:
            rows = iter(next(blocks).terms)
            run = ""
            for term in step.terms:
                if not term.n and step.e_max is None and term.name != "c":
                    continue  # adds nothing
                name = term.name.replace("*", "·")
                if not _within(name, run):
                    row = next(rows)
                    run = row.name
                    assert row.name.split("…")[0] == name
                check_term(row, term, step.e_max is not None)
                terms += 1
    assert terms > 100
