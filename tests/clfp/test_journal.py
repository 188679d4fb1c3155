"""Checkpoints: whose answers they hold, and whether they are whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bitmma
from bitmma.clfp import BlackBox, Report, probe

UNIT = bitmma.instruction("Volta", "m8n8k4.f32.f16.f16.f32")


def run(fn: Callable[..., Any], checkpoint: Any = None) -> Report:
    box = BlackBox(fn, 8, 8, 4, batched=True, name="box")
    return probe(box, inputs=2_000, checkpoint=checkpoint)


def overwriting(A: Any, B: Any, C: Any) -> Any:
    d = UNIT(A, B, C)
    A[...] = B[...] = C[...] = 7
    return d


def in_place(A: Any, B: Any, C: Any) -> Any:
    C[...] = UNIT(A, B, C)
    return C


@pytest.mark.parametrize("fn", [overwriting, in_place])
def test_a_box_that_writes_to_its_operands(fn: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "answers"
    first = run(fn, path)
    assert (first.status, first.model) == ("verified", UNIT.model)
    again = run(fn, path)
    assert (again.status, again.model) == ("verified", UNIT.model)
    recalled = first.cost["calls"]
    assert 3 <= again.cost["calls"] <= 2 + max(3, recalled // 8)


def other_first(A: Any, B: Any, C: Any) -> Any:
    return -UNIT(A, B, C)


def other_last() -> Callable[..., Any]:
    """As the unit in the first call only."""
    calls = 0

    def fn(A: Any, B: Any, C: Any) -> Any:
        nonlocal calls
        calls += 1
        return UNIT(A, B, C) if calls == 1 else -UNIT(A, B, C)

    return fn


def sometimes_other() -> Callable[..., Any]:
    """Another function in a quarter of the calls, with the first as it was."""
    calls = 0

    def fn(A: Any, B: Any, C: Any) -> Any:
        nonlocal calls
        calls += 1
        return -UNIT(A, B, C) if calls % 4 == 3 else UNIT(A, B, C)

    return fn


@pytest.mark.parametrize(
    "fn", [other_first, other_last(), sometimes_other()], ids=["at once", "later", "sometimes"]
)
def test_answers_of_another_function(fn: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "answers"
    run(UNIT, path)
    kept = path.read_bytes()
    with pytest.raises(ValueError, match="answers holds the answers of another function"):
        run(fn, path)
    assert path.read_bytes() == kept


def test_cut_off_or_corrupted(tmp_path: Path) -> None:
    path = tmp_path / "answers"
    whole = run(UNIT, path)
    kept = path.read_bytes()
    start = kept.index(b"\n") + 1

    for end in (start, start + 20, start + 100, len(kept) - 1):  # an interrupt while writing
        path.write_bytes(kept[:end])
        report = run(UNIT, path)
        assert (report.status, report.model) == (whole.status, whole.model)
        assert path.read_bytes() == kept

    rng = np.random.default_rng(5)
    for at in [start, start + 17, start + 30, start + 45, *rng.integers(start, len(kept), 20)]:
        changed = bytearray(kept)
        changed[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        with pytest.raises(ValueError, match="answers is corrupted"):
            run(UNIT, path)


@pytest.mark.parametrize("wrong", [5, True, b"answers"])
def test_no_path(wrong: Any) -> None:
    with pytest.raises(TypeError, match="checkpoint must be a path or None"):
        run(UNIT, wrong)
