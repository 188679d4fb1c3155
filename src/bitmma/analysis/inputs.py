"""Seeded inputs, the same bits on every machine and with every version of NumPy.

NumPy promises the integers of its bit generators, not what its distributions make of them, and a
libm's log differs between machines in the last place. So the integers are PCG64's, and numbers are
made of them by +, -, *, / and sqrt alone, which IEEE 754 rounds everywhere alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bitmma import formats

__all__ = ["DISTRIBUTIONS", "sample"]

Floats = npt.NDArray[np.float64]


class _Stream:
    """Numbers from one seed."""

    def __init__(self, seed: int | Sequence[int]) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(seed))

    def integers(self, n: int) -> npt.NDArray[np.uint64]:
        raw: npt.NDArray[np.uint64] = self._bits.random_raw(n)
        return raw

    def uniform(self, n: int) -> Floats:
        """Multiples of 2**-53 in [0, 1)."""
        return (self.integers(n) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def normal(self, n: int) -> Floats:
        """N(0, 1), by Marsaglia's polar method."""
        found: list[Floats] = []
        missing = n
        while missing > 0:
            # pi/4 of the pairs lie in the disc and give two numbers each.
            pairs = self.uniform(2 * (missing * 2 // 3 + 8)).reshape(2, -1) * 2 - 1
            radius = pairs[0] * pairs[0] + pairs[1] * pairs[1]
            inside = (radius < 1) & (radius > 0)
            x, s = pairs[:, inside], radius[inside]
            found.append((x * np.sqrt(-2 * _log(s) / s)).T.reshape(-1))
            missing -= found[-1].size
        return np.concatenate(found)[:n] if found else np.empty(0)

    def outliers(self, n: int) -> Floats:
        base, far = self.normal(n), self.normal(n) * 10
        return base + np.where(self.uniform(n) < 0.001, far, 0.0)

    def heavy(self, n: int) -> Floats:
        """Student's t with two degrees of freedom, by its quantile function."""
        u = (np.floor(self.uniform(n) * 2.0**52) + 0.5) * 2.0**-52  # never 0 or 1
        return (2 * u - 1) / np.sqrt(2 * u * (1 - u))


def _log(x: Floats) -> Floats:
    """ln x of positive numbers, to a few ulps: ln m = 2 artanh((m-1)/(m+1)), m in [0.7, 1.42)."""
    m, e = np.frexp(x)
    low = m < 0.70703125
    m, e = np.where(low, m * 2, m), e - low
    t = (m - 1) / (m + 1)
    square = t * t
    series = np.full(t.shape, 1 / 23)
    for denominator in range(21, 0, -2):
        series = series * square + 1 / denominator
    logarithm: Floats = e * 0.6931471805599453 + 2 * t * series
    return logarithm


#: What `sample` knows by name.
DISTRIBUTIONS: Mapping[str, str] = {
    "normal": "N(0, 1)",
    "uniform": "uniform in [-1, 1)",
    "outliers": "N(0, 1) + Bernoulli(0.001) · N(0, 100): one in a thousand has deviation 10 more",
    "heavy": "Student's t with two degrees of freedom: no variance",
}

_DRAW: Mapping[str, Callable[[_Stream, int], Floats]] = {
    "normal": _Stream.normal,
    "uniform": lambda stream, n: stream.uniform(n) * 2 - 1,
    "outliers": _Stream.outliers,
    "heavy": _Stream.heavy,
}


@formats.in_default_environment
def sample(
    distribution: str | npt.ArrayLike,
    shape: int | Sequence[int],
    *,
    seed: int | Sequence[int] = 0,
    scale: float = 1.0,
) -> Floats:
    """Random numbers; round them to an operand's format with `bitmma.quantize`.

    Args:
        distribution: a key of `DISTRIBUTIONS`, or an array of your own: numbers are then drawn
            from its elements, with replacement.
        shape: the result's.
        seed: an integer, or several, as in ``(seed, "which matrix" as a number)``: different ones
            give independent streams, equal ones equal numbers on every machine.
        scale: a factor.

    Returns:
        A float64 array.

    Raises:
        TypeError, ValueError: an unknown distribution, an array without finite numbers only, a
            negative seed or dimension.
    """
    dimensions, given = _integers(shape, "shape"), _integers(seed, "seed")
    if not given:
        raise ValueError(f"seed must be one non-negative integer or several, not {seed!r}")
    if not isinstance(scale, float | int | np.floating | np.integer):
        raise TypeError(f"scale must be a number, not {scale!r}")
    n = math.prod(dimensions)
    stream = _Stream(given)
    if isinstance(distribution, str):
        if distribution not in _DRAW:
            raise ValueError(
                f"distribution is an array or one of {', '.join(_DRAW)}, not {distribution!r}"
            )
        drawn = _DRAW[distribution](stream, n)
    else:
        own = _own(distribution)
        drawn = own[(stream.uniform(n) * own.size).astype(np.int64)]
    return drawn.reshape(dimensions) * scale


def _integers(given: Any, name: str) -> list[int]:
    listed = [given] if isinstance(given, int | np.integer) else given
    if not isinstance(listed, Sequence | np.ndarray) or isinstance(listed, str):
        raise TypeError(f"{name} must be non-negative integers, not {given!r}")
    if not all(isinstance(x, int | np.integer) and x >= 0 for x in listed):
        raise ValueError(f"{name} must be non-negative integers, not {given!r}")
    return [int(x) for x in listed]


def _own(values: Any) -> Floats:
    if np.iscomplexobj(values):
        raise TypeError("distribution: an array to draw from must hold real numbers, not complex")
    try:
        own = np.asarray(values).astype(np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise TypeError(
            f"distribution must be a name or an array of numbers, not {type(values).__name__}"
        ) from None
    if not own.size or not np.isfinite(own).all():
        raise ValueError("distribution: an array to draw from must hold finite numbers, at least 1")
    return own
