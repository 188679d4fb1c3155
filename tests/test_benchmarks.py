"""The benchmarks run and say what they should. No test looks at a time."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FIELDS = {
    "group", "name", "unit", "median", "low", "high", "gmacs", "at_least", "at_most", "aim", "met",
    "mmasim_gmacs", "times_mmasim", "why_not",
}  # fmt: skip

pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").is_dir(), reason="the benchmarks are in the repository only"
)


def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done


def test_a_quick_run(tmp_path: Path) -> None:
    found, document = tmp_path / "found.json", tmp_path / "document.md"
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    document.write_text(text, encoding="utf-8")
    run(
        "--quick", "--rows", "latency|NVFP4 K", "--isa", "plain",
        "--json", str(found), "--markdown", str(document),
    )  # fmt: skip
    data = json.loads(found.read_text(encoding="utf-8"))

    assert {"cpu", "isa", "vector_bits", "numpy", "blas", "bits_version"} <= set(data["machine"])
    assert (data["machine"]["isa"], data["settings"]["quick"]) == ("plain", True)
    assert [row["name"] for row in data["rows"]] == [
        "NVFP4 K=64", "m16n8k16 call", "dpa of 8 dot products",
    ]  # fmt: skip
    for row in data["rows"]:
        assert set(row) == FIELDS
        assert 0 < row["low"] <= row["median"] <= row["high"] and row["gmacs"] > 0

    before, after = (
        x.partition("<!-- python -m benchmarks --markdown: from here -->")
        for x in (text, document.read_text(encoding="utf-8"))
    )
    assert after[0] == before[0] and after[1]
    assert after[2].partition("<!-- to here -->")[2] == before[2].partition("<!-- to here -->")[2]
    assert "| NVFP4 K=64 |" in after[2] and "QUICK" in after[2]


def test_two_tables_in_one_document(tmp_path: Path) -> None:
    document = tmp_path / "document.md"
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    document.write_text(text, encoding="utf-8")
    run("--quick", "--rows", "NVFP4", "--ratios", "--markdown", str(document))
    first = "<!-- python -m benchmarks --markdown: from here -->"
    mark = "<!-- python -m benchmarks --ratios --markdown: from here -->"
    before, after = (x.partition(mark) for x in (text, document.read_text(encoding="utf-8")))
    assert first in before[0] and after[0] == before[0]
    table, _, rest = after[2].partition("<!-- to here -->")
    assert rest == before[2].partition("<!-- to here -->")[2]
    assert "| row | median | spread | target | met |\n" in table and "| NVFP4 K=64 |" in table
    assert "GMAC/s" not in table


def test_a_table_in_the_terminal() -> None:
    assert "dpa of 8 dot products" in run("--quick", "--rows", "dpa of 8").stdout


def test_what_cannot_be_run() -> None:
    assert "nothing matches 'no such row'" in run("--rows", "no such row", code=1).stderr
    assert "invalid choice" in run("--isa", "sse9", code=2).stderr
