"""Boxes that are no function, or break: the probe says what is wrong and claims nothing."""

import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bitmma
from bitmma.clfp import BlackBox, Report, probe
from bitmma.clfp.box import Box, Dots

UNIT = bitmma.instruction("Volta", "m8n8k4.f32.f16.f16.f32")


def box(fn: Callable[..., Any], *, batched: bool = True) -> BlackBox:
    return BlackBox(fn, 8, 8, 4, "f16", c="f32", batched=batched, name="trap")


def claims_nothing(report: Report) -> None:
    assert report.model is None
    assert report.candidates == []
    assert report.tested == 0
    assert report.confidence == ""


def flipped(d: np.ndarray, where: Any) -> np.ndarray:
    """Outputs with their low bit flipped."""
    codes = d.view(np.uint32).copy()
    codes[where] ^= 1
    return codes.view(np.float32)


def random_box(seed: int) -> Callable[..., Any]:
    rng = np.random.default_rng(seed)
    return lambda A, B, C: rng.standard_normal(C.shape).astype(np.float32)


def sometimes_wrong(seed: int) -> Callable[..., Any]:
    rng = np.random.default_rng(seed)

    def fn(A: Any, B: Any, C: Any) -> Any:
        d = UNIT(A, B, C)
        return flipped(d, rng.random(d.shape) < 1e-4)

    return fn


def stochastic(seed: int) -> Callable[..., Any]:
    rng = np.random.default_rng(seed)

    def fn(A: Any, B: Any, C: Any) -> Any:
        with np.errstate(all="ignore"):
            exact = A.astype(np.float64) @ B.astype(np.float64) + C
            down = exact.astype(np.float32)
            up = np.nextafter(down, np.where(exact > down, np.inf, -np.inf).astype(np.float32))
            share = np.abs(exact - down) / np.abs(up.astype(np.float64) - down)
        return np.where(rng.random(share.shape) < share, up, down).astype(np.float32)

    return fn


def stateful() -> Callable[..., Any]:
    last = np.float32(0)

    def fn(A: Any, B: Any, C: Any) -> Any:
        nonlocal last
        d = UNIT(A, B, C + last)
        last = np.float32(1) if np.isfinite(d).all() else np.float32(0)
        return d

    return fn


@pytest.mark.parametrize(
    "fn",
    [random_box(1), sometimes_wrong(2), stochastic(3), stateful()],
    ids=["random", "one in 10,000 flipped", "stochastic rounding", "stateful"],
)
def test_not_deterministic(fn: Callable[..., Any]) -> None:
    report = probe(box(fn), inputs=100_000)
    assert report.status == "invalid"
    assert "not deterministic" in report.reason or "different bits" in report.reason
    shown = report.counterexamples[0]
    assert shown.got != shown.other
    assert "asked again" in shown.claim
    claims_nothing(report)


def by_position(A: Any, B: Any, C: Any) -> Any:
    d = UNIT(A, B, C)
    i = np.arange(8)
    return flipped(d, (..., (i[:, None] == 3) & (i == 5)))


def test_position() -> None:
    report = probe(box(by_position), inputs=20_000)
    assert report.status == "invalid"
    assert "(3, 5)" in report.reason
    assert report.counterexamples[0].got ^ report.counterexamples[0].other == 1
    claims_nothing(report)


def leaking(A: Any, B: Any, C: Any) -> Any:
    """Output (2, 2) also depends on row 6."""
    d = UNIT(A, B, C).copy()
    other = A[..., 6, :1].astype(np.float32)
    d[..., 2, 2] += np.where(A[..., 2, :1] == other, 0, other)[..., 0]
    return d


def test_leaking_rows() -> None:
    report = probe(box(leaking), inputs=20_000)
    assert report.status == "invalid"
    assert "row 6" in report.reason or "row 2" in report.reason
    assert "(2, 2)" in report.reason
    claims_nothing(report)


def broken(A: Any, B: Any, C: Any) -> Any:
    raise RuntimeError("no such device")


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (broken, "raised RuntimeError: no such device"),
        (lambda A, B, C: UNIT(A, B, C)[..., :4], "returned shape"),
        (lambda A, B, C: UNIT(A, B, C).astype(np.float64), "returned float64"),
        (lambda A, B, C: UNIT(A, B, C).tolist(), "returned a list"),
        (lambda A, B, C: np.ma.masked_array(UNIT(A, B, C)), "returned a masked array"),
        (lambda A, B, C: UNIT(A, B, C).astype(object), "returned object"),
        (lambda A, B, C: UNIT(A, B, C).astype(complex), "returned complex128"),
        (lambda A, B, C: UNIT(A, B, C).astype(">f4"), "returned >f4"),
        (lambda A, B, C: (x for x in UNIT(A, B, C)), "returned a generator"),
        (lambda A, B: UNIT(A, B), "takes 2 positional arguments but 3 were given"),
    ],
    ids=[
        "raises",
        "wrong shape",
        "wrong dtype",
        "no array",
        "masked",
        "objects",
        "complex",
        "byte order",
        "generator",
        "two arguments",
    ],
)
def test_broken(fn: Callable[..., Any], says: str) -> None:
    report = probe(box(fn), inputs=1_000)
    assert report.status == "invalid"
    assert report.reason.startswith("assumptions: ")
    assert says in report.reason
    claims_nothing(report)


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Interrupting(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


class Endless(Exception):
    def __str__(self) -> str:
        return "x" * 1_000_000


def endless(*operands: Any) -> Any:
    return endless(*operands)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (SystemExit(0), "raised SystemExit: 0 "),
        (GeneratorExit("gone"), "raised GeneratorExit: gone "),
        (TimeoutError("no answer"), "raised TimeoutError: no answer "),
        (Speechless(), "raised Speechless: (its message cannot be shown) "),
        (Interrupting(), "raised Interrupting: (its message cannot be shown) "),
        (Endless(), "raised Endless: xxx"),
        (MemoryError(), "raised MemoryError: "),
    ],
    ids=lambda x: type(x).__name__,
)
def test_raises_anything(error: BaseException, says: str) -> None:
    def fn(A: Any, B: Any, C: Any) -> Any:
        raise error

    report = probe(box(fn), inputs=1_000)
    assert report.status == "invalid"
    assert says in report.reason and len(report.reason) < 1_000
    claims_nothing(report)


def test_endless_recursion() -> None:
    assert "raised RecursionError: maximum recursion" in probe(box(endless), inputs=1_000).reason


def test_no_character_breaks_a_report(tmp_path: Path) -> None:
    """NUL, an escape sequence and half a surrogate pair, in an exception and in the box's name."""
    nasty = "a\x00b\x1b[31m\ud800<i>"

    def fn(A: Any, B: Any, C: Any) -> Any:
        raise ValueError(nasty)

    report = probe(BlackBox(fn, 8, 8, 4, name=nasty), inputs=1_000)
    assert r"raised ValueError: a\x00b\x1b[31m\ud800<i> (" in report.reason
    report.save_html(tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert page.count(r"a\x00b\x1b[31m\ud800&lt;i&gt;") >= 3
    assert not set(page) & {chr(i) for i in range(32) if i != 10}
    report.save(tmp_path / "r.json")
    assert Report.load(tmp_path / "r.json").box["name"] == nasty
    print(report)  # encodes


class Twisted(np.ndarray):
    """A subclass with a mind of its own."""

    @property
    def shape(self) -> Any:
        raise ValueError("no shape")

    @property
    def T(self) -> Any:
        raise ValueError("no T")


@pytest.mark.parametrize(
    "kind",
    [
        np.asfortranarray,
        lambda d: d.view(Twisted),
        lambda d: d.view(np.recarray),
        lambda d: np.repeat(d, 2, -1)[..., ::2],
        lambda d: d[..., ::-1, :].copy()[..., ::-1, :],
    ],
    ids=["Fortran", "subclass", "recarray", "strided", "negative strides"],
)
def test_any_layout_will_do(kind: Callable[[Any], Any]) -> None:
    report = probe(box(lambda *x: kind(UNIT(*x))), inputs=1_000)
    assert (report.status, report.model) == ("verified", UNIT.model)


def test_a_buffer_used_again() -> None:
    """What the box returned is its own: it may write there at its next call."""
    kept: list[Any] = []

    def fn(A: Any, B: Any, C: Any) -> Any:
        for d in kept:
            d[...] = 7
        kept[:] = [UNIT(A, B, C)]
        A[...], C[...] = 0, 1
        return kept[0]

    report = probe(box(fn), inputs=1_000)
    assert (report.status, report.model) == ("verified", UNIT.model)


def ones(A: Any, B: Any, C: Any) -> Any:
    A[...] = 1
    return UNIT(A, B, C)


@pytest.mark.parametrize(
    "fn",
    [
        lambda A, B, C: np.zeros_like(C),
        lambda A, B, C: np.full_like(C, np.nan),
        lambda A, B, C: np.full_like(C, np.inf),
        lambda A, B, C: C,
        lambda A, B, C: np.broadcast_to(np.float32(1), C.shape),
        ones,
    ],
    ids=["zero", "NaN", "Inf", "C", "read-only", "A set to 1"],
)
def test_constant(fn: Callable[..., Any]) -> None:
    report = probe(box(fn), inputs=2_000)
    assert report.status in ("verified", "ambiguous", "unexplained")
    assert report.counterexamples if report.status == "unexplained" else report.tested >= 2_000


def test_hanging_keeps_what_was_found() -> None:
    calls = 0

    def fn(A: Any, B: Any, C: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 40:
            time.sleep(3)
        return UNIT(A, B, C)

    report = probe(box(fn), inputs=5_000, limit=0.5)
    assert report.status == "invalid"
    assert "did not return within 0.5 s" in report.reason
    assert report.reason.startswith("feature: ")
    assert report.tree_text == "fused(c, p0..p3)"
    assert len(report.features) >= 1
    claims_nothing(report)


def rarely_otherwise(A: Any, B: Any, C: Any) -> Any:
    """A function, but no unit: one dot product in about 500 has its low bit flipped."""
    d = UNIT(A, B, C)
    mixed = A[..., :, :1].view(np.uint16).astype(np.uint32) * 40503
    mixed = (mixed + B[..., :1, :].view(np.uint16) * np.uint32(2654435761)) >> 8
    return flipped(d, (mixed % 509 == 7) & np.isfinite(d))


def test_no_unit() -> None:
    report = probe(box(rarely_otherwise), inputs=20_000)
    assert report.status == "unexplained"
    assert report.counterexamples
    claims_nothing(report)


def test_a_box_that_nobody_closed_leaves_no_thread() -> None:
    """Threads that waited for ever once piled up by the dozen."""
    for end in (Box.close, lambda asked: None):
        before = set(threading.enumerate())
        asked = Box(BlackBox(lambda A, B, C: C, 4, 4, 4, "f32"))
        zeros = np.zeros((1, 4, 4), np.uint32)
        asked.mma(Dots(zeros, zeros, zeros))
        worker = set(threading.enumerate()) - before
        assert len(worker) == 1
        end(asked)
        del asked
        gc.collect()
        for thread in worker:
            thread.join(30)
            assert not thread.is_alive()
