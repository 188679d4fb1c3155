"""Extra memory of one product: ``python -m benchmarks.memory GPU NAME M N K`` prints, as a multiple
of operands and result, how far the process's peak rises above what it held before, the result
aside. On all cores, as a user's call runs. Linux only.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np

import bitmma
from bitmma import formats


def _status(field: str) -> int:
    """VmRSS (resident now) or VmHWM (the most so far), in bytes."""
    found = re.search(rf"{field}:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


def main(gpu: str, name: str, m: int, n: int, k: int) -> float:
    instr = bitmma.instruction(gpu, name)

    def product(m: int, n: int, k: int) -> float:
        # 1 everywhere, written in place: whatever these take is resident before the product.
        a, b = (
            np.full(shape, formats.quantize(1.0, fmt))
            for shape, fmt in (((m, k), instr.a), ((k, n), instr.b))
        )
        before = _status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
        d = bitmma.matmul(a, b, instruction=instr)
        extra = _status("VmHWM") - before - d.nbytes
        return float(extra / (a.nbytes + b.nbytes + d.nbytes))

    product(256, 256, 32)  # what is loaded and started once
    return product(m, n, k)


if __name__ == "__main__":
    print(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])))
