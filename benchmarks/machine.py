"""Where the figures come from: CPU, vector width, the BLAS behind NumPy."""

from __future__ import annotations

import os
import platform
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

import bitmma
from bitmma import _native

_WIDTH = {"avx512vbmi": 512, "avx512": 512, "avx2": 256, "plain": 128}


def describe() -> dict[str, Any]:
    """The machine, as data."""
    isa = os.environ.get("BITMMA_ISA") or _native.isas()[-1]
    return {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "isa": isa,
        "vector_bits": _WIDTH[isa],
        "isas": _native.isas(),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": _blas(),
        "bitmma": bitmma.__version__,
        "bits_version": bitmma.BITS_VERSION,
    }


def sentences(machine: dict[str, Any]) -> list[str]:
    """The same for a reader."""
    load = machine["load_average"]
    return [
        f"{machine['cpu']}, {machine['cores']} cores; bitmma {machine['bitmma']} "
        f"(bits {machine['bits_version']}) with {machine['isa']}, {machine['vector_bits']}-bit "
        f"vectors" + (f"; load {load:.1f} at the start" if load is not None else ""),
        f"yardstick: NumPy {machine['numpy']} on {machine['blas']}; {machine['date']}",
    ]


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    field = {
        key: found[1].strip()
        for key in ("model name", "cpu family", "model")
        if (found := re.search(rf"^{key}\s*:(.*)$", text, re.M))
    }
    name = field.get("model name", platform.machine())
    if "model" in field:  # virtual machines hide the name, never the number
        name += f" (family {field.get('cpu family')}, model {field['model']})"
    return name


def _blas() -> str:
    try:
        from threadpoolctl import threadpool_info  # type: ignore[import-untyped]
    except ImportError:
        return "an unnamed BLAS (install threadpoolctl for its name)"
    for pool in threadpool_info():
        if pool["user_api"] == "blas" and "numpy" in pool["filepath"]:
            return (
                f"{pool['internal_api']} {pool['version']}, {pool.get('architecture')} kernels, "
                f"{pool['num_threads']} thread"
            )
    return "an unknown BLAS"
