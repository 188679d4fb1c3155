"""Summation trees of functions whose order is known."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bitmma import engine
from bitmma.clfp.box import BlackBox, Box
from bitmma.clfp.tree import Node, Tree, fold, from_text, leaves, read_tree, text, to_text
from bitmma.models import FDPA, RNE_FP32, Model


def chain(p: Any, c: Any) -> Any:
    total = c
    for x in p:
        total = total + x
    return total


def pairwise(p: Any, c: Any) -> Any:
    sums = list(p)
    while len(sums) > 1:
        sums = [
            *(x + y for x, y in zip(sums[::2], sums[1::2], strict=False)),
            *sums[len(sums) // 2 * 2 :],
        ]
    return sums[0] + c


def strided(p: Any, c: Any) -> Any:
    """Four accumulators, then their sum."""
    lanes = [chain(p[i + 4 :: 4], p[i]) for i in range(4)]
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + c


def box(add: Callable[[Any, Any], Any], k: int) -> Box:
    def fn(A: Any, B: Any, C: Any) -> Any:
        return add((A[..., :, None, :] * B.swapaxes(-1, -2)[..., None, :, :]).T, C.T).T

    return Box(BlackBox(fn, 4, 4, k, "f32", batched=True))


@pytest.mark.parametrize(
    ("add", "k", "want"),
    [
        (chain, 4, "((((c + p0) + p1) + p2) + p3)"),
        (pairwise, 5, "((((p0 + p1) + (p2 + p3)) + p4) + c)"),
        (strided, 8, "((((p0 + p4) + (p1 + p5)) + ((p2 + p6) + (p3 + p7))) + c)"),
        (lambda p, c: chain(p[::-1], c), 3, "(((c + p2) + p1) + p0)"),
        (lambda p, c: chain(p, p[0] * 0), 3, "((p0 + p1) + p2)"),
    ],
)
def test_known_orders(add: Callable[[Any, Any], Any], k: int, want: str) -> None:
    assert text(read_tree(box(add, k)).tree, k) == want


@pytest.mark.parametrize("add", [chain, pairwise, strided])
def test_long_sums_take_few_calls(add: Callable[[Any, Any], Any]) -> None:
    reading = read_tree(box(add, 512))
    assert reading.tree is not None
    assert leaves(reading.tree) == tuple(range(513))
    # A lane is brought by a row or by a column, of which a call has 8: it takes 64 calls or more.
    assert reading.calls <= {chain: 140, pairwise: 500, strided: 210}[add]
    assert from_text(to_text(reading.tree)) == reading.tree


def test_the_worst_order_takes_no_square_of_calls() -> None:
    reading = read_tree(box(lambda p, c: chain(p[::-1], c), 512))
    assert reading.tree is not None and leaves(reading.tree) == tuple(range(513))
    assert text(reading.tree, 512).startswith("(((((((") and reading.calls <= 300


def random_tree(rng: np.random.Generator, lanes: list[int], most: int) -> Tree:
    """A node of 2 to ``most`` children over these lanes, shuffled."""
    if len(lanes) == 1:
        return lanes[0]
    children = min(len(lanes), int(rng.integers(2, most + 1)))
    cuts = sorted(rng.choice(np.arange(1, len(lanes)), children - 1, replace=False).tolist())
    parts = [lanes[i:j] for i, j in zip([0, *cuts], [*cuts, len(lanes)], strict=True)]
    below = [random_tree(rng, part, most) for part in parts]
    below.sort(key=lambda child: leaves(child)[0])
    return Node(tuple(below), "add" if children == 2 else "fused")


def fused_sum(terms: list[Any]) -> Any:
    """All terms cut to multiples of the largest's last place in float32, then added."""
    with np.errstate(all="ignore"):
        _, e = np.frexp(np.max(np.abs(terms), axis=0))
        unit = np.ldexp(1.0, e - 24)
        return sum(np.trunc(x / unit) * unit for x in terms).astype(np.float32)


@pytest.mark.parametrize("form", ["f32", "bf16", "f16", "e5m2", "e4m3"])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 9), (1, 16, 20), (16, 1, 20), (5, 3, 40), (16, 8, 100), (64, 256, 32)]
)
def test_random_trees_on_boxes_of_every_shape(form: str, m: int, n: int, k: int) -> None:
    rng = np.random.default_rng([m, n, k])
    tree = random_tree(rng, rng.permutation(k + 1).tolist(), 4)

    def fn(A: Any, B: Any, C: Any) -> Any:
        A, B = (np.asarray(x, np.float64) for x in (A, B))

        def leaf(lane: int) -> Any:
            return C.astype(np.float64) if lane == k else A[:, lane, None] * B[None, lane]

        return fold(tree, leaf, lambda node, parts: fused_sum(parts))

    found = read_tree(Box(BlackBox(fn, m, n, k, form, c="f32")))
    assert found.tree == tree, found
    pairs = (k + 1) * k // 2
    assert found.calls <= 12 + (pairs if (m, n) == (1, 1) else pairs // min(m, n))


def fused(model: Model, k: int) -> Box:
    def fn(A: Any, B: Any, C: Any) -> Any:
        codes = engine.mma(
            model, A.view(np.uint16), B.view(np.uint16), C.view(np.uint32),
            a_format="f16", b_format="f16", c_format="f32",
        )  # fmt: skip
        return codes.view(np.float32)

    return Box(BlackBox(fn, 4, 4, k, batched=True))


@pytest.mark.parametrize("rounding", ["RZ", "RD", "RU", "RA", "RNE"])
def test_every_rounding_of_the_cut(rounding: str) -> None:
    model = FDPA(4, cut=rounding, cut_c=rounding, rho=RNE_FP32)
    assert text(read_tree(fused(model, 8)).tree, 8) == "fused(fused(c, p0..p3), p4..p7)"


def test_exact_and_pairwise() -> None:
    exact = FDPA(4, None, F_c=None, rho=RNE_FP32)
    assert text(read_tree(fused(exact, 8)).tree, 8) == "exact(exact(c, p0..p3), p4..p7)"
    pairs = FDPA(4, order="pairwise", rho=RNE_FP32)
    assert (
        text(read_tree(fused(pairs, 16)).tree, 16)
        == "(((fused(p0..p3) + fused(p4..p7)) + (fused(p8..p11) + fused(p12..p15))) + c)"
    )


@pytest.mark.parametrize("bad", ["", "(", "(add 1", "(add 1 2))", "(sum 1 2)", "add", "()"])
def test_no_tree(bad: str) -> None:
    with pytest.raises(ValueError, match="no tree"):
        from_text(bad)


def test_deep_trees() -> None:
    tree: Tree = 4095
    source = "4095"
    for i in range(4095):
        source = f"(add {source} {i})"
    tree = from_text(source)
    assert to_text(tree) == source
    assert leaves(tree) == tuple(range(4096))
