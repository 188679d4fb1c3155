"""Step 4: the space of models, and which of them reproduce every answer so far.

A search starts where the readings point and changes one parameter at a time, over its whole range,
as long as fewer answers come out wrong. The space is widened in this order: the published families
with the group length that the tree shows; the general models of the tree's shape, `FDPA` where it
has fused sums and `SumTree`, also with inner sums of another format; the published families, and
then `FDPA`, with any group length.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from bitmma import formats, models
from bitmma.clfp.box import Box
from bitmma.clfp.equivalence import canonical, kind
from bitmma.clfp.evidence import Evidence
from bitmma.clfp.numbers import spread
from bitmma.clfp.shape import chains, clusters, divisors, halves, levels, lowered, nested
from bitmma.clfp.tree import Tree, binary
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
    as_fdpa,
)

__all__ = ["EFFORTS", "Space", "Stage"]

Stage = tuple[str, list[Model]]

#: What is changed in a search: what readings leave open; every parameter; two at a time; and all of
#: one stage of a fused sum at a time. From how many starts, the best, each is tried.
EFFORTS = {"open": None, "single": 6, "pairs": 4, "stages": 2}

#: In trees of so many products each is tried rounded and not.
_TOGGLED = 64

#: Two parameters are changed at once where less than one answer in so many is wrong.
_NEAR = 6

#: And over all their range where less than one in so many is.
_ALMOST = 100

#: The most bits that a cut of a general model keeps.
_F_MOST = models.F_RANGE[1] + 1

#: In sums of two stages: how many more bits, at the most, than of products are kept of the sum.
_SECOND = 12

#: Values of one parameter that are told apart at a time.
_RIVALS = 6


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
            general = [
                ("fused sums of the tree's shape", list(self._fused(self.forms))),
                ("sums of the tree's shape", list(self._sums(self.tree))),
            ]
            yield from general[::-1] if binary(self.tree) else general
            if binary(self.tree):
                yield "sums of the tree's shape, rounded by level", list(self._levels(self.tree))
        yield "published families of any group length", list(self._published(rest))
        if self.box.scale_format is None:
            yield "instructions made of two, c last", list(self._lowered(halves(self.k)))
        yield "fused sums of any group length", list(self._fused([("early", L) for L in rest]))

    def _published(self, lengths: list[int]) -> Iterator[Model]:
        """One start for every family; parameters are swept from there."""
        F, rho = self._F(), self._rho()
        e_zero = self.facts.get("e_zero", self.d.min_exponent - 7)
        scale = self.box.scale_format
        for L in lengths:
            if scale is not None:
                if scale.name == "ue8m0":
                    yield from _valid(STFDPA, L, F, rho, e_zero)
                for G in divisors(L):
                    yield from _valid(GSTFDPA, L, G, self._F_c(), rho, e_zero)
                continue
            yield from _valid(TFDPA, L, F, rho, e_zero)
            yield from _valid(EFDPA, L, rho)
            yield from _valid(TRFDPA, L, F, rho=rho)
            yield from _valid(GTRFDPA, L, F, rho=rho)
        if scale is not None:
            return
        if self.d.name in ("f32", "f64"):
            yield FMA(Conversion("RNE", self.d.name))
        for form, P in self.forms:
            if form == "grouped" and P in (2, 4) and self.d.name == "f32":
                yield FTZMulAdd(P)
        if self.tree is not None:
            yield from self._lowered(lowered(self.tree, self.k))

    def _lowered(
        self, made_of: Iterable[tuple[int, tuple[tuple[int, ...], ...]]]
    ) -> Iterator[Model]:
        e_zero = self.facts.get("e_zero", self.d.min_exponent - 7)
        for L, parts in made_of:
            for unit in _valid(TFDPA, L, self._F(), self._rho(), e_zero):
                yield from _valid(Lowered, self.k, unit, parts)

    def _fused(self, forms: list[tuple[str, int]]) -> Iterator[Model]:
        """FDPA with what the readings say."""
        facts = self.facts
        first: dict[str, Any] = {
            "F": self._kept("F"), "F_c": self._kept("F_c"),
            "cut": (facts.get("cut") or ["RZ"])[0], "cut_c": (facts.get("cut_c") or ["RZ"])[0],
            "e_zero": facts.get("e_zero"), "renormalise": facts.get("renormalise", False),
            "rho": self._rho(), "nan": self._nan(),
            "zero": "ieee" if facts.get("negative_zero") else "signed",
            "flush_in": "zero" if {"a", "b"} & set(facts.get("flush_in", ())) else "no",
            "flush_c": "zero" if "c" in facts.get("flush_in", ()) else "no",
            "flush_out": "zero" if facts.get("flush_out") else "no",
            "tiny": facts.get("tiny", "stored"),
        }  # fmt: skip
        for form, L in forms:
            if form == "grouped":
                continue
            # What was measured may be the cut of the joint sum.
            joint = {**first, "F": None, "F2": first["F"], "cut2": first["cut"], "c": "late"}
            if form == "pairwise":
                yield from _valid(FDPA, L, order="pairwise", **first)
                yield from _valid(FDPA, L, order="pairwise", **joint)
                # Or the rounding of the sums of pairs, which hides a cut of more bits.
                wider = {**first, "F": self.d.mantissa_bits + 4, "renormalise": False}
                yield from _valid(FDPA, L, order="pairwise", **wider)
                continue
            yield from _valid(FDPA, L, c="early", **first)
            if self.k == 1:  # no second product to read F by
                for F in range(8, 41):
                    yield from _valid(FDPA, L, c=form, **{**first, "F": F, "F_c": F})
            if first["rho"].mantissa_bits is not None:  # it may be the terms that were cut to this
                rho = dataclasses.replace(first["rho"], mantissa_bits=None)
                F = first["rho"].mantissa_bits
                terms = {"F": F, "F_c": first["F_c"] or F, "cut": rho.mode, "rho": rho}
                yield from _valid(FDPA, L, c="early", **{**first, **terms})
            yield from _valid(FDPA, L, c="late", **first)
            yield from _valid(FDPA, L, **joint)
            yield from _valid(FDPA, L, **{**joint, "F": first["F"], "cut": first["cut"]})
            if first["F"] and form == "early":
                F2 = min(first["F"] + 8, _F_MOST)
                whole = dataclasses.replace(first["rho"], mantissa_bits=None)  # F_sum cuts, or F
                stages = {
                    **first, "rho": whole, "c": "late", "F2": F2, "cut2": "RD", "F_sum": F2 - 1,
                    "cut_sum": "RD", "e_sum": self.d.min_exponent,
                    "e_zero": self.d.min_exponent,  # it shows where F2 cuts
                }  # fmt: skip
                yield from _valid(FDPA, L, **stages)
                if L >= 4:
                    F_groups, cut_groups = self._kept("F_groups"), facts.get("cut_groups")
                    of_groups = {"F_groups": F_groups, "cut_groups": (cut_groups or ["RZ"])[0]}
                    yield from _valid(FDPA, L, groups=2, **of_groups, **stages)

    def _sums(self, tree: Tree) -> Iterator[Model]:
        """The tree as it is: with fused multiply-adds, and with every product rounded."""
        for d in self._conversions():
            zero = "ieee" if self.facts.get("negative_zero") else "start"
            first: dict[str, Any] = {**d, "nan": self._nan(), "zero": zero}
            # A machine that flushes its sums may convert them without.
            flushed = {
                **first, "flush_out": "sign", "flush_last": "no" if "out" in d else None,
                "tiny": self.facts.get("tiny", "stored"),
            }  # fmt: skip
            for found in (first, flushed):
                yield from _valid(SumTree, nested(tree, self.k), **found)
                yield from _valid(SumTree, nested(tree, self.k), rho_product=d["rho"], **found)

    def _levels(self, tree: Tree) -> Iterator[Model]:
        """Sums of up to so many terms in one format, sums of them in another."""
        narrow = [Conversion("RNE", name) for name in ("f16", "bf16")]
        wider = self._wider().get(self.d.name)
        rho = self._rho()
        zero = "ieee" if self.facts.get("negative_zero") else "start"
        common: dict[str, Any] = {"nan": self._nan(), "zero": zero}
        for text, outer in levels(tree, self.k):
            pairs = [(wider, rho)] if wider else []
            if not outer:  # what is in brackets is inside
                pairs = [(rho, x) for x in narrow if x.format != rho.format]
            for rho_1, rho_2 in pairs:
                yield from _valid(SumTree, text, rho_1, rho2=rho_2, **common)
                plain = re.sub(r"\(([0-9]+)\)", r"\1", text)
                yield from _valid(SumTree, plain, rho_1, rho_1, rho2=rho_2, **common)

    @staticmethod
    def _wider() -> dict[str, Conversion]:
        """The format that sums are often made in, for each that they are then rounded to."""
        return {"f16": models.RNE_FP32, "bf16": models.RNE_FP32, "f32": models.RNE_FP64}

    def _conversions(self) -> Iterator[dict[str, Conversion]]:
        """Roundings of the nodes and, if it is another one, of the output."""
        yield {"rho": self._rho()}
        wider = self._wider().get(self.d.name)
        if wider:
            yield {"rho": wider, "out": self._rho()}

    def _nan(self) -> Any:
        ones = (1 << (self.d.width - 1)) - 1
        return "ones" if self.facts.get("nan") == {ones} else "quiet"

    def _kept(self, fact: str) -> int | None:
        """Bits kept, as the general models can have them."""
        kept = self.facts.get(fact)
        return None if kept is None else min(kept, _F_MOST)

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

    def variations(self, model: Model) -> Iterator[list[Model]]:
        """For every parameter, and some that go together, the model with each other value."""
        for names in [*((f.name,) for f in dataclasses.fields(model)), *_TOGETHER]:
            yield self.varied(model, names)
        yield self.roundings(model)

    def roundings(self, model: Model) -> list[Model]:
        """The model with every mode of its conversion to the output, to every number of bits."""
        rho: Conversion | None = getattr(model, "rho", None)
        if rho is None:
            return []
        bits = (None, *range(1, formats.get(rho.format).mantissa_bits))
        changes = [
            {"rho": dataclasses.replace(rho, mode=mode, mantissa_bits=n)}
            for mode, n in itertools.product(ROUNDINGS, bits)
        ]
        return self._replaced(model, changes)

    def varied(self, model: Model, names: tuple[str, ...]) -> list[Model]:
        """The model with all other values of these parameters, the same for each of them."""
        if not all(hasattr(model, name) for name in names):
            return []
        values = self._domain(model, names[0])
        return self._replaced(model, [dict.fromkeys(names, value) for value in values])

    def crossed(
        self, model: Model, names: tuple[str, ...], *, everywhere: bool = True
    ) -> list[Model]:
        """The model with all combinations of some parameters' values, or of bits of near ones."""
        sets = [together.split() for together in names]
        if not all(hasattr(model, name) for together in sets for name in together):
            return []
        first = [together[0] for together in sets]
        few = any(len(self._domain(model, name)) <= len(ROUNDINGS) for name in first)
        domain = self._domain if few or everywhere else self._near
        domains = [domain(model, name) for name in first]
        if first[0] == "tree":
            domains[0] = _trees(self, model, few=False)
        if "e_zero" in first:  # which F it is counts little: what shows is where the cut is
            domains[0] = domains[0][4::6]
        return self._combined(model, sets, domains)

    def _combined(
        self, model: Model, sets: Sequence[Sequence[str]], domains: Sequence[Sequence[Any]]
    ) -> list[Model]:
        """The model with all combinations of values; the parameters of one set have the same."""
        changes = [
            {name: x for names, x in zip(sets, values, strict=True) for name in names}
            for values in itertools.product(*domains)
        ]
        return self._replaced(model, changes)

    def _close_by(self, model: Model, names: Sequence[str]) -> list[Model]:
        """The model with all combinations of close values of some parameters."""
        domains = [self._close(model, name) for name in names]
        return self._combined(model, [(name,) for name in names], domains)

    def stage_by_stage(self, model: Model) -> Iterator[list[Model]]:
        """All combinations of what belongs to one stage of a fused sum, and to two that meet."""
        for names in _STAGES:
            if "groups" not in names[-1] or getattr(model, "groups", 1) > 1:
                yield self._close_by(model, names)

    def second_stages(self, model: Model) -> list[Model]:
        """Of a sum of two stages: other second stages, the sum cut one bit above the joint cut.

        One value alone of these says little: bits that one cut leaves another cuts. A sum that was
        not cut is, below the smallest normal number as there.
        """
        if not isinstance(model, FDPA) or model.F is None or model.F2 is None:
            return []
        e_sum = self.d.min_exponent if model.F_sum is None else model.e_sum
        read = self.facts.get("rho") or list(ROUNDINGS)
        changes = [
            {
                "F2": F_sum + 1, "cut2": cut2, "F_sum": F_sum, "cut_sum": cut_sum,
                "e_sum": e_sum, "rho": Conversion(mode, self.d.name), "e_zero": e_zero,
            }
            for e_zero in dict.fromkeys([model.e_zero, self.d.min_exponent])
            for F_sum in range(model.F, min(model.F + _SECOND, _F_MOST))
            for mode in (read if F_sum > self.d.mantissa_bits else read[:1])
            for cut2, cut_sum in itertools.product(ROUNDINGS, repeat=2)
        ]  # fmt: skip
        return self._replaced(model, changes)

    def _close(self, model: Model, field: str) -> list[Any]:
        """All values of a parameter; of bits those next to what the model has; of rho the modes."""
        here, values = getattr(model, field), self._domain(model, field)
        if field == "rho":
            return list(dict.fromkeys([here, *(x for x in values if x.mode != here.mode)]))
        if field == "e_zero":
            near = {None, here, self.d.min_exponent, *(range(here - 2, here + 3) if here else ())}
            return [x for x in values if x in near]
        if field == "drop_c":
            F_c = getattr(model, "F_c", None) or 0
            return [x for x in values if x is None or x - F_c in (-1, 0, 1, 2)]
        if _DOMAINS.get(field) is not _bits:
            return values
        known = [here, *(getattr(model, name, None) for name in ("F", "F2", "F_sum"))]
        near = {None, *(x + i for x in known if x is not None for i in (-1, 0, 1))}
        return [x for x in values if x in near]

    def _near(self, model: Model, field: str) -> list[Any]:
        """Values of a parameter; of bits those close to what the model has and what was read."""
        values = self._domain(model, field)
        if _DOMAINS.get(field) is not _bits:
            return values
        read = [self.facts.get(x) for x in ("F", "F_c", "mantissa_bits")]
        known = [getattr(model, x, None) for x in ("F", "F_c", "F2", "F_sum", "F_groups")]
        near = {x + i for x in (*read, *known) if x is not None for i in range(-2, 4)}
        return [x for x in values if x is None or x in near]

    def _replaced(self, model: Model, changes: list[dict[str, Any]]) -> list[Model]:
        found = []
        for change in changes:
            try:
                found.append(dataclasses.replace(model, **change))
            except ValueError:  # values that do not go together
                continue
        return [x for x in dict.fromkeys(found) if x != model]

    def _domain(self, model: Model, field: str) -> list[Any]:
        if field == "unit":
            return [x for found in self.variations(getattr(model, field)) for x in found]
        build = _DOMAINS.get(field)
        return [] if build is None else build(self, model)

    def canonical(self, model: Model) -> Model:
        return canonical(model, self.box)[0]

    def descend(self, start: Model, evidence: Evidence, effort: int = len(EFFORTS) - 1) -> Model:
        """Change a parameter while fewer answers come out wrong; ``effort``: see `EFFORTS`."""
        best = start
        fields = sorted((f.name for f in dataclasses.fields(best)), key=_late)
        fields = [name for name in fields if effort or name in _FIRST]
        names = [*((name,) for name in fields), *_TOGETHER]
        near = evidence.wrong(best) * _NEAR < evidence.count
        if near or getattr(best, "F_sum", None) is not None:
            best = _better(best, self.second_stages(best), evidence)
        while wrong := evidence.wrong(best):
            before = best
            for together in names:
                best = _better(best, self.varied(best, together), evidence)
            if best == before and effort:
                best = _better(best, self.roundings(best), evidence)
            general = effort >= 2 and isinstance(best, FDPA | SumTree)
            if best == before and general and (wrong * _NEAR < evidence.count or self.k == 1):
                almost = wrong * _ALMOST < evidence.count
                for pair in _PAIRS:
                    best = _better(best, self.crossed(best, pair, everywhere=almost), evidence)
                if best == before and effort == 3 and isinstance(best, FDPA):
                    for others in self.stage_by_stage(best):
                        best = _better(best, others, evidence)
            if best == before:  # as it is: what cannot matter with one F may with the next
                return best
        return self.canonical(best)

    def beside(self, model: Model) -> list[Model]:
        """The model with one parameter changed, a few values of each, of bits the next ones."""
        found: list[Model] = []
        for field in dataclasses.fields(model):
            if field.name in _DOMAINS and field.name != "tree":
                found += spread(self._close_by(model, (field.name,)), _RIVALS)
        return found

    def _other_cuts(self, model: Model) -> Iterator[list[Model]]:
        """With cuts where it has none, of all roundings: RZ may show where others do not."""
        for F, cut in _PAIRS[:3]:
            if isinstance(model, FDPA) and getattr(model, F) is None:
                for mode in ("RNE", "RD", "RU", "RA"):
                    changes = [{F: bits, cut: mode} for bits in range(_F_MOST, 0, -4)]
                    yield self._replaced(model, changes)

    def _neighbours(self, model: Model) -> Iterator[list[Model]]:
        """With two or more parameters changed that can nearly make up for each other."""
        pairs = itertools.combinations(_SEEN, 2) if isinstance(model, FDPA) else ()
        for names in [*_MADE_UP_FOR, *pairs]:
            if all(hasattr(model, name) for name in names):
                yield self._close_by(model, names)
        yield self.second_stages(model)

    def rivals(self, model: Model, evidence: Evidence) -> list[Model]:
        """Neighbours that reproduce every answer: of each parameter some of its values."""
        others_of = (self.variations, self._other_cuts, self._neighbours)
        every = itertools.chain.from_iterable(build(model) for build in others_of)
        return self._some(model, every, evidence)

    def outsiders(self, model: Model, evidence: Evidence) -> list[Model]:
        """The same beside it that are other values of the general model: of published families, and
        of exact sums that are written as trees.
        """
        if self.box.scale_format is not None or isinstance(model, FDPA):
            return []
        general = self._exact_sum(model) if isinstance(model, SumTree) else as_fdpa(model)
        if general is None:
            return []
        return self._some(
            general, [*self.variations(general), *self._other_cuts(general)], evidence
        )

    def _exact_sum(self, model: SumTree) -> FDPA | None:
        """The fused sum in which nothing is cut that this tree is, if it is one."""
        same = kind(model, self.box)
        words = {
            x: getattr(model, x)
            for x in ("rho", "zero", "nan", "tiny", "flush_in", "flush_c", "flush_out")
        }
        for L in divisors(self.k):
            for found in _valid(FDPA, L, None, F_c=None, e_zero=None, **words):
                if isinstance(found, FDPA) and kind(found, self.box) == same:
                    return found
        return None

    def _some(self, model: Model, every: Iterable[list[Model]], evidence: Evidence) -> list[Model]:
        """Of each of these lists some that reproduce every answer."""
        found: list[Model] = []
        for others in every:
            fitting = [self.canonical(x) for x in others if evidence.fits(x)]
            fitting = [x for x in dict.fromkeys(fitting) if x != model]
            found += spread(fitting, _RIVALS)
        return found


def _late(field: str) -> int:
    """In which order parameters are changed: first those that no reading tells."""
    return _FIRST.index(field) if field in _FIRST else len(_FIRST)


def _valid(build: Callable[..., Model], *args: Any, **parameters: Any) -> list[Model]:
    """The model, or none: what was read of a box may be no parameter of this family."""
    try:
        return [build(*args, **parameters)]
    except ValueError:
        return []


def _better(best: Model, others: list[Model], evidence: Evidence) -> Model:
    """The first of those with the fewest wrong answers."""
    wrong = evidence.wrong(best)
    for other in others:
        if not wrong:
            return best
        count = evidence.wrong(other, wrong - 1)
        if count < wrong:
            best, wrong = other, count
    return best


# --- what a parameter can be ----------------------------------------------------------------------


#: Parameters that often have one value together.
_TOGETHER: tuple[tuple[str, ...], ...] = (("F", "F_c"), ("cut", "cut_c"), ("flush_in", "flush_c"))

#: Parameters that readings leave open most often, and that cost little to try.
_FIRST = ("rho", "e_zero", "zero", "flush_out", "flush_c", "flush_in", "cut", "cut_c")

#: Parameters that can hide each other: how many bits are kept, and how the rest is rounded. Two in
#: one word's place have the same value.
_PAIRS = (
    ("F", "cut"), ("F_c", "cut_c"), ("F2", "cut2"), ("F_sum", "cut_sum"),
    ("F_groups", "cut_groups"), ("F_c", "F2"), ("F_c", "flush_c"), ("flush_c", "flush_out"),
    ("flush_out", "flush_last"), ("flush_out", "tiny"), ("tree", "zero"), ("tree", "flush_out"),
    ("tree", "flush_last"),
    ("zero", "flush_out"), ("cut", "cut_c"), ("cut", "cut2"), ("cut", "rho"),
    ("F", "renormalise"), ("F_c", "renormalise"), ("F", "e_zero"), ("F2", "e_zero"),
    ("cut cut_c", "flush_c"), ("cut cut_c", "zero"), ("cut cut_c", "rho"),
)  # fmt: skip

#: What is tried in all combinations when little is wrong: stages of a fused sum.
_STAGES = (
    ("cut_sum", "e_sum", "e_zero", "zero"), ("F_sum", "cut_sum", "rho"), ("F2", "cut2", "rho"),
    ("F2", "cut2", "F_sum", "cut_sum"),
    ("F2", "cut2", "e_zero", "cut_sum"), ("F", "cut", "F_groups", "cut_groups"),
    ("F", "cut", "F2", "cut2"), ("F_c", "cut_c", "drop_c"),
    ("flush_in", "flush_c", "flush_out", "zero"),
)  # fmt: skip

#: A bit more rounded one way is nearly a bit less rounded another, and with a zero's exponent as
#: much lower the cut beside a zero is where it was; flushed c and results are alike, too.
_MADE_UP_FOR = (
    ("flush_in", "flush_c", "flush_out", "zero"), ("F2", "cut2", "e_zero"),
    ("cut2", "e_zero", "cut_sum"), ("F_sum", "cut_sum", "rho"), ("F2", "cut2", "F_sum", "cut_sum"),
)  # fmt: skip

#: Stages of a fused sum: a change in one can hide a change in any other on all that was asked, so
#: each two of these are changed together before a model counts as told from those beside it.
_SEEN = (
    "F", "cut", "F_groups", "cut_groups", "F2", "cut2", "F_c", "cut_c", "drop_c", "e_zero",
    "F_sum", "cut_sum", "e_sum", "renormalise", "rho", "zero",
)  # fmt: skip


def _bits(space: Space, model: Model) -> list[Any]:
    if isinstance(model, FDPA):
        return [None, *range(1, _F_MOST + 1)]
    return list(range(models.F_RANGE[0], models.F_RANGE[1] + 1))


def _exponents(space: Space, model: Model) -> list[Any]:
    """From where a zero counts for nothing to where it would swallow ordinary numbers."""
    low, guess = space.d.min_exponent, space.facts.get("e_zero")
    near = range(low - space.d.mantissa_bits - 24, low + 41)
    around = [] if guess is None else range(guess - 4, guess + 5)
    return [*([None] if isinstance(model, FDPA) else []), *sorted({*near, *around})]


def _conversions(field: str) -> Callable[[Space, Model], list[Any]]:
    """Of one rounding of the model: every mode, fewer bits, other limits."""

    def values(space: Space, model: Model) -> list[Any]:
        rho: Conversion | None = getattr(model, field)
        if rho is None:
            return []
        bits = [None, *range(1, formats.get(rho.format).mantissa_bits)]
        overflows = models.OVERFLOWS if isinstance(model, FDPA | SumTree) else ()
        return [
            *(dataclasses.replace(rho, overflow=x) for x in overflows),
            *(dataclasses.replace(rho, mode=mode) for mode in ROUNDINGS),
            *(dataclasses.replace(rho, mantissa_bits=n) for n in bits),
        ]

    return values


def _products(space: Space, model: Model) -> list[Any]:
    """Roundings of products, or of their sum: none, or to the format of a node."""
    return [
        None,
        *(Conversion(mode, name) for name in ("f32", "f16", "bf16") for mode in ROUNDINGS),
    ]


def _trees(space: Space, model: Model, few: bool = True) -> list[Any]:
    """The tree with one more, or one less, product or sum that a sum starts with: a node of one.

    ``few``: of trees of few products, any product or sum.
    """
    if not isinstance(model, SumTree):
        return []
    tree, found = model.tree, []
    spans = _spans(tree)
    few = few and model.K <= _TOGGLED
    for first, last in sorted(spans):
        before, node, after = tree[:first], tree[first : last + 1], tree[last + 1 :]
        # Of many nodes only those are tried that start a sum of sums.
        starts = set(before) <= set("([") and after.startswith((" (", " ["))
        if (first + 1, last - 1) in spans:
            found.append(before + node[1:-1] + after)
        elif few or starts:
            found.append(f"{before}({node}){after}")
    for i in range(model.K if few else 0):
        rounded = re.sub(rf"\({i}\)", f"{i}", tree)
        if rounded == tree:
            rounded = re.sub(rf"(?<![0-9]){i}(?![0-9])", f"({i})", tree)
        found.append(rounded)
    return found


def _spans(tree: str) -> set[tuple[int, int]]:
    """Where the nodes of a tree's text begin and end."""
    found, open_nodes = set(), []
    for i, letter in enumerate(tree):
        if letter in "([":
            open_nodes.append(i)
        elif letter in ")]":
            found.add((open_nodes.pop(), i))
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
    "drop_c": _choices(None, *range(65)),
    "e_sum": lambda space, model: [None, space.d.min_exponent],
    "product_overflow": lambda space, model: [None, space.d.max_exponent + 1],
    "rho_products": _products,
    "rho_product": _products,
    "tree": _trees,
    "e_zero": _exponents,
    "rho": _conversions("rho"),
    "rho2": _conversions("rho2"),
    "out": _conversions("out"),
    "flush_last": _choices(None, *models.FLUSHES),
    "tiny": _choices(*models.TINY_RULES),
}
