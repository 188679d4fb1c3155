"""The rooms of CONTRIBUTING.md: modules import only from those above them; maps are complete."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "bitmma"
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
ROOMS, FILES = (
    re.findall(r"^\| `([\w.]+)` \|", TEXT.partition(head)[2].partition("\n\n")[0], re.MULTILINE)
    for head in ("| room | holds |", "| file | holds |")
)

#: What the package itself holds, and the native module, which only engine.cpu may import.
CONSTANTS = {"BITS_VERSION", "__version__"}


def modules() -> dict[str, Path]:
    """Dotted names within bitmma, the package itself left out."""
    names = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            names[name] = path
    return names


MODULES = modules()


def room_of(module: str) -> str:
    """The room that a module is, or lies in."""
    while module not in ROOMS:
        assert "." in module, f"{module} is in no room of CONTRIBUTING.md"
        module = module.rpartition(".")[0]
    return module


def imports(path: Path) -> Iterator[str]:
    """Names within bitmma that a file imports, wherever in it; BITMMA for the package itself."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "bitmma":
                    yield alias.name.partition(".")[2] or "BITMMA"
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} has a relative import"
            package, _, inner = (node.module or "").partition(".")
            if package == "bitmma":
                for alias in node.names:
                    name = ".".join(filter(None, (inner, alias.name)))
                    yield name if name in MODULES or not inner else inner


def test_the_map_is_complete() -> None:
    assert len(ROOMS) == len(set(ROOMS)) >= 15
    assert set(ROOMS) <= set(MODULES)
    assert {room_of(module) for module in MODULES} == set(ROOMS)
    assert sorted(FILES) == sorted(path.name for path in (ROOT / "src" / "native").iterdir())


def test_imports_are_found() -> None:
    assert {"formats", "models"} <= set(imports(MODULES["isa"]))
    assert "_native" in set(imports(MODULES["engine.cpu"]))
    assert "render" in set(imports(MODULES["unit"]))  # inside a function


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_up(module: str) -> None:
    here = room_of(module)
    for name in imports(MODULES[module]):
        if name == "_native":
            assert module in ("engine.cpu", "formats"), f"{module} imports the native module"
        elif name in CONSTANTS or (name == "BITMMA" and here == "cli"):
            continue
        else:
            assert name in MODULES, f"{module} imports bitmma.{name}, which is no module"
            there = room_of(name)
            assert there == here or ROOMS.index(there) < ROOMS.index(here), (
                f"{module} imports {name}, which lies below it"
            )
