"""The documentation is true: its Python and its commands give what the pages show."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BITMMA = [sys.executable, "-c", "import sys; from bitmma.cli import main; sys.exit(main())"]

#: What a block may need that a plain installation lacks; .ci/run has a stage with all of it.
EXTRAS = ("torch", "dask", "distributed", "matplotlib", "pandas")


class Block(NamedTuple):
    """A fenced block: its kind, its text, and the text block that follows it at once, if any."""

    kind: str
    text: str
    output: str | None


def blocks(page: Path) -> list[Block]:
    found = re.findall(
        r"^```(\w+)\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", page.read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )  # fmt: skip
    return [Block(kind, text, output or None) for kind, text, output in found]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def missing(page: Path) -> set[str]:
    """Extras that the page's Python imports and that are not installed."""
    source = "".join(block.text for block in blocks(page) if block.kind == "python")
    used = {
        x for x in EXTRAS if re.search(rf"^(import|from)\b.*\b{x}\b|bitmma\.{x}\b", source, re.M)
    }
    return {extra for extra in used if not find_spec(extra)}


def test_there_is_something_to_test() -> None:
    kinds = [block.kind for page in PAGES for block in blocks(page)]
    assert kinds.count("python") >= 20 and kinds.count("console") >= 3


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_blocks(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each print gives the comment behind it, or the text block after the Python block is all.

    A page is one program; in the README each block stands alone. Where a picture follows, the last
    line is what is drawn.
    """
    if page.name != "README.md" and missing(page):
        pytest.skip(f"{name(page)} needs {', '.join(sorted(missing(page)))}")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for kind, text, output in blocks(page):
        if kind != "python":
            continue
        if page.name == "README.md":
            names = {}
            if "import torch" in text and not find_spec("torch"):
                continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(text, name(page), "exec"), names)
        lines = [line.rstrip() for line in printed.getvalue().splitlines()]
        if output is None:
            expected = re.findall(r"^print\(.*\)  # (.*)$", text, re.MULTILINE)
            assert len(expected) == text.count("print("), f"a print without its output:\n{text}"
            assert lines == expected
        else:
            check(lines, [line.rstrip() for line in output.splitlines()])


def check(got: list[str], shown: list[str]) -> None:
    """Exactly the lines shown, empty ones at the ends aside; ``...`` is any further ones."""
    if shown and shown[-1] == "...":
        shown = shown[:-1]
        got = got[: len(shown)]
    assert "\n".join(got).strip("\n") == "\n".join(shown).strip("\n")


def commands(page: Path) -> list[tuple[str, list[str]]]:
    """Every ``$ bitmma …`` and the lines shown below it."""
    found: list[tuple[str, list[str]]] = []
    for block in blocks(page):
        if block.kind == "console":
            for line in block.text.splitlines():
                if line.startswith("$ "):
                    found.append((line[2:], []))
                else:
                    found[-1][1].append(line.rstrip())
    return found


@pytest.mark.parametrize(
    ("command", "shown"), [c for page in PAGES for c in commands(page)],
    ids=lambda x: x[:30] if isinstance(x, str) else "",
)  # fmt: skip
def test_commands(command: str, shown: list[str], tmp_path: Path) -> None:
    # Given in full: importing readline, as pytest does, sets COLUMNS behind Python's back.
    environment = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
    program, *arguments = shlex.split(command)
    assert program == "bitmma"
    done = subprocess.run(
        [*BITMMA, *arguments], capture_output=True, text=True, encoding="utf-8", cwd=tmp_path,
        env=environment | {"PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check([line.rstrip() for line in done.stdout.splitlines()], shown)
