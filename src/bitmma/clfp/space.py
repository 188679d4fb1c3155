"""Step 4: the space of models, and which of them reproduce every answer so far.

A search starts where the readings point and changes one parameter at a time, over its whole range,
as long as fewer answers come out wrong. The space is widened in this order: the published families
with the group length that the tree shows; the same with any group length; the general fused sum,
`FDPA`; sums of other shapes, `SumTree`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from bitmma import models
from bitmma.clfp.box import Box
from bitmma.clfp.equivalence import canonical
from bitmma.clfp.evidence import Evidence
from bitmma.clfp.shape import chains, clusters, divisors, lowered
from bitmma.clfp.tree import Tree
from bitmma.formats import ROUNDINGS
from bitmma.models import (
    EFDPA,
    FMA,
    GSTFDPA,
    GTRFDPA,
    STFDPA,
    TFDPA,
    TRFDPA,
    Conversion,
    FTZMulAdd,
    Lowered,
    Model,
)

__all__ = ["Space", "Stage"]

Stage = tuple[str, list[Model]]


class Space:
    """The models that a box may follow.

    Attributes:
        box, tree, facts: what is known: see `features`.
    """

    def __init__(self, box: Box, tree: Tree | None, facts: dict[str, Any]) -> None:
        self.box, self.tree, self.facts = box, tree, facts
        self.k, self.d = box.k, box.formats[3]
        sets = None if tree is None else clusters(tree)
        self.forms = [] if sets is None else list(chains(sets, self.k))

    # --- where to start ---------------------------------------------------------------------------

    def stages(self) -> Iterator[Stage]:
        """Starting points, in the order in which the space is widened."""
        lengths = [L for form, L in self.forms if form == "early"]
        if lengths or self.tree is not None:
            yield "published families of the tree's shape", list(self._published(lengths))
        everything = [L for L in divisors(self.k)[::-1] if L not in lengths]
        yield "published families of any group length", list(self._published(everything))

    def _published(self, lengths: list[int]) -> Iterator[Model]:
        """One start for every family; parameters are swept from there."""
        F, rho = self._F(), self._rho()
        e_zero = self.facts.get("e_zero", self.d.min_exponent - 7)
        scale = self.box.scale_format
        for L in lengths:
            if scale is not None:
                if scale.name == "ue8m0":
                    yield STFDPA(L, F, rho, e_zero)
                for G in divisors(L):
                    yield GSTFDPA(L, G, self._F_c(), rho, e_zero)
                continue
            yield TFDPA(L, F, rho, e_zero)
            yield EFDPA(L, rho)
            yield TRFDPA(L, F, rho=rho)
            yield GTRFDPA(L, F, rho=rho)
        if scale is not None:
            return
        if self.d.name in ("f32", "f64"):
            yield FMA(Conversion("RNE", self.d.name))
        for form, P in self.forms:
            if form == "grouped" and P in (2, 4) and self.d.name == "f32":
                yield FTZMulAdd(P)
        if self.tree is not None:
            for L, parts in lowered(self.tree, self.k):
                yield Lowered(self.k, TFDPA(L, F, rho, e_zero), parts)

    def _F(self) -> int:
        return min(self.facts.get("F") or self.facts.get("F_c") or self.d.mantissa_bits + 2, 64)

    def _F_c(self) -> int:
        return min(self.facts.get("F_c") or self._F(), 64)

    def _rho(self) -> Conversion:
        modes = self.facts.get("rho") or ["RNE"]
        bits = self.facts.get("mantissa_bits")
        bits = None if not bits or bits >= self.d.mantissa_bits else bits
        return Conversion(modes[0], self.d.name, bits)

    # --- how to go on -----------------------------------------------------------------------------

    def variations(self, model: Model) -> Iterator[tuple[str, list[Model]]]:
        """For every parameter: its name, and the model with each other value of it."""
        for field in dataclasses.fields(model):
            value = getattr(model, field.name)
            found = []
            for other in self._domain(model, field.name):
                if other == value:
                    continue
                try:
                    found.append(self.canonical(dataclasses.replace(model, **{field.name: other})))
                except ValueError:  # values that do not go together
                    continue
            yield field.name, list(dict.fromkeys(x for x in found if x != model))

    def _domain(self, model: Model, field: str) -> list[Any]:
        if field == "unit":
            return [x for _, found in self.variations(getattr(model, field)) for x in found]
        build = _DOMAINS.get(field)
        return [] if build is None else build(self, model)

    def canonical(self, model: Model) -> Model:
        return canonical(model, self.box)[0]

    def descend(self, start: Model, evidence: Evidence) -> Model:
        """Change one parameter at a time, while fewer answers come out wrong."""
        best = self.canonical(start)
        while evidence.wrong(best):
            before = best
            for name, _ in self.variations(best):
                others = next(found for n, found in self.variations(best) if n == name)
                best = min([best, *others], key=evidence.wrong)
            if best == before:
                break
        return best

    def neighbours(self, model: Model, evidence: Evidence) -> list[Model]:
        """Models one parameter away that reproduce every answer too."""
        return [
            other
            for _, found in self.variations(model)
            for other in found
            if evidence.wrong(other) == 0
        ]


# --- what a parameter can be ----------------------------------------------------------------------


def _bits(space: Space, model: Model) -> list[Any]:
    return list(range(models.F_RANGE[0], models.F_RANGE[1] + 1))


def _exponents(space: Space, model: Model) -> list[Any]:
    """From where a zero counts for nothing to where it would swallow ordinary numbers."""
    low, guess = space.d.min_exponent, space.facts.get("e_zero")
    near = range(low - space.d.mantissa_bits - 24, low + 41)
    around = [] if guess is None else range(guess - 4, guess + 5)
    return sorted({*near, *around})


def _conversions(space: Space, model: Model) -> list[Any]:
    rho: Conversion = getattr(model, "rho")  # noqa: B009
    bits = [None, *range(1, space.d.mantissa_bits)]
    return [
        *(dataclasses.replace(rho, mode=mode) for mode in ROUNDINGS),
        *(dataclasses.replace(rho, mantissa_bits=n) for n in bits),
    ]


def _lengths(space: Space, model: Model) -> list[Any]:
    return divisors(space.k)


_DOMAINS: dict[str, Callable[[Space, Model], list[Any]]] = {
    "L": _lengths,
    "G": _lengths,
    "F": _bits,
    "F2": _bits,
    "P": lambda space, model: [2, 4],
    "e_zero": _exponents,
    "rho": _conversions,
}
