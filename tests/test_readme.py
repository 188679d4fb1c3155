"""The README is true: its tables and numbers are what isa holds (test_docs.py runs its code)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import bitmma
from bitmma import formats, isa

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
PYTHON = [text for kind, text in BLOCKS if kind == "python"]


def test_there_is_something_to_test() -> None:
    assert len(PYTHON) >= 5
    assert sum(kind == "console" for kind, _ in BLOCKS) >= 3


def test_the_two_commands() -> None:
    """.ci/run runs them as they stand here."""
    assert BLOCKS[0] == (
        "sh",
        'pip install . && bitmma compare\npip install ".[test]" && pytest\n',
    )
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert all(line in script for line in BLOCKS[0][1].splitlines())


def test_the_tour_is_short() -> None:
    assert sum(bool(line.strip()) for line in PYTHON[0].splitlines()) <= 20


# --- tables and numbers ---------------------------------------------------------------------------


def _table(heading: str) -> list[list[str]]:
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


GPU_ROWS = _table("GPUs and formats")


def test_every_gpu_has_a_row() -> None:
    assert tuple(row[0] for row in GPU_ROWS) == isa.GPUS


@pytest.mark.parametrize(("gpu", "aliases", "operands", "chips"), GPU_ROWS)
def test_gpu_row(gpu: str, aliases: str, operands: str, chips: str) -> None:
    names = re.findall("`([^`]+)`", aliases)
    assert names and [isa.gpu(name) for name in names] == [gpu] * len(names)

    has: dict[str, set[str]] = {}
    recorded: set[str] = set()
    for e in isa.select(gpu_name=gpu):
        has.setdefault(f"{e.op} with block scales" if e.scale else e.op, set()).update((e.a, e.b))
        if e.provenance.level == "recorded":
            recorded.update(re.split(r", (?!\w+ dot|Khattak|arXiv)", e.provenance.source))
    shown = dict(part.split(": ") for part in operands.split("; "))
    assert {op: set(text.split()) for op, text in shown.items()} == has
    assert {c for c in chips.split(", ") if c} == {x.partition(", ")[0] for x in recorded}


def test_numbers_of_instructions() -> None:
    levels = [e.provenance.level for e in isa.catalogue()]
    assert f"Of {len(levels):,} instructions" in TEXT
    for level in ("recorded", "published", "derived"):
        assert f"**{level}** ({levels.count(level):,})" in TEXT


def test_derived_is_what_the_text_says() -> None:
    for e in isa.catalogue():
        lowered = e.op == "mma" and e.gpu in ("Hopper", "Blackwell") and e.a in ("e4m3", "e5m2")
        chained = e.d == "f64" and e.name.startswith("m16n8k") and e.gpu.endswith("Blackwell")
        derived = chained or (lowered and e.provenance.level != "recorded")
        assert (e.provenance.level == "derived") == derived, e


def test_formats_that_the_text_names() -> None:
    assert {e.d for e in isa.catalogue()} == {"f64", "f32", "f16"}
    assert formats.get("fp8").dtype_name == "float8_e4m3fnuz"
    assert formats.get("bf8").dtype_name == "float8_e5m2fnuz"
    assert {formats.get(f).dtype_name for f in ("tf32", "xf32")} == {"float32"}


@pytest.mark.parametrize("name", ["gfx950", "sm_103", "Thor", "sm_121", "RDNA"])
def test_what_is_not_covered_says_so(name: str) -> None:
    with pytest.raises(ValueError, match="does not model"):
        bitmma.instruction(name, "m16n8k16.f32.f16.f16.f32")


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (ROOT / target).exists(), target
