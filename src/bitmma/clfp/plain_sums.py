"""`SumTree`s that are one function: reduced to a plain form, with the reasons.

Everything here follows from two facts. What a number can be is bounded: it is 0 or a multiple of
2**low, at least 2**least and at most ``most`` in magnitude, with so many significant bits; these
bounds are known of products and of c, and follow for every node from its children. A rounding of
numbers that the format holds all changes none of them. And the sign of a zero is seen nowhere but
in a result that is zero: a sum that is not zero does not depend on the signs of zeros in it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

from bitmma import formats
from bitmma.clfp.box import Box
from bitmma.formats import Format
from bitmma.models import FLUSHES, TINY_RULES, TREE_ZERO_RULES, Conversion, SumTree

__all__ = ["plain_sum", "reasons"]


def plain_sum(model: SumTree, box: Box) -> SumTree:
    """The plain form of all SumTrees equal to this one on the box's formats."""
    return _plain(model, *box.formats[:3])


@functools.lru_cache(2048)
def _plain(model: SumTree, *operands: Format) -> SumTree:
    known = _Sum(model, *operands)
    for _ in range(8 + 2 * len(model.nodes)):  # each turn but the last drops something
        before = known.model
        for rule in _RULES:
            model = rule(known.model, known)
            if model != known.model:
                known = _Sum(model, *operands)
        if known.model == before:
            break
    return known.model


# --- bounds ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Values:
    """What a number can be, apart from 0, Inf and NaN.

    Attributes:
        low: it is a multiple of 2**low. least: its magnitude is 2**least or more.
        bits: it has so many significant bits or fewer.
        most: the largest magnitude, in units of 2**base (see `_Sum`).
        minus: a zero may be -0.
    """

    low: int
    least: int
    bits: int
    most: int
    minus: bool


class _Limits(NamedTuple):
    """What a rounding keeps.

    Attributes:
        kept: mantissa bits. step: the exponent of its smallest number. normal: of its smallest
            normal one. top: of its largest.
    """

    kept: int
    step: int
    normal: int
    top: int


@functools.cache
def _limits(rho: Conversion) -> _Limits:
    fmt = formats.get(rho.format)
    kept = fmt.mantissa_bits if rho.mantissa_bits is None else rho.mantissa_bits
    return _Limits(kept, fmt.min_exponent - kept, fmt.min_exponent, fmt.max_exponent)


class _Sum:
    """A model with the bounds of all its numbers.

    Attributes:
        children, roundings: of every node, as the model has them.
        operands: the formats of a, b and c.
        leaves: the products as they enter nodes, and c. products: before ``rho_product``.
        sums, values: of every node, before and after its rounding. last: of the result.
    """

    def __init__(self, model: SumTree, fa: Format, fb: Format, fc: Format) -> None:
        self.model, self.operands = model, (fa, fb, fc)
        self.children, self.roundings = model.nodes, model.roundings
        steps = [
            _limits(x).step for x in (model.rho, model.rho2, model.rho_product, model.out) if x
        ]
        last = _last(fa) + _last(fb)
        self.base = min(last, _last(fc), *steps)
        (m_a, q_a), (m_b, q_b), (m_c, q_c) = map(_largest, (fa, fb, fc))
        self.products = _Values(
            last, last, fa.mantissa_bits + fb.mantissa_bits + 2, m_a * m_b << q_a + q_b - self.base,
            True,
        )  # fmt: skip
        c = _Values(_last(fc), _last(fc), fc.mantissa_bits + 1, m_c << q_c - self.base, True)
        if model.flush_c != "no":
            c = dataclasses.replace(c, least=fc.min_exponent, minus=model.flush_c == "sign")
        product, flush = self.products, model.flush_out
        if model.rho_product is not None:
            product = self.rounded(product, model.rho_product, flush, product.minus)
        self.leaves = [*[product] * model.K, c]
        self.sums: list[_Values] = []
        self.values: list[_Values] = []
        for node, rho in zip(self.children, self.roundings, strict=True):
            terms = [self.of(i) for i in node]
            total = self._total(terms)
            unary_start = model.zero == "start" and len(node) == 1
            minus = not unary_start and (
                all(x.minus for x in terms) or (rho.mode == "RD" and len(node) > 1)
            )
            self.sums.append(total)
            self.values.append(self.rounded(total, rho, flush, minus))
        self.last = self.values[-1]
        if model.out is not None:
            self.last = self.rounded(self.last, model.out, self.flush_last, self.last.minus)

    def of(self, i: int) -> _Values:
        """Of a child: a product, c, or a node's value."""
        K = self.model.K
        return self.leaves[i] if i <= K else self.values[i - K - 1]

    @functools.cached_property
    def seen(self) -> list[bool]:
        """Of every child (see `of`): whether the sign of its zero can be seen in the result."""
        model, K = self.model, self.model.K
        found = [False] * (K + 1 + len(self.children))
        asked = model.zero in ("ieee", "start")
        found[-1] = model.out is None or (asked and self.flush_last != "zero")
        for j in reversed(range(len(self.children))):
            node = self.children[j]
            if not (found[K + 1 + j] and asked and model.flush_out != "zero"):
                continue
            plus = [i for i in node if not self.of(i).minus]  # terms beside which no sign is seen
            down = self.roundings[j].mode == "RD" and len(node) > 1
            cleared = model.zero == "start" and len(node) == 1
            for i in node:
                found[i] = down or not (cleared or set(plus) - {i})
        return found

    @property
    def flush_last(self) -> str:
        """What the result's own rounding does with subnormals."""
        return self.model.flush_last or self.model.flush_out

    def largest(self, rho: Conversion) -> tuple[int, int]:
        """Its largest number and what lies between that and the one before, in units."""
        kept, _, _, top = _limits(rho)
        gap = 1 << (top - kept - self.base)
        return (1 << (top + 1 - self.base)) - gap, gap

    def _total(self, terms: list[_Values]) -> _Values:
        """Bounds of an exact sum.

        Of two numbers that are not 0, let y be a multiple of 2^low, and x have so many bits: if x
        is below 2^(low - 1), the sum is at least that; else x's last bit is at 2^(low - bits) or
        above, and the sum is 0 or at least that.
        """
        if len(terms) == 1:
            return terms[0]
        x = terms[0]
        for y in terms[1:]:
            low, most = min(x.low, y.low), x.most + y.most
            least = max(low, min(x.least, y.least, max(x.low - y.bits, y.low - x.bits)))
            x = _Values(low, least, most.bit_length() - (low - self.base), most, False)
        return x

    def held(self, x: _Values, rho: Conversion) -> bool:
        """Whether all of these are numbers of rho, and stay what they are."""
        kept, step, *_ = _limits(rho)
        return x.bits <= kept + 1 and x.low >= step and x.most <= self.largest(rho)[0]

    def kept(self, x: _Values, rho: Conversion, flush: str) -> bool:
        """The same, and none of them is flushed."""
        return self.held(x, rho) and (flush == "no" or not self.subnormal(x, rho))

    def subnormal(self, x: _Values, rho: Conversion) -> bool:
        """Whether one of these may be rounded to a subnormal number."""
        return max(x.least, _limits(rho).step) < _limits(rho).normal

    def overflows(self, x: _Values, rho: Conversion) -> bool:
        """Whether one of these may be rounded to more than the largest number."""
        largest, gap = self.largest(rho)
        more = {"RNE": gap // 2, "RNA": gap // 2, "RZ": gap}.get(rho.mode, 1)
        return x.most >= largest + more

    def underflows(self, x: _Values, rho: Conversion) -> bool:
        """Whether one of these, not zero, may be rounded to zero."""
        return x.least < _limits(rho).step

    def rounded(self, x: _Values, rho: Conversion, flush: str, minus: bool) -> _Values:
        """What comes of a rounding; ``minus``: a zero may be of nothing but -0."""
        kept, step, normal, top = _limits(rho)
        shift = max(x.most.bit_length() - kept - 1, step - self.base)
        most = min(-(-x.most >> shift) << shift, self.largest(rho)[0])
        least = max(x.least, step)
        rule = self.model.zero
        minus = minus and rule in ("ieee", "start")
        minus = minus or (self.underflows(x, rho) and rule != "plus")
        if flush != "no":
            minus = flush == "sign" and (minus or self.subnormal(x, rho))
            least = max(least, normal)
        low = max(x.low, step)
        bits = min(kept + 1, x.bits if x.low >= step else kept + 1)
        if rho.overflow != "inf" and self.overflows(x, rho):  # the largest number is one of them
            low, bits = min(low, top - kept), kept + 1
        return _Values(low, least, bits, most, minus)

    @property
    def signs_are_lost(self) -> bool:
        """Whether no sum asks for the sign of a zero in it."""
        return self.model.zero in ("plus", "signed") or self.model.flush_out == "zero"


def _largest(fmt: Format) -> tuple[int, int]:
    """Significand and exponent of the last place of a format's largest number."""
    found = fmt.decode(fmt.max_code)
    return found.significand, found.exponent - fmt.mantissa_bits


def _last(fmt: Format) -> int:
    """The exponent of the smallest number's last place."""
    return fmt.min_exponent - fmt.mantissa_bits


# --- rules ----------------------------------------------------------------------------------------


def _in_order(model: SumTree, s: _Sum) -> SumTree:
    """Terms in the order of their first products, c last: a sum does not depend on it."""
    return _rebuilt(model, {}, {})


def _exact_products(model: SumTree, s: _Sum) -> SumTree:
    """Products that the rounding holds all: IEEE's rule keeps signs of zero, others need none."""
    rho = model.rho_product
    if rho is None:
        return model
    if s.kept(s.products, rho, model.flush_out):
        return dataclasses.replace(model, rho_product=None)
    limited = rho.overflow == "inf" or not s.overflows(s.products, rho)
    if model.flush_out != "no" and s.products.bits <= _limits(rho).kept and limited:
        # What the format does not hold lies below half its smallest normal number, and is flushed.
        return dataclasses.replace(model, rho_product=dataclasses.replace(rho, mode="RNE"))
    return model


def _second_rounding(model: SumTree, s: _Sum) -> SumTree:
    """Nodes of one child that change nothing; brackets that are parentheses, or only ``out``."""
    if model.rho2 == model.rho:
        tree = model.tree.replace("[", "(").replace("]", ")")
        return dataclasses.replace(model, tree=tree, rho2=None)
    K, last = model.K, len(s.children) - 1
    if model.out is None and model.tree.count("[") == 1 and model.tree[:2] == "[(":
        alone = len(s.children[last]) == 1
        if alone and (model.zero != "start" or not s.values[last - 1].minus):
            return dataclasses.replace(model, tree=model.tree[1:-1], out=model.rho2, rho2=None)
    instead: dict[int, int] = {}
    unseen: dict[int, int] = {}
    for j, node in enumerate(s.children):
        x = s.of(node[0])
        if len(node) > 1 or not s.kept(x, s.roundings[j], model.flush_out):
            continue
        if j == last and model.out is None:  # the result shows the sign of a zero
            same = model.zero == "ieee" or model.flush_out == "zero" or not x.minus
        else:
            same = s.signs_are_lost or model.zero == "ieee" or not x.minus
        if j == last:  # the root stays a node, and of its format
            same &= node[0] > K and node[0] not in instead
            below = s.roundings[last - 1]
            same &= model.out is not None or s.roundings[j].format == below.format
        if same:
            instead[K + 1 + j] = node[0]
        elif j != last and not s.seen[K + 1 + j]:
            unseen = {K + 1 + j: node[0]}  # one at a time: others may be seen without it
    return _rebuilt(model, instead or unseen, {}) if instead or unseen else model


def _starts(model: SumTree, s: _Sum) -> SumTree:
    """Of the products of one sum, the one that starts at +0 may be any: the first."""
    if model.zero != "start" or s.signs_are_lost:
        return model
    K = model.K

    def held(i: int) -> bool:
        return i < K and s.kept(s.of(i), model.rho, model.flush_out)

    for node, rho in zip(s.children, s.roundings, strict=True):
        started = {
            i: s.children[i - K - 1][0] for i in node
            if i > K and len(s.children[i - K - 1]) == 1 and s.roundings[i - K - 1] == model.rho
            and held(s.children[i - K - 1][0])
        }  # fmt: skip
        others = [i for i in node if i not in started]
        if (
            len(started) == 1 < len(node)
            and rho.mode != "RD"
            and all(s.of(i).minus for i in others)
        ):
            (product,) = started.values()
            first = min([product, *filter(held, others)])
            if first != product:
                return _rebuilt(model, started, {}, {first})
    return model


def _rounded_products(model: SumTree, s: _Sum) -> SumTree:
    """Every product rounded by itself, alike: said once, by ``rho_product``."""
    if model.rho_product is not None or (model.zero == "start" and not s.signs_are_lost):
        return model
    K, last = model.K, len(s.children) - 1
    alone = {
        K + 1 + j: node[0] for j, node in enumerate(s.children)
        if len(node) == 1 and node[0] < K and j != last
    }  # fmt: skip
    rhos = {s.roundings[j - K - 1] for j in alone}
    if len(alone) < K or len(rhos) > 1:
        return model
    return _rebuilt(model, alone, {}, rho_product=rhos.pop())


def _exact_sums(model: SumTree, s: _Sum) -> SumTree:
    """A sum that loses nothing is as well made together with what it is added to."""
    K, joined = model.K, {}
    down = not s.signs_are_lost and any(x.mode == "RD" for x in s.roundings)
    parent = {i: node for node in s.children for i in node}
    for j, node in enumerate(s.children[:-1]):
        start = model.zero == "start" and len(parent[K + 1 + j]) == 1 and s.values[j].minus
        exact = s.kept(s.sums[j], s.roundings[j], model.flush_out)
        if len(node) > 1 and exact and not down and (s.signs_are_lost or not start):
            joined[K + 1 + j] = node
    return _rebuilt(model, {}, joined) if joined else model


def _innocent_roundings(model: SumTree, s: _Sum) -> SumTree:
    """A sum of two in twice the bits, then rounded to those that both terms have: at once.

    With q bits and an inner precision of 2q + 2 or more: either the inner sum is exact, or the
    smaller term is below a quarter of the other's last place, and both ways give the larger one
    (Figueroa, "When is double rounding innocuous?", 1995).
    """
    K, joined = model.K, {}
    for j, node in enumerate(s.children):
        i = node[0] - K - 1
        if len(node) > 1 or i < 0 or len(s.children[i]) != 2:
            continue
        outer, inner = s.roundings[j], s.roundings[i]
        q, p = _limits(outer).kept + 1, _limits(inner).kept + 1
        terms = [s.of(x) for x in s.children[i]]
        if (
            {outer.mode, inner.mode} == {"RNE"} and p >= 2 * q + 2
            and all(x.bits <= q and x.low >= _limits(outer).step for x in terms)
            and not s.overflows(s.sums[i], inner) and not s.underflows(s.sums[i], inner)
            and (model.flush_out == "no" or not s.subnormal(s.sums[i], inner))
            and (s.signs_are_lost or model.zero == "ieee" or not s.values[i].minus)
        ):  # fmt: skip
            joined[node[0]] = s.children[i]
    return _rebuilt(model, {}, joined) if joined else model


def _one_rounding(model: SumTree, s: _Sum) -> SumTree:
    """One exact sum, and then the output's rounding: that alone. Any mode rounds exact sums."""
    if not all(s.kept(x, rho, model.flush_out) for x, rho in zip(s.sums, s.roundings, strict=True)):
        return model
    down = {x.mode for x in (*s.roundings, model.out) if x} & {"RD"}
    if down and model.zero not in ("plus", "signed"):
        return model
    if model.out is not None and len(s.children) == 1 and model.rho_product is None:
        changes: dict[str, Any] = {"flush_out": s.flush_last, "flush_last": None}
        if model.flush_out == "zero" and model.zero != "plus":
            changes["zero"] = "signed"
        return dataclasses.replace(
            model, rho=model.out, out=None, rho2=None,
            tree=model.tree.replace("[", "(").replace("]", ")"), **changes,
        )  # fmt: skip
    if model.out is None and model.rho2 is None and len(s.children) == 1:
        return dataclasses.replace(model, rho=dataclasses.replace(model.rho, mode="RNE"))
    return model


def _unreached_limits(model: SumTree, s: _Sum) -> SumTree:
    """Overflows and subnormal results that do not occur; c's flushing where there is no c."""
    used = {"rho": [], "rho2": []} | {  # type: ignore[var-annotated]
        name: [x] for name, x in (("rho_product", s.products), ("out", s.values[-1]))
    }
    for x, rho in zip(s.sums, s.roundings, strict=True):
        used["rho" if rho == model.rho else "rho2"].append(x)
    changes: dict[str, Any] = {}
    subnormal = False
    for name, sums in used.items():
        rho = getattr(model, name)
        if rho is None:
            continue
        if rho.overflow != "inf" and not any(s.overflows(x, rho) for x in sums):
            changes[name] = dataclasses.replace(rho, overflow="inf")
        if name != "out" or model.flush_last is None:
            subnormal |= any(s.subnormal(x, rho) for x in sums)
    if model.out is not None:
        both = (model.flush_out, model.flush_last)
        alike = "zero" not in both or model.zero == "plus"
        if both[0] == both[1] or (alike and not s.subnormal(s.values[-1], model.out)):
            changes["flush_last"] = None
    if model.flush_out != "no" and not subnormal:
        # Nothing is flushed, but where -0 becomes +0, no sum is -0: then only the last one tells.
        changes["flush_out"] = "no"
        if model.flush_last is None and model.flush_out == "zero":
            changes["zero"] = "plus"
        elif model.flush_out == "zero" and model.zero != "plus":
            changes["zero"] = "signed"
        if model.flush_last is not None:
            changes["flush_last"] = model.flush_last if model.flush_last != "no" else None
    if "c" not in model.tree:
        changes["flush_c"] = "no"
    return dataclasses.replace(model, **changes)


def _tiny(model: SumTree, s: _Sum) -> SumTree:
    """The plainest rule for tiny results that flushes the same ones.

    They differ just below the smallest normal number, where such a sum is rounded to that. RZ does
    not. A sum of exponent ``normal - 1`` is a multiple of 2^(normal - bits), and of 2^low: if that
    is the grid of the outputs there, it is not rounded; if it has one bit more, it is not rounded
    by exponents without end, and "after" is "before".
    """
    flushed: list[tuple[_Values, Conversion]] = []
    if model.flush_out != "no":
        flushed += zip(s.sums, s.roundings, strict=True)
        flushed += [(s.products, model.rho_product)] if model.rho_product else []
    if model.out is not None and s.flush_last != "no":
        flushed.append((s.values[-1], model.out))
    finer = [0]
    for x, rho in flushed:
        _, step, normal, _ = _limits(rho)
        if rho.mode != "RZ" and x.least < normal:
            finer.append(step - max(x.low, normal - x.bits))
    plain = "stored" if max(finer) <= 0 else "after" if max(finer) == 1 else model.tiny
    allowed = TINY_RULES[: TINY_RULES.index(model.tiny) + 1]
    return dataclasses.replace(model, tiny=plain) if plain in allowed else model


def _flushed_c(model: SumTree, s: _Sum) -> SumTree:
    """Results are flushed as c is, if nothing but c gives subnormal ones.

    c is added to products whose exact sum is a number of the format. Let no result be subnormal if
    c is not. A subnormal c then is flushed where it is alone; beside a sum of at least 2^low it is
    lost in rounding to nearest, being below a quarter of its last place, 2^(low - kept). The sign
    of that zero is not seen: zeros are +0, and if they keep their sign they are in another sum.
    """
    last = len(s.children) - 1
    at = next((j for j, node in enumerate(s.children) if model.K in node), last)
    rho, unseen = s.roundings[at], at < last or model.flush_out == "zero"
    plain = model.zero == "plus" and model.out is None and model.flush_c == "no"
    if model.flush_out == "no" or not plain or not unseen or rho.mode not in ("RNE", "RNA"):
        return model
    c, products = s.leaves[-1], [i for i in s.children[at] if i != model.K]
    if not products or max(products) > model.K or "c" not in model.tree:
        return model
    beside = s._total([s.of(i) for i in products])
    kept, step, normal, _ = _limits(rho)
    found = dataclasses.replace(model, flush_c="zero", flush_out="no")
    changed = _Sum(found, *s.operands)
    subnormal = any(map(changed.subnormal, changed.sums, s.roundings))
    if model.rho_product is not None:
        subnormal |= changed.subnormal(s.products, model.rho_product)
    small = changed.leaves[-1].least <= min(normal, beside.low - kept - 2)
    if subnormal or not small or not s.held(beside, rho) or c.low < step or c.bits > kept + 1:
        return model
    return found


def _zeros(model: SumTree, s: _Sum) -> SumTree:
    """The plainest rule that gives the result's zeros the same signs: no others are seen."""
    terms = [s.of(i) for i in s.children[-1]]
    rho, x, down = s.roundings[-1], s.sums[-1], len(terms) > 1 and s.roundings[-1].mode == "RD"
    cleared = model.zero == "start" and len(terms) == 1
    minus = not cleared and (down or all(t.minus for t in terms))
    if model.out is not None:
        rho, x, minus = model.out, s.values[-1], s.values[-1].minus
    zero = model.zero
    unary = [s.of(node[0]) for node in s.children if len(node) == 1]
    if zero == "start" and not any(x.minus for x in unary):
        zero = "ieee"
    if zero in ("ieee", "start") and not minus:
        zero = "signed"
    rounded = s.underflows(x, rho) and rho.mode not in ("RD", "RA")  # negative sums, to zero
    if s.flush_last == "zero" or (zero == "signed" and not rounded):
        zero = "plus"
    changes: dict[str, Any] = {"zero": zero}
    unasked = zero in ("plus", "signed") and model.out is not None
    if unasked and model.flush_out == "sign":  # before out no sum asks for the sign of a zero term
        changes |= {"flush_out": "zero", "flush_last": s.flush_last}
    elif zero == "plus" and model.flush_out == "sign" and not s.subnormal(x, rho):
        changes["flush_out"] = "zero"  # nor does the result show that of another sum
    *products, c = s.seen[: model.K + 1]
    for name, seen in (("flush_in", any(products)), ("flush_c", c)):
        if getattr(model, name) == "sign" and not seen:
            changes[name] = "zero"
    return dataclasses.replace(model, **changes)


_RULES = (
    _in_order, _exact_products, _second_rounding, _starts, _rounded_products, _exact_sums,
    _innocent_roundings, _one_rounding,
    _unreached_limits, _tiny, _flushed_c, _zeros,
)  # fmt: skip


def _rebuilt(
    model: SumTree,
    instead: dict[int, int],
    joined: dict[int, tuple[int, ...]],
    wrapped: Collection[int] = (),
    **changes: Any,
) -> SumTree:
    """The tree without some nodes: another child is in their place, or all of theirs are.

    ``wrapped`` products become nodes of one.
    """
    K, texts = model.K, {}
    lowest = list(range(K + 1))  # the first product below every child
    brackets = [rho != model.rho for rho in model.roundings]
    for i in range(K):
        texts[i] = f"({i})" if i in wrapped else str(i)
    texts[K] = "c"
    for j, node in enumerate(model.nodes):
        node = tuple(sorted(node, key=lowest.__getitem__))
        lowest.append(lowest[node[0]])
        here, inside = K + 1 + j, " ".join(texts[i] for i in node)
        first, last = "[]" if brackets[j] else "()"
        texts[here] = inside if here in instead or here in joined else f"{first}{inside}{last}"
    tree = texts[K + len(model.nodes)]
    rho2 = model.rho2 if "[" in tree else None
    return dataclasses.replace(model, tree=tree, rho2=rho2, **changes)


# --- reasons --------------------------------------------------------------------------------------


def reasons(model: SumTree, box: Box) -> list[str]:
    """What could be said otherwise of a plain form without any effect on these formats."""
    s = _Sum(model, *box.formats[:3])
    flushes = {model.flush_out, s.flush_last} != {"no"}
    found = []
    if model.rho_product is None and s.held(s.products, model.rho):
        found.append(
            f"rho_product: {model.rho.format} holds every product ({s.products.bits} bits): to "
            "round it to that, by itself or as a node, changes nothing"
        )
    elif model.rho_product == model.rho:
        found.append("tree: rounding a product twice alike, (0) for 0, is rounding it once")
    for field, values, why in (
        ("zero", TREE_ZERO_RULES, "the result's zeros have the same signs, and no others are seen"),
        ("flush_out", FLUSHES, "no sum is subnormal"),
        ("tiny", TINY_RULES if flushes else (), "too few bits of a sum lie below normal numbers"),
        ("flush_in", FLUSHES, "no sum shows the sign of a zero product"),
        ("flush_c", FLUSHES, "no sum shows the sign of a zero c"),
    ):
        others = [dataclasses.replace(model, **{field: x}) for x in values]  # type: ignore[arg-type]
        same = [getattr(x, field) for x in others if x != model and plain_sum(x, box) == model]
        if same and not (field == "flush_c" and "c" not in model.tree):
            alike = ", ".join(map(repr, same))
            found.append(f"{field}: {getattr(model, field)!r} and {alike} are alike, {why}")
    for name in ("rho", "rho2", "rho_product", "out"):
        rho: Conversion | None = getattr(model, name)
        if rho is None or rho.overflow != "inf":
            continue
        other = dataclasses.replace(model, **{name: dataclasses.replace(rho, overflow="saturate")})  # type: ignore[arg-type]
        if plain_sum(other, box) == model:
            found.append(f"{name}: no sum overflows, what it would give is not seen")
    return found
