"""Exact matrix products, by float64 matrix products that cannot round.

A row of A is cut into slices of a few bits, integers times one power of two, and so is a column of
B. A product of two slices is a sum of K small integers below 2^53: BLAS computes it exactly, in
whatever order it likes. What is left is one short sum an output, which is kept as an expansion: a
few float64 numbers whose unrounded sum is the result. (The idea of the slices is Ozaki's: K. Ozaki,
T. Ogita, S. Oishi, S. M. Rump, "Error-free transformations of matrix multiplication by using fast
routines of matrix multiplication and its applications", Numer. Algorithms 59, 2012.)
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from bitmma import formats
from bitmma.formats import Format
from bitmma.models import RNE_FP64, Conversion

__all__ = ["Exact", "exact_product", "exact_sum", "mean_of", "times", "ulp"]

Floats = npt.NDArray[np.float64]

_SIGNIFICAND = 53
_LOWEST = -1074  # float64's own exponents: 2**_LOWEST is its smallest number
_HIGHEST = 1023
_LARGEST = math.ldexp(1 - 2.0**-_SIGNIFICAND, _HIGHEST + 1)


@dataclass(frozen=True, eq=False)
class Exact:
    """An array of exact numbers.

    Attributes:
        parts: float64 arrays of one shape whose sum, element by element, is the number. The first
            is the number correctly rounded to float64, each later one what the earlier ones lack.
            (Below 2**-1074, where float64 ends, a non-zero rest counts as that.)
    """

    parts: tuple[Floats, ...]

    @property
    def value(self) -> Floats:
        """The numbers, each rounded once to float64 (RNE)."""
        return self.parts[0]

    @formats.in_default_environment
    def error_of(self, d: npt.ArrayLike) -> Floats:
        """``d`` minus the number, rounded once to float64."""
        return self.below(Exact((np.asarray(d, np.float64),)))

    @formats.in_default_environment
    def below(self, other: Exact) -> Floats:
        """``other`` minus the number, rounded once to float64."""
        return _sum([*other.parts, *(-x for x in self.parts)])

    @formats.in_default_environment
    @np.errstate(over="ignore")
    def rounded(self, rho: Conversion) -> Floats:
        """The number after one rounding by ``rho``, in float64 (which holds every format).

        What overflows becomes what ``rho.overflow`` says.
        """
        fmt = formats.get(rho.format)
        bits = fmt.mantissa_bits if rho.mantissa_bits is None else rho.mantissa_bits
        if rho == RNE_FP64:
            return self.value
        if bits > _SIGNIFICAND - 3:
            return self._rounded_one_by_one(rho)
        odd = self.to_odd()
        target = Format(
            fmt.name, fmt.width, fmt.exponent_bits, bits, fmt.bias, fmt.specials, fmt.dtype_name
        )
        saturate = rho.overflow == "saturate"
        d: Floats = formats.quantize(odd, target, rounding=rho.mode, saturate=saturate).astype(
            np.float64
        )
        if rho.overflow != "inf":
            return d
        beyond = np.abs(odd) >= np.ldexp(2.0, fmt.max_exponent)
        return np.where(beyond, np.copysign(np.inf, odd), d)

    def _rounded_one_by_one(self, rho: Conversion) -> Floats:
        """The same in Python's integers, for as many bits as float64 has."""
        fmt = formats.get(rho.format)

        def one(*parts: float) -> float:
            number = sum(map(Fraction, parts), Fraction(0))
            n, q = number.numerator, 1 - number.denominator.bit_length()
            saturate = rho.overflow == "saturate"
            code = fmt.encode(n, q, rho.mode, mantissa_bits=rho.mantissa_bits, saturate=saturate)
            if rho.overflow == "inf" and abs(number) >= Fraction(2) ** (fmt.max_exponent + 1):
                return math.inf if number > 0 else -math.inf
            return float(formats.decode(np.array(code, fmt.code_dtype), fmt))

        parts = np.stack([np.where(np.isfinite(x), x, _LARGEST) for x in self.parts])
        flat = parts.reshape(len(parts), -1).T.tolist()
        return np.array([one(*x) for x in flat]).reshape(self.parts[0].shape)

    def to_odd(self) -> Floats:
        """Rounded to odd: cut to 53 bits, the last one set where anything was cut.

        Rounding that once more, to 51 bits or fewer, is rounding the exact number.
        """
        value = self.parts[0]
        if len(self.parts) == 1:
            return value
        rest = self.parts[1]
        inward = np.sign(rest) == -np.sign(value)
        cut = np.where(inward & (rest != 0), np.nextafter(value, 0.0), value)
        bits = cut.view(np.int64) | (rest != 0)
        odd: Floats = bits.view(np.float64)
        return odd


@formats.in_default_environment
def exact_product(A: npt.ArrayLike, B: npt.ArrayLike, C: npt.ArrayLike | None = None) -> Exact:
    """A B + C, exactly.

    Args:
        A: (..., M, K). B: (..., K, N). C: (..., M, N) or None. Finite numbers that float64 holds,
            as every format's are (`bitmma.formats.decode`). Leading dimensions broadcast.

    Raises:
        ValueError: shapes that do not fit, or a number that is not finite.
    """
    return exact_sum(A, B, [] if C is None else [C])


@formats.in_default_environment
def exact_sum(A: npt.ArrayLike, B: npt.ArrayLike, addends: Iterable[npt.ArrayLike]) -> Exact:
    """A B plus any number of matrices, exactly; otherwise as `exact_product`."""
    a, b = np.asarray(A, np.float64), np.asarray(B, np.float64)
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        raise ValueError(f"A must be (..., M, K) and B (..., K, N), got {a.shape} and {b.shape}")
    more = [np.asarray(x, np.float64) for x in addends]
    for name, x in (("A", a), ("B", b), *(("C", x) for x in more)):
        if not np.isfinite(x).all():
            raise ValueError(f"{name} must be finite: an exact result has no Inf and no NaN")
    terms = _terms(a, b)
    if terms is None:
        return _by_integers(a, b, more)
    terms += more
    shape = np.broadcast_shapes(*(x.shape for x in terms))
    return Exact(tuple(_expansion([np.broadcast_to(x, shape) for x in terms])))


def times(parts: Iterable[Floats], factor: npt.ArrayLike) -> list[Floats]:
    """Float64 arrays whose exact sum is that of ``parts`` times numbers of 24 bits, float32's.

    Each is split in 26 and 27 bits, whose products with them float64 holds.
    """
    f = np.asarray(factor, np.float64)
    found = []
    for x in parts:
        high = (x.view(np.int64) & ~0x7FFFFFF).view(np.float64)
        found.append(high * f)
        if (x != high).any():
            found.append((x - high) * f)
    return found


def _terms(a: Floats, b: Floats) -> list[Floats] | None:
    """Arrays of float64 whose exact sum is A B; None where float64's exponents do not suffice."""
    K = a.shape[-1]
    bits = (_SIGNIFICAND - max(K, 1).bit_length()) // 2
    while True:
        cut_a, cut_b = _slices(a, bits), _slices(np.swapaxes(b, -1, -2), bits)
        if cut_a is None or cut_b is None:
            return None
        (e_a, slices_a), (e_b, slices_b) = cut_a, cut_b
        together = min(len(slices_a), len(slices_b))
        if K * together <= 1 << (_SIGNIFICAND - 2 * bits):
            break
        bits -= 1
    exponent = e_a[..., :, None] + e_b[..., None, :]
    terms = [np.zeros(exponent.shape)]
    if not together:
        return terms  # one of the matrices is zero
    for weight in range(len(slices_a) + len(slices_b) - 1):
        pairs = range(max(0, weight - len(slices_b) + 1), min(weight, len(slices_a) - 1) + 1)
        left = np.concatenate([slices_a[i] for i in pairs], axis=-1)
        right = np.concatenate([slices_b[weight - i] for i in pairs], axis=-1)
        integers = left @ np.swapaxes(right, -1, -2)
        q = exponent - bits * (weight + 2)
        used = np.broadcast_to(q, integers.shape)[integers != 0]
        if used.size and (used.min() < _LOWEST or used.max() + _SIGNIFICAND > _HIGHEST):
            return None
        terms.append(np.ldexp(integers, q))
    return terms


def _slices(rows: Floats, bits: int) -> tuple[npt.NDArray[np.int32], list[Floats]] | None:
    """Exponents e (..., R) and integer arrays s_0, s_1 ... below 2**bits in magnitude with
    rows = 2**e * sum of s_i * 2**(-bits * (i + 1)), exactly; None where float64 cannot scale them.
    """
    e = np.frexp(np.abs(rows).max(axis=-1, initial=0.0))[1]
    rest = np.ldexp(rows, -e[..., None])
    if not np.array_equal(np.ldexp(rest, e[..., None]), rows):
        return None
    slices = []
    while rest.any():
        rest = rest * 2.0**bits
        whole = np.trunc(rest)
        slices.append(whole)
        rest = rest - whole
    return e, slices


# --- short sums -----------------------------------------------------------------------------------

#: What NumPy takes in one ufunc, its output aside.
_UFUNC_INPUTS = 60


def _sum(terms: list[Floats]) -> Floats:
    """The terms' sum, element by element, rounded once."""
    if len(terms) == 1:
        return terms[0]
    if len(terms) == 2:
        return terms[0] + terms[1]
    if len(terms) > _UFUNC_INPUTS:
        columns = np.stack(terms).reshape(len(terms), -1).T
        sums = [
            math.fsum(x) if math.isfinite(x[0]) else x[0]
            for x in (column.tolist() for column in columns)
        ]
        return np.array(sums).reshape(terms[0].shape)
    with np.errstate(invalid="ignore"):
        total: Floats = _fsum(len(terms))(*terms).astype(np.float64)
    return total


def _fsum(count: int) -> Any:
    return np.frompyfunc(lambda *x: math.fsum(x) if math.isfinite(x[0]) else x[0], count, 1)


def _expansion(terms: list[Floats]) -> Iterator[Floats]:
    """The sum rounded, then what that lacks rounded, and so on until nothing is missing."""
    terms = [x for i, x in enumerate(terms) if i == 0 or x.any()]
    part = np.asarray(_sum(terms))
    yield part
    while len(terms) > 1:
        terms.append(-part)
        part = np.asarray(_sum(terms))
        if not part.any():
            return
        yield part


# --- any exponents --------------------------------------------------------------------------------


def _by_integers(a: Floats, b: Floats, addends: Iterable[Floats]) -> Exact:
    """The same in Python's integers: for float64 operands of extreme exponents."""
    (n_a, q_a), (n_b, q_b) = _integers(a), _integers(b)
    total, q = np.matmul(n_a, n_b), q_a + q_b
    for c in addends:
        n_c, q_c = _integers(c)
        low = min(q, q_c)
        total, q = total * (1 << (q - low)) + n_c * (1 << (q_c - low)), low
    parts: list[Floats] = []
    while not parts or total.any():
        part = _rounded_integers(total, q)
        parts.append(part)
        beyond = ~np.isfinite(part)  # of these there is no more to say
        total = np.where(beyond, 0, total)
        n, q_n = _integers(np.where(beyond, 0.0, part))
        low = min(q, q_n)
        total, q = total * (1 << (q - low)) - n * (1 << (q_n - low)), low
        if q < _LOWEST and (np.abs(total) * 2 <= 1 << (_LOWEST - q)).all() and total.any():
            parts.append(np.sign(total).astype(np.float64) * 2.0**_LOWEST)
            break
    return Exact(tuple(parts))


def _integers(x: Floats) -> tuple[npt.NDArray[Any], int]:
    """Python integers n and one q with x = n * 2**q."""
    fraction, e = np.frexp(x)
    q = np.where(x == 0, _HIGHEST, e - _SIGNIFICAND)
    low = int(q.min(initial=_HIGHEST))
    n = np.ldexp(fraction, _SIGNIFICAND).astype(np.int64).astype(object)
    return n * np.left_shift(np.ones(x.shape, object), (q - low).astype(object)), low


def _rounded_integers(n: npt.NDArray[Any], q: int) -> Floats:
    rounded: Floats = np.frompyfunc(lambda one: _to_float(one, q), 1, 1)(n).astype(np.float64)
    return rounded


def _to_float(n: int, q: int) -> float:
    try:
        return float(n << q) if q >= 0 else n / (1 << -q)
    except OverflowError:
        return math.inf if n > 0 else -math.inf


def ulp(x: Floats, fmt: Format) -> Floats:
    """The distance of the format's numbers around ``x``: 2**(exponent - mantissa bits).

    The exponent is that of ``x``, but the lowest normal one where ``x`` is below it.
    """
    e = np.maximum(np.frexp(np.where(np.isfinite(x), x, 1.0))[1] - 1, fmt.min_exponent)
    e = np.where(x == 0, fmt.min_exponent, e)
    step: Floats = np.ldexp(1.0, e - fmt.mantissa_bits)
    return step


def mean_of(x: Floats) -> Fraction:
    """The mean of finite numbers, of their exact sum rounded once; 0 of none."""
    for scale in (0, 64):  # the sum may lie beyond float64
        with contextlib.suppress(OverflowError):
            total = math.fsum(np.ldexp(x, -scale).reshape(-1).tolist())
            return Fraction(total) * 2**scale / max(x.size, 1)
    raise AssertionError("fewer than 2^64 numbers")
