"""``import bitmma`` is cheap and brings in nothing that was not asked for."""

import doctest
import subprocess
import sys
import textwrap
from importlib.metadata import version

import pytest

import bitmma
from bitmma import unit


def python(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return result.stdout.strip()


@pytest.mark.parametrize(
    "use",
    [
        "",
        "bitmma.instruction('H100', 'm16n8k16.f32.f16.f16.f32')",
        "bitmma.quantize([1.0], 'f16'), bitmma.matmul, bitmma.testing, bitmma.mma",
        "from bitmma import nv_ptx, amd",
    ],
)
def test_neither_torch_nor_rich(use: str) -> None:
    asked = "[m for m in ('torch', 'rich', 'typer') if m in sys.modules]"
    assert python(f"import bitmma, sys; {use}\nprint({asked})") == "[]"


def test_the_import_is_cheap() -> None:
    code = (
        "import numpy, ml_dtypes, time; t = time.perf_counter(); import bitmma;"
        "print(time.perf_counter() - t)"
    )
    assert min(float(python(code)) for _ in range(3)) <= 0.1


def test_so_is_everything_behind_the_first_call() -> None:
    """Loaded modules are what an import costs; a time would depend on the machine."""
    code = (
        "import numpy, ml_dtypes, sys; before = set(sys.modules); import bitmma;"
        "print([m for m in set(sys.modules) - before if m.startswith('bitmma.')])"
    )
    assert python(code) == "[]"


def test_the_package_s_own_example() -> None:
    """What ``help(bitmma)`` shows runs as it stands."""
    assert bitmma.__doc__
    example = [x for x in bitmma.__doc__.splitlines() if x.startswith("    ") or not x]
    names: dict[str, object] = {}
    exec(textwrap.dedent("\n".join(example)), names)
    assert {"instr", "A", "B", "D", "d", "unit"} <= set(names)


def test_the_instruction_s_own_example() -> None:
    assert doctest.testmod(unit).attempted > 5
    assert doctest.testmod(unit).failed == 0


def test_public_names() -> None:
    assert bitmma.BITS_VERSION == 1
    assert bitmma.__version__ == version("bitmma")
    assert {x for x in dir(bitmma) if not x.startswith("__")} == {*bitmma.__all__} - {"__version__"}
    assert set(bitmma.__all__) <= set(dir(bitmma))
    for name in bitmma.__all__:
        assert getattr(bitmma, name) is not None
    with pytest.raises(AttributeError, match="module 'bitmma' has no attribute 'instructon'"):
        bitmma.instructon  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError):
        from bitmma import nothing  # type: ignore[attr-defined]  # noqa: F401
