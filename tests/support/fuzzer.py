"""scripts/fuzz_kernels.py as a module: it draws the units that tests run on."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

__all__ = ["fuzzer"]


def _load() -> Any:
    path = Path(__file__).parents[2] / "scripts" / "fuzz_kernels.py"
    spec = importlib.util.spec_from_file_location("fuzz_kernels", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


fuzzer = _load()
