"""Inputs that told models apart, kept for other boxes and models.

A suite is a JSON file of dot products with the formats they are for. What one probe had to ask, the
next unit of the same formats can be asked at once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bitmma import engine, formats
from bitmma.clfp.report import Report
from bitmma.models import Model

__all__ = ["Entry", "differing", "load", "save"]

_KIND = "bitmma probe suite 1"


@dataclass(frozen=True)
class Entry:
    """One dot product: formats, operands as raw codes, and what a box made of it.

    Attributes:
        box: whose answer ``d`` is.
        formats: of a, b, c and d; block: how many k share a scale of format ``scale``, or None.
    """

    box: str
    formats: tuple[str, str, str, str]
    a: tuple[int, ...]
    b: tuple[int, ...]
    c: int
    d: int
    scale: str | None = None
    block: int | None = None
    scale_a: tuple[int, ...] = ()
    scale_b: tuple[int, ...] = ()


def save(path: str | Path, *reports: Report) -> None:
    """Add what these probes asked to tell models apart; what the file holds already stays."""
    path = Path(path)
    entries = dict.fromkeys(load(path) if path.exists() else [])
    for r in reports:
        fmts = (r.box["a"], r.box["b"], r.box["c"], r.box["d"])
        entries |= dict.fromkeys(
            Entry(
                r.box["name"], fmts, x.a, x.b, x.c, x.got, r.box["scale"], r.box["block"],
                x.scale_a, x.scale_b,
            )
            for x in r.inputs
        )  # fmt: skip
    rows = ",\n".join(json.dumps(asdict(entry)) for entry in entries)
    path.write_text(f'{{"kind": "{_KIND}", "entries": [\n{rows}\n]}}\n', encoding="utf-8")


def load(path: str | Path) -> list[Entry]:
    """Read a suite. ValueError where the file is none."""
    data = json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(data, dict) or data.get("kind") != _KIND:
        raise ValueError(f"{path} is no probe suite")
    return [
        Entry(**{k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()})
        for entry in data["entries"]
    ]


def differing(entries: Sequence[Entry], model: Model) -> list[Entry]:
    """The entries whose answer is not the model's; NaNs are all alike."""
    return [x for x in entries if not _agrees(x, model)]


def _agrees(x: Entry, model: Model) -> bool:
    if model.d != x.formats[3]:
        return False
    fa, fb, fc, fd = map(formats.get, x.formats)
    fs = formats.get(x.scale) if x.scale else None
    got = engine.dpa(
        model, np.array(x.a, fa.code_dtype), np.array(x.b, fb.code_dtype),
        np.array(x.c, fc.code_dtype), a_format=fa.name, b_format=fb.name, c_format=fc.name,
        scale_format=x.scale, block=x.block,
        scale_a=np.array(x.scale_a, fs.code_dtype) if fs else None,
        scale_b=np.array(x.scale_b, fs.code_dtype) if fs else None,
    )  # fmt: skip
    both = np.array([got, x.d], fd.code_dtype)
    return bool(both[0] == both[1] or np.isnan(formats.decode(both, fd)).all())
