"""Step 2: the summation tree, from where large terms cancel.

Term i is +U, term j is -U, all others a small v. What is added before i and j have met is lost
against U; d / v counts the rest. So n - d/v is the number of leaves below the lowest common
ancestor of i and j, and these numbers are the tree. A chain, a pairwise tree, a fused node of any
number of terms look different, and a fused node that sums exactly loses nothing but i and j.

Source: Xie, Gao, Yang, "FPRev" (USENIX ATC '25), the recursion and its count of calls; Xie et al.,
arXiv 2511.10909v2, section 3.1, multi-way nodes and c.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from bitmma.clfp.box import Box, Dots
from bitmma.clfp.numbers import Range, blank, code, factor, values

__all__ = [
    "Node",
    "Tree",
    "TreeReading",
    "fold",
    "from_text",
    "leaves",
    "read_tree",
    "runs",
    "text",
    "to_text",
]

#: Up to so many leaves all pairs are measured at once; beyond, FPRev's recursion asks for fewer.
_ALL_PAIRS = 80


@dataclass(frozen=True, eq=False, repr=False)
class Node:
    """One addition. Compared, hashed and shown as `to_text` writes it, however deep.

    Attributes:
        children: leaves (lane numbers; k is c) and nodes, in no particular order.
        kind: "add", two terms; "fused", more of them, small ones lost against large ones;
            "exact", more of them, nothing lost in the range that was probed.
    """

    children: tuple[int | Node, ...]
    kind: Literal["add", "fused", "exact"]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and to_text(self) == to_text(other)

    def __hash__(self) -> int:
        return hash(to_text(self))

    def __repr__(self) -> str:
        return f"<{to_text(self)}>"


Tree = int | Node


@dataclass(frozen=True)
class TreeReading:
    """What step 2 found.

    Attributes:
        tree: None where the counts are no tree's or nothing could be counted.
        binades: U/v is 2 to this power: "exact" means within it.
        note: why there is no tree, or what limits it.
        measured: how many pairs (i, j).
    """

    tree: Tree | None
    binades: int
    note: str
    measured: int


_T = TypeVar("_T")


def fold(tree: Tree, leaf: Callable[[int], _T], node: Callable[[Node, list[_T]], _T]) -> _T:
    """``node`` of the children's values, from the leaves upwards; trees may be very deep."""
    if isinstance(tree, int):
        return leaf(tree)
    open_nodes: list[tuple[Node, list[_T]]] = [(tree, [])]
    while True:
        here, done = open_nodes[-1]
        if len(done) < len(here.children):
            child = here.children[len(done)]
            if isinstance(child, int):
                done.append(leaf(child))
            else:
                open_nodes.append((child, []))
            continue
        value = node(here, done)
        open_nodes.pop()
        if not open_nodes:
            return value
        open_nodes[-1][1].append(value)


def leaves(tree: Tree) -> tuple[int, ...]:
    """The lanes below a tree, sorted."""
    found: list[int] = []
    fold(tree, found.append, lambda node, below: None)
    return tuple(sorted(found))


def text(tree: Tree, k: int) -> str:
    """One line: ``fused(fused(c, p0..p7), p8..p15)``; additions of two as ``(x + y)``."""

    def name(lane: int) -> str:
        return "c" if lane == k else f"p{lane}"

    def joined(node: Node, parts: list[str]) -> str:
        both = list(zip(node.children, parts, strict=True))
        inner = [part for child, part in both if isinstance(child, Node)]
        lanes = sorted(child for child in node.children if isinstance(child, int))
        lanes.sort(key=lambda lane: lane != k)  # c first
        if node.kind == "add":
            return f"({' + '.join([*inner, *map(name, lanes)])})"
        return f"{node.kind}({', '.join([*inner, *runs(lanes, k)])})"

    return fold(tree, name, joined)


def runs(lanes: Sequence[int], k: int) -> list[str]:
    """Consecutive lanes as p0..p7; c first."""
    found = ["c"] if k in lanes else []
    lanes, start = [i for i in lanes if i != k], 0
    for end in range(1, len(lanes) + 1):
        if end == len(lanes) or lanes[end] != lanes[end - 1] + 1:
            first, last = lanes[start], lanes[end - 1]
            found.append(f"p{first}" if first == last else f"p{first}..p{last}")
            start = end
    return found


def to_text(tree: Tree) -> str:
    """For files: ``(fused (add 16 0) 1 2)``."""
    return fold(tree, str, lambda node, parts: f"({node.kind} {' '.join(parts)})")


def from_text(text: str) -> Tree:
    """The inverse of `to_text`; ValueError where it is none."""
    open_nodes: list[list[Any]] = [[]]
    for token in text.replace("(", " ( ").replace(")", " ) ").split():
        if token == "(":
            open_nodes.append([])
        elif token == ")" and len(open_nodes) > 1 and len(open_nodes[-1]) > 1:
            kind, *children = open_nodes.pop()
            open_nodes[-1].append(Node(tuple(children), kind))
        elif token in ("add", "fused", "exact") and not open_nodes[-1] and len(open_nodes) > 1:
            open_nodes[-1].append(token)
        elif token.isdecimal():
            open_nodes[-1].append(int(token))
        else:
            raise ValueError(f"no tree: {text[:60]!r}")
    if len(open_nodes) != 1 or len(open_nodes[0]) != 1:
        raise ValueError(f"no tree: {text[:60]!r}")
    found: Tree = open_nodes[0][0]
    return found


# --- the counts -----------------------------------------------------------------------------------


class _Counts:
    """sizes[i, j] = n - d/v, measured when first asked for; c is the last of n leaves, or none."""

    def __init__(self, box: Box, n: int, e_u: int, e_v: int) -> None:
        self.box, self.n = box, n
        self.e_u, self.e_v = e_u, e_v
        self.sizes = np.full((self.n, self.n), -1, np.int64)
        self.one_by_one = False
        self.measured = 0

    def measure(self, pairs: npt.NDArray[np.int64]) -> None:
        """Asks the box for those (i, j) that are not known yet."""
        i, j = pairs.T
        new = np.unique(np.stack([np.minimum(i, j), np.maximum(i, j)], 1), axis=0)
        new = new[(self.sizes[new[:, 0], new[:, 1]] < 0) & (new[:, 0] != new[:, 1])]
        if not len(new):
            return
        survivors = self._each(new) if self.one_by_one else self._together(new)
        self.measured += len(new)
        if survivors is None:
            self.one_by_one = True
            self.sizes[:] = -1
            return self.measure(pairs)
        self.sizes[new[:, 0], new[:, 1]] = self.sizes[new[:, 1], new[:, 0]] = self.n - survivors

    def rows(self, i: int, js: Sequence[int]) -> npt.NDArray[np.int64]:
        self.measure(np.array([(i, j) for j in js]).reshape(-1, 2))
        return self.sizes[i, list(js)]

    def masked(self, small: npt.NDArray[np.bool_], pairs: npt.NDArray[np.int64]) -> Dots:
        """Dot products with +U at i, -U at j and v where ``small`` (N, n) says."""
        box, k = self.box, self.box.k
        fa, fb, fc, _ = box.formats
        x = blank(box, len(pairs))
        big, tiny = Fraction(2) ** self.e_u, Fraction(2) ** self.e_v
        a_v, b_v = factor(fa, fb, tiny) or (0, 0)
        x.a[:], x.b[:] = np.where(small[:, :k], a_v, 0), np.where(small[:, :k], b_v, 0)
        if self.n > k:
            x.c[:] = np.where(small[:, k], code(fc, tiny) or 0, 0)
        for column, sign in ((0, 1), (1, -1)):
            rows = np.flatnonzero(pairs[:, column] < k)
            a_u, b_u = factor(fa, fb, sign * big) or (0, 0)
            x.a[rows, pairs[rows, column]], x.b[rows, pairs[rows, column]] = a_u, b_u
            x.c[pairs[:, column] == k] = code(fc, sign * big) or 0
        return x

    def _together(self, pairs: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
        """All others are v. None where some d is no count of them (rounding away from zero)."""
        found = []
        for part in np.array_split(pairs, -(-len(pairs) * self.n // (1 << 20)) or 1):
            x = self.masked(np.ones((len(part), self.n), bool), part)
            found.append(values(self.box, self.box.dot(x)) / 2.0**self.e_v)
        survivors = np.concatenate(found)
        good = (survivors == np.floor(survivors)) & (survivors >= 0) & (survivors <= self.n - 2)
        return survivors.astype(np.int64) if good.all() else None

    def _each(self, pairs: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """One v at a time: does it come out as it went in?"""
        survivors = np.zeros(len(pairs), np.int64)
        for lane in range(self.n):
            small = np.zeros((len(pairs), self.n), bool)
            small[:, lane] = (pairs != lane).all(axis=1)
            d = values(self.box, self.box.dot(self.masked(small, pairs)))
            survivors += small[:, lane] & (d == 2.0**self.e_v)
        return survivors


def _powers(box: Box) -> Iterator[tuple[int, int]]:
    """(e_U, e_v), the widest apart first. Counts of v must come out exact, below U."""
    r = Range(box)
    fa, fb, fc, fd = box.formats
    e_u = min(r.high, r.c_high - 1, r.d_high - 2, 120)
    lows = (
        (r.lowest, r.c_low - fc.mantissa_bits, r.d_low - fd.mantissa_bits),
        (r.low, r.c_low - fc.mantissa_bits, r.d_low - fd.mantissa_bits),
        (r.low, r.c_low, r.d_low),
    )
    pairs = [(e_u, max(*low, -120)) for low in lows]
    pairs.append((min(e_u, 13), max(pairs[-1][1], -24)))  # there may be a float16 inside
    for e_u, e_v in dict.fromkeys(pairs):
        if e_v < e_u and all(factor(fa, fb, Fraction(2) ** e) for e in (e_u, e_v)):
            yield e_u, e_v


def _all_counted(box: Box, n: int, e_u: int, e_v: int) -> bool:
    """Without -U, U comes out alone, and every v counts, alone and together."""
    counts = _Counts(box, n, e_u, e_v)
    small = np.concatenate([np.eye(n, dtype=bool), np.ones((1, n), bool), np.zeros((n, n), bool)])
    large = np.full((len(small), 2), box.k + 1)
    large[n + 1 :, 0] = np.arange(n)
    d = values(box, box.dot(counts.masked(small, large)))
    want = small.sum(axis=1) * 2.0**e_v
    want[n + 1 :] = 2.0**e_u
    return bool((d == want).all())


# --- the tree -------------------------------------------------------------------------------------


def read_tree(box: Box) -> TreeReading:
    """Step 2 of closed-loop feature probing."""
    one = blank(box, 1)
    one.c[0] = box.formats[2].encode(1, 0)
    ignored = values(box, box.dot(one))[0] == 0
    n = box.k + (not ignored)
    notes = ["c is ignored"] * bool(ignored)
    for e_u, e_v in _powers(box):
        if not _all_counted(box, n, e_u, e_v):
            continue
        counts = _Counts(box, n, e_u, e_v)
        if n <= _ALL_PAIRS and n > 1:
            counts.measure(np.stack(np.triu_indices(n, 1), 1))
        tree: Tree | None = _grow(counts, list(range(n)))
        if counts.one_by_one:
            notes.append("terms were counted one at a time")
        if n <= _ALL_PAIRS and tree is not None and not _explains(tree, counts):
            tree = None
            notes.append("the counts are no tree's")
        return TreeReading(tree, e_u - e_v, "; ".join(notes), counts.measured)
    notes.append("no two powers of these formats can be counted")
    return TreeReading(None, 0, "; ".join(notes), 0)


def _grow(counts: _Counts, below: Sequence[int]) -> Tree:
    """The subtree with exactly these leaves: from the first leaf upwards."""
    first, rest = below[0], list(below[1:])
    if not rest:
        return first
    sizes = counts.rows(first, rest)
    tree: Tree = first
    reached = 1
    for size in np.unique(sizes):
        joined = [j for j, s in zip(rest, sizes, strict=True) if s == size]
        exact = size - reached < len(joined)
        others: list[Tree] = list(joined) if exact else _children(counts, joined, int(size))
        kind: Any = "add" if len(others) == 1 else "exact" if exact else "fused"
        tree = Node((tree, *others), kind)
        reached += len(joined)
    return tree


def _children(counts: _Counts, joined: Sequence[int], size: int) -> list[Tree]:
    """The children of a node of so many leaves: those that meet below it belong together."""
    found: list[Tree] = []
    left = list(joined)
    while left:
        first, rest = left[0], left[1:]
        below = counts.rows(first, rest) < size if rest else np.zeros(0, bool)
        found.append(_grow(counts, [first, *(j for j, b in zip(rest, below, strict=True) if b)]))
        left = [j for j, b in zip(rest, below, strict=True) if not b]
    return found


def _explains(tree: Tree, counts: _Counts) -> bool:
    """Whether the tree predicts every count."""
    want = np.full_like(counts.sizes, -1)

    def meet(node: Node, parts: list[list[int]]) -> list[int]:
        total = sum(map(len, parts))
        for x in range(len(parts)):
            for y in range(x):
                size = len(parts[x]) + len(parts[y]) if node.kind == "exact" else total
                want[np.ix_(parts[x], parts[y])] = want[np.ix_(parts[y], parts[x])] = size
        return [i for part in parts for i in part]

    fold(tree, lambda leaf: [leaf], meet)
    return bool((want == counts.sizes).all())
