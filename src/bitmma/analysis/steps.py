"""Which step of two units' arithmetic makes them differ: units that are the one but for a step.

A unit is taken apart in these steps, and each can be the first unit's or the second's:

==============  ================================================================================
``input``       what becomes of subnormal operands, and of a subnormal c
``grouping``    how many products a step takes and how steps are joined (L, groups, order); of
                trees of roundings, the tree
``alignment``   where terms are cut, and how: all other parameters of a fused sum
``summation``   grouping and alignment as one, where the two are not both fused sums or both trees
                (FTZ-MulAdd is a tree; GST-FDPA and Lowered are neither)
``rounding``    rho, what becomes of subnormal results, and so the format of accumulators
==============  ================================================================================

T-, ST-, TR-, GTR-, E-FDPA and FMA are fused sums, values of `bitmma.models.FDPA`. A step in which
two units do not differ is none.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from fractions import Fraction
from typing import Any

from bitmma.analysis.stages import tree_of
from bitmma.models import EFDPA, FDPA, FMA, FTZMulAdd, Lowered, Model, SumTree, as_fdpa
from bitmma.unit import Instruction

__all__ = ["Steps", "shapley", "subsets"]

Subset = frozenset[str]

_FIELDS = {
    "input": ("flush_in", "flush_c"),
    "grouping": ("L", "groups", "order", "tree", "rho2", "G"),
    "rounding": ("rho", "rho_product", "out", "flush_out", "flush_last", "tiny"),
}
#: Which NaN, which zero: nothing that makes numbers differ.
_COSMETIC = ("zero", "nan")


class Steps:
    """The steps in which two instructions differ.

    names: of the steps. texts: what each is in the first and in the second, in words.
    """

    def __init__(self, first: Instruction, second: Instruction) -> None:
        self._instructions = first, second
        self._models = one, two = _comparable(first, second)
        if type(one) is type(two) and not isinstance(one, Lowered):
            known = {name for names in _FIELDS.values() for name in names} | set(_COSMETIC)
            rest = tuple(f.name for f in fields(one) if f.name not in known)
            self._fields = {**_FIELDS, "alignment": rest}
        else:
            self._fields = {name: _FIELDS[name] for name in ("input", "rounding")}
        self.texts: dict[str, tuple[str, str]] = {}
        for step in ("input", "grouping", "alignment", "rounding"):
            differing = [n for n in self._fields.get(step, ()) if _differ(one, two, n)]
            if differing:
                self.texts[step] = _text(one, differing), _text(two, differing)
        if "alignment" not in self._fields and first.model != second.model:
            self.texts["summation"] = _short(first.model), _short(second.model)
        elif "grouping" not in self.texts and _k_matters(first, second, one):
            self.texts["grouping"] = f"k={first.k}", f"k={second.k}"
        self.names = tuple(self.texts)

    def instruction(self, which: Subset) -> Instruction:
        """The first instruction, but with these steps from the second."""
        (first, second), (one, two) = self._instructions, self._models
        model = two if "summation" in which else one
        changes: dict[str, Any] = {}
        for step, names in self._fields.items():
            source = two if step in which else one
            changes |= {n: _get(source, n) for n in names if _has(source, n) and _has(model, n)}
        model = _with(model, changes)
        k = second.k if {"grouping", "summation"} & which else first.k
        c = second.c if "rounding" in which else first.c
        return replace(first, model=model, k=k, c=c, d=model.d)


def _comparable(first: Instruction, second: Instruction) -> tuple[Model, Model]:
    """Their models as values of one class, where there is one."""
    fused = tuple(_fused(x) for x in (first, second))
    trees = tuple(_tree(x) for x in (first, second))
    for one, two in (fused, trees):
        if one is not None and two is not None:
            return one, two
    one, two = (f or t or x.model for f, t, x in zip(fused, trees, (first, second), strict=True))
    return one, two


def _fused(instr: Instruction) -> Model | None:
    model = as_fdpa(instr.model)
    if model is None or model.order == "pairwise":
        return model
    return replace(model, L=min(model.L, instr.k))


def _tree(instr: Instruction) -> Model | None:
    model = instr.model
    if isinstance(model, FTZMulAdd | FMA | EFDPA):
        return tree_of(model, instr.k)
    return model if isinstance(model, SumTree) else None


def _k_matters(first: Instruction, second: Instruction, model: Model) -> bool:
    """Whether the same model gives other results because its instruction has another k."""
    if first.k == second.k:
        return False
    return isinstance(model, FDPA) and (
        model.order == "pairwise" or any(x.k % model.L for x in (first, second))
    )


# --- fields, Lowered's rho being its unit's -------------------------------------------------------


def _has(model: Model, name: str) -> bool:
    if isinstance(model, Lowered):
        return name == "rho"
    return any(f.name == name for f in fields(model))


def _get(model: Model, name: str) -> Any:
    return getattr(model.unit if isinstance(model, Lowered) else model, name)


def _with(model: Model, changes: Mapping[str, Any]) -> Model:
    if isinstance(model, Lowered):
        return replace(model, unit=replace(model.unit, **changes))
    changed: Model = replace(model, **changes)
    return changed


def _differ(one: Model, two: Model, name: str) -> bool:
    return _has(one, name) and _has(two, name) and _get(one, name) != _get(two, name)


def _text(model: Model, names: list[str]) -> str:
    shown = ((n, _get(model, n)) for n in names)
    return ", ".join(f"{n}={x}" if n != "tree" else f"tree {_cut(x)}" for n, x in shown)


def _cut(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"


def _short(model: Model) -> str:
    return _cut(repr(model))


# --- who had which share --------------------------------------------------------------------------


def subsets(names: tuple[str, ...]) -> Iterator[Subset]:
    """All sets of steps, the empty one first and the whole one last."""
    for n in range(len(names) + 1):
        yield from map(frozenset, itertools.combinations(names, n))


def shapley(
    worth: Callable[[Subset], Fraction | int], names: tuple[str, ...]
) -> dict[str, Fraction]:
    """Each step's share of ``worth`` of all: what it adds, on average over all orders of steps.

    Exact, so that the shares add up to the worth of all less that of none. Source: L. S. Shapley,
    "A value for n-person games", 1953.
    """
    n = len(names)
    shares = dict.fromkeys(names, Fraction(0))
    for which in subsets(names):
        weight = Fraction(
            math.factorial(len(which)) * math.factorial(n - len(which) - 1), math.factorial(n)
        ) if len(which) < n else 0  # fmt: skip
        for name in set(names) - which:
            shares[name] += weight * (worth(which | {name}) - worth(which))
    return shares
