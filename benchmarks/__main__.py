"""``python -m benchmarks``: one table of how fast bitmma is here."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path


def _clean_environment(coretype: str | None) -> None:
    """One BLAS thread and the kernels that OpenBLAS picks by itself, or those asked for.

    OpenBLAS reads these when it is loaded: where they were set otherwise, start again.
    """
    clean = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        clean.pop(name, None)
    if coretype:
        clean["OPENBLAS_CORETYPE"] = coretype
    if clean != dict(os.environ):
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks", *sys.argv[1:]], clean)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    parser.add_argument(
        "--rows", metavar="PATTERN", default="",
        help="only rows whose 'group: name' matches this regular expression, in any case",
    )  # fmt: skip
    parser.add_argument(
        "--isa", choices=("plain", "avx2", "avx512", "avx512vbmi"), help="instead of the best"
    )
    parser.add_argument(
        "--coretype", metavar="NAME",
        help="run NumPy on OpenBLAS's kernels for this CPU: with --isa avx2, Haswell or Zen is the "
        "fair yardstick",
    )  # fmt: skip
    parser.add_argument("--mmasim", action="store_true", help="beside it, mmasim (extra 'bench')")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results as data")
    parser.add_argument(
        "--markdown", metavar="FILE", nargs="?", const="-",
        help="print the table as Markdown; with FILE, put it between the marks there",
    )  # fmt: skip
    parser.add_argument(
        "--ratios", action="store_true",
        help="with --markdown: ratios only, and between other marks",
    )  # fmt: skip
    return parser.parse_args()


def main() -> None:
    arguments = _arguments()
    _clean_environment(arguments.coretype)
    os.environ["BITMMA_NUM_THREADS"] = "1"
    if arguments.isa:
        os.environ["BITMMA_ISA"] = arguments.isa

    from rich.console import Console

    from benchmarks import machine, peer, report, rows
    from benchmarks.measure import Unavailable, measure

    if arguments.isa and arguments.isa not in machine.describe()["isas"]:
        sys.exit(f"--isa: this machine has {', '.join(machine.describe()['isas'])}")
    if arguments.mmasim and not peer.available():
        sys.exit('--mmasim: mmasim is not installed: pip install ".[bench]"')
    marks = report.RATIOS if arguments.ratios else report.MARKS
    try:  # what would fail after the work, before it
        if arguments.markdown not in (None, "-"):
            report.around(Path(arguments.markdown), marks)
        pattern = re.compile(arguments.rows, re.IGNORECASE)
    except (OSError, ValueError, re.error) as error:
        sys.exit(str(error))
    chosen = [row for row in rows.all_rows() if pattern.search(f"{row.group}: {row.name}")]
    if not chosen:
        sys.exit(f"--rows: nothing matches {arguments.rows!r}")

    scale = rows.QUICK if arguments.quick else rows.FULL
    about = machine.describe()
    settings = {
        "quick": arguments.quick, "rows": arguments.rows, "repetitions": scale.repetitions,
        "n": scale.n,
    }  # fmt: skip
    results = []
    with Console(stderr=True).status("") as status:
        for i, row in enumerate(chosen):
            status.update(f"{i + 1} of {len(chosen)}: {row.group}: {row.name}")
            try:
                measured = measure(row.work(scale), scale.repetitions)
            except Unavailable as why:
                results.append(report.Result(row, None, str(why)))
                continue
            beside = peer.rate(row.peer) if arguments.mmasim and row.peer else None
            results.append(report.Result(row, measured, peer_rate=beside))

    if arguments.markdown:
        columns = report.HEAD.index("GMAC/s") if arguments.ratios else len(report.HEAD)
        text = report.markdown(about, settings, results, columns)
        if arguments.markdown == "-":
            print(text)
        else:
            report.into(Path(arguments.markdown), text, marks)
    else:
        console = Console()
        report.show(
            console if console.is_terminal else Console(width=160), about, settings, results
        )
    if arguments.json:
        data = report.to_dict(about, settings, results)
        arguments.json.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
