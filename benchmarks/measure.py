"""How a row is measured: samples, each of which times the subject beside its yardstick."""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

Task = Callable[[], object]
Clock = Callable[[], float]

#: CPU time of this process, of which one thread works while the others wait: what other processes
#: do on a shared machine hardly shows in it.
ONE_THREAD: Clock = time.process_time
#: The wall clock, where several threads work.
WALL: Clock = time.perf_counter


class Unavailable(Exception):
    """This row cannot be measured here; the message says why."""


@dataclass(frozen=True)
class Sample:
    """One measurement: the row's value, and the subject's seconds (0: no rate is given)."""

    value: float
    seconds: float


@dataclass(frozen=True)
class Work:
    """What a row does: ``sample`` once a repetition. ``macs``: products in ``Sample.seconds``."""

    sample: Callable[[], Sample]
    macs: int = 0


@dataclass(frozen=True)
class Measured:
    """The median of a row's samples, the extremes, and the median rate in GMAC/s."""

    value: float
    low: float
    high: float
    rate: float | None


def measure(work: Work, repetitions: int) -> Measured:
    """Warm up once, then take the samples."""
    gc.collect()
    gc.disable()
    try:
        work.sample()
        samples = [work.sample() for _ in range(repetitions)]
    finally:
        gc.enable()
    values = [s.value for s in samples]
    seconds = statistics.median(s.seconds for s in samples)
    rate = work.macs / seconds / 1e9 if work.macs and seconds else None
    return Measured(statistics.median(values), min(values), max(values), rate)


def seconds(task: Task, clock: Clock, calls: int = 1) -> float:
    """Seconds of one call, on average of ``calls``."""
    start = clock()
    for _ in range(calls):
        task()
    return (clock() - start) / calls


def beside(
    subject: Task,
    yardstick: Task,
    value: Callable[[float, float], float],
    *,
    macs: int,
    clock: Clock = ONE_THREAD,
    between: Task = lambda: None,
) -> Work:
    """Subject and yardstick in turn, ``between`` before each; ``value`` of the seconds of each.

    The yardstick runs before and after: what the clock frequency does meanwhile cancels.
    """

    def timed(task: Task) -> float:
        between()
        return seconds(task, clock)

    def sample() -> Sample:
        before, mine, after = timed(yardstick), timed(subject), timed(yardstick)
        return Sample(value(mine, (before + after) / 2), mine)

    return Work(sample, macs)


def alone(subject: Task, value: Callable[[float], float], *, macs: int, calls: int = 1) -> Work:
    """The subject by itself."""

    def sample() -> Sample:
        mine = seconds(subject, ONE_THREAD, calls)
        return Sample(value(mine), mine)

    return Work(sample, macs)


# --- memory ---------------------------------------------------------------------------------------


#: So that glibc gives back what is freed: else the peak starts from what an earlier call left.
_GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}


def memory(gpu: str, name: str, m: int, n: int, k: int) -> Work:
    """Extra memory of a product over operands and result, each time in a process of its own."""
    if not os.access("/proc/self/clear_refs", os.W_OK):
        raise Unavailable("peak memory comes from Linux's /proc/self, which is not there")
    command = [sys.executable, "-m", "benchmarks.memory", gpu, name, *map(str, (m, n, k))]
    environment = os.environ | _GIVE_BACK
    environment.pop("BITMMA_NUM_THREADS", None)

    def sample() -> Sample:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
        return Sample(float(done.stdout), 0.0)

    return Work(sample)
