"""Every output of every golden vector through the engine."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitmma import engine, formats, isa

INDEX = json.loads((Path(__file__).parent / "vectors" / "index.json").read_text())
ROWS = INDEX["instructions"]


def load(vectors: Path, row: dict[str, Any]) -> dict[str, np.ndarray]:
    with np.load(vectors / row["file"]) as z:
        return dict(z)


def run(e: isa.Entry, z: dict[str, np.ndarray], **options: Any) -> np.ndarray:
    return engine.mma(
        e.model, z["a"], z["b"], z["c"], a_format=e.a, b_format=e.b, c_format=e.c, k=e.k,
        scale_a=z.get("sa"), scale_b=z.get("sb"), scale_format=e.scale, block=e.block, **options,
    )  # fmt: skip


def test_all_330_are_there(vectors: Path) -> None:
    assert len(ROWS) == 330
    assert {p.name for p in vectors.glob("*.npz")} == {row["file"] for row in ROWS}
    assert {row["arch"] for row in ROWS} == set(isa.GPUS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["file"].removesuffix(".npz"))
def test_every_output(
    row: dict[str, Any], vectors: Path, assert_same_bits: Callable[..., None]
) -> None:
    e, z = isa.find(row["arch"], row["qualifier"]), load(vectors, row)
    tiles = len(z["cat"])
    assert set(z["cat"].tolist()) == set(range(len(INDEX["categories"])))
    assert z["d"].shape == (tiles, row["m"], row["n"])
    got = run(e, z)
    for t, category in enumerate(z["cat"]):
        label = f"{row['file']} {INDEX['categories'][category]}"
        assert_same_bits(e.model, got[t], z["d"][t], label)


def test_the_vectors_show_something(vectors: Path) -> None:
    """Most outputs are numbers, and every kind of output occurs."""
    counts = np.zeros(4, int)
    for row in ROWS:
        d = formats.decode(load(vectors, row)["d"], row["d"])
        counts += [np.isnan(d).sum(), np.isinf(d).sum(), (d == 0).sum(), np.isfinite(d).sum()]
    nan, inf, zero, finite = counts.tolist()
    assert nan + inf + finite == 871_808
    assert min(nan, inf, zero) > 1_000 and finite > 600_000
