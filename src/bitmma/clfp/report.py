"""What a probe found: a value that prints, saves and loads."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bitmma import formats, models
from bitmma.clfp.box import printable
from bitmma.clfp.tree import Tree, from_text, to_text
from bitmma.clfp.tree import text as tree_text
from bitmma.models import Model

__all__ = ["Counterexample", "Feature", "Report", "Status", "Turn"]

Status = Literal["verified", "ambiguous", "unexplained", "invalid"]


@dataclass(frozen=True)
class Feature:
    """One probe and what it showed.

    Attributes:
        name: what was asked, e.g. "bits kept of products".
        fed: what the box was given, in words.
        reading: what came out, e.g. "25".
        meaning: what follows from it.
        evidence: (input, output) pairs in words, the ones that decided.
    """

    name: str
    fed: str
    reading: str
    meaning: str
    evidence: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Turn:
    """One turn of the loop, or one step before it: what was done and what came of it."""

    step: str
    text: str


@dataclass(frozen=True)
class Counterexample:
    """One dot product as raw codes, what the box returned, and what somebody else says.

    Attributes:
        a, b: k codes each. c: one. scale_a, scale_b: k/block codes, or none.
        got: the box's d. other: the d it was expected to be.
        claim: who expected it: a model, or "the same call, asked again".
    """

    a: tuple[int, ...]
    b: tuple[int, ...]
    c: int
    got: int
    other: int
    claim: str
    scale_a: tuple[int, ...] = ()
    scale_b: tuple[int, ...] = ()


@dataclass
class Report:
    """What `bitmma.probe` found.

    Attributes:
        box: name, m, n, k, a, b, c, d, scale, block.
        status: "verified": one model (and those that are equal to it for all inputs of these
            formats, see ``equivalent``) agrees with the box on ``tested`` outputs;
            "ambiguous": several models do, ``candidates``, and no input was found on which they
            differ; "unexplained": no model does, see ``counterexamples``; "invalid": the box is no
            function of row, column and c, or broke off.
        reason: one sentence: why this status.
        tree: the summation tree, None where it was not found. ``tree_note``: its limits.
        features: the probes and their readings.
        model: the model, or None. candidates: all models left, ``model`` first.
        equivalent: which parameters could differ without any effect, and why.
        history: what was done, in order.
        counterexamples: minimal ones.
        tested: outputs compared with the model, bit against bit.
        coverage: how many of a sample of them (``coverage["total"]``) met each condition of
            `cases.Coverage`, by the model; see ``not_reached``.
        confidence: what ``tested`` says, in words.
        cost: calls and outputs of the box; seconds in it (``box_seconds``), in evaluating models
            with the native engine (``engine_seconds``), and in everything else
            (``python_seconds``).
        inputs: the dot products that told models apart (see `bitmma.clfp.suite`).
        seed: of the random inputs. bits_version: `bitmma.BITS_VERSION`.
    """

    box: Mapping[str, Any]
    status: Status = "invalid"
    reason: str = ""
    tree: Tree | None = None
    tree_note: str = ""
    features: list[Feature] = field(default_factory=list)
    model: Model | None = None
    candidates: list[Model] = field(default_factory=list)
    equivalent: list[str] = field(default_factory=list)
    history: list[Turn] = field(default_factory=list)
    counterexamples: list[Counterexample] = field(default_factory=list)
    tested: int = 0
    coverage: dict[str, int] = field(default_factory=dict)
    confidence: str = ""
    cost: dict[str, float] = field(default_factory=dict)
    inputs: list[Counterexample] = field(default_factory=list)
    seed: int = 0
    bits_version: int = 0

    @property
    def tree_text(self) -> str:
        """The tree in one line: ``fused(fused(c, p0..p7), p8..p15)``; "" where there is none."""
        return "" if self.tree is None else tree_text(self.tree, int(self.box["k"]))

    @property
    def not_reached(self) -> tuple[str, ...]:
        """Conditions that none of the traced inputs met: of these nothing is claimed."""
        return tuple(name.replace("_", " ") for name, count in self.coverage.items() if not count)

    @property
    def unreached_text(self) -> str:
        """``not_reached`` as a line, with how many inputs were traced; "" where none were."""
        if not self.coverage:
            return ""
        names = ", ".join(self.not_reached) or "no condition, all were"
        return f"not reached: {names} (of {self.coverage['total']} inputs traced)"

    def to_dict(self) -> dict[str, Any]:
        """As plain data: what `save` writes."""
        found = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        found["tree"] = None if self.tree is None else to_text(self.tree)
        return {"bitmma_probe": 1, **_plain(found)}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Report:
        """The inverse of `to_dict`; ValueError where it is no report."""
        if data.get("bitmma_probe") != 1:
            raise ValueError("no report of bitmma.probe: it lacks bitmma_probe = 1")
        known = {f.name for f in dataclasses.fields(Report)}
        x = {name: value for name, value in data.items() if name in known}
        tree, model = x.get("tree"), x.get("model")
        x |= {
            "tree": None if tree is None else from_text(tree),
            "model": None if model is None else _model(model),
            "candidates": [_model(m) for m in x.get("candidates", ())],
            "features": [Feature(**_tuples_in(f)) for f in x.get("features", ())],
            "history": [Turn(**_made(t)) for t in x.get("history", ())],
            "counterexamples": [
                Counterexample(**_tuples_in(e)) for e in x.get("counterexamples", ())
            ],
            "inputs": [Counterexample(**_tuples_in(e)) for e in x.get("inputs", ())],
        }
        return Report(**x)

    def save(self, path: str | Path) -> None:
        """Write it as JSON."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def load(path: str | Path) -> Report:
        """Read what `save` wrote."""
        return Report.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))

    def svg(self) -> str:
        """The tree as a standalone picture.

        Raises:
            ValueError: no tree was found.
        """
        from bitmma.clfp.draw import tree_svg

        if self.tree is None:
            raise ValueError(f"there is no tree to draw: {self.tree_note or self.reason}")
        return tree_svg(self.tree, int(self.box["k"]))

    def html(self) -> str:
        """All of it as one page, which needs nothing from anywhere else."""
        from bitmma.clfp.page import report_page

        return report_page(self)

    def save_svg(self, path: str | Path) -> None:
        """Write the tree's picture; ValueError where there is no tree."""
        Path(path).write_text(self.svg(), encoding="utf-8")

    def save_html(self, path: str | Path) -> None:
        """Write the page."""
        Path(path).write_text(self.html(), encoding="utf-8")

    def _repr_html_(self) -> str:
        from bitmma.clfp.page import report_fragment

        return report_fragment(self)

    def __str__(self) -> str:
        lines = [f"{printable(str(self.box['name']))}: {self.status}", self.reason]
        if self.tree is not None or self.tree_note:
            lines.append(f"tree: {self.tree_text or 'not found'}")
            lines += [f"      ({self.tree_note})"] * bool(self.tree_note)
        if self.model is not None:
            lines.append(f"model: {self.model!r}")
            lines += [f"    or {other!r}" for other in self.candidates if other != self.model]
        lines += [f"  {line}" for line in self.equivalent]
        width = max((len(f.name) for f in self.features), default=0)
        lines += [f"  {f.name:{width}}  {f.reading}: {f.meaning}" for f in self.features]
        if self.confidence:
            lines.append(self.confidence)
        lines += [self.unreached_text] * bool(self.coverage)
        lines += [self.shown(x) for x in self.counterexamples]
        return "\n".join(lines)

    def shown(self, x: Counterexample) -> str:
        """A counterexample in a few lines, its zero products left out."""
        terms = [
            f"{_number(p, self.box['a'])}·{_number(q, self.box['b'])} (k={i})"
            for i, (p, q) in enumerate(zip(x.a, x.b, strict=True))
            if p or q
        ]
        c, got, other = (
            _number(code, fmt)
            for code, fmt in (
                (x.c, self.box["c"]),
                (x.got, self.box["d"]),
                (x.other, self.box["d"]),
            )
        )
        scales = f", scales {x.scale_a} {x.scale_b}" if x.scale_a else ""
        return f"  {' + '.join([*terms, c])}{scales} gave {got}; {x.claim}: {other}"


def _number(code: int, fmt: str) -> str:
    f = formats.get(fmt)
    digits = -(-f.width // 4)
    value = float(formats.decode(f.code_dtype.type(code), fmt))
    return f"{value!r} ({code:#0{digits + 2}x})"


# --- plain data -----------------------------------------------------------------------------------


def _plain(x: Any) -> Any:
    """Dataclasses as dicts that carry their class's name as ``type``."""
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        fields = {f.name: _plain(getattr(x, f.name)) for f in dataclasses.fields(x)}
        return {"type": type(x).__name__, **fields}
    if isinstance(x, Mapping):
        return {k: _plain(v) for k, v in x.items()}
    if isinstance(x, Sequence) and not isinstance(x, str):
        return [_plain(v) for v in x]
    return x.item() if hasattr(x, "item") else x


def _made(x: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in x.items() if k != "type"}


def _tuples(x: Any) -> Any:
    return tuple(map(_tuples, x)) if isinstance(x, list) else x


def _tuples_in(x: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass that has tuples where JSON has lists."""
    return {k: _tuples(v) for k, v in _made(x).items()}


def _model(x: Any) -> Any:
    """A model, or a value inside one."""
    if not isinstance(x, Mapping):
        return _tuples(x)
    names = {f.__name__: f for f in (*models.FAMILIES, models.Conversion)}
    if x.get("type") not in names:
        raise ValueError(f"unknown model {x.get('type')!r}; known are {', '.join(names)}")
    return names[x["type"]](**{k: _model(v) for k, v in _made(x).items()})
