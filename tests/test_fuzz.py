"""A few seconds of each fuzzer in scripts/, always the same ones; and what they have found."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bitmma import _native
from bitmma.engine import cpu
from bitmma.models import FMA, RNE_FP32, TFDPA, Model

SCRIPTS = Path(__file__).parents[1] / "scripts"


def fuzz(script: str, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / script), *options], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_kernels() -> None:
    report = fuzz("fuzz_kernels.py", "--count", "600", "--seed", "2026")
    columns = re.split(r"\s{2,}", report.splitlines()[0].strip())
    rows = {line.split()[0]: line.split()[1:] for line in report.splitlines()[1:-1]}
    families = "T-FDPA ST-FDPA GST-FDPA TR-FDPA GTR-FDPA E-FDPA FTZ-MulAdd FMA Lowered FDPA SumTree"
    assert set(rows) == set(families.split())
    general = [rows.pop(family) for family in ("FDPA", "SumTree")]  # these have few kernels or none
    assert all(int(counts[-1].replace(",", "")) > 50 for counts in general)
    for family, counts in rows.items():
        by_column = dict(zip(columns, (int(x.replace(",", "")) for x in counts), strict=True))
        assert by_column["plain numbers"] > by_column["outputs"] / 3, family
        assert all(by_column[isa] > 0 for isa in _native.isas()), family


def test_the_native_boundary() -> None:
    report = fuzz("fuzz_native.py", "--count", "600", "--seed", "2026")
    for outcome in ("returned", "ValueError", "TypeError"):
        assert int(re.findall(rf"'{outcome}': (\d+)", report)[0]) >= 20, report


# --- what fuzzing and reading have found ----------------------------------------------------------


def spec(model: Model, a: str = "f16") -> np.ndarray:
    return cpu._spec(model, a, a, model.d, 8, None, None).copy()


def mma(fields: np.ndarray, d: str = "u4", k: int = 8) -> None:
    """A 2 x 3 product of k repeated zeros."""
    a, b = (
        np.lib.stride_tricks.as_strided(np.zeros(1, np.uint16), shape, (0, 0))
        for shape in ((2, k), (k, 3))
    )
    _native.mma(fields, a, b, None, np.zeros((2, 3), d), None, None)


def test_a_result_narrower_than_the_kernel_s_lanes() -> None:
    fields = spec(FMA(RNE_FP32))
    fields[8], fields[-14:] = 10, [16, 5, 10, 15, 0, 1, 0] * 2  # c and d become f16
    with pytest.raises(ValueError, match="do not fit"):
        mma(fields, "u2")


def test_more_products_than_positions_can_count() -> None:
    with pytest.raises(ValueError, match="too many"):
        mma(spec(TFDPA()), k=1 << 60)


@pytest.mark.parametrize("change", [{0: 17}, {-7: 31}, {-6: 12}, {-4: 3000}, {-2: 0}, {-1: 1}])
def test_formats_that_do_not_make_their_width(change: dict[int, int]) -> None:
    fields = spec(TFDPA())
    for i, value in change.items():
        fields[i] = value
    with pytest.raises(ValueError, match="spec"):
        mma(fields)


def test_a_read_only_output() -> None:
    d = np.zeros((2, 3), np.uint32)
    d.flags.writeable = False
    a, b = np.zeros((2, 8), np.uint16), np.zeros((8, 3), np.uint16)
    with pytest.raises(TypeError):
        _native.mma(spec(TFDPA()), a, b, None, d, None, None)
