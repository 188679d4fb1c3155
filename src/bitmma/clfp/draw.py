"""A summation tree as a picture: leaves at the left, in lanes, every addition to their right."""

from __future__ import annotations

from html import escape
from typing import NamedTuple

from bitmma.clfp.tree import Node, Tree, fold, runs

__all__ = ["tree_svg"]

_KINDS = {
    "add": "an addition of two terms",
    "fused": "a fused sum: what is small beside its largest term is cut",
    "exact": "a sum that loses nothing in the range that was probed",
}
_STYLE = """\
.bitmma-tree text{font:11px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#1f2328}
.bitmma-tree path{fill:none;stroke:#9aa5b1;stroke-width:1.2}
.bitmma-tree .add{stroke:#1559ad;fill:#1559ad}
.bitmma-tree .fused{stroke:#cf4a0a;fill:#cf4a0a}
.bitmma-tree .exact{stroke:#12733b;fill:#12733b}
.bitmma-tree path.add,.bitmma-tree path.fused,.bitmma-tree path.exact{fill:none;stroke-width:2}
.bitmma-tree .bg{fill:#ffffff}
@media (prefers-color-scheme:dark){
.bitmma-tree text{fill:#e6edf3}
.bitmma-tree path{stroke:#657080}
.bitmma-tree .add{stroke:#77b5ff;fill:#77b5ff}
.bitmma-tree .fused{stroke:#ff9e5e;fill:#ff9e5e}
.bitmma-tree .exact{stroke:#5fd39b;fill:#5fd39b}
.bitmma-tree .bg{fill:#12171e}}"""

_MARGIN, _LABEL, _HEADER = 16, 44, 34
#: A tree is drawn no wider and its rows no lower than this; of low rows not every one is labelled.
_WIDTH, _STEP, _ROWS_HEIGHT, _ROW = 900.0, 64.0, 1600.0, 17.0


class _Spot(NamedTuple):
    """Where the result of a subtree is drawn, and what lies below it."""

    x: float
    y: float
    lanes: tuple[int, ...]


def tree_svg(tree: Tree, k: int) -> str:
    """The tree of a dot product of k terms and c (leaf k), as a standalone SVG, light and dark."""
    heights: dict[int, int] = {}

    def measure(node: Node, below: list[int]) -> int:
        heights[id(node)] = 1 + max(below)
        return 1 + max(below)

    depth = fold(tree, lambda leaf: 0, measure)
    order = _order(tree, k)
    row = min(_ROW, max(3.0, _ROWS_HEIGHT / len(order)))
    every = max(1, round(12 / row))
    step = min(_STEP, _WIDTH / max(depth, 1))
    top, left = _MARGIN + _HEADER, _MARGIN + _LABEL
    y_of = {lane: top + row * (i + 0.5) for i, lane in enumerate(order)}
    lines: list[str] = []
    nodes: list[str] = []

    def leaf(lane: int) -> _Spot:
        return _Spot(left, y_of[lane], (lane,))

    def node(here: Node, below: list[_Spot]) -> _Spot:
        x = left + step * heights[id(here)]
        ys = [spot.y for spot in below]
        y = (min(ys) + max(ys)) / 2
        lanes = tuple(sorted(lane for spot in below for lane in spot.lanes))
        for spot in below:
            lines.append(f"M{spot.x:.1f} {spot.y:.1f}H{x:.1f}")
        title = f"{_KINDS[here.kind]}; {len(below)} terms, over {', '.join(runs(lanes, k))}"
        nodes.append(
            f'<g><title>{escape(title)}</title><path class="{here.kind}" '
            f'd="M{x:.1f} {min(ys):.1f}V{max(ys):.1f}"/>'
            f'<circle class="{here.kind}" cx="{x:.1f}" cy="{y:.1f}" r="{min(3.5, row):.1f}"/></g>'
        )
        return _Spot(x, y, lanes)

    root = fold(tree, leaf, node)
    lines.append(f"M{root.x:.1f} {root.y:.1f}h24")
    labels = [
        f'<text x="{left - 6}" y="{y_of[lane] + 4:.1f}" text-anchor="end">{_name(lane, k)}</text>'
        for i, lane in enumerate(order)
        if i % every == 0 or lane == k
    ]
    labels.append(f'<text x="{root.x + 28:.1f}" y="{root.y + 4:.1f}">d</text>')
    kinds = [kind for kind in _KINDS if any(f'class="{kind}"' in drawn for drawn in nodes)]
    legend = [
        f'<circle class="{kind}" cx="{_MARGIN + 5}" cy="{_MARGIN + 14 * i}" r="3.5"/>'
        f'<text x="{_MARGIN + 16}" y="{_MARGIN + 14 * i + 4}">{_KINDS[kind]}</text>'
        for i, kind in enumerate(kinds)
    ]
    width = max(root.x + 48, 460)
    height = top + row * len(order) + _MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="bitmma-tree" role="img" '
        f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">'
        f"<title>Summation tree of {k} products and c</title><style>{_STYLE}</style>"
        f'<rect class="bg" width="100%" height="100%"/><path d="{"".join(lines)}"/>'
        f"{''.join(nodes)}{''.join(labels)}{''.join(legend)}</svg>"
    )


def _name(lane: int, k: int) -> str:
    return "c" if lane == k else f"p{lane}"


def _order(tree: Tree, k: int) -> list[int]:
    """The lanes from top to bottom: no two branches cross, c and low lanes come first."""

    def node(here: Node, below: list[list[int]]) -> list[int]:
        below.sort(key=lambda lanes: min(-1 if lane == k else lane for lane in lanes))
        return [lane for lanes in below for lane in lanes]

    return fold(tree, lambda lane: [lane], node)
