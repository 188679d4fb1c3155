"""Inputs on which models can differ, made of the parameters in which they do.

Random inputs seldom have a bit just where a cut falls. Here a dot product has a few terms, most of
them powers of two, whose distances are drawn from the parameters of the models in question, and one
of which lies where something ends: at the smallest normal output, the exponent of a zero, the
largest number. Each `Aim` is one kind of such rows; `terms` writes them. The models are run on many
of these inputs, and where they differ the box is asked.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from bitmma import formats
from bitmma.clfp.adding_up import PLACES, adding_up
from bitmma.clfp.box import Box, Dots
from bitmma.clfp.terms import (
    ANY,
    BIT,
    EIGHTHS,
    FOURTH,
    HALVES,
    LEAST,
    MOST,
    NEXT,
    ODD,
    ONE,
    ONES,
    RUN,
    SMALL,
    SQUARE,
    THIRD,
    TWO,
    UNIT,
    Ints,
    Mask,
    Setting,
    Terms,
    coded,
    move,
    sizes,
    two_scales,
    written,
)
from bitmma.formats import Format
from bitmma.models import Model

__all__ = ["AIMS", "Aim", "separating"]


@dataclass(frozen=True)
class Aim:
    """One kind of input.

    Attributes:
        name, fed: in words.
        draw: so many rows of it.
    """

    name: str
    fed: str
    draw: Callable[[Setting, int], Terms]


AIMS: list[Aim] = []
_Draw = Callable[[Setting, int], Terms]


def _aim(name: str, fed: str) -> Callable[[_Draw], _Draw]:
    def register(draw: _Draw) -> _Draw:
        AIMS.append(Aim(name, fed, draw))
        return draw

    return register


def _few(s: Setting, n: int) -> Terms:
    """U, perhaps -U, and three smaller terms at distances that the models' parameters give."""
    x = s.empty(n, 5)
    gap = s.choose(s.gaps, n, 5)
    gap[:, 4] = np.where(s.one_in(2, n), gap[:, 4], s.choose(range(70), n))
    gap[:, :2] = np.where(s.one_in(8, n, 2), gap[:, :2] % 3, 0)
    chained = s.one_in(2, n)  # the last two as far below the third as they are below U
    gap[:, 3] = np.where(chained, gap[:, 2] + s.choose([0, 1, 2, 3], n), gap[:, 3])
    x.e = -gap
    x.lane[:, 1] = np.where(s.one_in(2, n), -1, x.lane[:, 1])
    x.lane[:, 3:] = np.where(s.one_in(3, n, 2), -1, x.lane[:, 3:])
    cancels = ~s.one_in(4, n)
    x.negative[:, 1] = np.where(cancels, ~x.negative[:, 0], x.negative[:, 1])
    x.shape = np.where(s.one_in(5, n, 5), s.choose(range(9), n, 5), ONE)
    x.shape[:, 1] = np.where(cancels & ~s.one_in(5, n), x.shape[:, 0], x.shape[:, 1])
    return x


@_aim("a bit where something is cut", "U, perhaps -U, and bits where the cuts fall, or just beside")
def _at_cuts(s: Setting, n: int) -> Terms:
    x = _few(s, n)
    move(x, s.middle(n))
    return x


@_aim("what is left of U - U", "U and -U, as large as they can be, and small numbers beside them")
def _left(s: Setting, n: int) -> Terms:
    x = s.empty(n, 5)
    high = s.range.high - s.choose(range(12), n)
    at = np.where(s.one_in(2, n), high, s.choose(s.places, n))
    at = np.where(s.one_in(4, n), s.range.high, at)
    x.negative[:, 1] = ~x.negative[:, 0]
    x.shape = s.choose([ONE] * 7 + [BIT, RUN, ANY, ODD, LEAST], n, 5)
    x.shape[:, :2] = s.choose([ONE, ONE, HALVES, MOST], n, 1)
    gap = s.choose(s.gaps, n)
    low = s.choose(s.places, n)
    inside = at - (s.rng.random(n) * gap).astype(np.int64)
    first = np.where(
        s.one_in(2, n), inside, np.where(s.one_in(2, n), low, at - s.choose(s.gaps, n))
    )
    second = np.where(s.one_in(2, n), first - s.choose(s.halves, n), s.choose(s.places, n))
    second = np.where(s.one_in(4, n), s.range.lowest + s.choose(range(3), n), second)
    x.e = np.stack([at, at, first, second, at - gap], axis=1)
    x.e[:, 2:] = np.minimum(x.e[:, 2:], at[:, None])
    x.lane[:, 2:] = np.where(s.one_in(3, n, 3), -1, x.lane[:, 2:])
    free = ~(x.lane == s.k).any(axis=1) & s.one_in(2, n)
    x.lane[free, 2] = s.k
    return x


@_aim("c = 0 decides", "c = 0, products just below its exponent, one where half a unit is")
def _zero_decides(s: Setting, n: int) -> Terms:
    x = s.empty(n, min(s.k, 33))
    terms = x.e.shape[1]
    x.lane = np.where(x.lane == s.k, -1, x.lane)
    top = s.choose(s.zeros, n) - s.choose([1, 1, 1, 2, 3, 0, -1], n)
    few = np.minimum(s.choose(range(1, terms + 1), n), s.choose(s.steps, n))
    few = np.where(
        s.one_in(2, n), few, np.maximum(s.choose(s.steps, n) - s.choose([0, 1, 2], n), 1)
    )
    x.e = np.repeat(top[:, None], terms, axis=1)
    shape = s.choose([MOST, MOST, HALVES, ONE, RUN, ANY], n, 1)
    x.shape = np.where(s.one_in(6, n, 1), s.choose(range(7), n, terms), shape)
    x.negative = np.where(s.one_in(6, n, 1), x.negative, x.negative[:, :1])
    # Its sum has about so many bits above the products' exponent.
    carry = np.ceil(np.log2(few * np.where(shape[:, 0] == MOST, 4, 2))).astype(np.int64)
    x.lane = np.where(np.arange(terms) >= few[:, None], -1, x.lane)
    down = s.choose(s.halves, n) - carry + s.choose([0, 0, 1, 2, -1], n)
    x.e[:, 0] = top - np.where(s.one_in(4, n), s.choose(s.gaps, n), down)
    x.shape[:, 0] = s.choose([ONE, MOST, RUN, RUN, ODD, ANY], n)
    x.negative[:, 0] = s.one_in(2, n)
    x.rest, x.rest_used = top - s.choose(s.gaps, n), s.one_in(3, n)
    return x


@_aim("c = 0 decides a tie", "c = 0, terms alike below its exponent, half a unit together; a hair")
def _zero_decides_ties(s: Setting, n: int) -> Terms:
    terms = max(4, min(s.k, 33) + 1)
    x = s.empty(n, terms, placed=False)
    zero, step = s.choose(s.zeros, n), np.minimum(s.choose(s.steps, n), terms - 1)
    top = zero - s.choose([1, 1, 1, 1, 2, 3], n)
    few = np.maximum(step - s.choose([1, 2, 2, 3], n), 1)
    shape = s.choose([ONE, ONE, RUN, RUN, MOST, TWO], n)
    size = sizes(shape, 1.0)
    carry = np.log2(few * size).astype(np.int64)
    tie = np.maximum(s.box.formats[3].min_exponent, top + carry) - s.choose(s.halves, n)
    # Where that is above them, so many of them make it; or of 9/4, and a power of two.
    whole, above = 1 << np.clip(tie - top, 0, 6), tie >= top
    nines = above & s.one_in(2, n)
    few = np.where(above & (whole <= step), whole, few)
    few = np.where(nines, whole * 4 // 9 + 1, few)
    shape = np.where(nines, HALVES, np.where(above, ONE, shape))
    rest = np.log2(np.maximum(whole - (few - 1) * 2.25, 0.25)).astype(np.int64)
    lane = np.arange(terms) - 1
    few = np.minimum(few + 2, step)  # a hair, or two
    x.lane = np.where(lane >= few[:, None], -1, np.maximum(lane, 0))
    x.lane[:, 0] = -1
    x.e[:], x.shape[:] = top[:, None], shape[:, None]
    x.negative[:] = x.negative[:, :1] ^ (s.one_in(16, n, terms) & s.one_in(2, n, 1))
    x.e[:, 1] = zero - s.choose(s.gaps, n) + s.choose([-2, -1, -1, 0, 0, 1], n)
    x.e[:, 3] = np.where(above, np.where(nines, top + rest, top), tie)
    x.shape[:, [1, 3]] = np.where(s.one_in(4, n, 2), s.choose(range(7), n, 2), ONE)
    x.negative[:, 1] = s.one_in(2, n)
    squares = s.one_in(3, n)  # the hair is what two products leave
    x.e[squares, 1] = (s.range.low + s.choose(range(4), n))[squares]
    x.lane[:, 2] = np.where(squares, x.lane[:, 2], -1)
    x.e[:, 2], x.negative[:, 2] = x.e[:, 1], ~x.negative[:, 1]
    x.shape[squares, 1], x.shape[:, 2] = SQUARE, NEXT
    return x


@_aim("c beside a boundary", "products, and the c that brings their sum to half a unit, or just by")
def _solved(s: Setting, n: int) -> Terms:
    x = _carries(s, n)
    x.lane = np.where(x.lane == s.k, -1, x.lane)
    gap, half = s.choose(s.gaps, n), s.choose(s.halves, n)
    far = np.where(s.one_in(2, n), 2, half + 2) * s.rng.random(n)  # c is small, or of any size
    more = s.choose([0, 0, 1, 1, 2, 3, -1], n)
    x.solved = np.stack([half, gap, more, far.astype(np.int64)], axis=1)
    return x


@_aim("the longest sums", "all products of a step at their largest, c's last bit where it is cut")
def _longest(s: Setting, n: int) -> Terms:
    x = s.empty(n, min(s.k, 64), placed=False)
    terms = x.e.shape[1]
    step = s.choose(s.steps, n)
    first = s.first_lanes(step)
    lane = first[:, None] + np.arange(terms)
    x.lane = np.where(np.arange(terms) < step[:, None], lane, -1)
    x.shape[:] = s.choose([MOST, MOST, TWO], n, 1)
    x.negative[:] = x.negative[:, :1]
    x.minus_zero[:] = False
    half, gap = s.choose(s.halves, n), s.choose(s.gaps, n)
    # A product of two such is nearly 4 times 2 to its exponent.
    # Where c has more bits than are kept of it, it is as large as a product.
    far = half - np.log2(step).astype(np.int64)
    far += np.minimum(s.box.formats[2].mantissa_bits - gap, 0)
    more = s.choose([1, 1, 1, 2, 3], n)
    x.solved = np.stack([half, gap, more, far - s.choose([0, 0, 1, 2], n)], axis=1)
    s.somewhere(x)
    return x


@_aim("a bit where something ends", "the same at the smallest outputs, at e_zero, at overflow")
def _at_ends(s: Setting, n: int) -> Terms:
    x = _few(s, n)
    move(x, s.ends(x))
    return x


@_aim("just below normal", "the smallest normal number less half or a quarter of its unit; a hair")
def _below_normal(s: Setting, n: int) -> Terms:
    x = s.empty(n, 3)
    x.e[:] = s.choose(s.normals, n, 1)
    x.negative[:, 1] = ~x.negative[:, 0]
    x.e[:, 1] -= s.choose(s.halves, n) + s.choose([0, 0, 0, 1, -1], n)
    x.e[:, 2] = np.where(s.one_in(2, n), x.e[:, 1], x.e[:, 0]) - s.choose(s.gaps, n)
    x.lane[:, 2] = np.where(s.one_in(2, n), -1, x.lane[:, 2])
    alone = s.one_in(3, n)  # a product just below it, or a c
    x.shape[alone, 0] = s.choose([TWO, ONES, ONES, ONES, MOST, ANY], n)[alone]
    x.lane[alone & s.one_in(3, n), 0] = s.k
    x.negative[:, 1] ^= alone & s.one_in(2, n)
    x.e[alone, 0] -= 1 + (x.shape[alone, 0] == MOST) * s.one_in(2, n)[alone]
    x.lane[:, 1] = np.where(alone & s.one_in(1.3, n), -1, x.lane[:, 1])
    return x


@_aim("sums to the bit", "products that come to half a unit or a power of two, less or more a bit")
def _to_the_bit(s: Setting, n: int) -> Terms:
    tries, most = 3 * n, min(s.k, 8)
    step = np.minimum(s.choose(s.steps, tries), most)
    count = np.minimum(s.choose(range(1, most + 1), tries), step)
    power = np.maximum(np.log2(count).astype(np.int64) + s.choose([-1, 0, 0, 1, 1], tries), 0)
    down = s.choose(s.halves, tries)
    # Half a unit above any output, or so many of half a unit, or a quarter, below a power of two.
    output = 1 + 2 * (s.rng.random(tries) * (1 << (down - 1).clip(0))).astype(np.int64)
    tie = (1 << down) + output << (PLACES + power - down).clip(0)
    down += s.choose([0, 0, 1], tries)
    below = s.choose([0, 1, 1, 2, 3], tries) << (PLACES + power - down).clip(0)
    sums = np.where(s.one_in(2, tries), tie, (1 << PLACES + power) - below)
    hair = (PLACES - s.choose(s.gaps, tries) + s.choose([0, 0, 1, -1], tries)).clip(0)
    sums += s.choose([-1, 0, 1, 1, 3], tries) << hair
    M_a, M_b = (f.mantissa_bits for f in s.box.formats[:2])
    e, a, b, found = adding_up(np.maximum(sums, 1), count, M_a, M_b, s.rng)
    most = e.shape[1]
    x = s.empty(n, most, placed=False)
    (rows,) = found.nonzero()
    if not len(rows):
        return x
    rows = rows[np.arange(n) % len(rows)]
    x.e, x.mantissas = e[rows], np.stack([a[rows], b[rows]], axis=2)
    lane = (np.arange(most) + s.choose(range(most), n, 1)) % step[rows, None]
    lane += s.first_lanes(step[rows])[:, None]
    x.lane = np.where(np.arange(most) < count[rows, None], lane, -1)
    x.negative[:] = x.negative[:, :1]
    top, power = x.e.max(axis=1), power[rows]
    ends = [
        s.choose(s.normals, n) - power - s.choose([0, 0, 1], n), s.choose(s.places, n) - power,
        s.choose(s.zeros, n) - s.choose([1, 1, 1, 2, 3], n) - top, s.middle(n) - top,
    ]  # fmt: skip
    move(x, np.choose(s.choose(range(len(ends)), n), ends))
    return x


@_aim("long and few", "terms alike in all lanes of a step but two: half a unit of the sum, a hair")
def _alike(s: Setting, n: int) -> Terms:
    terms = max(4, min(s.k, 64) + 1)
    x = s.empty(n, terms, placed=False)
    step = s.choose(s.steps, n)
    first = s.first_lanes(step)
    lane = first[:, None] + np.arange(terms) - 1
    few = np.where(s.one_in(3, n), 1 << s.choose(range(terms.bit_length()), n), step)
    few = np.minimum(few + 2 - s.choose([-1, 0, 0, 0, 1, 2], n), step)
    x.lane = np.where(np.arange(terms) > few[:, None], -1, lane)
    shape = s.choose([ONE, ONE, HALVES, RUN, RUN, MOST, TWO], n)
    x.shape[:] = shape[:, None]
    x.negative[:] = x.negative[:, :1]
    size = sizes(shape, 1.0)
    # What is alike makes a sum with its first bit here, or one below.
    carry = np.log2(np.maximum(few - s.choose([0, 1, 2, 3], n), 1) * size)
    carry = carry.astype(np.int64) - s.one_in(4, n)
    half = carry - s.choose(s.halves, n)
    hair = np.where(s.one_in(2, n), carry, 0) - s.choose(s.gaps, n) + s.choose([0, 0, 1, -1], n)
    # c is half a unit, a whole one or a hair; or alike; or what they are a unit of; or nothing.
    role, above = s.choose(range(7), n), carry + s.choose(s.halves, n) - s.choose([0, 1], n)
    x.e[:, 0] = np.choose(role, [half, half + 1, hair, carry * 0, carry, above, half])
    x.lane[:, 0] = np.where(role == 6, -1, s.k)
    x.e[:, 1], x.e[:, 2] = half, np.where(role == 5, above - s.choose(s.gaps, n), hair)
    x.lane[:, 1] = np.where((role == 5) & s.one_in(1.3, n), -1, x.lane[:, 1])
    x.shape[:, :3] = np.where(s.one_in(4, n, 3), s.choose(range(7), n, 3), ONE)
    for i in range(3):
        x.negative[:, i] ^= s.one_in(2, n)
    squares = s.one_in(4, n)  # the hair is what two of the smallest leave
    x.e[squares, 2] = (s.range.low - s.range.high + s.choose(range(4), n))[squares]
    x.shape[squares, 2], x.shape[squares, 3] = SQUARE, NEXT
    x.e[squares, 3], x.negative[squares, 3] = x.e[squares, 2], ~x.negative[squares, 2]
    s.within(x)
    return x


@_aim("what two neighbours leave", "U and -U or none, a sum, half its unit, and p - p (1 + an ulp)")
def _neighbours(s: Setting, n: int) -> Terms:
    x = s.empty(n, 6)
    M = s.box.formats[0].mantissa_bits
    gap = s.choose(s.gaps, n)
    span = s.range.high - s.range.low + 1
    above = np.where(s.one_in(3, n), 0, (s.rng.random(n) * span).astype(np.int64))
    above = np.where(s.one_in(3, n), s.range.high - s.choose(s.places, n), above)
    hair = -gap + s.choose(range(-1, 2 * M + 2), n)
    lowest = s.one_in(3, n)
    hair = np.where(lowest, 1 - span + s.choose(range(4), n), hair)
    x.e[:, 2] = -above
    x.e[:, 3] = -above - s.choose(s.halves, n) + s.choose([0, 0, 1], n)
    x.e[:, 4:] = hair[:, None]
    x.negative[:, 1] = ~x.negative[:, 0]
    x.shape[:] = ONE
    x.shape[:, :2] = s.choose([ONE, HALVES, MOST], n, 1)
    x.shape[:, 2] = s.choose([ONE, ODD, UNIT, UNIT], n)
    x.shape[:, 4] = s.choose([ONE, ONE, ODD, SQUARE], n)
    other = s.choose([ODD, ODD, BIT, ANY], n)
    x.shape[:, 5] = np.where(x.shape[:, 4] == SQUARE, NEXT, other)
    x.negative[:, 5] = ~x.negative[:, 4]
    alone = s.one_in(2, n)  # the sum is the largest
    x.lane[alone, :2] = -1
    x.e[alone & ~lowest, 2:4] += above[alone & ~lowest, None]
    ties = s.one_in(3, n) & ~alone  # no sum: half of what is kept of U - U, and the smallest number
    role = np.where(ties, 5, s.choose(range(6), n))
    role = np.where((x.lane == s.k).any(axis=1), 5, role)
    x.lane[:, 2] = np.where(role < 3, s.k, np.where(role == 3, -1, x.lane[:, 2]))
    wide = (role < 3) & lowest & s.one_in(2, n)  # c is far above: products are half its unit
    x.e[wide, 3] = -s.choose(range(6), n)[wide]
    x.e[wide, 2] = x.e[wide, 3] + s.choose(s.halves, n)[wide]
    x.lane[ties, 4:], x.shape[ties, 2] = -1, ONE
    x.e[ties, 3] = (s.choose([0, 0, 1], n) - s.choose(s.gaps, n))[ties]
    x.e[ties, 2] = (s.range.lowest - s.range.high + s.choose(range(3), n))[ties]
    x.lane[:, 3] = np.where(s.one_in(4, n) & ~ties, -1, x.lane[:, 3])
    s.within(x)
    move(x, np.where(ties, s.range.high - np.maximum(x.e[:, 0], x.e[:, 1]), 0))
    return x


@_aim("a power of two of many", "c or none, half its unit made of all products of a step; a hair")
def _made(s: Setting, n: int) -> Terms:
    """Products as large as they can be seldom make a tie: here they are chosen to make 2^power.

    It is half a unit of c, or the sum itself. Beside it there are a unit of what is cut from
    sums, and a hair: one product, or two of many bits that leave one bit.
    """
    most = min(s.k, _MADE_MOST)
    x = s.empty(n, 4 + most, placed=False)
    step = np.minimum(s.choose(s.steps, n), most)
    M_a, M_b = (f.mantissa_bits for f in s.box.formats[:2])
    count, shape, e = _makings(M_a, M_b, most)
    hairs = np.minimum(s.choose([0, 1, 1, 2, 2], n), step)
    unit = s.one_in(2, n) & (hairs < step)
    limit, room = s.choose(range(len(count)), n), step - hairs - unit
    power = (count[limit] <= room[:, None]).sum(axis=1) - 1
    power = np.maximum(power - s.choose([0, 0, 0, 1, 2], n), 0)
    none = (room < 1) | s.one_in(5, n)
    x.e[:, 4:], x.shape[:, 4:] = e[limit, power], shape[limit, power]
    x.negative[:, 4:] = x.negative[:, 4:5]
    used = np.zeros((n, 4 + most), bool)
    used[:, 4:] = (np.arange(most) < count[limit, power][:, None]) & ~none[:, None]
    with_c, half = s.one_in(1.5, n) | none, s.choose(s.halves, n)
    top = np.where(with_c, power + half, power)
    x.e[:, 0], x.negative[:, 0] = top, x.negative[:, 4] ^ ~s.one_in(4, n)
    x.shape[:, 0] = s.choose([ONE] * 5 + [ODD, MOST, ANY], n)
    tie = ~with_c & ~s.one_in(4, n)
    x.e[:, 3] = top - np.where(tie, half, s.choose(s.sums, n))
    hair = top - s.choose(s.gaps, n) - s.choose([0, 0, 1], n)
    x.e[:, 1:3] = (hair + np.where(hairs == 2, M_a + M_b, 0))[:, None]
    square = s.one_in(2, n, 1) | (min(M_a, M_b) < 2)
    x.shape[:, 1:3] = np.where(square, [SQUARE, NEXT], [THIRD, FOURTH])
    x.shape[:, 1:3] = np.where(hairs[:, None] == 2, x.shape[:, 1:3], ONE)
    x.negative[:, 2] = ~x.negative[:, 1]
    used[:, 1:4] = np.stack([hairs > 0, hairs > 1, unit], axis=1)
    rank = np.cumsum(used, axis=1) - 1 + s.choose(range(64), n, 1)
    lane = s.first_lanes(step)[:, None] + rank % step[:, None]
    x.lane = np.where(used, lane, -1)
    x.lane[:, 0] = np.where(with_c, s.k, -1)
    s.within(x)
    least = s.range.lowest + s.choose(range(3), n) - x.e[:, 1]
    move(x, np.where((hairs == 1) & s.one_in(2, n), least, 0))
    return x


#: Products of the longest sums that are made so.
_MADE_MOST = 64


@functools.cache
def _makings(M_a: int, M_b: int, most: int) -> tuple[Ints, Ints, Ints]:
    """Of products limited in four ways, for powers 0, 1, ...: how many make 2^power; which; their
    exponents. A power that more than ``most`` are needed for counts more than that.
    """
    powers = (4 * most).bit_length()
    shape, e = np.zeros((2, len(_LIMITS), powers, most), np.int64)
    count = np.full((len(_LIMITS), powers), most + 1)
    for limit, power in np.ndindex(count.shape):
        a, b = (range(8, _LIMITS[limit] + 1, max(1, 8 >> M)) for M in (M_a, M_b))
        sizes = {i * j: (i - 8) * 8 + j - 8 for i in a for j in b}
        rest, terms = Fraction(64 << power), list[tuple[int, int]]()  # in 64ths
        while rest and len(terms) <= most:
            down = 0
            while rest < Fraction(64, 1 << down):
                down += 1
            size = max(x for x in sizes if x <= rest * 2**down)
            terms.append((EIGHTHS + sizes[size], -down))
            rest -= Fraction(size, 1 << down)
        if len(terms) <= most:
            count[limit, power] = len(terms)
            shape[limit, power, : len(terms)] = [x for x, _ in terms]
            e[limit, power, : len(terms)] = [x for _, x in terms]
    return count, shape, e


#: The largest significands of products that make a power of two, in eighths.
_LIMITS = (8, 12, 14, 15)


@_aim("last bits", "numbers whose last bits fall where something is cut, beside a few bits")
def _last_bits(s: Setting, n: int) -> Terms:
    x = s.empty(n, 4)
    M, M_c = s.box.formats[0].mantissa_bits, s.box.formats[2].mantissa_bits
    is_c = x.lane == s.k
    own = np.where(is_c, M_c, s.choose([M, 2 * M, 2 * M + 1], n, 4))
    down = s.choose(s.gaps, n, 4) - own + s.choose([0, 0, 1, -1], n, 4)
    down = np.where(s.one_in(3, n, 4), s.choose(s.halves, n, 4) + s.choose([0, 1, -1], n, 4), down)
    x.e = -np.maximum(down, 0)
    x.e[:, 0] = 0
    x.shape = s.choose([MOST, TWO, TWO, ODD, SQUARE, ANY, ONE], n, 4)
    x.shape[:, 0] = s.choose([ONE, ONE, UNIT, ODD, ANY], n)
    x.lane[:, 2:] = np.where(s.one_in(1.5, n, 2), -1, x.lane[:, 2:])
    s.within(x)
    return x


@_aim("c against the longest sums", "all products of a step, and the power of two that takes most")
def _cancelled(s: Setting, n: int) -> Terms:
    terms = max(2, min(s.k, 64) + 1)
    x = s.empty(n, terms, placed=False)
    step = s.choose(s.steps, n)
    first = s.first_lanes(step)
    lane = first[:, None] + np.arange(terms) - 1
    x.lane = np.where(np.arange(terms) > step[:, None], -1, lane)
    x.lane[:, 0] = s.k
    shape = s.choose([MOST, MOST, TWO, RUN, ANY], n, 1)
    other = s.choose([ANY, ODD, MOST, SQUARE], n, terms)
    x.shape = np.where(s.one_in(4, n, terms), other, shape)
    x.negative[:] = x.negative[:, :1]
    x.negative[:, 0] ^= ~s.one_in(4, n)
    size = sizes(shape[:, 0], 2.0)
    x.e[:, 0] = np.log2(step * size).astype(np.int64) + s.choose([0, 1, 1, 2], n)
    x.e[:, 1] -= np.where(s.one_in(2, n), 0, s.choose(s.gaps, n))
    x.shape[:, 0] = s.choose([ONE, ONE, ONE, ODD, ANY], n)
    s.within(x)
    return x


@_aim("over a power of two", "c or a product just below it, what leads beyond it, and a hair")
def _beyond(s: Setting, n: int) -> Terms:
    x = s.empty(n, 5)
    with_c = s.one_in(1.5, n)
    x.lane[with_c] = np.where(x.lane[with_c] == s.k, -1, x.lane[with_c])
    x.lane[with_c, 0] = s.k
    x.shape = np.where(s.one_in(4, n, 5), s.choose(range(7), n, 5), ONE)
    x.shape[:, 0] = s.choose([MOST, MOST, TWO, RUN, UNIT], n)
    x.negative[:, 1] = x.negative[:, 0]
    x.e[:, 1] = -(s.rng.random(n) * 26).astype(np.int64)
    x.e[:, 2] = -s.choose(s.halves, n) + s.choose([0, 1, 1, 2], n)
    x.e[:, 3:] = -s.choose(s.gaps, n, 2) + s.choose([0, 0, 0, -1, -2, 1], n, 2)
    x.shape[:, 3] = s.choose([ONE, HALVES, RUN], n)
    three = s.one_in(3, n)  # three quarters
    x.e[three, 4], x.shape[three, 3:] = x.e[three, 3] + 1, ONE
    x.negative[three, 4] = x.negative[three, 3]
    x.lane[:, 2] = np.where(s.one_in(2, n), -1, x.lane[:, 2])
    x.lane[:, 4] = np.where(s.one_in(2, n), -1, x.lane[:, 4])
    s.within(x)
    return x


@_aim("many hairs", "U, half a unit, less a little, and in all other lanes what is cut from it")
def _hairs(s: Setting, n: int) -> Terms:
    x = s.empty(n, 3)
    x.e[:, 1] = -np.where(s.one_in(3, n), s.choose(s.gaps, n), s.choose(s.halves, n))
    hair = s.choose(s.gaps, n)
    x.e[:, 2] = np.where(s.one_in(4, n), -s.choose(s.gaps, n), s.choose(range(6), n) - hair)
    x.negative[:, 2] = np.where(s.one_in(4, n), x.negative[:, 2], ~x.rest_negative)
    x.rest = -hair - s.choose(range(3), n)
    x.rest_used[:] = True
    x.shape[:, 0] = s.choose([ONE, UNIT, ODD], n)
    x.lane[:, 1:] = np.where(s.one_in(3, n, 2), -1, x.lane[:, 1:])
    s.somewhere(x)
    return x


@_aim("carries", "the largest significands in all lanes but a few, and bits where the cuts fall")
def _carries(s: Setting, n: int) -> Terms:
    terms = min(s.k + 1, 65)
    x = s.empty(n, terms)
    small = s.rng.random((n, terms)) < s.choose([0, 1, 2, 6], n, 1) / terms
    count = max(terms.bit_length(), 1)
    gap = s.choose(s.gaps, n, terms)
    gap = np.where(
        s.one_in(2, n, terms), gap, s.choose(s.halves, n, 1) - s.choose(range(count + 1), n, 1)
    )
    x.e = np.where(small, -gap, 0)
    large = s.choose([MOST, MOST, MOST, HALVES, BIT, ANY], n, 1)
    large = np.where(s.one_in(8, n, terms), s.choose([MOST, HALVES, BIT, ANY], n, terms), large)
    x.shape = np.where(small, s.choose([ONE, ONE, MOST, ODD, ANY], n, terms), large)
    x.negative = np.where(small | s.one_in(8, n, 1), x.negative, x.negative[:, :1])
    with_c = s.one_in(2, n)
    x.lane[with_c] = np.where(x.lane[with_c] == s.k, -1, x.lane[with_c])
    x.lane[with_c, 1:] = x.lane[with_c, :-1]  # beside all of a step
    x.lane[with_c, 0] = s.k
    step = s.choose([0, 0, 1, 2], n) + s.choose(s.steps, n) - 1
    few = np.where(s.one_in(2, n), step, s.choose(range(terms), n))
    x.lane = np.where((np.arange(terms) > few[:, None]) & ~s.one_in(4, n, 1), -1, x.lane)
    s.somewhere(x)
    return x


@_aim("zeros", "zeros of all signs, and the smallest numbers of either sign beside them")
def _zeros(s: Setting, n: int) -> Terms:
    x = s.empty(n, 3)
    x.lane = np.where(s.one_in(2, n, 3), -1, x.lane)
    x.shape = np.where(s.one_in(3, n, 3), SMALL, ONE)
    fd = s.box.formats[3]
    last = fd.min_exponent - fd.mantissa_bits
    low = s.choose([s.range.lowest, last, last - 1, fd.min_exponent, *s.places.tolist()], n)
    x.e = low[:, None] + s.choose([0, 0, 1, 2, 3], n, 3)
    x.negative[:, 1] = np.where(s.one_in(2, n), ~x.negative[:, 0], x.negative[:, 1])
    x.minus_zero = s.one_in(2, n)
    return x


@_aim("c alone", "c beside zeros or U - U, at the ends of the outputs' range and between outputs")
def _c_alone(s: Setting, n: int) -> Terms:
    x = s.empty(n, 3)
    fd = s.box.formats[3]
    x.lane = np.where(x.lane == s.k, -1, x.lane)
    x.lane[:, 0] = s.k
    last = fd.min_exponent - fd.mantissa_bits
    ends = [fd.min_exponent - 1, fd.min_exponent, last, last + 1, fd.max_exponent]
    x.e[:, 0] = np.where(s.one_in(2, n), s.choose(ends, n), s.choose(s.places, n))
    x.shape[:, 0] = s.choose([ONE, HALVES, MOST, MOST, RUN, RUN, BIT, ODD, ANY], n)
    x.e[:, 1:] = s.middle(n)[:, None]
    x.negative[:, 2] = ~x.negative[:, 1]
    alone: Mask = np.logical_or(s.one_in(2, n), np.any(x.lane < 0, axis=1))
    x.lane[alone, 1:] = -1
    x.minus_zero = s.one_in(2, n)
    return x


@_aim("a far c", "products, and c as far from them as the models' parameters say")
def _far_c(s: Setting, n: int) -> Terms:
    x = s.empty(n, 4)
    x.lane = np.where(x.lane == s.k, -1, x.lane)
    x.lane[:, 0] = s.k
    x.lane[:, 2:] = np.where(s.one_in(2, n, 2), -1, x.lane[:, 2:])
    x.e[:, 1:] = s.choose(s.gaps, n, 1) * np.where(s.one_in(3, n, 1), -1, 1)
    x.e[:, 2:] -= np.where(s.one_in(2, n, 2), 0, s.choose(s.gaps, n, 2))
    x.shape = np.where(s.one_in(2, n, 4), s.choose(range(9), n, 4), ONE)
    s.somewhere(x)
    return x


def separating(box: Box, models: Sequence[Model], count: int, seed: int) -> Dots:
    """About so many dot products, of every aim, made for telling these models apart."""
    s = Setting(box, models, seed)
    whole = []
    if box.scale_format is not None:
        whole = [_scaled(s, count // 2)]
        whole += [_scaled_ties(s, count // 4)] if s.steps[0] > 2 else []
    each = -(-count // len(AIMS) // (1 + len(whole)))
    return Dots.join([*whole, *(written(s, aim.draw(s, each)) for aim in AIMS)])


def _scaled(s: Setting, n: int) -> Dots:
    """With block scales: whole rows, scaled to where something ends, some blocks far below others.

    Operands are of the largest, or any, or zeros; a block's products have one sign or any; c is 0
    more often than not.
    """
    box, k = s.box, s.k
    fs, block = box.scale_format, box.spec.block
    assert fs is not None and block
    fc = box.formats[2]
    shape = (n, k // block)
    operands = []
    zero, most = s.choose([0, 0, 4, 12], n, 1) / 16, s.choose([0, 4, 12, 15], n, 1) / 16
    group = np.repeat(s.one_in(2, *shape), block, axis=1) & s.one_in(2, n, 1)
    signs = (group, s.one_in(2, n, k) & s.one_in(2, n, 1))
    for fmt, sign in zip(box.formats[:2], signs, strict=True):
        code = s.choose(range((fmt.max_code >> fmt.dropped_bits) + 1), n, k) << fmt.dropped_bits
        draw = s.rng.random((n, k))
        code = np.where(draw < most, fmt.max_code, np.where(draw > 1 - zero / 2, 0, code))
        code |= np.where(sign & ((code != 0) | (fmt.specials != "fnuz")), fmt.sign_bit, 0)
        operands.append(code.astype(fmt.code_dtype))
    sums = np.array([fs.max_exponent, *range(-14, 3)], np.int64) + box.formats[3].min_exponent
    sums[1:] -= box.formats[3].mantissa_bits
    at = np.where(s.one_in(2, n, 1), s.choose(s.zeros, n, 1), s.choose(s.places, n, 1))
    at = np.where(s.one_in(3, n, 1), s.choose(sums, n, 1), at) - s.choose(range(6), n, 1)
    # And sums that are, just so, not below the smallest output, or a few times as large.
    values = (formats.decode(x, fmt) for x, fmt in zip(operands, box.formats, strict=False))
    total = np.abs(np.prod(list(values), axis=0).sum(axis=1, keepdims=True))
    first = sums[-3] - (np.frexp(total)[1] - 1) + s.choose([0, 0, 1, 2], n, 1)
    just = s.one_in(3, n, 1) & (total > 0)
    at = np.where(just, first, at)
    lower = np.where(s.one_in(2, n, 1) | just, at, s.choose(s.zeros, n, 1)) - s.choose(
        s.gaps, *shape
    )
    e = np.where(s.one_in(2, *shape) | just, at, lower)
    e_c = at[:, 0] - s.choose(s.gaps, n)
    c, held = coded(s, fc, e_c, s.choose(range(7), n), s.one_in(2, n))
    none = s.one_in(1.5, n) | ~held
    c = np.where(none, np.where(s.one_in(2, n), fc.sign_bit, 0), c).astype(fc.code_dtype)
    return Dots(operands[0], operands[1], c, *two_scales(fs, e))


def _scaled_ties(s: Setting, n: int) -> Dots:
    """With block scales, c = 0: products that make the smallest output, or half of it; a hair."""
    box, k = s.box, s.k
    fs, block = box.scale_format, box.spec.block
    assert fs is not None and block
    step = min(s.choose(s.steps, 1).item(), k)
    found = _powers_of_two(box.formats[0], box.formats[1], step - 1)
    powers = np.array(sorted(found), np.int64)
    which = s.choose(range(len(powers)), n)
    first = s.first_lanes(np.full(n, step))
    lane = first[:, None] + s.rng.permuted(np.tile(np.arange(step), (n, 1)), axis=1)
    negative, hair = s.one_in(2, n), s.one_in(2, n)
    operands = []
    for i, fmt in enumerate(box.formats[:2]):
        rows = np.array([found[p, h][i] for p, h in powers.tolist()])[which]
        code = np.zeros((n, k), np.int64)
        code[np.arange(n)[:, None], lane] = rows << fmt.dropped_bits
        if i == 0:
            at = np.arange(n), lane[:, 0]
            sign = np.repeat(negative[:, None], k, axis=1)
            sign[at] ^= hair
            code = np.where(sign & (code != 0), code | fmt.sign_bit, code)
        operands.append(code.astype(fmt.code_dtype))
    tie = box.formats[3].min_exponent - s.choose(s.halves, n) + s.choose([0, 0, 1], n)
    up = tie - powers[which, 0] - s.plain.lowest
    up = np.clip(up, 2 * fs.min_exponent, 2 * fs.max_exponent)
    scales = two_scales(fs, np.repeat(up[:, None], k // block, axis=1))
    return Dots(operands[0], operands[1], np.zeros(n, box.formats[2].code_dtype), *scales)


@functools.cache
def _powers_of_two(
    fa: Format, fb: Format, most: int
) -> dict[tuple[int, int], tuple[list[int], list[int]]]:
    """By two exponents, in units of the smallest product: the codes of up to so many products whose
    sum is 2 to the first, after one that is 2 to the second and much smaller.
    """
    numbers = []
    for fmt in (fa, fb):
        codes = range(1, min(fmt.max_code >> fmt.dropped_bits, 255) + 1)
        values = [fmt.decode(x << fmt.dropped_bits) for x in codes]
        numbers.append([x.significand << x.exponent - fmt.min_exponent for x in values])
    a_and_b = itertools.product(*(enumerate(x, 1) for x in numbers))
    product = {x * y: (a, b) for (a, x), (b, y) in a_and_b}
    sizes, found = sorted(product, reverse=True), {}
    for power in range(2, (most * sizes[0]).bit_length()):
        rest, terms = 1 << power, list[tuple[int, int]]()
        while rest and len(terms) < most:
            n = next(x for x in sizes if x <= rest)
            rest, terms = rest - n, [*terms, product[n]]
        if rest:
            continue
        terms += [(0, 0)] * (most - len(terms))
        for hair in (i for i in range(8) if i + 4 < power and 1 << i in product):
            both = [product[1 << hair], *terms]
            found[power, hair] = [x for x, _ in both], [x for _, x in both]
    return found
