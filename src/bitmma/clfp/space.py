"""Step 4: the space of models, and which of them reproduce every answer so far.

A search starts where the readings point and changes one parameter at a time, over its whole range,
as long as fewer answers come out wrong. The space is widened in this order: the published families
with the group length that the tree shows; the general models of the tree's shape, `FDPA` where it
has fused sums and `SumTree`; the published families, and then `FDPA`, with any group length.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

from bitmma import formats, models
from bitmma.clfp.box import Box
from bitmma.clfp.equivalence import canonical
from bitmma.clfp.evidence import Evidence
from bitmma.clfp.shape import chains, clusters, divisors, lowered, nested
from bitmma.clfp.tree import Tree, fold
from bitmma.formats import ROUNDINGS
from bitmma.models import (
    EFDPA,
    FDPA,
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
    SumTree,
)

__all__ = ["Space", "Stage"]

Stage = tuple[str, list[Model]]

#: In trees of so many products each is tried rounded and not.
_TOGGLED = 64


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
        rest = [L for L in divisors(self.k)[::-1] if L not in lengths]
        if self.tree is not None:
            yield "published families of the tree's shape", list(self._published(lengths))
            if self.forms and not _binary(self.tree):
                yield "fused sums of the tree's shape", list(self._fused(self.forms))
            yield "sums of the tree's shape", list(self._sums(self.tree))
        yield "published families of any group length", list(self._published(rest))
        yield "fused sums of any group length", list(self._fused([("early", L) for L in rest]))

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

    def _fused(self, forms: list[tuple[str, int]]) -> Iterator[Model]:
        """FDPA with what the readings say."""
        facts = self.facts
        first: dict[str, Any] = {
            "F": facts.get("F"), "F_c": facts.get("F_c"),
            "cut": (facts.get("cut") or ["RZ"])[0], "cut_c": (facts.get("cut_c") or ["RZ"])[0],
            "e_zero": facts.get("e_zero"), "renormalise": facts.get("renormalise", False),
            "rho": self._rho(), "nan": self._nan(),
            "zero": "ieee" if facts.get("negative_zero") else "signed",
            "flush_in": "zero" if {"a", "b"} & set(facts.get("flush_in", ())) else "no",
            "flush_c": "zero" if "c" in facts.get("flush_in", ()) else "no",
            "flush_out": "zero" if facts.get("flush_out") else "no",
        }  # fmt: skip
        for form, L in forms:
            if form == "grouped":
                continue
            if form == "pairwise":
                yield FDPA(L, order="pairwise", **first)
                continue
            yield FDPA(L, c="early", **first)
            yield FDPA(L, c="late", **first)
            if facts.get("F") and form == "early":
                F2 = facts["F"] + 8
                yield FDPA(L, c="late", F2=F2, cut2="RD", F_sum=F2 - 1, cut_sum="RD", **first)

    def _sums(self, tree: Tree) -> Iterator[Model]:
        """The tree as it is: with fused multiply-adds, and with every product rounded."""
        for d in self._conversions():
            zero = "ieee" if self.facts.get("negative_zero") else "start"
            first: dict[str, Any] = {**d, "nan": self._nan(), "zero": zero}
            yield SumTree(nested(tree, self.k), **first)
            yield SumTree(nested(tree, self.k), rho_product=d["rho"], **first)

    def _conversions(self) -> Iterator[dict[str, Conversion]]:
        """Roundings of the nodes and, if it is another one, of the output."""
        yield {"rho": self._rho()}
        if self.d.name in ("f16", "bf16"):
            yield {"rho": models.RNE_FP32, "out": self._rho()}

    def _nan(self) -> Any:
        ones = (1 << (self.d.width - 1)) - 1
        return "ones" if self.facts.get("nan") == {ones} else "quiet"

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
        for names in [*((f.name,) for f in dataclasses.fields(model)), *_TOGETHER]:
            if all(hasattr(model, name) for name in names):
                yield ", ".join(names), self.varied(model, names)

    def varied(self, model: Model, names: tuple[str, ...]) -> list[Model]:
        """The model with all other values of these parameters, the same for each of them."""
        found = []
        for other in self._domain(model, names[0]):
            try:
                other_model = dataclasses.replace(model, **dict.fromkeys(names, other))
            except ValueError:  # values that do not go together
                continue
            found.append(self.canonical(other_model))
        return [x for x in dict.fromkeys(found) if x != model]

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
        fields = [(f.name,) for f in dataclasses.fields(start)]
        while wrong := evidence.wrong(best):
            before = best
            for names in [*fields, *_TOGETHER]:
                if not all(hasattr(best, name) for name in names):
                    continue
                for other in self.varied(best, names):
                    count = evidence.wrong(other, wrong - 1)
                    if count < wrong:
                        best, wrong = other, count
                    if not wrong:
                        return best
            if best == before:
                break
        return best

    def neighbours(self, model: Model, evidence: Evidence) -> list[Model]:
        """Models one parameter away that reproduce every answer too."""
        return [x for _, found in self.variations(model) for x in found if evidence.fits(x)]


def _binary(tree: Tree) -> bool:
    """Whether it is made of additions of two."""
    return fold(tree, lambda leaf: True, lambda node, parts: node.kind == "add" and all(parts))


# --- what a parameter can be ----------------------------------------------------------------------


#: Parameters that often have one value together.
_TOGETHER: tuple[tuple[str, ...], ...] = (("F", "F_c"), ("cut", "cut_c"), ("flush_in", "flush_c"))


def _bits(space: Space, model: Model) -> list[Any]:
    if isinstance(model, FDPA):
        return [None, *range(1, models.F_RANGE[1] + 2)]
    return list(range(models.F_RANGE[0], models.F_RANGE[1] + 1))


def _exponents(space: Space, model: Model) -> list[Any]:
    """From where a zero counts for nothing to where it would swallow ordinary numbers."""
    low, guess = space.d.min_exponent, space.facts.get("e_zero")
    near = range(low - space.d.mantissa_bits - 24, low + 41)
    around = [] if guess is None else range(guess - 4, guess + 5)
    return [*([None] if isinstance(model, FDPA) else []), *sorted({*near, *around})]


def _conversions(space: Space, model: Model) -> list[Any]:
    rho: Conversion = getattr(model, "rho")  # noqa: B009
    bits = [None, *range(1, formats.get(rho.format).mantissa_bits)]
    overflows = models.OVERFLOWS if isinstance(model, FDPA | SumTree) else ()
    return [
        *(dataclasses.replace(rho, overflow=x) for x in overflows),
        *(dataclasses.replace(rho, mode=mode) for mode in ROUNDINGS),
        *(dataclasses.replace(rho, mantissa_bits=n) for n in bits),
    ]


def _products(space: Space, model: Model) -> list[Any]:
    """Roundings of products, or of their sum: none, or to the format of a node."""
    return [None, *(Conversion(mode, name) for name in ("f32", "f16", "bf16") for mode in ROUNDINGS)]


def _trees(space: Space, model: Model) -> list[Any]:
    """The tree with one more product rounded before it is added, or one less."""
    if not isinstance(model, SumTree) or model.K > _TOGGLED:
        return []
    tokens = model.tree
    found = []
    for i in range(model.K):
        rounded = re.sub(rf"\({i}\)", f"{i}", tokens)
        if rounded == tokens:
            rounded = re.sub(rf"(?<![0-9]){i}(?![0-9])", f"({i})", tokens)
        found.append(rounded)
    return found


def _zero_rules(space: Space, model: Model) -> list[Any]:
    return list(models.TREE_ZERO_RULES if isinstance(model, SumTree) else models.ZERO_RULES)


def _choices(*values: Any) -> Callable[[Space, Model], list[Any]]:
    return lambda space, model: list(values)


def _lengths(space: Space, model: Model) -> list[Any]:
    return divisors(space.k)


_DOMAINS: dict[str, Callable[[Space, Model], list[Any]]] = {
    "L": _lengths,
    "G": _lengths,
    "F": _bits,
    "F2": _bits,
    "F_c": _bits,
    "F_groups": _bits,
    "F_sum": _bits,
    "P": _choices(2, 4),
    "cut": _choices(*ROUNDINGS),
    "cut_c": _choices(*ROUNDINGS),
    "cut2": _choices(*ROUNDINGS),
    "cut_groups": _choices(*ROUNDINGS),
    "cut_sum": _choices(*ROUNDINGS),
    "c": _choices("early", "late"),
    "order": _choices("chain", "pairwise"),
    "renormalise": _choices(False, True),
    "groups": _choices(1, 2, 4),
    "flush_in": _choices(*models.FLUSHES),
    "flush_c": _choices(*models.FLUSHES),
    "flush_out": _choices(*models.FLUSHES),
    "zero": _zero_rules,
    "nan": _choices("ones", "quiet"),
    "drop_c": _choices(None, *range(65)),
    "e_sum": lambda space, model: [None, space.d.min_exponent],
    "product_overflow": lambda space, model: [None, space.d.max_exponent + 1],
    "rho_products": _products,
    "rho_product": _products,
    "tree": _trees,
    "e_zero": _exponents,
    "rho": _conversions,
}
