"""Step 2: the summation tree, from where large terms cancel.

Term i is +U, term j is -U, all others a small v. What is added before i and j have met is lost
against U; d / v counts the rest. So n - d/v is the number of leaves below the lowest common
ancestor of i and j, and these numbers are the tree. A chain, a pairwise tree, a fused node of any
number of terms look different, and a fused node that sums exactly loses nothing but i and j.

A call has m rows and n columns. Where one operand alone reaches far enough, row r brings U to lane
i_r and column s brings -U to lane j_s, so that all m·n outputs are pairs of their own; the tree
found is then confirmed with some pairs that have the whole range of a product between U and v, a
row and a column each. Formats too narrow for that are asked by such pairs only.

Source: Xie, Gao, Yang, "FPRev" (USENIX ATC '25), the recursion and its count of calls; Xie et al.,
arXiv 2511.10909v2, section 3.1, multi-way nodes and c.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, TypeVar, cast

import numpy as np
import numpy.typing as npt

from bitmma.clfp.box import Box, Dots
from bitmma.clfp.numbers import Range, blank, blank_calls, code, factor, values

__all__ = [
    "Node",
    "Tree",
    "TreeReading",
    "binary",
    "fold",
    "from_text",
    "leaves",
    "read_tree",
    "runs",
    "text",
    "to_text",
]

#: All pairs are measured if that takes no more calls, else those that FPRev's recursion needs.
_ALL_PAIRS = 64

#: So many pairs more, or a call of them, confirm what others say.
_CONFIRMED = 32

#: If all pairs take no more calls than this, a row and a column each, that is how they are asked.
_FEW_CALLS = 12

#: Operand elements that are put together at a time.
_ELEMENTS = 1 << 22


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
        measured: how many pairs (i, j). calls: how many calls of the box that took.
    """

    tree: Tree | None
    binades: int
    note: str
    measured: int
    calls: int


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


def binary(tree: Tree) -> bool:
    """Whether it is made of additions of two."""
    return fold(tree, lambda leaf: True, lambda node, parts: node.kind == "add" and all(parts))


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


@dataclass(frozen=True)
class _Terms:
    """How U = 2**e_u and v = 2**e_v are fed.

    Attributes:
        big, small: codes of a and of b. c_big, c_small: codes of c.
        crossed: big times small is U, from either side; else big times big is. Small times small
            is v.
    """

    e_u: int
    e_v: int
    big: tuple[int, int]
    small: tuple[int, int]
    c_big: int
    c_small: int
    crossed: bool


Pairs = npt.NDArray[np.int64]


class _Counts:
    """sizes[i, j] = n - d/v, -1 where not measured; c is the last of n leaves, or none."""

    def __init__(self, box: Box, n: int, terms: _Terms) -> None:
        self.box, self.n, self.terms = box, n, terms
        self.sizes = np.full((n, n), -1, np.int16)
        np.fill_diagonal(self.sizes, 0)
        self.one_by_one = False
        self.calls = 0

    @property
    def measured(self) -> int:
        """How many pairs are known."""
        return int(np.count_nonzero(np.triu(self.sizes >= 0, 1)))

    def pivot(self, group: Sequence[int]) -> int | None:
        """A leaf that was measured against all others of its group."""
        known = (self.sizes[np.ix_(group, group)] >= 0).all(axis=1)
        return group[int(known.argmax())] if known.any() else None

    @property
    def calls_for_all(self) -> int:
        """How many calls all pairs would take, about."""
        m, n = self._shape
        tiles = -(-self.n // m) * -(-self.n // n) // 2 + 1
        return tiles if self.terms.crossed else -(-tiles // self._rows)

    def measure(self, groups: Sequence[tuple[Sequence[int], bool]], first: bool) -> bool:
        """Leaves of each group against all of it: as many as one call holds, or every one.

        A lone one is the ``first`` (of a sum in order it says all), later one from the middle.
        Returns whether all answers were counts.
        """
        m, n = self._shape
        planned = self.sizes >= 0
        jobs: list[tuple[list[int], list[int]]] = []
        for group, every in groups:
            size = len(group)
            rows = size if every else min(m, size)
            lone = 0 if first else size // 2
            at = np.linspace(0, size - 1, rows).astype(int) if rows > 1 else [lone]
            for r in range(0, rows, m):
                lanes = [group[i] for i in at[r : r + m]]
                for c in range(0, size, n):
                    others = list(group[c : c + n])
                    if not planned[np.ix_(lanes, others)].all():
                        planned[np.ix_(lanes, others)] = planned[np.ix_(others, lanes)] = True
                        jobs.append((lanes, others))
        if self.terms.crossed:
            return self._crossed(list(_packed(jobs, m, n)))
        return self.pairs(np.array([(*i, *j) for i, j in jobs], np.int64).reshape(-1, 2))

    @property
    def _shape(self) -> tuple[int, int]:
        """Of the pairs that are asked together: lanes of U, lanes of -U."""
        return (self.box.spec.m, self.box.spec.n) if self.terms.crossed else (1, 1)

    @property
    def _rows(self) -> int:
        return min(self.box.spec.m, self.box.spec.n)

    # Rows times columns.

    def _crossed(self, grids: list[tuple[list[int], list[int]]]) -> bool:
        """Every row's lane with every column's, a call each."""
        spec = self.box.spec
        step = max(1, _ELEMENTS // (spec.k * (spec.m + spec.n) + spec.m * spec.n))
        for start in range(0, len(grids), step):
            some = grids[start : start + step]
            i = np.array([lanes for lanes, _ in some])
            j = np.array([lanes for _, lanes in some])
            d = values(self.box, self.box.mma(self._grids(i, j)))
            self.calls += len(some)
            asked = i[:, :, None] != j[:, None]
            self.box.dots += int(asked.sum())
            sizes = self._sizes(d[asked])
            if sizes is None:
                return False
            i, j = (np.broadcast_to(x, asked.shape)[asked] for x in (i[:, :, None], j[:, None]))
            self.sizes[i, j] = self.sizes[j, i] = sizes
        return True

    def _grids(self, i: Pairs, j: Pairs) -> Dots:
        """Whole calls with +U in lanes i (calls, m) of the rows, -U in j (calls, n) of columns."""
        t, k, n_c = self.terms, self.box.k, self.n > self.box.k
        fb, fc = self.box.formats[1:3]
        x = blank_calls(self.box, len(i), (*t.small, t.c_small if n_c else 0))
        for lanes, codes, big in ((i, x.a, t.big[0]), (j, x.b.swapaxes(1, 2), t.big[1])):
            call, place = np.nonzero(lanes < k)
            codes[call, place, lanes[call, place]] = big | (fb.sign_bit if codes is not x.a else 0)
        call, row = np.nonzero(i == k)
        x.c[call, row] = t.c_big
        call, column = np.nonzero(j == k)
        x.c[call, :, column] = t.c_big | fc.sign_bit
        return x

    def _sizes(self, d: npt.NDArray[np.float64]) -> npt.NDArray[np.int64] | None:
        """From values; None where some are no counts (as where cuts round away from zero)."""
        survivors = d / 2.0**self.terms.e_v
        good = (survivors == np.floor(survivors)) & (survivors >= 0) & (survivors <= self.n - 2)
        return self.n - survivors.astype(np.int64) if good.all() else None

    # A row and a column for every pair.

    def pairs(self, pairs: Pairs) -> bool:
        """Asks the box for these (i, j)."""
        pairs = pairs[pairs[:, 0] != pairs[:, 1]]
        for part in np.array_split(pairs, -(-len(pairs) * self.n // _ELEMENTS) or 1):
            sizes = None
            if not self.one_by_one:
                x = self._masked(np.ones((len(part), self.n), bool), part)
                sizes = self._sizes(self._dot(x))
            if sizes is None:
                self.one_by_one = True
                sizes = self.n - self._each(part)
            i, j = part.T
            self.sizes[i, j] = self.sizes[j, i] = sizes
        return True

    def _dot(self, x: Dots) -> npt.NDArray[np.float64]:
        self.calls += -(-x.count // self._rows)
        found: npt.NDArray[np.float64] = values(self.box, self.box.dot(x))
        return found

    def _masked(self, small: npt.NDArray[np.bool_], pairs: Pairs) -> Dots:
        """Dot products with +U at i, -U at j and v where ``small`` (N, n) says."""
        t, k = self.terms, self.box.k
        fa, _, fc, _ = self.box.formats
        x = blank(self.box, len(pairs))
        x.a[:], x.b[:] = (np.where(small[:, :k], v, 0) for v in t.small)
        if self.n > k:
            x.c[:] = np.where(small[:, k], t.c_small, 0)
        for column, sign, c_sign in ((0, 0, 0), (1, fa.sign_bit, fc.sign_bit)):
            rows = np.flatnonzero(pairs[:, column] < k)
            x.a[rows, pairs[rows, column]] = t.big[0] | sign
            x.b[rows, pairs[rows, column]] = t.big[1]
            x.c[pairs[:, column] == k] = t.c_big | c_sign
        return x

    def _each(self, pairs: Pairs) -> npt.NDArray[np.int64]:
        """One v at a time: does it come out as it went in?"""
        survivors = np.zeros(len(pairs), np.int64)
        for lane in range(self.n):
            small = np.zeros((len(pairs), self.n), bool)
            small[:, lane] = (pairs != lane).all(axis=1)
            d = self._dot(self._masked(small, pairs))
            survivors += small[:, lane] & (d == 2.0**self.terms.e_v)
        return survivors


def _packed(
    jobs: Sequence[tuple[list[int], list[int]]], m: int, n: int
) -> Iterator[tuple[list[int], list[int]]]:
    """As many (rows, columns) a call as it has room for; what is left asks for more of them."""
    rows: list[int] = []
    columns: list[int] = []
    for lanes, others in [*jobs, ([0] * m, [0] * n)]:
        if rows and (len(rows) + len(lanes) > m or len(columns) + len(others) > n):
            more = [*columns, *rows]
            yield [*rows, *more * m][:m], [*columns, *rows * n][:n]
            rows, columns = [], []
        rows, columns = [*rows, *lanes], [*columns, *others]


# --- U and v --------------------------------------------------------------------------------------


def _powers(box: Box) -> list[tuple[int, int]]:
    """(e_U, e_v), the widest apart first. Counts of v must come out exact, below U."""
    r = Range(box)
    fc, fd = box.formats[2:]
    e_u = min(r.high, r.c_high - 1, r.d_high - 2, 120)
    lows = (
        (r.lowest, r.c_low - fc.mantissa_bits, r.d_low - fd.mantissa_bits),
        (r.low, r.c_low - fc.mantissa_bits, r.d_low - fd.mantissa_bits),
        (r.low, r.c_low, r.d_low),
    )
    pairs = [(e_u, max(*low, -120)) for low in lows]
    pairs.append((min(e_u, 13), max(pairs[-1][1], -24)))  # there may be a float16 inside
    return [(e_u, e_v) for e_u, e_v in dict.fromkeys(pairs) if e_v < e_u]


def _whole(box: Box) -> Iterator[_Terms]:
    """A product's whole range between U and v."""
    for e_u, e_v in _powers(box):
        big, small = (factor(*box.formats[:2], Fraction(2) ** e) for e in (e_u, e_v))
        if big and small:
            yield _Terms(e_u, e_v, big, small, *_c_codes(box, e_u, e_v), False)


def _crossing(box: Box) -> Iterator[_Terms]:
    """U from the large operand of a row or of a column: the range of one operand."""
    fa, fb = box.formats[:2]
    for most, e_v in _powers(box):
        apart = {  # of v's exponent so much to a, the rest to b
            e: min(fa.max_exponent - e, fb.max_exponent - (e_v - e), most - e_v)
            for e in range(fa.min_exponent - fa.mantissa_bits, fa.max_exponent)
        }
        e_a = max(apart, key=lambda e: (apart[e], -abs(e - e_v // 2)))
        e_b, e_u = e_v - e_a, e_v + apart[e_a]
        found = [
            code(fmt, Fraction(2) ** e)
            for fmt, e in ((fa, e_u - e_b), (fb, e_u - e_a), (fa, e_a), (fb, e_b))
        ]
        a_u, b_u, a_v, b_v = found
        if e_u > e_v and a_u and b_u and a_v and b_v:
            yield _Terms(e_u, e_v, (a_u, b_u), (a_v, b_v), *_c_codes(box, e_u, e_v), True)


def _c_codes(box: Box, e_u: int, e_v: int) -> tuple[int, int]:
    fc = box.formats[2]
    return code(fc, Fraction(2) ** e_u) or 0, code(fc, Fraction(2) ** e_v) or 0


def _all_counted(box: Box, n: int, t: _Terms) -> bool:
    """Without -U: U comes out, of a lane at either end and of c; v too, and all v together."""
    k, counts_c = box.k, n > box.k
    v, U = 2.0**t.e_v, 2.0**t.e_u
    large = [(t.big[0], t.small[1]), (t.small[0], t.big[1])] if t.crossed else [t.big]
    ends = sorted({0, k - 1})
    fed = [(lane, codes, U) for codes in large for lane in ends]
    fed += [(lane, t.small, v) for lane in ends]
    x = blank(box, len(fed) + 3)
    for row, (lane, (a, b), _) in enumerate(fed):
        x.a[row, lane], x.b[row, lane] = a, b
    x.a[-3], x.b[-3] = t.small
    if counts_c:
        x.c[-3:] = t.c_small, t.c_small, t.c_big
    want = [*(d for *_, d in fed), n * v, counts_c * v, counts_c * U]
    return bool((values(box, box.dot(x)) == want).all())


# --- the tree -------------------------------------------------------------------------------------


def read_tree(box: Box) -> TreeReading:
    """Step 2 of closed-loop feature probing."""
    one = blank(box, 1)
    one.c[0] = box.formats[2].encode(1, 0)
    ignored = values(box, box.dot(one))[0] == 0
    n = box.k + (not ignored)
    notes = ["c is ignored"] * bool(ignored)
    whole = next((t for t in _whole(box) if _all_counted(box, n, t)), None)
    if whole is None:
        notes.append("no two powers of these formats can be counted")
        return TreeReading(None, 0, "; ".join(notes), 0, 0)
    counts = _Counts(box, n, whole)
    tree, calls, measured = None, 0, 0
    if counts.calls_for_all > _FEW_CALLS and box.spec.m * box.spec.n > 1:
        crossed = next((t for t in _crossing(box) if _all_counted(box, n, t)), None)
        if crossed is not None:
            many = _Counts(box, n, crossed)
            tree = _read(many)
            if tree is not None and not _confirmed(tree, counts):
                tree = None
            calls, measured = many.calls, many.measured
    if tree is None:
        tree = _read(counts)
        if tree is not None and not _confirmed(tree, counts):
            tree = None
    if counts.one_by_one:
        notes.append("terms were counted one at a time")
    if tree is None:
        notes.append("the counts are no tree's")
    measured = max(measured, counts.measured)
    calls += counts.calls
    return TreeReading(tree, whole.e_u - whole.e_v, "; ".join(notes), measured, calls)


@dataclass
class _Draft:
    """A node that is not finished."""

    children: list[Any]
    exact: bool = False


@dataclass
class _Task:
    """Leaves whose place in the tree is open.

    Attributes:
        parent: of what node they will be children.
        size: that node's, if they meet there, each alone or below it; None if they are all leaves
            of one child.
        wide: measure all pairs of them: they seem to be children all.
    """

    group: list[int]
    parent: _Draft
    size: int | None = None
    wide: bool = False


def _read(counts: _Counts) -> Tree | None:
    """FPRev's recursion, all groups of leaves at once; None if the counts are no tree's.

    A leaf that was measured against all of its group says which others it meets, in which order.
    What joins it at one node falls into children by the same, those that meet below the node. Of
    groups without such a leaf some are measured, and so on.
    """
    every = counts.calls_for_all <= _ALL_PAIRS
    top = _Draft([])
    todo = [_Task(list(range(counts.n)), top, wide=every)]
    waiting: list[_Task] = []
    first = True
    while todo:
        task = todo.pop()
        pivot = None if first and every else counts.pivot(task.group)
        if len(task.group) == 1:
            task.parent.children.append(task.group[0])
        elif pivot is None:
            waiting.append(task)
        else:
            rest = np.array([j for j in task.group if j != pivot])
            sizes = counts.sizes[pivot, rest]
            if task.size is None:
                task.parent.children.append(_grown(pivot, rest, sizes, todo))
            else:
                below = rest[sizes < task.size].tolist()
                todo.append(_Task([pivot, *below], task.parent))
                if len(below) < len(rest):
                    others = rest[sizes >= task.size].tolist()
                    todo.append(_Task(others, task.parent, task.size, wide=not below))
        if not todo and waiting:
            if not counts.measure([(task.group, task.wide) for task in waiting], first):
                return None
            todo, waiting, first = waiting, [], False
    tree = _finished(top.children[0])
    want = _predicted(tree, counts.n)
    return tree if ((want == counts.sizes) | (counts.sizes < 0)).all() else None


def _grown(pivot: int, rest: Pairs, sizes: Pairs, todo: list[_Task]) -> Any:
    """The subtree of these leaves, from the pivot upwards; what joins it on the way is to do."""
    tree: Any = pivot
    reached = 1
    for size in np.unique(sizes):
        joined = rest[sizes == size].tolist()
        exact = bool(size - reached < len(joined))
        tree = _Draft([tree, *joined] if exact else [tree], exact)
        if not exact:
            todo.append(_Task(joined, tree, int(size)))
        reached += len(joined)
    return tree


def _finished(draft: Any) -> Tree:
    """Children in the order of their first leaves."""

    def leaf(lane: int) -> tuple[int, Tree]:
        return lane, lane

    def node(here: Any, below: list[tuple[int, Tree]]) -> tuple[int, Tree]:
        below.sort(key=lambda child: child[0])
        kind: Any = "add" if len(below) == 2 else "exact" if here.exact else "fused"
        return below[0][0], Node(tuple(child for _, child in below), kind)

    return fold(cast(Tree, draft), leaf, node)[1]


def _confirmed(tree: Tree, counts: _Counts) -> bool:
    """Whether pairs not asked yet, of all sizes that the tree has, are as it predicts."""
    want = _predicted(tree, counts.n)
    i, j = np.nonzero(np.triu(counts.sizes < 0, 1))
    order = np.random.default_rng(0).permutation(len(i))
    _, of_each_size = np.unique(want[i[order], j[order]], return_index=True)
    order = order[np.argsort(~np.isin(np.arange(len(i)), of_each_size), kind="stable")]
    some = order[: max(_CONFIRMED, min(counts.box.spec.m, counts.box.spec.n))]
    counts.pairs(np.stack([i[some], j[some]], 1))
    return bool((counts.sizes[i, j] == want[i, j])[some].all())


def _predicted(tree: Tree, n: int) -> npt.NDArray[np.int16]:
    """The counts that a tree has."""
    want = np.full((n, n), -1, np.int16)
    np.fill_diagonal(want, 0)

    def meet(node: Node, parts: list[list[int]]) -> list[int]:
        sizes = list(map(len, parts))
        total = sum(sizes)
        together = [i for part in parts for i in part]
        if len(parts) == 2:
            want[np.ix_(*parts)] = total
            want[np.ix_(*parts[::-1])] = total
            return together
        own = np.repeat(sizes, sizes)
        all_of_them = np.ix_(together, together)
        met = own[:, None] + own if node.kind == "exact" else np.full((total, total), total)
        want[all_of_them] = np.where(want[all_of_them] < 0, met, want[all_of_them])
        return together

    fold(tree, lambda leaf: [leaf], meet)
    return want
