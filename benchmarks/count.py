"""What bounds each product: ``python -m benchmarks.count [PATTERN] [--markdown FILE]``.

Callgrind counts how often each instruction of the native module runs in a product (without noise,
but it knows AVX2 only), objdump says what it is, and a table of ports what it needs. The counts are
for eight multiply-accumulates, one AVX2 vector of float32 (f64 needs two); packing is in them.
Beside the cycles that the ports ask for stand those that the product takes here, from CPU time and
the clock rate, which dependent additions tell. Needs valgrind, objdump and cc, on x86-64 Linux.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

SIZE = 384  # a multiple of every tile, group and block; packing is 1/384 of the work per element
TIMED = 1024
MARKS = ("<!-- python -m benchmarks.count --markdown: from here -->", "<!-- to here -->")

Counts = Mapping[str, float]

#: Classes of vector instructions by what their names start with; the first that fits.
CLASSES = (
    ("multiply", "vmulp|vmuls|vfn?m(add|sub)"),
    ("convert", "vcvt|vround"),
    ("add", "v(add|sub|max|min|cmp)[a-z]*(ps|pd|ss|sd)$"),
    ("shuffle", "vp?(broadcast|extract|insert|perm|shuf|unpck|pack|mov[sz]x|movmsk|align)"),
    ("shuffle", "vmov(d|q)$"),
    ("move", "vmov|vlddqu|vzero"),
    ("integer", "v"),
)  # fmt: skip

#: Port limits: classes that share ports, and how many of them run in a cycle.
VECTOR = ("multiply", "convert", "add", "shuffle", "integer")
ZEN_3 = {
    "multiplies": (("multiply",), 2),
    "additions": (("add", "convert"), 2),
    "vectors": (VECTOR, 4),
    "loads": (("load",), 2),
    "all": (("all",), 6),
}
GOLDEN_COVE_AVX2 = {
    "multiplies": (("multiply", "convert"), 2),
    "vectors": (VECTOR, 3),
    "loads": (("load",), 3),
    "all": (("all",), 6),
}
#: The same instructions on vectors twice as wide, for twice as many multiply-accumulates.
GOLDEN_COVE_AVX512 = {"vectors": (VECTOR, 2), "loads": (("load",), 2), "all": (("all",), 6)}


# --- counting, under valgrind ---------------------------------------------------------------------


def _forked(task: Callable[[], object], times: int) -> int:
    """The process in which a task ran so often."""
    pid = os.fork()
    if pid == 0:
        for _ in range(times):
            task()
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


def _executed(file: Path) -> collections.Counter[int]:
    """Address -> times executed, of the native module's instructions, from a Callgrind file."""
    names: dict[str, str] = {}
    counts: collections.Counter[int] = collections.Counter()
    here, of_a_call = False, False
    for line in file.read_text().splitlines():
        if named := re.match(r"(c?)ob=(\(\d+\)) ?(.*)", line):
            callee, number, name = named.groups()
            names.setdefault(number, name)  # said once
            here = here if callee else "/_native." in names[number]
        elif line.startswith("calls="):
            of_a_call = True  # the next line has what the callee took
        elif at := re.fullmatch(r"0x([0-9a-f]+) (\d+)", line):
            if here and not of_a_call:
                counts[int(at[1], 16)] += int(at[2])
            of_a_call = False
    return counts


def _count_all(pattern: str, folder: Path) -> None:
    """The process that valgrind watches: each product in two forks, once and twice."""
    from benchmarks import rows

    for name, unit, _, _ in rows.PRODUCTS:
        if re.search(pattern, name, re.IGNORECASE):
            product = unit.product(SIZE, SIZE, SIZE)
            product()
            pids = [_forked(product, n) for n in (1, 2)]
            with (folder / "done").open("a") as done:
                print(*pids, name, file=done)


# --- what the instructions are --------------------------------------------------------------------


def _classes(module: Path) -> dict[int, tuple[str, ...]]:
    """Address -> the classes of the instruction there."""
    listing = subprocess.run(
        ["objdump", "-d", "-M", "intel", "--no-show-raw-insn", module],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    found = {}
    for at, name, operands in re.findall(r"^ +([0-9a-f]+):\t(\S+)(.*)$", listing, re.M):
        classes = ["all"]
        reads = "[" in operands and name != "lea"
        writes = reads and operands.lstrip().split(",")[0].find("[") >= 0 and "," in operands
        if name.startswith("v"):
            kind = next(k for k, start in CLASSES if re.match(start, name))
            # From memory, a broadcast or a move is but a load.
            if kind != "move" and not (reads and "broadcast" in name):
                classes.append(kind)
        if writes:
            classes.append("store")
        elif reads:
            classes.append("load")
        found[int(at, 16)] = tuple(classes)
    return found


def counts(pattern: str) -> dict[str, Counts]:
    """Product -> class -> instructions per eight multiply-accumulates, with AVX2."""
    from bitmma import _native

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [
            "valgrind", "--tool=callgrind", "--dump-instr=yes", "--dump-line=no",
            "--compress-pos=no", f"--callgrind-out-file={folder}/%p", "-q",
            sys.executable, "-m", "benchmarks.count", "--counted", name, pattern,
        ]  # fmt: skip
        environment = os.environ | {"BITMMA_ISA": "avx2", "OPENBLAS_NUM_THREADS": "1"}
        subprocess.run(command, env=environment, check=True)
        classes = _classes(Path(_native.__file__))
        found = {}
        for line in (folder / "done").read_text().splitlines():
            once, twice, row = line.split(" ", 2)
            total: collections.Counter[str] = collections.Counter()
            one, two = _executed(folder / once), _executed(folder / twice)
            for address in two.keys() | one.keys():
                for kind in classes[address]:
                    total[kind] += two[address] - one[address]
            found[row] = {k: 8 * n / SIZE**3 for k, n in total.items()}
        return found


# --- what a product takes -------------------------------------------------------------------------


def clock(isa: str) -> float:
    """GHz, while vectors as wide as the instruction set's work: an addition takes one cycle."""
    register, flag = ("zmm", "-mavx512f") if isa == "avx512" else ("ymm", "-mavx2")
    addition = f'"vpaddd %%{register}0, %%{register}1, %%{register}1\\n\\t"'
    source = 'void additions(long n) { while (n--) __asm__ volatile(%s : : : "xmm0", "xmm1"); }'
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "clock.so")
        subprocess.run(
            ["cc", "-O2", flag, "-shared", "-fPIC", "-x", "c", "-", "-o", library],
            input=source % (addition * 100), text=True, check=True,
        )  # fmt: skip
        additions = ctypes.CDLL(str(library)).additions
    return 0.3 / min(_seconds(lambda: additions(ctypes.c_long(3_000_000))) for _ in range(9))


def _seconds(task: Callable[[], object]) -> float:
    start = time.process_time()
    task()
    return time.process_time() - start


def _time_all(pattern: str) -> None:
    """Cycles per eight multiply-accumulates, a product a line, on BITMMA_ISA."""
    from benchmarks import rows

    isa = os.environ["BITMMA_ISA"]
    for name, unit, _, _ in rows.PRODUCTS:
        if re.search(pattern, name, re.IGNORECASE):
            product = unit.product(TIMED, TIMED, TIMED)
            product()
            best = min(_seconds(product) for _ in range(5))
            print(best * clock(isa) * 1e9 * 8 / TIMED**3, name, flush=True)


def cycles(pattern: str, isa: str) -> dict[str, float]:
    """Product -> cycles that eight multiply-accumulates take."""
    environment = os.environ | {"BITMMA_ISA": isa, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.count", "--timed", pattern]
    out = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    lines = (line.split(" ", 1) for line in out.stdout.splitlines())
    return {name: float(number) for number, name in lines}


# --- the table ------------------------------------------------------------------------------------


def limit(count: Counts, ports: Mapping[str, tuple[tuple[str, ...], int]]) -> tuple[float, str]:
    """The cycles that the busiest ports need, and which these are."""
    return max(
        (sum(count.get(k, 0) for k in kinds) / rate, name) for name, (kinds, rate) in ports.items()
    )


def table(pattern: str) -> str:
    from bitmma import _native

    shown = ("all", "multiply", "add", "convert", "integer", "shuffle", "load", "store")
    isas = [isa for isa in ("avx2", "avx512") if isa in _native.isas()]
    head = ["row", *shown, "Zen 3", *isas]
    lines = [f"| {' | '.join(head)} |", "|---|" + "--:|" * len(shown) + "---|" * (1 + len(isas))]
    measured = {isa: cycles(pattern, isa) for isa in isas}
    here = {"avx2": (GOLDEN_COVE_AVX2, 1), "avx512": (GOLDEN_COVE_AVX512, 2)}
    for name, count in counts(pattern).items():
        cells = [name, *(f"{count.get(kind, 0):.1f}" for kind in shown)]
        least, by = limit(count, ZEN_3)
        cells.append(f"{least:.1f}, {by}")
        for isa in isas:
            ports, width = here[isa]
            least, by = limit(count, ports)
            taken = measured[isa][name] * width
            cells.append(f"{least:.1f} of {taken:.1f}, {by}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.count", description=__doc__)
    parser.add_argument("pattern", nargs="?", default="", help="only products that match")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="put the table there")
    parser.add_argument("--counted", metavar="FOLDER", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--timed", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.counted:
        return _count_all(arguments.pattern, arguments.counted)
    if arguments.timed:
        return _time_all(arguments.pattern)
    text = table(arguments.pattern)
    if not arguments.markdown:
        return print(text)

    from benchmarks import report

    report.into(arguments.markdown, text, MARKS)


if __name__ == "__main__":
    main()
