"""What a product executes: ``python -m benchmarks.count [PATTERN]`` prints, for every product of
the table, its instructions per eight multiply-accumulates, which is one AVX2 vector of float32.
Packing and the Python around it are in it. Valgrind counts, so noise has no part in it; it knows
AVX2 but not AVX-512.

Every product runs in two forks of one process, once and twice: what they differ by is its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

SIZE = 384  # a multiple of every tile, group and block; packing is 1/384 of the work per element


def _instructions(pid: int, log: Path) -> int:
    found = re.search(rf"=={pid}== I\s+refs:\s+([\d,]+)", log.read_text())
    assert found, f"no count of {pid} in {log}"
    return int(found[1].replace(",", ""))


def _forked(task: Callable[[], object], times: int) -> int:
    """The process in which a task ran so often."""
    pid = os.fork()
    if pid == 0:
        for _ in range(times):
            task()
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


def _count(pattern: str, log: Path) -> None:
    from benchmarks import rows

    for name, unit, _, _ in rows.PRODUCTS:
        if not re.search(pattern, name, re.IGNORECASE):
            continue
        product = unit.product(SIZE, SIZE, SIZE)
        product()
        once, twice = (_instructions(_forked(product, n), log) for n in (1, 2))
        print(f"{8 * (twice - once) / SIZE**3:7.2f}  {name}", flush=True)


def main(pattern: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = [
            "valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null",
            f"--log-file={log}", sys.executable, "-m", "benchmarks.count", pattern, str(log),
        ]  # fmt: skip
        environment = os.environ | {"BITMMA_ISA": "avx2", "OPENBLAS_NUM_THREADS": "1"}
        sys.exit(subprocess.run(command, env=environment, check=False).returncode)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        _count(sys.argv[1], Path(sys.argv[2]))
    else:
        main(sys.argv[1] if len(sys.argv) > 1 else "")
