"""Reports as pictures and pages, and the command line."""

from __future__ import annotations

import functools
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import bitmma
from bitmma.clfp import Counterexample, Feature, Report, Turn
from bitmma.clfp.draw import tree_svg
from bitmma.clfp.tree import Node, Tree
from bitmma.cli import main
from bitmma.models import TFDPA

SVG = "{http://www.w3.org/2000/svg}"


def add(x: Tree, y: Tree) -> Node:
    return Node((x, y), "add")


def chain(lanes: range, first: Tree) -> Tree:
    return functools.reduce(add, lanes, first)


TREES: dict[str, tuple[Tree, int]] = {
    "fused": (Node((4, 0, 1, 2, 3), "fused"), 4),
    "two fused": (Node((Node((4, 0, 1), "fused"), 2, 3), "fused"), 4),
    "exact": (Node((2, 0, 1), "exact"), 2),
    "accumulators": (add(add(chain(range(2, 8, 2), 0), chain(range(3, 8, 2), 1)), 8), 8),
    "deep": (chain(range(512), 512), 512),
}


@pytest.mark.parametrize("name", TREES)
def test_a_picture_has_every_leaf_and_every_node(name: str) -> None:
    tree, k = TREES[name]
    root = ET.fromstring(tree_svg(tree, k))
    nodes = root.findall(f"{SVG}g")
    count = 0
    seen = [tree]
    while seen:
        here = seen.pop()
        if isinstance(here, Node):
            count += 1
            seen += here.children
    assert len(nodes) == count
    # The node that sums everything stands farthest to the right, every leaf at the left.
    xs = [float(g.find(f"{SVG}circle").get("cx")) for g in nodes]  # type: ignore[union-attr, arg-type]
    assert "c" in {t.text for t in root.findall(f"{SVG}text")}
    assert max(xs) == xs[-1]
    assert f"over c, p0..p{k - 1}" in nodes[-1].find(f"{SVG}title").text  # type: ignore[union-attr, operator]
    if k <= 16:
        labels = {t.text for t in root.findall(f"{SVG}text")}
        assert {"c", "d", *(f"p{i}" for i in range(k))} <= labels


def report(**changes: object) -> Report:
    box = {
        "name": "a <box>", "m": 8, "n": 8, "k": 4, "a": "f16", "b": "f16", "c": "f32", "d": "f32",
        "scale": None, "block": None,
    }  # fmt: skip
    made = Report(
        box=box, status="ambiguous", reason="two are left", tree=TREES["fused"][0],
        features=[Feature("bits <kept>", "U & V", "23", "cut", (("1", "2"),) * 3)],
        model=TFDPA(L=4), candidates=[TFDPA(L=4), TFDPA(L=4, F=24)], equivalent=["F: as it is"],
        history=[Turn("tree", "fused")], tested=1000,
        coverage={"total": 9, "two_terms": 7, "overflow": 0},
        counterexamples=[Counterexample((0x3C00,) * 4, (0x3C00,) * 4, 0, 0x3F800000, 0, "X")],
        confidence="sure", cost={"calls": 3}, seed=5, bits_version=bitmma.BITS_VERSION,
    )  # fmt: skip
    for field, value in changes.items():
        setattr(made, field, value)
    return made


def test_a_page_says_everything_and_escapes_it() -> None:
    page = report().html()
    for text in (
        "a &lt;box&gt;", "ambiguous", "two are left", "TFDPA(L=4, F=24", "bits &lt;kept&gt;",
        "U &amp; V", "3 answers", "1,000 outputs", "two terms",
        "not reached: overflow (of 9 inputs traced)", "F: as it is", "sure", "0x3f800000",
        "<svg",
    ):  # fmt: skip
        assert text in page, text
    assert "<box>" not in page
    assert not re.search(r'(src|href)="', page)  # nothing is fetched
    ET.fromstring(page.removeprefix("<!doctype html>\n"))


def test_no_tree_no_picture() -> None:
    none = report(tree=None, tree_note="counts of no tree", status="invalid", model=None)
    assert "counts of no tree" in none.html()
    with pytest.raises(ValueError, match="no tree to draw: counts of no tree"):
        none.svg()


BOXES = """
import numpy as np

def broken(A, B, C):
    raise RuntimeError("out of order")

def quits(A, B, C):
    raise SystemExit(0)

def chain(A, B, C):
    with np.errstate(all="ignore"):
        for k in range(A.shape[-1]):
            C = C + A[..., k : k + 1].astype(np.float32) * B[..., k : k + 1, :].astype(np.float32)
    return C
"""


@pytest.fixture
def boxes(tmp_path: Path) -> Path:
    path = tmp_path / "boxes.py"
    path.write_text(BOXES)
    return path


def test_probe_an_instruction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / f"r.{suffix}" for suffix in ("json", "html", "svg")]
    outputs = [x for file in files for x in ("-o", str(file))]
    args = ["probe", "V100", "m8n8k4.f32.f16.f16.f32", "--inputs", "5000", *outputs]
    assert main([*args, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["status"] == "verified"
    loaded = Report.load(files[0])
    assert loaded.model == TFDPA(L=4, F=23, e_zero=-131)
    assert "verified" in files[1].read_text()
    ET.parse(files[2])


def test_probe_a_function_and_go_on(
    boxes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = tmp_path / "answers"
    args = ["probe", f"{boxes}:chain", "--k", "2", "--batched", "--inputs", "2000"]
    args += ["--resume", str(answers)]
    code = main(args)
    first = capsys.readouterr().out
    kept = answers.read_bytes()
    # The same command is answered from the file; some of its answers are asked again.
    calls = tmp_path / "calls"
    counted = f"def chain(A, B, C):\n    open({str(calls)!r}, 'a').write('x')"
    boxes.write_text(BOXES.replace("def chain(A, B, C):", counted))
    assert main(args) == code
    assert capsys.readouterr().out == first
    assert answers.read_bytes() == kept
    assert 3 <= len(calls.read_text()) <= 12


def test_probe_says_what_went_wrong(
    boxes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", f"{boxes}:broken", "--k", "4"]) == 1
    assert "RuntimeError: out of order" in capsys.readouterr().out
    assert main(["probe", f"{boxes}:quits", "--k", "4"]) == 1
    assert "raised SystemExit: 0" in capsys.readouterr().out
    wrong = {
        ("H100",): "GPU and INSTR or path/to/module.py:function",
        (f"{boxes}:chain",): "needs --k",
        (f"{boxes}:nothing", "--k", "4"): "has no nothing",
        (f"{boxes}:np", "--k", "4"): "is no function: np",
        (f"{tmp_path / 'absent.py'}:f", "--k", "4"): "is no file",
        ("no.such.module:f", "--k", "4"): "cannot be imported: ModuleNotFoundError",
        (f"{boxes}:chain", "--k", "4", "-o", "x.pdf"): ".json, .html or .svg",
    }
    for args, message in wrong.items():
        assert main(["probe", *args]) == 2
        assert message in capsys.readouterr().err
