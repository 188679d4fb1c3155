"""The engine against recordings of real V100, A100, A2, RTX Ada, L40S, H100, H200 and B200 GPUs.

The recordings (Khattak and Mikaitis, arXiv 2512.07004) are not part of the repository; without
BITMMA_RECORDINGS every test here is skipped, visibly.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitmma import engine, formats, isa
from bitmma.models import Lowered, Model

_folder = Path(os.environ.get("BITMMA_RECORDINGS") or "no-recordings")
_index = _folder / "index.json"
ROWS = json.loads(_index.read_text()) if _index.is_file() else [{"file": "none"}]


def instruction(row: dict[str, Any]) -> isa.Entry:
    """The instruction that ran. A recording's k is a group: at most the instruction's."""
    found = isa.select(
        gpu_name=row["gpu"], op=row["op"], a=row["a"], b=row["b"], c=row["c"], d=row["d"]
    )
    return min((e for e in found if e.k >= row["k"]), key=lambda e: e.k)


def run(model: Model, e: isa.Entry, z: Any, rows: slice = slice(None)) -> np.ndarray:
    return engine.dpa(
        model, z["a"][rows], z["b"][rows], z["c"][rows], a_format=e.a, b_format=e.b, c_format=e.c
    )


def test_all_48_are_there(recordings: Path) -> None:
    assert len(ROWS) == 48
    assert len({row["gpu"] for row in ROWS}) == 8
    assert {p.name for p in recordings.glob("*.npz")} == {row["file"] for row in ROWS}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["file"].removesuffix(".npz"))
def test_recording(
    row: dict[str, Any], recordings: Path, assert_same_bits: Callable[..., None]
) -> None:
    e = instruction(row)
    assert (e.gpu, e.op) == (row["arch"], row["op"])
    lowered = row["gpu"] in ("H100", "H200", "B200") and row["op"] == "mma" and row["k"] == 32
    assert isinstance(e.model, Lowered) == lowered
    with np.load(recordings / row["file"]) as file:
        z = dict(file)
    assert z["a"].shape == z["b"].shape == (1000, row["k"])
    assert_same_bits(e.model, run(e.model, e, z), z["d"], row["file"])
    finite = np.isfinite(formats.decode(z["d"], e.d))
    assert finite.sum() > 500, "a recording of NaNs would show nothing"


@pytest.mark.parametrize(
    ("file", "wrong"),
    [
        ("V100_f16_f32.npz", ("Ampere", "m16n8k8.f32.f16.f16.f32")),
        ("A100_f16_f32.npz", ("Hopper", "m16n8k8.f32.f16.f16.f32")),
        ("H100_f16_f32.npz", ("Ampere", "m16n8k16.f32.f16.f16.f32")),
        ("H100_e4m3_f32.npz", ("Hopper", "m16n8k32.f32.e4m3.e4m3.f32")),
        ("H100_e5m2_f16.npz", ("Hopper", "m64n8k32.f16.e5m2.e5m2")),
        ("B200_e4m3_f32.npz", ("Hopper", "m64n8k32.f32.e4m3.e4m3")),
        ("B200_e5m2_f32.npz", ("Blackwell", "m64n8k32.kind::f8f6f4.f32.e5m2.e5m2")),
        ("Ada_e4m3_f32.npz", ("Hopper", "m64n8k32.f32.e4m3.e4m3")),
    ],
)
def test_recordings_tell_models_apart(file: str, wrong: tuple[str, str], recordings: Path) -> None:
    """The same rows under another unit's model do differ: agreement above means something."""
    with np.load(recordings / file) as z:
        e = isa.find(*wrong)
        assert (run(e.model, e, z) != z["d"]).any()
