"""Published findings about matrix units, each reproduced by one command.

``bitmma experiment NAME`` or ``run(NAME)``: an experiment computes numbers, puts the published ones
beside them, says whether they agree and why, and draws a figure. Each module here is one
experiment: ``compute(quick, progress, each) -> Report``; `report` says what that is.

Every number comes of seeded inputs (`bitmma.analysis.sample`) and exact references
(`bitmma.analysis.exact_product`): it is the same on every machine. Figures need Matplotlib.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from bitmma.experiments.report import Finding, Progress, Report

__all__ = ["EXPERIMENTS", "Finding", "Report", "run"]

#: Name: what it shows.
EXPERIMENTS: Mapping[str, str] = {
    "six-answers": "one dot product, six answers on ten GPU generations",
    "internal-bits": "how many bits NVIDIA's units keep, found by probing",
    "cdna2-subnormals": "what CDNA2 loses by flushing subnormals, and scaling as the cure",
    "cdna3-bias": "the bias of CDNA3's rounding down, and C = 0 as the cure",
    "fp8-promotion": "FP8 error against K, with and without promotion to FP32",
    "fp16-output": "FP16 against FP32 accumulators",
    "pairs": "how many outputs differ between any two GPUs",
    "real-weights": "the products inside a small language model on all GPUs",
}


def run(
    name: str, *, quick: bool = False, progress: Progress | None = None, processes: int = 1
) -> Report:
    """One experiment; `Report.write` makes its files.

    Args:
        name: a key of `EXPERIMENTS`.
        quick: fewer samples: seconds instead of minutes, wider intervals.
        progress: called as ``progress(done, total)``, in steps of the experiment's own.
        processes: how many share the work; the numbers are the same. More than one are new Python
            processes, which import the program that called: it must be guarded by ``if __name__ ==
            "__main__"``. The command line takes one a core, but in quick mode.

    Raises:
        ValueError: an unknown name.
        ImportError: something it needs is not installed; the message says what to install.
    """
    if name not in EXPERIMENTS:
        raise ValueError(f"experiment is one of {', '.join(EXPERIMENTS)}, not {name!r}")
    module: Any = importlib.import_module(f"bitmma.experiments.{name.replace('-', '_')}")
    heard = progress or (lambda done, total: None)
    if processes == 1:
        found: Report = module.compute(quick, heard, map)
        return found
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, spawn, _alone)
    try:
        found = module.compute(quick, heard, pool.map)
    finally:  # Ctrl-C too: what has not begun will not
        pool.shutdown(cancel_futures=True)
    return found


def _alone() -> None:
    """One thread for products, as the cores are taken; Ctrl-C is for the program that asked."""
    os.environ["BITMMA_NUM_THREADS"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
