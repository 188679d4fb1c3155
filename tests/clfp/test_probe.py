"""Blind probes: instructions of every family, units that nobody built, and ordinary software."""

import dataclasses
import importlib.util
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bitmma
from bitmma import isa
from bitmma.clfp import BlackBox, Counterexample, Report, probe, suite
from bitmma.clfp.box import Box, Dots
from bitmma.clfp.equivalence import canonical
from bitmma.clfp.evidence import Evidence, predict
from bitmma.clfp.inputs import Sample, aimed, same
from bitmma.clfp.space import Space
from bitmma.models import (
    EFDPA,
    RNE_FP32,
    RNE_FP64,
    STFDPA,
    TFDPA,
    Conversion,
    FTZMulAdd,
    Lowered,
    SumTree,
)

SCRIPTS = Path(__file__).parents[2] / "scripts"


def script(name: str) -> Any:
    """A script as a module."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(SCRIPTS))


catalogue, random_units = script("probe_catalogue"), script("probe_random")

# Every family; every unit of T-FDPA; f16 and f32 output; wide and narrow operands.
BLIND = [
    ("Volta", "m8n8k4.f16.f16.f16.f16"),
    ("Turing", "m16n8k8.f32.f16.f16.f32"),
    ("Ampere", "m16n8k8.f32.tf32.tf32.f32"),
    ("Ada Lovelace", "m16n8k32.f32.e4m3.e5m2.f32"),
    ("Hopper", "m16n8k8.f32.bf16.bf16.f32"),
    ("Hopper", "m16n8k16.f32.e5m2.e5m2.f32"),
    ("Hopper", "m64n8k32.f16.e4m3.e4m3"),
    ("RTX Blackwell", "m16n8k32.kind::f8f6f4.f32.e2m1.e2m1.f32"),
    ("RTX Blackwell", "m16n8k32.kind::mxf8f6f4.block32.f32.e4m3.e5m2.f32.ue8m0"),
    ("RTX Blackwell", "m16n8k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.f32.ue4m3"),
    ("CDNA1", "f32_4x4x4f16"),
    ("CDNA2", "f32_4x4x4f16"),
    ("CDNA2", "f32_4x4x2bf16"),
    ("CDNA3", "f64_4x4x4_4b_f64"),
    ("CDNA3", "f32_4x4x4_16b_f16"),
    ("CDNA3", "f32_16x16x32_fp8_bf8"),
]


@pytest.mark.parametrize(("gpu", "name"), BLIND)
def test_blind(gpu: str, name: str) -> None:
    e = isa.find(gpu, name)
    spec = catalogue.blind(e)
    report = probe(spec, inputs=30_000)
    assert catalogue.verdict(spec, e.model, report, 20_000) in ("same", "equal bits"), report
    assert report.tested >= 30_000
    assert report.coverage["finite"] > report.coverage["total"] // 4
    assert report.coverage["two_terms"] and report.coverage["nan"]
    again = Report.from_dict(report.to_dict())
    assert again.model == report.model and again.to_dict() == report.to_dict()
    assert repr(report.model) in str(report)
    assert f"of {report.coverage['total']} inputs traced" in str(report)
    assert set(report.not_reached) == {
        name.replace("_", " ") for name, count in report.coverage.items() if count == 0
    }


def test_every_family_is_among_them() -> None:
    families = {type(isa.find(*e).model) for e in BLIND}
    assert families == {type(e.model) for e in isa.catalogue()}
    assert {STFDPA, Lowered, FTZMulAdd} <= families


def right(kind: str, seed: int, inputs: int) -> Report:
    """Verified and bit-equal, or ambiguous and one of the candidates is; never anything else."""
    truth, spec = random_units.KINDS[kind](seed)
    report: Report = probe(spec, inputs=inputs)
    found = random_units.judged(spec, truth, report, 10_000)
    assert found.startswith("right"), f"{found}\n{truth!r}\n{report}"
    return report


@pytest.mark.parametrize("seed", range(20))
def test_random_unit(seed: int) -> None:
    right(random_units.mixed(seed), seed, 10_000)


def test_every_kind_of_random_unit_is_among_them() -> None:
    assert {random_units.mixed(seed) for seed in range(20)} == set(random_units.KINDS)


@pytest.mark.parametrize("seed", [31, 62, 162])
def test_parameters_that_nearly_make_up_for_each_other(seed: int) -> None:
    """F = 30 to nearest is nearly F = 29 away from zero; a flushed c nearly a flushed result."""
    right("fused", seed, 5_000)


@pytest.mark.parametrize("seed", [138, 168])
def test_instructions_made_of_two_that_the_tree_does_not_show(seed: int) -> None:
    """F is as wide as the products' range: what is summed is kept where one product is cut."""
    assert right("lowered", seed, 5_000).status == "verified"


def test_two_stage_sums_that_differ_in_several_places_at_once() -> None:
    """Once verified with e_zero one lower and another rounding: wrong in 1 of 10,000 outputs."""
    assert right("staged", 15, 5_000).status == "verified"


def test_answers_are_counted_alike_in_any_order() -> None:
    """Rows that nearly right models fail on are asked first; what is counted stays the same."""
    truth, spec = random_units.draw_published(1)
    box = Box(spec)
    evidence, rng = Evidence(box), np.random.default_rng(1)
    others = [dataclasses.replace(truth, rho=Conversion("RA", "f32", n)) for n in range(8, 23)]
    for seed in range(3):
        x = aimed(box, truth, 600, seed)
        evidence.add(x, predict(box, truth, x))
        for model in rng.permutation(np.array(others)):
            wrong = ~same(
                box.formats[3], predict(box, model, evidence.dots), evidence.answers, nan=True
            )
            assert not evidence.fits(model)
            assert evidence.wrong(model) == wrong.sum() > 0
            assert evidence.wrong(model, 3) == wrong.sum()
        assert evidence.fits(truth)


# --- what nobody here wrote -----------------------------------------------------------------------


def agrees_on_new_inputs(spec: BlackBox, report: Report) -> None:
    """If there is a model, it is right on inputs that the probe did not draw."""
    assert report.status in ("verified", "ambiguous", "unexplained")
    if report.model is None:
        assert report.counterexamples
        return
    box = Box(spec)
    x = aimed(box, report.model, 2_000, 12345)
    got = box.dot(x)
    box.close()
    assert same(box.formats[3], got, predict(box, report.model, x)).all()


def test_numpy_matmul() -> None:
    spec = BlackBox(lambda A, B, C: A @ B + C, 16, 16, 12, "f32", name="NumPy A @ B + C")
    report = probe(spec, inputs=10_000)
    assert report.tree_text.endswith("+ c)")
    agrees_on_new_inputs(spec, report)


def test_fsum() -> None:
    def fn(A: Any, B: Any, C: Any) -> Any:
        products = A[0].astype(np.float64) * B[:, 0].astype(np.float64)
        try:
            return np.float64(math.fsum([*products.tolist(), float(C[0, 0])])).reshape(1, 1)
        except (OverflowError, ValueError):  # Inf - Inf, which fsum refuses
            return np.full((1, 1), np.nan)

    spec = BlackBox(fn, 1, 1, 4, "f16", c="f64", name="math.fsum")
    report = probe(spec, inputs=5_000)
    assert report.tree_text == "exact(c, p0..p3)"
    assert report.model == EFDPA(4, RNE_FP64) or report.status == "unexplained"
    assert report.status == "verified", report


def test_products_summed_in_double_and_no_c() -> None:
    """What a BLAS does with the last few products of a float32 dot."""

    def fn(A: Any, B: Any, C: Any) -> Any:
        with np.errstate(all="ignore"):
            total = np.zeros((*A.shape[:-1], B.shape[-1]))
            for k in range(A.shape[-1]):
                total += A[..., k : k + 1] * B[..., k : k + 1, :]
            return total.astype(np.float32)

    report = probe(BlackBox(fn, 4, 4, 3, "f32", batched=True), inputs=2_000)
    double = SumTree("((0 1) 2)", RNE_FP64, RNE_FP32, RNE_FP32, zero="plus")
    assert (report.status, report.model) == ("verified", double), report
    assert report.tree_note == "c is ignored"
    found = {f.name: f for f in report.features}
    assert found["place of c"].reading == "ignored"
    assert found["products"].reading == "rounded first"  # though a double would hold them
    assert found["precision of additions"].reading == "53 bits, f64"
    assert found["scales"].meaning == "the box has no scales"
    assert not any("np." in text for f in report.features for pair in f.evidence for text in pair)


def test_readings_that_no_model_can_have_do_not_end_the_search() -> None:
    box = Box(BlackBox(lambda A, B, C: C, 4, 4, 4, "f32"))
    stages = list(Space(box, None, {"F": 79, "F_c": 70}).stages())
    assert all(starts for _, starts in stages)


# --- the rest of the face -------------------------------------------------------------------------

UNIT = bitmma.instruction("Volta", "m8n8k4.f32.f16.f16.f32")


def test_an_instruction_is_probed_as_a_black_box() -> None:
    seen = []
    report = bitmma.probe(UNIT, inputs=2_000, progress=seen.append)
    assert (report.status, report.model) == ("verified", UNIT.model)
    assert {p.step for p in seen} >= {"assumptions", "tree", "features", "models"}


def test_interrupted_and_resumed(tmp_path: Path) -> None:
    calls = 0

    def fn(*operands: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 45:
            raise KeyboardInterrupt
        return UNIT(*operands)

    spec = BlackBox(fn, 8, 8, 4, batched=True)
    path = tmp_path / "probe.journal"
    with pytest.raises(KeyboardInterrupt):
        probe(spec, inputs=5_000, checkpoint=path)
    report = probe(spec, inputs=5_000, checkpoint=path)
    whole = probe(BlackBox(UNIT, 8, 8, 4, batched=True), inputs=5_000)
    assert report.model == whole.model == UNIT.model
    again = 2 + 44 // 8  # of what is recalled the first, the last and an eighth
    assert report.cost["calls"] == whole.cost["calls"] - 44 + again
    assert [t.text for t in report.history] == [t.text for t in whole.history]
    again = 2 + int(whole.cost["calls"]) // 8
    assert probe(spec, inputs=5_000, checkpoint=path).cost["calls"] == again
    with pytest.raises(ValueError, match="belongs to another probe"):
        probe(spec, inputs=5_001, checkpoint=path)


def test_suite(tmp_path: Path) -> None:
    x = (0x3C00, 0x3C00, 0, 0)
    report = Report(
        {"name": "a", "m": 8, "n": 8, "k": 4, "a": "f16", "b": "f16", "c": "f32", "d": "f32",
         "scale": None, "block": None},
        inputs=[Counterexample(x, x, 0, 0x40000000, 0x40000000, "told models apart")],
    )  # fmt: skip
    path = tmp_path / "suite.json"
    suite.save(path, report)
    suite.save(path, report)
    entries = suite.load(path)
    assert len(entries) == 1
    assert suite.differing(entries, TFDPA(4)) == []
    wrong = [e.__class__(**{**vars(e), "d": 0}) for e in entries]
    assert suite.differing(wrong, TFDPA(4)) == wrong
    path.write_text("[]")
    with pytest.raises(ValueError, match="no probe suite"):
        suite.load(path)


@pytest.mark.parametrize("seed", range(12))
def test_what_counts_as_equal_is_equal(seed: int) -> None:
    """`canonical` may only join models that are one function."""
    rng = np.random.default_rng(seed)
    truth, spec = random_units.draw(1000 + seed)
    box = Box(spec)
    e_zero, F = int(rng.integers(-160, 0)), int(rng.integers(8, 65))
    models = [truth, TFDPA(min(4, spec.k), F, truth.rho, e_zero)]
    for model in models:
        joined, why = canonical(model, box)
        x = aimed(box, model, 3_000, seed)
        assert same(
            box.formats[3],
            predict(box, model, x),
            predict(box, joined, x),
            nan=model.nan == "quiet",
        ).all(), (model, joined, why)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"fn": 3}, TypeError, "fn must be a function"),
        ({"k": 0}, ValueError, "k must be 1"),
        ({"a": "f17"}, ValueError, "unknown format"),
        ({"d": "e4m3"}, ValueError, "d must be"),
        ({"scale": "ue8m0"}, ValueError, "scale and block"),
        ({"scale": "f16", "block": 4}, ValueError, "scale is ue8m0 or ue4m3"),
        ({"scale": "ue8m0", "block": 3}, ValueError, "block must divide"),
    ],
)
def test_bad_boxes(change: dict[str, Any], error: type[Exception], says: str) -> None:
    good: dict[str, Any] = {"fn": UNIT, "m": 8, "n": 8, "k": 4}
    with pytest.raises(error, match=says):
        BlackBox(**(good | change))


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"box": 3}, TypeError, "box must be"),
        ({"inputs": 0}, ValueError, "inputs must be 1"),
        ({"inputs": 1.5}, TypeError, "inputs must be an int"),
        ({"limit": 0}, ValueError, "limit must be"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        probe(**({"box": UNIT} | arguments))


def test_a_sample_of_all_that_is_drawn_stays_small() -> None:
    """Of a third of a million dot products those to trace: of all parts, and no more in memory."""
    sample, drawn = Sample(200), 0
    for count in (1, 4096, 70, 0, 65536, 3, 250_000):
        i = np.arange(drawn, drawn + count)
        sample.add(Dots(i[:, None], i[:, None], i))
        drawn += count
        assert sample.picked.count == min(200, drawn) and sample.picked.a.base is None
    found = sample.picked.c
    assert (np.diff(found) > 0).all() and (sample.picked.a[:, 0] == found).all()
    assert (np.histogram(found, 8, (0, drawn))[0] > 10).all()
    assert (np.bincount(found % 4) > 30).all()


def test_a_family_that_nearly_fits_is_challenged() -> None:
    """F = 39, cut by RU, is an exact sum but for one of 300 inputs made to tell them apart."""
    truth, spec = random_units.KINDS["fused"](100)
    report = probe(spec, inputs=5_000)
    assert report.status == "verified"
    assert canonical(report.model, Box(spec))[0] == canonical(truth, Box(spec))[0]
    right("fused", 1021, 5_000)  # F_c = 35 beside a product alone was an exact sum, a tree
