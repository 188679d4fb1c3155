"""Which models a summation tree leaves room for: chains, pairs and lowered instructions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from bitmma.clfp.tree import Node, Tree, fold

__all__ = [
    "chains",
    "clusters",
    "divisors",
    "early",
    "halves",
    "late",
    "levels",
    "lowered",
    "nested",
    "pairwise",
    "steps_of",
]

#: The longest period of a lowered instruction's parts that is looked for.
_PERIOD = 64

#: So many sizes of inner sums are tried.
_SIZES = 32

Clusters = frozenset[frozenset[int]]


def divisors(k: int) -> list[int]:
    return [n for n in range(1, k + 1) if k % n == 0]


def clusters(tree: Tree) -> Clusters:
    """The sets of leaves that are summed somewhere: a tree without the order within its nodes."""
    found: set[frozenset[int]] = set()

    def join(node: Node, parts: list[frozenset[int]]) -> frozenset[int]:
        found.add(frozenset().union(*parts))
        return frozenset().union(*parts)

    fold(tree, lambda leaf: frozenset([leaf]), join)
    return frozenset(found)


def early(k: int, L: int) -> Clusters:
    """Steps of L products, each summed together with what came before, c first."""
    return frozenset(frozenset([k, *range(end)]) for end in range(L, k + 1, L))


def late(k: int, L: int) -> Clusters:
    """Steps of L products, each summed alone and then added to what came before."""
    alone = {frozenset(range(s, s + L)) for s in range(0, k, L)} if L > 1 else set()
    return frozenset(alone) | early(k, L)


def pairs(lanes: list[frozenset[int]]) -> Iterator[frozenset[int]]:
    """Neighbours joined, until one is left."""
    while len(lanes) > 1:
        joined = [lanes[i] | lanes[i + 1] for i in range(0, len(lanes) - 1, 2)]
        yield from joined
        lanes = [*joined, *lanes[len(lanes) // 2 * 2 :]]


def pairwise(k: int, L: int) -> Clusters:
    """Sums of L products added in pairs, c last."""
    groups = [frozenset(range(s, min(s + L, k))) for s in range(0, k, L)]
    alone = {g for g in groups if len(g) > 1}
    return frozenset({*alone, *pairs(groups), frozenset(range(k + 1))})


def grouped(k: int, P: int) -> Clusters:
    """FTZ-MulAdd: groups of P products added in pairs, then to c."""
    found: set[frozenset[int]] = set()
    for s in range(0, k, P):
        found.update(pairs([frozenset([i]) for i in range(s, min(s + P, k))]))
        found.add(frozenset([k, *range(min(s + P, k))]))
    return frozenset(found)


def steps_of(tree: Tree) -> list[tuple[int, ...]] | None:
    """The leaves that each node of a chain adds to the one before; None where it is no chain."""
    steps = []
    while isinstance(tree, Node):
        inner = [child for child in tree.children if isinstance(child, Node)]
        direct = [child for child in tree.children if isinstance(child, int)]
        if len(inner) > 1:
            return None
        steps.append(tuple(sorted(direct)))
        tree = inner[0] if inner else direct[0]
    return steps[::-1]


def lowered(tree: Tree, k: int) -> Iterator[tuple[int, tuple[tuple[int, ...], ...]]]:
    """(L, parts) of instructions made of two or more, c added at the end, that have this tree."""
    steps = steps_of(tree)
    if steps is None or len(steps) < 2 or steps[-1] != (k,):
        return
    steps = steps[:-1]
    L = len(steps[0])
    for period in (n for n in divisors(k) if n <= _PERIOD):
        parts: list[tuple[int, ...]] = []
        for step in steps:
            part = tuple(sorted({i % period for i in step}))
            if not parts or parts[-1] != part:
                parts.append(part)
        if sorted(i for part in parts for i in part) != list(range(period)):
            continue
        lanes = [[i for i in range(k) if i % period in part] for part in parts]
        if steps == [tuple(x[s : s + L]) for x in lanes for s in range(0, len(x), L)]:
            yield L, tuple(parts)
            return


def halves(k: int) -> Iterator[tuple[int, tuple[tuple[int, ...], ...]]]:
    """(L, parts) of instructions made of two that take the products in turn, so many at a time.

    For trees that do not show it: where F is nearly as wide as the range of the products, what is
    already summed is large enough to be kept where single products are cut.
    """
    for n in divisors(k // 2) if k % 2 == 0 else ():
        for L in divisors(k // 2)[::-1]:
            yield L, (tuple(range(n)), tuple(range(n, 2 * n)))


def chains(sets: Clusters, k: int) -> Iterable[tuple[str, int]]:
    """(form, L) of the regular forms that have exactly these clusters."""
    forms = {"early": early, "late": late, "pairwise": pairwise, "grouped": grouped}
    for form, build in forms.items():
        for L in divisors(k):
            if build(k, L) == sets:
                yield form, L


def nested(tree: Tree, k: int) -> Any:
    """The tree as `bitmma.models.SumTree` writes it.

    The first of two products that meet is rounded, as an accumulator that starts with it does; all
    others are added unrounded.
    """

    def join(node: Node, parts: list[Any]) -> Any:
        products = [i for i in node.children if isinstance(i, int) and i != k]
        if node.kind == "add" and len(products) == 2:
            return (min(products),), max(products)
        return tuple(parts)

    return fold(tree, lambda leaf: "c" if leaf == k else leaf, join)


def levels(tree: Tree, k: int) -> Iterator[tuple[str, bool]]:
    """A tree of additions with sums of one size and less apart, and whether [ ] are those above.

    Above, sums are rounded once, ``[x y]``, or twice, ``[(x y)]``, and start from an inner sum as
    it is, from one rounded, ``[x]``, or round them all.
    """

    def sizes_of(node: Node, parts: list[tuple[int, set[int]]]) -> tuple[int, set[int]]:
        size = sum(n for n, _ in parts)
        return size, {size}.union(*(found for _, found in parts))

    total, found = fold(tree, lambda leaf: (1, set[int]()), sizes_of)
    sizes = sorted(found - {total})
    for size in sizes[:: -(-len(sizes) // _SIZES) or 1]:
        for twice, rounded in itertools.product((True, False), ("none", "first", "all")):
            yield _level(tree, k, size, twice, rounded), True
        yield _level(tree, k, size, False, "inside"), False


def _level(tree: Tree, k: int, size: int, twice: bool, rounded: str) -> str:
    """``rounded``: which inner sums are rounded as they enter; "inside": brackets are theirs."""

    def join(node: Node, parts: list[tuple[int, str]]) -> tuple[int, str]:
        n = sum(m for m, _ in parts)
        texts = [text for _, text in parts]
        products = [i for i in node.children if isinstance(i, int) and i != k]
        if node.kind == "add" and len(products) == 2:
            texts = [f"({min(products)})", str(max(products))]
        inside = " ".join(texts)
        if (n <= size) == (rounded == "inside"):
            if rounded != "inside":
                mark = {"none": 0, "first": 1, "all": len(parts)}[rounded]
                inner = [1 < m <= size and i < mark for i, (m, _) in enumerate(parts)]
                texts = [f"[{t}]" if x else t for t, x in zip(texts, inner, strict=True)]
                inside = " ".join(texts)
            return n, f"[({inside})]" if twice else f"[{inside}]"
        return n, f"({inside})"

    return fold(tree, lambda leaf: (1, "c" if leaf == k else str(leaf)), join)[1]
